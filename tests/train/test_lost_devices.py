"""Ranks and GPUs that are missing, fail or are too few: who says so, how soon, and what ends."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from small_training import CLASSES, data, options, plain_model
from torch import nn
from warm_python import run_python

from fastdata import OptionError
from fastdata.system import cuda
from fastdata.train import TrainOptions, fit, searches
from fastdata.train import model as models
from fastdata.train import ranks as joined
from fastdata.train.peers import started_at, this_process
from fastdata.train.watch import watching


def test_a_process_that_ends_is_told_once_and_only_if_the_block_waits_on() -> None:
    told: list[Any] = []
    was_lost = threading.Event()

    def lost(ranks: Any) -> None:
        told.append(ranks)
        was_lost.set()

    with watching(lambda: [2], lost, grace_s=0.05, every_s=0.05):
        assert was_lost.wait(30)
        time.sleep(0.3)  # time for a second call, which must not come
    assert told == [[2]]
    with watching(lambda: [2], lost, grace_s=30.0, every_s=0.05):
        time.sleep(0.3)
    with watching(list, lost, grace_s=0.0, every_s=0.05):
        time.sleep(0.3)
    assert told == [[2]]


WAITS = """
    import os, subprocess, sys, time
    from fastdata.train import ranks
    from fastdata.train.peers import started_at, this_process
    from dataclasses import replace

    ranks._GRACE_S = 1.0
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    mine = this_process()
    peer = replace(mine, pid=other.pid, started=started_at(other.pid))
    both = ranks.Ranks(rank=0, world_size=2, peers=(mine, peer))
    try:
        with both.together():
            print("in", flush=True)
            other.kill()
            time.sleep(60)  # as in a collective of NCCL, which notices nothing
    finally:
        print("never", flush=True)
"""


def test_a_process_that_waits_for_a_lost_one_ends_and_names_it() -> None:
    began = time.monotonic()
    done = run_python(["-c", textwrap.dedent(WAITS)], timeout=100)
    assert time.monotonic() - began < 50
    assert done.returncode == 1
    assert done.stdout == "in\n"
    assert "TrainError: rank 0 of 2 lost rank 1, which was killed or failed; see its message" in done.stderr


FAILS = """
    import sys, torch
    from fastdata import TrainError
    from fastdata.train import __main__ as command
    from fastdata.train.ranks import launched_ranks

    def fails(*args, **options):
        if launched_ranks().rank == 1:
            raise {error}
        ranks = options["ranks"]
        with ranks.together():
            ranks.sum(torch.zeros(1))  # for which the other one never comes

    command.fit = fails
    sys.exit(command.main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("error", ["TrainError('no luck')", "KeyError('no luck')"])
def test_a_rank_that_fails_ends_all_soon_and_says_why(folder: Any, tmp_path: Any, error: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(FAILS).format(error=error))
    flags = ["--data-path", str(folder), "--model", "small", "--device", "cpu", "-j", "0"]
    command = [sys.executable, str(program), *flags]
    with socket.socket() as free:  # without torchrun, which would end the other rank itself
        free.bind(("127.0.0.1", 0))
        known = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    started = [
        subprocess.Popen(command, env={**known, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        failed = started[1].communicate(timeout=100)[1]
        began = time.monotonic()
        survived = started[0].communicate(timeout=60)[1]
        assert time.monotonic() - began < 30
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert [process.returncode for process in started] == [1, 1]
    assert "no luck" in failed
    assert ("Traceback" in failed) or error.startswith("TrainError")
    assert "TrainError: rank 0 of 2 lost rank 1, which was killed or failed; see its message" in survived


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setattr(cuda, "device_count", lambda: 2)
    assert [joined._gpu_of(number, False) for number in (0, 1)] == [0, 1]
    with pytest.raises(OptionError, match=r"process 2 of this machine \(LOCAL_RANK\), but there are only 2 GPUs.*=2"):
        joined._gpu_of(2, False)
    assert [joined._gpu_of(number, True) for number in range(4)] == [0, 1, 0, 1]


def test_a_process_that_sees_one_gpu_takes_it_unless_torchrun_started_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "device_count", lambda: 1)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert joined._gpu_of(3, False) == 0
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with pytest.raises(OptionError, match="only 1 GPUs"):
        joined._gpu_of(3, False)


class TorchAo:
    """torchao.float8 as far as it is called, which notes the layers that it would convert."""

    Float8LinearConfig = SimpleNamespace

    def __init__(self) -> None:
        self.converted: list[str] = []
        self.config: Any = None

    def convert_to_float8_training(self, model: nn.Module, *, module_filter_fn: Any, config: Any) -> nn.Module:
        self.converted = [name for name, module in model.named_modules() if module_filter_fn(module, name)]
        self.config = config
        return model


def test_float8_takes_layers_whose_sizes_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    torchao = TorchAo()
    monkeypatch.setattr(models, "need", lambda *args, **options: torchao)
    model = nn.Sequential(nn.Conv2d(16, 16, 1), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1000))
    assert models._in_float8(model) is model
    assert torchao.converted == ["1"]
    assert torchao.config.pad_inner_dim  # a last batch of 13 images
    with pytest.raises(OptionError, match="no linear layer whose sizes are multiples of 16"):
        models._in_float8(nn.Linear(64, 1000))


def test_the_batch_size_is_searched_with_the_switches_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainOptions, "torch_device", lambda self: torch.device("cuda"))
    monkeypatch.setattr(searches, "largest_that_fits", lambda fits: torch.backends.cudnn.benchmark)
    before = torch.backends.cudnn.benchmark
    try:
        for wanted in (True, False):
            given = TrainOptions(cudnn_benchmark=wanted, tf32=False)
            assert searches.find_batch_size(plain_model(), given, 16, CLASSES) is wanted
    finally:
        torch.backends.cudnn.benchmark = before


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("CUDA error: out of memory", True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", True),
        ("mat1 and mat2 shapes cannot be multiplied", False),
    ],
)
def test_libraries_without_memory_are_told_from_other_errors(text: str, known: bool) -> None:
    assert searches._is_out_of_memory(RuntimeError(text)) is known


