"""Calls that wait, over HTTP and on the command line."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import anyio
from service_parts import open_client
from test_service_process import Served, until

import repertory as rp
from command_line import command
from repertory.llm.messages import Text
from repertory.llm.model import ModelRequest
from repertory.testing import FunctionModel, ScriptedModel, call


@rp.tool(approval="always")
async def pay(to: str, amount: int) -> str:
    """Pay somebody."""
    return f"paid {to} {amount}"


@rp.tool
async def order(what: str) -> rp.ResultLater:
    """Order something."""
    return rp.ResultLater("the shop")


HALF = "half \ud83d"  # of a character in two halves, as text that was cut in JavaScript may end with


buyer = rp.Agent("buyer", tools=[pay, order], context=None)


def test_calls_are_listed_decided_and_given_their_result(short: Path, run_async: Any) -> None:
    """Each is durable when its answer comes and safe to repeat; what is wrong has its own status."""

    async def main() -> None:
        calls = [call("pay", call_id="c1", to="ann", amount=1), call("pay", call_id="c2", to="bob", amount=2)]
        model = ScriptedModel([[*calls, call("order", call_id="c3", what="ink")], "Done."])
        async with open_client(short, model, agents=["test_service_approvals:buyer"]) as client:
            run_id = await client.start("Buy.", agent="buyer")
            async with client.follow(f"/runs/{run_id}/events", token=None) as stream:
                seen = set[str]()
                while len(seen) < 3:
                    event = await stream.event()
                    if event["type"] in ("ApprovalRequested", "ResultAwaited"):
                        seen.add(event["body"]["call_id"])
            waiting = (await client.get("/approvals"))["waiting"]
            assert sorted((each["call_id"], each["kind"], each["run_id"]) for each in waiting) == [
                ("c1", "approval", run_id),
                ("c2", "approval", run_id),
                ("c3", "result", run_id),
            ]
            assert (await client.get(f"/runs/{run_id}"))["run"]["state"] == "waiting"
            path = f"/runs/{run_id}/calls"
            assert "no call 'c9'" in (await client.post(f"{path}/c9/approve", {}, 409))["error"]
            assert "invalid arguments" in (await client.post(f"{path}/c2/approve", {"arguments": {}}, 400))["error"]
            await client.post(f"{path}/c2/deny", {}, 400)
            for _ in range(2):
                await client.post(f"{path}/c1/approve", {"by": "eve"})
                await client.post(f"{path}/c2/deny", {"reason": "no", "by": "eve"})
            assert "denied: no" in (await client.post(f"{path}/c2/approve", {}, 409))["error"]
            await client.post(f"{path}/c3/result", {"result": {"bottles": 3}})
            detail = await client.wait_for(run_id, "done")
            assert detail["result"] == "Done."
            assert await client.get("/approvals") == {"waiting": []}
            assert "denied: no" in (await client.post(f"{path}/c2/approve", {}, 409))["error"]
            # Who has not heard an answer, as the service died before it, asks once more when all is over.
            await client.post(f"{path}/c1/approve", {"by": "eve"})
            await client.post(f"{path}/c1/approve", {"arguments": {"to": "ann", "amount": 1}})
            await client.post(f"{path}/c2/deny", {"reason": "no"})
            other = {"arguments": {"to": "ann", "amount": 2}}
            assert "already by eve: allowed" in (await client.post(f"{path}/c1/approve", other, 409))["error"]
            await client.post(f"{path}/c3/result", {"result": {"bottles": 3}})
            for other in ({"result": {"bottles": 4}}, {"result": {"bottles": 3}, "is_error": True}):
                assert "given another result" in (await client.post(f"{path}/c3/result", other, 409))["error"]
            assert "is done" in (await client.post(f"{path}/c9/result", {"result": 1}, 409))["error"]

    run_async(main)


def test_half_a_character_in_a_call_hides_nothing(short: Path, run_async: Any) -> None:
    """JSON from a model may have it, but UTF-8 has not: lists, events and messages show it replaced."""

    async def main() -> None:
        model = ScriptedModel([call("pay", call_id="c1", to=HALF, amount=1), HALF])
        async with open_client(short, model, agents=["test_service_approvals:buyer"]) as client:
            run_id = await client.start("Buy.", agent="buyer")
            await client.wait_for(run_id, "waiting")
            ((waiting,),) = (await client.get("/approvals")).values()
            assert waiting["arguments"]["to"] == "half \ufffd"
            await client.post(f"/runs/{run_id}/calls/c1/approve", {"by": "eve"})
            detail = await client.wait_for(run_id, "done")
            assert detail["result"] == "half \ufffd"
            types = [event["type"] for event in await client.get(f"/runs/{run_id}/events?follow=no")]
            assert {"ApprovalRequested", "ToolStarted", "ModelAnswered"} <= set(types)

    run_async(main)


def test_pictures_come_with_a_task_and_with_a_message(short: Path, run_async: Any) -> None:
    """The same request is known again by what came with it."""
    shown: list[Any] = []
    scan = b"%PDF-1.4 /Type /Page " + b"x" * 2_000_000
    media = {"type": "media", "media_type": "application/pdf", "data": base64.b64encode(scan).decode(), "title": "bill"}

    def look(request: ModelRequest) -> str:
        shown[:] = [message.content for message in request.messages if message.role == "user"]
        return "Done."

    async def main() -> None:
        async with open_client(short, FunctionModel(look), agents=["test_service_approvals:buyer"]) as client:
            start = {"agent": "buyer", "task": "Buy.", "attachments": [media], "run_id": "bills"}
            for _ in range(2):
                await client.post("/runs", start, 201)
            assert "another request" in (await client.post("/runs", {**start, "attachments": []}, 422))["error"]
            await client.wait_for("bills", "done")
            for _ in range(2):
                message = {"text": "And this?", "attachments": [media], "message_id": "m2"}
                await client.post("/runs/bills/messages", message)
                await client.wait_for("bills", "done")
            wrong = {"type": "media", "media_type": "image/png", "data": media["data"]}
            for path, body in (("/runs", start), ("/runs/bills/messages", message)):
                refused = await client.post(path, {**body, "attachments": [wrong]}, 422)
                assert "the attachments cannot be shown to a model: media_type is 'image/png'" in refused["error"]

    run_async(main)
    bill = rp.media_block(scan, title="bill")
    assert shown == [(bill, Text("Buy.")), (bill, Text("And this?"))]


def test_pictures_are_given_in_base_64(short: Path, run_async: Any) -> None:
    """As large as a model may be shown; what it may not be shown is refused."""
    shown: list[Any] = []
    scan = b"%PDF-1.4 /Type /Page " + b"x" * 2_000_000
    data = base64.b64encode(scan).decode()

    def look(request: ModelRequest) -> str:
        shown.extend(request.messages[-1].content[0].content)  # type: ignore[union-attr]
        return "Done."

    async def main() -> None:
        model = ScriptedModel([call("order", call_id="c1", what="ink"), look])
        async with open_client(short, model, agents=["test_service_approvals:buyer"]) as client:
            run_id = await client.start("Buy.", agent="buyer")
            while not (await client.get("/approvals"))["waiting"]:
                await anyio.sleep(0.01)
            path = f"/runs/{run_id}/calls/c1/result"
            media = {"type": "media", "media_type": "application/pdf", "data": data, "title": "bill"}
            for body, status, says in (
                ({"content": [{**media, "media_type": "image/png"}]}, 422, "but the data is application/pdf"),
                ({"content": [{**media, "data": "?"}]}, 400, "Invalid base64"),
                ({"content": []}, 400, "length >= 1"),
                ({"content": [media], "result": "x"}, 422, "got both"),
            ):
                assert says in (await client.post(path, body, status))["error"]
            bill = {"content": [{"type": "text", "text": "the bill"}, media]}
            await client.post(path, bill)
            await client.wait_for(run_id, "done")
            await client.post(path, bill)  # safe to repeat, also now
            assert "given another result" in (await client.post(path, {"content": [media]}, 409))["error"]

    run_async(main)
    assert shown == [Text("the bill"), rp.media_block(scan, "application/pdf", title="bill")]


def wait_for_calls(served: Served, count: int) -> None:
    """Wait until so many calls wait."""
    until(lambda: len(served.ask("GET", "/approvals")["waiting"]) >= count)


def test_the_command_line_decides_for_a_running_service(short: Path) -> None:
    """Lists, approves with other arguments, denies; and says where there is nothing, or nobody."""
    served = Served(short, "--agent", "serve_agents:payer", "--agent", "serve_agents:orderer")
    at = ("--socket", str(served.socket))
    try:
        served.hear("serving")
        nothing = command("approvals", *at)
        assert (nothing.returncode, nothing.stdout, nothing.stderr) == (0, "No call waits.\n", "")
        start = f"No runs yet.\nStart one: repertory start AGENT TASK {' '.join(at)}\n"
        assert command("ps", *at).stdout == start
        run_id = served.ask("POST", "/runs", {"agent": "payer", "task": "Pay."})["id"]
        wait_for_calls(served, 3)
        listed = command("approvals", "--json", *at)
        assert len(json.loads(listed.stdout)["waiting"]) == 3
        assert "c0" in command("approvals", *at).stdout
        for text in ("{", "[1]", "[" * 50_000, os.fsdecode(b'{"to": "\xff"}')):
            wrong = command("approve", "c0", "--arguments", text, *at)
            assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
            assert "the arguments must be one JSON object" in wrong.stderr
        assert "no call 'c7' waits" in command("approve", "c7", *at).stderr
        changed = json.dumps({"to": "ann", "amount": 50})
        done = [
            command("approve", "c0", "--arguments", changed, "--by", "eve", *at),
            command("deny", "c1", "not him", *at),
            command("approve", "c2", "--run", run_id, *at),
            command("approve", "c2", "--run", run_id, *at),
        ]
        assert [(each.returncode, each.stderr) for each in done] == [(0, "")] * 4
        assert "--run RUN finds one that was answered" in command("approve", "c2", *at).stderr
        detail = until(lambda: (found := served.ask("GET", f"/runs/{run_id}"))["run"]["state"] == "done" and found)
        assert "paid ann 50\n[eve changed the arguments" in detail["result"]
        assert "not him | paid cyn 2" in detail["result"]
        told = command("logs", run_id, *at).stdout
        assert "pay is allowed by eve\n" in told
        assert ": not him\n" in told
        other_id = served.ask("POST", "/runs", {"agent": "orderer", "task": "Order."})["id"]
        wait_for_calls(served, 1)
        listed = command("approvals", *at)
        assert "\norder waits for its result: the shop\n" in listed.stdout
        assert f"repertory give CALL RESULT {' '.join(at)} answers" in listed.stderr  # to be typed as it stands
        assert "  order waits for its result: the shop\n" in command("logs", other_id, *at).stdout
        refused = command("approve", "c9", *at)
        assert refused.returncode == 1
        assert "call c9 waits for its result, not for its approval; repertory give answers it" in refused.stderr
        for words, says in (
            (["give", "c9"], "the result is a TEXT, with --attach or alone, or else a --value"),
            (["give", "c9", "x", "--value", "1"], "or else a --value"),
            (["give", "c9", "--value", "{"], "--value must be JSON"),
            (["give", "c7", "x"], "no call 'c7' waits"),
        ):
            assert says in command(*words, *at).stderr
        given = [command("give", "c9", "two boxes", *at, "--run", other_id) for _ in range(2)]
        assert [(each.returncode, each.stderr) for each in given] == [(0, "")] * 2
        until(lambda: "two boxes" in str(served.ask("GET", f"/runs/{other_id}")["result"]))
    finally:
        served.process.terminate()
        served.end()
    nobody = command("approvals", *at)
    assert nobody.returncode == 75
    assert "no service answers at unix:" in nobody.stderr
