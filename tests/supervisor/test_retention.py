"""Stored contents go when their time is over, and what the ledger holds is had from there by its citation."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

import journal_kit as kit
import repertory as rp
from context_scenes import log_of
from journal_kit import expire
from repertory.errors import ConfigurationError, JournalUnreadable, ModelUnavailable, RunError, RunFailed, RunNotFound
from repertory.llm.messages import Block, text_of
from repertory.llm.model import ModelRequest
from repertory.record import ContentStored, Journal, MemoryJournal
from repertory.record.entries import Part, Retrieved
from repertory.supervisor.retention import CLEANING
from repertory.testing import ScriptedModel, call
from repertory.tools import context_tools


@rp.tool(effect="pure")
async def read_log(day: int) -> str:
    """Read the log of a day."""
    return log_of(day, 150)


def clerk(name: str = "clerk", **options: Any) -> rp.Agent:
    """An agent that can look at its results again."""
    return rp.Agent(name, tools=[read_log, *context_tools()], **options)


async def test_contents_are_cleaned_up_while_the_supervisor_lives(autojump_clock: trio.testing.MockClock) -> None:
    """A process that never restarts, and in which no run ends any more: on a timer, within five minutes."""
    async with rp.open_supervisor(model=ScriptedModel(["Done."]), clock=trio.current_time) as supervisor:
        run = await supervisor.spawn(clerk(), "Read.")
        await run.wait_result()
        stored = ContentStored(
            content_id="c", run_id=run.id, source_type="web", source="s", body="whole", at=0.0, retention=3_600
        )
        await supervisor.journal.write([stored])
        await trio.sleep(3_500)
        assert await supervisor.journal.read_content("c") == stored
        await trio.sleep(100 + CLEANING)
        assert await supervisor.journal.read_content("c") == msgspec.structs.replace(stored, body="")
        assert [each.length for each in await supervisor.journal.read_contents(run.id)] == [len("whole")]


async def test_a_supervisor_that_closes_does_not_wait_for_the_next_cleaning(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its timer ends with it."""
    begun = trio.current_time()
    async with rp.open_supervisor(model=ScriptedModel([])):
        pass
    assert trio.current_time() - begun < CLEANING


@pytest.mark.parametrize("where", ["memory", "file"])
async def test_what_the_ledger_holds_whole_is_retrieved_from_there(where: str, tmp_path: Path) -> None:
    """It is kept once, and stubs keep what they promise: whole, by lines, by words; of sub-agents, after a resume."""
    lead = clerk("lead", team=[clerk("helper")], context=rp.ContextPolicy())
    steps = [
        call("read_log", day=1),
        call("delegate", agent="helper", task="Read day 2."),
        call("read_log", day=2),
        "Read.",
        ModelUnavailable("down"),
    ]
    async with rp.open_journal(tmp_path / "runs.db" if where == "file" else None) as journal:
        model = ScriptedModel(steps)
        async with rp.open_supervisor(journal=journal, model=model) as supervisor:
            run = await supervisor.spawn(lead, "Lead.", run_id="lead")
            with pytest.raises(RunFailed):
                await run.wait_result()
            (child,) = run.children
            ids = [(await journal.read_contents(name))[0].content_id for name in (run.id, child.id)]
        looks: list[Any] = [
            call("retrieve_content", content_id=ids[0]),
            call("retrieve_content", content_id=ids[0], start_line=150),
            call("retrieve_content", content_id=ids[1], search="hour 77"),
            "Done.",
        ]
        model = ScriptedModel(looks)
        async with rp.open_supervisor(journal=journal, model=model) as supervisor:
            run = await supervisor.resume("lead", agent=lead)
            assert await run.wait_result() == "Done."
        stored = await journal.read_content(ids[0])
        assert stored is not None
        assert stored.body == log_of(1, 150)
    if where == "file":
        with closing(sqlite3.connect(tmp_path / "runs.db")) as database, database:
            assert database.execute("SELECT count(*) FROM content_bodies").fetchone() == (0,)
        database.close()
    whole, line, found = (text_of(request.messages[-1].content) for request in model.requests[1:])
    assert whole.endswith(log_of(1, 150))
    assert line.endswith("lines 150-150 of 150\n\nday 1, hour 149: ship 249 at berth 2")
    assert "day 2, hour 77: ship 277 at berth 0" in found


