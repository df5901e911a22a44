"""autotune=True: what is tried, what is kept, and that samples never depend on it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import transforms

from fastdata import DataLoader, ImageFolder
from fastdata.dataloader.explain import without_effect
from fastdata.errors import OptionError
from fastdata.pipeline import autotune
from fastdata.pipeline.autotune import Autotuner, Limits, Setting
from fastdata.pipeline.jobs import OrderedJobs
from fastdata.pipeline.stats import PipelineStats
from fastdata.system.cpus import auto_threads
from fastdata.system.memory import available_memory

CROP = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()])
MIB = 1 << 20


def driven(
    tuner: Autotuner, stats: PipelineStats, batch_s: Callable[[Setting], tuple[float, float]], batches: int
) -> None:
    """Tells a tuner of batches that take (waiting, working) seconds as a function of its setting."""
    for _ in range(batches):
        waited, worked = batch_s(tuner.setting)
        stats.batches += 1
        stats.wait_s += waited
        stats.busy_s += worked
        tuner.note_batch(MIB)


def tuner_for(setting: Setting, *, threads: int = 8, memory: int = 100 * MIB) -> tuple[Autotuner, PipelineStats]:
    stats = PipelineStats()
    return Autotuner(setting, Limits(threads=threads, memory=memory), stats), stats


def test_a_loop_that_waits_for_decoding_gets_all_threads() -> None:
    tuner, stats = tuner_for(Setting(1, 2))
    driven(tuner, stats, lambda now: (1.0 / now.threads, 0.01), 400)
    assert tuner.setting == Setting(8, 2)


def test_no_more_threads_than_the_loop_needs() -> None:
    tuner, stats = tuner_for(Setting(1, 2), threads=64)
    driven(tuner, stats, lambda now: (max(0.0, 1.0 / now.threads - 0.25), 0.25), 400)
    assert tuner.setting == Setting(4, 2)


def test_a_loop_that_does_not_wait_is_left_alone() -> None:
    tuner, stats = tuner_for(Setting(2, 2))
    driven(tuner, stats, lambda now: (0.001, 0.1), 400)
    assert tuner.setting == Setting(2, 2)
    assert tuner.tried == 0


def test_what_does_not_help_is_undone_and_not_tried_again() -> None:
    tuner, stats = tuner_for(Setting(4, 2))
    driven(tuner, stats, lambda now: (0.1, 0.1), 1000)
    assert tuner.setting == Setting(4, 2)
    assert tuner.tried == 3


def test_everything_is_tried_again_once_the_loop_waits_longer() -> None:
    tuner, stats = tuner_for(Setting(4, 2))
    driven(tuner, stats, lambda now: (0.1, 0.1), 1000)
    driven(tuner, stats, lambda now: (2.0 / now.threads, 0.1), 1000)
    assert tuner.setting == Setting(8, 2)


def test_batches_ahead_take_no_more_memory_than_allowed() -> None:
    tuner, stats = tuner_for(Setting(4, 2), threads=4, memory=7 * MIB)
    driven(tuner, stats, lambda now: (1.0 / now.ahead, 0.01), 1000)
    assert tuner.setting == Setting(4, 7)


def test_threads_that_take_the_cpus_from_the_loop_are_given_up() -> None:
    tuner, stats = tuner_for(Setting(16, 2), threads=16)
    driven(tuner, stats, lambda now: (0.05, 0.1 * max(4, now.threads)), 1000)
    assert 4 <= tuner.setting.threads <= 5


def test_batches_that_become_larger_take_the_queue_back() -> None:
    tuner, stats = tuner_for(Setting(4, 2), threads=4, memory=16 * MIB)
    driven(tuner, stats, lambda now: (1.0 / now.ahead, 0.01), 1000)
    assert tuner.setting == Setting(4, 16)
    assert tuner.note_batch(4 * MIB)
    assert tuner.setting == Setting(4, 4)


def test_where_sizes_are_not_known_no_more_batches_are_made_ahead() -> None:
    tuner, stats = tuner_for(Setting(4, 2), threads=4)
    for _ in range(1000):
        stats.batches += 1
        stats.wait_s += 1.0 / tuner.setting.ahead
        stats.busy_s += 0.01
        tuner.note_batch(0)
    assert tuner.setting.ahead == 2


def test_what_an_epoch_is_too_short_to_judge_is_undone() -> None:
    tuner, stats = tuner_for(Setting(4, 2), threads=4)
    for _ in range(200):
        tuner.begin_epoch()
        driven(tuner, stats, lambda now: (10.0 if now.ahead == 32 else 1.0 / now.ahead, 0.01), 30)
    tuner.begin_epoch()
    assert tuner.setting.ahead < 32


def test_threads_that_are_not_to_be_had_are_not_asked_for_again() -> None:
    tuner, stats = tuner_for(Setting(2, 2))
    driven(tuner, stats, lambda now: (1.0 / now.threads, 0.01), 20)
    assert tuner.setting.threads > 2
    tuner.stay_at(Setting(2, 2))
    driven(tuner, stats, lambda now: (1.0 / now.threads, 0.01), 400)
    assert tuner.setting.threads <= 2


def test_short_epochs_are_left_alone() -> None:
    tuner, stats = tuner_for(Setting(1, 2))
    for _ in range(100):
        tuner.begin_epoch()
        driven(tuner, stats, lambda now: (1.0 / now.threads, 0.01), 6)
    assert tuner.setting == Setting(1, 2)


# ---- threads that come and go


class Together:
    """A job whose tasks need so many threads at once."""

    def __init__(self, number: int, count: int) -> None:
        self.number, self.meet = number, threading.Barrier(count)
        self.tasks = [self._task] * count

    def _task(self) -> None:
        self.meet.wait(30)

    def finish(self) -> None: ...

    def result(self) -> int:
        return self.number


def test_threads_can_be_added_and_taken_away_in_the_middle() -> None:
    before = set(threading.enumerate())
    jobs = OrderedJobs([Together(number, 1 if number < 3 else 4) for number in range(8)], threads=1, depth=1)
    assert [next(jobs), next(jobs)] == [0, 1]
    jobs.resize(threads=4, depth=2)
    assert [next(jobs) for _ in range(5)] == [2, 3, 4, 5, 6]
    assert len(set(threading.enumerate()) - before) == 4
    assert next(jobs) == 7
    jobs.close()

    jobs = OrderedJobs([Together(number, 1) for number in range(50)], threads=4, depth=4)
    first = next(jobs)
    jobs.resize(threads=1, depth=1)
    assert [first, *jobs] == list(range(50))
    assert set(threading.enumerate()) <= before


def test_spare_threads_end_while_the_loop_goes_on() -> None:
    before = set(threading.enumerate())
    jobs = OrderedJobs([Together(number, 1) for number in range(10)], threads=4, depth=1)
    next(jobs)
    started = set(threading.enumerate()) - before
    jobs.resize(threads=1, depth=1)
    while sum(thread.is_alive() for thread in started) > 1:  # the time limit of the test is the only clock
        threading.Event().wait(0.01)
    assert list(jobs) == list(range(1, 10))


# ---- the loader


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tuner that changes something after every few batches, whatever it is good for."""
    monkeypatch.setattr(autotune, "_FEWEST_BATCHES", 1)
    monkeypatch.setattr(autotune, "_SHORTEST_S", 0.0)
    monkeypatch.setattr(autotune, "_GAIN", 0.0)
    monkeypatch.setattr(autotune, "_ENOUGH", -1.0)


