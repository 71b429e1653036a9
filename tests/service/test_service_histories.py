"""Forks, further attempts and removals over HTTP and on the command line, with a service and without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from service_parts import Client, Gate, open_client
from typer.testing import CliRunner

import repertory as rp
from repertory.cli.app import app
from repertory.testing import FunctionModel, call


def answer(request: Any) -> Any:
    """Look three words up, then answer; whoever is asked again says so."""
    done = sum(message.role == "assistant" for message in request.messages)
    said = str(request.messages[-1].content)
    return "Again." if "Anew" in said else call("look_up", word="w" * done) if done < 3 else f"{done} words."


async def ended(client: Client, run_id: str) -> Any:
    """The result of a run, once it has ended."""
    return await client.get(f"/runs/{run_id}/result?wait=30")


def test_a_run_is_forked_rewound_and_removed(short: Path, run_async: Any) -> None:
    """Each is durable when the answer comes, and repeating a fork by its id is one fork."""

    async def main() -> None:
        async with open_client(short, FunctionModel(answer), database=str(short / "a.db")) as client:
            run_id = await client.start()
            assert (await ended(client, run_id))["result"] == "3 words."
            wanted = {"iteration": 2, "text": "Anew 🐙", "run_id": "forked"}
            for status in (201, 200):
                assert (await client.post(f"/runs/{run_id}/fork", wanted, status))["id"] == "forked"
            for another in ({**wanted, "iteration": 1}, {**wanted, "text": "Otherwise"}, {"run_id": "forked"}):
                assert "is no such fork" in (await client.post(f"/runs/{run_id}/fork", another, 422))["error"]
            assert (await ended(client, "forked"))["result"] == "Again."
            detail = await client.get("/runs/forked")
            assert (detail["run"]["origin"], detail["statistics"]["iterations"]) == (run_id, 1)
            rewound = (await client.post(f"/runs/{run_id}/rewind", {"iteration": 1}, 201))["id"]
            assert (await ended(client, rewound))["result"] == "3 words."
            assert len((await client.get("/runs"))["runs"]) == 3
            assert "no whole iteration" in (await client.post(f"/runs/{run_id}/fork", {"iteration": 9}, 409))["error"]
            await client.post(f"/runs/{run_id}/rewind", {}, 400)
            await client.post(f"/runs/{run_id}/fork", {"iteration": -1}, 400)
            await client.post(f"/runs/{run_id}/fork", {"run_id": run_id}, 422)
            assert (await client.http.delete(f"/runs/{run_id[:-1]}")).status_code == 404  # never by a part of it
            assert (await client.http.delete(f"/runs/{run_id}")).status_code == 204
            assert (await client.http.delete(f"/runs/{run_id}")).status_code == 404
            assert {run["id"] for run in (await client.get("/runs"))["runs"]} == {"forked", rewound}
            body = {"agent": "clerk", "task": "x", "run_id": run_id}
            assert "has been removed" in (await client.post("/runs", body, 422))["error"]

    run_async(main)


async def test_what_goes_on_is_not_removed_and_a_stopped_run_is_tried_again(short: Path) -> None:
    """It goes on where it was stopped."""
    gate = Gate(answer_after=1)
    gate.hold = True
    async with open_client(short, gate.model) as client:
        run_id = await client.start()
        await gate.held.wait()
        refused = await client.http.delete(f"/runs/{run_id}")
        assert (refused.status_code, "has not ended" in refused.text) == (409, True)
        await client.post(f"/runs/{run_id}/kill", {})
        assert (await ended(client, run_id))["state"] == "stopped"
        gate.hold = False
        gate.go.set()
        await client.post(f"/runs/{run_id}/resume", {})
        assert (await ended(client, run_id))["result"] == "It is done."


def command(*words: str, code: int = 0) -> str:
    """What a command writes."""
    done = CliRunner().invoke(app, [*words], env={"REPERTORY_MODEL": "offline"})
    assert done.exit_code == code, (words, done.stdout, done.stderr, done.exception)
    return done.stdout if code == 0 else done.stderr


def test_the_commands_work_on_the_file_where_there_is_no_service(tmp_path: Path) -> None:
    """A fork waits there for resume; what is removed is gone; a mistake is told in one line."""
    path = tmp_path / "a.db"

    async def begin() -> None:
        clerk = rp.load_agent("service_parts:clerk")
        async with rp.open_supervisor(path, model=FunctionModel(answer), durability="process") as supervisor:
            run = await supervisor.spawn(clerk, "Count.", run_id="one", agent_ref="service_parts:clerk")
            await run.wait_result()

    rp.run(begin)
    at = ("--db", str(path))
    forked = json.loads(command("fork", "one", "--iteration", "2", "--text", "Anew", "--json", *at))["id"]
    rewound = command("rewind", "one", "--iteration", "0", *at).strip()
    states = {run["id"]: run["state"] for run in json.loads(command("ps", "-a", "--json", *at))["runs"]}
    assert states == {"one": "done", forked: "interrupted", rewound: "interrupted"}
    assert "no whole iteration 7" in command("fork", "one", "--iteration", "7", *at, code=1)
    command("rm", json.loads(command("fork", "one", "--iteration", "2", "--json", *at))["id"], *at)
    assert "'on' is no whole id of a run; it fits one" in command("rm", "on", *at, code=4)
    command("rm", "one", *at)
    assert "one" not in command("ps", "-a", *at)

    async def go_on() -> None:
        async with rp.open_supervisor(path, model=FunctionModel(answer)) as supervisor:
            assert await (await supervisor.resume(forked)).wait_result() == "Again."
            assert await (await supervisor.resume(rewound)).wait_result() == "3 words."
            assert await supervisor.journal.check(deep=True) == []  # type: ignore[attr-defined]

    rp.run(go_on)


@pytest.mark.parametrize("words", [("fork", "x"), ("rewind", "x", "--iteration", "1"), ("rm", "x")])
def test_the_commands_say_that_there_is_nothing(words: tuple[str, ...], tmp_path: Path) -> None:
    """Where the database is not there."""
    assert "no database at" in command(*words, "--db", str(tmp_path / "none.db"), code=4)