async def test_a_repeated_result_is_told_without_the_note_of_its_repetition() -> None:
    """What the ledger gives back for a citation is the tool's own result."""
    journal = MemoryJournal()
    again = [call("read_log", day=1), *[call("read_log", day=day) for day in (2, 3, 4, 5)], call("read_log", day=1)]
    async with rp.open_supervisor(journal=journal, model=ScriptedModel([*again, "."])) as supervisor:
        run = await supervisor.spawn(clerk(), "Read.")
        await run.wait_result()
        assert run.statistics().dedup_hits == 1
        first, *_ = await journal.read_contents(run.id)
        restored = await journal.read_content(first.content_id)
    assert restored is not None
    assert restored.body == log_of(1, 150)


async def test_what_cannot_be_brought_back_says_so() -> None:
    """A content with a date of its own, of which the ledger holds only a part."""
    journal = MemoryJournal()
    cut = rp.ContextPolicy(results=rp.ResultPolicy(cap_chars=500))

    async def look(_: ModelRequest) -> Block:
        (stored,) = await journal.read_contents("r")
        await journal.write([msgspec.structs.replace(stored, body=log_of(1, 150), expires_at=5.0)])
        assert await expire(journal, 5.0) == 1
        return call("retrieve_content", content_id=stored.content_id)

    model = ScriptedModel([call("read_log", day=1), look, "Done."])
    async with rp.open_supervisor(journal=journal, model=model) as supervisor:
        run = await supervisor.spawn(clerk(context=cut), "Read.", run_id="r")
        await run.wait_result()
    said = text_of(model.requests[-1].messages[-1].content)
    assert f"({len(log_of(1, 150)):,} characters) was cleaned up and is gone" in said


async def test_the_content_store_knows_how_long_each_result_is() -> None:
    """Also where bodies are left out of the listing."""
    async with rp.open_supervisor(model=ScriptedModel([call("read_log", day=1), "Done."])) as supervisor:
        run = await supervisor.spawn(clerk(), "Read.")
        await run.wait_result()
        (stored,) = await supervisor.journal.read_contents(run.id)
    assert (stored.body, stored.length) == ("", len(log_of(1, 150)))


# --- results that were cut on arrival ---------------------------------------------------------------------

CUT = rp.ContextPolicy(results=rp.ResultPolicy(cap_chars=500))
LONG = log_of(1, 1_500)  # some 60,000 characters, three pages


@rp.tool(effect="pure")
async def read_long() -> str:
    """Read a log of several pages."""
    return LONG


def reader(context: rp.ContextPolicy = CUT) -> rp.Agent:
    """An agent whose results are cut, and that can have them brought back."""
    return rp.Agent("reader", tools=[read_long, *context_tools()], context=context)


def page(number: int) -> Callable[[ModelRequest], Block]:
    """A step that looks at one page of the citation in view."""

    def step(request: ModelRequest) -> Block:
        cited = re.findall(r"c-[0-9a-f]{10}", "".join(text_of(message.content) for message in request.messages))[0]
        return call("retrieve_content", content_id=cited, page=number)

    return step


ALL_PAGES = [page(2), page(1), page(3)]


async def bodies(journal: Journal, run_id: str) -> list[str]:
    """The ids of the contents of a run whose bodies the content store holds."""
    return [content.content_id for _, content in await journal.read_bodies(run_id)]


