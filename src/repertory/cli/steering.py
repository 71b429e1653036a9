"""What is said to runs from another terminal: to begin, to hear something, to pause, to end, to make a call or not."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from repertory.cli import output
from repertory.cli.databases import (
    At,
    databases_to_read,
    find_in_service,
    named_database,
    no_run,
    open_service,
    open_source,
)
from repertory.cli.options import AS_JSON, DATABASE, PORT, SOCKET, argument, option
from repertory.cli.output import one_line
from repertory.errors import ConfigurationError, JournalLocked, RunError

if TYPE_CHECKING:
    from repertory.llm.messages import Json
    from repertory.runs.waiting_calls import WaitingCall
    from repertory.service.client import ServiceClient

T = TypeVar("T")

_RUN = argument("RUN", "A run's id, or any part of it that fits one run only.", ...)
_CALL = argument("CALL", "The call's id, or its beginning, as approvals lists it.", ...)
_OF_RUN = option("--run RUN", "The run, where several have a call of this id.")
_BY = option("--by NAME", "Who decides, for the record. Default: the user's name.")


# --- runs -------------------------------------------------------------------------------------------------


def start(
    agent: str = argument("AGENT", "The agent, by its name in the service.", ...),
    task: str = argument("TASK", "What to do.", ...),
    *,
    root: str | None = option("--root DIR", "The folder to read, in that of the service."),
    db: str | None = DATABASE,
    socket: Path | None = SOCKET,
    port: int | None = PORT,
    as_json: bool = AS_JSON,
) -> None:
    """Begin a run in the service, and return at once. Its id goes to standard output."""

    async def begin(client: ServiceClient) -> str:
        return await client.start(agent, task, root=root)

    run_id = with_service(At(db, socket, port), begin)
    if as_json:
        output.print_json({"id": run_id})
    else:
        sys.stdout.write(f"{run_id}\n")
        if sys.stdout.isatty():
            output.say(f"follow it with: repertory attach {run_id}")


def send(
    run_id: str = _RUN,
    text: str = argument("TEXT", "What to say; - reads it from standard input.", ...),
    *,
    db: str | None = DATABASE,
    socket: Path | None = SOCKET,
    port: int | None = PORT,
) -> None:
    """Say something to a run of the service.

    Its model reads it at its next iteration; a run that has ended or was interrupted goes on with it. It is durable
    when the command returns.
    """
    words = sys.stdin.read() if text == "-" else text

    async def say(client: ServiceClient, found: str) -> None:
        await client.send(found, words)

    _to_run(run_id, At(db, socket, port), say)


def pause(
    run_id: str = _RUN, *, db: str | None = DATABASE, socket: Path | None = SOCKET, port: int | None = PORT
) -> None:
    """Hold a run of the service at its next boundary, until resume."""
    _to_run(run_id, At(db, socket, port), _verb("pause"))


def stop(
    run_id: str = _RUN, *, db: str | None = DATABASE, socket: Path | None = SOCKET, port: int | None = PORT
) -> None:
    """End a run of the service at its next boundary.

    That is after the model call or the tools that are under way.
    """
    _to_run(run_id, At(db, socket, port), _verb("stop"))


def kill(
    run_id: str = _RUN, *, db: str | None = DATABASE, socket: Path | None = SOCKET, port: int | None = PORT
) -> None:
    """End a run of the service at once. What is in its record stays; what is under way is left as it is."""
    _to_run(run_id, At(db, socket, port), _verb("kill"))


def resume_in_service(run_id: str | None, at: At, *, as_json: bool) -> None:
    """Have the service go on with a run; None for the newest that did not finish."""

    async def resume(client: ServiceClient) -> str:
        if run_id is None:
            waiting = [run.id for run in (await client.list_runs()).runs if run.resumable or run.state == "paused"]
            found = waiting[-1] if waiting else None
            if found is None:
                raise output.NothingThere(
                    f"every run in {client.database} has finished or is under way; repertory ps -a lists them"
                )
        else:
            found = await find_run(client, run_id)
        await client.steer(found, "resume")
        return found

    found = with_service(at, resume)
    if as_json:
        output.print_json({"id": found})
    else:
        output.say(f"{found} goes on in the service; follow it with: repertory attach {found}")


def _verb(name: str) -> Callable[[ServiceClient, str], Awaitable[None]]:
    async def steer(client: ServiceClient, run_id: str) -> None:
        await client.steer(run_id, name)

    return steer


# --- calls that wait --------------------------------------------------------------------------------------


def approvals(
    *,
    db: str | None = DATABASE,
    socket: Path | None = SOCKET,
    port: int | None = PORT,
    as_json: bool = AS_JSON,
) -> None:
    """List the tool calls that wait for a person, or for their result.

    Without a service those of interrupted runs are listed, which wait again once their run is resumed.
    """
    import anyio

    async def read() -> tuple[str, bool, list[WaitingCall]]:
        async with open_source(At(db, socket, port)) as source:
            return source.database, source.place is not None, list(await source.waiting())

    database, is_served, waiting = anyio.run(read)
    if as_json:
        output.print_json({"database": database, "waiting": waiting})
        return
    rows = [
        (
            one_line(each.call_id),
            one_line(each.run_id),
            each.kind,
            one_line(each.agent),
            output.timestamp(each.since),
            one_line(f"{each.tool} {json.dumps(dict(each.arguments), ensure_ascii=False)}", 500),
        )
        for each in waiting
    ]
    if not rows:
        sys.stdout.write("Nothing waits.\n")
        return
    screen = output.console()
    headers = ("CALL", "RUN", "WAITS FOR", "AGENT", "SINCE", "WHAT")
    output.show(screen, output.table(headers, rows, width=screen.width))
    if is_served:
        output.say("repertory approve CALL has one made, repertory deny CALL REASON refuses it")
    else:
        output.say("nobody runs these: repertory resume RUN asks about them at a terminal")


def approve(
    call_id: str = _CALL,
    *,
    arguments: str | None = option("--arguments JSON", "Call the tool with these instead, as one JSON object."),
    run: str | None = _OF_RUN,
    by: str | None = _BY,
    db: str | None = DATABASE,
    socket: Path | None = SOCKET,
    port: int | None = PORT,
) -> None:
    """Have a call made that waits. It is durable when the command returns."""
    body: Json = {}
    if arguments is not None:
        try:
            body["arguments"] = json.loads(arguments)
        except ValueError as error:
            raise ConfigurationError(f"--arguments must be one JSON object: {error}") from error
    _decide(At(db, socket, port), (run, call_id), "approve", by, body)


def deny(
    call_id: str = _CALL,
    reason: str = argument("REASON", "Why, for the model to read.", ...),
    *,
    run: str | None = _OF_RUN,
    by: str | None = _BY,
    db: str | None = DATABASE,
    socket: Path | None = SOCKET,
    port: int | None = PORT,
) -> None:
    """Deny a call that waits. The model is told why."""
    _decide(At(db, socket, port), (run, call_id), "deny", by, {"reason": reason})


def _decide(at: At, call: tuple[str | None, str], verb: str, by: str | None, body: Json) -> None:
    import getpass

    async def decide(client: ServiceClient) -> None:
        found = _find_call(await client.waiting(), *call)
        await client.decide(*found, verb, {"by": by or getpass.getuser(), **body})

    with_service(at, decide)


def _find_call(waiting: list[WaitingCall], run_id: str | None, call_id: str) -> tuple[str, str]:
    """The run and the id of the one call that waits and fits. One that is named whole may have been decided before."""
    fitting = [
        (each.run_id, each.call_id)
        for each in waiting
        if each.kind == "approval" and each.call_id.startswith(call_id) and (run_id is None or run_id in each.run_id)
    ]
    exact = [found for found in fitting if found[1] == call_id]
    fitting = exact or fitting
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        listed = ", ".join(f"{found[1]} of {found[0]}" for found in fitting[:4])
        raise RunError(f"several calls fit {call_id!r}: {listed}; say more of it, or name the run with --run")
    if run_id is not None:
        return run_id, call_id
    raise RunError(f"no call {call_id!r} waits; repertory approvals lists those that do")


# --- the service ------------------------------------------------------------------------------------------


def with_service(at: At, ask: Callable[[ServiceClient], Awaitable[T]]) -> T:
    """Ask the service that a command is about.

    Raises:
        NothingThere: There is no database.
        JournalLocked: Another process than a service owns the database.
        RunError: Nobody does.
        ServiceUnavailable: The service does not answer.
    """
    import anyio

    async def main() -> T:
        async with open_service(at) as client:
            if client is None:
                raise nobody_runs(at)
            return await ask(client)

    return anyio.run(main)


def nobody_runs(at: At) -> Exception:
    """What to say where a command needs a service and there is none."""
    from repertory.record.sqlite_file import owner_of

    path = databases_to_read(at.db)[0]
    owner = owner_of(path) if isinstance(path, Path) else None
    if owner is not None:
        return JournalLocked(f"{path} is owned by a process that is no service", path=str(path), owner=owner.pid)
    where = f" --db {path}" if named_database(at.db) is not None else ""
    return RunError(
        f"nobody runs what is in {path}: repertory serve{where} --resume is a service that goes on with it, repertory "
        f"resume RUN{where} goes on with one run here"
    )


def _to_run(run_id: str, at: At, act: Callable[[ServiceClient, str], Awaitable[None]]) -> None:
    """Act on a run of the service."""

    async def main(client: ServiceClient) -> None:
        await act(client, await find_run(client, run_id))

    with_service(at, main)


async def find_run(client: ServiceClient, run_id: str) -> str:
    """The id of the run of a service that a part of it stands for. Raises ``NothingThere``."""
    found = await find_in_service(client, run_id)
    if found is None:
        raise no_run(run_id, client.database, None)
    return found
