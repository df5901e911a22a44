"""Public training pipelines, each with torch's DataLoader and with fastdata's: CPU, equality, memory, and the verdict.

Setup: `adapters.py` builds the datasets and transforms of public programs from checkouts of their repositories, over
photographs in the layouts they expect (`layouts.py` makes them; masks and boxes are drawn).  Each pipeline runs in a
process of its own: `fastdata.check` compares the first batches of both loaders, training draws included; then whole
loaders are made, read and closed in interleaved rounds, with two worker processes (or as many as `--workers` says) and
fastdata's own draws.  CPU time is that of the whole process tree; memory the largest sum of its processes' own shares
(PSS) and of the machine's shared memory in a process that makes one pass with one kind of loader.

    python benchmarks/public/run.py PHOTOGRAPHS --sources FOLDER --data FOLDER
    python benchmarks/public/run.py PHOTOGRAPHS --sources FOLDER --data FOLDER --only moco_v2 detr

FOLDER of --sources has a folder for each repository, named OWNER+NAME.
Result: benchmarks/results/public_pipelines.json; with other numbers of worker processes public_pipelines_0.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.utils.data

from fastdata import DataLoader, check
from fastdata.measuring.record import write_json
from fastdata.measuring.rounds import Contender, measure, ratios

RESULTS = Path(__file__).parents[1] / "results"
WORKERS, COMPARED, LIMIT_S = 2, 5, 600


class Peak:
    """The largest memory of this process and its children, in MB, within a `with` block.

    Shared memory is taken from the system, less what there was before: a batch that torch's loader has sent and nobody
    has received yet is mapped by no process.
    """

    def __enter__(self) -> Peak:
        self.megabytes, self._end, self._before = 0.0, threading.Event(), _kilobytes("/proc/meminfo")["Shmem"]
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        import psutil

        me = psutil.Process()
        while not self._end.wait(0.03):  # torch's batches and their samples are there together for a moment
            total = _kilobytes("/proc/meminfo")["Shmem"] - self._before
            for process in (me, *me.children(recursive=True)):
                with suppress(OSError):  # it has ended
                    shares = _kilobytes(f"/proc/{process.pid}/smaps_rollup")
                    total += shares["Pss"] - shares["Pss_Shmem"]
            self.megabytes = max(self.megabytes, total * 1024 / 1e6)


def _kilobytes(path: str) -> dict[str, int]:
    """The sizes that the kernel tells in a file, by their names."""
    lines = [line.split() for line in Path(path).read_text().splitlines() if line.endswith(" kB")]
    return {name.rstrip(":"): int(size) for name, size, _ in lines}


KINDS: dict[str, Any] = {"torch": torch.utils.data.DataLoader, "fastdata": DataLoader}


def made(name: str, arguments: argparse.Namespace) -> tuple[str, str, Any, Any, dict[str, Any]]:
    """A pipeline's repository, file, maker, dataset and options."""
    import adapters

    (repository, file, make), *_ = [each for each in adapters.PIPELINES if each[2].__name__ == name]
    dataset, options = make(arguments.sources, arguments.data, arguments.photographs)
    return repository, file, make, dataset, {"shuffle": True, **options}


def peak_of(name: str, kind: str, arguments: argparse.Namespace) -> int:
    """The largest memory of one pass, in MB, to be measured in a process of its own."""
    *_, dataset, options = made(name, arguments)
    with Peak() as peak:
        for _ in KINDS[kind](dataset, num_workers=arguments.workers, **options):
            pass
    return round(peak.megabytes)


def run_one(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures one pipeline in this process."""
    repository, file, make, dataset, options = made(name, arguments)
    count = len(dataset) if hasattr(dataset, "__len__") else arguments.images
    compared = check(DataLoader(dataset, num_workers=arguments.workers, **options), batches=COMPARED)
    verdicts: list[str] = []

    def whole_pass(cls: Any) -> Any:
        loader = cls(dataset, num_workers=arguments.workers, **options)
        yield from loader
        if cls is DataLoader and not verdicts:  # in the pass that is not measured
            verdicts.append(str(loader.verdict()))

    contenders = [
        Contender(name=kind, epoch=lambda cls=cls: whole_pass(cls), images=count) for kind, cls in KINDS.items()
    ]
    measured = measure(contenders, rounds=arguments.rounds, say=lambda _: None)
    return {
        "repository": repository,
        "file": file,
        "what": (make.__doc__ or "").strip().splitlines()[0],
        "samples": count,
        "equal": compared.equal if compared.repeatable else None,  # None: torch's own batches differ the second time
        "difference": compared.difference,
        "verdict": verdicts[-1],
        "loaders": [each.to_dict() for each in measured],
        "times_better": ratios(measured, "torch"),
    }


def answer(command: list[str]) -> Any:
    """What a process of this program has measured; None, and its last line of stderr is told, if it failed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT ")), None)
    if line is None:
        print(f"{' '.join(command[-3:])}: failed: {done.stderr.strip().splitlines()[-1:]}", flush=True)
        return None
    return json.loads(line.removeprefix("RESULT "))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path, help="folder of the form CLASS/IMAGE")
    parser.add_argument("--sources", type=Path, required=True, help="folder with the checkouts, OWNER+NAME")
    parser.add_argument("--data", type=Path, required=True, help="folder for the layouts")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=WORKERS, help="worker processes of the loaders")
    parser.add_argument("--images", type=int, default=800, help="samples of an iterable dataset")
    parser.add_argument("--only", nargs="*", default=None, help="names of pipelines; the results of others are kept")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        asked = (
            peak_of(arguments.one, arguments.peak, arguments) if arguments.peak else run_one(arguments.one, arguments)
        )
        print("RESULT " + json.dumps(asked))
        return
    import adapters
    import layouts

    layouts.prepare(arguments.photographs, arguments.data)
    suffix = "" if arguments.workers == WORKERS else f"_{arguments.workers}"
    result = RESULTS / f"public_pipelines{suffix}.json"
    keeps = arguments.only is not None and result.is_file()
    results: dict[str, Any] = json.loads(result.read_text())["results"] if keeps else {}
    command = [sys.executable, *sys.argv]
    for name in [
        each[2].__name__ for each in adapters.PIPELINES if arguments.only is None or each[2].__name__ in arguments.only
    ]:
        one, *peaks = (answer([*command, "--one", name, *more]) for more in ([], *(["--peak", kind] for kind in KINDS)))
        if one is None or None in peaks:
            continue
        results[name] = one | {"peak_mb": dict(zip(KINDS, peaks, strict=True))}
        one = results[name]
        ratio = one["times_better"]["fastdata"]["cpu"]["median"]
        print(f"{name}: {ratio:.2f}, equal: {one['equal']} {one['difference'] or ''} {one['peak_mb']}", flush=True)
        write_json(
            result,
            setup=__doc__.split("Setup: ")[1].split("\n\n")[0].replace("\n", " "),
            data=f"{sum(1 for path in arguments.photographs.rglob('*') if path.is_file())} photographs, "
            f"{arguments.workers} worker processes",
            results=results,
        )


if __name__ == "__main__":
    main()
