#!/usr/bin/env bash
# The scripts themselves: they parse, refuse what they do not know, work from any folder with stdin closed, and .ci/run
# passes on scripts/test's status and ctest's closing lines.
#   tests/scripts_test.sh REPOSITORY
set -uo pipefail
root=$1
failures=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export MESHTRAIN_CACHE=$work/cache

# expect WHAT WANT GOT
expect() {
  [ "$2" = "$3" ] && return
  printf 'FAILED: %s\n  expected: %s\n  got:      %s\n' "$1" "$2" "$3" >&2
  failures=$((failures + 1))
}

for script in "$root"/scripts/* "$root"/.ci/run; do
  if [ -f "$script" ] && head -n 1 "$script" | grep -q bash; then
    bash -n "$script" || expect "$script parses" 0 $?
  fi
done

cd /
for script in test quickstart install-packages format; do
  message=$("$root/scripts/$script" --no-such-option 2>&1 <&-)
  expect "$script refuses an unknown option" 64 $?
  case $message in
    *"got: --no-such-option") ;;
    *) expect "$script names what it refuses" "...got: --no-such-option" "$message" ;;
  esac
done
# Those in Python that need nothing beside it.
for script in dashboards images make-text; do
  message=$("$root/scripts/$script" --no-such-option 2>&1 <&-)
  expect "$script refuses an unknown option" 64 $?
  case $message in
    "$script: "*) ;;
    *) expect "$script says who refuses" "$script: ..." "$message" ;;
  esac
done
listed=$("$root/scripts/install-packages" --list <&-)
expect "install-packages --list" 0 $?
expect "install-packages lists the compiler" "g++" "$(grep -x 'g++' <<<"$listed")"

# A failure inside a command substitution must end a script that sources common.sh.
(bash -c '. "$1/scripts/common.sh"; x=$(false; echo hidden); echo "went on"' _ "$root") >"$work/out" 2>&1 <&-
expect "common.sh ends on a hidden failure" "1:" "$?:$(cat "$work/out")"
expect "common.sh goes to the root" "$root" "$(cd /tmp && bash -c '. "$1/scripts/common.sh"; pwd' _ "$root" <&-)"

# An environment is kept while its list stays the same, remade when it changes, and made again when it was left half
# made. With a python3 that only makes folders: what is tested is the keeping.
mkdir -p "$work/bin"
cat >"$work/bin/python3" <<'STAND_IN'
#!/bin/sh
[ "$1" != --version ] || { echo "Python 3.0"; exit 0; }
mkdir -p "$3/bin"
printf '#!/bin/sh\n[ ! -e %s/pip-fails ]\n' "$(dirname "$0")" >"$3/bin/python"
chmod +x "$3/bin/python"
STAND_IN
chmod +x "$work/bin/python3"
made() { PATH="$work/bin:$PATH" bash -c '. "$1/scripts/common.sh"; venv here -r "$2"' _ "$root" "$work/list" <&-; }
marked() { [ -e "$work/cache/here/mark" ] && echo kept || echo remade; }
echo one >"$work/list"
expect "venv prints a Python" "$work/cache/here/bin/python" "$(made)"
touch "$work/cache/here/mark"
made >/dev/null
expect "an equal list" kept "$(marked)"
echo two >"$work/list"
made >/dev/null
expect "another list" remade "$(marked)"
touch "$work/bin/pip-fails"
echo three >"$work/list"
made >/dev/null
expect "venv fails with pip" 1 $?
rm "$work/bin/pip-fails"
touch "$work/cache/here/mark"
made >/dev/null
expect "a half-made environment" remade "$(marked)"

# .ci/run over a scripts/test that is not ours.
mkdir -p "$work/tree/.ci" "$work/tree/scripts" "$work/tree/build/dev"
cp "$root/.ci/run" "$work/tree/.ci/run"
cat >"$work/tree/scripts/test" <<'SCRIPT'
#!/bin/sh
printf '3/3 Test #3: c ... ***Failed\n\n67%% tests passed, 1 tests failed out of 3\n\nTotal Test time (real) = 1 sec\n' \
  >"$(dirname "$0")/../build/dev/ctest.log"
exit 8
SCRIPT
chmod +x "$work/tree/scripts/test"
got=$("$work/tree/.ci/run" 2>&1 <&-)
expect ".ci/run passes the status on" 8 $?
expect ".ci/run ends with ctest's closing lines" "67% tests passed, 1 tests failed out of 3

Total Test time (real) = 1 sec" "$(tail -n 3 <<<"$got")"
printf '#!/bin/sh\nexit 2\n' >"$work/tree/scripts/test"
got=$("$work/tree/.ci/run" 2>&1 <&-)
expect ".ci/run without tests keeps the status" 2 $?
expect ".ci/run says that nothing ran, whatever an earlier run left" \
  "no test ran: scripts/test ended with status 2 before ctest" "$(tail -n 1 <<<"$got")"

[ "$failures" = 0 ] || exit 1
echo "scripts: all as expected"
