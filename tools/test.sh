#!/usr/bin/env bash
# Sets up .venv and checks the code.
#
#   bash tools/test.sh              format, lint, types and the tests that matter most: about ten minutes on two cores
#   bash tools/test.sh --all        the tests, the documentation, sanitizers: less than half an hour; what CI runs
#   bash tools/test.sh --nightly    besides, the tests of tests/nightly.txt, the fault campaigns' middle part, the
#                                   planted faults and the fuzzer: hours
#   bash tools/test.sh tests/order  only these tests; arguments are passed to pytest
set -euo pipefail
export FASTDATA_REQUIRE_NATIVE=1
# Threads of torch sleep while they wait for each other: by default they keep cores busy that other tests need.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
[ "${FASTDATA_EXTRA:-dev}" != dev ] || export FASTDATA_REQUIRE_BACKENDS=1
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

# Pixels, order, resuming, the same behaviour as torch's loader, clean ends, the layers of the code.
QUICK=(tests/augment tests/contracts tests/device tests/dropin tests/lifecycle tests/native tests/order tests/pixels
    tests/shards tests/structure)
# Three processes for two cores: a good part of the time tests wait, for processes that start, end or are timed.
PYTEST=(.venv/bin/python -m pytest --numprocesses 3 --dist worksteal)

.venv/bin/ruff format --check fastdata tests tools benchmarks examples
.venv/bin/ruff check fastdata tests tools benchmarks examples
.venv/bin/clang-format --dry-run --Werror fastdata/native/*.h fastdata/native/*/*.cpp fastdata/native/*/*.h
.venv/bin/mypy

case "$*" in
"")
    "${PYTEST[@]}" -m "not slow" "${QUICK[@]}"
    ;;
--all | --nightly)
    command -v chromium >/dev/null || install_system_package chromium || true
    if command -v chromium >/dev/null; then
        export FASTDATA_REQUIRE_BROWSER=1
    else
        echo "test: there is no Chromium, so pages are not looked at; install it with: apt-get install chromium" >&2
    fi
    .venv/bin/sphinx-build --quiet --fail-on-warning --keep-going docs build/site # links that lead nowhere, too
    [ "$*" = --nightly ] || export FASTDATA_LEAVE_NIGHTLY=1
    "${PYTEST[@]}"
    bash tools/sanitize.sh
    # PyTorch's own tests of its loader, where their file is (see the tool).
    [ -z "${FASTDATA_TORCH_SUITE:-}" ] || .venv/bin/python tools/run_torch_suite.py "$FASTDATA_TORCH_SUITE"
    if [ "$*" = --nightly ]; then
        .venv/bin/python tests/faults/long.py --part middle
        .venv/bin/python tests/faults/planted.py
        bash tools/fuzz.sh
    fi
    ;;
*)
    .venv/bin/python -m pytest "$@"
    ;;
esac
