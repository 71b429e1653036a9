"""Servers of the protocol as tools, over real processes and sockets."""

from __future__ import annotations

import base64
import codecs
import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import anyio
import anyio.lowlevel
import anyio.to_thread
import mcp_types as types
import pytest
import trio.testing
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

import repertory as rp
from backends import RunAsync
from patience import PATIENCE
from repertory.errors import ConfigurationError, ToolSetUnavailable
from repertory.llm import text_of
from repertory.llm.anthropic import AnthropicModel
from repertory.llm.messages import Image, RawBlock, Text, ToolResult
from repertory.llm.model import ModelRequest, ModelResponse
from repertory.mcp import McpServer
from repertory.mcp.connection import Connection
from repertory.mcp.lines import whole_lines
from repertory.mcp.results import tool_output
from repertory.mcp.transport import keep_last_lines
from repertory.testing import ScriptedModel, call, open_messages_server
from repertory.tools import Tool, ToolContext, ToolOutput, call_tool

SERVER = Path(__file__).with_name("mcp_test_server.py")
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
COMMAND = [sys.executable, str(SERVER)]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Address."""
    with subprocess.Popen([*COMMAND, "http"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
        process.kill()


@asynccontextmanager
async def opened(server: McpServer) -> AsyncGenerator[dict[str, Tool]]:
    """Opened."""
    async with server.open() as tools:
        yield {tool.name: tool for tool in tools}


def test_the_tools_of_a_process_are_called(run_async: RunAsync) -> None:
    """The tools of a process are called."""

    async def main() -> None:
        async with opened(McpServer("tests", COMMAND)) as tools:
            assert tools["add"].description == "Add two numbers."
            assert tools["add"].input_schema["required"] == ["a"]
            added = await call_tool(tools["add"], {"a": 2, "b": 3})
            assert (added.content, added.is_error, added.source_type) == ("5", False, "mcp")
            assert (await call_tool(tools["dotted_name"])).content == "dots"

    run_async(main)


def test_the_tools_behind_an_address_are_called(run_async: RunAsync, address: str) -> None:
    """The tools behind an address are called."""

    async def main() -> None:
        async with opened(McpServer("tests", address, headers={"Authorization": "Bearer x"})) as tools:
            assert (await call_tool(tools["add"], {"a": 2})).content == "3"

    run_async(main)


def test_a_picture_comes_as_a_picture(run_async: RunAsync, address: str) -> None:
    """A picture comes as a picture."""

    async def main() -> ToolOutput:
        async with opened(McpServer("tests", address)) as tools:
            return await call_tool(tools["dot"])

    (image,) = run_async(main).content
    assert isinstance(image, Image)
    assert image.source["media_type"] == "image/png"


@pytest.mark.parametrize(
    ("options", "disabled", "is_told"),
    [
        ({"include": ["add", "fail"]}, [], True),
        ({"include": ["add", "fail"]}, ["add", "fail"], False),
        ({"include": ["add"], "instructions": False}, [], False),
    ],
)
def test_a_model_is_told_once_what_a_server_says_of_its_tools(
    run_async: RunAsync, address: str, options: dict[str, Any], disabled: list[str], is_told: bool
) -> None:
    """In a frame that its words cannot end, behind the agent's own instructions; not if it has none of them."""
    server = McpServer("tests", address, **options)
    agent = rp.Agent("clerk", instructions="Do sums.", tools=[server], disabled_tools=disabled)

    async def main() -> ModelRequest:
        model = ScriptedModel(["done"])
        async with rp.open_supervisor(model=model) as supervisor:
            await (await supervisor.spawn(agent, "Go.")).wait_result()
        return model.requests[0]

    system = text_of(run_async(main).system)
    assert system.count("Add before you fail") == is_told
    assert system.startswith("Do sums.")
    if is_told:
        opened, said, closed = system.splitlines()[-3:]
        assert closed == opened.replace("<", "</")
        assert closed not in said


def test_resources_are_listed_and_read_by_a_tool(run_async: RunAsync, address: str) -> None:
    """Also one that a result only names. What is not there, or cannot be read, is an error of the call."""

    async def main() -> None:
        async with opened(McpServer("tests", address)) as tools:
            assert tools["read_resource"].effect == "unsafe", "nobody has said that the server may be trusted"
            linked = await call_tool(tools["link"])
            assert linked.content == "[resource first at note://first: what to buy]"
            read = [await call_tool(tools["read_resource"], {"uri": uri} if uri else {}) for uri in URIS]
            listed, note, dot, *failed = read
            assert listed.content == (
                "note://first: first_note – The first note.\n"
                "dot://{size} (put in what is in braces): dot_of – A picture."
            )
            assert (note.content, note.url, note.format) == ("# Buy milk", "note://first", "markdown")
            assert isinstance(dot.content[0], Image)
            assert [output.status for output in failed] == ["error", "error"]
        async with opened(McpServer("tests", address, exclude=["read_resource"], trusted=True)) as tools:
            assert "read_resource" not in tools
        async with opened(McpServer("tests", address, trusted=True)) as tools:
            assert tools["read_resource"].effect == "idempotent"

    run_async(main)


URIS = ["", "note://first", "dot://1", "dot://2", "nothing://here"]

SHELF = """
import json, sys
answers = {
    "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"resources": {}}, "serverInfo": SHELF},
    "resources/list": {"resources": [{"uri": "shelf://", "name": "shelf"}]},
    "resources/read": {"contents": [{"uri": "shelf://a", "text": "A"}, {"uri": "shelf://b", "text": "B"}]},
}
for line in sys.stdin:
    asked = json.loads(line)
    said = answers.get(asked["method"])
    answer = {"error": {"code": -32601, "message": "no"}} if said is None else {"result": said}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
""".replace("SHELF", "{'name': 'shelf', 'version': '1'}")


def test_a_server_without_tools_has_resources(run_async: RunAsync) -> None:
    """It does not know the list of tools. What is within a resource is shown under its own name."""

    async def main() -> None:
        async with opened(McpServer("shelf", [sys.executable, "-c", SHELF])) as tools:
            assert {*tools} == {"read_resource"}
            assert (await call_tool(tools["read_resource"], {})).content == "shelf://: shelf"
            read = await call_tool(tools["read_resource"], {"uri": "shelf://"})
            assert (read.content, read.url) == ("shelf://a:\nA\nshelf://b:\nB", "")

    run_async(main)


