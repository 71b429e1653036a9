"""``repertory fork``, ``rewind`` and ``rm``: in the service, or in the database if no service has it."""

from __future__ import annotations

import time

from repertory._ids import new_id
from repertory.cli.commands import Answer, command
from repertory.cli.databases import databases_to_read, find_run, find_served, no_run, open_service
from repertory.cli.options import ONE_RUN, At, argument, option
from repertory.cli.steering import new_run

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
    from repertory.supervisor.forking import check_removable

    async with open_service(at) as client:
        if client is not None:
            await client.remove(run_id)
            return
    path = databases_to_read(at.db)[0]
    async with open_journal(path) as journal:
        row = next((row for row in await journal.read_runs() if row.started.run_id == run_id), None)
        if row is None:
            raise no_run(run_id, str(path), at.db)
        check_removable(row)
        await journal.remove_run(run_id, at=time.time())


async def _fork(run_id: str, at: At, iteration: int | None, text: str | None, *, rewind: bool = False) -> Answer:
    """Let the service fork a run, or write the fork to a database that no process owns."""
    from repertory.record import open_journal
    from repertory.supervisor.forking import Fork, fork_records

    async with open_service(at) as client:
        if client is not None:
            found = await find_served(client, run_id)
            new = await client.fork(found, iteration, text=text, rewind=rewind)
            return new_run(new, "follow it with: repertory attach")
    wanted, new = Fork(iteration=iteration, text=text, rewound=rewind), new_id("run")
    path = databases_to_read(at.db)[0]
    async with open_journal(path) as journal:
        row = find_run(await journal.read_runs(), run_id)
        if row is None:
            raise no_run(run_id, str(path), at.db)
        await journal.write(await fork_records(journal, row, wanted, new_id=new, at=time.time()))
    return new_run(new, "continue it with: repertory resume")
