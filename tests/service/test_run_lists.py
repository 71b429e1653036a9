"""Lists of runs, as every kind of journal makes them: what a plain reading of all runs would choose, page by page."""

from __future__ import annotations

import math
import random
import time
from pathlib import Path
from typing import Any

import pytest

from journal_kit import KINDS, opened, started
from repertory.errors import RunNotFound
from repertory.record import Journal, MemoryJournal, open_journal
from repertory.record.records import ModelReplied, RunState, RunStateChanged
from repertory.record.run_lists import InState, RootFilter
from repertory.service.requests import RunsQuery
from repertory.service.run_reader import RunReader
from repertory.service.views import RunView, run_view

TASKS = ("Sort the LETTERS.", "Zähle Äpfel 🐙", "STRASSE", "Straße", "50% of a_b", "\ud800 half", "")
STATES: Any = ("running", "waiting", "paused", "queued", "done", "failed", "stopped")
MACHINES = {"run-3": "a", "run-4": "b", "run-4-x": "a", "run-9": "a"}


def is_live(root: str) -> bool:
    """Half of them."""
    return root in MACHINES or int(root.split("-")[1]) % 2 == 0


def machine_of(run_id: str) -> str:
    """Of some."""
    return MACHINES.get(run_id, "")


async def fill(journal: Journal) -> list[str]:
    """Roots whose ids begin alike, with runs below them; the ids of the roots."""
    chance, roots = random.Random(11), list[str]()
    for number in range(14):
        for run_id in (f"run-{number}", f"run-{number}-x"):
            fields = {"agent": chance.choice("abc"), "client": chance.choice(["", "web"])}
            task = chance.choice(TASKS)
            await journal.write([started(run_id, at=float(number), task=task, **fields)])
            for below in (f"{run_id}.b-1", f"{run_id}.b-1.c-1", f"{run_id}.b-2")[: chance.randrange(4)]:
                await journal.write([started(below, at=float(number), parent_id=below.rpartition(".")[0])])
            for state in chance.sample(STATES, chance.randrange(3)):
                await journal.write([RunStateChanged(run_id=run_id, state=state, at=number + 0.5)])
            roots.append(run_id)
    return roots


def fits(view: RunView, wanted: RunsQuery) -> bool:
    """What a list says of a root, against what is wanted."""
    return (
        (not wanted.state or view.state in wanted.state.split(","))
        and wanted.agent in ("", view.agent)
        and wanted.client in ("", view.client)
        and wanted.machine in ("", view.machine)
        and wanted.since <= view.started_at < (wanted.until or math.inf)
        and wanted.text.casefold() in view.task.casefold()
    )


@pytest.mark.parametrize("kind", KINDS, indirect=True)
async def test_a_list_is_what_reading_every_run_would_choose(tmp_path: Path, kind: str) -> None:
    """Any filters together, both directions, with pages in between; of each root with all that is below it."""
    chance = random.Random(7)
    async with opened(kind, tmp_path) as journal:
        roots = await fill(journal)
        rows = await journal.read_runs()
        views = {
            row.started.run_id: run_view(
                row,
                live=is_live(row.started.run_id.partition(".")[0]),
                machine=machine_of(row.started.run_id),
            )
            for row in rows
        }
        for _ in range(60):
            wanted = RunsQuery(
                limit=chance.choice([0, 1, 3, 100]),
                state=",".join(chance.sample([*STATES, "interrupted"], chance.choice([0, 0, 1, 3, 8]))),
                agent=chance.choice(["", "", "a"]),
                client=chance.choice(["", "", "web"]),
                part=chance.choice(["", "", "-x", ".c-1"]),
                machine=chance.choice(["", "", "a", "nobody"]),
                text=chance.choice(["", "", "letters", "ÄPFEL", "strasse", "0%", "_b", "\ud800"]),
                since=chance.choice([0, 0, 4]),
                until=chance.choice([0, 9]),
                sort=chance.choice(["newest", "oldest"]),
                **chance.choice([{}, {}, {"before": chance.choice(roots)}, {"after": chance.choice(roots)}]),
            )
            start = roots.index(wanted.after) + 1 if wanted.after else 0
            stop = roots.index(wanted.before) if wanted.before else len(roots)
            named = {run_id.partition(".")[0] for run_id in views if wanted.part in run_id}
            fitting = [root for root in roots[start:stop] if fits(views[root], wanted) and root in named]
            limit = wanted.limit
            first = wanted.sort == "oldest" or wanted.after
            shown = fitting[:limit] if first else fitting[max(0, len(fitting) - limit) :]
            found = await RunReader(journal, is_live, machine_of).list_runs(wanted)
            expected = [view for view in views.values() if view.id.partition(".")[0] in shown]
            assert found.runs == expected, wanted
            assert found.more == len(fitting) - len(shown), wanted
            edge = (shown[-1] if first else shown[0]) if shown and found.more else None
            assert found.next == edge, wanted
        for wanted in (RunsQuery(before="run-99"), RunsQuery(after=f"{roots[0]}.b-1")):
            with pytest.raises(RunNotFound, match="no root"):
                await RunReader(journal, is_live).list_runs(wanted)


