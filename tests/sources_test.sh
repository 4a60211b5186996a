#!/usr/bin/env bash
# sources_test.sh ROOT: every source is built. One that no CMakeLists.txt names is a test that never runs.
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
[ "$forgotten" = 0 ]
