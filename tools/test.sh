#!/usr/bin/env bash
# Sets up .venv and runs every check: format, lint, types, docs, tests in two processes, sanitizers.  `--all` adds the
# middle part of the fault campaigns, the planted faults and five minutes of fuzzing.  Other arguments are
# passed to pytest; then there is one process, and the sanitizers are skipped.
set -euo pipefail
export FASTDATA_REQUIRE_NATIVE=1
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

command -v chromium >/dev/null || install_system_package chromium || true
if command -v chromium >/dev/null; then
    export FASTDATA_REQUIRE_BROWSER=1
else
    echo "test: there is no Chromium, so pages are not looked at; install it with: apt-get install chromium" >&2
fi

.venv/bin/ruff format --check fastdata tests tools benchmarks examples
.venv/bin/ruff check fastdata tests tools benchmarks examples
.venv/bin/clang-format --dry-run --Werror fastdata/native/*.cpp fastdata/native/*.h
.venv/bin/mypy
.venv/bin/sphinx-build --quiet --fail-on-warning --keep-going docs build/site # links that lead nowhere, too
if [ $# = 0 ] || [ "$*" = --all ]; then
    .venv/bin/python -m pytest --numprocesses 2 --dist worksteal
    bash tools/sanitize.sh
    if [ "$*" = --all ]; then
        .venv/bin/python tests/faults/long.py --part middle
        .venv/bin/python tests/faults/planted.py
        bash tools/fuzz.sh
    fi
else
    .venv/bin/python -m pytest "$@"
fi
