"""Event streams: nothing lost, nothing twice, in this process or the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from service_parts import EventStream, Gate, open_client

from repertory.record import open_journal
from repertory.record.records import EventLogged
from repertory.testing import ScriptedModel


async def read_until(stream: EventStream, state: str) -> list[int]:
    """The numbers of the events up to the one that says so."""
    numbers = []
    while True:
        event = await stream.event()
        numbers.append(event["seq"])
        if event["type"] == "StateChanged" and event["body"]["state"] == state:
            return numbers


def test_a_client_that_comes_back_misses_nothing_and_gets_nothing_twice(short: Path, run_async: Any) -> None:
    """It goes on behind the last id it saw, while the run goes on; the sum is what the journal holds."""

    async def main() -> None:
        gate = Gate(answer_after=40)
        async with open_client(short, gate.model, database=str(short / "a.db")) as client:
            run_id = await client.start()
            path, seen, last = f"/runs/{run_id}/events", [], None
            for pieces in (1, 2, 5, 13):
                async with client.follow(path, last=last) as stream:
                    assert stream.headers["content-type"].startswith("text/event-stream")
                    seen += [(await stream.event())["seq"] for _ in range(pieces)]
                    last = stream.last
            async with client.follow(path, last=last) as stream:
                seen += await read_until(stream, "done")
            recorded = [seq for seq, _ in await client.control.journal.read_events(run_id)]
            assert seen == recorded[: len(seen)]  # a summary may be finished after the run is
            assert len(seen) > 150

    run_async(main)


def test_a_client_goes_on_in_the_next_process(short: Path, run_async: Any) -> None:
    """The id is the journal's, so it means the same after a restart."""

    async def main() -> None:
        database = str(short / "a.db")
        gate = Gate()
        gate.hold = True
        async with open_client(short, gate.model, database=database, drain_timeout=0.2) as client:
            run_id = await client.start()
            await gate.held.wait()
            async with client.follow("/events") as stream:
                first = [(await stream.event())["type"] for _ in range(2)]
            last = stream.last
        async with open_client(short, Gate(answer_after=1).model, database=database) as client:
            await client.post(f"/runs/{run_id}/resume", {})
            async with client.follow("/events", last=last) as stream:
                then = [(await stream.event())["type"] for _ in range(3)]
        assert first == ["RunSpawned", "IterationStarted"]
        assert then == ["StateChanged", "RunResumed", "IterationStarted"]

    run_async(main)


async def test_one_stream_shows_one_run_and_the_other_all(short: Path) -> None:
    """``/runs/{id}/events`` is that run's alone."""
    async with open_client(short, ScriptedModel(["One.", "Two."])) as client:
        first = await client.start()
        await client.wait_for(first, "done")
        second = await client.start()
        await client.wait_for(second, "done")
        async with client.follow("/events") as stream:
            assert {(await stream.event())["run_id"] for _ in range(8)} == {first, second}
        async with client.follow(f"/runs/{second}/events") as stream:
            assert {(await stream.event())["run_id"] for _ in range(4)} == {second}
        after = (await client.get("/runs"))["seq"]
        async with client.follow(f"/events?after={after - 1}") as stream:
            assert (await stream.event())["seq"] == after


async def test_what_was_said_to_a_run_shows_at_once(short: Path) -> None:
    """It is an event like the others, although no part of the run has read it yet."""
    gate = Gate(answer_after=0)
    gate.hold = True
    async with open_client(short, gate.model) as client:
        run_id = await client.start()
        await gate.held.wait()
        async with client.follow(f"/runs/{run_id}/events") as stream:
            while (await stream.event())["type"] != "IterationStarted":
                pass
            await client.post(f"/runs/{run_id}/messages", {"text": "Line one.\nLine\r two.\u2028"})
            event = await stream.event()
            assert (event["type"], event["body"]["text"]) == ("UserSaid", "Line one.\nLine\r two.\u2028")
        gate.go.set()


