"""`--json` prints one document on stdout and nothing else there; `--quiet` nothing but errors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fastdata.cli.main import main


class Commands:
    """Runs commands and keeps what they print."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def document(self, *arguments: object, status: int = 0) -> Any:
        assert main([*map(str, arguments), "--json"]) == status
        return json.loads(self._capsys.readouterr().out)

    def quiet(self, *arguments: object, status: int = 0) -> tuple[str, str]:
        assert main([*map(str, arguments), "--quiet"]) == status
        printed = self._capsys.readouterr()
        return printed.out, printed.err


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys)


def test_a_conversion(folder: Path, tmp_path: Path, run: Commands) -> None:
    shutil.copytree(folder, tmp_path / "set")
    (tmp_path / "set" / "apple" / "00.jpg").write_bytes(b"no image")
    options = ["--workers", 1, "--on-error", "skip"]
    told = run.document("convert", tmp_path / "set", tmp_path / "to", *options, "--verify")
    assert told["destination"] == str(tmp_path / "to")
    assert told["faults"] == []
    (split,) = told["splits"].values()
    assert (split["images"], split["shards"], split["unlabelled"]) == (38, 1, 0)
    assert [Path(each).name for each in told["left_out"]] == ["00.jpg"]  # by its first bytes, before it began
    assert split["skipped"] == []
    assert split["shard_bytes"] == sum(path.stat().st_size for path in (tmp_path / "to").glob("*.tar"))
    assert run.document("convert", tmp_path / "set", tmp_path / "to", *options)["was_finished"] is True
    assert run.quiet("convert", tmp_path / "set", tmp_path / "quiet", *options, "--verify") == ("", "")
    assert (tmp_path / "quiet" / "manifest.json").exists()


def test_a_conversion_that_is_only_estimated(folder: Path, tmp_path: Path, run: Commands) -> None:
    told = run.document("convert", folder, tmp_path / "to", "--dry-run", "--workers", 2)
    (split,) = told["splits"].values()
    assert told["workers"] == 2
    assert (split["images"], split["tried"], split["unreadable"]) == (39, 39, 0)
    assert run.quiet("convert", folder, tmp_path / "to", "--dry-run") == ("", "")
    assert not (tmp_path / "to").exists()


def test_faults_are_in_the_document_and_quiet_prints_them_as_errors(own: Path, run: Commands) -> None:
    assert run.document("verify", own) == {"dataset": str(own), "faults": [], "images": 39, "decoded": False}
    assert run.quiet("verify", own) == ("", "")
    shard = sorted(own.glob("*.tar"))[0]
    shard.write_bytes(shard.read_bytes()[:-100])
    told = run.document("verify", own, status=1)
    assert {fault["shard"] for fault in told["faults"]} == {str(shard)}
    out, err = run.quiet("verify", own, status=1)
    assert out == ""
    assert len(err.splitlines()) == len(told["faults"]) + 1
    assert "listed above" in err


def test_indexes(folder: Path, own: Path, tmp_path: Path, run: Commands) -> None:
    told = run.document("index", folder, "--to", tmp_path)
    assert (told["indexed"] + told["without"], told["kept"], told["unreadable"]) == (39, 0, 0)
    assert Path(told["path"]).exists()
    assert run.quiet("index", folder, "--to", tmp_path) == ("", "")
    assert run.document("index", own)["images"] == 39
    assert run.quiet("index", own) == ("", "")


@pytest.mark.slow
def test_a_benchmark(folder: Path, tmp_path: Path, run: Commands) -> None:
    options = [folder, "--rounds", 1, "--workers", 1, "--html", tmp_path / "page.html"]
    told = run.document("bench", *options)
    assert told["loaders"][0]["name"] == "torch + torchvision"
    assert all(each["cpu_ms_per_image"]["median"] > 0 for each in told["loaders"])
    assert (told["rounds"], told["page"]) == (1, str(tmp_path / "page.html"))
    assert told["command"].startswith("fastdata bench ")
    assert run.quiet("bench", *options) == ("", "")


@pytest.mark.parametrize("command", ["bench", "index", "verify"])
@pytest.mark.parametrize("flag", ["--json", "--quiet"])
def test_errors_go_to_stderr(command: str, flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, str(tmp_path / "none"), flag]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("fastdata: ")


def test_the_two_exclude_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["verify", str(tmp_path), "--json", "--quiet"])
    assert "not allowed with argument" in capsys.readouterr().err
