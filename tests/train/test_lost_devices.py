"""Ranks and GPUs that are missing, fail or are too few: who says so, how soon, and what ends."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import time
from typing import Any

import pytest
import torch
from small_training import CLASSES, data, options, plain_model

from fastdata import OptionError
from fastdata.system import cuda
from fastdata.train import TrainOptions, fit, searches
from fastdata.train import ranks as joined

FAILS = """
    import sys, torch
    from fastdata.errors import TrainError
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
    assert "TrainError: rank 0 of 2 lost another rank, which was killed, failed or hangs; see that rank's" in survived


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


def test_a_process_ends_even_if_its_message_cannot_be_written() -> None:
    code = "from fastdata.train.ranks import end_at_once; import sys; sys.stderr = None; end_at_once('x' * 100_000)"
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", code], stderr=full, check=False, timeout=60)
    assert done.returncode == 1


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
