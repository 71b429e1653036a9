"""Starting a run over HTTP so that it may be repeated, with a payload, and waiting for its result."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from service_parts import JSON, Client, Gate, open_client

import repertory as rp
from failing_journals import LateJournal
from patience import PATIENCE
from repertory.service import Control, Offers
from repertory.service.run_tools import run_tools
from repertory.testing import FunctionModel, ScriptedModel

AGENTS = ["service_parts:clerk", "service_parts:scribe", "test_service_starting:keeper"]


class Shelf(msgspec.Struct):
    """What a keeper keeps."""

    jars: list[str] = msgspec.field(default_factory=list[str])


keeper = rp.Agent("keeper", instructions="You keep {payload.jars}.", payload=Shelf)


async def start(client: Client, body: Any, status: int = 201, **headers: str) -> Any:
    """POST /runs, expecting a status; the answer's JSON."""
    answer = await client.http.post("/runs", content=msgspec.json.encode(body), headers={**JSON, **headers})
    assert answer.status_code == status, answer.text
    return answer.json()


def test_a_repeated_start_is_one_run(short: Path, run_async: Any) -> None:
    """By the key and by the id alike; whoever asks for something else under it is refused."""

    async def main() -> None:
        async with open_client(short, Gate(answer_after=1).model, agents=AGENTS) as client:
            body = {"agent": "clerk", "task": "Zähle 🐙."}
            key = {"idempotency-key": '"8e03978e-40d5"'}
            first = await start(client, body, **key)
            assert first == await start(client, body, **key)
            assert first == await start(client, {"task": "Zähle 🐙.", "agent": "clerk", "root": None}, **key)
            assert first != await start(client, body, **{"idempotency-key": "another"})
            for other in ({**body, "task": "Count."}, {**body, "agent": "scribe"}, {**body, "payload": {}}):
                refused = await start(client, other, 422, **key)
                assert first["id"] in refused["error"]
            named = {**body, "run_id": "mine"}
            assert (await start(client, named))["id"] == "mine"
            await client.get("/runs/mine/result?wait=60")
            assert (await start(client, named))["id"] == "mine"  # also when it has ended
            await start(client, {**named, "payload": 1}, 422)
            assert "got both" in (await start(client, named, 422, **key))["error"]
            assert len((await client.get("/runs"))["runs"]) == 3

    run_async(main)


def test_starts_that_race_are_one_run(short: Path, run_async: Any) -> None:
    """All get its id, or, where they ask for something else, a refusal."""

    async def main() -> None:
        gate = Gate()
        gate.hold = True
        answers: list[tuple[int, str]] = []

        async with open_client(short, gate.model, database=str(short / "a.db")) as client:

            async def ask(number: int) -> None:
                body = {"agent": "clerk", "task": "Count." if number % 2 else "Write."}
                answer = await client.http.post("/runs", json=body, headers={**JSON, "idempotency-key": "k"})
                answers.append((answer.status_code, answer.json().get("id", "")))

            async with anyio.create_task_group() as tasks:
                for number in range(12):
                    tasks.start_soon(ask, number)
            ids = {run_id for status, run_id in answers if status == 201}
            assert sorted(status for status, _ in answers) == [201] * 6 + [422] * 6
            assert [run["id"] for run in (await client.get("/runs"))["runs"]] == [*ids]
            await gate.held.wait()
            assert gate.calls == 1
            gate.go.set()

    run_async(main)


async def test_a_start_is_known_in_the_next_process(short: Path) -> None:
    """The key leads to the run on record, which goes on; what contradicts it is refused there, too."""
    database, body, key = str(short / "a.db"), {"agent": "clerk", "task": "Count."}, {"idempotency-key": "k"}
    async with open_client(short, Gate().model, database=database, drain_timeout=0.1) as client:
        run_id = (await start(client, body, **key))["id"]
    async with open_client(short, Gate(answer_after=0).model, database=database) as client:
        await start(client, {**body, "task": "Other."}, 422, **key)
        assert (await start(client, body, **key))["id"] == run_id
        assert (await client.get(f"/runs/{run_id}/result?wait=60"))["result"] == "It is done."


@pytest.mark.parametrize("key", ["", "two words", "x" * 201, "\xe9"])
async def test_a_key_that_is_none_is_refused(short: Path, key: str) -> None:
    """With what is wrong, and nothing has begun."""
    async with open_client(short, ScriptedModel([])) as client:
        headers = {**JSON, "idempotency-key": key.encode("latin-1")}
        answer = await client.http.post("/runs", json={"agent": "clerk", "task": "x"}, headers=headers)
        assert answer.status_code == 400, answer.text
        answer = await client.http.post(
            "/runs", json={"agent": "clerk", "task": "x", "run_id": f"{key} "}, headers=JSON
        )
        assert answer.status_code == 400, answer.text
        assert (await client.get("/runs"))["runs"] == []


async def test_a_run_begins_with_the_payload_it_is_given(short: Path) -> None:
    """One that does not fit what its agent takes is refused, and nothing begins."""
    async with open_client(short, FunctionModel(lambda request: "Kept."), agents=AGENTS) as client:
        body = {"agent": "keeper", "task": "Keep."}
        run_id = (await start(client, {**body, "payload": {"jars": ["honey", "🍯"]}}))["id"]
        await client.get(f"/runs/{run_id}/result?wait=60")
        assert (await client.get(f"/runs/{run_id}/payload"))["payload"] == {"jars": ["honey", "🍯"]}
        assert "jars" in (await start(client, {**body, "payload": {"jars": 7}}, 422))["error"]
        assert "takes no payload" in (await start(client, {"agent": "clerk", "task": "x", "payload": {}}, 422))["error"]
        assert len((await client.get("/runs"))["runs"]) == 1


