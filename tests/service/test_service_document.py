"""The OpenAPI document: it says what the service does, as schemathesis finds by asking a real one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from service_parts import TOKEN, open_client

import repertory as rp
from patience import PATIENCE
from repertory.service.app import OPERATIONS
from repertory.testing import FunctionModel

HERE = Path(__file__).parent
# With a payload, so that each run has all that can be asked for.
keeper = rp.Agent("keeper", instructions="You keep.", payload=dict[str, Any])


def schemathesis(folder: Path, url: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run it, all its checks on, as a program: its plugin for pytest is left off."""
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(HERE / "schemathesis.toml"), "run", url]
    command += ["--header", f"Authorization: Bearer {TOKEN}", "--checks", "all", "--no-color", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE, cwd=folder)


async def test_schemathesis_finds_nothing(short: Path) -> None:
    """Whatever it asks, the answer is one that the document names, and of its form."""
    model = FunctionModel(lambda request: "Kept.")
    agents = ["test_service_document:keeper"]
    async with open_client(short, model, agents=agents, database=str(short / "a.db"), tcp=True) as client:
        await client.post("/runs", {"agent": "keeper", "task": "Keep.", "run_id": "kept"}, 201)
        options = (
            "--exclude-path-regex",
            "/stream$",
            "--max-examples",
            "8",
            "--seed",
            "1",
            "--generation-database=none",
        )
        url = f"http://127.0.0.1:{client.address[1]}/openapi.json"
        done = await anyio.to_thread.run_sync(schemathesis, short, url, *options)
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.search(r"(\d+) generated, \1 passed", done.stdout), done.stdout
        assert client.reports == []


async def test_every_route_is_in_the_document(short: Path) -> None:
    """With what it is for, the agents that there are, and no folder where the service has none."""
    async with open_client(short, FunctionModel(lambda request: "x")) as client:
        told = await client.get("/openapi.json")
        assert told["openapi"] == "3.1.0"
        listed = {(method.upper(), path) for path, item in told["paths"].items() for method in item}
        assert listed == {(each.method, each.path.replace(":path", "")) for each in OPERATIONS}
        operations = [operation for item in told["paths"].values() for operation in item.values()]
        assert all(operation["summary"] for operation in operations)
        schemas = told["components"]["schemas"]
        assert schemas["NewRun"]["required"] == ["agent", "task"]
        assert schemas["RunList"]["required"] == ["runs", "seq", "more", "next"]  # an answer has all its fields
        fields = schemas["NewRun"]["properties"]
        assert fields["agent"]["enum"] == ["clerk", "scribe"]
        assert "root" not in fields
        assert fields["payload"]["description"].startswith("The first value of its payload")
    async with open_client(short, FunctionModel(lambda request: "x"), root=short, agents=()) as client:
        fields = (await client.get("/openapi.json"))["components"]["schemas"]["NewRun"]["properties"]
        assert fields["agent"]["enum"] == ["research"]
        assert "root" in fields
