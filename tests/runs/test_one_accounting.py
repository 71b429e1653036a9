"""Everybody who shows figures shows the same ones, whatever crashed in between."""

from __future__ import annotations

import random
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

import repertory as rp
from patience import PATIENCE
from repertory.record import Journal, RunStatistics, open_journal
from repertory.service.reports import read_figures
from repertory.service.run_reader import RunReader
from repertory.torture.children import start
from repertory.torture.kills import write_corpus
from repertory.torture.team import RUN_ID
from repertory.torture.workloads import run_research

Shown = dict[str, dict[str, float]]


def of_tree(parts: list[RunStatistics]) -> dict[str, float]:
    """The sum over runs, field by field."""
    return msgspec.structs.asdict(sum(parts[1:], start=parts[0]))


async def read_all(journal: Journal, path: Path) -> Shown:
    """What each reader makes of the whole tree."""
    rows = await journal.read_runs()
    detail = await RunReader(journal, lambda _: False).read_run(RUN_ID)
    names = RunStatistics.__struct_fields__
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection, connection:
        found = connection.execute(f"SELECT {', '.join(names)} FROM run_statistics").fetchall()
    view = [RunStatistics(**dict(zip(names, row, strict=True))) for row in found]
    figures = [await read_figures(journal, row) for row in rows]
    own = [RunStatistics(**run["statistics"]) for run in figures]
    steps = [step for run in figures for step in run["iterations"]]
    assert sum(step["prompt_tokens"] for step in steps) == sum(one.tokens_seen for one in own)
    assert sum(of["calls"] for run in figures for of in run["tools"].values()) == sum(one.tool_calls for one in view)
    return {
        "stats": of_tree(own),
        "service": msgspec.structs.asdict(detail.tree_statistics),
        "view": of_tree(view),
        "journal": of_tree(list((await journal.read_statistics(RUN_ID)).values())),
    }


def check_agreement(shown: Shown) -> None:
    """All readers show the same, but for the last digit of a sum of dollars."""
    first, *others = shown.values()
    for other in others:
        assert other == pytest.approx(first, rel=1e-12)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 6))])
async def test_all_readers_agree_after_crashes(seed: int, tmp_path: Path) -> None:
    """A killed team is counted alike by the command line, the service, SQL, and the run that goes on with it."""
    corpus = write_corpus(tmp_path)
    path, chance = tmp_path / "run.db", random.Random(seed)
    shown: Shown = {}
    lives = 0
    while not shown or shown["journal"]["iterations"] < 3:
        lives += 1  # each is longer: on a slow machine the first ones come to nothing
        arguments = {"database": str(path), "corpus": str(corpus), "durability": "process", "backend": "trio"}
        with start(run_research, **arguments) as child:
            child.read(PATIENCE, until=b"OPEN")
            child.read(lives * chance.uniform(0.05, 0.3))
            child.signal(signal.SIGKILL)
            child.wait()
        async with open_journal(path, readonly=True) as journal:
            if await journal.read_runs():
                shown = await read_all(journal, path)
                check_agreement(shown)
    async with rp.open_supervisor(path) as supervisor:
        run = await supervisor.resume(RUN_ID, agent=rp.research_team(corpus, model="offline"))
        await run.wait_result()
        shown = await read_all(supervisor.journal, path)
        check_agreement(shown | {"run": msgspec.structs.asdict(run.statistics(tree=True))})
        assert shown["journal"]["runs"] > 1


def test_a_reader_that_counts_otherwise_is_found() -> None:
    """Negative control: one tool call more, and the comparison fails."""
    one = msgspec.structs.asdict(RunStatistics(tool_calls=3))
    check_agreement({"a": one, "b": one})
    with pytest.raises(AssertionError):
        check_agreement({"a": one, "b": one | {"tool_calls": 4}})