def test_a_client_that_knows_more_than_a_restored_journal_hears_what_happens(short: Path, run_async: Any) -> None:
    """Instead of nothing, until there are as many events again."""

    async def main() -> None:
        async with open_client(short, Gate(answer_after=1).model) as client:
            await client.start()
            seq = (await client.get("/service"))["seq"]
            async with client.follow("/events", last=10**6) as stream:
                await stream.block()  # it is connected
                run_id = await client.start()
                event = await stream.event()
                while event["run_id"] != run_id:
                    event = await stream.event()
                assert event["seq"] > seq

    run_async(main)


def test_silence_is_filled_and_the_end_is_said(short: Path, run_async: Any) -> None:
    """A sign of life now and then shows that the connection lives; at the end the client is told that it is one."""

    async def main() -> None:
        async with open_client(short, ScriptedModel([]), ping=0.01) as client, client.follow("/events") as stream:
            assert await stream.block() == {"retry": "2000"}
            assert await stream.block() == {"event": "ping", "data": "{}"}
            assert await stream.block() == {"event": "ping", "data": "{}"}
            client.control.feed.close()
            while (fields := await stream.block()) == {"event": "ping", "data": "{}"}:
                pass
            assert fields == {"event": "bye", "data": '{"reason":"the service ends"}'}
            assert await stream.block() is None

    run_async(main)


async def test_streams_are_counted(short: Path) -> None:
    """One too many is told to come back later; one that ends makes room."""
    async with open_client(short, ScriptedModel([]), max_followers=32) as client:
        async with anyio.create_task_group() as tasks:
            opened = [anyio.Event() for _ in range(32)]

            async def follow(event: anyio.Event) -> None:
                async with client.follow("/events"):
                    event.set()
                    await anyio.sleep_forever()

            for event in opened:
                tasks.start_soon(follow, event)
            for event in opened:
                await event.wait()
            async with client.follow("/events") as stream:
                assert stream.status == 503
                assert stream.headers["retry-after"] == "5"
            assert (await client.get("/healthz"))["status"] == "ok"
            tasks.cancel_scope.cancel()
        while True:
            async with client.follow("/events") as stream:
                if stream.status == 200:
                    break
            await anyio.sleep(0.01)  # until the server has seen that they are gone


@pytest.mark.parametrize("kind", ["file", "memory"])
async def test_events_are_read_page_by_page_for_one_run_or_all(tmp_path: Path, kind: str) -> None:
    """Both journals number events the same way and know the newest."""
    async with open_journal(tmp_path / "a.db" if kind == "file" else None, durability="process") as journal:
        assert await journal.last_event() == 0
        for number in range(10):
            run_id = "even" if number % 2 == 0 else "odd"
            await journal.write([EventLogged(run_id=run_id, type="T", body={"n": number}, at=1.0)])
        everything = await journal.read_events(None)
        assert [event.body["n"] for _, event in everything] == list(range(10))
        assert await journal.last_event() == everything[-1][0]
        odd = await journal.read_events("odd", after=everything[3][0], limit=2)
        assert [event.body["n"] for _, event in odd] == [5, 7]
        assert await journal.read_events(None, after=everything[-1][0]) == []
        assert len(await journal.read_events(None, limit=0)) == 0


def test_what_has_happened_can_be_had_without_following(short: Path, run_async: Any) -> None:
    """As JSON, the same events as the stream's, page by page."""

    async def main() -> None:
        async with open_client(short, Gate(answer_after=2).model) as client:
            run_id = await client.start()
            await client.wait_for(run_id, "done")
            whole = await client.get(f"/runs/{run_id}/events?follow=no")
            assert whole[0]["type"] == "RunSpawned"
            assert whole[-1]["body"]["state"] == "done"
            assert await client.get("/events?follow=no") == whole
            assert await client.get(f"/events?follow=no&after={whole[2]['seq']}") == whole[3:]
            assert await client.get(f"/events?follow=no&after={whole[-1]['seq']}") == []
            async with client.follow("/events") as stream:
                assert [await stream.event() for _ in whole] == whole

    run_async(main)
