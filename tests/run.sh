#!/bin/bash
# Every test (make test), in a few processes so that no group sees what another left behind. The groups that exercise
# src/aloft run under coverage, subprocesses included; the native ones (runtime, kernels, operators through torch_npu)
# do not, tracing doubles their time. COV=0 leaves coverage out. With arguments: one plain pytest run of those.
set -u -o pipefail
cd "$(dirname "$0")/.."
BIN=${BIN:-.venv/bin}
MINIMUM=${ALOFT_COVERAGE_MINIMUM:-85}
if [ $# -gt 0 ]; then
  exec "$BIN/python" -m pytest "$@"
fi
status=0
plain() {
  "$BIN/python" -m pytest "$@" || status=1
}
covered() {
  if [ "${COV:-1}" = 0 ]; then
    plain "$@"
  else
    COVERAGE_PROCESS_START=$PWD/pyproject.toml "$BIN/python" -m coverage run -m pytest "$@" || status=1
  fi
}
rm -f .coverage .coverage.*
covered tests/test_*.py tests/runner tests/cli
covered tests/ops
covered tests/e2e
covered tests/models
covered tests/quantization
plain tests/kernels tests/opapi
plain tests/torch
plain tests/install
plain tests/acl
if [ "${COV:-1}" != 0 ]; then
  "$BIN/python" -m coverage combine -q
  "$BIN/python" -m coverage report --fail-under="$MINIMUM" --sort=cover || status=2
fi
exit $status
