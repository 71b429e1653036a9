"""Events: many readers, one log, nobody blocked."""

from __future__ import annotations

import trio
import trio.testing

from repertory.agents.events import Event, EventsMissed, RunResumed
from repertory.agents.hub import EventHub


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


async def test_a_reader_can_choose_and_end() -> None:
    """The last event is read too, whether it was chosen for its kind or not."""
    hub = EventHub()
    for number in range(10):
        hub.publish(event(number))
    even = hub.reader(lambda item: item.iteration % 2 == 0, until=lambda item: item.iteration == 6)
    assert [item.iteration async for item in even] == [0, 2, 4, 6]
    odd = hub.reader(lambda item: item.iteration % 2 == 1, until=lambda item: item.iteration == 6)
    assert [item.iteration async for item in odd] == [1, 3, 5]
