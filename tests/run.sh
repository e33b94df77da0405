#!/bin/bash
# Every test, with the line coverage of src/aloft gathered from subprocesses too (make test; COV=0 leaves it out).
# Other arguments go to pytest.
set -u -o pipefail
cd "$(dirname "$0")/.."
BIN=${BIN:-.venv/bin}
MINIMUM=${ALOFT_COVERAGE_MINIMUM:-85}
if [ "${COV:-1}" = 0 ]; then
  exec "$BIN/python" -m pytest "$@"
fi
rm -f .coverage .coverage.*
COVERAGE_PROCESS_START=$PWD/pyproject.toml "$BIN/python" -m coverage run -m pytest "$@"
status=$?
"$BIN/python" -m coverage combine -q
"$BIN/python" -m coverage report --fail-under="$MINIMUM" --sort=cover || status=$((status ? status : 2))
exit $status