def test_what_a_tool_raises_and_what_it_refuses_is_told_as_an_error(run_async: RunAsync, address: str) -> None:
    """What a tool raises and what it refuses is told as an error."""

    async def main() -> None:
        async with opened(McpServer("tests", address)) as tools:
            for name, arguments in (("fail", {}), ("add", {"a": "two"}), ("add", {})):
                output = await call_tool(tools[name], arguments)
                assert output.is_error, (name, output)
            assert (await call_tool(tools["add"], {"a": 1})).content == "2", "the connection is as good as before"

    run_async(main)


def test_a_process_sees_only_what_it_is_given(run_async: RunAsync, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process sees only what it is given."""
    monkeypatch.setenv("REPERTORY_TEST_SECRET", "of this process")

    async def main(server: McpServer, name: str) -> object:
        async with opened(server) as tools:
            return (await call_tool(tools["environment"], {"name": name})).content

    assert run_async(main, McpServer("tests", COMMAND), "REPERTORY_TEST_SECRET") == "(not set)"
    assert run_async(main, McpServer("tests", COMMAND, env={"GIVEN": "yes"}), "GIVEN") == "yes"


@pytest.mark.parametrize(("said", "told"), [("a HALF", "a \N{REPLACEMENT CHARACTER}"), ("BROKEN", "cannot be read")])
def test_an_answer_that_cannot_be_read_is_told_at_once(run_async: RunAsync, said: str, told: str) -> None:
    """Half of a character is replaced; anything else fails the call, which has no deadline here, and no other one."""

    async def main() -> None:
        server = McpServer("tests", [*COMMAND, "garbled"], env={"SAID": said}, deadline=None)
        async with opened(server) as tools:
            with anyio.fail_after(PATIENCE):
                assert told in (await call_tool(tools["environment"], {"name": "SAID"})).text
                assert (await call_tool(tools["add"], {"a": 1})).content == "2"

    run_async(main)


def test_a_tool_whose_schema_is_none_is_left_out(run_async: RunAsync, caplog: pytest.LogCaptureFixture) -> None:
    """It would have every request refused. One that says true of an argument is called with anything."""

    async def main() -> None:
        async with opened(McpServer("tests", [*COMMAND, "garbled"])) as tools:
            assert {"slow", "die_once"}.isdisjoint(tools)
            for name in ("NOTHING", None, ["a"], {"a": 1}):
                output = await call_tool(tools["environment"], {"name": name})
                assert (output.text == "(not set)", output.is_error) == (name == "NOTHING", name != "NOTHING")

    run_async(main)
    assert "inputSchema.properties.broken.dict[str,any]: Input should be a valid dictionary" in caplog.text


def test_a_picture_that_no_model_can_be_shown_is_a_line_of_text() -> None:
    """The API would refuse the request with it, and every later one."""
    shown = ["image/png", "image/tiff", "audio/wav"]
    blocks: list[types.ContentBlock] = [types.ImageContent(data="bm9uZQ==", mime_type=kind) for kind in shown[:2]]
    blocks += [types.AudioContent(data="bm9uZQ==", mime_type=shown[2]), types.ImageContent(data="=", mime_type="?")]
    output = tool_output(types.CallToolResult(content=blocks), server="tests")
    first, *others = output.text.split("\n")
    why = "media_type is 'image/png', but the data is of none of the types that are shown: image/png"
    assert first.startswith(f"[image of 6 bytes, which cannot be shown: {why}")
    assert [line[:24] for line in others] == [
        "[image of 6 bytes, which",
        "[audio of 6 bytes, which",
        "[image of 0 bytes, which",
    ]


def test_pictures_and_documents_are_shown_whatever_their_server_calls_them() -> None:
    """A document comes as a resource; types and data are often written a little wrong."""
    pdf = types.BlobResourceContents(uri="file:///a.pdf", blob=base64.b64encode(b"%PDF-1.4 %%EOF").decode())
    blocks: list[types.ContentBlock] = [
        types.ImageContent(data=PIXEL, mime_type="image/jpg"),
        types.ImageContent(data=f"data:image/png;base64,{PIXEL[:40]}\n{PIXEL[40:]}", mime_type="image/png"),
        types.EmbeddedResource(resource=pdf),
        types.EmbeddedResource(resource=types.BlobResourceContents(uri="file:///a.zip", blob="UEsD")),
    ]
    first, second, document, archive = tool_output(types.CallToolResult(content=blocks), server="tests").content
    assert isinstance(first, Image)
    assert first == second
    assert first.source == {"type": "base64", "media_type": "image/png", "data": PIXEL}
    assert isinstance(document, RawBlock)
    assert document.raw["source"]["media_type"] == "application/pdf"
    assert isinstance(archive, Text)
    assert archive.text.startswith("[resource file:///a.zip of 3 bytes, which cannot be shown: media_type is 'unknown'")


def test_a_structured_value_is_shown_if_the_blocks_say_nothing() -> None:
    """Some servers send an empty text beside it."""
    empty: list[types.ContentBlock] = [types.TextContent(text="")]
    output = tool_output(types.CallToolResult(content=empty, structured_content={"n": 1}), server="tests")
    assert (output.content, output.format) == ('{"n":1}', "json")


def test_effects_follow_from_hints_only_where_the_server_is_trusted(run_async: RunAsync, address: str) -> None:
    """Effects follow from hints only where the server is trusted."""

    async def effects(server: McpServer) -> dict[str, str]:
        async with opened(server) as tools:
            return {name: tool.effect for name, tool in tools.items()}

    assert set(run_async(effects, McpServer("tests", address)).values()) == {"unsafe"}
    trusted = run_async(effects, McpServer("tests", address, trusted=True, effects={"environment": "idempotent"}))
    assert (trusted["add"], trusted["environment"], trusted["fail"]) == ("pure", "idempotent", "unsafe")


def test_tools_are_chosen_by_name(run_async: RunAsync, address: str) -> None:
    """Tools are chosen by name."""

    async def names(server: McpServer) -> set[str]:
        async with opened(server) as tools:
            return set(tools)

    assert run_async(names, McpServer("tests", address, include=["add", "fail"], exclude=["fail"])) == {"add"}
    with pytest.raises(ConfigurationError, match=r"include or effects names 'ad', .* it has add, book"):
        run_async(names, McpServer("tests", address, include=["ad"]))


def test_a_call_cut_off_by_the_death_of_the_server_is_not_repeated_unless_it_may_be(
    run_async: RunAsync, tmp_path: Path
) -> None:
    """A call cut off by the death of the server is not repeated unless it may be."""

    async def main() -> None:
        async with opened(McpServer("tests", COMMAND, trusted=True)) as tools:
            lost = await call_tool(tools["die"], {"code": 1})
            assert lost.status == "interrupted"
            assert "may have had its effect" in lost.text
            assert (await call_tool(tools["add"], {"a": 1})).content == "2", "connected again"
            again = await call_tool(tools["die_once"], {"marker": str(tmp_path / "marker")})
            assert again.content == "alive", "a pure call is made again"

    run_async(main)
    assert (tmp_path / "marker").exists()


def test_a_server_that_is_away_for_a_while_can_be_called_again(run_async: RunAsync, tmp_path: Path) -> None:
    """The model is told so, and not to go on without it."""
    program = tmp_path / "server.py"

    async def main() -> None:
        program.symlink_to(SERVER)
        async with opened(McpServer("tests", [sys.executable, str(program)])) as tools:
            program.unlink()
            assert (await call_tool(tools["die"], {"code": 3})).status == "interrupted"
            away = await call_tool(tools["add"], {"a": 2})
            told = "server tests cannot be reached now; the next call tries again: MCPError: Connection closed; "
            assert away.text.startswith(told)
            assert away.text.endswith("server.py': [Errno 2] No such file or directory")
            program.symlink_to(SERVER)
            assert (await call_tool(tools["add"], {"a": 2})).content == "3"

    run_async(main)


def test_a_cancelled_call_is_cancelled_at_the_server_and_tells_how_far_it_was(
    run_async: RunAsync, address: str, tmp_path: Path
) -> None:
    """A cancelled call is cancelled at the server and tells how far it was."""
    told: list[str] = []
    marker = tmp_path / "marker"

    async def main() -> None:
        async with opened(McpServer("tests", address)) as tools:
            with anyio.CancelScope() as scope:

                def tell(text: str) -> None:
                    told.append(text)
                    scope.cancel()

                await call_tool(tools["slow"], {"marker": str(marker)}, context=ToolContext(progress=tell))
            while not marker.exists():  # the server hears of it in its own time
                await anyio.lowlevel.checkpoint()

    run_async(main)
    assert told == ["half done"]


ODD = """
import json, sys
sys.stderr.write("x" * 300_000)
sys.stderr.flush()
slow = {"type": "object", "properties": {"a": {"pattern": "^(a+)+$"}}}
tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("", "go", "g.o", "g_o")]
tools.append({"name": "checked", "inputSchema": {"type": "object"}, "outputSchema": slow})
calls = 0
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    answer = {"error": {"code": -32601, "message": "no"}}
    if asked["method"] == "initialize":
        info = {"name": "odd", "version": "1"}
        version = asked["params"]["protocolVersion"]
        answer = {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}}
    if asked["method"] == "tools/list":
        answer = {"result": {"tools": tools}}
    if asked["method"] == "tools/call":
        token = asked["params"]["_meta"]["progressToken"]
        told = {"progressToken": token, "progress": 1, "message": "far " * 100_000}
        print(json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": told}), flush=True)
        answer = {"result": {"content": [{"type": "text", "text": "gone"}]}}
        calls += 1
        if asked["params"]["name"] == "checked":
            answer["result"]["structuredContent"] = {"a": "a" * 60 + "!"}
        if asked["params"]["name"] == "g.o":
            answer = {"error": {"code": -32000, "message": f"out of paper in call {calls}"}}
    whole = json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer})
    line = asked.get("params", {}).get("arguments", {}).get("line", "WHOLE").replace("ID", str(asked["id"]))
    print(line.replace("WHOLE", whole).replace("HALF", whole[:-9]), flush=True)
