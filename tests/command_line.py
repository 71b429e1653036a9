"""Commands of ``repertory`` in this process: a process of its own takes a second to begin."""

from __future__ import annotations

from subprocess import CompletedProcess

from typer.testing import CliRunner

from repertory.cli.app import app


def command(*words: str, **environment: str | None) -> CompletedProcess[str]:
    """Run a command as the entry point does, where there is no terminal and nothing to read; None unsets a variable."""
    done = CliRunner().invoke(app, [*words], env=environment)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return CompletedProcess(words, done.exit_code, done.stdout, done.stderr)