@pytest.mark.parametrize(
    ("policy", "steps", "stays"),
    [
        (CUT, [], True),  # the ledger has its beginning and its end
        (CUT, [page(1), page(3)], True),  # and most of what is between them
        (CUT, ALL_PAGES, False),
        (rp.ContextPolicy(results=rp.ResultPolicy(cite_on_arrival=True)), ALL_PAGES, False),
        (rp.ContextPolicy(results=rp.ResultPolicy(cap_chars=500, retention=10)), [], False),
    ],
)
async def test_a_cut_result_leaves_the_store_an_hour_after_the_run_if_the_ledger_holds_all_of_it(
    policy: rp.ContextPolicy, steps: list[Any], stays: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """Or after the time that its policy gave it. What is gone from the store is read from the ledger, word for word."""
    model = ScriptedModel([call("read_long"), *steps, "Done."])
    async with rp.open_supervisor(model=model, clock=trio.current_time) as supervisor:
        run = await supervisor.spawn(reader(policy), "Read.")
        await run.wait_result()
        (stored,) = await supervisor.journal.read_contents(run.id)
        assert stored.length == len(LONG)
        let_go = policy.results.retention is not None
        await trio.sleep(3_500 if not let_go else 5)
        assert await bodies(supervisor.journal, run.id) == [stored.content_id]
        await trio.sleep(100 + CLEANING)
        assert await bodies(supervisor.journal, run.id) == [stored.content_id] * stays
        now = await supervisor.journal.read_content(stored.content_id)
        assert now is not None
        assert now.body == ("" if let_go else LONG)


class CountingJournal(MemoryJournal):
    """A journal that counts how often it is read."""

    reads = 0

    async def _query(self, *args: Any) -> Any:
        self.reads += 1
        return await super()._query(*args)


@pytest.mark.parametrize("own_time", [False, True])
async def test_many_contents_of_one_run_are_looked_at_together(*, own_time: bool) -> None:
    """Each of them went through all entries of the run: an hour, for some ten thousand, in which nothing opened."""
    journal, many = CountingJournal(), 100
    fields = {"role": "user", "kind": "action-result", "original_length": 9, "spans": ((0, 3),)}
    records: list[Any] = [kit.started("r"), kit.RunStateChanged(run_id="r", state="done", at=0.0)]
    for n in range(many):
        records += [
            kit.appended("r", n, "cut", content_id=f"c-{n}", **fields),
            kit.content(f"c-{n}", "r", "cut short", expires_at=1.0 if own_time else None),
        ]
    back = Retrieved(parts=(Part("c-7", 3, 9, 0),))
    await journal.write([*records, kit.appended("r", many, " short", retrieved=back)])
    async with rp.open_supervisor(journal=journal, model="offline"):
        assert journal.reads < many / 2
    kept = await bodies(journal, "r")
    assert kept == ([] if own_time else [f"c-{n}" for n in range(many) if n != 7])
    found = await journal.read_content("c-7")
    assert found is not None
    assert found.body == "cut short"


async def test_a_clock_that_was_wrong_for_a_while_keeps_nothing_for_good(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It was a year ahead when contents were cleaned up; what ended since it was set back had to wait for that year."""
    ahead = 86_400.0 * 365
    model = ScriptedModel([call("read_long"), *ALL_PAGES, "Read."])

    def clock() -> float:
        return trio.current_time() + ahead

    async with rp.open_supervisor(model=model, clock=clock, content_retention=1_000) as supervisor:
        await trio.sleep(2 * CLEANING)
        ahead = 0.0
        run = await supervisor.spawn(reader(), "Read.")
        await run.wait_result()
        assert len(await bodies(supervisor.journal, run.id)) == 1
        await trio.sleep(1_000 + 2 * CLEANING)
        assert await bodies(supervisor.journal, run.id) == []


@pytest.mark.parametrize("keep", ["for good", "pinned", "no longer pinned"])
async def test_a_content_stays_where_it_is_pinned_or_all_are_kept_for_good(
    keep: str, autojump_clock: trio.testing.MockClock
) -> None:
    """Though the ledger holds all of it, and its policy gave it a time."""
    limit = rp.ResultPolicy(cap_chars=500, retention=None if keep == "for good" else 0)
    seconds = None if keep == "for good" else 0

    async def pin(request: ModelRequest) -> Block:
        if keep != "for good":
            await run.pin(2)
        if keep == "no longer pinned":
            await run.unpin(2)
        return page(1)(request)

    model = ScriptedModel([call("read_long"), pin, page(2), page(3), "Done."])
    async with rp.open_supervisor(model=model, clock=trio.current_time, content_retention=seconds) as supervisor:
        run = await supervisor.spawn(reader(rp.ContextPolicy(results=limit)), "Read.")
        await run.wait_result()
        await trio.sleep(100_000)
        assert len(await bodies(supervisor.journal, run.id)) == (keep != "no longer pinned")


async def test_the_time_of_a_sub_agents_contents_begins_with_the_end_of_the_tree(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Until then any run of the tree may read them."""

    async def wait(_: ModelRequest) -> str:
        await trio.sleep(10_000)
        return "Done."

    steps = [call("delegate", agent="reader", task="Read."), call("read_long"), *ALL_PAGES, "Read.", wait]
    model, lead = ScriptedModel(steps), rp.Agent("lead", team=[reader()])
    async with rp.open_supervisor(model=model, clock=trio.current_time) as supervisor:
        run = await supervisor.spawn(lead, "Lead.")
        await trio.sleep(9_000)
        (child,) = run.children
        assert len(await bodies(supervisor.journal, child.id)) == 1
        await run.wait_result()
        await trio.sleep(3_600 + CLEANING)
        assert await bodies(supervisor.journal, run.id) == []


async def test_a_resumed_run_whose_contents_were_cleaned_up_reads_them_from_its_ledger(
    tmp_path: Path,
) -> None:
    """After a restart too: whole, by lines and by words."""
    path = tmp_path / "runs.db"
    model = ScriptedModel([call("read_long"), *ALL_PAGES, ModelUnavailable("down")])
    async with rp.open_supervisor(path, model=model, content_retention=0) as supervisor:
        run = await supervisor.spawn(reader(), "Read.", run_id="r")
        with pytest.raises(RunFailed):
            await run.wait_result()
        assert await bodies(supervisor.journal, "r") == []
        (stored,) = await supervisor.journal.read_contents("r")
    looks = [
        call("retrieve_content", content_id=stored.content_id, start_line=1_400),
        call("retrieve_content", content_id=stored.content_id, search="hour 777"),
        "Done.",
    ]
    model = ScriptedModel([*looks])
    async with rp.open_supervisor(path, model=model) as supervisor:
        run = await supervisor.resume("r", agent=reader())
        assert await run.wait_result() == "Done."
    lines, found = (text_of(request.messages[-1].content) for request in model.requests[1:])
    assert "day 1, hour 1399: ship 1499 at berth 6" in lines
    assert "day 1, hour 777: ship 877 at berth 0" in found


async def test_a_run_that_is_cleaned_keeps_its_ledger_and_its_citations() -> None:
    """With all below it; what the ledger does not hold is gone, and the application has said so."""
    steps = [call("read_long"), call("delegate", agent="reader", task="Read."), call("read_long"), "Read.", "Done."]
    async with rp.open_supervisor(model=ScriptedModel(steps)) as supervisor:
        lead = rp.Agent("lead", tools=[read_long], context=CUT, team=[reader()])
        run = await supervisor.spawn(lead, "Lead.")
        with pytest.raises(RunError, match=f"run {run.id} has not ended, it is running"):
            await supervisor.clean(run.id)
        await run.wait_result()
        (child,) = run.children
        with pytest.raises(RunError, match=f"belongs to {run.id}; clean that one"):
            await supervisor.clean(child.id)
        before = await supervisor.journal.read_entries(run.id)
        with pytest.raises(RunNotFound, match="exactly"):
            await supervisor.clean(run.id[:-1])
        assert await supervisor.clean(run.id) == 2
        assert await supervisor.clean(run.id) == 0
        assert await supervisor.journal.read_entries(run.id) == before
        for each in (run.id, child.id):
            (stored,) = await supervisor.journal.read_contents(each)
            assert (stored.body, stored.length) == ("", len(LONG))
            gone = await supervisor.journal.read_content(stored.content_id)
            assert gone is not None
            assert gone.body == ""


async def test_a_cleaning_that_fails_is_logged_and_tried_again(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Runs go on: to clean up is not worth one."""

    class Sick(MemoryJournal):
        """A journal in which nobody can look for what is due, for some time."""

        looked = 0

        async def read_due_bodies(self, now: float, **bounds: float) -> list[tuple[int, ContentStored]]:
            """Fail, the second and the third time."""
            self.looked += 1
            if self.looked in (2, 3):
                raise JournalUnreadable("the disk is away")
            return await super().read_due_bodies(now, **bounds)

    journal = Sick()
    async with rp.open_supervisor(
        journal=journal, model=ScriptedModel(["Done."]), clock=trio.current_time
    ) as supervisor:
        await trio.sleep(3.5 * CLEANING)
        assert journal.looked == 4
        run = await supervisor.spawn(clerk(), "Read.")
        assert await run.wait_result() == "Done."
    assert [vars(record).get("event") for record in caplog.records].count("contents.cleaning.failed") == 2


async def test_a_time_to_keep_contents_must_be_one() -> None:
    """None, or seconds from 0."""
    with pytest.raises(ConfigurationError, match="content_retention must be a number of at least 0 or None, got -1"):
        async with rp.open_supervisor(model=ScriptedModel([]), content_retention=-1):
            pass