"""


def test_an_odd_server_fills_nothing_and_has_the_tools_that_can_be_called(run_async: RunAsync) -> None:
    """Without a name none can, and no two have the same; an endless line, and what it says of its progress, is cut."""
    said: list[str] = []

    async def main() -> None:
        async with opened(McpServer("odd", [sys.executable, "-c", ODD])) as tools:
            assert {*tools} == {"go", "g_o", "g_o_2", "checked"}
            context = ToolContext(progress=said.append)
            assert (await call_tool(tools["go"], context=context)).content == "gone"
        assert {len(each) for each in said} <= {500}

    run_async(main)


def test_an_answer_is_read_whatever_its_server_prints_beside_it(run_async: RunAsync) -> None:
    """What it prints may end in no newline, or look like an answer. Of half an answer the call is told at once."""

    async def main() -> None:
        async with opened(McpServer("odd", [sys.executable, "-c", ODD], deadline=None)) as tools:
            for line in ("at work… WHOLE", "{1} WHOLE {", 'WHOLE{"level": "info", "id": ID}', "\0WHOLEWHOLE", *LOGGED):
                with anyio.fail_after(PATIENCE):
                    assert (await call_tool(tools["go"], {"line": line})).content == "gone", line
            with anyio.fail_after(PATIENCE):
                halved = await call_tool(tools["go"], {"line": "at work… HALF"})
            assert (halved.status, "cannot be read" in halved.text) == ("interrupted", True)

    run_async(main)


LOGGED = (
    'received {"jsonrpc": "2.0", "id": ID, "method": "tools/call", "params": {"name": "go"}}\nWHOLE',
    '{"level": "info", "id": ID}\nWHOLE',
    '{"id": 1, "method": [\nWHOLE',
    'half": [{"jsonrpc": "2.0", "id": ID, "result": {"content": []}}]}}\nWHOLE',
    '"jsonrpc": "2.0", "id": ID, \nWHOLE',
    '{"jsonrpc": "2.0", "id": true}\n{"jsonrpc": "2.0", "id": 1' + "0" * 5_000 + "\nWHOLE",
)


def test_an_answer_is_not_checked_by_its_servers_schema(run_async: RunAsync) -> None:
    """A pattern in it, which would take thousands of years here, could stop everything; and the answer is lost."""

    async def main() -> None:
        async with opened(McpServer("odd", [sys.executable, "-c", ODD])) as tools:
            assert (await call_tool(tools["checked"])).content == "gone"

    run_async(main)


SLOPPY = """
import json, sys
plain, text = {"type": "object"}, {"type": "text", "text": "done"}
deep = {}
for _ in range(300):  # the SDK reads what is nested so deep, and cannot write it
    deep = {"a": deep}
