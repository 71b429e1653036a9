"""Kills: processes are killed or stopped at random instants, and the next one continues from what they left."""

from __future__ import annotations

import random
import signal
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from repertory.errors import JournalLocked, JournalUnreadable, RepertoryError
from repertory.record.moving import move_journal
from repertory.record.records import Effect
from repertory.torture.approvals import TOOLS, Lie, approval_problems
from repertory.torture.children import Child, start
from repertory.torture.frame import Case, Outcome
from repertory.torture.judging import (
    Place,
    append_problems,
    effect_problems,
    file_problems,
    query,
    read_appends,
    run_problems,
)
from repertory.torture.servers import drop_databases, make_database
from repertory.torture.team import RUN_ID, expected_answer
from repertory.torture.workloads import append, open_and_leave, run_approvals, run_effects, run_research

_TIMEOUT: Final = 150.0  # seconds; a life takes a third of one, on a busy machine a hundred times as long
_OPENING: Final = 0.05  # seconds that opening takes, about
_MOMENT: Final = 0.01  # seconds that one thing takes, about
_MOST_DONE: Final = 5  # things that a life does, of some fifty to a hundred in all lives
_SLOWER: Final = 4  # a run on a server takes that many times as long to continue: it has to ask who owns the run
_MOST_KILLS: Final = 14
_STEPS: Final = 12
_ASKING_STEPS: Final = 16

_CORPUS: Final = {
    "pantry.py": '"""The pantry counts its jars."""\n\n'
    + "".join(
        f"def shelf_{n}(jars):\n    # shelf {n} keeps count of its jars in row {n * 7}\n    return jars - {n}\n\n"
        for n in range(60)
    ),
    "refill.py": '"""Who refills the pantry."""\n\n'
    + "".join(
        f"class Refiller{n}:\n    def refill(self, jar):\n        '''The cook refills jar {n} on day {n}.'''\n"
        for n in range(40)
    ),
    "breakage.py": '"""What happens when a jar breaks."""\n\n'
    + "".join(
        f"def on_break_{n}(jar):\n    raise BrokenJar(f'jar {n} breaks: sweep, then count again')\n\n"
        for n in range(50)
    ),
}


