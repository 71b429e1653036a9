"""Schedules: when they are due, and that each due time is settled once, over downtime, kills and clocks that jump."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

import journal_kit as kit
import repertory as rp
from repertory.errors import ConfigurationError
from repertory.record import MemoryJournal
from repertory.record.journal import Journal
from repertory.service.duties import Duties
from repertory.service.schedules import Schedule, Scheduler
from repertory.supervisor import Quota, Quotas
from repertory.testing import FunctionModel

MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0
START = datetime(2026, 11, 22, 12, 0, tzinfo=UTC).timestamp()


def at(cron: str, **fields: Any) -> Schedule:
    """A schedule of the clerk."""
    return Schedule(**{"name": "s", "agent": "clerk", "task": "Sort.", "cron": cron, **fields})


def dues(schedule: Schedule, start: str, count: int) -> list[str]:
    """The next due times behind a time of its zone, as its clock and UTC show them."""
    zone = ZoneInfo(schedule.timezone)
    after = datetime.fromisoformat(start).replace(tzinfo=zone).timestamp()
    found = [datetime.fromtimestamp(due, zone) for due in islice(schedule.due_after(after), count)]
    return [f"{due:%d %H:%M} {due.astimezone(UTC):%H:%M}" for due in found]


def test_a_time_that_the_clock_leaps_over_comes_right_after_and_one_shown_twice_comes_once() -> None:
    """Berlin in 2026: 02:00 becomes 03:00 on March 29, and 03:00 becomes 02:00 on October 25."""
    berlin = {"timezone": "Europe/Berlin"}
    assert dues(at("30 2 * * *", **berlin), "2026-03-27T12:00", 3) == [
        "28 02:30 01:30",
        "29 03:00 01:00",
        "30 02:30 00:30",
    ]
    assert dues(at("0,30 2 * * *", **berlin), "2026-03-28T12:00", 3) == [
        "29 03:00 01:00",
        "30 02:00 00:00",
        "30 02:30 00:30",
    ]
    assert dues(at("30 2 * * *", **berlin), "2026-10-24T12:00", 2) == ["25 02:30 00:30", "26 02:30 01:30"]
    assert dues(at("0 * * * *", **berlin), "2026-10-25T01:00", 3) == [
        "25 02:00 00:00",
        "25 02:00 01:00",
        "25 03:00 02:00",
    ]
    assert dues(at("0 * * * *", **berlin), "2026-03-29T00:30", 3) == [
        "29 01:00 00:00",
        "29 03:00 01:00",
        "29 04:00 02:00",
    ]


FIELDS = st.tuples(
    st.sampled_from(["*", "0", "30", "*/15", "5,50"]),
    st.sampled_from(["*", "0", "1-3", "2", "*/6", "23"]),
    st.sampled_from(["*", "1", "25-31"]),
    st.sampled_from(["*", "3", "10,11"]),
    st.sampled_from(["*", "SUN", "1-5"]),
)
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "America/St_Johns", "Asia/Kolkata"])


@given(fields=FIELDS, zone=ZONES, start=st.integers(0, 400 * 24 * 60), part=st.floats(0.01, 0.99))
def test_due_times_do_not_depend_on_when_one_looks(fields: tuple[str, ...], zone: str, start: int, part: float) -> None:
    """From any time between two of them the same one comes next: so a restart finds what the process before would."""
    schedule = at(" ".join(fields), timezone=zone)
    first, second = islice(schedule.due_after(1_767_225_600.0 + MINUTE * start), 2)
    assert first < second
    assert next(schedule.due_after(first)) == second
    assert next(schedule.due_after(first + part * (second - first) - 0.001)) == second


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"cron": "* * * *"}, "cron must be minute, hour, day of the month"),
        ({"cron": "0 0 * * * *"}, "cron must be minute, hour"),
        ({"cron": "61 * * * *"}, r"cron '61 \* \* \* \*': Bad minute"),
        ({"cron": "0 0 31 2 *"}, "Bad day-of-month|never due"),
        ({"cron": f"{'9' * 5000} * * * *"}, "cron '9{90,}.*: Exceeds the limit"),
        ({"timezone": "Europe/Nowhere"}, "there is no timezone 'Europe/Nowhere'"),
        ({"timezone": "../etc"}, "there is no timezone"),
        ({"timezone": "Europe"}, "there is no timezone"),
        ({"name": "a b"}, "schedule name must"),
        ({"missed": "some"}, "missed is 'some'; expected 'skip' or 'once' or 'all'"),
        ({"overlap": "some"}, "overlap is 'some'"),
        ({"task": " "}, "a task"),
        ({"priority": 101}, "priority must be"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(fields: dict[str, Any], words: str) -> None:
    """Before anything begins, with what is wrong."""
    with pytest.raises(ConfigurationError, match=words):
        at(**{"cron": "* * * * *", **fields})


class Plant:
    """A service's scheduler over one journal, in one process after the other, with a clock that can be set."""

    def __init__(self) -> None:
        self.journal = MemoryJournal()
        self.offset = START - trio.current_time()
        self.seconds = 0.0  # that a run takes
        self.calls = 0
        self.quotas: Quotas | None = None
        self.max_runs: int | None = None

    def clock(self) -> float:
        """Seconds since 1970."""
        return self.offset + trio.current_time()

    async def answer(self, request: Any) -> str:
        """One answer."""
        self.calls += 1
        await trio.sleep(self.seconds)
        return "Sorted."

    async def up(self, seconds: float, *schedules: Schedule, kill_after: Callable[[int], bool] | None = None) -> None:
        """Let a process live for so long; with ``kill_after`` until it has started so many runs."""
        clerk = rp.Agent("clerk", model=FunctionModel(self.answer), context=None)
        async with rp.open_supervisor(
            journal=self.journal, clock=self.clock, drain_timeout=0.1, quotas=self.quotas, max_runs=self.max_runs
        ) as supervisor:
            for row in await self.journal.read_runs(states=["running", "queued"]):
                await supervisor.resume(row.started.run_id, agent=clerk)
            started = 0
            with trio.CancelScope() as life:

                async def start(schedule: Schedule, due: float) -> None:
                    nonlocal started
                    run_id, client = schedule.run_id(due), f"schedule:{schedule.name}"
                    await supervisor.spawn(clerk, schedule.task_at(due), run_id=run_id, client=client)
                    started += 1
                    if kill_after is not None and kill_after(started):
                        life.cancel()
                        await trio.lowlevel.checkpoint()

                scheduler = Scheduler(self.journal, start, clock=self.clock, duties=Duties(supervisor))
                scheduler.plan(schedules)
                life.deadline = trio.current_time() + seconds
                await scheduler.run()

    async def course(self, name: str = "s") -> list[str]:
        """What was settled, in minutes from the start."""
        return [
            f"{settled.outcome} {(settled.due - START) / MINUTE:g}"
            + (f" ({settled.count})" if settled.count > 1 else "")
            for settled in await kit.settled(self.journal, name)
        ]