tools = [
    {"name": "deep", "inputSchema": plain}, {"name": "deeper", "inputSchema": {"type": "object", "properties": deep}},
    {"name": "empty", "inputSchema": {}}, {"name": "none", "inputSchema": None, "annotations": None}, {"name": "new"},
    {"name": "words", "inputSchema": {"type": "string"}}, {"name": 5, "inputSchema": plain}, "no tool", {},
    {"name": "null", "inputSchema": {"type": "object", "properties": {"a": None}}},
    {"name": "about", "inputSchema": plain, "description": 5},
    {"name": "old", "inputSchema": {"type": "object", "properties": {"a": {"items": [{}]}}}}, {"name": "list"},
    {"name": "rows", "inputSchema": plain, "outputSchema": {"type": "array"}, "icons": [{}], "execution": "maybe"},
]
answers = {
    "empty": {"content": [{"type": "hologram", "n": 1}, text, {"type": "text"}]},
    "none": {"content": None, "structuredContent": {"n": 1}, "isError": None},
    "new": {"content": "done"},
    "list": {"content": [], "structuredContent": [1, 2]},
    "rows": "done",
    "deep": {"content": [text], "structuredContent": deep},
}
if sys.argv[1:] == ["noisy"]:
    print("hello")
    print(json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progress": "far"}}))
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    answer = {"error": {"code": -32601, "message": "no"}}
    if asked["method"] == "initialize":
        info = {"name": "sloppy", "version": "1"}
        version = asked["params"]["protocolVersion"]
        answer = {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}}
    if asked["method"] == "tools/list":
        answer = {"result": {"tools": tools, "nextCursor": None}}
    if asked["method"] == "tools/call":
        answer = {"result": answers[asked["params"]["name"]]}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""


def test_a_sloppy_server_loses_only_the_tools_that_cannot_be_read(
    run_async: RunAsync, caplog: pytest.LogCaptureFixture
) -> None:
    """The SDK refuses the whole list for one of them; a schema that says nothing is one without arguments."""

    async def main() -> None:
        async with opened(McpServer("sloppy", [sys.executable, "-c", SLOPPY])) as tools:
            assert {*tools} == {"deep", "empty", "none", "new", "rows", "list"}
            assert tools["empty"].input_schema == {"type": "object", "properties": {}, "required": []}

    run_async(main)
    assert caplog.text.count("mcp.tool.dropped") == 8
    assert "tool=words error=\"inputSchema.type: Input should be 'object'\"" in caplog.text


def test_of_a_sloppy_answer_all_is_shown_that_can_be_read(run_async: RunAsync) -> None:
    """If nothing can be, the call may have had its effect: a model that is told of an error makes it again."""

    async def main() -> None:
        async with opened(McpServer("sloppy", [sys.executable, "-c", SLOPPY])) as tools:
            shown = await call_tool(tools["empty"])
            assert (shown.content, shown.status) == ('{"n":1,"type":"hologram"}\ndone\n{"type":"text"}', "ok")
            assert (await call_tool(tools["none"])).content == '{"n":1}'
            assert (await call_tool(tools["list"])).content == '{"result":[1,2]}'
            for name, error in (("new", "ValidationError"), ("rows", "ValidationError"), ("deep", "ValueError")):
                lost = await call_tool(tools[name])
                assert lost.status == "interrupted"
                assert lost.text.startswith(f"Server sloppy gave an answer that cannot be read: {error}: ")

    run_async(main)


def test_an_error_with_the_code_of_a_lost_connection_is_only_an_error(run_async: RunAsync) -> None:
    """Many servers use -32000 for errors of their own: the model is told, and the process lives on."""

    async def main() -> None:
        async with opened(McpServer("odd", [sys.executable, "-c", ODD])) as tools:
            for call in (1, 2):
                output = await call_tool(tools["g_o_2"])
                assert (output.status, output.text) == ("error", f"server odd: out of paper in call {call}")

    run_async(main)


OLD = """
import json, os, sys
first = True
for line in sys.stdin:
    asked = json.loads(line)
    if first and asked["method"] != "initialize":
        sys.exit("expected initialize")
    first = False
    answer = {}
    if asked["method"] == "initialize":
        client = asked["params"]["clientInfo"]["name"]
        can, info = {"tools": {}}, {"name": "old", "version": "1"}
        answer = {"protocolVersion": "2025-06-18", "capabilities": can, "serverInfo": info}
    if asked["method"] == "tools/list":
        answer = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("pid", "client")]}
    if asked["method"] == "tools/call":
        told = str(os.getpid()) if asked["params"]["name"] == "pid" else client
        answer = {"content": [{"type": "text", "text": told}]}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer}), flush=True)
"""


def test_a_server_that_ends_at_an_unknown_question_is_asked_by_the_older_protocol(
    run_async: RunAsync, caplog: pytest.LogCaptureFixture
) -> None:
    """If it ends while it is not called, nothing was lost: the next call starts it again."""

    async def main() -> None:
        server = McpServer("old", [sys.executable, "-c", OLD])
        async with opened(server) as tools:
            assert (await call_tool(tools["client"])).text == "repertory"
            pid = (await call_tool(tools["pid"])).text
            os.kill(int(pid), signal.SIGKILL)
            while "mcp.connection.lost" not in caplog.text:
                await anyio.lowlevel.checkpoint()
            again = await call_tool(tools["pid"])
            assert (again.status, again.text != pid) == ("ok", True)

    run_async(main)


