"""Agents, served to a client of the protocol by a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from backends import RunAsync
from repertory.errors import ToolSetUnavailable
from repertory.llm.messages import RawBlock
from repertory.mcp import McpServer
from repertory.tools import Tool, ToolContext, call_tool

AGENTS = '''
import repertory as rp

MENU = ["Monday: leek soup, 4.20 euros", "Tuesday: dal with rice, 4.80 euros"]

@rp.tool(effect="pure")
def search_menu(query: str, context: rp.ToolContext[list[str]]) -> str:
    """Search this week's menu for a word; one dish a line."""
    return "\\n".join(dish for dish in context.context if query.lower() in dish.lower())

clerk = rp.Agent("clerk", instructions="Answer questions about the canteen.", tools=[search_menu])
'''

BROKEN = '''
import repertory as rp
from repertory.testing import ScriptedModel, call

@rp.tool
def search_menu(query: str) -> str:
    """Search this week's menu."""
    raise ZeroDivisionError("the menu is burnt")

clerk = rp.Agent("clerk", tools=[search_menu], model=ScriptedModel([call("search_menu", query="dal"), "Gone."]))
'''


@pytest.fixture
def canteen(tmp_path: Path) -> McpServer:
    """A server that offers one agent, whose tool needs the application's context."""
    (tmp_path / "canteen.py").write_text(AGENTS)
    options = ["--agent", "canteen:clerk", "--context", "canteen:MENU", "--db", "runs.db"]
    return McpServer("canteen", [sys.executable, "-m", "repertory", "mcp", *options], cwd=tmp_path, trusted=True)


def test_an_agent_is_a_tool_that_gives_its_answer_and_tells_what_it_does(
    run_async: RunAsync, canteen: McpServer
) -> None:
    """The run it made can be looked at by the other tools."""
    told: list[str] = []

    async def main() -> None:
        async with canteen.open() as offered:
            tools = {tool.name: tool for tool in offered}
            assert tools["clerk"].description == "Answer questions about the canteen."
            context = ToolContext(progress=told.append)
            answer = await call_tool(tools["clerk"], {"task": "What does the dal cost?"}, context=context)
            assert "4.80 euros" in answer.text
            assert any("clerk calls search_menu" in line for line in told), told
            (run,) = await _json(tools["list_runs"], {})
            assert (run["agent"], run["state"]) == ("clerk", "done")
            status = await _json(tools["run_status"], {"run_id": run["id"]})
            assert status["result"] == answer.text

    run_async(main)


def test_a_run_can_be_begun_and_waited_for(run_async: RunAsync, canteen: McpServer) -> None:
    """What is asked wrongly is told, and the connection goes on."""

    async def main() -> None:
        async with canteen.open() as offered:
            tools = {tool.name: tool for tool in offered}
            begun = await _json(tools["start_run"], {"agent": "clerk", "task": "What does the soup cost?"})
            ended = await _json(tools["wait_result"], {"run_id": begun["run_id"]})
            assert ended["state"] == "done"
            assert "4.20" in ended["result"]
            assert (await _json(tools["query_memory"], {"run_id": begun["run_id"]}))["items"] == []
            for name, arguments, says in (
                ("read_memory", {"run_id": begun["run_id"], "item_id": "none"}, "none"),
                ("start_run", {"agent": "cook", "task": "x"}, "no agent 'cook'"),
                ("run_status", {"run_id": "run-none"}, "run-none"),
                ("send_message", {"run_id": "run-none", "text": "more"}, "run-none"),
                ("clerk", {"task": 5}, "invalid arguments"),
            ):
                output = await call_tool(tools[name], arguments)
                assert output.is_error, name
                assert says in output.text, output.text
            await call_tool(tools["send_message"], {"run_id": begun["run_id"], "text": "And what does the dal cost?"})
            again = await _json(tools["wait_result"], {"run_id": begun["run_id"]})
            assert (again["state"], "4.80" in again["result"]) == ("done", True)

    run_async(main)


TOOLS = """
import sys
import anyio
import repertory as rp
from repertory.errors import ToolAbort
from repertory.mcp.server import serve_over_stdio
from repertory.tools import ResultLater, ToolContext
from repertory.tools.media import media_block

@rp.tool
def steps(context: ToolContext) -> str:
    "Tell of two steps."
    context.progress("one")
    context.progress("two")
    return "done"

@rp.tool
def give_up() -> str:
    "Give up."
    raise ToolAbort("no paper")

@rp.tool
def wait() -> ResultLater:
    "Wait."
    return ResultLater("a person is asked")

@rp.tool
def paper() -> list:
    "A document."
    return [media_block(b"%PDF-1.4 %%EOF", "application/pdf")]

anyio.run(serve_over_stdio, [steps, give_up, wait, paper], backend=sys.argv[1])
"""


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_any_tools_can_be_served(run_async: RunAsync, backend: str) -> None:
    """A plain one tells of its progress from its own thread; one that needs a run is an error that says so."""
    told: list[str] = []

    async def main() -> None:
        async with McpServer("tools", [sys.executable, "-c", TOOLS, backend]).open() as offered:
            tools = {tool.name: tool for tool in offered}
            done = await call_tool(tools["steps"], context=ToolContext(progress=told.append))
            assert (done.text, told) == ("done", ["one", "two"])
            (document,) = (await call_tool(tools["paper"])).content
            assert isinstance(document, RawBlock)
            assert document.raw["source"]["media_type"] == "application/pdf"
            for name, words in (("give_up", "no paper"), ("wait", "nothing here can wait for it: a person is asked")):
                failed = await call_tool(tools[name])
                assert failed.status == "error"
                assert words in failed.text

    run_async(main)


def test_what_goes_wrong_in_a_run_is_said_on_standard_error(tmp_path: Path) -> None:
    """As by a service: the client's log is where its person looks. What a client asks wrongly is no crash."""
    (tmp_path / "broken.py").write_text(BROKEN)
    command = f"exec {sys.executable} -m repertory mcp --agent broken:clerk --db runs.db 2> said.txt"

    async def main() -> None:
        async with McpServer("broken", ["sh", "-c", command], cwd=tmp_path, trusted=True).open() as offered:
            (clerk,) = (tool for tool in offered if tool.name == "clerk")
            (status,) = (tool for tool in offered if tool.name == "run_status")
            await call_tool(clerk, {"task": "Find the dal."})
            asked = await call_tool(status, {"run_id": "run-none"})
            assert asked.text.startswith("no run has the id 'run-none'\n")

    anyio.run(main)
    said = (tmp_path / "said.txt").read_text()
    assert "run-none" not in said
    assert "WARNING" in said
    assert "the menu is burnt" in said


def test_a_call_with_half_of_a_surrogate_pair_is_answered(canteen: McpServer) -> None:
    """So writes a client whose text was cut within an emoji; the SDK drops what has it, and nobody heard more of it."""

    def call(number: int, name: str, **arguments: str) -> dict[str, Any]:
        params = {"name": name, "arguments": arguments}
        return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}

    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    with subprocess.Popen(
        canteen.target, cwd=canteen.cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        told: dict[int, Any] = {}
        for message in (
            {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": client},
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            call(1, "run_status", run_id="run-\ud83d"),
            *(call(number, "list_agents") for number in range(2, 100)),  # before it ends, the other is long answered
        ):
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
            if message.get("id") not in (None, 1):
                answer = json.loads(process.stdout.readline())
                told[answer["id"]] = answer
        process.stdin.close()
        told |= {answer["id"]: answer for answer in map(json.loads, process.stdout)}
    assert "no run has the id 'run-\ufffd'" in told[1]["result"]["content"][0]["text"]


def test_nothing_to_serve_is_an_error_that_says_what_to_name(run_async: RunAsync) -> None:
    """The last words of the process are in it."""

    async def main() -> None:
        async with McpServer("empty", [sys.executable, "-m", "repertory", "mcp"]).open():
            raise AssertionError("opened")

    with pytest.raises(ToolSetUnavailable, match=r"name an agent with --agent"):
        run_async(main)


async def _json(tool: Tool, arguments: dict[str, object]) -> Any:
    output = await call_tool(tool, arguments)
    assert not output.is_error, output.text
    return json.loads(output.text)
