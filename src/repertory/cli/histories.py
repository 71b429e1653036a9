"""``repertory fork``, ``rewind`` and ``rm``: in the service, or in the database if no service has it."""

from __future__ import annotations

import time

from repertory._ids import new_id
from repertory.cli.commands import Answer, command
from repertory.cli.databases import no_run, open_source_of
from repertory.cli.options import ONE_RUN, At, argument, option
from repertory.cli.steering import new_run
from repertory.service.sources import RecordSource

_TEXT = option("--text TEXT", "A message to the new run.")


@command
async def fork(
    run_id: str = ONE_RUN,
    *,
    iteration: int | None = option(
        "--iteration N",
        "The last iteration to take over; 0 for the task alone. Default: the last complete one.",
        min=0,
    ),
    text: str | None = _TEXT,
    at: At,
) -> Answer:
    """Start a new run from an iteration of another one. Its id goes to standard output.

    The service continues it; without one it waits in the database for `repertory resume`.
    """
    return await _fork(run_id, at, iteration, text)


@command
async def rewind(
    run_id: str = ONE_RUN,
    *,
    iteration: int = option("--iteration N", "The last iteration that stays; 0 for the task alone.", ..., min=0),
    text: str | None = _TEXT,
    at: At,
) -> Answer:
    """End a run and start it again from one of its iterations. The record keeps both."""
    return await _fork(run_id, at, iteration, text, rewind=True)


@command
async def rm(run_id: str = argument("RUN", "A run's whole id.", ...), *, at: At) -> None:
    """Remove a run that has ended, and its sub-agents, for good.

    Its record, memory and contents are deleted; copies that other runs have stay. Its id cannot be used again.
    """
    from repertory.record import open_journal
    from repertory.supervisor.live_runs import check_over

    async with open_source_of(run_id, at) as (source, found):
        if found != run_id:
            raise no_run(run_id, source.database, at.db)
        if not isinstance(source, RecordSource):
            await source.remove(run_id)
            return
    async with open_journal(source.path) as journal:
        check_over(await journal.read_run(run_id), "remove")
        await journal.remove_run(run_id, at=time.time())


async def _fork(run_id: str, at: At, iteration: int | None, text: str | None, *, rewind: bool = False) -> Answer:
    """Let the service fork a run, or write the fork to a database that no process owns."""
    from repertory.record import open_journal
    from repertory.supervisor.forking import Fork, fork_records

    async with open_source_of(run_id, at) as (source, found):
        if not isinstance(source, RecordSource):
            new = await source.fork(found, iteration, text=text, rewind=rewind)
            return new_run(new, at, "follow it with: repertory attach")
    wanted, new = Fork(iteration=iteration, text=text, rewound=rewind), new_id("run")
    async with open_journal(source.path) as journal:
        row = await journal.read_run(found)
        await journal.write(await fork_records(journal, row, wanted, new_id=new, at=time.time()))
    return new_run(new, at, "continue it with: repertory resume")