LIBERAL = """
import json, sys
string = {"type": "string"}
texts = [{"properties": {"text": string}}, {"properties": {"url": string, "text": {"const": 1}}}]
schemas = {
    "attach": {"type": "object", "anyOf": [*texts, {"$ref": "#/$defs/file"}, True], "$defs": {"file": texts[0]}},
    "list": {"type": "object", "properties": {"filter[id]": {}, "filter id": {}, "": {}}, "required": ["filter[id]"]},
}
for line in sys.stdin:
    asked = json.loads(line)
    answer = {"error": {"code": -32601, "message": "no"}}
    if asked["method"] == "initialize":
        info = {"name": "liberal", "version": "1"}
        version = asked["params"]["protocolVersion"]
        answer = {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}}
    if asked["method"] == "tools/list":
        answer = {"result": {"tools": [{"name": name, "inputSchema": schema} for name, schema in schemas.items()]}}
    if asked["method"] == "tools/call":
        answer = {"result": {"content": [], "structuredContent": asked["params"]["arguments"]}}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""


def test_schemas_that_the_messages_api_refuses_are_put_in_another_way(run_async: RunAsync) -> None:
    """It would refuse every request because of one of them: alternatives on top, and names with brackets."""
    seen: list[ModelRequest] = []

    def answer(request: ModelRequest) -> ModelResponse | str:
        seen.append(request)
        if len(seen) == 1:
            return call("list", filter_id_=1, filter_id=2, _=3)
        return "".join(
            text_of(block.content) for block in request.messages[-1].content if isinstance(block, ToolResult)
        )

    async def main() -> str:
        async with open_messages_server(answer) as server:
            model = AnthropicModel("claude-haiku-4-5", base_url=server.url, api_key="none")
            agent = rp.Agent("clerk", tools=[McpServer("liberal", [sys.executable, "-c", LIBERAL])])
            async with aclosing(model), rp.open_supervisor(model=model) as supervisor:
                return await (await supervisor.spawn(agent, "go")).wait_result()

    assert json.loads(run_async(main)) == {"filter[id]": 1, "filter id": 2, "": 3}
    attach, listing = seen[0].tools
    assert attach.input_schema["properties"] == {
        "text": {"anyOf": [{"type": "string"}, {"const": 1}]},
        "url": {"type": "string"},
    }
    assert attach.description.startswith(
        'attach\n\nThe arguments must also fit this JSON schema: {"anyOf":[{"properties":'
    )
    assert listing.input_schema["required"] == ["filter_id_"]


@pytest.mark.parametrize(
    ("servers", "denied", "arguments", "told"),
    [
        (1, "dotted.name", {}, "the supervisor forbids calls like this one"),
        (2, "dotted.name", {}, "the supervisor forbids calls like this one"),
        (2, "dotted_name", {}, "the supervisor forbids calls like this one"),
        (1, "add", {"filter[id]": 1, "filter_id_": 2}, "invalid arguments: one is there under two names"),
    ],
)
def test_a_rule_knows_a_tool_by_each_of_its_names_and_an_argument_has_one(
    run_async: RunAsync, address: str, servers: int, denied: str, arguments: dict[str, int], told: str
) -> None:
    """Whoever writes a rule reads the server's names, and whoever allows a call must see what it is made with."""

    async def main() -> str:
        tools = [McpServer(f"s{number}", address, include=["dotted.name"]) for number in range(servers)]
        tools.append(McpServer("liberal", [sys.executable, "-c", LIBERAL]))
        called = "list" if arguments else "dotted_name" if servers == 1 else "s1_dotted_name"
        model = ScriptedModel([call(called, **arguments), "done"])
        async with rp.open_supervisor(model=model, approvals=rp.Approvals(deny=[denied])) as supervisor:
            await (await supervisor.spawn(rp.Agent("clerk", tools=tools), "Go.")).wait_result()
        (result,) = model.requests[1].messages[-1].content
        assert isinstance(result, ToolResult)
        assert result.is_error
        return text_of(result.content)

    assert told in run_async(main)


LOUD = """
import json, sys
plain = {"type": "object"}
tools = [{"name": f"t{n}", "description": "y" * (1 if n else 1_000_000), "inputSchema": plain} for n in range(3_000)]
def say(**message):
    sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + bytes([10]))
    sys.stdout.buffer.flush()
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    answer = {"error": {"code": -32601, "message": "no"}}
    if asked["method"] == "initialize":
        can, info = {"tools": {"listChanged": True}}, {"name": "loud", "version": "1"}
        version = asked["params"]["protocolVersion"]
        answer = {"result": {"protocolVersion": version, "capabilities": can, "serverInfo": info}}
    if asked["method"] == "tools/list":
        answer = {"result": {"tools": tools}}
    if asked["method"] == "tools/call":
        sys.stdout.buffer.write(bytes([255, 254, 10]) + b"no JSON" + bytes([10]))
        text = "heard" if asked["params"]["name"] == "t1" else "x" * 33_000_000
        answer = {"result": {"content": [{"type": "text", "text": text}]}}
    say(id=asked["id"], **answer)
    if asked["method"] == "tools/list":
        say(method="notifications/tools/list_changed")
"""


def test_a_server_that_says_too_much_is_heard_in_part(run_async: RunAsync) -> None:
    """Too many tools, a description as long as a book, an answer as long as a hundred of them, a list that changes for
    ever, and bytes that are no text.
    """

    async def main() -> None:
        async with opened(McpServer("loud", [sys.executable, "-c", LOUD])) as tools:
            assert len(tools) == 1_000
            assert len(tools["t0"].description) == 10_000
            assert "cannot be read: it has more than 32,000,000 bytes" in (await call_tool(tools["t2"])).text
            for _ in range(3):
                assert (await call_tool(tools["t1"])).content == "heard"

    run_async(main)


def test_a_long_line_is_put_together_once_and_one_without_an_end_is_not_kept() -> None:
    """A reader that went over what it has at every piece would take an hour for the first."""
    decoder = codecs.getincrementaldecoder(whole_lines())("replace")
    assert [decoder.decode(b"some sixteen by." * 16) for _ in range(100_000)] == [""] * 100_000
    assert decoder.decode(b"\n\xffnext\nand") == "some sixteen by." * 1_600_000 + "\n\ufffdnext\n"
    tracemalloc.start()
    for _ in range(100):
        assert not decoder.decode(b"x" * 1_000_000)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 100_000
    assert decoder.decode(b"\nwhole\n").endswith("\nwhole\n")


