"""Reads that nobody waits for any more."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import anyio
import pytest

from backends import RunAsync
from patience import PATIENCE
from postgres_server import PostgresServer
from repertory.record import Journal, open_journal


@pytest.mark.parametrize("engine", ["file", "server"])
def test_cancelled_reads_take_no_turns(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest, run_async: RunAsync
) -> None:
    """Each would run its query, and those that somebody waits for would come after all of them."""
    server: PostgresServer | None = request.getfixturevalue("postgres") if engine == "server" else None
    place = tmp_path / "a.db" if server is None else server.emptied_journal()
    begun, first, go_on = list[int](), threading.Semaphore(0), threading.Event()

    async def read(journal: Journal, number: int) -> None:
        def decode(_: Iterable[Any]) -> None:
            begun.append(number)
            first.release()
            go_on.wait(PATIENCE)

        await journal._query("nothing", "SELECT 1", [], decode)

    async def main() -> None:
        begun.clear()
        go_on.clear()
        async with open_journal(place) as journal:
            most = journal.reader.threads  # type: ignore[attr-defined]
            for numbers in (range(most), range(most, 2 * most)):
                async with anyio.create_task_group() as tasks:
                    for number in numbers:
                        tasks.start_soon(read, journal, number)
                    for _ in range(most if 0 in numbers else 0):
                        await anyio.to_thread.run_sync(first.acquire)
                    await anyio.wait_all_tasks_blocked()
                    tasks.cancel_scope.cancel()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read, journal, -1)
                await anyio.wait_all_tasks_blocked()
                go_on.set()
        assert sorted(begun) == [-1, *range(most)]

    run_async(main)
