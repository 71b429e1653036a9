"""Schedules: runs that start at set times, each due time once, despite kills, downtime and clocks that jump.

The outcome of every due time is recorded: a run was started for it, with an id derived from it, or it was skipped, with
the reason. Any process continues from the last one recorded. Of several processes that share a journal, one at a time
settles the due times of a schedule.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set
from datetime import UTC, datetime
from string import Formatter
from typing import Final, Literal, TypeAlias
from zoneinfo import ZoneInfo

import anyio
import anyio.lowlevel
import msgspec

from repertory._choices import check_choice, check_number, check_pattern, check_text
from repertory._repeated_event import RepeatedEvent
from repertory.errors import ConfigurationError, JournalError, QueueFull, RepertoryError, RunElsewhere, RunExists
from repertory.record.journal import Journal
from repertory.record.records import FINAL_STATES, Outcome, ScheduleSettled
from repertory.runs.log import log
from repertory.service.duties import Duties

Missed: TypeAlias = Literal["skip", "once", "all"]
Overlap: TypeAlias = Literal["skip", "allow"]

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}")
PLACEHOLDERS: Final = ("date", "time", "weekday", "due")
_GRACE: Final = 60.0  # seconds; cron has no finer unit than minutes, so a run that is later by less is on time
_POLL: Final = 30.0  # seconds between two looks at the clock, which may be set
_CORRECTION: Final = 3 * 3600.0  # seconds; cron(8) treats larger jumps as corrections of the clock, and starts over
_YIELD_EVERY: Final = 500  # due times that are computed without letting other tasks run
_LONG_AGO: Final = 365 * 86_400.0  # seconds; older due times are ignored, as with Temporal's catchup window
_MAX_CATCH_UP: Final = 1_000  # due times; as many runs as one client may have in the queue by default


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """``[[schedules]]``: an agent, a task, and when runs start. docs/company.md says what the fields mean.

    Raises:
        ConfigurationError: A field is invalid, or no time is ever due.
    """

    name: str
    agent: str
    task: str
    cron: str
    timezone: str = "UTC"
    missed: Missed = "skip"
    overlap: Overlap = "skip"
    priority: int | None = None

    def __post_init__(self) -> None:
        words = "be a letter or digit, then letters, digits, _ and -, at most 60 in all"
        check_pattern("schedule name", self.name, _NAME, words)
        check_text("a task", self.task)
        self._check_placeholders()
        check_choice("missed", self.missed, Missed)
        check_choice("overlap", self.overlap, Overlap)
        check_number("priority", self.priority, int, least=-100, most=100, none=True)
        if len(self.cron.split()) != 5:
            raise ConfigurationError(
                f"cron must be minute, hour, day of the month, month, day of the week, as '0 7 * * MON-FRI', got "
                f"{self.cron!r:.100}"
            )
        next(self.due_after(0.0))

    @property
    def rule(self) -> str:
        """The text that determines its due times."""
        return f"{' '.join(self.cron.split())} {self.timezone}"

    def due_after(self, time: float) -> Iterator[float]:
        """Its due times after a time, in order; all in seconds since 1970.

        Raises:
            ConfigurationError: ``cron`` is invalid, there is no such timezone, or no time is ever due.
        """
        try:
            from cronsim import CronSim, CronSimError
        except ModuleNotFoundError as error:
            raise ConfigurationError("schedules need cronsim: pip install 'repertory[service]'") from error
        try:
            zone = ZoneInfo(self.timezone)
        except (OSError, ValueError) as error:  # the KeyError of zoneinfo is a LookupError, see below
            raise ConfigurationError(f"there is no timezone {self.timezone!r:.100}") from error
        except LookupError as error:
            raise ConfigurationError(f"there is no timezone {self.timezone!r:.100}; is tzdata installed?") from error
        last = time
        try:
            for found in CronSim(self.cron, datetime.fromtimestamp(time, zone)):
                due = found.timestamp()
                # If the clock skips or is set back, two due times may coincide or come out of order.
                if due > last:
                    last = due
                    yield due
        except (CronSimError, ValueError) as error:  # ValueError for a number of thousands of digits
            raise ConfigurationError(f"cron {self.cron!r:.100}: {error}") from error
        if last == time:
            raise ConfigurationError(f"cron {self.cron!r:.100} is never due")

    def task_at(self, due: float) -> str:
        """The task of the run for a due time."""
        at = datetime.fromtimestamp(due, ZoneInfo(self.timezone))
        # Not the locale's names: the same due time must give the same task on every machine.
        weekday = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")[at.weekday()]
        return self.task.format(
            date=f"{at:%Y-%m-%d}", time=f"{at:%H:%M}", weekday=weekday, due=at.isoformat(timespec="minutes")
        )

    def _check_placeholders(self) -> None:
        try:
            parts = list(Formatter().parse(self.task))
        except ValueError as error:
            raise ConfigurationError(f"a task: {error}; write {{{{ and }}}} for braces") from error
        for _, name, form, conversion in parts:
            if name is not None and (name not in PLACEHOLDERS or form or conversion):
                listed = ", ".join(f"{{{each}}}" for each in PLACEHOLDERS)
                raise ConfigurationError(
                    f"a task has no placeholder {{{name[:60]}}}; there are {listed}; write {{{{ and }}}} for braces"
                )

    def run_id(self, due: float) -> str:
        """The id of the run for a due time."""
        return f"schedule-{self.name}-{_minute(due)}"


def _minute(due: float) -> str:
    return f"{datetime.fromtimestamp(due, UTC):%Y%m%dT%H%MZ}"


def _begins_anew(schedule: Schedule, last: ScheduleSettled, now: float) -> bool:
    """Whether a schedule does not go on from the last outcome on record."""
    clock_was_wrong = last.due > now + _CORRECTION
    return last.outcome == "ended" or last.rule != schedule.rule or clock_was_wrong


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule and its state.

    Attributes:
        next: When it is due next, in seconds since 1970.
        last: What happened at its last due time: ``started`` or ``skipped``; None if none has come since it began.
    """

    name: str
    agent: str
    cron: str
    timezone: str
    next: float
    last: ScheduleSettled | None


