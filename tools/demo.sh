#!/usr/bin/env bash
# Sets up .venv and runs fastdata demo: bash tools/demo.sh [FOLDER] [--quick]
# FOLDER holds one folder of images per class; without it a sample dataset is drawn.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
exec .venv/bin/fastdata demo "$@"
