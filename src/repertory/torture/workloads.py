"""What child processes do until they are killed. The functions are called in a forked process."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import select
import sqlite3
import sys
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec

from repertory._error_texts import leaves_of
from repertory.agents import Agent, research_team
from repertory.errors import JournalError, RepertoryError, RunNotFound
from repertory.llm.messages import Text
from repertory.record import Draft, Durability, Ledger, open_journal
from repertory.record.records import Effect
from repertory.supervisor import Run, Supervisor, open_supervisor
from repertory.torture import shim
from repertory.torture.approvals import Lie, asking_agent, decide_for_ever
from repertory.torture.team import RUN_ID, TASK, effects_team

RUNS = ("run-a", "run-b")
QUESTION = "How does the pantry keep count of its jars, who refills it, and what happens when a jar breaks?"


def say(text: str) -> None:
    """Send a line to the parent in one write, so that a kill leaves all of it or nothing."""
    os.write(1, f"{text}\n".encode())


def stand_still() -> None:
    """Wait to be killed. If the parent was killed itself, nobody reads the output any more, and that ends it, too."""
    output = select.poll()
    output.register(1, 0)
    output.poll()
    os._exit(1)


# --- power cuts -------------------------------------------------------------------------------------------


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a power-cut scenario.

    Attributes:
        kind: ``writers`` append concurrently; ``team`` runs agents.
        life: Its number, from 0.
        seed: Determines sizes and order.
        durability: The journal's durability.
        rules: The faults.
        ending: ``close`` closes the journal; ``exit`` ends without closing it.
        batches: How many batches each of the writers appends.
        size: Most characters of an entry.
        reader: Whether another process reads the file all the time.
    """

    kind: str
    life: int
    seed: int
    durability: Durability = "power"
    rules: list[shim.Rule] = []
    ending: str = "close"
    batches: int = 6
    size: int = 200
    reader: bool = False


def live(folder: str, trace: str, life: Life) -> None:
    """Run one life of a power-cut scenario; prints ``FAILED`` with a typed error if a fault stopped it."""
    shim.begin(folder, trace, life.rules)
    path = os.path.join(folder, "data", "journal.db")
    main = _write if life.kind == "writers" else _run_team
    backend = "trio" if life.seed % 2 else "asyncio"
    try:
        anyio.run(partial(main, path, life), backend=backend)
    except (RepertoryError, BaseExceptionGroup) as error:
        for leaf in leaves_of(error):
            if not isinstance(leaf, RepertoryError):
                raise
        say(f"FAILED {type(error).__name__}: {error}")


async def _write(path: str, life: Life) -> None:
    chance = random.Random(life.seed)
    async with open_journal(path, durability=life.durability, close_timeout=10.0) as journal:
        ledgers = [await Ledger.open(journal, run_id) for run_id in RUNS]
        shim.mark("opened")
        for ledger in ledgers:
            # Somebody may have acted on the past entries that a process showed after opening.
            for entry in ledger.snapshot():
                shim.mark(f"ack {ledger.run_id} {entry.position} {text_of_entry(entry)}")

        async def append(writer: int, ledger: Ledger, threaded: bool) -> None:
            for number in range(life.batches):
                drafts = _batch(str(life.life), writer, number, fill=lambda: chance.randint(0, life.size))
                if threaded:
                    entries = await anyio.to_thread.run_sync(partial(ledger.append_sync, *drafts))
                else:
                    entries = await ledger.append(*drafts)
                for entry in entries:
                    shim.mark(f"ack {ledger.run_id} {entry.position} {text_of_entry(entry)}")

        try:
            async with anyio.create_task_group() as group:
                for writer in range(chance.randint(1, 6)):
                    group.start_soon(append, writer, ledgers[writer % 2], chance.random() < 0.3)
        finally:
            if life.ending == "exit":
                os._exit(0)


def _batch(process: str, writer: int, number: int, *, fill: Callable[[], int] = lambda: 0) -> list[Draft]:
    """One to three entries, named as ``judging.append_problems`` expects, each filled up with ``fill()`` letters."""
    size = 1 + (number + writer) % 3
    texts = [f"{process}.{writer}.{number}.{size}.{part} {'x' * fill()}" for part in range(size)]
    return [Draft(role="user", kind="user-input", content=(Text(text),)) for text in texts]


def text_of_entry(entry: Any) -> str:
    """The name of an entry, without its filling."""
    return str(entry.content[0].text).partition(" ")[0]


