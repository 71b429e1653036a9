"""``repertory approvals``: the tool calls of a running service that wait for a person, and what to do with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import typer

from repertory.cli import output
from repertory.cli.options import AS_JSON, argument, option
from repertory.cli.output import one_line
from repertory.errors import ConfigurationError, RunError

if TYPE_CHECKING:
    from repertory.llm.messages import Json

approvals = typer.Typer(help="List the tool calls of a running service that wait, and allow or deny them.")

_CALL = argument("CALL", "The call's id, as ls lists it.", ...)
_RUN = option("--run RUN", "The run, where several have a call of this id.")
_BY = option("--by NAME", "Who decides, for the record. Default: the user's name.")
_SOCKET = option("--socket PATH", "The unix socket of the service. Default: ctl.sock in the runtime folder.")
_PORT = option("--port N", "Its port of 127.0.0.1 instead.", min=1, max=65535)


@approvals.command()
def ls(*, socket: Path | None = _SOCKET, port: int | None = _PORT, as_json: bool = AS_JSON) -> None:
    """List the tool calls that wait for a person, or for their result."""
    from repertory.service.client import ask_service

    waiting = ask_service("/approvals", at=socket, port=port)
    if as_json:
        output.print_json(waiting)
        return
    screen = output.console()
    rows = [
        (
            one_line(each["call_id"]),
            one_line(each["run_id"]),
            each["kind"],
            one_line(each["agent"]),
            output.timestamp(each["since"]),
            one_line(f"{each['tool']} {json.dumps(each['arguments'], ensure_ascii=False)}", 500),
        )
        for each in waiting["waiting"]
    ]
    if rows:
        headers = ("CALL", "RUN", "WAITS FOR", "AGENT", "SINCE", "WHAT")
        screen.print(output.table(headers, rows, width=screen.width))
    else:
        output.say("nothing waits")


@approvals.command()
def approve(
    call_id: str = _CALL,
    *,
    arguments: str | None = option("--arguments JSON", "Call the tool with these instead, as one JSON object."),
    run: str | None = _RUN,
    by: str | None = _BY,
    socket: Path | None = _SOCKET,
    port: int | None = _PORT,
) -> None:
    """Have a call made that waits. It is durable when the command returns."""
    body: Json = {}
    if arguments is not None:
        try:
            body["arguments"] = json.loads(arguments)
        except ValueError as error:
            raise ConfigurationError(f"--arguments must be one JSON object: {error}") from error
    _decide("approve", call_id, run, body | _named(by), at=socket, port=port)


@approvals.command()
def deny(
    call_id: str = _CALL,
    reason: str = argument("REASON", "Why, for the model to read.", ...),
    *,
    run: str | None = _RUN,
    by: str | None = _BY,
    socket: Path | None = _SOCKET,
    port: int | None = _PORT,
) -> None:
    """Deny a call that waits. The model is told why."""
    _decide("deny", call_id, run, {"reason": reason} | _named(by), at=socket, port=port)


def _named(by: str | None) -> Json:
    return {} if by is None else {"by": by}


def _find_run(call_id: str, socket: Path | None, port: int | None) -> str:
    """The one run that has a call of this id which waits."""
    from repertory.service.client import ask_service

    waiting: list[Any] = ask_service("/approvals", at=socket, port=port)["waiting"]
    runs = [each["run_id"] for each in waiting if each["call_id"] == call_id and each["kind"] == "approval"]
    if not runs:
        raise RunError(f"no call {call_id!r} waits; repertory approvals ls lists those that do")
    if len(runs) > 1:
        raise RunError(f"several runs have a call {call_id!r}; name one with --run: {', '.join(runs)}")
    return str(runs[0])


def _decide(what: str, call_id: str, run: str | None, body: Json, **place: Any) -> None:
    import getpass

    from repertory.service.client import ask_service

    run = run or _find_run(call_id, place["at"], place["port"])
    path = f"/runs/{quote(run, safe='')}/calls/{quote(call_id, safe='')}/{what}"
    ask_service(path, {"by": getpass.getuser(), **body}, **place)
