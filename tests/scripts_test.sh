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

# scripts/test --e2e over tools that are not ours: who asks for nodes gets them, or an error that says what is missing.
tree=$work/e2e
mkdir -p "$tree/scripts/kubernetes" "$tree/build/dev" "$work/tools"
cp "$root/scripts/test" "$root/scripts/common.sh" "$tree/scripts/"
cp "$root/scripts/kubernetes/env.sh" "$tree/scripts/kubernetes/"
for stand_in in scripts/install-packages scripts/install-go scripts/kubernetes/build scripts/kubernetes/build-node; do
  printf '#!/bin/sh\n' >"$tree/$stand_in"
done
printf '#!/bin/sh\ncase " $* " in *" kueue "*) echo "no such module" >&2; exit 1 ;; esac\n' >"$tree/scripts/kubernetes/build-peers"
for tool in cmake python3; do printf '#!/bin/sh\n' >"$work/tools/$tool"; done
printf '#!/bin/sh\necho "$AS"\n' >"$work/tools/id"
cat >"$work/tools/ctest" <<'STAND_IN'
#!/bin/sh
case " $* " in *" -N "*) exit ;; esac
echo "12.3 s to the first loss" >>"$MT_FIGURES"
printf '100%% tests passed, 0 tests failed out of 2\n\nLabel Time Summary:\nnode = 1.00 sec*proc (2 tests)\n\n'
STAND_IN
chmod +x "$tree"/scripts/install-* "$tree"/scripts/kubernetes/build* "$work"/tools/*
prefixes() { bash -c '. "$1/scripts/kubernetes/env.sh"; shift; for name; do echo "${!name}"; done' _ "$root" "$@"; }
complete() { for prefix in $(prefixes "$@"); do mkdir -p "$prefix"; touch "$prefix/complete"; done; }
end_to_end() {
  AS=$1 MT_TF_PYTHON=python PATH="$work/tools:$PATH" "$tree/scripts/test" --e2e --no-pjrt "${@:2}" >"$work/out" 2>&1 <&-
  local status=$?
  out=$(cat "$work/out")
  return "$status"
}
has() { case $out in *"$2"*) ;; *) expect "$1" "...$2..." "$out" ;; esac; }
end_to_end 1000
expect "--e2e of somebody else than root" 77 $?
has "it says so" "--e2e: expected root, for namespaces and mounts, got: uid 1000"
end_to_end 0 --no-kubernetes
expect "--e2e without Kubernetes" 64 $?
complete NODE_PREFIX NETWORK_POLICIES_PREFIX CONTAINERD_PREFIX KUBECONFORM_PREFIX MONITORING_PREFIX PROMETHEUS_PREFIX
end_to_end 0
expect "--e2e without Kueue" 1 $?
has "it names what is missing" "lacks; the messages above say why
$(prefixes KUEUE_PREFIX)
"
has "it says why" "no such module"
complete KUEUE_PREFIX
end_to_end 0
expect "--e2e with all that it needs" 0 $?
has "totals" "100% tests passed, 0 tests failed out of 2"
expect "what is kept" "100% tests passed, 0 tests failed out of 2
Label Time Summary:
node = 1.00 sec*proc (2 tests)

12.3 s to the first loss
in all 0 min, status 0" "$(sed 's/min .*,/min,/' "$tree/build/dev/e2e.txt")"
rm "$(prefixes PROMETHEUS_PREFIX)/complete"
end_to_end 0
expect "--e2e without Prometheus" 1 $?
has "it names Prometheus" "$(prefixes PROMETHEUS_PREFIX)"

[ "$failures" = 0 ] || exit 1
echo "scripts: all as expected"
