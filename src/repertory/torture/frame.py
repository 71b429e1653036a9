"""The types that all torture scenarios share, and the processes that play their cases."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from repertory.errors import ConfigurationError
from repertory.torture.children import end_children
from repertory.torture.servers import databases_on

Profile: TypeAlias = Literal["short", "full"]

_CASE_TIMEOUT: Final = 500.0  # seconds; the longest case takes ten, on a busy machine many times as long
_ROOM: Final = 2**28  # bytes for each worker; the largest case takes 180 MB
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_MOST_SHOWN: Final = 20  # failures of one scenario whose text is kept


class Case(msgspec.Struct, frozen=True):
    """One play of a scenario.

    Attributes:
        seed: Determines every random choice in it.
        folder: An empty folder of its own, removed afterwards.
        traces: The evidence of an earlier failure of this case, to be examined again; None for a new play.
        server: A database on the PostgreSQL server where it makes its own; "" for a file.
        database: The name for its own; no other one may begin so.
    """

    seed: int
    folder: Path
    traces: Path | None = None
    server: str = ""
    database: str = ""


class Outcome(msgspec.Struct):
    """What a case did and found.

    Attributes:
        counts: How many things were tried, by name, such as ``{"images": 90}``.
        failures: What was not as promised.
        evidence: Files with which a failure can be examined again, even if threads behave differently next time.
    """

    counts: dict[str, int] = {}
    failures: list[str] = []
    evidence: list[Path] = []

    def count(self, what: str, number: int = 1) -> None:
        """Count something that was tried."""
        self.counts[what] = self.counts.get(what, 0) + number


Play: TypeAlias = Callable[[Case], Outcome]


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One way to torture, played once for each seed.

    Attributes:
        name: Its name for ``--only``.
        play: Plays a case, in a worker process, to which it must be possible to send it. An exception is a failure.
        cases: How many cases each profile plays.
        controls: Plays that break a promise on purpose, by name; at least one of ``control_cases`` of each must fail.
        missing: Returns why it cannot be played on this machine; None if it can.
        on_servers: Whether it can be played on a PostgreSQL server: clients are killed, but its disk does not fail.
    """

    name: str
    play: Play
    cases: dict[Profile, int]
    controls: dict[str, Play] = {}
    control_cases: int = 2
    missing: Callable[[], str | None] = lambda: None
    on_servers: bool = False


class Failure(msgspec.Struct, frozen=True):
    """Something that was not as promised.

    Attributes:
        evidence: The folder with its evidence; "" if there is none.
    """

    scenario: str
    case: int
    what: str
    evidence: str = ""


class ScenarioReport(msgspec.Struct, kw_only=True):
    """The results of one scenario.

    Attributes:
        planned: Cases that the profile asks for.
        cases: Cases that were played.
        counts: The sums of its cases' counts.
        failed: How many failures there were; ``failures`` holds the first ones.
        seconds: The elapsed time.
        controls: For each negative control that was played, how many of its cases failed; at least one must.
        left_out: Why it was not played; "" if it was.
    """

    name: str
    planned: int = 0
    cases: int = 0
    counts: dict[str, int] = {}
    failed: int = 0
    failures: list[Failure] = []
    seconds: float = 0.0
    controls: dict[str, int] = {}
    left_out: str = ""

    @property
    def clean(self) -> bool:
        """Whether nothing failed except the controls."""
        return not self.failed and all(self.controls.values())


class Report(msgspec.Struct, kw_only=True):
    """The results of all scenarios."""

    seed: int
    profile: Profile
    scenarios: list[ScenarioReport] = []
    interrupted: bool = False

    @property
    def clean(self) -> bool:
        """Whether everything is as promised and every negative control failed."""
        return all(scenario.clean for scenario in self.scenarios)


class _Task(msgspec.Struct, frozen=True):
    play: Play
    control: str
    number: int
    seed: int
    server: str
    database: str
    traces: Path | None = None
    keep: Path | None = None  # the folder for the evidence of a failure


def seed_of(seed: int, scenario: str, control: str, number: int) -> int:
    """The seed of one case; the same on every machine and in every version of Python."""
    return random.Random(f"{seed} {scenario} {control} {number}").randrange(2**32)


