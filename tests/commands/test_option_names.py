"""Errors of a command name its own options, not the arguments of Python behind them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastdata import DatasetError, OptionError
from fastdata.cli.main import main
from fastdata.terminal.help import Parser


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("quality=101 is not between 1 and 100", "--quality 101 is not between 1 and 100"),
        ("max_side is missing, quality is not", "--max-side is missing, quality is not"),
        ("mode='fast' needs lossless=True", "--mode fast needs --lossless"),
        ("lossless=False, and other=3", "no --lossless, and other=3"),
        ("source=a: x.quality=3, quality=(1, 2)", "source=a: x.quality=3, --quality (1, 2)"),
        ("/runs/quality=3/max_side/x is missing", "/runs/quality=3/max_side/x is missing"),
        ("'a/max_side', s3://b/x?quality=3", "'a/max_side', s3://b/x?quality=3"),
    ],
)
def test_arguments_become_options(message: str, told: str) -> None:
    parser = Parser()
    parser.add_argument("source")
    for name in ("-q", "--max-side", "--mode"):
        parser.add_argument(*(["-q", "--quality"] if name == "-q" else [name]))
    parser.add_argument("--lossless", action="store_true")
    assert parser.in_options(OptionError(message)) == told
    assert parser.in_options(DatasetError(message)) == message


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--quality", "101"], "fastdata: --quality 101 is not between 1 and 100"),
        (["--lossless", "--raw", "3"], "fastdata: --lossless and --raw 3 cannot be combined; choose one"),
        (["--raw", "3", "--min-side", "5"], "fastdata: --raw 3 and --min-side 5 cannot be combined; choose one"),
        (["--from", "a:b"], "fastdata: name either SOURCE or --from MODULE:FUNCTION"),
    ],
)
def test_a_command_names_its_options(
    options: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(tmp_path), str(tmp_path / "shards"), *options]) == 1
    assert capsys.readouterr().err.strip() == told


def test_numbers_of_workers_are_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["verify", "folder", "--workers", "x"])
    assert capsys.readouterr().err.endswith(
        "error: argument --workers: 'x' is not accepted; use an integer of at least 1, or auto\n"
    )
