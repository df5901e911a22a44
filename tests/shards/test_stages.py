"""Streams are put down a few shards at a time; a conversion that goes on puts down only what is not made yet."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import images
import pytest
from folders import tree
from generated import cut_off
from places import CONVERT, HELPERS

from fastdata import ShardDataset
from fastdata.errors import ConversionError
from fastdata.shards.conversion.convert import ConvertOptions, convert

OPTIONS = ConvertOptions(shard_bytes=8_000)
SOURCE = """
import images

def samples():
    for number in range(120):
        yield f"{number:04}", images.jpeg(40 + number % 7, 30, seed=number), number % 3
"""


@pytest.fixture
def stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module with a function that yields images."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "streamed.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    monkeypatch.delitem(sys.modules, "streamed", raising=False)
    import streamed

    yield streamed
    del sys.modules["streamed"]


def stages(out: Path) -> list[str]:
    return sorted(path.name for path in out.glob(".conversion/*/stage-*.bin"))


@pytest.mark.parametrize("workers", [1, 2])
def test_only_a_few_are_there_at_a_time(
    stream: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    genuine, most = stream.samples, [0]

    def watched() -> Iterator[Any]:
        for item in genuine():
            most[0] = max(most[0], len(stages(tmp_path / "out")))
            yield item

    monkeypatch.setattr(stream, "samples", watched)
    summary = convert("streamed:samples", tmp_path / "out", OPTIONS, workers=workers)
    assert len(summary.manifests[""].shards) > 10
    assert 1 <= most[0] <= workers + 2


@pytest.mark.slow
def test_finished_shards_are_not_put_down_again(stream: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine, shards = stream.samples, tmp_path / "out"
    convert("streamed:samples", tmp_path / "whole", OPTIONS)
    monkeypatch.setattr(stream, "samples", lambda: cut_off(genuine, 100))
    with pytest.raises(OSError, match="network"):
        convert("streamed:samples", shards, OPTIONS)
    before = {path.name: path.stat().st_ino for path in shards.glob("*.tar")}
    seen: set[str] = set()

    def watched() -> Iterator[Any]:
        for item in genuine():
            seen.update(stages(shards))
            yield item

    monkeypatch.setattr(stream, "samples", watched)
    convert("streamed:samples", shards, OPTIONS)
    assert before.items() <= {path.name: path.stat().st_ino for path in shards.glob("*.tar")}.items()
    assert not {name.replace("shard", "stage").replace("tar", "bin") for name in before} & seen
    assert tree(shards) == tree(tmp_path / "whole")


@pytest.mark.parametrize(
    "changed", [pytest.param(0, marks=pytest.mark.slow), 40, pytest.param(99, marks=pytest.mark.slow)]
)
def test_other_samples_than_those_of_a_note_are_made_anew(
    stream: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: int
) -> None:
    """Also where they have the same keys, labels and sizes."""
    genuine = stream.samples

    def other() -> Iterator[Any]:
        for number, (key, data, label) in enumerate(genuine()):
            yield key, data[:17] + bytes((data[17] ^ 1,)) + data[18:] if number == changed else data, label  # density

    monkeypatch.setattr(stream, "samples", lambda: cut_off(genuine, 100))
    with pytest.raises(OSError, match="network"):
        convert("streamed:samples", tmp_path / "out", OPTIONS, workers=2)
    monkeypatch.setattr(stream, "samples", other)
    for name in ("out", "whole"):
        convert("streamed:samples", tmp_path / name, OPTIONS)
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_a_stream_that_is_never_the_same_is_refused(
    stream: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine, times = stream.samples, [0]

    def each_time_another() -> Iterator[Any]:
        times[0] += 1
        for number, (key, data, label) in enumerate(genuine()):
            is_late = number > 60 or times[0] > 2
            yield key, data, (label + times[0] if is_late else label)

    monkeypatch.setattr(stream, "samples", lambda: cut_off(each_time_another, 100))
    with pytest.raises(OSError, match="network"):
        convert("streamed:samples", tmp_path / "out", OPTIONS)
    monkeypatch.setattr(stream, "samples", each_time_another)
    with pytest.raises(ConversionError, match="yields different samples each time it is read"):
        convert("streamed:samples", tmp_path / "out", OPTIONS)


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
def test_killed_in_the_middle_it_goes_on(stream: Any, tmp_path: Path) -> None:
    convert("streamed:samples", tmp_path / "whole", OPTIONS)
    path = os.pathsep.join([str(tmp_path / "modules"), str(HELPERS)])
    command = [sys.executable, str(CONVERT), "streamed:samples", str(tmp_path / "out"), "--shard-size", "8000"]
    for workers in ("1", "2"):
        process = subprocess.Popen(
            [*command, "--workers", workers],
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        before = len(list((tmp_path / "out").glob("*.tar")))
        while len(list((tmp_path / "out").glob("*.tar"))) == before and process.poll() is None:
            time.sleep(0.001)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    convert("streamed:samples", tmp_path / "out", OPTIONS)
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def broken_items() -> Iterator[Any]:
    """Six items, of which four cannot be samples."""
    picture = images.jpeg(40, 30)
    yield {"__key__": "good", "jpg": picture, "txt": "a"}
    yield {"__key__": "no image", "txt": "b"}
    yield {"__key__": "no text", "jpg": picture, "json": object()}
    yield "neither"
    yield {"__key__": "label", "jpg": picture, "cls": "seven"}
    yield {"__key__": "also good", "jpg": picture, "txt": "c"}


@pytest.mark.parametrize("workers", [1, 2])
def test_items_that_are_no_samples_are_skipped_and_told(
    stream: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setattr(stream, "samples", broken_items)
    with pytest.raises(ConversionError, match=r"item 1 \(no image\) has no image.*--on-error skip"):
        convert("streamed:samples", tmp_path / "out", ConvertOptions(shard_bytes=100_000), workers=workers)
    skipping = ConvertOptions(shard_bytes=100_000, on_error="skip")
    manifest = convert("streamed:samples", tmp_path / "out", skipping, workers=workers).manifests[""]
    assert [key for key, _ in manifest.skipped] == ["no image", "no text", "item 3", "label"]
    reasons = [reason for _, reason in manifest.skipped]
    assert all(reason.startswith("streamed:samples: item ") for reason in reasons)
    assert "field 'json' cannot be stored" in reasons[1]
    assert [ShardDataset(tmp_path / "out", fields=("txt",))[n] for n in range(2)] == [("a",), ("c",)]
