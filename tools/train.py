"""`python tools/train.py`: the same as `python -m fastdata.train`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fastdata.train.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
