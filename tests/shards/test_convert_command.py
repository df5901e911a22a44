"""`fastdata convert` as a process: where it writes, what it says, how it ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import images
import psutil
import pytest
from folders import SHARD_BYTES, changed_copy
from places import CONVERT

from fastdata import DatasetError, OptionError
from fastdata.cli.convert import ConversionProgress
from fastdata.cli.main import main
from fastdata.errors import ConversionError
from fastdata.shards.conversion.convert import ConvertOptions, convert
from fastdata.shards.conversion.job import ShardDone
from fastdata.shards.format import ShardInfo


def test_a_url_that_was_made_a_path_is_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match=r"s3:/bucket/set is a URL, but shards are written to a local folder"):
        convert(str(folder), Path("s3://bucket/set"), ConvertOptions())
    assert list(tmp_path.iterdir()) == []


def test_what_needs_a_function_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("path,label")
    (tmp_path / "loose").mkdir()
    for source in (str(tmp_path / "a.csv"), str(tmp_path / "loose"), "memory://b/{0..1}/x"):
        with pytest.raises(DatasetError, match=r"--from module:function"):
            convert(source, tmp_path / "out", ConvertOptions())
    assert not (tmp_path / "out").exists()


def test_a_function_is_named_with_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    assert main(["convert", "--from", "generated:samples", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["splits"][""]["images"] == 40
    assert main(["convert", "--from", "generated:samples", out]) == 1
    assert "already holds a converted dataset" in capsys.readouterr().err
    assert main(["convert", "--from", "generated", out]) == 1
    assert "--from generated is not like module:function" in capsys.readouterr().err
    assert main(["convert", out]) == 1
    assert "name either SOURCE or --from MODULE:FUNCTION" in capsys.readouterr().err


# ---- progress


def test_a_log_gets_plain_lines(folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(CONVERT), str(folder), str(tmp_path / "out"), "--workers", "1"]
    done = subprocess.run([*command, "--shard-size", str(SHARD_BYTES)], capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    assert re.fullmatch(r"converted: 39 of 39 images, [\d.e+]+ images/s, \d+ MB/s", lines[-1])
    assert "\r" not in done.stderr
    assert "it/s" not in done.stderr


def test_lines_come_now_and_then_and_at_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = [0.0]
    info = ShardInfo(name="a.tar", samples=10, tar_bytes=1, tar_crc32c=1, index_crc32c=1)
    shown = ConversionProgress(clock=lambda: now[0])
    shown.expect(40)
    for now[0] in (4.0, 8.0, 12.0, 16.0):
        shown.add(ShardDone(info, 0, 10, 10**6, []))
    shown.close()
    lines = [line.partition(" images")[0] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["converted: 30 of 40", "converted: 40 of 40"]


@pytest.mark.slow
def test_every_command_does_without_tqdm(folder: Path, tmp_path: Path) -> None:
    script = (
        f"import sys; sys.modules['tqdm'] = None; from fastdata.cli.main import main; out = {str(tmp_path / 'out')!r}; "
        f"one = ['--workers', '1']; sys.stderr.isatty = lambda: True; status = [main(['convert', {str(folder)!r}, out, "
        "*one]), main(['verify', out, *one]), main(['index', out, *one]), main(['inspect', out])]; assert status == "
        "[0] * 4, status"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ---- Ctrl-C


@pytest.fixture
def much(tmp_path: Path) -> Iterator[Path]:
    """Enough to be still under way when it is interrupted."""
    (tmp_path / "much" / "a").mkdir(parents=True)
    data = images.jpeg(900, 700)
    for number in range(600):
        (tmp_path / "much" / "a" / f"{number:04}.jpg").write_bytes(data)
    yield tmp_path / "much"
    shutil.rmtree(tmp_path / "much")


def listen_to_ctrl_c() -> None:
    """A shell may have had its background jobs ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
@pytest.mark.parametrize("moment", ["start", "work"])
def test_ctrl_c_at_a_terminal_is_one_line(much: Path, tmp_path: Path, moment: str) -> None:
    """A terminal sends it to every process of the group: to the workers, too, also while they are starting."""
    arguments = ["--shard-size", "500K", "--quality", "50", "--workers", "3"]
    process = subprocess.Popen(
        [sys.executable, str(CONVERT), str(much), str(tmp_path / "out"), *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=listen_to_ctrl_c,
    )
    awaited = "job.json" if moment == "start" else "_/shard-*.json"
    while not list((tmp_path / "out" / ".conversion").glob(awaited)):
        assert process.poll() is None
        time.sleep(0.01)
    workers = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    out, said = process.communicate(timeout=100)
    assert process.returncode == 130, said
    assert out == ""
    lines = [line for line in said.splitlines() if " images/s" not in line]
    assert lines == ["fastdata: interrupted; run the same command again to continue"], said
    _, alive = psutil.wait_procs(workers, timeout=100)
    assert alive == []


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
def test_an_error_lets_the_others_finish_what_they_have(folder: Path, tmp_path: Path) -> None:
    source = changed_copy(folder, tmp_path / "source", {"apple/00.jpg": b"no image"})
    with pytest.raises(ConversionError):
        convert(str(source), tmp_path / "out", ConvertOptions(shard_bytes=SHARD_BYTES), workers=2)
    assert list((tmp_path / "out").glob("shard-*.tar"))
    assert not list((tmp_path / "out").glob("*.partial"))
