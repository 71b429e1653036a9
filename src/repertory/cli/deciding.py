"""Asks the person at the terminal about tool calls that wait for an approval."""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from repertory.cli import output
from repertory.cli.conversing import Lines
from repertory.cli.output import one_line
from repertory.cli.reading import asked_line, call_line
from repertory.errors import ConfigurationError, RunError
from repertory.runs.events import ApprovalRequested

if TYPE_CHECKING:
    from repertory.supervisor import Run

KEYS = "y: allow, n REASON: deny, e: change the arguments"


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
            async with aside(), anyio.create_task_group() as asking:
                asking.start_soon(_cancel_once_decided, run, event.call_id, asking.cancel_scope)
                there = await _ask(run, event)
                asking.cancel_scope.cancel()
        if not there:
            say(
                f"{call_line(event.tool, event.arguments, 80)} waits for approval: end this command, then run "
                f"repertory resume {run.id} at a terminal, or repertory serve --resume and repertory approve"
            )


async def _cancel_once_decided(run: Run[Any], call_id: str, asking: anyio.CancelScope) -> None:
    """Take a question back if its call was decided otherwise: it has expired, or the run is stopped."""
    async for _ in run.events(tree=True):
        if all(call.call_id != call_id for call in run.waiting(tree=True)):
            asking.cancel()


async def decide_by(
    line: str, decide: Callable[..., Awaitable[None]], ask: Callable[[str], Awaitable[str | None]]
) -> bool:
    """Decide a waiting call as a typed line says; whether the line is an answer.

    Args:
        line: ``y``, ``n REASON`` or ``e``, as ``KEYS`` says; nothing that says more than that allows anything.
        decide: Is called with ``approve`` or ``deny`` and the arguments of that method of ``Run``.
        ask: Asks for another line; None at the end of the input.

    Raises:
        RepertoryError: The call was not decided.
    """
    word, _, reason = line.strip().partition(" ")
    match word.lower():
        case "y" | "yes" if not reason:
            await decide("approve", by=who_decides())
        case "n" | "no":
            reason = (reason or await ask("why not? ") or "").strip()
            await decide("deny", reason=reason or "denied at the terminal", by=who_decides())
        case "e" | "edit" if not reason:
            arguments = arguments_in(await ask("all arguments, as one JSON object: ") or "")
            await decide("approve", arguments=arguments, by=who_decides())
        case _:
            return False
    return True


async def _ask(run: Run[Any], event: ApprovalRequested) -> bool:
    """Ask until a call is decided; False if nobody answers any more."""

    async def decide(verb: str, **said: Any) -> None:
        await getattr(run, verb)(event.call_id, **said)

    output.remark(f"{one_line(event.agent)} wants to call {asked_line(event.tool, event.arguments)}")
    while (line := await _typed(f"{KEYS} ")) is not None:
        try:
            if await decide_by(line, decide, _typed):
                return True
        except (ConfigurationError, RunError) as error:
            output.say(str(error))
    return False


async def _typed(prompt: str) -> str | None:
    """A typed line; None at the end of the input."""
    sys.stderr.write(prompt)
    sys.stderr.flush()
    try:
        return await Lines("").read()
    except anyio.get_cancelled_exc_class():
        output.remark("")  # what comes next does not stand behind the question
        raise