class _Victim:
    """One database, and the processes that work on it one after the other.

    Args:
        done: Returns how many things a process has done so far. Kills are timed by it, so that they meet the process
            at work on a slow machine too; None if that cannot be seen: then kills are timed by the clock.
    """

    def __init__(
        self,
        case: Case,
        function: Callable[..., None],
        *,
        done: Callable[[Child], int] | None = None,
        **arguments: Any,
    ) -> None:
        self.file = case.folder / "journal.db"
        self._case = case
        self._address = make_database(case.server, case.database) if case.server else None
        self.chance = random.Random(case.seed)
        self.outcome = Outcome()
        self._function = function
        self._done = done
        self._place = self._address.uri if self._address is not None else str(self.file)
        self._arguments = {
            **arguments,
            "database": self._place,
            "durability": self.chance.choice(("power", "process")),
        }

    def close(self) -> None:
        """Drop the database on a server."""
        if self._address is not None:
            drop_databases(self._case.server, self._case.database)

    def read(self) -> None:
        """Copy a database on a server to the file, every row compared, so that it can be examined."""
        if self._address is None:
            return
        self.file.unlink(missing_ok=True)
        until = time.monotonic() + _TIMEOUT
        while True:
            try:
                move_journal(self._address, self.file)
                break
            except JournalUnreadable:  # killed before there were tables
                break
            except JournalLocked:  # the server has not yet noticed that its client is dead
                if time.monotonic() > until:
                    raise
                time.sleep(_OPENING)

    def live(self, *, most: float) -> str:
        """Start a process and kill it while it opens the file, or soon after that: within ``most`` seconds or so.

        Returns:
            Its output.
        """
        # Only what writes an account knows how much it has done, and can be held back.
        held = {"lines": _MOST_DONE + 3} if "account" in self._arguments else {}
        with self._start(**held) as child:
            most *= 1 if self._address is None else _SLOWER
            if self.chance.random() < 0.2:
                child.read(self.chance.uniform(0.0, _OPENING))
            elif child.read(_TIMEOUT, until=b"OPEN"):
                self._let_work(child, most)
            if self.chance.random() < 0.2:
                self._stop(child, most)
            child.signal(signal.SIGKILL)
            return self._end(child)

    def finish(self) -> str:
        """Start a process and let it finish; returns its output."""
        with self._start() as child:
            if not child.read(_TIMEOUT):
                self.outcome.failures.append(f"the last process did not end within {_TIMEOUT:.0f} s")
                child.signal(signal.SIGKILL)
            return self._end(child)

    def _start(self, **more: int) -> Child:
        backend = self.chance.choice(("trio", "asyncio"))
        return start(self._function, backend=backend, **self._arguments, **more)

    def _let_work(self, child: Child, most: float) -> None:
        if self._done is None:
            child.read(self.chance.uniform(0.0, most))
            return
        wanted, until = self._done(child) + self.chance.randint(0, _MOST_DONE), time.monotonic() + _TIMEOUT
        while self._done(child) < wanted and time.monotonic() < until:
            if child.read(_MOMENT / 10):
                return
        child.read(self.chance.uniform(0.0, _MOMENT))

    def _stop(self, child: Child, most: float) -> None:
        child.signal(signal.SIGSTOP)
        self.outcome.count("SIGSTOPs")
        child.read(self.chance.uniform(0.0, 0.02))
        # A stopped process still owns a file. On a server others may write meanwhile.
        if (
            self._address is None
            and "OPEN" in child.output
            and "DONE" not in child.output
            and self.chance.random() < 0.5
        ):
            with start(open_and_leave, database=self._place) as other:
                other.read(_TIMEOUT)
                if "REFUSED JournalLocked" not in other.output:
                    self.outcome.failures.append(
                        f"a stopped process owned the file, and another one said {other.output!r}"
                    )
        if self.chance.random() < 0.7:
            child.signal(signal.SIGCONT)
            child.read(self.chance.uniform(0.0, most))

    def _end(self, child: Child) -> str:
        status = child.wait()
        child.read(_TIMEOUT)
        if status == -signal.SIGKILL:
            self.outcome.count("SIGKILLs")
        elif status != 0:
            last = child.output.strip().splitlines()
            self.outcome.failures.append(f"a process ended with {status}: {last[-1] if last else 'no word'}")
        return child.output


def run_case(case: Case) -> Outcome:
    """Kill processes that work on one database until they are done; then examine it."""
    kind = random.Random(f"kind {case.seed}").random()
    return (kill_effects if kind < 0.6 else kill_appends if kind < 0.9 else kill_research)(case)


def kill_effects(case: Case, *, most: int = _MOST_KILLS, pause: float = 0.003, unsafe: Effect = "unsafe") -> Outcome:
    """Kill a team whose tools have effects."""
    return _kill_until_answered(
        case,
        run_effects,
        expected_answer(_STEPS),
        effect_problems,
        most=most,
        within=0.06,
        counted=("effects", ""),
        steps=_STEPS,
        pause=pause,
        reuse=case.seed % 2 == 0,
        unsafe=unsafe,
    )


def kill_approvals(case: Case, *, most: int = _MOST_KILLS, lie: Lie = "") -> Outcome:
    """Kill an agent whose calls wait for a decision or a result: while they wait, are decided, or run."""
    return _kill_until_answered(
        case,
        run_approvals,
        f"{_ASKING_STEPS * len(TOOLS)} calls",
        approval_problems,
        most=most,
        within=0.09,
        counted=("decisions", "told"),
        steps=_ASKING_STEPS,
        pause=0.004,
        lie=lie,
    )


def _kill_until_answered(
    case: Case,
    function: Callable[..., None],
    answer: str,
    problems: Callable[[Path, list[str]], list[str]],
    *,
    most: int,
    within: float,
    counted: tuple[str, str],
    **arguments: Any,
) -> Outcome:
    """Kill a run that keeps an account, and compare its record with the account once it has answered.

    Args:
        problems: Compares the database with the lines of the account.
        most: The most kills.
        within: Seconds, as for ``_Victim.live``.
        counted: What to count, and how its lines in the account begin.
        arguments: For the workload ``function``.
    """
    account = case.folder / "account.txt"
    with closing(_Victim(case, function, done=partial(_lines, account), account=str(account), **arguments)) as victim:
        _kill_until_done(victim, most=most, within=within)
        if f"DONE {answer}\n" not in (written := victim.finish()):
            victim.outcome.failures.append(f"the answer is not {answer!r}, but: {written.strip()[-300:]}")
        lines = account.read_text(encoding="utf-8").splitlines()
        what, beginning = counted
        victim.outcome.count(what, sum(line.startswith(beginning) for line in lines))
        if _check_runs(victim):
            victim.outcome.failures += problems(victim.file, lines)
    return victim.outcome