async def ids(journal: Journal) -> list[str]:
    """The runs on record."""
    return [row.started.run_id for row in await journal.read_runs()]


async def test_each_due_time_starts_one_run_on_time(autojump_clock: Any) -> None:
    """To the second, under the id that follows from it."""
    plant = Plant()
    await plant.up(16 * MINUTE, at("*/5 * * * *"))
    assert await plant.course() == ["began 0", "started 5", "started 10", "started 15"]
    assert await ids(plant.journal) == [f"schedule-s-20261122T12{minute}Z" for minute in ("05", "10", "15")]
    rows = await plant.journal.read_runs()
    assert [row.started.at - START for row in rows] == [5 * MINUTE, 10 * MINUTE, 15 * MINUTE]
    assert {row.started.client for row in rows} == {"schedule:s"}


@pytest.mark.parametrize(
    ("missed", "course"),
    [
        ("skip", ["skipped 30 (5)"]),
        ("once", ["skipped 25 (4)", "started 30"]),
        ("all", ["started 10", "started 15", "started 20", "started 25", "started 30"]),
    ],
)
async def test_what_was_missed_is_skipped_or_made_up_for(missed: Any, course: list[str], autojump_clock: Any) -> None:
    """After half an hour of downtime; every due time is settled once, and the next comes on time."""
    plant = Plant()
    await plant.up(6 * MINUTE, at("*/5 * * * *", missed=missed))
    await trio.sleep(26 * MINUTE)
    await plant.up(4 * MINUTE, at("*/5 * * * *", missed=missed))
    assert await plant.course() == ["began 0", "started 5", *course, "started 35"]
    started = [line for line in await plant.course() if line.startswith("started")]
    assert len(await ids(plant.journal)) == len(started)