def choose(scenarios: Sequence[Scenario], names: Iterable[str]) -> list[Scenario]:
    """The scenarios with these names; all of them if no name is given.

    Raises:
        ConfigurationError: There is no such scenario.
    """
    wanted = list(names)
    known = {scenario.name: scenario for scenario in scenarios}
    for name in wanted:
        if name not in known:
            raise ConfigurationError(f"there is no scenario {name!r}; choose from {', '.join(known)}")
    return [known[name] for name in wanted] if wanted else list(scenarios)


def run_torture(
    scenarios: Sequence[Scenario],
    *,
    profile: Profile = "short",
    seed: int = 0,
    case: int | None = None,
    traces: Path | None = None,
    keep: Path | None = None,
    server: str = "",
    workers: int = 2,
    on_progress: Callable[[ScenarioReport], None] = lambda report: None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Report:
    """Play scenarios, one after the other, and their cases in parallel.

    Args:
        profile: Determines how many cases of each.
        seed: Determines every case.
        case: Play this one case of each, and no controls; None plays what the profile says.
        traces: The evidence of an earlier failure of that case, to be examined again; None plays it anew.
        keep: The folder for evidence of failures; None keeps none.
        server: The address of a database on a PostgreSQL server, as a user who may create databases: each case
            makes its own. "" for files.
        is_stopped: Called several times a second; once it returns True, the report has what was done so far.

    Raises:
        ConfigurationError: Fewer than one worker, no room for what so many write, or no traces of one case.
        JournalError: No database can be made on the server.
    """
    if workers < 1:
        raise ConfigurationError(f"there must be at least one worker, got {workers}")
    if traces is not None and (case is None or not any(traces.glob("trace-*"))):
        raise ConfigurationError(f"expected a case and the folder with its traces, got case {case} and {str(traces)!r}")

    databases = itertools.count(1)

    def tasks_of(scenario: Scenario, beginning: str) -> Iterator[_Task]:
        name = scenario.name
        for number in range(scenario.cases[profile]) if case is None else [case]:
            evidence = keep / f"{name}-{number}" if keep is not None else None
            drawn, database = seed_of(seed, name, "", number), f"{beginning}{next(databases)}_"
            yield _Task(scenario.play, "", number, drawn, server, database, traces, evidence)
        for control, play in scenario.controls.items() if case is None else ():
            for number in range(scenario.control_cases):
                drawn, database = seed_of(seed, name, control, number), f"{beginning}{next(databases)}_"
                yield _Task(play, control, number, drawn, server, database)

    report = Report(seed=seed, profile=profile)
    with (
        databases_on(server) if server else contextlib.nullcontext("") as beginning,
        _Pool(workers, is_stopped) as pool,
    ):
        for scenario in scenarios:
            if report.interrupted:
                break
            reason = scenario.missing()
            report.scenarios.append(ScenarioReport(name=scenario.name, left_out=reason or ""))
            if reason is None:
                tasks = [*tasks_of(scenario, beginning)]
                report.interrupted = not _play_scenario(report.scenarios[-1], pool, tasks, on_progress)
    return report


def _play_scenario(
    report: ScenarioReport, pool: _Pool, tasks: Sequence[_Task], on_progress: Callable[[ScenarioReport], None]
) -> bool:
    """Play the cases; returns whether all were played."""
    report.planned = sum(not task.control for task in tasks)
    started = time.monotonic()
    played = 0
    for task, outcome in pool.play(tasks):
        if task.control:
            report.controls[task.control] = report.controls.get(task.control, 0) + bool(outcome.failures)
        else:
            report.cases += 1
            for what, number in outcome.counts.items():
                report.counts[what] = report.counts.get(what, 0) + number
            report.failed += len(outcome.failures)
            room = _MOST_SHOWN - len(report.failures)
            kept = str(task.keep) if task.keep is not None and outcome.evidence else ""
            report.failures += [Failure(report.name, task.number, what, kept) for what in outcome.failures[:room]]
        report.seconds = time.monotonic() - started
        on_progress(report)
        played += 1
    return played == len(tasks)


# --- the workers ------------------------------------------------------------------------------------------


class _Worker:
    def __init__(self, folder: Path) -> None:
        # Spawned, not forked: a fork would inherit the threads and event loops of the caller.
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, str(folder)), daemon=False)
        # The inherited signal mask lasts until _work sets its handlers. Python's resource tracker, which the first
        # worker would start, unblocks signals, so it is started before.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self.process.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self.task: _Task | None = None
        self.deadline = 0.0

    def give(self, task: _Task) -> None:
        self.task, self.deadline = task, time.monotonic() + _CASE_TIMEOUT
        self.connection.send(task)

    def end(self) -> None:
        self.connection.close()
        if self.task is not None:
            self.process.terminate()
        self.process.join(timeout=10)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