def batches_of(loader: Any) -> list[list[torch.Tensor]]:
    return [list(batch) for batch in loader]


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("backend", ["native", "turbojpeg", "pil"])
def test_samples_do_not_depend_on_what_is_tuned(folder: Path, backend: str) -> None:
    dataset = ImageFolder(folder, CROP)
    given: dict[str, Any] = {"shuffle": True, "seed": 3, "backend": backend}
    tuned = DataLoader(dataset, 2, num_workers=1, autotune=True, **given)
    plain = DataLoader(dataset, 2, num_workers=0, **given)
    for _ in range(3):
        for ours, theirs in zip(batches_of(tuned), batches_of(plain), strict=True):
            assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
    assert tuned._findings.tuner is not None
    assert tuned._findings.tuner.tried > 2
    assert (tuned.num_workers, tuned.prefetch_factor) != (1, 2)
    assert tuned._findings.tuner.began_with == Setting(threads=1, ahead=2)
    assert tuned._findings.tuner.told().startswith("from 1 threads and 2 batches ahead")


@pytest.mark.usefixtures("restless")
def test_an_epoch_resumes_whatever_is_tuned(folder: Path) -> None:
    dataset = ImageFolder(folder, CROP)
    given: dict[str, Any] = {"shuffle": True, "seed": 3, "autotune": True}
    loader = DataLoader(dataset, 2, **given)
    iterator = iter(loader)
    for _ in range(9):
        next(iterator)
    state, rest = loader.state_dict(), batches_of(iterator)
    resumed = DataLoader(dataset, 2, **given)
    resumed.load_state_dict(state)
    for ours, theirs in zip(batches_of(resumed), rest, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_it_begins_with_all_cpus(folder: Path) -> None:
    loader = DataLoader(ImageFolder(folder, CROP), autotune=True)
    assert len(list(loader)) == 39
    assert loader.num_workers == auto_threads()
    loader = DataLoader(ImageFolder(folder, CROP), autotune=True, num_workers=3)
    next(iter(loader))
    assert loader.num_workers == 3


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(6))


