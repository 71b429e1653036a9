"""Runs that wait, over HTTP: their places, what they wait for, and who is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from service_parts import JSON, Gate, open_client

from repertory.cli.output import BUSY, exit_code_of
from repertory.errors import QueueFull
from repertory.service.client import open_client as asking
from repertory.service.places import Place
from repertory.supervisor import Quota, Quotas


async def test_runs_wait_in_order_and_a_client_with_too_many_is_told_when_to_ask_again(short: Path) -> None:
    """201 for those that wait, with their places; 429 with Retry-After beyond the bound; a stopped one leaves."""
    gate = Gate(answer_after=0)
    gate.hold = True
    async with open_client(short, gate.model) as client:
        quotas = Quotas(clients={"web": Quota(queued=2)})
        client.control.supervisor.change_bounds(max_runs=1, quotas=quotas)
        first = await client.start()
        await gate.held.wait()

        async def ask(**fields: object) -> str:
            body = {"agent": "scribe", "task": "Write.", "client": "web", **fields}
            return str((await client.post("/runs", body, 201))["id"])

        second, third = await ask(), await ask(priority=3)
        queue = await client.get("/queue")
        assert [(each["run_id"], each["position"], each["priority"]) for each in queue] == [
            (third, 1, 3),
            (second, 2, 0),
        ]
        assert {each["reason"] for each in queue} == {"1 run under way, and 1 may be at once (max_runs)"}
        detail = await client.get(f"/runs/{second}")
        assert (detail["run"]["state"], detail["run"]["live"], detail["run"]["client"]) == ("queued", True, "web")
        assert detail["queue"]["position"] == 2
        body = b'{"agent": "scribe", "task": "Write.", "client": "web"}'
        refused = await client.http.post("/runs", content=body, headers=JSON)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "10")
        assert "client web has 2 runs waiting, as many as may (queued)" in refused.json()["error"]
        other = await ask(client="other")
        await client.post(f"/runs/{third}/stop", {})
        assert (await client.wait_for(third, "stopped"))["queue"] is None
        assert [each["run_id"] for each in await client.get("/queue")] == [second, other]
        gate.go.set()
        for run_id in (first, second, other):
            assert (await client.wait_for(run_id, "done"))["result"] == "It is done."
        assert await client.get("/queue") == []


async def test_whoever_resumes_a_run_while_the_queue_is_full_is_told_as_at_a_start(short: Path) -> None:
    """By 429 and Retry-After, which a client knows as ``QueueFull`` and a command ends with 75 for."""
    gate = Gate(answer_after=0)
    gate.hold = True
    async with open_client(short, gate.model) as client:
        ended = await client.start()
        await gate.held.wait()
        await client.post(f"/runs/{ended}/kill", {})
        await client.wait_for(ended, "stopped")
        client.control.supervisor.change_bounds(max_runs=1, quotas=Quotas(clients={"*": Quota(queued=0)}))
        await client.start()
        async with asking(Place(socket=client.address)) as commands:
            with pytest.raises(QueueFull, match="as many as may") as caught:
                await commands.steer(ended, "resume")
            with pytest.raises(QueueFull):
                await commands.start("scribe", "Write.")
        assert (caught.value.retry_after, exit_code_of(caught.value)) == (10.0, BUSY)
        assert (await client.get(f"/runs/{ended}"))["run"]["state"] == "stopped"