class Scheduler:
    """Starts the runs of schedules when they are due, of those whose duty this process has.

    ``start`` starts the run of a schedule for a due time, and is safe to repeat.
    """

    def __init__(
        self,
        journal: Journal,
        start: Callable[[Schedule, float], Awaitable[object]],
        *,
        clock: Callable[[], float],
        duties: Duties,
    ) -> None:
        self._journal = journal
        self._start = start
        self._clock = clock
        self._duties = duties
        self._changed = RepeatedEvent()
        duties.on_change.append(self._changed.set)
        # A due time during a takeover by another machine does not count as missed.
        self._grace = _GRACE + duties.take_over
        self._schedules: Mapping[str, Schedule] | None = None  # None before the first plan: then none of them is ended
        self._company = ""
        self._latest: dict[str, ScheduleSettled] = {}  # of those that this process settles
        self._full: dict[str, str] = {}  # why a due time of a schedule waits for room in the queue

    def plan(self, schedules: Sequence[Schedule], *, company: str = "") -> None:
        """Use these schedules from now on, and no others; those of other companies in the journal are not ended."""
        self._schedules = {schedule.name: schedule for schedule in schedules}
        self._company = company
        self._changed.set()

    async def list(self) -> list[ScheduleView]:
        """Every schedule with when it is due next."""
        now, views = self._clock(), list[ScheduleView]()
        settled = await self._journal.read_settled()
        for schedule in (self._schedules or {}).values():
            last = settled.get(schedule.name)
            after = now if last is None or _begins_anew(schedule, last, now) else max(now, last.due)
            views.append(
                ScheduleView(
                    name=schedule.name,
                    agent=schedule.agent,
                    cron=schedule.cron,
                    timezone=schedule.timezone,
                    next=next(schedule.due_after(after)),
                    last=last if last is not None and last.outcome in ("started", "skipped") else None,
                )
            )
        return views

    async def run(self) -> None:
        """Settle each due time when it comes, until cancelled."""
        while self._schedules is None:
            await self._changed.wait()
        self._duties.want("schedule", self._schedules)
        settled = await self._journal.read_settled()
        alone, own = self._duties.alone, self._company
        self._latest = {name: last for name, last in settled.items() if alone or (own and last.company == own)}
        while True:
            seen = self._changed.count
            wait = await self._settle_all()
            with anyio.move_on_after(min(wait, _POLL)):
                await self._changed.wait(seen)

    async def _settle_all(self) -> float:
        """Settle what is due now; returns the seconds until the next due time."""
        planned = self._schedules or {}
        left = {name for name, last in self._latest.items() if name not in planned and last.outcome != "ended"}
        # A schedule that is in no living machine's file any more is ended by the machine that can take it over; as long
        # as it is in one's file, that machine keeps the duty.
        self._duties.want("schedule", [*planned, *left])
        for name in [name for name in left if self._duties.held("schedule", name)]:
            await self._settle(name, self._latest[name].rule, self._clock(), "ended")
            left.remove(name)
        mine = [schedule for name, schedule in planned.items() if self._duties.held("schedule", name)]
        await self._read_settled({schedule.name for schedule in mine} | left)
        wait = _POLL
        for schedule in mine:
            last = self._latest.get(schedule.name)
            now = self._clock()
            if last is None or _begins_anew(schedule, last, now):
                last = await self._settle(schedule.name, schedule.rule, now, "began")
            coming = await self._settle_due(schedule, last.due)
            wait = min(wait, max(0.0, coming - self._clock()))
        return wait

    async def _read_settled(self, mine: Set[str]) -> None:
        """Read the last outcomes of schedules that another machine has settled and that are now this one's."""
        if self._duties.alone or mine == self._latest.keys():
            return
        settled = await self._journal.read_settled() if mine - self._latest.keys() else {}
        known = settled | self._latest
        self._latest = {name: known[name] for name in mine if name in known}
        self._full.clear()  # of those that others settle meanwhile it may become untrue; the next attempt says it again

    async def _settle_due(self, schedule: Schedule, after: float) -> float:
        """Settle the due times after a time up to now; returns the next due time."""
        now, due = self._clock(), list[float]()
        if after < now - _LONG_AGO and next(schedule.due_after(after)) <= now - _LONG_AGO:
            # The clock was wrong, or no process ran for years: each minute since 1970 would be 29 million due times.
            after = now - _LONG_AGO
            words = "due times more than a year ago are not made up for"
            await self._settle(schedule.name, schedule.rule, after, "began", reason=words)
        coming = after
        for coming in schedule.due_after(after):
            if coming > now:
                break
            due.append(coming)
            if len(due) % _YIELD_EVERY == 0:
                await anyio.lowlevel.checkpoint()
        # An earlier process may have started the run but not recorded the outcome.
        if due and await self._state_of(schedule.run_id(due[0])) is not None:
            await self._settle(schedule.name, schedule.rule, due[0], "started", schedule.run_id(due.pop(0)))
        on_time = [each for each in due if each >= now - self._grace]
        missed = due[: len(due) - len(on_time)]
        catch_up = len(missed) if schedule.missed == "all" else int(schedule.missed == "once" and not on_time)
        skipped = missed[: len(missed) - min(catch_up, _MAX_CATCH_UP)]
        if skipped:
            words = self._full.get(schedule.name, "no process was running when it was due")
            await self._settle(schedule.name, schedule.rule, skipped[-1], "skipped", reason=words, count=len(skipped))
        for each in due[len(skipped) :]:
            beside = schedule.missed == "all" and each < now - self._grace
            if not await self._begin(schedule, each, beside=beside):
                break  # it stays due
        return coming

    async def _begin(self, schedule: Schedule, due: float, *, beside: bool) -> bool:
        """Start the run of a due time, or skip it; returns whether it is settled."""
        run_id, skipped = schedule.run_id(due), ""
        before = self._latest[schedule.name].run_id
        if not beside and schedule.overlap == "skip" and await self._state_of(before) not in (None, *FINAL_STATES):
            skipped = f"run {before} of the time before has not ended"
        else:
            try:
                await self._start(schedule, due)
            except QueueFull as error:
                self._full[schedule.name] = f"it waited too long: {error}"
                log(logging.WARNING, "schedule.waits", schedule=schedule.name, due=_minute(due), reason=str(error))
                return False
            except JournalError:
                raise
            except (RunElsewhere, RunExists):
                pass  # another machine has begun it, or its task has been changed since
            except RepertoryError as error:
                skipped = f"it could not be started: {error}"
        outcome: Outcome = "skipped" if skipped else "started"
        await self._settle(schedule.name, schedule.rule, due, outcome, "" if skipped else run_id, reason=skipped)
        return True

    async def _state_of(self, run_id: str) -> str | None:
        """The recorded state of a run; None if there is no run with that id."""
        row = await self._journal.run_or_none(run_id)
        return None if row is None else row.state

    async def _settle(
        self, name: str, rule: str, due: float, outcome: Outcome, run_id: str = "", *, reason: str = "", count: int = 1
    ) -> ScheduleSettled:
        """Record the outcome of a due time. The previous run stays known, so that it is not overlapped."""
        last = self._latest.get(name)
        kept = run_id or (last.run_id if last is not None else "")
        settled = ScheduleSettled(
            schedule=name,
            rule=rule,
            due=due,
            outcome=outcome,
            run_id=kept,
            reason=reason,
            count=count,
            at=self._clock(),
            company=self._company,
        )
        await self._journal.write([settled])
        self._latest[name] = settled
        self._full.pop(name, None)
        if outcome == "skipped":
            log(logging.WARNING, "schedule.skipped", schedule=name, due=_minute(due), count=count, reason=reason)
        return settled