class Endless(BaseHTTPRequestHandler):
    """A server whose answers to calls have more bytes than may be read; one tool's have many, but not so many."""

    names: Sequence[str] = ("plain", "packed", "event", "large_event")

    def do_POST(self) -> None:
        """Answer."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "id" not in asked:
            self.send_response(202)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        answer: dict[str, object] = {"error": {"code": -32601, "message": "no"}}
        called = ""
        if asked["method"] == "initialize":
            info = {"name": "endless", "version": "1"}
            version = asked["params"]["protocolVersion"]
            answer = {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}}
        if asked["method"] == "tools/list":
            answer = {"result": {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in self.names]}}
        if asked["method"] == "tools/call":
            called = asked["params"]["name"]
            if self.answer_call(called, asked["id"]):
                return
            answer = {"result": {"content": [{"type": "text", "text": "x" * 1_900_000}]}}
        body = json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if "event" in called else "application/json")
        if called == "packed":
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        with suppress(ConnectionError):
            if called == "packed":
                self.wfile.write(gzip.compress(b" " * 100_000_000) + body)
            elif called == "plain":
                for _ in range(100):
                    self.wfile.write(b" " * 1_000_000)
            elif called == "event":
                for _ in range(100):
                    self.wfile.write(b"data:" + b" " * 1_000_000)
            else:
                self.wfile.write(b"data: %b\n\n" % body if called else body)

    def answer_call(self, name: str, call_id: int) -> bool:
        """Do what a call takes its time for, and say whether that has answered it."""
        return False

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that the library gives it
        """Say nothing."""


def test_an_answer_over_http_without_an_end_is_not_read_to_its_end(run_async: RunAsync) -> None:
    """Plain, packed small, or as an event: each is an error of its call. What a model can be shown is read whole."""
    web = ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    threading.Thread(target=web.serve_forever, daemon=True).start()

    async def main() -> None:
        async with opened(McpServer("endless", f"http://127.0.0.1:{web.server_port}/mcp")) as tools:
            for name in ("plain", "packed"):
                assert "the answer has more than 32,000,000 bytes" in (await call_tool(tools[name])).text
            assert "gave no answer to this call: SSE stream failed" in (await call_tool(tools["event"])).text
            assert (await call_tool(tools["large_event"])).content == "x" * 1_900_000

    try:
        run_async(main)
    finally:
        web.shutdown()
        web.server_close()


class Moved(Endless):
    """A server at an address with a slash behind it, which many frameworks redirect to; and one that leads nowhere."""

    names = ("large_event",)

    def do_POST(self) -> None:
        """Redirect."""
        if self.path == "/there/":
            super().do_POST()
            return
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(307)
        self.send_header("Location", "/there/" if self.path == "/there" else "/nowhere")
        self.send_header("Content-Length", "0")
        self.end_headers()


def test_a_redirect_at_the_same_host_is_followed(run_async: RunAsync) -> None:
    """As far as it leads anywhere."""
    web = ThreadingHTTPServer(("127.0.0.1", 0), Moved)
    threading.Thread(target=web.serve_forever, daemon=True).start()

    async def main() -> None:
        async with opened(McpServer("moved", f"http://127.0.0.1:{web.server_port}/there")) as tools:
            assert (await call_tool(tools["large_event"])).text.startswith("xxx")
        with pytest.raises(ToolSetUnavailable, match=r"Redirect to .*/nowhere not followed"):
            async with opened(McpServer("moved", f"http://127.0.0.1:{web.server_port}/where")):
                pass

    run_async(main)
    web.shutdown()
    web.server_close()


def test_what_a_process_says_without_an_end_is_kept_in_pieces() -> None:
    """The newest ones, while it goes on."""
    kept: deque[str] = deque(maxlen=20)
    with keep_last_lines(kept) as (stream, _):
        stream.write("x" * 100_000)
        stream.flush()
        until = time.monotonic() + PATIENCE
        while len(kept) < 20:
            assert time.monotonic() < until
            time.sleep(0.01)
        assert {len(each) for each in kept} == {500}


def test_the_last_words_of_a_process_are_read_to_their_end() -> None:
    """However much of them is unread when the process has ended."""
    kept: deque[str] = deque(maxlen=20)
    with keep_last_lines(kept) as (stream, reader):
        stream.write("\n" * 60_000 + "and that is why")
        stream.close()
        reader.join(PATIENCE)
    assert kept[-1] == "and that is why"


class Slow(Endless):
    """A server whose answer to a call comes when it is told."""

    asked = threading.Event()
    told = threading.Event()

    def answer_call(self, name: str, call_id: int) -> bool:
        """Wait."""
        self.asked.set()
        self.told.wait(PATIENCE)
        return False


async def test_a_call_over_http_takes_as_long_as_its_deadline_allows(mock_clock: trio.testing.MockClock) -> None:
    """Here there is none, and the call takes an hour."""
    web = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    results: list[ToolOutput] = []
    try:
        server = McpServer("slow", f"http://127.0.0.1:{web.server_port}/mcp", deadline=None)
        async with opened(server) as tools, anyio.create_task_group() as tasks:

            async def ask() -> None:
                results.append(await call_tool(tools["large_event"]))

            tasks.start_soon(ask)
            assert await anyio.to_thread.run_sync(Slow.asked.wait, PATIENCE)
            mock_clock.jump(3_600)
            await trio.testing.wait_all_tasks_blocked()
            Slow.told.set()
    finally:
        web.shutdown()
        web.server_close()
    assert [result.status for result in results] == ["ok"]


class Forgetful(Endless):
    """A server that knows one session at a time, and has no stream for notifications."""

    session = "1"
    status = 404
    ended: ClassVar[list[str]] = []

    def do_DELETE(self) -> None:
        """End a session."""
        self.ended.append(self.headers["Mcp-Session-Id"])
        self.say(200, {})

    def do_GET(self) -> None:
        """Answer like a server that has only one method at this address."""
        self.send_error(404)

    def do_POST(self) -> None:
        """Answer, if it is a request of the session or the beginning of one."""
        if self.headers.get("Mcp-Session-Id", self.session) == self.session:
            super().do_POST()
            return
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.status == 404:
            self.send_error(404)
        else:
            error = {"code": -32000, "message": "Bad Request: No valid session ID provided"}
            self.say(self.status, {"jsonrpc": "2.0", "id": asked.get("id"), "error": error})

    def say(self, status: int, body: object) -> None:
        """Answer with JSON."""
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def end_headers(self) -> None:
        """Name the session."""
        self.send_header("Mcp-Session-Id", self.session)
        super().end_headers()


class Web(ThreadingHTTPServer):
    """A server that many connect to at once."""

    request_queue_size = 200


@contextmanager
def served(handler: type[Endless]) -> Iterator[str]:
    """The address of a server."""
    web = Web(("127.0.0.1", 0), handler)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{web.server_port}/mcp"
    finally:
        web.shutdown()
        web.server_close()


@pytest.mark.parametrize("status", [404, 400])
def test_a_server_that_was_started_again_gets_another_session(run_async: RunAsync, status: int) -> None:
    """It does not know the old one, and refuses the call that notices it: so that is made again, unsafe or not.

    It is told of the end of the last one alone: a server that has lost the others may never answer.
    """

    async def main(address: str) -> None:
        async with opened(McpServer("forgetful", address)) as tools:
            assert (await call_tool(tools["large_event"])).status == "ok"
            Forgetful.session += "1"
            assert (await call_tool(tools["large_event"])).status == "ok"

    Forgetful.status = status
    Forgetful.ended.clear()
    with served(Forgetful) as address:
        run_async(main, address)
    assert Forgetful.ended == [Forgetful.session]


class Troubled(Forgetful):
    """A server whose calls have trouble."""

    arrived = threading.Barrier(105)
    names = ("plain", "wait", "together", "refuse", "busy", "gone", "cut", "taken", "page", "full", "closed", "crowded")
    told = threading.Event()
    crowd: ClassVar[list[int]] = []

    def answer_call(self, name: str, call_id: int) -> bool:
        """Answer in another way."""
        match name:
            case "wait" | "together":
                if name == "wait":
                    self.told.wait(PATIENCE)
                else:
                    self.arrived.wait(PATIENCE)
                self.say(200, {"jsonrpc": "2.0", "id": call_id, "result": {"content": []}})
            case "refuse":
                self.say(200, {"jsonrpc": "2.0", "id": call_id, "error": {"code": -32603, "message": "no paper"}})
            case "busy" | "plain":
                self.send_error(504 if name == "busy" else 401)
            case "full" | "closed":
                self.send_response(429 if name == "full" else 503)
                self.send_header("Retry-After", "3600")
                self.end_headers()
            case "crowded" if len(self.crowd) < 3:
                self.crowd.append(call_id)
                self.send_response(429)
                self.send_header("Retry-After-Ms", "1")
                self.end_headers()
            case "crowded":
                self.say(200, {"jsonrpc": "2.0", "id": call_id, "result": {"content": []}})
            case "taken" | "page":
                self.send_response(202 if name == "taken" else 200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
            case "cut":
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", "1000")
                self.end_headers()
        return True


def test_what_came_of_a_call_over_http_is_told_and_is_no_matter_of_the_others(run_async: RunAsync) -> None:
    """A refusal is an error with its status; if the answer was lost, it may have had its effect.

    Whoever is only too busy is asked again after the pause that it wants, unless that is long.
    """
    others: list[ToolOutput] = []

    async def main(address: str) -> None:
        async with opened(McpServer("troubled", address)) as tools, anyio.create_task_group() as tasks:

            async def call_another() -> None:
                others.append(await call_tool(tools["wait"]))

            tasks.start_soon(call_another)
            for name, status, said in (
                ("refuse", "error", "server troubled: no paper"),
                ("plain", "error", "server troubled: HTTP 401 Unauthorized"),
                ("crowded", "ok", "(no output)"),
                ("full", "error", "server troubled: HTTP 429 Too Many Requests, again in 3,600 seconds"),
                ("closed", "error", "server troubled: HTTP 503 Service Unavailable, again in 3,600 seconds"),
                ("busy", "interrupted", "Server troubled gave no answer to this call: HTTP 504 Gateway Timeout. The c"),
                (
                    "gone",
                    "interrupted",
                    "Server disconnected without sending a response. The call may have had its eff",
                ),
                ("taken", "interrupted", "HTTP 202 Accepted with text/html. The call may have had its effect"),
                ("page", "interrupted", "HTTP 200 OK with text/html. The call may have had its effect"),
                ("cut", "interrupted", "peer closed connection without sending complete message body"),
            ):
                output = await call_tool(tools[name])
                assert (output.status, said in output.text) == (status, True), output
            Troubled.told.set()

    Troubled.told.clear()
    Troubled.crowd.clear()
    with served(Troubled) as address:
        run_async(main, address)
    assert [other.status for other in others] == ["ok"]


class Guarded(Troubled):
    """A server that wants a token, says where there is one, and has an open event stream."""

    arrived = threading.Barrier(3)
    tokens: ClassVar[list[str]] = []
    refusing = False

    def do_GET(self) -> None:
        """Say where there are tokens; or open the stream, and leave it open until all calls have been made."""
        here = f"http://{self.headers['Host']}"
        if self.path == "/.well-known/oauth-protected-resource/mcp":
            self.say(200, {"resource": f"{here}/mcp", "authorization_servers": [here]})
        elif self.path == "/.well-known/oauth-authorization-server":
            authorize, token = f"{here}/authorize", f"{here}/token"
            self.say(200, {"issuer": here, "authorization_endpoint": authorize, "token_endpoint": token})
        elif self._is_authorized():
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.told.wait(PATIENCE)

    def do_POST(self) -> None:
        """Issue a token, or answer whoever has the newest one."""
        if self.path != "/token":
            if self._is_authorized():
                super().do_POST()
        elif self.refusing:
            self.send_error(400)
        else:
            self.tokens.append(f"geheim-{len(self.tokens)}")
            self.say(200, {"access_token": self.tokens[-1], "token_type": "Bearer", "expires_in": 3600})

    def _is_authorized(self) -> bool:
        if self.tokens and self.headers.get("Authorization") == f"Bearer {self.tokens[-1]}":
            return True
        self.send_error(401)
        return False


class TokenStorage:
    """Keeps tokens as long as the process runs."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        """The last token."""
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Keep a token."""
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """The last registration."""
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep a registration."""
        self.client = client_info


def test_a_server_that_wants_oauth_is_signed_in_to(run_async: RunAsync) -> None:
    """Once for all calls, which wait neither for each other nor for the open stream, and again if a token has ended."""

    async def main(address: str) -> None:
        auth = ClientCredentialsOAuthProvider(
            address, TokenStorage(), client_id="us", client_secret="s", issuer=address.removesuffix("/mcp")
        )
        async with opened(McpServer("guarded", address, auth=auth)) as tools:

            async def call_one() -> None:
                assert (await call_tool(tools["together"])).status == "ok"

            for tokens in (1, 3):
                async with anyio.create_task_group() as tasks:
                    for _ in range(Guarded.arrived.parties):
                        tasks.start_soon(call_one)
                assert len(Guarded.tokens) == tokens
                Guarded.tokens.append("of somebody else")
            Guarded.refusing = True
            output = await call_tool(tools["together"])
            assert (output.status, "server guarded: OAuthTokenError: Token exchange fail" in output.text) == (
                "error",
                True,
            ), output
            Guarded.told.set()

    Guarded.tokens.clear()
    Guarded.told.clear()
    Guarded.refusing = False
    with served(Guarded) as address:
        run_async(main, address)


class Bottomless(Guarded):
    """A server that wants a token, and says without an end where there is one."""

    def do_GET(self) -> None:
        """Begin to say where."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        with suppress(ConnectionError):
            for _ in range(100):
                self.wfile.write(b" " * 1_000_000)


