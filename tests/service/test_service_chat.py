"""Talking with runs over HTTP."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
from service_parts import Gate, clerk, open_client

import repertory as rp
from patience import PATIENCE
from repertory.llm.messages import text_of
from repertory.llm.model import ModelRequest
from repertory.service import Control, Offers
from repertory.service.feed import ModelStream
from repertory.testing import FunctionModel


async def pieces_of(stream: Any) -> list[Any]:
    """All pieces of a stream, to its end."""
    found = []
    while (fields := await stream.block()) is not None:
        if fields.get("event") == "end":
            return found
        if "data" in fields:
            found.append(msgspec.json.decode(fields["data"]))
    raise AssertionError("the stream broke off")


def test_a_run_that_has_ended_is_asked_again_also_in_the_next_process(short: Path, run_async: Any) -> None:
    """A message to a done run lets it go on; so does one to a stopped run."""

    async def main() -> None:
        def answer(request: ModelRequest) -> str:
            return f"I heard {text_of(request.messages[-1].content)}"

        database = str(short / "a.db")
        async with open_client(short, FunctionModel(answer), database=database) as client:
            run_id = await client.start()
            await client.wait_for(run_id, "done")
            await client.post(f"/runs/{run_id}/messages", {"text": "One more."})
            while (detail := await client.get(f"/runs/{run_id}"))["result"] != "I heard One more.":
                await anyio.sleep(0.01)
            assert detail["run"]["state"] == "done"
        async with open_client(short, FunctionModel(answer), database=database) as client:
            await client.post(f"/runs/{run_id}/messages", {"text": "And one."})
            while (await client.get(f"/runs/{run_id}"))["result"] != "I heard And one.":
                await anyio.sleep(0.01)

    run_async(main)


def test_what_a_model_says_is_read_along(short: Path, run_async: Any) -> None:
    """From the beginning of the turn to its end, however late a client comes; of a run that has ended there is none."""

    async def main() -> None:
        gate = Gate(answer_after=2)
        gate.hold = True
        async with open_client(short, gate.model) as client:
            run_id = await client.start()
            await gate.held.wait()
            async with client.follow(f"/runs/{run_id}/stream") as stream:
                assert stream.headers["content-type"].startswith("text/event-stream")
                gate.hold = False
                gate.go.set()
                with anyio.fail_after(PATIENCE):
                    pieces = await pieces_of(stream)
            assert [piece["piece"] for piece in pieces] == ["ToolCallStreamed", "ToolCallStreamed", "TextStreamed"]
            assert (pieces[-1]["text"], pieces[-1]["iteration"]) == ("It is done.", 3)
            await client.wait_for(run_id, "done")
            async with client.follow(f"/runs/{run_id}/stream") as stream:
                assert await pieces_of(stream) == []
            await client.get("/runs/nobody/stream", 404)

    run_async(main)


async def test_who_is_still_reading_when_a_run_is_asked_again_reads_on() -> None:
    """There is no end in between: the run has not ended."""
    gate = Gate(answer_after=0)
    async with rp.open_supervisor(None, model=gate.model, durability="process") as supervisor:
        control = Control(supervisor, Offers(["service_parts:clerk"]))
        run_id = await control.start("clerk", "Count.")
        await control.wait_ended(run_id, PATIENCE)
        run = await supervisor.spawn(clerk, "Count.", run_id=run_id)  # it has ended, and says so
        gate.hold = True
        await run.send("And?")
        await gate.held.wait()
        behind = ModelStream(control.feed, partial(control.stream, run_id))
        assert await anext(behind) == b"retry: 2000\n\n"
        gate.hold = False
        gate.go.set()
        await control.wait_ended(run_id, PATIENCE)
        gate.hold, gate.held, gate.go = True, anyio.Event(), anyio.Event()
        await run.send("And then?")
        await gate.held.wait()
        assert b"It is done." in await anext(behind)
        gate.go.set()
        assert b"It is done." in await anext(behind)
        assert b"event: end" in await anext(behind)


def test_readers_that_take_nothing_slow_no_run(short: Path, run_async: Any) -> None:
    """Dozens of streams of one run that nobody reads, and it ends all the same; one too many is refused."""

    async def main() -> None:
        gate = Gate(answer_after=30)
        gate.hold = True
        async with open_client(short, gate.model, max_followers=32) as client, anyio.create_task_group() as tasks:
            run_id = await client.start()
            await gate.held.wait()

            async def hold(*, task_status: Any) -> None:
                async with client.follow(f"/runs/{run_id}/stream"):
                    task_status.started()
                    await anyio.sleep_forever()

            for _ in range(32):
                await tasks.start(hold)
            await client.get(f"/runs/{run_id}/stream", 503)
            gate.hold = False
            gate.go.set()
            with anyio.fail_after(PATIENCE):
                while (await client.get(f"/runs/{run_id}"))["run"]["state"] != "done":
                    await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()

    run_async(main)


def test_a_stream_ends_with_the_service(short: Path, run_async: Any) -> None:
    """Also that of a run that says nothing."""

    async def main() -> None:
        gate = Gate()
        gate.hold = True
        ended = anyio.Event()

        async def read(client: Any, run_id: str, *, task_status: Any) -> None:
            async with client.follow(f"/runs/{run_id}/stream") as stream:
                await stream.block()
                task_status.started()
                assert await pieces_of(stream) == []
                ended.set()

        async with anyio.create_task_group() as tasks:
            async with open_client(short, gate.model, drain_timeout=0.2) as client:
                run_id = await client.start()
                await gate.held.wait()
                await tasks.start(read, client, run_id)
            with anyio.fail_after(PATIENCE):
                await ended.wait()

    run_async(main)
