"""Controlling runs that another machine owns, and carrying out what other machines ask of this one's runs."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from repertory._choices import check_text
from repertory._counting import counted
from repertory._error_texts import name_error
from repertory._ids import unit_of
from repertory.errors import (
    ConfigurationError,
    JournalError,
    JournalUnreadable,
    RecordRefused,
    RepertoryError,
    RunError,
    RunFailed,
    RunStopped,
)
from repertory.llm.messages import Json, decode_content, encode_block
from repertory.record.journal import Journal
from repertory.record.records import FINAL_STATES, RunRow, RunState
from repertory.record.rows import decode_json, encode_json
from repertory.runs.end import RunEnd
from repertory.runs.inbox import Said
from repertory.runs.live import DesiredState, LiveRun
from repertory.runs.log import log
from repertory.supervisor.asking import may_take_up, say
from repertory.supervisor.relayed_memory import answer_memory
from repertory.supervisor.run_handle import Run, checked_id
from repertory.supervisor.runtime import Runtime
from repertory.tools.media import Media, check_attachments
from repertory.tools.output import blocks_of

if TYPE_CHECKING:
    from repertory.machines.commands import Command, Commands

_POLL: Final = 1.0  # seconds between two checks for commands to runs here, or of the state of a run elsewhere
_VERBS: Final = frozenset({"send", "stop", "kill", "pause", "resume", "approve", "deny", "give_result"})


class RemoteRun:
    """A run that another machine owns, or that waits for a machine. Made by ``Supervisor.remote``.

    Each command is recorded and carried out by the run's owner or, if that machine dies, by the next owner. Each method
    raises the same errors as that of ``Run``, and ``MachineSilent`` if nobody answers within ten seconds.

    Attributes:
        id: The run's full id.
    """

    def __init__(self, run_id: str, journal: Journal, commands: Commands) -> None:
        self.id = run_id
        self._journal = journal
        self._commands = commands

    def __repr__(self) -> str:
        """The class and the run's id."""
        return f"RemoteRun({self.id!r})"

    async def state(self) -> RunState:
        """Its state on record."""
        return (await self._read()).state

    async def wait_result(self) -> str:
        """Wait for the run's result and return it as recorded: a text, or JSON for a typed result.

        Raises:
            RunFailed: The run ended with an error, which is the ``__cause__`` if it is one of ``repertory.errors``.
            RunStopped: The run was stopped first.
        """
        while (row := await self._read()).state not in FINAL_STATES:
            with anyio.move_on_after(_POLL):  # only the ends of placed runs are announced
                await self._commands.machines.news("end").wait()
        if row.state == "failed":
            raise RunFailed(f"run {self.id} of {row.started.agent} failed: {row.error}") from RunEnd.recorded(row).cause
        if row.state == "stopped":
            after = counted(row.iteration, "iteration")
            raise RunStopped(f"run {self.id} of {row.started.agent} was stopped after {after}")
        return row.result or ""

    async def send(self, text: str, *, attachments: Sequence[Media] = (), message_id: str | None = None) -> None:
        """As ``Run.send``."""
        check_text("a message", text)
        blocks = [encode_block(block) for block in check_attachments(attachments, to="a message")]
        message_id = checked_id(message_id)
        body = {"text": text, "message_id": message_id, **({"attachments": blocks} if blocks else {})}
        await self._ask("send", body, f"{self.id}/{message_id}")

    async def stop(self) -> None:
        """As ``Run.stop``."""
        await self._ask("stop", {})

    async def kill(self) -> None:
        """As ``Run.kill``."""
        await self._ask("kill", {})

    async def pause(self) -> None:
        """As ``Run.pause``."""
        await self._ask("pause", {})

    async def resume(self) -> None:
        """As ``Run.resume``."""
        await self._ask("resume", {})

    async def approve(self, call_id: str, *, arguments: Mapping[str, Any] | None = None, by: str = "") -> None:
        """As ``Run.approve``."""
        await self._ask("approve", {"call_id": call_id, "arguments": arguments, "by": by})

    async def deny(self, call_id: str, reason: str, *, by: str = "") -> None:
        """As ``Run.deny``."""
        await self._ask("deny", {"call_id": call_id, "reason": reason, "by": by})

    async def give_result(self, call_id: str, result: Any, *, is_error: bool = False) -> None:
        """As ``Run.give_result``."""
        blocks = blocks_of(result)
        given = {"result": result} if blocks is None else {"content": [*map(encode_block, blocks)]}
        await self._ask("give_result", {"call_id": call_id, "is_error": is_error, **given})

    async def _read(self) -> RunRow:
        return await self._journal.read_run(self.id)

    async def _ask(self, verb: str, body: Json, command_id: str = "") -> None:
        try:
            plain = decode_json(encode_json(self._journal.redact(body)))
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"{verb} takes what JSON has, for a run on another machine: {error}") from error
        await self._commands.ask(self.id, verb, plain, command_id=command_id)