async def test_a_few_runs_in_a_state_are_found_among_however_many() -> None:
    """By an index: SQLite takes as many steps with 500 runs that have ended as with 50."""
    steps: list[int] = []
    for count in (50, 500):
        async with open_journal() as journal:
            assert isinstance(journal, MemoryJournal)
            for number in range(count):
                run_id = f"r{number}"
                state = RunStateChanged(run_id=run_id, state="paused" if number == 20 else "done", at=2.0)
                await journal.write([started(run_id), state])
            taken = [0]

            def step(taken: list[int] = taken) -> None:
                taken[0] += 1

            journal._connection.set_progress_handler(step, 1)  # pyright: ignore[reportPrivateUsage]
            unsettled: list[RunState] = ["running", "waiting", "paused", "queued"]
            assert await journal.read_roots(RootFilter(in_state=[InState(states=unsettled)]), 9) == (["r20"], 1)
            assert [row.started.run_id for row in await journal.read_runs(states=unsettled)] == ["r20"]
            steps.append(taken[0])
    assert steps[1] < 1.1 * steps[0]


@pytest.mark.parametrize("kind", KINDS, indirect=True)
async def test_figures_are_those_of_the_runs_that_are_listed(tmp_path: Path, kind: str) -> None:
    """The same as when every run is read, in lists and in the overview."""
    async with opened(kind, tmp_path) as journal:
        await fill(journal)
        for row in await journal.read_runs():
            run_id = row.started.run_id
            await journal.write([ModelReplied(run_id=run_id, call=1, at=99.0, cost=float(len(run_id)))])
        every = await journal.read_statistics()
        found = await RunReader(journal, is_live).list_runs(RunsQuery(limit=5, figures="yes"))
        assert found.runs
        assert {view.id: view.figures and view.figures.cost for view in found.runs} == {
            view.id: every[view.id].cost_seen for view in found.runs
        }
        shown = await RunReader(journal, is_live).read_overview(5, since=0, read_only=False)
        ids = [line["id"] for line in shown.runs]
        unsettled: list[RunState] = ["running", "waiting", "paused", "queued"]
        going, _ = await journal.read_roots(RootFilter(in_state=[InState(states=unsettled)]), 99)
        newest = [view.id for view in found.runs]
        older = [run_id for run_id in going if run_id not in newest][-5:]  # what works is shown, whatever came since
        assert older
        assert (ids[-len(newest) :], [each for each in ids if each in going and each not in newest]) == (newest, older)
        assert all(line["figures"]["cost_seen"] == every[line["id"]].cost_seen for line in shown.runs)
        assert (shown.more, found.more) == (23 - len(older), 23)


@pytest.mark.parametrize("kind", KINDS, indirect=True)
async def test_an_overview_says_what_was_done_and_has_failed_however_many_came_since(tmp_path: Path, kind: str) -> None:
    """It counted among the newest trees alone: with more of them in a day, its figures were too low."""
    now = time.time()
    async with opened(kind, tmp_path) as journal:

        async def ended(run_id: str, *states: RunState, ago: float = 10.0) -> None:
            await journal.write([started(run_id, at=now - 200_000, parent_id="lead" if run_id == "lead.b-1" else None)])
            for state in states:
                await journal.write([RunStateChanged(run_id=run_id, state=state, at=now - ago)])

        for run_id in ("old-1", "old-2"):
            await ended(run_id, "failed" if run_id == "old-1" else "done", ago=100_000)
        await journal.write([ModelReplied(run_id="old-1", call=1, at=now - 100_000)])
        await ended("broken", "failed")
        await ended("lead", "done", "running", "done")
        await ended("lead.b-1", "done")
        await ended("again", "done", "running", "failed")
        for number in range(4):
            await ended(f"new-{number}", "failed", "done")
        reader = RunReader(journal, lambda _: True)
        shown = await reader.read_overview(2, since=int(now) - 3600, read_only=False)
        assert [line["id"] for line in shown.runs] == ["broken", "again", "new-2", "new-3"]
        assert (shown.today["done"], shown.more) == (5, 5)


async def test_a_run_that_ends_while_it_is_read_is_not_shown_as_interrupted(tmp_path: Path) -> None:
    """Its record was read before its end, and whether it is under way behind it."""
    async with opened("memory", tmp_path) as journal:
        await journal.write([started("run-0"), started("run-1")])
        end = [RunStateChanged(run_id="run-0", state="done", result="7", at=2.0)]

        def ends(root: str) -> bool:
            if end and root == "run-0":
                journal.submit([end.pop()])
            return False

        reader = RunReader(journal, ends)
        assert (await reader.read_run("run-0")).run.state == "done"
        end.append(RunStateChanged(run_id="run-0", state="running", at=3.0))
        await journal.write(end)
        end[:] = [RunStateChanged(run_id="run-0", state="failed", error="no", at=4.0)]
        row, view = await reader.read_row("run-0")
        assert (row.error, view.state) == ("no", "failed")
        states = {view.id: view.state for view in (await reader.list_runs(RunsQuery())).runs}
        assert states == {"run-0": "failed", "run-1": "interrupted"}
