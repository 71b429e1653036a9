"""A team that was killed, and everything that reads what it left: every command, every route."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from service_parts import Client, open_client
from typer.testing import CliRunner

from repertory.cli.app import app, load
from repertory.cli.sections import COMMANDS
from repertory.record import FINAL_STATES, ModelCallRow, RunRow, RunStarted, ToolCallRow, open_journal
from repertory.service.app import OPERATIONS
from repertory.testing import ScriptedModel

TEAM = Path(__file__).with_name("killed_team.py")
WRITING = {"chat", "demo", "mcp", "run", "resume", "serve", "service", "stress", "torture"}
WRITING |= {"up", "down", "reload", "start", "attach", "send", "pause", "stop", "kill", "approve", "deny", "give"}
WRITING |= {"backup", "restore", "vacuum", "migrate"}
WRITING |= {"fork", "rewind", "rm"}
WRITING |= {"machines", "drain"}  # of PostgreSQL
NEVER_HAD = {
    "/payload": (404,),
    "/payload/history": (404,),
    "/memory/item": (400,),
}  # the team has no payload and no items
ASKING = {"--follow", "--llm", "--help"}  # waits for more, calls a model


class Left:
    """What a killed process left in its journal."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[RunRow] = []
        self.calls: dict[str, list[ModelCallRow]] = {}
        self.tools: dict[str, list[ToolCallRow]] = {}
        self.contents: list[str] = []
        anyio.run(self._read)

    async def _read(self) -> None:
        async with open_journal(self.path, readonly=True) as journal:
            self.rows = await journal.read_runs()
            for run_id in self.ids:
                self.calls[run_id] = await journal.read_model_calls(run_id)
                self.tools[run_id] = await journal.read_tool_calls(run_id)
                self.contents += [content.content_id for content in await journal.read_contents(run_id)]

    @property
    def ids(self) -> list[str]:
        """Every run."""
        return [row.started.run_id for row in self.rows]

    def iteration(self, run_id: str) -> int:
        """The iteration that a run is in, by its calls of a model."""
        return max((row.called.iteration for row in self.calls[run_id] if row.called.purpose == "agent"), default=0)

    def answered(self, run_id: str) -> int:
        """How many iterations of a run had an answer: a kill may fall between the two."""
        return sum(row.called.purpose == "agent" and row.replied is not None for row in self.calls[run_id])

    def replied_at(self, run_id: str) -> float:
        """When a model last answered a run or one below it."""
        tree = (each for each in self.ids if each == run_id or each.startswith(f"{run_id}."))
        replies = (call.replied for each in tree for call in self.calls[each])
        return max((reply.at for reply in replies if reply is not None), default=0.0)