def test_a_step_of_the_systems_clock_ends_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    peer = replace(this_process(), pid=other.pid, started=started_at(other.pid))
    try:
        monkeypatch.setattr(psutil.Process, "create_time", lambda self: 1.0)
        assert not peer.has_ended() or sys.platform != "linux"
    finally:
        other.kill()
        other.wait()
    assert peer.has_ended()


def test_a_process_ends_even_if_its_message_cannot_be_written() -> None:
    code = "from fastdata.train.ranks import end_at_once; import sys; sys.stderr = None; end_at_once('x' * 100_000)"
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", code], stderr=full, check=False, timeout=60)
    assert done.returncode == 1
    told: list[Any] = []

    def fails() -> list[int]:
        told.append("asked")
        raise OSError("too many open files")

    with watching(fails, told.append, grace_s=0.0, every_s=0.05):
        until = time.monotonic() + 30
        while len(told) < 2 and time.monotonic() < until:
            time.sleep(0.01)
    assert told == ["asked"] * len(told)
    assert len(told) >= 2


def test_a_checkpoint_of_another_precision_starts_scaling_anew(tmp_path: Any) -> None:
    fit(plain_model(), data(), options=options(epochs=1, output_dir=str(tmp_path)))
    from fastdata.train.checkpoints import load_checkpoint
    from fastdata.train.training import Training

    state = load_checkpoint(max(tmp_path.glob("checkpoint-*.pt")))["training"]
    assert state["scaler"] == {}
    training = Training(plain_model(), options(), batches_per_epoch=5)
    training.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=True)
    training.load_state_dict(state)
    assert training.scaler.get_scale() == 8.0
    assert training.updates == 5


@pytest.mark.parametrize(
    "judged",
    [{}, {"lr_scheduler": "plateau"}, {"best_metric": "val_loss"}, {"best_metric": "val_loss", "patience": 2}],
    ids=["by nobody", "plateau", "best", "patience"],
)
def test_a_signal_during_the_validation_ends_it(
    tmp_path: Any, capsys: pytest.CaptureFixture[str], judged: dict[str, Any]
) -> None:
    import os
    import signal

    class Signals:
        def __init__(self) -> None:
            self.loader, self.made = data(80), 0

        def __len__(self) -> int:
            return len(self.loader)

        def __iter__(self) -> Any:
            for batch in self.loader:
                self.made += 1
                if self.made == 3:
                    os.kill(os.getpid(), signal.SIGTERM)
                yield batch

    validation = Signals()
    result = fit(plain_model(), data(), validation, options(epochs=3, output_dir=str(tmp_path), **judged))
    assert result.stopped
    assert validation.made == 3
    assert len(result.epochs) == 1
    assert "stopped by a signal after 5 updates; checkpoint saved" in capsys.readouterr().out
    again = fit(plain_model(), data(), data(80), options(epochs=3, output_dir=str(tmp_path), resume="auto", **judged))
    whole = fit(plain_model(), data(), data(80), options(epochs=3, **judged))
    assert again.losses == whole.losses
    assert [each["val_loss"] for each in again.epochs] == [each["val_loss"] for each in whole.epochs]
