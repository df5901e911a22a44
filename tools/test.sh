#!/usr/bin/env bash
# Sets up .venv and runs every check: format, lint, types, tests.  Arguments go to pytest.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

.venv/bin/ruff format --check fastdata tests tools benchmarks
.venv/bin/ruff check fastdata tests tools benchmarks
.venv/bin/mypy
.venv/bin/python -m pytest "$@"
