"""Removes runs that ended long ago from the journal, so that it does not grow forever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio

from repertory._counting import counted
from repertory.errors import JournalError, RunError
from repertory.service.duties import Duties
from repertory.supervisor import Supervisor

EVERY: Final = 3600.0  # seconds between two looks: retention is in days
_DAY: Final = 86_400.0
_KIND, _NAME = "retention", "finished runs"


async def remove_finished(
    supervisor: Supervisor, *, days: float, now: float, tell: Callable[[str], object]
) -> list[str]:
    """Remove every tree of runs that ended more than ``days`` days ago, for good; returns their ids, and tells each.

    A run that is continued meanwhile stays.
    """
    removed: list[str] = []
    for run_id in await supervisor.journal.read_ended_roots(now - days * _DAY):
        try:
            await supervisor.remove(run_id)
        except RunError:  # somebody has just sent it a message, or removed it
            continue
        removed.append(run_id)
        tell(run_id)
    return removed


async def run_retention(
    supervisor: Supervisor,
    duties: Duties,
    *,
    days: float,
    clock: Callable[[], float],
    report: Callable[[str], None],
    tell: Callable[[str], object],
) -> None:
    """Call ``remove_finished`` every hour while this process has that duty, until cancelled.

    If the clock was set forward by more than a day it waits for another hour: nothing that is removed comes back.
    """
    duties.want(_KIND, [_NAME])
    offset = clock() - anyio.current_time()
    while True:
        await duties.wait_held(_KIND, _NAME)
        now, before = clock(), offset
        offset = now - anyio.current_time()
        if offset - before > _DAY:
            ahead = counted(round((offset - before) / _DAY), "day")
            report(f"the clock was set forward by {ahead}: old runs stay for another hour")
            await anyio.sleep(EVERY)
            continue
        try:
            removed = await remove_finished(supervisor, days=days, now=now, tell=tell)
        except JournalError as error:  # runs that write get the error themselves
            report(f"old runs were not removed: {error}")
        else:
            if removed:
                report(f"removed {counted(len(removed), 'run')} that ended more than {counted(days, 'day')} ago")
        await anyio.sleep(EVERY)
