"""A program that opens a journal, forks a child that outlives it, and kills itself: see test_ownership."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import anyio

import journal_kit as kit
from repertory.errors import JournalClosed
from repertory.record import Journal, Ledger, open_journal
from repertory.record.postgres_journal import PostgresJournal


def say(what: object) -> None:
    """Print at once, and as one line."""
    os.write(1, f"{what}\n".encode())


def attempt(name: str, work: Callable[[], Any]) -> None:
    """Say how a use of the journal ends."""
    try:
        say(f"{name}: {work()}")
    except JournalClosed as error:
        say(f"{name}: {error}")


def use(journal: Journal, ledger: Ledger) -> None:
    """What a child may try."""
    attempt("submit", lambda: journal.submit([kit.appended("r", 1)]))
    attempt("append", lambda: ledger.append_sync(kit.draft()))
    attempt("read", lambda: anyio.run(journal.read_runs))
    attempt("close", lambda: anyio.run(journal.aclose))
    say(f"pid {os.getpid()}")
    signal.pause()


def child(journal: Journal, ledger: Ledger) -> None:
    """On a thread of its own: the forked one is in the middle of the parent's event loop."""
    thread = threading.Thread(target=use, args=(journal, ledger))
    thread.start()
    thread.join()


async def connection(journal: Journal) -> int:
    """Which of the server's processes answers its reads; 0 without a server."""
    if not isinstance(journal, PostgresJournal):
        return 0
    return await journal.reader.use("ask", lambda own: int(own.execute("SELECT pg_backend_pid()").fetchone()[0]))


async def main() -> None:
    """Open, use, fork, and die when told."""
    async with open_journal(sys.argv[1]) as journal:
        ledger = await Ledger.open(journal, "r")
        await ledger.append(kit.draft("kept"))
        before = await connection(journal)
        forked = multiprocessing.get_context("fork").Process(target=child, args=(journal, ledger))
        forked.start()
        sys.stdin.readline()
        await ledger.append(kit.draft("after the fork"))
        say("goes on" if await connection(journal) == before else "has lost its connection")
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[2])
