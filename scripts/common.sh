# What quickstart and test share; source it. Changes to the repository's root.
# shellcheck shell=bash
set -euo pipefail
# With stdin closed, the first file that a child opens would become its stdin.
exec </dev/null
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

: "${MESHTRAIN_CACHE:=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/meshtrain}"
export MESHTRAIN_CACHE
mkdir -p "$MESHTRAIN_CACHE"

# Objects compiled in one clone serve the next one.
export CCACHE_BASEDIR="$root" CCACHE_NOHASHDIR=1

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

# venv NAME REQUIREMENTS...: prints the Python of a virtual environment in the cache that holds exactly these
# requirements (`-r FILE` or specifiers). The folder is keyed by what goes in.
venv() {
  local name=$1 key folder work
  shift
  key=$({ printf '%s\n' "$@"; python3 --version; for word in "$@"; do [ ! -f "$word" ] || cat "$word"; done; } |
    sha256sum | cut -c1-12)
  folder=$MESHTRAIN_CACHE/venv-$name-$key
  if [ ! -e "$folder/complete" ]; then
    rm -rf "$folder"
    # Scripts of an environment hold its path, so it is made in place and marked when done.
    python3 -m venv "$folder" >&2
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --retries 3 "$@" >&2
    touch "$folder/complete"
  fi
  echo "$folder/bin/python"
}
