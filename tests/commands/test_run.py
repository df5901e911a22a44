"""`fastdata run`: unchanged programs, and the processes that they start, with torch's DataLoader replaced."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from fastdata import DataLoader
from fastdata.cli.main import main
from fastdata.measuring.cpu_time import tree_cpu_s
from fastdata.pipeline.stats import PipelineStats
from fastdata.run.report import RunReport
from fastdata.run.startup import SITE, follow_children

RUN = ["-m", "fastdata", "run"]


def python(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    known = {name: value for name, value in os.environ.items() if name not in ("FASTDATA_RUN", "RANK", "LOCAL_RANK")}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env={**known, **environment}, timeout=200, check=False
    )


def outcome(done: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    return done.returncode, done.stdout, done.stderr


# ---- the program runs as without fastdata

PROBE = """
import os, signal, sys
print(sys.argv, sys.path[0], __file__, __name__, __package__, __spec__ is None, sorted(globals()))
def fail():
    raise OSError("not found")
what = sys.argv[1]
if what == "exit":
    sys.exit(7)
if what == "message":
    sys.exit("goodbye")
if what == "fail":
    fail()
if what == "hook":
    sys.excepthook = lambda kind, error, traceback: print(kind, error, traceback.tb_frame.f_code.co_filename)
    fail()
if what == "interrupt":
    os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A script, a link to it, a folder, a package, and a script that is not Python."""
    for folder in ("bundle", "package", "elsewhere"):
        (tmp_path / folder).mkdir()
    for name in ("elsewhere/probe.py", "module.py", "bundle/__main__.py", "package/__main__.py"):
        (tmp_path / name).write_text(PROBE)
    (tmp_path / "link.py").symlink_to(tmp_path / "elsewhere" / "probe.py")
    (tmp_path / "broken.py").write_text("this is not Python\n")
    return tmp_path


@pytest.mark.parametrize("what", ["--help", "exit", "message", "fail", "hook", "interrupt"])
@pytest.mark.parametrize("program", [["elsewhere/probe.py"], ["-m", "module"]], ids=["script", "module"])
def test_arguments_status_and_tracebacks_are_pythons(programs: Path, program: list[str], what: str) -> None:
    arguments = [*program, what, "--quiet", "-m", "--"]
    assert outcome(python(*RUN, *arguments, cwd=programs)) == outcome(python(*arguments, cwd=programs))


@pytest.mark.parametrize(
    "program", [["link.py"], ["bundle"], ["-m", "package"], ["-m", "absent"], ["broken.py"]], ids=str
)
def test_other_kinds_of_programs(programs: Path, program: list[str]) -> None:
    assert outcome(python(*RUN, *program, "a", cwd=programs)) == outcome(python(*program, "a", cwd=programs))


def test_a_missing_script_is_said_in_pythons_words(tmp_path: Path) -> None:
    plain, ours = (python(*command, "none.py", cwd=tmp_path) for command in ([], RUN))
    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout) == (2, "")
    assert ours.stderr == "fastdata: can't open file 'none.py': [Errno 2] No such file or directory\n"


def test_something_to_run_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["run", "--quiet"])
    assert stopped.value.code == 2
    assert "name a SCRIPT, or a module with -m MODULE" in capsys.readouterr().err


def test_torch_is_not_measured_where_it_is_replaced(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FASTDATA_RUN", "1")
    assert main(["bench", str(folder)]) == 1
    assert "FASTDATA_RUN replaces; unset it" in capsys.readouterr().err


# ---- its loaders are ours

LOADERS = """
import abc, pickle, sys, threading
import torch.utils.data
from torch.utils.data import DataLoader, TensorDataset
import torch
import fastdata

class Mine(abc.ABC, DataLoader):
    pass

