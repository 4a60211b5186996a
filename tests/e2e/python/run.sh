#!/bin/sh
# run.sh TEST.py: runs it with the first Python that has what requirements.txt names; exits 77, "skipped", without one.
cache=${MESHTRAIN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/meshtrain}
for python in "$MT_TEST_PYTHON" "$MT_PYTHON" "$cache/venv/bin/python"; do
  [ -n "$python" ] && [ -x "$python" ] || continue
  "$python" -c 'import importlib.util as u, sys
sys.exit(not all(u.find_spec(m) for m in ("numpy", "safetensors", "sklearn", "tensorboard")))' || continue
  exec "$python" "$@"
done
echo "skipped: no Python with the packages of tests/e2e/python/requirements.txt (MT_PYTHON, or $cache/venv)"
exit 77
