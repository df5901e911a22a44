"""Run PyTorch's own test_dataloader.py with torch's DataLoader and with fastdata's, and compare test by test.

The suite is part of PyTorch's source tree, not of its wheel; torchdata's copy for its StatefulDataLoader does as well
(test/stateful_dataloader/test_dataloader.py):

    python tools/run_torch_suite.py ~/pytorch/test/test_dataloader.py

A test that passes with torch's class must pass with fastdata's.  Exit status 1 when one does not, 2 when the suite
cannot be run.  It needs expecttest (pip install expecttest).  --keep writes the result to
benchmarks/results/torch_suite.json.  `tools/test.sh --all` runs it where FASTDATA_TORCH_SUITE names the file.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

from fastdata.measuring.record import write_json

RESULT = Path(__file__).parents[1] / "benchmarks" / "results" / "torch_suite.json"
_OF_TORCHDATA = "from torchdata.stateful_dataloader import StatefulDataLoader as DataLoader"

_SWAP = """
import torch.utils.data, torch.utils.data.dataloader
import fastdata
torch.utils.data.DataLoader = fastdata.DataLoader
torch.utils.data.dataloader.DataLoader = fastdata.DataLoader
"""


def run_suite(suite: Path, *, swapped: bool, report: Path, select: str | None) -> dict[str, str]:
    """Runs the suite in a separate process and returns "passed", "failed" or "skipped" by test name."""
    plugin = report.with_name("swap_dataloader.py")
    plugin.write_text(_SWAP if swapped else "")
    places = [str(plugin.parent), str(suite.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    command = [sys.executable, "-m", "pytest", "-p", "swap_dataloader", "-q"]
    command += [
        "-c",
        os.devnull,
        "--rootdir",
        str(suite.parent),
        f"--junitxml={report}",
        "--timeout=120",
        str(suite),
    ]
    command += ["-k", select] if select else []
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return {f"{case.get('classname')}.{case.get('name')}": _outcome(case) for case in ET.parse(report).iter("testcase")}


def as_of_torch(suite: Path, folder: Path) -> Path:
    """The suite, or of torchdata's copy one that imports torch's class."""
    text = suite.read_text()
    if _OF_TORCHDATA not in text:
        return suite
    changed = folder / "test_dataloader.py"
    changed.write_text(text.replace(_OF_TORCHDATA, "from torch.utils.data import DataLoader"))
    return changed


def _outcome(case: ET.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "skipped" if case.find("skipped") is not None else "passed"


def main() -> int:
    """Runs the command and returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", type=Path, help="path of PyTorch's test/test_dataloader.py")
    parser.add_argument("-k", dest="select", help="run only the tests that match this expression, as with pytest -k")
    parser.add_argument(
        "--reports", type=Path, default=Path("build/torch-suite"), help="folder for the reports (default: %(default)s)"
    )
    parser.add_argument(
        "--keep", action="store_true", help=f"write the result to {RESULT.relative_to(RESULT.parents[2])}"
    )
    options = parser.parse_args()
    options.reports.mkdir(parents=True, exist_ok=True)
    reports = options.reports.absolute()
    suite = as_of_torch(options.suite, reports)
    torchs = run_suite(suite, swapped=False, report=reports / "torch.xml", select=options.select)
    if "passed" not in torchs.values():
        print("no test passes with torch's class; the suite needs expecttest: pip install expecttest", file=sys.stderr)
        return 2
    ours = run_suite(suite, swapped=True, report=reports / "fastdata.xml", select=options.select)
    worse = [name for name, outcome in torchs.items() if outcome == "passed" and ours.get(name) != "passed"]
    counts = {
        label: {kind: list(results.values()).count(kind) for kind in ("passed", "failed", "skipped")}
        for label, results in (("torch", torchs), ("fastdata", ours))
    }
    for label, found in counts.items():
        print(f"{label:9}", ", ".join(f"{count} {kind}" for kind, count in found.items()))
    if options.keep:
        failed = sorted(name for name, outcome in ours.items() if outcome == "failed")
        results = {
            "counts": counts,
            "only_with_torch": worse,
            "failed_with_both": [n for n in failed if n not in worse],
        }
        write_json(RESULT, setup="PyTorch's test_dataloader.py, with each class", data="none", results=results)
    print("tests that pass with torch's class but not with fastdata's:", ", ".join(worse) or "none")
    return 1 if worse else 0


if __name__ == "__main__":
    raise SystemExit(main())