if __name__ == "__main__":
    ours = fastdata.DataLoader
    assert DataLoader is torch.utils.data.dataloader.DataLoader is not ours
    assert DataLoader.__name__ == "DataLoader" and issubclass(ours, DataLoader)
    assert not hasattr(DataLoader, "state_dict")  # torch's has none, and frameworks look
    data = TensorDataset(torch.arange(10))
    loader = pickle.loads(pickle.dumps(DataLoader(data, 4)))
    assert type(loader) is DataLoader and isinstance(pickle.loads(pickle.dumps(ours(data))), ours)
    for _ in range(2):
        assert [len(batch) for batch, in loader] == [4, 4, 2]
    del loader  # its totals stay
    assert len(list(Mine(data, 5, num_workers=2, multiprocessing_context="spawn"))) == 2
    for thread in threading.enumerate():  # torch leaves its queues' threads behind, and one that is still letting go
        if thread.name == "QueueFeederThread":  # of its semaphores as the interpreter ends makes Python warn of a leak
            thread.join()
    print("done")
"""
PATH = r"fastdata: DataLoader\(TensorDataset, batch_size=%d\) at loaders\.py:\d+: \S.*\n"


@pytest.fixture
def loaders(tmp_path: Path) -> Path:
    (tmp_path / "loaders.py").write_text(LOADERS)
    return tmp_path


def test_each_loader_prints_its_path_and_the_end_the_measurements(loaders: Path) -> None:
    done = python(*RUN, "loaders.py", cwd=loaders)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    summary = r"fastdata: 30 (samples|images) in 8 batches, [\d.]+ \1/s, [\d.]+% of the time spent waiting for data, "
    assert re.fullmatch(PATH % 4 + PATH % 5 + summary + r"[\d.]+ ms of CPU time per .*\n", done.stderr), done.stderr


TABLE = """
import sys
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms.functional import pil_to_tensor