def test_an_answer_without_an_end_is_not_read_to_its_end_while_signing_in(run_async: RunAsync) -> None:
    """The server that is asked for a token, and for where there is one, is of the choice of the one that wants it."""

    async def main(address: str) -> None:
        issuer = address.removesuffix("/mcp")
        auth = ClientCredentialsOAuthProvider(address, TokenStorage(), client_id="us", client_secret="s", issuer=issuer)
        with pytest.raises(ToolSetUnavailable, match="the answer has more than 32,000,000 bytes"):
            async with opened(McpServer("bottomless", address, auth=auth)):
                pass

    Guarded.tokens.clear()
    with served(Bottomless) as address:
        run_async(main, address)


def test_as_many_calls_over_http_are_open_as_are_made(run_async: RunAsync) -> None:
    """All runs share one client; with a bound to its connections, one call too many waited for nothing."""

    async def main(address: str) -> None:
        async with opened(McpServer("troubled", address)) as tools, anyio.create_task_group() as tasks:

            async def call_one() -> None:
                assert (await call_tool(tools["together"])).status == "ok"

            for _ in range(Troubled.arrived.parties):
                tasks.start_soon(call_one)

    with served(Troubled) as address:
        run_async(main, address)


def test_a_list_that_changed_is_there_for_the_next_run(run_async: RunAsync) -> None:
    """A list that changed is there for the next run."""

    async def main() -> None:
        async with McpServer("tests", COMMAND).open() as tools:
            before = {tool.name: tool for tool in tools}
            assert "grown" not in before
            await call_tool(before["grow"])
            while not _named(tools, "grown"):
                await anyio.lowlevel.checkpoint()
            assert (await call_tool(_named(tools, "grown")[0])).content == "here"

    run_async(main)


