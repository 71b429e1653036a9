"""The command line: it parses, calls the library and says what came of it."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit with its code."""
    from repertory.cli import signals

    signals.install()  # before anything that takes long to import
    from repertory.cli.app import app
    from repertory.cli.output import open_standard_streams

    open_standard_streams()
    app()