async def test_a_time_that_comes_while_the_run_before_goes_is_skipped_or_begins_beside(autojump_clock: Any) -> None:
    """As ``overlap`` says, also where the run before goes on in the next process."""
    for overlap, course in (
        ("skip", ["began 0", "started 1", "skipped 2", "skipped 3", "started 4"]),
        ("allow", ["began 0", "started 1", "started 2", "started 3", "started 4"]),
    ):
        plant = Plant()
        plant.seconds = 2.5 * MINUTE
        await plant.up(1.5 * MINUTE, at("* * * * *", overlap=overlap))
        plant.seconds = 2 * MINUTE
        await plant.up(3 * MINUTE, at("* * * * *", overlap=overlap))
        assert await plant.course() == course


async def test_a_process_that_is_killed_between_start_and_settling_starts_nothing_twice(autojump_clock: Any) -> None:
    """The run is on record under its id, so the next process settles it as started, whatever the policy."""
    plant = Plant()
    await plant.up(HOUR, at("*/5 * * * *"), kill_after=lambda started: started == 2)
    assert await plant.course() == ["began 0", "started 5"]
    assert len(await ids(plant.journal)) == 2
    await trio.sleep(2 * HOUR + 2 * MINUTE)
    await plant.up(MINUTE, at("*/5 * * * *"))
    assert await plant.course() == ["began 0", "started 5", "started 10", "skipped 130 (24)"]
    assert len(await ids(plant.journal)) == 2
    assert plant.calls == 2


async def test_a_clock_that_is_set_repeats_nothing(autojump_clock: Any) -> None:
    """Forward is downtime; back by an hour waits until the time has come again; back by more begins anew."""
    plant = Plant()

    async def set_clock() -> None:
        for by in (2 * HOUR, -HOUR, -5 * HOUR):
            await trio.sleep(11 * MINUTE)
            plant.offset += by

    async with trio.open_nursery() as nursery:
        nursery.start_soon(set_clock)
        nursery.start_soon(plant.up, 45 * MINUTE, at("*/5 * * * *", missed="once"))
    course = await plant.course()
    assert course[:3] == ["began 0", "started 5", "started 10"]
    assert course[3:5] == ["skipped 125 (23)", "started 130"]  # two hours further on
    assert course[5:7] == ["started 135", "started 140"]
    # 12:00 + 22 min + 1 h is before 14:20, which is settled; five hours more are a correction.
    assert course[7].startswith("began -")
    runs = await ids(plant.journal)
    assert len(runs) == len(set(runs)) == sum(line.startswith("started") for line in course)


async def test_what_is_due_next_is_told_also_when_the_clock_was_set_back(autojump_clock: Any) -> None:
    """Not what is settled already, and is not repeated when its time comes again."""
    plant, often = Plant(), at("*/5 * * * *")
    await plant.up(11 * MINUTE, often)

    async def start(schedule: Schedule, due: float) -> None:
        raise AssertionError("it is only asked")

    async with rp.open_supervisor(journal=plant.journal) as supervisor:
        scheduler = Scheduler(plant.journal, start, clock=plant.clock, duties=Duties(supervisor))
        scheduler.plan([often])
        for back, next_one in ((0.0, 15), (HOUR, 15), (4 * HOUR, -285)):
            plant.offset -= back
            (view,) = await scheduler.list()
            assert view.next == START + next_one * MINUTE


@pytest.mark.parametrize(("missed", "begun"), [("once", 1), ("all", 1_000)])
async def test_a_clock_that_wakes_up_in_1970_does_not_count_since_then(
    missed: Any, begun: int, autojump_clock: Any
) -> None:
    """What was due more than a year ago is not looked at, and of the rest at most a thousand are made up for."""
    plant = Plant()
    hourly, plant.offset = at("0 * * * *", missed=missed), 100.0
    await plant.up(10.0, hourly)
    plant.offset = START + HOUR / 2
    started = list[float]()

    async def start(schedule: Schedule, due: float) -> None:
        started.append(due)

    async with rp.open_supervisor(journal=plant.journal) as supervisor:
        scheduler = Scheduler(plant.journal, start, clock=plant.clock, duties=Duties(supervisor))
        scheduler.plan([hourly])
        with trio.move_on_after(30.0):
            await scheduler.run()
        assert started == [START - HOUR * back for back in reversed(range(begun))]
        course = await plant.course()
        assert [line.split()[0] for line in course] == ["began", "began", "skipped", *["started"] * begun]
        assert course[2].endswith(f"({365 * 24 - begun})")


