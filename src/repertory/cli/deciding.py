"""Asks the person at the terminal about tool calls that wait for an approval."""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import msgspec

from repertory.cli import output
from repertory.cli.conversing import Lines
from repertory.cli.output import one_line
from repertory.cli.reading import asked_line, call_line
from repertory.errors import ConfigurationError, RunError
from repertory.runs.events import ApprovalRequested

if TYPE_CHECKING:
    from repertory.supervisor import Run

_KEYS = "y: allow, n REASON: deny, e: change the arguments"


def who_decides() -> str:
    """The user's name, for the record; the user id if the user has no name, as in many containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # OSError from Python 3.13 on
        return f"user {os.getuid()}"


def arguments_in(text: str) -> dict[str, Any]:
    """The arguments of a call, as a person wrote them. Raises ``ConfigurationError`` unless they are a JSON object."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ConfigurationError(f"the arguments must be one JSON object: {error}") from None


async def decide_at_terminal(
    run: Run[Any], say: Callable[[str], None], aside: Callable[[], AbstractAsyncContextManager[None]]
) -> None:
    """Ask about each waiting call of a run and its sub-agents, until the run ends.

    Without a terminal the calls stay waiting, and a message says how to decide them.

    Args:
        run: The run.
        say: Shows a line to the person.
        aside: Makes room for a question on the screen, within its block.
    """
    there = sys.stdin.isatty() and sys.stderr.isatty()
    async for event in run.events(tree=True):
        if not isinstance(event, ApprovalRequested):
            continue
        if there and all(each.call_id != event.call_id for each in run.waiting(tree=True)):
            continue  # it was decided before the person could be asked
        if there:
            async with aside():
                there = await _ask(run, event)
        if not there:
            say(
                f"{call_line(event.tool, event.arguments, 80)} waits for approval: end this command, then run "
                f"repertory resume {run.id} at a terminal, or repertory serve --resume and repertory approve"
            )


async def _ask(run: Run[Any], event: ApprovalRequested) -> bool:
    """Ask until a call is decided; False if nobody answers any more."""
    by = who_decides()
    output.remark(f"{one_line(event.agent)} wants to call {asked_line(event.tool, event.arguments)}")
    while True:
        answer = await _typed(f"{_KEYS} ")
        if answer is None:
            return False
        word, _, reason = answer.strip().partition(" ")
        try:
            match word.lower():
                case "y" | "yes" if not reason:
                    await run.approve(event.call_id, by=by)
                case "n" | "no":
                    reason = reason or await _typed("why not? ") or ""
                    await run.deny(event.call_id, reason.strip() or "denied at the terminal", by=by)
                case "e" | "edit" if not reason:
                    written = await _typed("all arguments, as one JSON object: ") or ""
                    await run.approve(event.call_id, arguments=arguments_in(written), by=by)
                case _:
                    continue
        except (ConfigurationError, RunError) as error:
            output.say(str(error))
            if any(each.call_id == event.call_id for each in run.waiting(tree=True)):
                continue
        return True  # or it was decided elsewhere, or has expired


async def _typed(prompt: str) -> str | None:
    """A typed line; None at the end of the input."""
    sys.stderr.write(prompt)
    sys.stderr.flush()
    return await Lines("").read()
