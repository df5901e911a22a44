"""`python -m fastdata` is the `fastdata` command."""

from __future__ import annotations

from fastdata.system import interrupts

__all__ = ["main"]


def main() -> int:
    """Runs the command; Ctrl-C ends it without a traceback from its first import on."""
    interrupts.leave_at_once()
    from fastdata.cli.main import main as run_command

    return run_command()


if __name__ == "__main__":
    raise SystemExit(main())
