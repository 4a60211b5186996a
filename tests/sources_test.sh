#!/usr/bin/env bash
# sources_test.sh ROOT: every source is built. One that no CMakeLists.txt names is a test that never runs.
# And files are opened by runtime/base/file.cc alone, which waits for none and looks at their kind. The others open folders
# and what the system itself provides.
set -u
cd "$1" || exit 1
count=0 forgotten=0
while read -r source; do
  count=$((count + 1))
  folder=$(dirname "$source")
  while [ "$folder" != . ] && [ ! -f "$folder/CMakeLists.txt" ]; do folder=$(dirname "$folder"); done
  if ! grep -qw -- "$(basename "$source")" "$folder/CMakeLists.txt"; then
    echo "$source: expected to be named in $folder/CMakeLists.txt"
    forgotten=$((forgotten + 1))
  fi
done < <(find runtime operator worker cli tests deploy -path tests/testdata -prune -o \
  \( -name '*.cc' -o -name '*.cu' \) -print)
[ "$count" -gt 200 ] || { echo "expected the sources below $1, got: $count"; exit 1; }
echo "$count sources, $forgotten forgotten"
others=$(grep -rnE '::open(at)?\(|\bfopen\(|\bgzopen\(|\b[io]?fstream\b' runtime operator worker cli deploy --include='*.cc' --include='*.h' |
  grep -vE '^(runtime/base/file|operator/local/(process|private_folder))\.cc:')
[ -z "$others" ] || printf 'expected OpenFile of runtime/base/file.h, got:\n%s\n' "$others"
[ "$forgotten" = 0 ] && [ -z "$others" ]