def kill_one(path: Path, fires: int, after: float) -> bool:
    """Start the team, or let it go on, and kill it some seconds after it has fired so often; whether it had ended."""
    with subprocess.Popen(
        [sys.executable, str(TEAM), str(path), str(fires)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "OPEN\n"
        for _ in range(fires):
            if process.stdout.readline() != "FIRE\n":
                return True
        time.sleep(after)
        process.kill()
        return "DONE" in process.stdout.read()


def commands(left: Left) -> Iterator[tuple[str, ...]]:
    """Every reading command with each of its switches, about every run, iteration and content."""
    for name in COMMANDS:
        options = {option: parameter for parameter in load(name).params for option in parameter.opts}
        if name in WRITING or "--db" not in options:
            continue
        flags = [spelled for spelled, parameter in options.items() if spelled.startswith("--") and parameter.is_flag]
        about = [[run_id] for run_id in left.ids] if "run_id" in options else [[]]
        for words in about:
            yield name, *words
            if words in ([], left.ids[:1], left.ids[-1:]):  # the root, and one below it
                yield from ((name, *words, flag) for flag in flags if flag not in ASKING)
                yield from ((name, *words, flag, "--json") for flag in flags if flag not in {*ASKING, "--json"})
    for run_id in left.ids:
        yield from (("memory", "ls", run_id), ("memory", "ls", run_id, "--json"), ("content", "ls", run_id, "--json"))
    for run_id in left.ids[:2]:
        made = range(1, left.iteration(run_id) + 1)
        yield from (("inspect", run_id, "--iteration", str(number), "--json") for number in made)
    yield from (("content", "show", content) for content in left.contents[:3])


def command(*words: str, left: Left) -> Any:
    """What a command says: text, or the object of ``--json``; anything but success fails the test."""
    env = {"REPERTORY_MODEL": "offline", "XDG_DATA_HOME": str(left.path.parent / "data")}
    done = CliRunner().invoke(app, [*words, "--db", str(left.path)], env=env)
    nothing_yet = words[0] == "inspect" and not left.iteration(words[1])
    assert done.exit_code == (4 if nothing_yet else 0), (words, done.stderr, done.exception)
    assert "Traceback" not in done.stderr
    assert nothing_yet or done.stdout.strip(), words
    if "--json" not in words or nothing_yet:
        return done.stdout
    if words[0] == "logs":  # an object a line
        return [json.loads(line) for line in done.stdout.splitlines()]
    return json.loads(done.stdout)


def look_with_every_command(left: Left) -> None:
    """All of them answer, and what they say of iterations and calls is what the journal holds."""
    for words in commands(left):
        command(*words, left=left)
    listed = {run["id"]: run for run in command("ps", "--all", "--json", left=left)["runs"]}
    assert list(listed) == left.ids
    for row in left.rows:
        run_id = row.started.run_id
        assert row.iteration == left.iteration(run_id)
        assert listed[run_id]["state"] == (row.state if row.state in FINAL_STATES else "interrupted")
        assert listed[run_id]["figures"]["iterations"] == left.answered(run_id)
        (figures,) = command("stats", run_id, "--json", left=left)["runs"]
        ended = {call.intended.call_id for call in left.tools[run_id] if call.finished is not None}
        assert figures["statistics"]["tool_calls"] >= len(ended), run_id


async def look_with_every_route(left: Left, folder: Path) -> None:
    """All of them answer, of every run, and agree with the journal."""
    copy = folder / "served.db"  # the service owns its database, and this one is looked at again later
    for suffix in ("", "-wal"):
        if Path(f"{left.path}{suffix}").exists():
            shutil.copy(f"{left.path}{suffix}", f"{copy}{suffix}")
    paths = [each.path for each in OPERATIONS if each.method == "GET"]
    assert {"/runs", "/runs/{run_id}", "/runs/{run_id}/events", "/events", "/healthz"} <= set(paths)
    async with open_client(folder, ScriptedModel([]), database=str(copy)) as client:
        for path in paths:
            for run_id in left.ids if "{run_id}" in path else [""]:
                if "{content_id" not in path and "{call}" not in path:
                    await look_at(client, path.format(run_id=run_id))
        for run_id in (run_id for run_id, calls in left.calls.items() if calls):
            await look_at(client, f"/runs/{run_id}/requests/newest")
        for content in left.contents[:1]:
            await look_at(client, f"/runs/{left.ids[0]}/contents/{content}")
        listed = {run["id"]: run for run in (await client.get("/runs"))["runs"]}
        assert {run_id: run["iteration"] for run_id, run in listed.items()} == {
            run_id: left.iteration(run_id) for run_id in left.ids
        }
        overview = {run["id"]: run for run in (await client.get("/overview"))["runs"]}
        for row in left.rows:
            run_id = row.started.run_id
            detail = await client.get(f"/runs/{run_id}")
            assert detail["run"]["state"] == (row.state if row.state in FINAL_STATES else "interrupted")
            end = row.updated_at if row.state in FINAL_STATES else max(row.updated_at, left.replied_at(run_id))
            assert detail["run"]["updated_at"] == overview[run_id]["updated_at"] == end


async def look_at(client: Client, path: str) -> None:
    """One route: a stream shows every event that there is, anything else answers; what a run never had is said."""
    if not path.endswith("events"):
        answer = await client.http.get(path)
        expected = next((status for end, status in NEVER_HAD.items() if path.endswith(end)), (200, 202))
        assert answer.status_code in expected, (path, answer.text)
        assert answer.text.strip()
        return
    async with client.follow(path) as stream:
        assert stream.status == 200
        event = await stream.event()
        assert event["run_id"].startswith("run-killed")


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 12))])
def test_everything_that_reads_a_journal_reads_what_a_kill_left(seed: int, tmp_path: Path) -> None:
    """A real team, killed at random points, gone on with and killed again: all commands and all routes answer."""
    chance = random.Random(seed)
    path = tmp_path / "team.db"
    interrupted = 0
    for number in range(2):
        done = kill_one(path, chance.randint(1 - number, 9), chance.uniform(0, 0.02))
        left = Left(path)
        look_with_every_command(left)
        (tmp_path / str(number)).mkdir()
        anyio.run(look_with_every_route, left, tmp_path / str(number))
        interrupted += sum(call.finished is None for calls in left.tools.values() for call in calls)
        if done:
            break
    assert left.ids[0] == "run-killed"
    assert interrupted  # the first kill at least


def test_the_commands_are_found_by_their_options() -> None:
    """Negative control: what reads is listed, with its switches, and what writes or waits is not."""
    left = Left.__new__(Left)
    left.rows = [RunRow(started=RunStarted(run_id="run-1", agent="a", task="t", at=1.0), state="done", updated_at=1.0)]
    left.calls, left.tools, left.contents = {"run-1": []}, {}, ["c-1"]
    found = set(commands(left))
    assert {
        ("ps", "--all", "--json"),
        ("stats", "run-1", "--tree"),
        ("content", "show", "c-1"),
        ("memory", "ls", "run-1"),
    } <= found
    assert {words[0] for words in found} >= {"ps", "stats", "inspect", "ledger", "doctor"}
    assert not {words[0] for words in found} & WRITING
    assert not any(set(words) & ASKING for words in found)