NEW = """
import json, sys
tools, listens = ["before"], 0
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    answer = {"resultType": "complete", "ttlMs": 0, "cacheScope": "public"}
    if asked["method"] == "server/discover":
        answer |= {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {"listChanged": True}}}
    if asked["method"] == "tools/list":
        answer |= {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in tools]}
    if asked["method"] == "subscriptions/listen":
        told = {"_meta": {"io.modelcontextprotocol/subscriptionId": asked["id"]}}
        told["notifications"] = {"toolsListChanged": True}
        said = [("notifications/subscriptions/acknowledged", told)]
        if listens == 0:
            said.append(("notifications/cancelled", {"requestId": asked["id"]}))
        for method, params in said:
            print(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}), flush=True)
        tools += ["after"] * listens
        listens += 1
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer}), flush=True)
"""


def test_a_server_that_stops_telling_of_changes_is_asked_again(run_async: RunAsync) -> None:
    """It was restarted behind its address, say, or a proxy has closed what was quiet."""

    async def main() -> None:
        async with McpServer("new", [sys.executable, "-c", NEW]).open() as tools:
            with anyio.fail_after(PATIENCE):
                while not _named(tools, "after"):
                    await anyio.lowlevel.checkpoint()

    run_async(main)


def _named(tools: Sequence[Tool], name: str) -> list[Tool]:
    """named."""
    return [tool for tool in tools if tool.name == name]


@pytest.mark.parametrize(
    ("server", "says"),
    [
        (McpServer("gone", ["no-such-command-at-all"]), "no-such-command-at-all"),
        (McpServer("broken", [*COMMAND, "broken", "--token=geheim"]), "the disk is on fire"),
        (McpServer("silent", [*COMMAND, "silent"], connect_timeout=1.0), "no answer within 1 second"),
        (McpServer("nobody", "http://user:geheim@127.0.0.1:9/mcp?key=geheim"), "127.0.0.1:9"),
    ],
    ids=lambda value: value.name if isinstance(value, McpServer) else "",
)
def test_a_server_that_cannot_be_opened_says_why(run_async: RunAsync, server: McpServer, says: str) -> None:
    """A server that cannot be opened says why."""

    async def main() -> None:
        async with server.open():
            raise AssertionError("opened")

    with pytest.raises(ToolSetUnavailable) as caught:
        run_async(main)
    assert says in str(caught.value)
    assert server.name in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_what_is_wrong_with_tls_is_said(run_async: RunAsync) -> None:
    """On trio there was only the name of an error, as for a certificate that nobody trusts."""

    async def main() -> None:
        async with open_messages_server(lambda _: "no MCP") as server:
            with pytest.raises(ToolSetUnavailable, match=r"cannot be opened: .*\[SSL"):
                async with McpServer("plain", server.url.replace("http:", "https:")).open():
                    raise AssertionError("opened")

    run_async(main)


@pytest.mark.parametrize(
    ("target", "options", "says"),
    [
        ("npx server", {}, "as a list, such as"),
        ("http://host:port/mcp?key=hush", {}, "target must begin with http:// .*, got 'http://host:port/mcp'$"),
        ([], {}, "target must be a command"),
        (["a"], {"headers": {"A": "b"}}, "headers and auth are for an address"),
        ("http://a", {"auth": ("user", "hush")}, "auth must be an httpx2.Auth or None, got tuple$"),
        ("http://a", {"env": {"A": "b"}}, "env and cwd are for a command"),
        (
            "http://a",
            {"headers": {"Key": "hush\n"}},
            r"headers\['Key'\] must be printable ASCII without spaces or line e",
        ),
        ("http://a", {"headers": {"Key": "hüsh"}}, r"headers\['Key'\] must be printable ASCII"),
        ("http://a", {"headers": {"Key:": "hush"}}, r"headers\['Key:'\] must be printable ASCII"),
        ("http://a", {"headers": "Key: hush"}, "headers must be a mapping of texts, or None, got str$"),
        (["a"], {"env": {"KEY": "hush", "PORT": 80}}, r"env\['PORT'\] must be a text, got int$"),
        (["a"], {"effects": {"x": "safe"}}, "effects"),
        (["a"], {"lifetime": "process"}, "lifetime"),
    ],
)
def test_options_that_make_no_sense_are_refused(target: object, options: dict[str, object], says: str) -> None:
    """Options that make no sense are refused, and what is secret is not shown."""
    with pytest.raises(ConfigurationError, match=says) as caught:
        McpServer("x", target, **options)  # type: ignore[arg-type]
    assert "hush" not in str(caught.value)


async def test_a_connection_whose_time_is_over_is_none(autojump_clock: trio.testing.MockClock) -> None:
    """Also if that is noticed late, as by a thread that reads long schemas: the first call would fail."""

    @asynccontextmanager
    async def opener(_: object) -> AsyncGenerator[tuple[Any, anyio.Event]]:
        yield None, anyio.Event()

    async def read_tools(_: object) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(31)

    connection = Connection("slow", timeout=30, opener=opener, read_tools=read_tools)
    with pytest.raises(ToolSetUnavailable, match="no answer within 30 seconds"):
        async with connection.opened("slow"):
            pass


def test_what_a_server_says_beside_its_messages_is_not_written_to_standard_error(tmp_path: Path) -> None:
    """Many greet on standard output, or send what cannot be read; a traceback for each would stand in a command's."""
    (tmp_path / "server.py").write_text(SLOPPY)
    (tmp_path / "program.py").write_text(
        "import sys\n"
        "import repertory as rp\n"
        "from repertory.mcp import McpServer\n"
        "from repertory.testing import ScriptedModel, call\n"
        "noisy = McpServer('noisy', [sys.executable, 'server.py', 'noisy'], include=['none'])\n"
        "model = ScriptedModel([call('none'), 'done'])\n"
        "print(rp.run_sync(rp.Agent('a', tools=[noisy]), 'Go.', model=model))\n"
    )
    ran = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ran.stdout == "done\n"
    assert {line for line in ran.stderr.splitlines() if "mcp.tool.dropped" not in line} == set()
