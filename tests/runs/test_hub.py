"""Events: many readers, one log, nobody blocked."""

from __future__ import annotations

import trio
import trio.testing

from patience import PATIENCE
from repertory.runs.event_hub import EventHub
from repertory.runs.events import Event, EventsMissed, RunResumed, ToolStarted


def event(number: int) -> RunResumed:
    """An event that can be told from others."""
    return RunResumed(run_id="run", agent="a", iteration=number, at=0.0, entries=number)


async def test_each_reader_sees_every_event_from_the_oldest_in_memory() -> None:
    """A reader that comes late sees what an early one saw, and both end when the hub closes."""
    hub = EventHub()
    early: list[int] = []

    async def read(into: list[int]) -> None:
        async for seen in hub.reader():
            into.append(seen.iteration)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read, early)
        for number in range(3):
            hub.publish(event(number))
            await trio.testing.wait_all_tasks_blocked()
        late: list[int] = []
        nursery.start_soon(read, late)
        await trio.testing.wait_all_tasks_blocked()
        hub.close()
    assert early == late == [0, 1, 2]


async def test_tasks_that_share_a_reader_share_its_events_and_all_end() -> None:
    """Only the last of those that waited was woken; the others waited for ever."""
    hub = EventHub()
    reader, seen = hub.reader(), list[int]()

    async def read() -> None:
        async for each in reader:
            seen.append(each.iteration)

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            for number in range(5):
                hub.publish(event(number))
            await trio.testing.wait_all_tasks_blocked()
            hub.close()
    assert seen == [0, 1, 2, 3, 4]


async def test_a_slow_reader_is_told_what_it_missed() -> None:
    """The publisher never waits, and the gap is said."""
    hub = EventHub(keep=10)
    reader = hub.reader()
    for number in range(25):
        hub.publish(event(number))
    hub.close()
    seen: list[Event] = [item async for item in reader]
    assert isinstance(seen[0], EventsMissed)
    assert seen[0].count == 15
    assert [item.iteration for item in seen[1:]] == list(range(15, 25))


async def test_events_are_bound_by_their_texts_too() -> None:
    """A few with long texts take the place of many, in the hub and in what a slow reader has still to read."""
    hub = EventHub(characters=1000)
    slow, common = hub.reader(), {"run_id": "run", "agent": "a", "at": 0.0, "call_id": "c", "tool": "write"}
    for number in range(20):
        hub.publish(ToolStarted(**common, iteration=number, arguments={"path": "p", "lines": ["x" * 100, {"y": "z"}]}))
    hub.publish(ToolStarted(**common, iteration=20, arguments={"text": "x" * 5000}))
    hub.close()
    missed, *rest = [item async for item in slow]
    assert isinstance(missed, EventsMissed)
    assert (missed.count, [item.iteration for item in rest]) == (20, [20])  # the newest is there, however long it is
    assert [item.iteration async for item in hub.reader()] == [20]
    hub = EventHub(characters=1000)
    for number in range(20):
        hub.publish(ToolStarted(**common, iteration=number, arguments={"text": "x" * 100}))
    hub.close()
    assert [item.iteration async for item in hub.reader()] == list(range(12, 20))


async def test_a_reader_that_comes_late_is_told_of_no_gap() -> None:
    """It begins at the oldest event in memory: what was over before nobody took from it."""
    hub = EventHub(keep=10)
    for number in range(25):
        hub.publish(event(number))
    hub.close()
    assert [item.iteration async for item in hub.reader()] == list(range(15, 25))


async def test_only_events_that_a_reader_wants_count_as_missed() -> None:
    """The gap names the run that is watched, and others' events are nobody's loss."""
    hub = EventHub(keep=10)
    none = hub.reader(lambda item: item.run_id == "another")
    even = hub.reader(lambda item: item.iteration % 2 == 0)
    for number in range(25):
        hub.publish(event(number))
    hub.close()
    assert [item async for item in none] == []
    missed, *rest = [item async for item in even]
    assert isinstance(missed, EventsMissed)
    assert (missed.count, missed.iteration) == (3, 4)
    assert [item.iteration for item in rest] == list(range(6, 26, 2))


async def test_a_reader_can_choose_begin_and_end() -> None:
    """It reads from one event up to another, whether or not it wants these."""
    hub = EventHub()
    for number in range(10):
        hub.publish(event(number))
    even = hub.reader(lambda item: item.iteration % 2 == 0, since=1, until=lambda: 7)
    assert [item.iteration async for item in even] == [2, 4, 6]
    odd = hub.reader(lambda item: item.iteration % 2 == 1, until=lambda: 6)
    assert [item.iteration async for item in odd] == [1, 3, 5]


async def test_a_reader_ends_even_if_the_end_is_no_longer_in_memory() -> None:
    """A slow reader of what is over has all of it, and then hears that nothing comes any more."""
    hub = EventHub(keep=10)
    reader = hub.reader(until=lambda: 5)
    for number in range(25):
        hub.publish(event(number))
    assert [item.iteration async for item in reader] == [0, 1, 2, 3, 4]