async def test_a_schedule_that_is_due_every_four_years_waits_for_them(autojump_clock: Any) -> None:
    """The time before is more than a year ago, and nothing was missed."""
    plant = Plant()
    plant.offset = datetime(2024, 2, 28, 23, 59, tzinfo=UTC).timestamp() - trio.current_time()
    leap = at("0 0 29 2 *", missed="once")
    await plant.up(2 * MINUTE, leap)
    plant.offset = datetime(2028, 2, 28, 23, 59, tzinfo=UTC).timestamp() - trio.current_time()
    await plant.up(2 * MINUTE, leap)
    rows = await kit.settled(plant.journal, "s")
    assert [settled.outcome for settled in rows] == ["began", "started", "started"]


async def test_another_rule_and_a_schedule_that_comes_back_begin_anew(autojump_clock: Any) -> None:
    """What was never due under it is not made up for."""
    plant = Plant()
    await plant.up(6 * MINUTE, at("*/5 * * * *", missed="all"))
    await trio.sleep(HOUR)
    await plant.up(4 * MINUTE, at("*/3 * * * *", missed="all"))
    await plant.up(MINUTE, at("0 0 * * *", name="other"))
    await trio.sleep(HOUR)
    await plant.up(4 * MINUTE, at("*/3 * * * *", missed="all"))
    course = await plant.course()
    assert [line.split()[0] for line in course] == ["began", "started", "began", "started", "ended", "began", "started"]


async def test_what_cannot_start_is_skipped_with_the_reason_and_a_full_queue_is_waited_for(
    autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """An agent that is gone stops no other schedule; a due time that the queue has no room for stays due, until it is
    missed.
    """
    plant = Plant()

    async def gone(schedule: Schedule, due: float) -> None:
        raise ConfigurationError("no agent 'clerk'")

    async with rp.open_supervisor(journal=plant.journal) as supervisor:
        scheduler = Scheduler(plant.journal, gone, clock=plant.clock, duties=Duties(supervisor))
        scheduler.plan([at("*/5 * * * *")])
        with trio.move_on_after(MINUTE):
            await scheduler.run()
        assert [view.last for view in await scheduler.list()] == [None]  # it began, and was not due yet
        with trio.move_on_after(5 * MINUTE):
            await scheduler.run()
        (view,) = await scheduler.list()
    assert view.last is not None
    assert (view.last.outcome, view.last.reason) == ("skipped", "it could not be started: no agent 'clerk'")
    assert "schedule.skipped schedule=s due=20261122T1205Z count=1" in caplog.text
    assert view.next == START + 10 * MINUTE
    plant = Plant()
    plant.max_runs, plant.quotas = 1, Quotas(clients={"schedule:s": Quota(queued=0)})
    plant.seconds = 1.6 * MINUTE
    await plant.up(4 * MINUTE, at("* * * * *", overlap="allow", missed="all"))
    assert await plant.course() == ["began 0", "started 1", "started 2"]
    plant = Plant()
    plant.max_runs, plant.quotas = 1, Quotas(clients={"schedule:s": Quota(queued=0)})
    plant.seconds = 2.6 * MINUTE
    await plant.up(4 * MINUTE, at("* * * * *", overlap="allow"))
    assert await plant.course() == ["began 0", "started 1", "skipped 2"]
    skipped = (await kit.settled(plant.journal, "s"))[-1]
    assert skipped.reason.startswith("it waited too long: client schedule:s has 0 runs waiting")


def test_a_task_names_the_time_that_was_due() -> None:
    """By the schedule's own clock, whatever the time is when the run begins; braces can be written."""
    task = "{weekday}, {date} at {time} ({due}): write {{}}."
    schedule = Schedule(name="s", agent="clerk", task=task, cron="0 7 * * *", timezone="Europe/Berlin")
    due = next(schedule.due_after(datetime(2026, 11, 22, 12, tzinfo=UTC).timestamp()))
    assert schedule.task_at(due) == "Monday, 2026-11-23 at 07:00 (2026-11-23T07:00+01:00): write {}."


@pytest.mark.parametrize("task", ["{day}", "{}", "{date:%d}", "{date!r}", "{0}", "{date.year}", "{", "}", "{date"])
def test_a_placeholder_that_nobody_knows_is_refused(task: str) -> None:
    """With those that there are, or how braces are written."""
    with pytest.raises(ConfigurationError, match=r"write \{\{ and \}\} for braces"):
        Schedule(name="s", agent="clerk", task=task, cron="* * * * *")
