"""The command line: it parses arguments, calls the library and prints the outcome."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit with its code."""
    from repertory.cli import signals

    signals.install()  # before any slow import
    from repertory.cli.app import app
    from repertory.cli.output import open_standard_streams

    open_standard_streams()
    app()