async def carry_out(run: Run[Any] | RemoteRun, verb: str, body: Json) -> None:
    """Call a method that ``Run`` and ``RemoteRun`` share, by its name.

    Raises:
        ConfigurationError: There is no such method, or it takes other arguments.
        RepertoryError: As raised by the method.
    """
    if verb not in _VERBS:  # from a machine with another version
        raise ConfigurationError(f"nobody can {verb[:50]!r} a run here; is that machine's repertory newer?")
    await _call(getattr(run, verb), verb, body)


async def _call(method: Callable[..., Awaitable[str | None] | None], verb: str, body: Json) -> str:
    """Call a command's method with arguments that may come from another version; returns its result, or ""."""
    try:
        inspect.signature(method).bind(**body)
    except TypeError as error:
        raise ConfigurationError(f"{verb}: {error}; is that machine's repertory another version?") from error
    done = method(**body)
    return "" if done is None else await done or ""


async def _deliver(live: LiveRun, _command: Command, *, message_id: str, text: str, sender: str) -> None:
    if live.is_ending and message_id not in live.inbox:
        raise RunError(f"run {live.run_id} is ending, and hears nothing more")
    live.deliver(message_id, Said(text, sender))
    await live.shared.journal.write(())


async def _steer(live: LiveRun, _command: Command, *, wish: DesiredState | None, alone: bool) -> None:
    if wish is None:
        live.kill(alone=alone)
    else:
        live.set_desired_state(wish)


_ACROSS: Final[Mapping[str, Callable[..., Awaitable[str | None]]]] = {
    "hear": _deliver,
    "steer": _steer,
    "memory": answer_memory,
}
"""The commands between runs of one tree across machines."""


async def serve_commands(runtime: Runtime, commands: Commands, scope: anyio.CancelScope) -> None:
    """Carry out commands to this machine and its runs, until the scope is cancelled.

    Commands are carried out one after the other, in order. One that takes long, such as a message to a run that is
    stopping, is not waited for: it may itself be waiting for the next command.
    """
    machines, under_way = commands.machines, dict[str, anyio.Event]()

    async def carry(command: Command) -> None:
        try:
            await _serve(runtime, commands, command)
        except JournalError as error:  # the command is still open, and is tried again
            log(logging.WARNING, "commands.not.seen", exc_info=error)
        finally:
            under_way.pop(command.command_id).set()

    with scope:
        async with anyio.create_task_group() as tasks:
            while True:
                news = machines.news("command")
                try:
                    for command in await commands.open(under_way):
                        if command.command_id not in under_way:
                            done = under_way[command.command_id] = anyio.Event()
                            tasks.start_soon(carry, command)
                            with anyio.move_on_after(_POLL):
                                await done.wait()
                    if await machines.is_asked_to_drain():
                        await runtime.drain(machines)
                except JournalError as error:  # the server cannot be reached; whoever writes gets the error
                    machines.lease.check()
                    log(logging.WARNING, "commands.not.seen", exc_info=error)
                with anyio.move_on_after(_POLL):
                    await news.wait()


async def _serve(runtime: Runtime, commands: Commands, command: Command) -> None:
    live, refused, result = runtime.runs.find(command.run_id), None, ""
    top = runtime.runs.find(unit_of(command.run_id))
    if top is None:
        return  # about to begin here: the next check finds it
    try:
        if live is None:
            row = await runtime.shared.journal.run_or_none(command.run_id)
            if row is not None and may_take_up(runtime, top, row):
                return  # a later check finds it
            raise RunError(f"run {command.run_id} has ended; say it to {top.run_id}")
        if command.verb in _ACROSS:
            result = await _call(partial(_ACROSS[command.verb], live, command), command.verb, command.body)
        else:
            body = dict(command.body)
            if "content" in body:
                body["result"] = decode_content(body.pop("content"))
            if command.verb == "send":  # whoever sent it has checked it, and redacted what comes with it
                body["attachments"] = decode_content(body.get("attachments", ()))
                await _call(partial(say, runtime, live), "send", body)
            else:
                await carry_out(Run(live, runtime), command.verb, body)
            await live.shared.journal.write(())  # on record before it is acknowledged
    except RepertoryError as error:
        if isinstance(error, JournalError) and not isinstance(error, RecordRefused | JournalUnreadable):
            raise  # the journal may work again when the command is retried
        refused = error
    except Exception as error:  # noqa: BLE001 - perhaps from another version: it must not crash machine after machine
        log(logging.ERROR, "command.failed", run=command.run_id, verb=command.verb, exc_info=error)
        refused = RunError(f"{command.verb} could not be carried out: {name_error(error)}")
    await commands.answer(command, refused, result)