class Table(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        with Image.open(sys.argv[1]) as image:
            return pil_to_tensor(image.convert("RGB").resize((16, 16)))

loader = DataLoader(Table(), 4)
assert sum(map(len, loader)) == 8
"""


def test_a_path_that_the_first_images_show_is_printed_then(tmp_path: Path, folder: Path) -> None:
    """Before them nobody knows whether a dataset opens images that can stay encoded."""
    (tmp_path / "table.py").write_text(TABLE)
    done = python(*RUN, "table.py", str(folder / "apple" / "00.jpg"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, second, _ = done.stderr.splitlines()
    assert "Table, batch_size=4) at table.py:16: not known before the first batches: JPEGs and PNGs" in first
    assert (
        "Table, batch_size=4) at table.py:16: partly accelerated: images are decoded by the native core (8 in" in second
    )


@pytest.mark.slow
def test_quiet_prints_nothing(loaders: Path) -> None:
    assert outcome(python(*RUN, "--quiet", "loaders.py", cwd=loaders)) == (0, "done\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["outside", "inside"])
def test_of_several_ranks_the_first_prints(loaders: Path, launcher: str) -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, *RUN, "loaders.py"] if launcher == "outside" else [*RUN, *torchrun, *RUN, "loaders.py"]
    done = python(*command, cwd=loaders)
    assert (done.returncode, done.stdout.count("done")) == (0, 2), done.stderr
    assert done.stderr.count("TensorDataset, batch_size=4") == done.stderr.count("ms of CPU time") == 1


TEXT = """
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

class Text(Dataset):
    def __len__(self):
        return 11

    def __getitem__(self, index):
        return {"text": "word " * index, "ids": torch.randint(0, 9, (3,)), "score": float(index)}

class Lines(IterableDataset):
    def __iter__(self):
        return iter(["line"] * 7)

if __name__ == "__main__":  # which worker processes import if they are not forked
    torch.manual_seed(3)
    for dataset in (Text(), Lines()):
        for workers in (0, 1):
            loader = DataLoader(dataset, 4, shuffle=True if isinstance(dataset, Text) else None, num_workers=workers)
            print(type(iter(loader)).__name__, list(loader), list(loader), torch.rand(1))
"""


@pytest.mark.slow
def test_batches_of_text_are_torchs(tmp_path: Path) -> None:
    (tmp_path / "text.py").write_text(TEXT)
    plain, ours = (python(*command, "text.py", cwd=tmp_path) for command in ([], RUN))
    assert (ours.returncode, ours.stdout) == (0, plain.stdout), ours.stderr
    assert re.search(r"fastdata: DataLoader\(Text, batch_size=4\) at text.py:\d+: ", ours.stderr)
    assert "fastdata: 72 samples in 20 batches" in ours.stderr


WRAPPED = """
from torch.utils.data import DataLoader, Subset

class Numbers:
    def __len__(self): return 8
    def __getitem__(self, index): return index

class Named:
    def __init__(self, dataset): self.dataset = dataset
    def __len__(self): return len(self.dataset)
    def __getitem__(self, index): return self.dataset[index]

train, val = (DataLoader(Subset(Named(Numbers()), range(size)), 2) for size in (6, 4))
for _ in train: pass
for _ in val: pass
"""


def test_loaders_are_named_by_what_they_wrap_and_where_they_are_used(tmp_path: Path) -> None:
    (tmp_path / "wrapped.py").write_text(WRAPPED)
    done = python(*RUN, "wrapped.py", cwd=tmp_path)
    for line in (14, 15):
        told = f"fastdata: DataLoader(Subset of Named of Numbers, batch_size=2) at wrapped.py:{line}: "
        assert done.stderr.count(told) == 1, done.stderr


# ---- the processes that a program starts

# A system's Python may have a sitecustomize of its own.
NAMES = (
    "import os, sys; print(sorted(name for name, module in sys.modules.items() if name.startswith('fastdata')"
    " or name == 'sitecustomize' and 'fastdata' in module.__file__.split(os.sep)[-4:]))"
)


def child(script: str, *flags: str, cwd: Path, value: str = "1", path: str = "") -> tuple[int, str, str]:
    """A process as a program under `fastdata run` starts it; path: what PYTHONPATH was before."""
    known = os.pathsep.join(filter(None, [path, os.environ.get("PYTHONPATH")]))
    environment = {"FASTDATA_RUN": value, "PYTHONPATH": os.pathsep.join(filter(None, [SITE, known]))}
    return outcome(python(*flags, "-c", script, cwd=cwd, **environment))


@pytest.mark.parametrize(
    ("value", "expected"), [("1", "True\n"), ("quiet", "True\n"), ("0", "False\n"), ("", "False\n")]
)
def test_a_child_waits_for_torch_and_imports_nothing_heavy(tmp_path: Path, value: str, expected: str) -> None:
    script = (
        "import sys; print('fastdata.run.startup' in sys.modules)\n"
        "assert not {'torch', 'numpy', 'argparse'} & set(sys.modules)"
    )
    assert child(script, cwd=tmp_path, value=value) == (0, expected, "")


def test_a_child_replaces_when_torch_has_been_imported(tmp_path: Path) -> None:
    script = (
        "import sys; finders = len(sys.meta_path)\n"
        "import importlib.util; assert importlib.util.find_spec('torch') and 'torch' not in sys.modules\n"
        "import torch; from torch.utils.data import DataLoader; import fastdata.dataloader.loader as loader\n"
        "assert DataLoader is loader.StatelessDataLoader and len(sys.meta_path) == finders - 1\n"
        "assert torch.__spec__.loader.exec_module.__self__ is torch.__loader__"
    )
    assert child(script, cwd=tmp_path) == (0, "", "")


@pytest.mark.parametrize("broken", [True, False])
def test_a_child_starts_even_if_fastdata_cannot_be_imported(tmp_path: Path, broken: bool) -> None:
    """A broken one is told; an interpreter that has none at all is somebody else's."""
    (tmp_path / "fastdata").mkdir()
    (tmp_path / "fastdata" / "__init__.py").write_text(
        "raise ImportError('no such symbol')" if broken else "raise ModuleNotFoundError(name='fastdata')"
    )
    outside = os.path.realpath(sys.executable)  # of a virtual environment, whose installation comes first
    path = {"FASTDATA_RUN": "1", "PYTHONPATH": os.pathsep.join([SITE, str(tmp_path)])}
    done = subprocess.run(
        [outside, "-c", "print('goes on')"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **path},
        check=False,
    )
    status, printed, errors = outcome(done)
    assert (status, printed) == (0, "goes on\n")
    assert errors == ("fastdata: FASTDATA_RUN has no effect: no such symbol\n" if broken else "")


def test_an_interpreter_that_nobody_asked_reads_nothing_of_fastdata(tmp_path: Path) -> None:
    """Even with the variable: only PYTHONPATH leads to our code."""
    for variables in ({}, {"FASTDATA_RUN": "1"}):
        assert outcome(python("-c", NAMES, cwd=tmp_path, **variables)) == (0, "[]\n", "")


def test_a_child_sees_no_trace_of_the_folder(tmp_path: Path) -> None:
    script = f"{NAMES}; print(sys.path, __import__('os').environ['PYTHONPATH'])"
    status, printed, errors = child(script, cwd=tmp_path, value="0", path=str(tmp_path))
    known = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    plain = outcome(python("-c", script, cwd=tmp_path, PYTHONPATH=known))
    assert (status, printed.replace(SITE + os.pathsep, ""), errors) == plain


THEIRS = """
import os, sys
print("theirs", __file__ == os.path.join(os.environ["THEIRS"], "sitecustomize.py"), __name__)
sys.modules["seen"] = sys.modules[__name__]
"""


def test_the_programs_own_sitecustomize_runs_once_as_without_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THEIRS", str(tmp_path))
    (tmp_path / "sitecustomize.py").write_text(THEIRS)
    script = (
        "import sys, sitecustomize; print(sitecustomize is sys.modules['seen'], 'fastdata.run.startup' in sys.modules)"
    )
    expected = (0, "theirs True sitecustomize\nTrue True\n", "")
    assert child(script, cwd=tmp_path, path=str(tmp_path)) == expected


def test_an_error_in_the_programs_own_sitecustomize_is_told_as_by_python(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise RuntimeError('theirs')")
    known = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    script = "import sys; print('fastdata.run.startup' in sys.modules)"
    status, printed, errors = child(script, cwd=tmp_path, path=str(tmp_path))
    assert (status, printed) == (0, "True\n")
    assert errors == python("-c", script, cwd=tmp_path, PYTHONPATH=known).stderr
    assert "RuntimeError: theirs" in errors


@pytest.mark.parametrize("flag", ["-S", "-E", "-I"])
def test_children_that_ignore_the_environment_are_not_followed(tmp_path: Path, flag: str) -> None:
    assert child(NAMES, flag, cwd=tmp_path) == (0, "[]\n", "")


@pytest.mark.parametrize("former", [None, "", "a", f"a{os.pathsep}{os.pathsep}b"])
def test_the_former_path_stays_behind_ours(monkeypatch: pytest.MonkeyPatch, former: str | None) -> None:
    monkeypatch.setenv("FASTDATA_RUN", "")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if former is not None:
        monkeypatch.setenv("PYTHONPATH", former)
    for quiet, value in (True, "quiet"), (False, "1"):  # one that is started under another adds nothing
        follow_children(quiet=quiet)
        assert os.environ["FASTDATA_RUN"] == value
        assert os.environ["PYTHONPATH"] == (f"{SITE}{os.pathsep}{former}" if former else SITE)


CHILDREN = """
import multiprocessing, subprocess, sys
what = "import sys; from torch.utils.data import DataLoader; print(DataLoader.__mro__[0].__init__.__module__)"
def printed():
    exec(what)
    sys.stdout.flush()
if __name__ == "__main__":
    subprocess.run([sys.executable, "-c", what], check=True)
    process = multiprocessing.get_context("spawn").Process(target=printed)
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""


@pytest.mark.slow
def test_children_of_every_kind_are_followed(tmp_path: Path) -> None:
    (tmp_path / "children.py").write_text(CHILDREN)
    done = outcome(python(*RUN, "--quiet", "children.py", cwd=tmp_path))
    assert done == (0, 2 * "fastdata.dataloader.loader\n", "")


# ---- in a running process

IN_A_NOTEBOOK = """
import sys, types, warnings
import torch
from torch.utils.data import DataLoader
import fastdata

early = DataLoader(range(4), 2)
class Derived(DataLoader):
    pass
class Strict(types.ModuleType):
    def __setattr__(self, name, value):
        raise TypeError("it may not be changed")
framework, strict = types.ModuleType("framework"), Strict("strict")
for module in (framework, strict):
    exec("from torch.utils.data import DataLoader as Loader", module.__dict__)
sys.modules.update(astrict=strict, framework=framework, odd=3)

with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    fastdata.replace_dataloader(quiet=True)
    fastdata.replace_dataloader()
assert ["__main__.Derived were derived from torch's" in str(each.message) for each in warned] == [True], warned
assert DataLoader is framework.Loader is torch.utils.data.DataLoader is fastdata.DataLoader.__mro__[1]
assert type(early) is Derived.__mro__[1] is not DataLoader
assert isinstance(DataLoader(range(4), 2), type(early))
print([batch.tolist() for loader in (early, Derived(range(4), 2), DataLoader(range(4), 2)) for batch in loader])
"""


def test_modules_that_have_imported_torchs_class_are_given_ours(tmp_path: Path) -> None:
    done = python("-c", IN_A_NOTEBOOK, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{3 * [[0, 1], [2, 3]]}\n"), done.stderr
    assert done.stderr.count("fastdata: DataLoader(range, batch_size=2)") == 1


# ---- subclasses


class WithoutInit(DataLoader[Any]):
    """As torchdata's StatefulDataLoader, which sets what it needs by itself."""

    def __init__(self) -> None:
        self.dataset, self.batch_size, self.num_workers, self.batch_sampler = [1, 2], 1, 0, None


def test_a_subclass_that_does_not_call_init_takes_torchs_path() -> None:
    loader = WithoutInit()
    loader.check_worker_number_rationality()
    assert loader._route().by_torchs_code
    assert loader._route().reason == "WithoutInit does not call DataLoader.__init__"
    assert loader._route().reason in repr(loader)


# ---- what is measured


def test_totals_of_torchs_path_count_what_was_delivered() -> None:
    loader = DataLoader(TensorDataset(torch.arange(10)), 4)
    next(iter(loader))
    list(loader)
    stats = loader.stats()
    assert (stats["samples"], stats["batches"]) == (14, 4)
    assert stats["wait_s"] > 0


def test_the_summary_adds_up(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("atexit.register", lambda _: None)
    report, loader = RunReport(), DataLoader(TensorDataset(torch.arange(10)), 4)
    assert report.summary() is None
    for _ in range(2):
        report.observe(loader, PipelineStats(samples=30, batches=3, wait_s=0.5, busy_s=1.5, encoded_bytes=1))
    text = report.summary()
    assert text is not None
    assert text.startswith(
        "fastdata: 60 images in 6 batches, 15.0 images/s, 25.0% of the time spent waiting for data, "
    )
    assert len(capsys.readouterr().err.splitlines()) == 1  # the same line once


def test_other_ranks_are_silent(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RANK", "1")
    report = RunReport()
    report.observe(DataLoader(TensorDataset(torch.arange(10)), 4), PipelineStats(samples=3, wait_s=1.0))
    assert report.summary() is None
    assert capsys.readouterr().err == ""


def test_cpu_time_includes_children_that_still_run() -> None:
    busy = "import time\nwhile time.process_time() < 1: pass\nprint(1, flush=True)\ninput()"
    before = tree_cpu_s()
    with subprocess.Popen([sys.executable, "-c", busy], stdin=-1, stdout=-1) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert tree_cpu_s() - before > 0.9
        child.kill()