def test_other_datasets_get_no_worker_processes_by_it() -> None:
    loader: Any = DataLoader(Stream(), 2, autotune=True)
    with pytest.warns(UserWarning, match="autotune=True has no effect"):
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
    assert loader.num_workers == 0


class Numbers(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return np.float32(index)


def test_elsewhere_it_is_said_to_have_no_effect() -> None:
    loader = DataLoader(Numbers(), 2, autotune=True, num_workers=1)
    assert without_effect(loader._arguments(), loader._route()) == ["autotune=True"]
    with pytest.warns(UserWarning, match="autotune=True has no effect"):
        assert len(list(loader)) == 4


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"autotune": 1}, "autotune=1 is not accepted"),
        ({"autotune": "yes"}, "autotune='yes'"),
        ({"memory_budget": 1 << 30}, "pass autotune=True"),
        ({"autotune": True, "memory_budget": 0}, "memory_budget=0"),
        ({"autotune": True, "memory_budget": True}, "memory_budget=True"),
        ({"autotune": True, "memory_budget": "2 GB"}, "a number of bytes"),
    ],
)
def test_wrong_values_are_refused(folder: Path, given: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        DataLoader(ImageFolder(folder, CROP), **given)


# ---- memory


def test_available_memory_is_the_smaller_of_system_and_cgroup(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 900 kB\nMemAvailable: 600 kB\n")
    own = tmp_path / "own"
    own.write_text("0::/slice/job\n")
    assert available_memory(meminfo, tmp_path / "none", own) == 600 << 10
    (tmp_path / "memory.max").write_text("400000\n")
    (tmp_path / "memory.current").write_text("150000\n")
    assert available_memory(meminfo, tmp_path, own) == 250_000
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 30000\n")  # can be dropped
    assert available_memory(meminfo, tmp_path, own) == 280_000
    (tmp_path / "slice" / "job").mkdir(parents=True)
    (tmp_path / "slice" / "memory.max").write_text("9000")
    (tmp_path / "slice" / "memory.current").write_text("2000")
    assert available_memory(meminfo, tmp_path, own) == 7000
    (tmp_path / "slice" / "memory.max").write_text("max")
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(meminfo, tmp_path, own) == 600 << 10
    (tmp_path / "memory" / "job").mkdir(parents=True)
    own.write_text("5:memory:/job\n4:cpu:/job\n")
    (tmp_path / "memory" / "job" / "memory.limit_in_bytes").write_text("5000")
    (tmp_path / "memory" / "job" / "memory.usage_in_bytes").write_text("1000")
    assert available_memory(meminfo, tmp_path, own) == 4000
    assert available_memory(tmp_path / "nowhere", tmp_path / "none", own) > 0