def test_a_result_is_waited_for(short: Path, run_async: Any) -> None:
    """The answer comes with the end; 202 says that there is none yet, and 404 that there is no such run."""

    async def main() -> None:
        gate = Gate(answer_after=0)
        gate.hold = True
        async with open_client(short, gate.model) as client:
            run_id = await client.start()
            await gate.held.wait()
            early = await client.http.get(f"/runs/{run_id}/result")
            assert (early.status_code, early.json()["state"]) == (202, "running")
            assert early.headers["retry-after"] == "1"
            results: list[Any] = []

            async def wait() -> None:
                results.append(await client.get(f"/runs/{run_id}/result?wait=60"))

            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(wait)
                await client.get("/healthz")
                gate.go.set()
            assert {(each["state"], each["result"]) for each in results} == {("done", "It is done.")}
            assert "run-none" in (await client.get("/runs/run-none/result?wait=5", 404))["error"]
            assert "<= 60" in (await client.get(f"/runs/{run_id}/result?wait=61", 400))["error"]

    run_async(main)


async def test_a_result_is_given_once_its_run_may_be_removed() -> None:
    """Not as soon as it is on record: this process may not know yet that it is written."""
    journal = LateJournal()
    async with rp.open_supervisor(journal=journal, model=ScriptedModel(["Done."])) as supervisor:
        control = Control(supervisor, Offers(["service_parts:clerk"]))
        run_id = await control.start("clerk", "Go.")
        await journal.ended.wait()
        states: list[str] = []

        async def wait() -> None:
            states.append((await control.wait_ended(run_id, PATIENCE)).state)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            assert states == []
            journal.acknowledge.set()
        assert states == ["done"]
        assert control.find(run_id) is None


async def test_a_run_that_was_just_killed_is_resumed_once_its_end_is_acknowledged() -> None:
    """Not told to continue while it is ending, which would do nothing."""

    async def answer(request: object) -> str:
        if len(model.requests) == 1:
            asked.set()
            await anyio.sleep_forever()
        return "Done."

    journal, asked = LateJournal(), anyio.Event()
    model = FunctionModel(answer)
    async with rp.open_supervisor(journal=journal, model=model) as supervisor:
        control = Control(supervisor, Offers(["service_parts:clerk"]))
        run_id = await control.start("clerk", "Go.")
        await asked.wait()
        await control.tell(run_id, "kill")
        await journal.ended.wait()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(control.resume, run_id)
            await anyio.wait_all_tasks_blocked()
            assert len(model.requests) == 1
            journal.acknowledge.set()
        assert (await control.wait_ended(run_id, PATIENCE)).result == "Done."


def test_who_goes_away_is_not_waited_for(short: Path, run_async: Any) -> None:
    """A client that gives up before the run has ended leaves no connection behind."""

    async def main() -> None:
        gate, left = Gate(), anyio.Event()
        gate.hold = True

        def count(more: int) -> None:
            if more < 0 and waiting:
                left.set()

        waiting = False
        async with open_client(short, gate.model, counted=count, header_timeout=600) as client:
            run_id = await client.start()
            await gate.held.wait()
            connection = await client.connect()
            asked = f"GET /runs/{run_id}/result?wait=60 HTTP/1.1\r\nhost: localhost\r\n\r\n"
            await connection.send(asked.encode())
            await client.get("/healthz")
            waiting = True
            await connection.aclose()
            with anyio.fail_after(PATIENCE):
                await left.wait()
            gate.go.set()

    run_async(main)


async def test_who_waits_for_a_run_of_an_earlier_process_sees_it_go_on(short: Path) -> None:
    """Where nobody takes it up, that is said at once; the end of the service ends the wait."""
    database = str(short / "a.db")
    async with open_client(short, Gate().model, database=database, drain_timeout=0.1) as client:
        run_id = await client.start()
    async with open_client(short, Gate(answer_after=0).model, database=database) as client:
        with anyio.fail_after(PATIENCE):
            now = await client.http.get(f"/runs/{run_id}/result?wait=60")
            assert (now.status_code, now.json()["state"]) == (202, "interrupted")
            told = {tool.name: tool for tool in run_tools(client.control)}["wait_result"].function
            assert (await told(run_id=run_id, timeout=3600.0))["state"] == "interrupted"
        client.control.has_resumed = False  # as while a service goes on with what another one left
        results: list[Any] = []

        async def wait(path: str) -> None:
            results.append((await client.http.get(path)).json()["state"])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, f"/runs/{run_id}/result?wait=60")
            await client.get("/healthz")
            assert results == []
            await client.post(f"/runs/{run_id}/resume", {})
        assert results == ["done"]
    gate = Gate()
    gate.hold = True
    async with open_client(short, gate.model, drain_timeout=0.1) as client:
        run_id = await client.start()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(wait, f"/runs/{run_id}/result?wait=60"))
            await client.get("/healthz")
            client.control.feed.close()
        assert results == ["done", "running"]


async def test_who_waits_for_a_run_that_is_removed_is_told_so(short: Path) -> None:
    """As one who asks for it later."""
    database = str(short / "a.db")
    async with open_client(short, Gate().model, database=database, drain_timeout=0.1) as client:
        run_id = await client.start()
    async with open_client(short, Gate(answer_after=0).model, database=database) as client:
        client.control.has_resumed = False
        errors: list[str] = []

        async def wait() -> None:
            errors.append((await client.get(f"/runs/{run_id}/result?wait=60", 404))["error"])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await client.get("/healthz")
            await client.control.journal.remove_run(run_id, at=1.0)
            await client.start()  # whoever waits looks again
        assert run_id in errors[0]
