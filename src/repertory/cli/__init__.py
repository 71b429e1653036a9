"""The command line: it parses, calls the library and says what came of it."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit with its code."""
    from repertory.cli.app import app

    app()
