#!/usr/bin/env bash
# What the README shows is so: its manifest is valid, and the files, presets and commands that it names are there. So are
# those of the page of the examples, which has all of them.
#   tests/readme_test.sh REPOSITORY MESHTRAIN
set -uo pipefail
root=$1
meshtrain=$2
readme=$root/README.md
examples=$root/docs/examples.md
failures=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; failures=$((failures + 1)); }

awk '/^```yaml/ {inside = 1; next} /^```/ {inside = 0} inside' "$readme" >"$work/readme.yaml"
[ -s "$work/readme.yaml" ] || fail "README.md: expected a manifest between \`\`\`yaml and \`\`\`"
"$meshtrain" validate -f "$work/readme.yaml" || fail "README.md: its manifest is not valid"

paths=$(grep -oE '\b(docs|scripts|tests|deploy)/[A-Za-z0-9_./-]*[A-Za-z0-9_/]' "$readme" "$root/CONTRIBUTING.md" "$examples" -h | sort -u)
[ -n "$paths" ] || fail "README.md: expected paths"
for path in $paths; do
  [ -e "$root/$path" ] || fail "named and not there: $path"
done

for example in "$root"/deploy/examples/*; do
  grep -q "\[$(basename "$example")\]" "$examples" ||
    fail "docs/examples.md: has no $(basename "$example")"
done

verbs=$(cat <(grep -oE 'bin/meshtrain [a-z]+' "$readme") <(grep -oE '^ +meshtrain [a-z]+' "$examples") | sed 's/.* //' | sort -u)
[ -n "$verbs" ] || fail "README.md: expected commands"
for verb in $verbs; do
  "$meshtrain" "$verb" --help >/dev/null || fail "named and not there: meshtrain $verb"
done

presets=$(sed -n 's/^Presets: //p' "$readme" | grep -oE '[a-z]+')
[ -n "$presets" ] || fail "README.md: expected presets"
for preset in $presets; do
  grep -q "\"name\": \"$preset\"" "$root/CMakePresets.json" || fail "named and not there: preset $preset"
done

[ "$failures" = 0 ] || exit 1
echo "README: as it says"
