"""The service as an MCP server, asked by the SDK's own client over a real socket."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp.client.streamable_http import streamable_http_client
from service_parts import TOKEN, Client, Gate, open_client

import repertory as rp
from backends import RunAsync
from mcp import Client as McpClient
from patience import PATIENCE
from repertory.errors import ToolSetUnavailable
from repertory.mcp import McpServer
from repertory.service import Control
from repertory.service.offers import Offer
from repertory.service.routes import MAX_BODY
from repertory.service.run_tools import run_tools

CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


@asynccontextmanager
async def tools_of(client: Client, **options: Any) -> AsyncGenerator[McpClient]:
    """The SDK's client, at the service's port."""
    async with httpx2.AsyncClient(headers={"authorization": f"Bearer {TOKEN}"}, timeout=PATIENCE) as http:
        address = f"http://localhost:{client.address[1]}/mcp"
        async with McpClient(streamable_http_client(address, http_client=http), **options) as opened:
            yield opened


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_an_agent_answers_over_http_and_tells_what_it_does(run_async: RunAsync, tmp_path: Path, mode: Any) -> None:
    """By the newest protocol and by the one before it; the run is the service's own."""
    told: list[str] = []

    async def tell(progress: float, total: float | None, message: str | None) -> None:
        told.append(message or "")

    async def main() -> None:
        async with (
            open_client(tmp_path, Gate(answer_after=1).model, tcp=True) as client,
            tools_of(client, mode=mode) as mcp,
        ):
            names = {tool.name for tool in (await mcp.list_tools()).tools}
            assert {"clerk", "scribe", "start_run", "run_status", "wait_result"} <= names
            answer = await mcp.call_tool("clerk", {"task": "Count."}, progress_callback=tell)
            assert (answer.content[0].model_dump()["text"], answer.is_error) == ("It is done.", False)
            (run,) = (await client.get("/runs"))["runs"]
            assert (run["agent"], run["state"]) == ("clerk", "done")
            assert any("clerk calls look_up" in line for line in told), told

    run_async(main)


async def test_each_agent_is_a_tool_of_its_own_whatever_its_name() -> None:
    """A name that is taken gets ``ask_`` before it, until it is free."""
    names = ("list_runs", "ask_list_runs", "clerk")
    async with rp.open_supervisor() as supervisor:
        control = Control(supervisor)
        control.offers.replace({name: Offer(agent=rp.Agent(name), reference="") for name in names})
        found = [tool.name for tool in run_tools(control)]
    assert found[-3:] == ["ask_list_runs", "ask_ask_list_runs", "clerk"]
    assert len(set(found)) == len(found)


def test_a_run_goes_on_when_its_client_goes_away(run_async: RunAsync, tmp_path: Path) -> None:
    """And can be asked about by another one, here an ``McpServer`` of an agent."""
    gate = Gate(answer_after=1)
    gate.hold = True

    async def main() -> None:
        async with open_client(tmp_path, gate.model, tcp=True) as client:
            async with tools_of(client) as mcp, anyio.create_task_group() as tasks:
                tasks.start_soon(mcp.call_tool, "clerk", {"task": "Count."})
                await gate.held.wait()
                tasks.cancel_scope.cancel()
            gate.hold = False
            gate.go.set()
            (run,) = (await client.get("/runs"))["runs"]
            assert (await client.wait_for(run["id"], "done"))["result"] == "It is done."

    run_async(main)


def test_who_may_not_ask_gets_nothing(run_async: RunAsync, tmp_path: Path) -> None:
    """The token, the host and the origin are looked at before anything is read, as for every request."""

    async def main() -> None:
        async with open_client(tmp_path, Gate().model, tcp=True) as client:
            address = f"http://localhost:{client.address[1]}/mcp"
            with pytest.raises(ToolSetUnavailable, match="401"):
                async with McpServer("service", address).open():
                    raise AssertionError("opened")
            for headers, status in (
                ({"authorization": "Bearer wrong"}, 401),
                ({"host": "evil.example"}, 421),
                ({"origin": "http://evil.example"}, 403),
                ({"content-type": "text/plain"}, 415),
            ):
                answer = await client.http.post("/mcp", json=CALL, headers={**ACCEPT, **headers})
                assert answer.status_code == status, headers
            assert (await client.http.get("/mcp")).status_code == 405
            large = await client.http.post("/mcp", content=b" " * (MAX_BODY + 1), headers=ACCEPT)
            assert large.status_code == 413

    run_async(main)


def test_calls_that_last_leave_connections_for_everything_else(run_async: RunAsync, tmp_path: Path) -> None:
    """They count as event streams do, and so does waiting for a result."""

    async def main() -> None:
        async with open_client(tmp_path, Gate().model, tcp=True, max_followers=0) as client:
            answer = await client.http.post("/mcp", json=CALL, headers=ACCEPT)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            run_id = await client.start()
            await client.get(f"/runs/{run_id}/result?wait=60", 503)
            assert (await client.http.get(f"/runs/{run_id}/result")).status_code in (200, 202)

    run_async(main)


def test_it_is_there_on_the_unix_socket_too(run_async: RunAsync, short: Path) -> None:
    """Where the file decides who may ask."""

    async def main() -> None:
        async with open_client(short, Gate().model) as client:
            transport = httpx2.AsyncHTTPTransport(uds=str(client.address))
            async with (
                httpx2.AsyncClient(transport=transport) as http,
                McpClient(streamable_http_client("http://localhost/mcp", http_client=http)) as mcp,
            ):
                answer = await mcp.call_tool("list_agents", {})
                assert "clerk" in str(answer.content)

    run_async(main)
