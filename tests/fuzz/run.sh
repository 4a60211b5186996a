#!/usr/bin/env bash
# tests/fuzz/run.sh --build         builds every target by the preset `fuzz`
# tests/fuzz/run.sh NAME SECONDS    runs one for so long, from the kept inputs on
#
# An input that fails is left in build/fuzz/found/NAME-...; once mended, keep it in tests/fuzz/corpus/NAME. Ends with 77
# where there is no clang with libFuzzer (scripts/install-packages --fuzz).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder=build/fuzz

if [ "${1:-}" = --build ]; then
  command -v clang++-16 >/dev/null || { echo "run.sh: expected clang++-16, got: none" >&2; exit 77; }
  cmake --preset fuzz >/dev/null
  exec cmake --build "$folder" --target fuzz
fi

[ $# = 2 ] && [ -f "tests/fuzz/$1.cc" ] || { echo "run.sh: expected --build, or a target and seconds, got: $*" >&2; exit 64; }
target=$folder/tests/fuzz_$1
[ -x "$target" ] || { echo "run.sh: expected $target (run.sh --build), got: none" >&2; exit 77; }
# New inputs that reach new code stay beside the build, and the next run goes on from there.
mkdir -p "$folder/found" "$folder/corpus/$1"
exec "$target" -max_total_time="$2" -timeout=20 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 -verbosity=1 \
  -artifact_prefix="$folder/found/$1-" "$folder/corpus/$1" "tests/fuzz/corpus/$1"
