"""Commands that steer runs: start, message, pause, stop, kill, fork, remove, and decide on waiting calls."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.text import Text

from repertory._choices import check_text
from repertory._ids import new_id
from repertory.cli import output
from repertory.cli.attachments import ATTACH, read_attachments
from repertory.cli.commands import Answer, command
from repertory.cli.conversing import arguments_in, json_in, who_decides
from repertory.cli.databases import ask_service, at_option, need_run, open_service, open_source
from repertory.cli.options import ONE_RUN, At, argument, option
from repertory.cli.output import one_line
from repertory.cli.reading import awaited_line, call_line
from repertory.errors import ConfigurationError, RunError, RunNotFound
from repertory.record import open_journal
from repertory.runs.waiting_calls import WaitingCall
from repertory.service.sources import RecordSource
from repertory.supervisor.forking import Fork, fork_records
from repertory.supervisor.live_runs import check_root

_CALL = argument("CALL", "The call's id, or its beginning, as approvals lists it.", ...)
_OF_RUN = option("--run RUN", "The run, if several have a call with this id.")
_TEXT = option("--text TEXT", "A message to the new run.")
_BY = option("--by NAME", "Who decides, for the record. Default: the user's name.")


# --- runs -------------------------------------------------------------------------------------------------


@command
async def start(
    agent: str = argument("AGENT", "The agent, by its name in the service.", ...),
    task: str = argument("TASK", "What to do.", ...),
    *,
    root: str | None = option("--root DIR", "The folder to read, within the agent's folder."),
    attach: list[Path] = ATTACH,
    at: At,
) -> Answer:
    """Start a run in the service and return at once. Its id goes to standard output."""
    attachments = read_attachments(attach)
    async with ask_service(at) as client:
        run_id = await client.start(agent, task, root=root, attachments=attachments)
        return new_run(run_id, at, "follow it with: repertory attach")


def new_run(run_id: str, at: At, hint: str) -> Answer:
    """The id of a new run, for scripts, with the command to go on with for a person."""

    def show(_screen: Console) -> None:
        output.write(run_id)
        if sys.stdout.isatty():
            output.say(f"{hint} {run_id}{at_option(at)}")

    return Answer({"id": run_id}, show)


@command
async def send(
    run_id: str = ONE_RUN,
    text: str = argument("TEXT", "The message; - reads it from standard input.", ...),
    *,
    attach: list[Path] = ATTACH,
    at: At,
) -> None:
    """Send a message to a run of the service.

    Its model reads it at its next iteration; a run that has ended or was interrupted continues with it. It is durable
    when the command returns.
    """
    words, attachments = _read_words(text), read_attachments(attach)
    async with ask_service(at) as client:
        found = await need_run(client, run_id, at.db)
        await client.send(found, words, attachments=attachments)


def _read_words(text: str) -> str:
    return sys.stdin.buffer.read().decode(errors="replace") if text == "-" else text


def _steering(verb: str, text: str) -> Any:
    """A command that has the service steer a run; ``text`` is its help."""

    async def steer(run_id: str = ONE_RUN, *, at: At) -> None:
        async with ask_service(at) as client:
            found = await need_run(client, run_id, at.db)
            await client.steer(found, verb)

    steer.__doc__ = text
    return command(steer)


pause = _steering("pause", "Pause a run of the service at its next boundary, until resume.")
stop = _steering(
    "stop",
    "Stop a run of the service at its next boundary.\n\nThat is after its current model call or tool calls.",
)
kill = _steering("kill", "Kill a run of the service at once. Its record stays; calls in progress are abandoned.")


async def resume_in_service(run_id: str | None, at: At, *, changed: bool) -> Answer | None:
    """Let the service continue a run, or the newest that did not finish; None if there is no service.

    ``changed`` says whether settings were given that only this process could continue the run with.
    """
    async with open_service(at) as client:
        if client is None:
            return None
        found = await need_run(client, run_id, at.db, unfinished=True)
        if changed:
            raise ConfigurationError(
                "a service continues a run with the settings it was started with: leave out --agent, --context, "
                "--root, --model, --limit and --summary-model, or end the service first"
            )
        await client.steer(found, "resume")
    words = f"{found} continues in the service; follow it with: repertory attach {found}{at_option(at)}"
    return Answer({"id": found}, lambda _: output.say(words))


# --- histories --------------------------------------------------------------------------------------------


@command
async def fork(
    run_id: str = ONE_RUN,
    *,
    iteration: int | None = option(
        "--iteration N",
        "The last iteration to take over; 0 for the task alone. Default: the last complete one.",
        min=0,
    ),
    text: str | None = _TEXT,
    at: At,
) -> Answer:
    """Start a new run from an iteration of another one. Its id goes to standard output.

    The service continues it; without one it waits in the database for `repertory resume`.
    """
    return await _fork(run_id, at, iteration, text)


@command
async def rewind(
    run_id: str = ONE_RUN,
    *,
    iteration: int = option("--iteration N", "The last iteration that stays; 0 for the task alone.", ..., min=0),
    text: str | None = _TEXT,
    at: At,
) -> Answer:
    """End a run and start it again from one of its iterations. The record keeps both."""
    return await _fork(run_id, at, iteration, text, rewind=True)


@command
async def rm(run_id: str = argument("RUN", "A run's whole id.", ...), *, at: At) -> None:
    """Remove a run that is not under way, and its sub-agents, for good.

    Its record, memory and contents are deleted; copies that other runs have stay. Its id cannot be used again.
    """
    async with open_source(at) as source:
        found = await need_run(source, run_id, at.db)
        if found != run_id:
            raise RunNotFound(f"{run_id!r} is no whole id of a run; it fits {found}")
        if not isinstance(source, RecordSource):
            await source.remove(run_id)
            return
    async with open_journal(source.path) as journal:
        check_root((await journal.read_run(run_id)).started, "remove")
        await journal.remove_run(run_id, at=time.time())


async def _fork(run_id: str, at: At, iteration: int | None, text: str | None, *, rewind: bool = False) -> Answer:
    """Let the service fork a run, or write the fork to a database that no process owns."""
    async with open_source(at) as source:
        found = await need_run(source, run_id, at.db)
        if not isinstance(source, RecordSource):
            new = await source.fork(found, iteration, text=text, rewind=rewind)
            return new_run(new, at, "follow it with: repertory attach")
        if owner := (await source.owners()).get(found):
            raise RunError(
                f"run {found} is under way on machine {owner}, whose record of it nobody else may write; fork it once "
                "it has ended, or ask the service there"
            )
    wanted, new = Fork(iteration=iteration, text=text, rewound=rewind), new_id("run")
    async with open_journal(source.path) as journal:
        row = await journal.read_run(found)
        await journal.write(await fork_records(journal, row, wanted, new_id=new, at=time.time()))
    return new_run(new, at, "continue it with: repertory resume")


# --- calls that wait --------------------------------------------------------------------------------------


@command
async def approvals(*, at: At) -> Answer:
    """List the tool calls that wait for a person, or for their result.

    Without a service it lists those of interrupted runs, which wait again once the run is resumed.
    """
    async with open_source(at) as source:
        database, is_served, waiting = source.database, source.place is not None, await source.waiting()
    where = at_option(at)

    def show(screen: Console) -> None:
        if not waiting:
            output.write("No call waits.")
            return
        for call in waiting:
            now = time.time()
            age = output.duration(now - call.since)
            left = "" if call.expires_at is None else f", {output.duration(max(call.expires_at - now, 0))} left"
            facts = one_line(f"has waited {age} for {call.kind}{left}: {call.agent}, {call.run_id}")
            # Shown whole: nobody should have to allow what they cannot see.
            what = Text(_what_waits(call), overflow="fold")
            output.show(screen, Text.assemble((one_line(call.call_id), "bold"), (f"  {facts}", "dim")), what, "")
        if is_served:
            output.say(f"repertory approve CALL{where} allows one, repertory deny CALL REASON{where} denies it, and")
            output.say(f"repertory give CALL RESULT{where} answers one that waits for its result")
        else:
            output.say(f"no service runs these: repertory resume RUN{where} asks for approvals at a terminal, and")
            output.say(f"repertory serve{where} --resume starts one, which takes results as well")

    return Answer({"database": database, "waiting": waiting}, show)


def _what_waits(call: WaitingCall) -> str:
    """What a person decides on, or answers."""
    if call.kind == "approval":
        return call_line(call.tool, dict(call.arguments))
    fitting = "" if call.schema is None else f"\nwith a --value that fits: {one_line(json.dumps(call.schema))}"
    return f"{awaited_line(call.tool, call.reason)}{fitting}"


@command
async def approve(
    call_id: str = _CALL,
    *,
    arguments: str | None = option("--arguments JSON", "Call the tool with these instead, as one JSON object."),
    run: str | None = _OF_RUN,
    by: str | None = _BY,
    at: At,
) -> None:
    """Allow a tool call that waits. The decision is durable when the command returns."""
    body = {} if arguments is None else {"arguments": arguments_in(arguments)}
    await _decide("approve", call_id, run=run, by=by, at=at, **body)


@command
async def deny(
    call_id: str = _CALL,
    reason: str = argument("REASON", "Why, for the model to read.", ...),
    *,
    run: str | None = _OF_RUN,
    by: str | None = _BY,
    at: At,
) -> None:
    """Deny a tool call that waits. The model is told why."""
    await _decide("deny", call_id, run=run, by=by, at=at, reason=reason)


@command
async def give(
    call_id: str = _CALL,
    text: str = argument("TEXT", "The result, or with --error why there is none; - reads standard input.", ""),
    *,
    value: str | None = option("--value JSON", "A JSON value in place of a text."),
    attach: list[Path] = ATTACH,
    error: bool = option("--error", "The call failed.", False),
    run: str | None = _OF_RUN,
    at: At,
) -> None:
    """Give a tool call the result that it waits for. It is durable when the command returns."""
    if (value is None) != bool(text or attach):
        raise ConfigurationError("the result is a TEXT, with --attach or alone, or else a --value")
    result = _read_words(text) if value is None else json_in(value, Any, "--value must be JSON")
    attachments = read_attachments(attach)
    async with ask_service(at) as client:
        found = _find_call(await client.waiting(), run, call_id, "result")
        await client.give_result(*found, result, attachments=attachments, is_error=error)


async def _decide(verb: str, call_id: str, *, run: str | None, by: str | None, at: At, **said: Any) -> None:
    async with ask_service(at) as client:
        found = _find_call(await client.waiting(), run, call_id, "approval")
        await client.decide(*found, verb, {"by": by or who_decides(), **said})


def _find_call(
    waiting: list[WaitingCall], run_id: str | None, call_id: str, kind: Literal["approval", "result"]
) -> tuple[str, str]:
    """The run and the id of the call that fits and waits so. With ``run_id``, it may have been answered before."""
    check_text("CALL", call_id)  # "" would fit every call
    fitting = [
        (each.run_id, each.call_id)
        for each in waiting
        if each.kind == kind and each.call_id.startswith(call_id) and (run_id is None or run_id in each.run_id)
    ]
    exact = [found for found in fitting if found[1] == call_id]
    fitting = exact or fitting
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        listed = ", ".join(f"{found[1]} of {found[0]}" for found in fitting[:4])
        raise RunError(f"several calls fit {call_id!r}: {listed}; give more of the id, or name the run with --run")
    if run_id is not None:
        return run_id, call_id
    for each in waiting:
        if each.call_id.startswith(call_id):
            other = "approve allows" if each.kind == "approval" else "give answers"
            raise RunError(f"call {each.call_id} waits for its {each.kind}, not for its {kind}; repertory {other} it")
    raise RunError(
        f"no call {call_id!r} waits; repertory approvals lists those that do, --run RUN finds one that was answered"
    )
