"""Servers that ask a person for input: the call waits until somebody answers, over restarts too."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

import repertory as rp
from backends import RunAsync
from mcp import Client
from repertory.errors import ConfigurationError
from repertory.llm import text_of
from repertory.llm.messages import Json, ToolResult
from repertory.llm.model import ModelRequest
from repertory.mcp import McpServer
from repertory.mcp.asking import OnInput, legacy_handler
from repertory.runs.events import ResultAwaited
from repertory.runs.waiting_calls import WaitingCall
from repertory.testing import ScriptedModel, call

SERVER = Path(__file__).with_name("mcp_test_server.py")
COMMAND = [sys.executable, str(SERVER)]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server that outlives the supervisors of its clients."""
    with subprocess.Popen([*COMMAND, "http"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
        process.kill()


def told(request: ModelRequest) -> str:
    """Answer with what the last call gave."""
    (result,) = (block for block in request.messages[-1].content if isinstance(block, ToolResult))
    words = result.content if isinstance(result.content, str) else text_of(result.content)
    return f"failed: {words}" if result.is_error else words


async def asked(run: rp.Run[Any], call_id: str) -> WaitingCall:
    """Wait until a call waits under an id."""
    while True:
        for each in run.waiting():
            if each.call_id == call_id:
                return each
        await anyio.lowlevel.checkpoint()


def clerk(target: str | list[str], **options: Any) -> rp.Agent:
    """An agent with the tools of the server."""
    return rp.Agent("clerk", tools=[McpServer("hotels", target, **options)])


def open_with(*script: Any, **options: Any) -> Any:
    """A supervisor with a scripted model."""
    return rp.open_supervisor(model=ScriptedModel([*script]), **options)


def test_what_a_server_asks_waits_for_a_person_over_a_restart(
    run_async: RunAsync, tmp_path: Path, address: str
) -> None:
    """With its message and its schema, by which the answer is checked; the server goes on with its own state."""
    path, agent = tmp_path / "journal.db", clerk(address)

    async def main() -> str:
        async with open_with(call("book", call_id="c1", hotel="Ritz"), path=path) as supervisor:
            run = await supervisor.spawn(agent, "book")
            waits = await asked(run, "c1")
            assert (waits.kind, waits.reason) == ("result", "server hotels asks: Which night at the Ritz?")
            assert waits.schema is not None
            assert waits.schema["properties"]["night"] == {
                "type": "integer",
                "title": "Night",
                "minimum": 1,
                "maximum": 31,
            }
        async with open_with(told, path=path) as supervisor:
            run = await supervisor.resume(run.id, agent=agent)
            with pytest.raises(ConfigurationError, match="32 is greater than the maximum of 31"):
                await run.give_result("c1", {"night": 32})
            await run.give_result("c1", {"night": 3})
            return await run.wait_result()

    assert run_async(main) == "Ritz: 3"


@pytest.mark.parametrize(("timeout", "action"), [(None, "decline"), (0.05, "cancel")])
def test_a_person_may_decline_and_who_says_nothing_cancels(
    run_async: RunAsync, address: str, timeout: float | None, action: str
) -> None:
    """The server is told which."""

    async def main() -> str:
        async with open_with(call("book", call_id="c1", hotel="Ritz"), told) as supervisor:
            run = await supervisor.spawn(clerk(address, input_timeout=timeout), "book")
            if timeout is None:
                await asked(run, "c1")
                await run.give_result("c1", "I stay at home", is_error=True)
            return await run.wait_result()

    assert run_async(main) == f"Ritz: {action}"


def test_a_server_that_asks_again_after_nobody_answered_gets_no_further_question(
    run_async: RunAsync, address: str
) -> None:
    """Else its call would never end."""

    async def main() -> str:
        async with open_with(call("insist", call_id="c1"), told) as supervisor:
            run = await supervisor.spawn(clerk(address, input_timeout=0.05), "go")
            answer = await run.wait_result()
            assert len([each async for each in run.events() if isinstance(each, ResultAwaited)]) == 1
            return answer

    assert "nobody answered in time, and it gives no result" in run_async(main)


def test_several_things_are_asked_at_once(run_async: RunAsync, address: str) -> None:
    """Each under its own name; an address is shown and not opened; patterns of a stranger's are not matched."""

    async def main() -> str:
        async with open_with(call("two_things", call_id="c1"), told) as supervisor:
            run = await supervisor.spawn(clerk(address), "go")
            waits = await asked(run, "c1")
            assert "https://example.org/login" in waits.reason
            assert waits.schema is not None
            assert waits.schema["properties"]["who"]["properties"] == {"name": {"type": "string", "maxLength": 40}}
            with pytest.raises(ConfigurationError, match="'login' is a required property"):
                await run.give_result("c1", {"who": {"name": "Ada"}})
            await run.give_result("c1", {"who": {"name": "a" * 40}, "login": None})
            return await run.wait_result()

    answer = run_async(main)
    assert answer.startswith("login=")
    assert "a" * 40 in answer
    assert answer.count('"accept"') == 2


def test_what_no_person_answers_is_an_error(run_async: RunAsync, address: str) -> None:
    """Such as a list of folders."""

    async def main() -> str:
        async with open_with(call("folders"), told) as supervisor:
            return await (await supervisor.spawn(clerk(address), "go")).wait_result()

    assert "server hotels asks for roots/list, which it cannot be given here" in run_async(main)


def test_a_server_that_forgot_its_questions_is_called_anew_only_where_it_may_be(run_async: RunAsync) -> None:
    """Its process ended while the calls waited, and with it the key that its state was sealed with."""
    agent = clerk(COMMAND, effects={"book": "idempotent"})
    both = [call("book", call_id="c1", hotel="Ritz"), call("two_things", call_id="c2")]
    script = [both, call("die", call_id="c3", code=1), told, all_told]

    async def main() -> str:
        async with open_with(*script) as supervisor:
            run = await supervisor.spawn(agent, "book")
            await asked(run, "c1")
            await asked(run, "c2")
            assert "gave no answer" in await (await supervisor.spawn(agent, "die")).wait_result()
            await run.give_result("c1", {"night": 3})
            await run.give_result("c2", {"who": {}, "login": None})
            assert "Which night" in (await asked(run, "c1.2")).reason
            await run.give_result("c1.2", {"night": 4})
            return await run.wait_result()

    booked, two = run_async(main).splitlines()
    assert booked == "Ritz: 4"
    assert "does not know of its question any more" in two


def all_told(request: ModelRequest) -> str:
    """Answer with what the calls of the last turn gave, a line for each."""
    results = [block for block in request.messages[-1].content if isinstance(block, ToolResult)]
    words = {r.tool_use_id: r.content if isinstance(r.content, str) else text_of(r.content) for r in results}
    return "\n".join(words[call_id] for call_id in sorted(words))


class Name(BaseModel):
    """What a server of an older protocol asks for."""

    name: str


async def _ada(message: str, schema: Json) -> Json:
    assert (message, schema["required"]) == ("Who?", ["name"])
    return {"name": "Ada"}


async def _nobody(message: str, schema: Json) -> None:
    return None


async def _broken(message: str, schema: Json) -> Json:
    raise OSError("no terminal")


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (_ada, "accept"),
        (_nobody, "decline"),
        (_broken, "on_input of old: OSError: no terminal"),
        (None, "cannot keep a call open until a person answers"),
    ],
)
def test_a_server_of_an_older_protocol_is_answered_at_once_or_refused(
    run_async: RunAsync, function: OnInput | None, says: str
) -> None:
    """It asks within an open call, which nothing durable can wait in."""
    server: MCPServer[None] = MCPServer("old")

    @server.tool()
    async def ask(context: Context[None]) -> str:
        """Ask a person."""
        return (await context.elicit("Who?", Name)).action

    async def main() -> str:
        async with Client(server, mode="legacy", elicitation_callback=legacy_handler(function, server="old")) as client:
            try:
                return (await client.call_tool("ask", {})).model_dump_json()
            except MCPError as error:
                return error.message

    assert says in run_async(main)
