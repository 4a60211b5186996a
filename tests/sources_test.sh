#!/usr/bin/env bash
# sources_test.sh ROOT: every source is built. One that no CMakeLists.txt names is a test that never runs.
# Files are opened by runtime/base/file.cc alone, which waits for none and looks at their kind. The others open folders
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
  grep -vE '^(runtime/base/file|operator/local/(process|private_folder))\.cc:|"/dev/null"')
[ -z "$others" ] || printf 'expected OpenFile of runtime/base/file.h, got:\n%s\n' "$others"
# A file that a comment or a page names is there, so that nobody looks for what has moved. NAME and FAMILY stand for any.
missing=$(grep -rhoE '\b(runtime|operator|worker|cli|tests)/[A-Za-z0-9_/]+\.(h|cc|py|sh|cmake|proto)\b' \
  runtime operator worker cli tests docs proto cmake README.md CONTRIBUTING.md --include='*.h' --include='*.cc' \
  --include='*.proto' --include='*.md' --include='*.cmake' --exclude-dir=testdata | sort -u | grep -vE 'NAME|FAMILY' |
  while read -r file; do [ -e "$file" ] || [ -n "$(find runtime operator worker cli tests -path "*/$file" | head -1)" ] || echo "$file"; done)
[ -z "$missing" ] || printf 'named and not there:\n%s\n' "$missing"
[ "$forgotten" = 0 ] && [ -z "$others" ] && [ -z "$missing" ]
