"""Who uses the machine's cores: this program, or others."""

from __future__ import annotations

import multiprocessing
import sys
import time
from pathlib import Path

import pytest
from busy import busy_with_others

from fastdata.measuring.cpu_use import CpuMeter, load_now, others_of
from fastdata.system.cpus import usable_cpus

needs_shell = pytest.mark.skipif(sys.platform == "win32", reason="needs a shell that leaves processes behind")


@pytest.mark.parametrize(
    ("machine", "own", "cores", "usable", "others"),
    [
        (1.9, 0.1, 2, 2, 1.8),
        (0.1, 0.1, 2, 2, 0.0),
        (0.1, 0.2, 2, 2, 0.0),  # counters that are read one after the other
        (40.0, 2.0, 64, 4, 0.0),  # a quota of 4 cores, of which the others leave enough
        (64.0, 2.0, 64, 4, 2.0),
    ],
)
def test_what_others_take_from_this_program(machine: float, own: float, cores: int, usable: int, others: float) -> None:
    assert others_of(machine, own, cores=cores, usable=usable) == pytest.approx(others)


@needs_shell
def test_processes_of_others_are_seen() -> None:
    with busy_with_others(1):
        meter = CpuMeter()
        time.sleep(1.5)
        _, others = meter.use()
    assert others is not None
    assert others > 0.4


def _burn() -> None:
    while True:
        pass


def test_children_are_no_others() -> None:
    child = multiprocessing.get_context("fork").Process(target=_burn, daemon=True)
    child.start()
    try:
        time.sleep(0.2)
        meter = CpuMeter()
        time.sleep(1.0)
        own, _ = meter.use()
    finally:
        child.kill()
        child.join()
    assert own > 0.05  # of a core that others may want as well


def test_too_short_a_time_tells_nothing_of_others() -> None:
    _, others = CpuMeter().use()
    assert others is None


@pytest.mark.skipif(usable_cpus() < 2, reason="needs a core beyond the quota")
def test_a_containers_own_figures_count_where_it_has_a_quota(tmp_path: Path) -> None:
    """Its quota is spent by others in it, while the machine has idle cores."""
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    (tmp_path / "cpu.stat").write_text("usage_usec 0\n")
    meter = CpuMeter(tmp_path)
    time.sleep(0.6)
    (tmp_path / "cpu.stat").write_text("usage_usec 600000000\n")
    _, others = meter.use()
    assert others is not None
    assert others >= 1.0


def test_the_load_average_comes_with_the_threads_of_this_program() -> None:
    load = load_now()
    assert load.own_threads >= 1
    assert load.average is None or load.average >= 0
