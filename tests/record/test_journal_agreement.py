"""Every journal and a dict agree, whatever is done to them and in whatever order."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import journal_kit as kit
from postgres_server import PostgresServer
from repertory.errors import RecordRefused, RunNotFound
from repertory.record import Journal, MemoryJournal, open_journal
from repertory.record.records import EntryAppended, RunState, RunStateChanged

RUNS = ("run-a", "run-b", "run-é")
STATES: tuple[RunState, ...] = ("running", "paused", "done", "failed")


class Agreement(RuleBasedStateMachine):
    """A memory journal, a durable journal that is closed and opened again at will, and the model: plain dicts."""

    backend = "trio"
    server: PostgresServer | None = None  # where the durable one is; None for a file

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        self.place = self.server.emptied_journal() if self.server is not None else Path(folder) / "journal.db"
        self.portal = self.stack.enter_context(start_blocking_portal(self.backend))
        self.memory: Journal = MemoryJournal()
        self.runs: dict[str, list[Any]] = {}  # id -> [started, state]
        self.early: dict[str, RunState] = {}  # states of runs that have not started
        self.entries: dict[str, list[EntryAppended]] = {run: [] for run in RUNS}
        self.contents: dict[str, list[Any]] = {}  # id -> [body or None, expires_at]
        self.items: list[Any] = []
        self.clock = 0.0

    @initialize()
    def open(self) -> None:
        """Open the durable journal."""
        self.manager = self.portal.wrap_async_context_manager(open_journal(self.place, durability="process"))
        self.durable = self.manager.__enter__()

    def teardown(self) -> None:
        """Close everything."""
        self.manager.__exit__(None, None, None)
        self.portal.call(self.memory.aclose)
        self.stack.close()

    def both(self, use: Callable[[Journal], Any]) -> Any:
        """Do the same to both and get their one answer."""
        answers = [self.portal.call(use, journal) for journal in (self.memory, self.durable)]
        assert answers[0] == answers[1]
        return answers[0]

    @rule()
    def reopen(self) -> None:
        """Close it and open it again."""
        self.manager.__exit__(None, None, None)
        self.open()

    @rule(run=st.sampled_from(RUNS), texts=st.lists(kit.texts, max_size=4), metadata=kit.json_objects)
    def append(self, run: str, texts: list[str], metadata: dict[str, Any]) -> None:
        """Append a batch of any size."""
        start = len(self.entries[run])
        batch = [kit.appended(run, start + n, text, metadata=metadata) for n, text in enumerate(texts)]
        self.both(lambda journal: journal.write(batch))
        self.entries[run] += batch

    @rule(run=st.sampled_from(RUNS))
    def refuse(self, run: str) -> None:
        """A refused batch changes nothing."""
        bad = [kit.started("never"), kit.appended(run, 10_000, metadata={"x": float("nan")})]
        for journal in (self.memory, self.durable):
            with pytest.raises(RecordRefused):
                self.portal.call(journal.write, bad)

    @rule(run=st.sampled_from(RUNS))
    def start(self, run: str) -> None:
        """Start a run once."""
        if run not in self.runs:
            self.clock += 1
            record = kit.started(run, self.clock)
            self.both(lambda journal: journal.write([record]))
            self.runs[run] = [record, self.early.get(run, "running")]

    @rule(run=st.sampled_from(RUNS), state=st.sampled_from(STATES))
    def change(self, run: str, state: RunState) -> None:
        """Change the state of a run, started or not."""
        self.clock += 1
        record = RunStateChanged(run_id=run, state=state, at=self.clock)
        self.both(lambda journal: journal.write([record]))
        if run in self.runs:
            self.runs[run][1] = state
        else:
            self.early[run] = state

    @rule(name=st.sampled_from("xyz"), body=kit.texts, expires=st.none() | st.floats(0, 50))
    def store(self, name: str, body: str, expires: float | None) -> None:
        """Store a content, perhaps over another."""
        record = kit.content(name, "run-a", body, expires_at=expires)
        self.both(lambda journal: journal.write([record]))
        self.contents[name] = [body, expires]

    @rule()
    def expire(self) -> None:
        """Delete what is out of date."""
        self.both(lambda journal: kit.expire(journal, self.clock))
        for content in self.contents.values():
            if content[1] is not None and content[1] <= self.clock:
                content[0] = None

    @rule(scope=st.sampled_from("pq"), text=kit.texts)
    def write_item(self, scope: str, text: str) -> None:
        """Write a version of an item."""
        record = kit.item(len(self.items) + 1, scope, text=text)
        self.both(lambda journal: journal.write([record]))
        self.items.append(record)

    @rule(run=st.sampled_from(RUNS), start=st.integers(0, 4), length=st.integers(0, 4))
    def read_part(self, run: str, start: int, length: int) -> None:
        """Any part of a ledger."""
        found = self.both(lambda journal: journal.read_entries(run, start=start, stop=start + length))
        assert found == [record.entry for record in self.entries[run][start : start + length]]

    @rule(run=st.sampled_from(RUNS), query=kit.texts)
    def search(self, run: str, query: str) -> None:
        """Files find the same entries in the same order, with the same scores; a server has its own."""

        def find(journal: Journal) -> Any:
            return journal.search_entries(run, query)

        hits = self.both(find) if self.server is None else self.portal.call(find, self.durable)
        assert all(hit.position < len(self.entries[run]) for hit in hits)

    @invariant()
    def agree(self) -> None:
        """Every read gives what the model says."""
        if not hasattr(self, "manager"):
            return
        for run in RUNS:
            assert self.both(lambda journal, run=run: journal.read_entries(run)) == [  # type: ignore[misc]
                record.entry for record in self.entries[run]
            ]
            if run not in self.runs:
                for journal in (self.memory, self.durable):
                    with pytest.raises(RunNotFound):
                        self.portal.call(journal.read_run, run)
        rows = self.both(lambda journal: journal.read_runs())
        assert [[row.started, row.state] for row in rows] == list(self.runs.values())
        for name, (body, _) in self.contents.items():
            content = self.both(lambda journal, name=name: journal.read_content(name))  # type: ignore[misc]
            assert content.body == (body or "")
        assert self.both(lambda journal: journal.read_items(["p", "q"])) == self.items


def agree(backend: str, server: PostgresServer | None, examples: int, steps: int) -> None:
    """Play the machine."""

    class Chosen(Agreement):
        pass

    Chosen.backend, Chosen.server = backend, server
    run_state_machine_as_test(
        Chosen, settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None, database=None)
    )


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_the_journals_agree_with_a_plain_model(backend: str) -> None:
    """Appends, refusals, state changes, expiry, search and re-opening in any order, on both backends."""
    agree(backend, None, 6, 20)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_the_journal_on_a_server_agrees_with_them(backend: str, postgres: PostgresServer) -> None:
    """The same with PostgreSQL."""
    agree(backend, postgres, 3, 15)


@pytest.mark.nightly
def test_the_journals_agree_for_long() -> None:
    """The same with many more examples."""
    agree("trio", None, 500, 50)


@pytest.mark.nightly
def test_the_journal_on_a_server_agrees_for_long(postgres: PostgresServer) -> None:
    """The same with many more examples."""
    agree("trio", postgres, 150, 40)


def test_the_comparison_sees_a_difference() -> None:
    """Negative control: a journal that drops a record does not agree."""

    class Forgetful(MemoryJournal):
        async def read_items(self, *args: Any, **kwargs: Any) -> Any:
            return (await super().read_items(*args, **kwargs))[1:]

    class Broken(Agreement):
        def __init__(self) -> None:
            super().__init__()
            self.memory = Forgetful()

    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            Broken,
            settings=settings(
                max_examples=20, stateful_step_count=10, database=None, phases=[Phase.generate], derandomize=True
            ),
        )