class _Pool:
    """Worker processes; if one dies or hangs, its case fails and another worker takes its place."""

    def __init__(self, workers: int, is_stopped: Callable[[], bool]) -> None:
        self._size = workers
        self._is_stopped = is_stopped
        self._workers: list[_Worker] = []

    def __enter__(self) -> _Pool:
        self._folder = Path(tempfile.mkdtemp(prefix="repertory-torture-", dir=_place(self._size * _ROOM)))
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def play(self, tasks: Iterable[_Task]) -> Iterable[tuple[_Task, Outcome]]:
        """Play cases and yield each outcome as it arrives, until told to stop."""
        waiting = deque(tasks)
        while (waiting or any(worker.task for worker in self._workers)) and not self._is_stopped():
            while len(self._workers) < min(self._size, len(waiting)):
                self._workers.append(_Worker(self._folder))
            for worker in self._workers:
                if worker.task is None and waiting:
                    worker.give(waiting.popleft())
            wait([worker.connection for worker in self._workers if worker.task], timeout=0.2)
            for worker, task in [(each, each.task) for each in self._workers if each.task]:
                if worker.connection.poll():
                    try:
                        outcome = worker.connection.recv()
                    except (EOFError, ConnectionError):
                        worker.process.join()
                        yield self._lose(worker, task, f"its process ended with {worker.process.exitcode}")
                    else:
                        worker.task = None
                        yield task, outcome
                elif time.monotonic() > worker.deadline:
                    yield self._lose(worker, task, f"it did not end within {_CASE_TIMEOUT:.0f} s")

    def _lose(self, worker: _Worker, task: _Task, why: str) -> tuple[_Task, Outcome]:
        self._workers.remove(worker)
        worker.end()
        return task, Outcome(failures=[why])


def _place(room: int) -> str:
    """A folder on a file system with so many free bytes: cases that fill it would look like broken promises."""
    # In memory if possible: nothing here depends on a real disk, and a sync costs nothing there.
    places = ("/dev/shm", tempfile.gettempdir())  # noqa: S108 - a folder of a fresh name is made in it
    for place in places:
        if os.access(place, os.W_OK) and shutil.disk_usage(place).free >= room:
            return place
    raise ConfigurationError(
        f"so many workers need {room >> 20:,} MB in {' or in '.join(places)}; free some, set TMPDIR, or use fewer"
    )


def _leave(number: int, frame: object) -> None:
    """Exit at once, in the middle of a case: unwinding event loops would only be noisy. The pool removes folders."""
    try:
        end_children()
    finally:
        os._exit(0)


def _work(connection: Connection, folder: str) -> None:
    """Run a worker: play the given cases until there are no more."""
    os.setsid()  # a terminal's Ctrl-C is for the parent, not for the workers and their children
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # also for one that is pending
    signal.signal(signal.SIGTERM, _leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with contextlib.suppress(EOFError, BrokenPipeError):
            while True:
                task: _Task = connection.recv()
                connection.send(_play_case(task, Path(folder)))
    finally:
        end_children()


def _play_case(task: _Task, parent: Path) -> Outcome:
    """Play one case in a folder of its own; an exception becomes a failure."""
    with tempfile.TemporaryDirectory(dir=parent, ignore_cleanup_errors=True) as folder:
        try:
            outcome = task.play(Case(task.seed, Path(folder), task.traces, task.server, task.database))
            if outcome.failures and task.keep is not None and outcome.evidence:
                task.keep.mkdir(parents=True, exist_ok=True)
                for path in outcome.evidence:
                    shutil.copy(path, task.keep)
            return outcome
        except Exception as error:  # noqa: BLE001 - the supervisor of foreign code: whatever it is, is a failure
            where = traceback.extract_tb(error.__traceback__)[-1]
            name = f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}"
            return Outcome(failures=[f"{name}: {error}"])
