"""The arithmetic behind published figures."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from places import ROOT

from fastdata.demo.results import as_text
from fastdata.measuring.rounds import Measurement, compare, table
from fastdata.system.cpus import usable_cpus


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("harness")


@pytest.mark.parametrize(
    ("copies", "kernels", "share"),
    [
        ([(0, 10)], [(0, 10)], 1.0),
        ([(0, 10)], [], 0.0),
        ([(0, 10), (20, 30)], [(5, 25)], 0.5),
        ([(0, 10)], [(2, 6), (4, 8), (3, 5)], 0.6),  # overlapping kernels count once
        ([], [(0, 1)], 0.0),
    ],
)
def test_the_hidden_share_of_copies(
    harness: Any, copies: list[tuple[int, int]], kernels: list[tuple[int, int]], share: float
) -> None:
    assert harness.hidden_share(copies, kernels) == pytest.approx(share)


def test_the_terminal_gets_the_verdict_and_the_best_first() -> None:
    costs = {
        "torch + torchvision": 4.0,
        "fastdata, turbojpeg": 1.5,
        "fastdata, native": 1.0,
        "fastdata, synthetic": 0.1,
    }
    results = [
        Measurement(name=name, images=1, cpu_ms_per_image=[ms, 1.25 * ms, 2 * ms], images_per_s=[12345.6 / ms] * 3)
        for name, ms in costs.items()
    ]
    told = as_text(results)
    assert told.startswith("fastdata, native loads these images with 4.0 times less CPU than torch")
    assert max(map(len, told.splitlines())) <= 80
    rows = [line.split("  ")[0].strip() or line.split("  ")[1] for line in told.splitlines()[4:7]]
    assert rows == ["* fastdata, native", "fastdata, turbojpeg", "torch + torchvision"]
    assert "Batches of nothing take 0.12 ms" in " ".join(told.split())


def measured(costs: dict[str, list[float]], others: float = 0.0) -> list[Measurement]:
    return [
        Measurement(name=name, images=1, cpu_ms_per_image=ms, images_per_s=ms, others=[0.0, others])
        for name, ms in costs.items()
    ]


def test_a_busy_machine_gives_no_judgement() -> None:
    costs = {"torch + torchvision": [4.0, 4.1], "fastdata, native": [1.0, 1.1]}
    told = " ".join(as_text(measured(costs, others=1.0 * usable_cpus())).split())
    assert told.startswith(f"cannot judge: other programs use {usable_cpus():.1f} of ")
    assert "repeat on an idle machine. Seen nevertheless: fastdata, native loads these images with" in told
    assert as_text(measured(costs, others=0.1)).startswith("fastdata, native loads these images with")


def test_loaders_that_the_rounds_do_not_tell_apart_are_both_marked() -> None:
    costs = {"torch + torchvision": [4.0, 4.0], "fastdata, native": [1.0, 1.2], "fastdata, opencv": [1.1, 1.15]}
    told = as_text(measured(costs))
    assert [line.startswith("* ") for line in told.splitlines()[4:7]] == [True, True, False]
    assert "* the least, not told apart by these rounds." in " ".join(told.split())
    costs["torch + torchvision"] = [1.0, 1.3]
    assert "do not tell apart" in as_text(measured(costs))


def test_a_table_says_which_ratio_it_has() -> None:
    """The median of the rounds' ratios, which the medians beside it do not give: 5 / 4 is not 1.5."""
    rounds = {"torch": [3.0, 5.0, 9.0], "ours": [2.0, 5.0, 4.0]}
    results = [Measurement(name=name, images=1, cpu_ms_per_image=ms, images_per_s=ms) for name, ms in rounds.items()]
    head, _, _, ours = table(results, "torch").splitlines()
    assert head.endswith("| CPU, times better than torch: median of the rounds' ratios |")
    assert ours == "| ours | 4.00 (2.00 to 5.00) | 4 (2 to 5) | 1.50 |"


def test_functions_take_turns_and_the_first_round_does_not_count(harness: Any) -> None:
    now, calls = [0.0], list[str]()

    def taking(name: str, seconds: float) -> None:
        calls.append(name)
        now[0] += seconds if len(calls) > 2 else 100.0

    ways = {"quick": lambda: taking("quick", 1.0), "slow": lambda: taking("slow", 2.0)}
    assert harness.taking_turns(ways, rounds=3, clock=lambda: now[0]) == {"quick": [1.0] * 3, "slow": [2.0] * 3}
    assert calls == ["quick", "slow"] * 4


def test_a_comparison_is_printed_and_in_the_form_of_the_json_files(capsys: pytest.CaptureFixture[str]) -> None:
    loaders = {"one": lambda: iter(range(4)), "other": lambda: iter(range(4))}
    found = compare(loaders, "one", images=8, rounds=2)
    assert [each["name"] for each in found["loaders"]] == ["one", "other"]
    assert found["times_better"]["one"]["images_per_s"]["values"] == [1.0, 1.0]
    assert len(found["loaders"][0]["images_per_s"]["values"]) == 2
    assert "| other |" in capsys.readouterr().out
