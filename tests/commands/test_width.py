"""Whatever is printed fits the terminal, with no word lost."""

from __future__ import annotations

import os
import pty
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils.data import Dataset

from fastdata import DataLoader
from fastdata.cli.main import main
from fastdata.terminal.wrap import columns, wrapped

COMMANDS = ("info", "bench", "explain", "convert", "verify", "index", "restore", "inspect", "run", "doctor", "demo")


def words(text: str) -> str:
    return " ".join(text.split())


class Own(Dataset[int]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


def test_explain_wraps_with_hanging_indents(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = DataLoader(Own(), num_workers=2)
    whole = loader.explain()
    assert max(map(len, whole.splitlines())) > 100
    monkeypatch.setenv("COLUMNS", "80")
    told = loader.explain()
    assert max(map(len, told.splitlines())) <= 80
    assert words(told) == words(whole)
    assert whole.splitlines()[0] == str(loader.verdict())
    wrapped_lines = [line for line in told.splitlines()[1:] if ":" not in line[:12] and line[:3] == "   "]
    assert len(wrapped_lines) > 1
    assert all(line.startswith(" " * 12) and line[12] != " " for line in wrapped_lines)


def test_info_and_a_commands_explanation_fit(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for command in (["info"], ["explain", str(folder)]):
        assert main(command) == 0
        assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_what_is_missing_is_told_within_the_width(tmp_path: Path) -> None:
    environment = {**os.environ, "FASTDATA_NATIVE_LIBRARY": str(tmp_path / "gone.so"), "COLUMNS": "90"}
    command = [sys.executable, "-m", "fastdata", "info"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    lines = done.stdout.splitlines()
    assert max(len(line) for line in lines if str(tmp_path) not in line) <= 90  # a path is one word
    assert "dnf install gcc-c++ libjpeg-turbo-devel libdeflate-devel (Fedora)" in words(done.stdout)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_help_keeps_paragraphs_and_terms(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["convert", "--help"])
    told = capsys.readouterr().out
    assert "\n\nSOURCE  one of: a folder with one folder of images per class;" in told
    assert "\nDEST    a local folder.  The result" in told
    assert re.search(r"\nDEST    .*\n {8}\S", told)


@pytest.mark.parametrize(("terminal", "expected"), [(40, 80), (97, 97), (300, 120)])
def test_the_width_is_the_terminals_within_limits(terminal: int, expected: int) -> None:
    """In a real terminal of that many columns."""
    import fcntl
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, terminal, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    script = "from fastdata.terminal.wrap import columns; print(columns())"
    try:
        subprocess.run([sys.executable, "-c", script], stdout=theirs, env=environment, check=True)
        assert os.read(ours, 100).split() == [str(expected).encode()]
    finally:
        os.close(ours)
        os.close(theirs)


def test_without_a_terminal_lines_have_a_hundred_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    assert columns() == 100
    monkeypatch.setattr(sys, "stdout", None)  # as under pythonw
    assert columns() == 100


def test_long_words_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    path = "/a" * 40
    assert wrapped(f"name:  {path} is --on-error skip", hanging=4).splitlines() == [
        "name:",
        f"    {path}",
        "    is --on-error skip",
    ]
