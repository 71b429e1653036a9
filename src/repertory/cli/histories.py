"""What is made of runs that there are: forks, further attempts, and room in the database."""

from __future__ import annotations

import sys
from pathlib import Path

from repertory.cli import output
from repertory.cli.databases import At, databases_to_read, find_id, no_run, open_service
from repertory.cli.options import AS_JSON, DATABASE, PORT, SOCKET, argument, option
from repertory.cli.steering import find_run, nobody_runs

_RUN = argument("RUN", "A run's id, or any part of it that fits one run only.", ...)
_TEXT = option("--text TEXT", "What to say to the new run.")


def fork(
    run_id: str = _RUN,
    *,
    iteration: int | None = option(
        "--iteration N",
        "The last that is the same; 0 for the task alone. Default: the last whole one.",
        min=0,
    ),
    text: str | None = _TEXT,
    db: str | None = DATABASE,
    socket: Path | None = SOCKET,
    port: int | None = PORT,
    as_json: bool = AS_JSON,
) -> None:
    """Begin a run that is as another was up to an iteration, beside it. Its id goes to standard output.

    The service goes on with it; without one it waits in the database for `repertory resume`.
    """
    _fork(run_id, At(db, socket, port), iteration, text, as_json=as_json)


def rewind(
    run_id: str = _RUN,
    *,
    iteration: int = option("--iteration N", "The last iteration that stays; 0 for the task alone.", ..., min=0),
    text: str | None = _TEXT,
    db: str | None = DATABASE,
    socket: Path | None = SOCKET,
    port: int | None = PORT,
    as_json: bool = AS_JSON,
) -> None:
    """End a run, and begin it again from one of its iterations. The record keeps all of both."""
    _fork(run_id, At(db, socket, port), iteration, text, as_json=as_json, rewind=True)


def retry(
    run_id: str = _RUN, *, db: str | None = DATABASE, socket: Path | None = SOCKET, port: int | None = PORT
) -> None:
    """Have the service go on with a run that failed or was stopped."""
    import anyio

    async def main() -> None:
        at = At(db, socket, port)
        async with open_service(at) as client:
            if client is None:
                raise nobody_runs(at)
            found = await find_run(client, run_id)
            await client.steer(found, "retry")
            output.say(f"{found} goes on in the service; follow it with: repertory attach {found}")

    anyio.run(main)


def remove(
    run_id: str = argument("RUN", "A run's whole id.", ...),
    *,
    db: str | None = DATABASE,
    socket: Path | None = SOCKET,
    port: int | None = PORT,
) -> None:
    """Remove a run that has ended, and all below it, for good.

    Its record, memory and contents go; what others have copies of stays theirs. Its id cannot be used again.
    """
    import time

    import anyio

    async def main() -> None:
        at = At(db, socket, port)
        async with open_service(at) as client:
            if client is not None:
                await client.remove(run_id)
                return
        from repertory.record import open_journal
        from repertory.supervisor.forking import check_removable

        path = databases_to_read(at.db)[0]
        async with open_journal(path) as journal:
            row = next((row for row in await journal.read_runs() if row.started.run_id == run_id), None)
            if row is None:
                raise no_run(run_id, str(path), db)
            check_removable(row)
            await journal.remove_run(run_id, at=time.time())

    anyio.run(main)


def _fork(run_id: str, at: At, iteration: int | None, text: str | None, *, as_json: bool, rewind: bool = False) -> None:
    import anyio

    async def main() -> tuple[str, bool]:
        async with open_service(at) as client:
            if client is not None:
                found = await find_run(client, run_id)
                return await client.fork(found, iteration, text=text, rewind=rewind), True
        return await _fork_here(run_id, at.db, iteration, text, rewind=rewind), False

    new, served = anyio.run(main)
    if as_json:
        output.print_json({"id": new})
        return
    sys.stdout.write(f"{new}\n")
    if sys.stdout.isatty():
        output.say(f"{'follow it with: repertory attach' if served else 'go on with it: repertory resume'} {new}")


async def _fork_here(run_id: str, db: str | None, iteration: int | None, text: str | None, *, rewind: bool) -> str:
    """Write a fork into a database that no process owns."""
    import time

    from repertory._ids import new_id
    from repertory.record import open_journal
    from repertory.supervisor.forking import Fork, fork_records

    wanted, new = Fork(iteration=iteration, text=text, rewound=rewind), new_id("run")
    wanted.check()
    path = databases_to_read(db)[0]
    async with open_journal(path) as journal:
        found = find_id([(row.started.run_id, row.started.parent_id) for row in await journal.read_runs()], run_id)
        if found is None:
            raise no_run(run_id, str(path), db)
        row = await journal.read_run(found)
        await journal.write(await fork_records(journal, row, wanted, new_id=new, at=time.time()))
    return new
