#!/usr/bin/env python3
"""Converts images to shards: the same as `fastdata convert`.

python tools/convert_dataset.py SOURCE DEST
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also from a checkout that is not installed

from fastdata.cli.main import main

if __name__ == "__main__":  # workers import this file again
    raise SystemExit(main(["convert", *sys.argv[1:]]))
