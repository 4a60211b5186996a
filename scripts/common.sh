# What quickstart and test share; source it. Changes to the repository's root.
# shellcheck shell=bash
set -euo pipefail
# A failure inside $(...) counts too.
shopt -s inherit_errexit
# With stdin closed, the first file that a child opens would become its stdin.
exec </dev/null
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

: "${MESHTRAIN_CACHE:=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/meshtrain}"
export MESHTRAIN_CACHE
mkdir -p "$MESHTRAIN_CACHE"

# Objects compiled in one clone serve the next one.
export CCACHE_BASEDIR="$root" CCACHE_NOHASHDIR=1

# The Python that scripts fall back to when python3 has no numpy: Debian's, which has it from python3-numpy.
: "${MT_PYTHON:=/usr/bin/python3}"
export MT_PYTHON

say() { printf '\n== %s\n' "$*"; }

# One compiler per core, but no more than the memory carries: gRPC's headers take a good gigabyte each.
job_count() {
  local by_memory
  by_memory=$(awk '/MemAvailable/ {print int($2 / 1500000)}' /proc/meminfo 2>/dev/null || echo 1)
  local n
  n=$(nproc)
  [ "${by_memory:-1}" -ge "$n" ] || n=$by_memory
  [ "$n" -ge 1 ] || n=1
  echo "$n"
}

# build PRESET: configures and builds it.
build() {
  cmake --preset "$1" "${@:2}" --log-level=NOTICE
  cmake --build --preset "$1" -j "$(job_count)"
}

# venv FOLDER REQUIREMENTS...: prints the Python of a virtual environment $MESHTRAIN_CACHE/FOLDER that was made from
# these requirements (`-r FILE` or specifiers); another list, or another Python, makes it anew.
venv() {
  local folder=$MESHTRAIN_CACHE/$1 word want
  shift
  want=$(python3 --version; for word in "$@"; do echo "$word"; [ ! -f "$word" ] || cat "$word"; done)
  if [ "$(cat "$folder/made-from" 2>/dev/null)" != "$want" ]; then
    rm -rf "$folder"
    python3 -m venv "$folder" >&2
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --retries 3 "$@" >&2
    # Last: a half-made environment is made again.
    printf '%s\n' "$want" >"$folder/made-from"
  fi
  echo "$folder/bin/python"
}

# unpack_packages FOLDER PACKAGE...: the files of Debian's packages (NAME or NAME=VERSION*) in FOLDER; nothing is installed.
unpack_packages() {
  local folder=$1 work
  shift
  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
    { echo "${0##*/}: expected a Debian-like system with apt" >&2; return 69; }
  work=$(mktemp -d "$MESHTRAIN_CACHE/unpack.XXXXXX")
  download() { (cd "$work" && apt-get -q -o Acquire::Retries=3 download "$@" >&2); }
  # A fresh machine has no package lists.
  download "$@" 2>"$work/first" || { apt-get -q update >&2 && download "$@"; } ||
    { cat "$work/first" >&2; rm -rf "$work"; return 69; }
  local package
  for package in "$work"/*.deb; do dpkg-deb --extract "$package" "$folder"; done
  rm -rf "$work"
}
