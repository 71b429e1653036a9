"""Many who watch: they share what is read, nobody misses anything, and who does not read costs the others nothing."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from service_parts import Client, Gate, open_client
from test_service_server import fill

from patience import PATIENCE
from repertory.record.journal import Journal
from repertory.service import feed
from repertory.service.server import connection_limit


def count_reads(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often events are read from a journal from now on."""
    reads = [0]
    read_events = journal.read_events

    async def counted(*words: Any, **options: Any) -> Any:
        reads[0] += 1
        return await read_events(*words, **options)

    monkeypatch.setattr(journal, "read_events", counted)
    return lambda: reads[0]


async def follow_to_the_end(client: Client, path: str, run_id: str, seen: list[int], ready: anyio.Event) -> None:
    """Read a stream up to the end of a run."""
    async with client.follow(path) as stream:
        while True:
            event = await stream.event()
            ready.set()
            seen.append(event["seq"])
            if event["run_id"] == run_id and event["type"] == "StateChanged" and event["body"]["state"] == "done":
                return


def test_who_is_far_behind_waits_for_those_who_are_too(
    short: Path, run_async: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal gets one read of theirs at a time: runs that read something stood behind hundreds of them."""

    async def main() -> None:
        async with open_client(short, Gate(answer_after=30).model, database=str(short / "a.db")) as client:
            run_id = await client.start()
            await client.wait_for(run_id, "done")
            read_events, under_way, most = client.control.journal.read_events, 0, 0

            async def counted(*words: Any, **options: Any) -> Any:
                nonlocal under_way, most
                under_way += options["limit"] == feed.PAGE  # not those of the feed itself
                most = max(most, under_way)
                try:
                    return await read_events(*words, **options)
                finally:
                    under_way -= options["limit"] == feed.PAGE

            monkeypatch.setattr(client.control.journal, "read_events", counted)
            everything: list[list[int]] = [[] for _ in range(20)]
            async with anyio.create_task_group() as tasks:
                for seen in everything:
                    tasks.start_soon(follow_to_the_end, client, "/events", run_id, seen, anyio.Event())
            assert most == 1
            assert all(seen == everything[0] for seen in everything)

    run_async(main)


def test_watchers_share_what_is_read(short: Path, run_async: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gets every event once, in order; the journal is read for all of them together."""

    async def main() -> None:
        gate = Gate(answer_after=30)
        gate.hold = True
        async with open_client(short, gate.model, database=str(short / "a.db"), max_followers=100) as client:
            run_id = await client.start()
            await gate.held.wait()
            everything: list[list[int]] = [[] for _ in range(20)]
            own: list[list[int]] = [[] for _ in range(20)]
            async with anyio.create_task_group() as tasks:
                ready = [anyio.Event() for _ in range(40)]
                for number in range(20):
                    tasks.start_soon(follow_to_the_end, client, "/events", run_id, everything[number], ready[number])
                    path = f"/runs/{run_id}/events"
                    tasks.start_soon(follow_to_the_end, client, path, run_id, own[number], ready[20 + number])
                for event in ready:
                    await event.wait()
                reads = count_reads(client.control.journal, monkeypatch)
                gate.go.set()
            recorded = [seq for seq, _ in await client.control.journal.read_events(None)]
            of_run = [seq for seq, _ in await client.control.journal.read_events(run_id)]
            assert len(of_run) > 100
            for seen in everything:
                assert seen == recorded[: len(seen)]
            for seen in own:
                assert seen == of_run[: len(seen)]
            # Alone, each of the forty would have read each of its rounds by itself.
            assert reads() < 40 + 2 * len(recorded)

    run_async(main)


async def test_who_falls_behind_what_is_shared_reads_the_journal(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is shared is bounded; a follower that comes from further back misses nothing of it."""
    monkeypatch.setattr(feed, "_TAIL", 2_000)  # bytes: a handful of events
    gate = Gate(answer_after=20)
    async with open_client(short, gate.model, database=str(short / "a.db")) as client:
        run_id = await client.start()
        seen: list[int] = []
        with anyio.fail_after(PATIENCE):
            await follow_to_the_end(client, "/events", run_id, seen, anyio.Event())
            slow: list[int] = []
            async with client.follow(f"/runs/{run_id}/events") as stream:
                while len(slow) < len(seen):
                    slow.append((await stream.event())["seq"])
                    await anyio.sleep(0)
        recorded = [seq for seq, _ in await client.control.journal.read_events(None)]
        assert seen == recorded[: len(seen)]
        assert slow == seen
        assert client.control.feed.size <= 2_000


async def test_nothing_is_kept_for_nobody(short: Path) -> None:
    """Once nobody follows any more, what was shared is let go."""
    gate = Gate(answer_after=1)
    async with open_client(short, gate.model) as client:
        first = await client.start()
        seen: list[int] = []
        with anyio.fail_after(PATIENCE):
            await follow_to_the_end(client, "/events", first, seen, anyio.Event())
            while client.control.feed.size or client.control.feed.followers:
                await client.get("/healthz")
                client.control.feed.notify()
                await anyio.sleep(0.01)


async def test_one_that_does_not_read_costs_the_others_nothing(short: Path) -> None:
    """It holds what fits into its connection, is dropped with a word why, and all others read on meanwhile."""
    gate = Gate(answer_after=20)
    gate.hold = True
    async with open_client(short, gate.model, database=str(short / "a.db"), send_timeout=3.0) as client:
        run_id = await client.start()
        await gate.held.wait()
        stalled = await client.connect()
        await stalled.send(b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await stalled.receive(1)
        await fill(client)  # more than the system keeps for a client
        after = (await client.get("/runs"))["seq"]  # what comes now fits into a connection, however slowly it is read
        seen: list[int] = []
        gate.go.set()
        with anyio.fail_after(PATIENCE):
            await follow_to_the_end(client, f"/events?after={after}", run_id, seen, anyio.Event())
            while not client.reports:
                await anyio.sleep(0.01)
        recorded = [seq for seq, _ in await client.control.journal.read_events(None, after=after)]
        assert seen == recorded[: len(seen)]
        assert "dropped a client that took less than 64 KiB" in client.reports[0]
        await stalled.aclose()


def test_connections_are_bounded_by_the_files_that_may_be_open() -> None:
    """As many as are wanted where the system allows it, and some files are always left for everything else."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, hard), hard))
        assert connection_limit(1000) == min(1000, hard - 256)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(1256, hard)
        assert connection_limit(10) == 10
        assert connection_limit(10**9) == hard - 256
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
