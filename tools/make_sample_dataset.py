"""Draw a learnable dataset of photo-like JPEGs in ten classes.

    python tools/make_sample_dataset.py sample-data

writes sample-data/train/CLASS/*.jpg and sample-data/val/CLASS/*.jpg.  The same options always give the same files.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fastdata.demo.sample import CLASSES, SampleOptions, make_sample_dataset
from fastdata.terminal.progress import progress


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder to write to; must be empty or hold an earlier sample dataset")
    defaults = SampleOptions()
    parser.add_argument(
        "--train", type=int, default=defaults.train, help="number of training images (default: %(default)s)"
    )
    parser.add_argument(
        "--val", type=int, default=defaults.val, help="number of validation images (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=defaults.seed, help="random seed that decides every pixel (default: %(default)s)"
    )
    parser.add_argument("--quality", type=int, default=defaults.quality, help="JPEG quality (default: %(default)s)")
    given = parser.parse_args()
    try:
        options = SampleOptions(train=given.train, val=given.val, seed=given.seed, quality=given.quality)
        written = make_sample_dataset(
            given.folder, options, progress=lambda steps, count: progress(steps, count, unit="image", what="drawn")
        )
    except (ValueError, FileExistsError) as error:
        parser.error(str(error))
    files = [path.stat().st_size for path in given.folder.rglob("*.jpg")]
    state = "written" if written else "existed already"
    print(f"{len(files)} images in {len(CLASSES)} classes, {sum(files) / len(files) / 1e3:.0f} kB each: {state}")


if __name__ == "__main__":
    main()
