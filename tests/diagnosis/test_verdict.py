"""What is concluded from measurements that are given here: no clock is read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from fastdata.dataloader.verdict import Verdict
from fastdata.diagnosis.html_report import as_html
from fastdata.diagnosis.observation import Facts, Loading, Observation, SampleTimes, Step, Stretch, SyncPlace
from fastdata.diagnosis.speedup_model import expected_step_s, wait_share
from fastdata.diagnosis.verdict import diagnose
from fastdata.measuring.cpu_use import Load


def stretch(wait_s: float, forward_s: float = 0.03, backward_s: float = 0.06, *, cores: float = 2.0) -> Stretch:
    return Stretch.of([Step(wait_s, forward_s, backward_s, 0.01, 0.0)] * 4, cores=cores)


def loading(
    batch_s: float, what: str = "", cores: float = 8.0, verdict: Verdict | None = None, **stages: float
) -> Loading:
    return Loading(what, 10, batch_s, 32 / batch_s, cores, verdict, stages)


def observed(**changes: Any) -> Observation:
    """A step of 0.1 s of computing, with a loader that keeps up."""
    seen = Observation(
        program="train.py",
        cpus=8,
        dataset="Own",
        loader="batch_size=32, num_workers=4",
        is_ours=True,
        num_workers=4,
        facts=Facts(batch_size=32),
        real=stretch(0.0),
        alone=loading(0.02),
    )
    return replace(seen, **changes)


SLOW = {"real": stretch(0.3), "alone": loading(0.4, cores=4.0)}  # 75 % of the step waits
SAMPLE = SampleTimes(samples=50, total_ms=10, idle_ms=0, decode_ms=8, width=500, height=375, shown_px=224 * 224)

CASES: dict[str, tuple[Observation, str]] = {
    "nothing": (observed(), "compute"),
    "storage": (observed(**SLOW, sample=replace(SAMPLE, idle_ms=9.0, decode_ms=0.5)), "storage"),
    "workers": (observed(**SLOW, changed={"workers": loading(0.2, "num_workers=8")}), "workers"),
    "backend": (observed(**SLOW, changed={"backend": loading(0.15, "backend='auto'")}), "backend"),
    "oversized": (observed(**SLOW, sample=replace(SAMPLE, width=4000, height=3000)), "oversized"),
    "closure": (
        observed(
            real=stretch(0.3),
            alone=loading(0.4, verdict=Verdict("not accelerated", "Own is no image dataset", "open files")),
        ),
        "not_accelerated",
    ),
    "plain torch": (observed(**SLOW, is_ours=False, changed={"fastdata": loading(0.1)}), "fastdata"),
    "anomaly mode": (observed(facts=Facts(anomaly_mode=True)), "anomaly"),
    "float64": (observed(facts=Facts(dtypes=["float64"])), "float64"),
    "a bias": (observed(facts=Facts(biases_before_norm=["conv1"])), "bias_before_norm"),
    "item": (observed(facts=Facts(syncs=[SyncPlace("a.py:1", ".item()", 32, 0.001, 0.04)])), "synchronisation"),
    "nothing seen": (Observation(program="train.py"), "unknown"),
    "more waiting than computing": (
        observed(**SLOW, sample=replace(SAMPLE, idle_ms=9.0), facts=Facts(anomaly_mode=True)),
        "storage",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_cause_is_named(name: str) -> None:
    seen, cause = CASES[name]
    told = diagnose(seen)
    assert told.cause == cause
    assert told.cause in ("compute", "unknown") or told.cause in [each.key for each in told.advice]
    json.dumps(told.to_dict(), allow_nan=False)


@pytest.mark.parametrize("name", CASES)
def test_the_report_fits_a_terminal_and_escapes_what_it_shows(name: str) -> None:
    told = diagnose(replace(CASES[name][0], program="<b>train</b>.py", limitations=["a & b " * 30]))
    assert str(told).startswith("Verdict: ")
    assert max(map(len, str(told).splitlines())) <= 80
    page = as_html(told, {"cpu": "<i>"})
    assert "<b>train" not in page
    assert "<i>" not in page
    assert "&lt;b&gt;train&lt;/b&gt;" in page


def test_a_loader_that_keeps_up_is_not_to_be_rewritten() -> None:
    """On a GPU a loop over tensors in memory was told first to open its images with Pillow."""
    own = loading(0.02, verdict=Verdict("not accelerated", "TensorDataset opens no images", "open files"))
    assert [each.key for each in diagnose(observed(real=stretch(0.0005), alone=own)).advice] == []
    assert [each.key for each in diagnose(observed(real=stretch(0.01), alone=own)).advice] == ["not_accelerated"]


def test_idle_cores_are_told() -> None:
    told = diagnose(observed(real=stretch(0.3, cores=2.0), alone=loading(0.4, cores=2.0)))
    assert "75% of each step waits for data" in told.verdict
    assert "6 of 8 cores are idle" in told.verdict


@pytest.mark.parametrize(("used", "said"), [(0.4, "2 of 2 cores are idle"), (1.0, "1 of 2 cores is idle")])
def test_idle_cores_are_counted_in_plain_english(used: float, said: str) -> None:
    told = diagnose(observed(cpus=2, real=stretch(0.3, cores=used), alone=loading(0.4, cores=used)))
    assert said in told.verdict


def busy(others: float | None, **changes: Any) -> Observation:
    """A program that uses 0.1 of 2 cores, and other programs so many."""
    real = replace(stretch(0.3, cores=0.1), others=others)
    return observed(cpus=2, real=real, alone=replace(loading(0.4, cores=0.1), others=others), **changes)


def test_a_busy_machine_is_told_before_what_was_seen_on_it() -> None:
    told = diagnose(busy(1.8, load=Load(14.0, 6)))
    begins = "cannot judge: other programs use 1.8 of 2 cores (load average 14.0); repeat on an idle machine. "
    assert told.verdict.startswith(f"{begins}Seen nevertheless: 75% of each step waits for data")
    assert "idle;" not in told.verdict
    assert "cores are idle" not in told.verdict
    assert not told.is_reliable
    assert told.to_dict()["is_reliable"] is False
    assert "cores used by other programs 1.8 of 2" in " ".join(str(told).split())
    json.dumps(told.to_dict(), allow_nan=False)


def test_a_machine_that_is_busy_with_this_program_can_be_judged() -> None:
    told = diagnose(busy(0.2, load=Load(14.0, 20)))
    assert told.is_reliable
    assert told.verdict.startswith("75% of each step waits for data")
    assert "2 of 2 cores are idle" in told.verdict  # 1.7


@pytest.mark.parametrize(("load", "reliable"), [(Load(14.0, 6), False), (Load(14.0, 14), True), (Load(), True)])
def test_the_load_average_bears_witness_where_the_system_tells_nothing_else(load: Load, reliable: bool) -> None:
    assert diagnose(busy(None, load=load)).is_reliable is reliable


BLUR = SampleTimes(samples=50, total_ms=31, idle_ms=0, decode_ms=2, rest_ms=29, own_step="Blur", own_step_ms=27.2)


def test_the_users_slowest_step_is_named_where_loading_is_the_limit() -> None:
    told = diagnose(observed(**SLOW, is_ours=False, sample=BLUR))
    assert "the transform is the limit; your step Blur takes 27 of 31 ms per sample" in told.verdict
    assert "your step Blur 27.20 ms" in " ".join(str(told).split())
    without_steps = diagnose(observed(real=None, sample=BLUR))
    assert "your step Blur takes 27 of 31 ms per sample" in without_steps.verdict


@pytest.mark.parametrize(("stages", "named"), [({"decode": 0.4}, False), ({"decode": 0.1, "transform": 0.3}, True)])
def test_a_step_that_the_loader_does_without_is_not_named(stages: dict[str, float], named: bool) -> None:
    alone = loading(0.4, cores=4.0, **stages)
    assert ("your step" in diagnose(observed(**{**SLOW, "alone": alone}, sample=BLUR)).verdict) is named


def test_steps_that_lived_on_batches_made_before_are_not_believed() -> None:
    seen = observed(real=stretch(0.0), alone=loading(0.2))  # a batch takes twice the step
    assert wait_share(seen) == pytest.approx(0.5)


def test_a_step_on_a_device_waits_for_what_it_takes_beyond_its_compute() -> None:
    seen = observed(real=replace(stretch(0.0, 0.2, 0.2), device_s=0.21), facts=Facts(device="cuda"))
    assert wait_share(seen) == pytest.approx(1 - 0.21 / 0.41)


@pytest.mark.parametrize(
    ("workers", "expected"),
    [(0, 0.1 + 0.2), (4, 0.2 + 0.0)],
)
def test_loading_in_the_callers_thread_adds_to_the_step(workers: int, expected: float) -> None:
    seen = observed(num_workers=workers, real=stretch(0.4), alone=loading(0.4))
    assert expected_step_s(seen, data_speedup=2) == pytest.approx(expected, rel=0.3)


def test_a_changed_line_comes_before_a_conversion_that_gains_little_more() -> None:
    decode_ms = {"file": 1.0, "index": 0.75, "unpacked": 0.45}
    changed = {"workers": loading(0.2, "num_workers=8")}
    seen = observed(**{**SLOW, "alone": loading(0.4, decode=0.4)}, changed=changed, sample=SAMPLE, decode_ms=decode_ms)
    assert [each.key for each in diagnose(seen).advice] == ["workers", "unpacked", "index"]


def test_on_a_gpu_what_its_copies_and_sizes_lack_is_told() -> None:
    facts = Facts(
        device="cuda",
        batch_size=30,
        dtypes=["float32"],
        convolutions=3,
        pageable_copies=True,
        blocking_copies=True,
        data_parallel=True,
        syncs=[SyncPlace("a.py:1", ".item()", 1, 0.01, 0.01)],
    )
    keys = {each.key for each in diagnose(observed(facts=facts)).advice}
    assert keys == {
        "amp", "batch_size", "channels_last", "compile", "cudnn_benchmark", "data_parallel", "non_blocking",
        "pin_memory", "synchronisation", "tf32",
    }  # fmt: skip


def test_loading_gains_no_more_than_is_waited() -> None:
    changed = {"fastdata": loading(0.001)}
    gains = {
        each.key: each.gain for each in diagnose(observed(real=stretch(0.01), is_ours=False, changed=changed)).advice
    }
    assert gains["fastdata"] == pytest.approx(1.1, rel=0.02)


def test_advice_is_in_the_order_of_its_gains() -> None:
    facts = Facts(biases_before_norm=["conv1"])
    seen = observed(real=stretch(0.05), facts=facts, is_ours=False, changed={"fastdata": loading(0.001)})
    assert [each.key for each in diagnose(seen).advice] == ["fastdata", "bias_before_norm"]  # 1.5, and a fault


def test_workers_that_were_measured_slower_are_not_advised() -> None:
    slower = {"workers": loading(0.5, "num_workers=8")}
    assert "workers" not in [each.key for each in diagnose(observed(**SLOW, changed=slower)).advice]


@pytest.mark.parametrize(("wait_s", "told"), [(0.0, True), (1.9, False)])
def test_computing_is_not_advised_about_where_it_takes_little_of_a_step(wait_s: float, told: bool) -> None:
    facts = Facts(device="cuda", dtypes=["float32"], convolutions=3, data_parallel=True)
    seen = observed(facts=facts, num_workers=0, real=stretch(wait_s), alone=loading(max(0.01, wait_s)))
    keys = {each.key for each in diagnose(seen).advice}
    assert bool(keys & {"amp", "channels_last", "compile", "cudnn_benchmark", "tf32"}) is told
    assert "data_parallel" in keys  # a fault


@pytest.mark.parametrize(("batch_s", "told"), [(0.02, False), (0.4, True)])
def test_storage_is_not_advised_about_where_the_loader_keeps_up(batch_s: float, told: bool) -> None:
    seen = observed(
        real=stretch(max(0.0, batch_s - 0.1)), alone=loading(batch_s, cores=2.0), slow_storage="a network disk"
    )
    assert bool(diagnose(seen).advice) is told


@pytest.mark.parametrize(
    ("facts", "cause", "said"),
    [
        (Facts(tracers=["coverage.collector"]), "tracing", "coverage.collector"),
        (Facts(debug_variables=["CUDA_LAUNCH_BLOCKING"]), "debug_variables", "unset CUDA_LAUNCH_BLOCKING"),
        (
            Facts(device="cuda", compiled=True, cudnn_deterministic=True),
            "compute",
            "-> torch.backends.cudnn.deterministic = False, if you may; what it gains: python benchmarks/ablation.py",
        ),
    ],
)
def test_what_is_left_on_is_told(facts: Facts, cause: str, said: str) -> None:
    told = diagnose(observed(facts=facts))
    assert told.cause == cause
    assert said in " ".join(str(told).split())


@pytest.mark.parametrize(
    "facts", [Facts(device="cuda", dtypes=["bfloat16"]), Facts(device="cuda", dtypes=["float32"], autocast=True)]
)
def test_a_model_in_less_than_float32_is_not_told_to_leave_it(facts: Facts) -> None:
    keys = {each.key for each in diagnose(observed(facts=facts)).advice}
    assert not keys & {"amp", "tf32"}


def test_a_program_that_was_not_seen_training_is_told_so() -> None:
    told = diagnose(observed(**SLOW, trains=False, limitations=["no backward pass was seen"]))
    assert told.verdict.startswith("no training was seen, so this is about Own: 75% of each step waits")


def test_where_nothing_was_measured_nothing_is_praised() -> None:
    seen = Observation(program="train.py", limitations=["the program ended by OSError: no such file", "something else"])
    assert "Advice" not in str(diagnose(seen))
    assert "nothing was found" not in as_html(diagnose(seen), {})
    assert diagnose(seen).verdict == "nothing could be measured: the program ended by OSError: no such file"


def test_workers_are_advised_where_they_could_not_be_tried() -> None:
    seen = observed(real=stretch(0.3), alone=loading(0.3), num_workers=0, may_not_start_workers=True)
    told = diagnose(seen)
    assert told.cause == "workers"
    assert told.advice[0].gain == pytest.approx(0.4 / 0.3)  # at least: loading beside computing
    assert '__name__ == "__main__"' in " ".join(str(told).split())


def test_a_loss_is_not_advised() -> None:
    assert diagnose(observed(**SLOW, is_ours=False, changed={"fastdata": loading(0.42)})).advice == []


def test_progressive_images_are_told_with_what_unpacking_them_gives() -> None:
    decode_ms = {"file": 3.0, "unpacked": 0.3}
    sample = replace(SAMPLE, progressive=1.0)
    seen = observed(**{**SLOW, "alone": loading(0.4, decode=0.4)}, sample=sample, decode_ms=decode_ms)
    gains = {each.key: each.gain for each in diagnose(seen).advice}
    assert gains["progressive"] == pytest.approx(gains["unpacked"])
    assert gains["progressive"] > 2


@pytest.mark.parametrize(("batches", "told"), [(10, True), (1000, False), (0, False)])
def test_workers_that_start_in_each_epoch_are_told_where_epochs_are_short(batches: int, told: bool) -> None:
    alone = replace(loading(0.02), first_s=1.08)
    seen = observed(alone=alone, restarts_workers=True, epoch_batches=batches)
    advice = [each for each in diagnose(seen).advice if each.key == "persistent_workers"]
    assert bool(advice) is told
    if told:
        assert advice[0].gain == pytest.approx(2.0)  # 1 s of starting before 10 steps of 0.1 s
        assert "1.0 s of 2.0" in advice[0].why


def test_workers_that_start_for_each_batch_are_no_matter_of_their_own() -> None:
    """They are what `iterators` tells."""
    alone = replace(loading(0.02), first_s=1.08)
    restarts = {"alone": alone, "restarts_workers": True, "restarts_in_each_step": True, "epoch_batches": 10}
    assert "persistent_workers" not in [each.key for each in diagnose(observed(**restarts)).advice]
    (advice,) = diagnose(observed(real=stretch(0.3), **restarts)).advice
    assert advice.key == "iterators"
    assert advice.gain == pytest.approx(4.0)  # 0.3 s of waiting before 0.1 s of computing
    assert "batches = iter(loader)" in advice.change