def kill_research(case: Case, *, most: int = _MOST_KILLS) -> Outcome:
    """Kill the shipped research team, with memory, delegation and an edited view."""
    with closing(_Victim(case, run_research, corpus=str(write_corpus(case.folder)))) as victim:
        _kill_until_done(victim, most=most, within=0.15)
        answer, expected = _answer(victim.finish()), _unbroken()
        if answer != expected:
            victim.outcome.failures.append(f"the answer is not that of an unbroken run: {answer!r}, not {expected!r}")
        _check_runs(victim)
    return victim.outcome


def kill_appends(case: Case, *, most: int = _MOST_KILLS, early: bool = False) -> Outcome:
    """Kill writers in the middle of their appends."""
    acknowledged: dict[str, Place | None] = {}
    with closing(_Victim(case, append, done=_said, early=early)) as victim:
        outcome = victim.outcome
        for _ in range(most):
            acknowledged |= acknowledged_in(victim.live(most=0.03))
            victim.read()
            if acknowledged or victim.file.exists():
                problems = file_problems(victim.file) or _append_problems(
                    victim.file, acknowledged, gaps=bool(case.server)
                )
                outcome.failures += problems[:5]
                if problems:
                    break
    outcome.count("appends", len(acknowledged))
    return outcome


def _lines(account: Path, _child: Child) -> int:
    return account.read_bytes().count(b"\n") if account.exists() else 0


def _said(child: Child) -> int:
    return child.output.count("\n")


def acknowledged_in(output: str) -> dict[str, Place | None]:
    """The names that an appending process reported as acknowledged, with their places; None if it reported none."""
    found: dict[str, Place | None] = {}
    for line in output.splitlines(keepends=True):
        if line.endswith("\n") and "=" in line:  # what follows the last newline was cut off by the kill
            pairs = (word.split("=") for word in line.split())
            found |= {name: (RUN_ID, int(position)) if position else None for name, position in pairs}
    return found


def _append_problems(database: Path, acknowledged: dict[str, Place | None], *, gaps: bool) -> list[str]:
    try:
        return append_problems(read_appends(database), acknowledged, gaps=gaps)
    except sqlite3.OperationalError as error:  # killed before there were tables
        return [f"{len(acknowledged)} appends were acknowledged, and {error}"] if acknowledged else []


def _kill_until_done(victim: _Victim, *, most: int, within: float) -> None:
    for _ in range(most):
        if "DONE " in victim.live(most=within):
            return


def _check_runs(victim: _Victim) -> bool:
    """Note what is wrong with the record of ended runs; returns whether it is sound enough for further checks."""
    victim.read()
    if found := run_problems(victim.file):
        victim.outcome.failures += found
        return False
    unfinished = query(victim.file, "SELECT run_id, state FROM run_status WHERE state != 'done'")
    victim.outcome.failures += [f"{run_id} is {state} in the end" for run_id, state in unfinished]
    return True


def _answer(output: str) -> str | None:
    return next((line for line in output.splitlines() if line.startswith("DONE ")), None)


def write_corpus(folder: Path) -> Path:
    """Make a small folder for the research team to read."""
    corpus = folder / "corpus"
    corpus.mkdir()
    for name, text in _CORPUS.items():
        (corpus / name).write_text(text, encoding="utf-8")
    return corpus


@cache
def _unbroken() -> str:
    with tempfile.TemporaryDirectory() as folder:
        corpus = write_corpus(Path(folder))
        victim = _Victim(Case(0, Path(folder)), run_research, corpus=str(corpus))
        written = victim.finish()
    if (answer := _answer(written)) is None:
        raise RepertoryError(f"a run that nothing interrupts gave no answer: {victim.outcome.failures}, {written!r}")
    return answer