async def _run_team(path: str, life: Life) -> None:
    def tell(effect: str, what: str) -> None:
        shim.mark(f"effect {effect} {what}")

    async with open_supervisor(path, durability=life.durability) as supervisor:
        shim.mark("opened")
        run = await _begin(supervisor, effects_team(tell, steps=3, pause=0.001, reuse=bool(life.seed // 2 % 2)), TASK)
        shim.mark("spawned")
        answer = await run.wait_result()
        shim.mark(f"answer {answer}")
        if life.ending == "exit":
            os._exit(0)


def hold_open(database: str) -> None:
    """Read a file, if there is one, and keep reading until this process is killed.

    A file that has no log yet is left alone: a foreign reader would keep it from getting one, and the journal waits.
    """
    if not os.path.exists(database):
        return
    with contextlib.suppress(sqlite3.Error):  # it may be incomplete
        connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, isolation_level=None)
        if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
            return
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        say("OPEN")
        stand_still()


# --- kills ------------------------------------------------------------------------------------------------


def _account(path: str, lines: int) -> Callable[[str], None]:
    """Return a function that appends a line to a file in one write.

    After so many lines the process stands still: on a slow machine it would end before it is killed.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    written = itertools.count(1)

    def write(line: str) -> None:
        os.write(descriptor, f"{line}\n".encode())
        if next(written) >= lines:
            stand_still()

    return write


def run_effects(
    *, account: str, steps: int, pause: float, reuse: bool, unsafe: Effect, lines: int = sys.maxsize, **place: Any
) -> None:
    """Run the team with effects, or resume it; its effects are lines of a file, at most ``lines`` of them."""
    write = _account(account, lines)

    def tell(effect: str, what: str) -> None:
        write(f"{effect} {what}")

    _finish(effects_team(tell, steps=steps, pause=pause, reuse=reuse, unsafe=unsafe), TASK, **place)


def run_approvals(*, account: str, steps: int, pause: float, lie: Lie, lines: int = sys.maxsize, **place: Any) -> None:
    """Run or resume an agent whose calls wait, together with a task that decides them.

    Both write lines to a file, at most ``lines`` of them.
    """
    tell = _account(account, lines)
    decide = partial(decide_for_ever, tell=tell, pause=pause, lie=lie)
    _finish(asking_agent(tell, steps=steps, pause=pause, lie=lie), TASK, meanwhile=decide, **place)


def run_research(*, corpus: str, **place: Any) -> None:
    """Run the shipped research team with the offline model, or resume it."""
    _finish(research_team(Path(corpus), model="offline"), QUESTION, **place)


def _finish(
    agent: Agent[Any],
    task: str,
    *,
    database: str,
    durability: Durability,
    backend: str,
    meanwhile: Callable[[Run[Any]], Coroutine[Any, Any, None]] | None = None,
) -> None:
    """Run an agent, or resume its run, and print ``DONE`` with its answer."""

    async def main() -> None:
        async with open_supervisor(database, durability=durability) as supervisor:
            say("OPEN")
            run = await _begin(supervisor, agent, task)
            async with anyio.create_task_group() as tasks:
                if meanwhile is not None:
                    tasks.start_soon(meanwhile, run)
                answer = await run.wait_result()
                say(f"DONE {' / '.join(answer.splitlines())}")
                tasks.cancel_scope.cancel()

    anyio.run(main, backend=backend)


def append(database: str, durability: Durability, backend: str, early: bool = False) -> None:
    """Append forever from ten tasks, printing ``NAME=POSITION`` for acknowledged entries, one batch per line.

    Args:
        early: Print the names, without positions, before they are acknowledged; for a control.
    """

    async def main() -> None:
        async with open_journal(database, durability=durability) as journal:
            ledger = await Ledger.open(journal, RUN_ID)
            process = f"{os.getpid()}-{time.monotonic_ns()}"
            say("OPEN")

            async def write(writer: int) -> None:
                for number in range(1_000_000):
                    drafts = _batch(process, writer, number)
                    if early:
                        say(" ".join(f"{text_of_entry(draft)}=" for draft in drafts))
                    entries = await ledger.append(*drafts)
                    if not early:
                        say(" ".join(f"{text_of_entry(entry)}={entry.position}" for entry in entries))

            async with anyio.create_task_group() as group:
                for writer in range(10):
                    group.start_soon(write, writer)

    anyio.run(main, backend=backend)


def open_and_leave(database: str) -> None:
    """Open a journal that another process may own, and print the outcome."""

    async def main() -> None:
        try:
            async with open_journal(database):
                say("OPENED")
        except JournalError as error:
            say(f"REFUSED {type(error).__name__}")

    anyio.run(main, backend="trio")


async def _begin(supervisor: Supervisor, agent: Agent[Any], task: str) -> Run[Any]:
    try:
        return await supervisor.resume(RUN_ID, agent=agent)
    except RunNotFound:
        return await supervisor.spawn(agent, task, run_id=RUN_ID)
