"""content ls and show: what is stored, and where its whole stands."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import anyio
import pytest
from cli_support import CHILD, EVIL, OTHER, RUN, WHOLE, invoke

from repertory.llm.messages import ToolResult
from repertory.record import ContentStored, Draft, Ledger, open_journal
from repertory.supervisor.retention import Retention

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


def test_what_was_cleaned_up_is_said(mine: Path, home: Path) -> None:
    """The ledger stays, and what that holds is read from there."""
    anyio.run(add, mine)

    async def clean() -> None:
        async with open_journal(mine) as journal:
            await Retention(journal, seconds=0.0, clock=time.time).clean_run(RUN)

    anyio.run(clean)
    assert set(kept(mine, home).values()) == {"gone", "ledger"}
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
        ((), 2, "missing command; see repertory content --help"),
    ],
)
def test_what_cannot_be_done_is_one_line(words: tuple[str, ...], code: int, said: str, mine: Path, home: Path) -> None:
    """With what to do instead, and nothing goes."""
    result = invoke("content", *words, *(("--db", mine) if words else ()), home=home)
    assert (result.code, result.out) == (code, "")
    assert said in result.err
    assert set(kept(mine, home).values()) == {"store"}
