"""content ls, show and gc: what is stored, where its whole stands, and that nothing goes unasked."""

from __future__ import annotations

import shutil
from pathlib import Path

import anyio
import pytest
from cli_support import CHILD, EVIL, OTHER, RUN, WHOLE, invoke

from repertory.llm.messages import ToolResult
from repertory.record import ContentStored, Draft, Ledger, open_journal

LONG = len(WHOLE + EVIL)


@pytest.fixture
def mine(made: Path, tmp_path: Path) -> Path:
    """A copy of the made database, to change."""
    return Path(shutil.copy(made, tmp_path / "mine.db"))


async def add(path: Path) -> None:
    """Store what the ledger of the sub-agent holds whole, and what has a time of its own; both with a name to fear."""
    async with open_journal(path) as journal:
        draft = Draft(role="user", kind="action-result", content=(ToolResult("c", "tide"),), content_id="cite-held")
        held = ContentStored(
            content_id="cite-held", run_id=CHILD, source_type="web", source=f"fetch {EVIL}", body="", length=4, at=1.7e9
        )
        dated = ContentStored(
            content_id="cite-dated",
            run_id=CHILD,
            source_type="web",
            source="fetch",
            body="x" * 50,
            at=1.7e9,
            expires_at=9.0,
        )
        await Ledger(journal, CHILD).append(draft, also=[held, dated])


def kept(path: Path, home: Path) -> dict[str, str]:
    """Where the whole of each content stands."""
    listed = invoke("content", "ls", RUN, "--json", "--db", path, home=home).json
    assert (listed["database"], listed["run_id"]) == (str(path), RUN)
    return {each["content_id"]: each["kept"] for each in listed["contents"]}


def test_what_is_stored_is_listed_with_where_its_whole_stands(mine: Path, home: Path) -> None:
    """Of the whole tree; as a table, and as JSON with every field."""
    anyio.run(add, mine)
    assert kept(mine, home) == {
        **dict.fromkeys(("cite-1", "cite-2", "cite-3", "cite-dated"), "store"),
        "cite-held": "ledger",
    }
    lines = invoke("content", "ls", RUN, "--db", mine, home=home).out.split("\n")
    assert lines[0].split() == ["CITATION", "RUN", "SOURCE", "FORMAT", "CHARACTERS", "KEPT", "AGE", "URL"]
    assert lines[1].split()[:6] == ["cite-1", "·", "search", "text", f"{LONG:,}", "store"]
    assert "fetch \\x1b]52" in lines[4]
    assert lines[-2] == f"5 contents; the store holds 4 of them, {3 * LONG + 50:,} characters"


def test_a_run_without_contents_is_said(mine: Path, home: Path) -> None:
    """And no error."""
    result = invoke("content", "ls", OTHER, "--db", mine, home=home)
    assert (result.code, result.out) == (0, "")
    assert f"run {OTHER} has stored nothing" in result.err


def test_what_is_due_goes_and_what_is_held_nowhere_else_stays(mine: Path, home: Path) -> None:
    """A dry run says the same and changes nothing."""
    anyio.run(add, mine)
    for words, done in ((("--dry-run",), "would be deleted"), ((), "deleted"), ((), "")):
        result = invoke("content", "gc", *words, "--db", mine, home=home)
        count = "1 content" if done else "0 contents"
        assert result.out.split("\n")[-2] == f"{mine}: {count} {done or 'deleted'}, {50 if done else 0} characters"
    assert kept(mine, home)["cite-dated"] == "gone"
    assert kept(mine, home)["cite-1"] == "store"


def test_all_of_a_run_goes_where_it_is_named(mine: Path, home: Path) -> None:
    """With those below it; its ledger stays, and what that holds is read from there."""
    anyio.run(add, mine)
    ledger = invoke("ledger", RUN, "--json", "--db", mine, home=home).json
    gone = invoke("content", "gc", "--run", "aaaaaa", "--json", "--db", mine, home=home).json
    assert [each["content_id"] for each in gone["contents"]] == ["cite-1", "cite-2", "cite-3", "cite-dated"]
    assert (gone["dry_run"], gone["characters"]) == (False, 3 * LONG + 50)
    assert set(kept(mine, home).values()) == {"gone", "ledger"}
    assert invoke("ledger", RUN, "--json", "--db", mine, home=home).json == ledger
    assert invoke("content", "show", "cite-held", "--db", mine, home=home).out == "tide\n"
    result = invoke("content", "show", "cite-1", "--db", mine, home=home)
    assert result.code == 4
    assert (
        f"content 'cite-1' ({LONG:,} characters) was cleaned up and is gone; repertory ledger {RUN} has" in result.err
    )


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("ls", "nothing"), 4, "there is no run 'nothing'"),
        (("gc", "--run", OTHER), 1, f"run {OTHER} has not ended, it is running"),
        (("gc", "--run", CHILD), 1, f"run {CHILD} belongs to {RUN}; clean that one"),
        (("gc", "--retention", "-1"), 2, "invalid value for '--retention'"),
        ((), 2, "missing command; see repertory content --help"),
    ],
)
def test_what_cannot_be_done_is_one_line(words: tuple[str, ...], code: int, said: str, mine: Path, home: Path) -> None:
    """With what to do instead, and nothing goes."""
    result = invoke("content", *words, *(("--db", mine) if words else ()), home=home)
    assert (result.code, result.out) == (code, "")
    assert said in result.err
    assert set(kept(mine, home).values()) == {"store"}


def test_a_database_that_somebody_writes_to_is_read_and_not_cleaned(mine: Path, home: Path) -> None:
    """What is due there the process that owns it lets go of by itself."""

    async def look() -> None:
        async with open_journal(mine):
            result = await anyio.to_thread.run_sync(lambda: invoke("content", "gc", "--db", mine, home=home))
            assert result.code == 75
            assert f"read meanwhile with `repertory ps --db {mine}`" in result.err
            listed = await anyio.to_thread.run_sync(lambda: kept(mine, home))
            assert set(listed.values()) == {"store"}

    anyio.run(look)
