"""memory ls, show, search, diff and merge: what agents have kept, and what becomes of a snapshot."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from cli_support import OTHER, Result, in_a_process, invoke, settings
from test_cli_docs import documented

import repertory as rp
from memory_team import HOSTILE, LEAD, PAGE, PNG, make_team
from patience import PATIENCE
from repertory.actors import open_system
from repertory.memory import Memory, MemoryActor, MemoryQuota
from repertory.record import open_journal

ROOT = f"scope-{LEAD}"
SHOWN = HOSTILE.replace("\x1b", "\\x1b").replace("\x07", "\\x07").replace("\u202e", "\\u202e")


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database in which a team has worked: a lead, a checker with a snapshot, a hermit with a memory of its own."""
    path = tmp_path_factory.mktemp("team") / "team.db"
    anyio.run(make_team, path, backend="trio")
    return path


@pytest.fixture
def mine(team: Path, tmp_path: Path) -> Path:
    """A copy of it, to change."""
    return Path(shutil.copy(team, tmp_path / "mine.db"))


def look(team: Path, *words: str, home: Path) -> Result:
    """Run a command on the database."""
    return invoke("memory", *words, "--db", team, home=home)


def below(team: Path, agent: str, home: Path) -> str:
    """The id of a sub-agent's run."""
    tree = invoke("inspect", LEAD, "--json", "--db", team, home=home).json["tree"]
    return next(str(node["run"]["id"]) for node in tree["children"] if node["run"]["agent"] == agent)


def test_scopes_are_listed_as_a_tree_and_then_what_the_run_sees(team: Path, home: Path) -> None:
    """With whose they are and how they came to be; hostile words stand there spelled out."""
    out = look(team, "ls", home=home).out
    scopes, items, said = out.rstrip().split("\n\n")
    lines = [line.split()[-5:-2] for line in scopes.split("\n")[1:]]
    assert lines[0] == ["lead", "root", "5"]
    assert sorted(lines[1:]) == [["checker", "snapshot", "3"], ["hermit", "isolated", "1"]]
    assert items.split("\n")[1].startswith("plan ")
    assert "The plan is yellow. It was blue. [plan]" in items
    assert f"[image/png, 264 bytes] [{SHOWN[:29]}…]" in items
    assert said == f"{ROOT} sees 5 items"
    assert "\x1b" not in out
    shown = look(team, "ls", "--json", home=home).json
    assert {scope["mode"] for scope in shown["scopes"]} == {"root", "snapshot", "isolated"}
    assert shown["scope_id"] == ROOT
    assert {item["item_id"] for item in shown["items"]} == {"plan", "/memories/tides.json", "chart", "old", "tables"}
    fields = set(shown) | set(shown["scopes"][0]) | set(shown["items"][0])
    assert documented("memory ls") == fields


def test_a_sub_agents_scope_is_found_by_its_run_or_its_own_id(team: Path, home: Path) -> None:
    """A snapshot sees what its parent had, and its own; an isolated scope sees its own."""
    checker, hermit = below(team, "checker", home), below(team, "hermit", home)
    seen = {item["item_id"] for item in look(team, "ls", checker, "--json", home=home).json["items"]}
    assert seen == {"plan", "/memories/tides.json", "old", "tables", "check"}
    for name in (hermit, f"scope-{hermit}", hermit[-8:]):
        assert "sees 1 item" in look(team, "ls", name, home=home).out


def test_a_long_list_says_that_it_is_not_all(team: Path, home: Path) -> None:
    """And all scopes are listed without items."""
    out = look(team, "ls", "--limit", "2", home=home).out
    assert f"{ROOT} sees more than these 2 items; --limit N lists more" in out
    out = look(team, "ls", "--all", home=home).out
    assert out.endswith("\n\n3 scopes, 9 items\n")
    shown = look(team, "ls", "--all", "--json", home=home).json
    assert (shown["scope_id"], shown["items"], len(shown["scopes"])) == ("", [], 3)


def test_scopes_that_no_run_has_are_found_by_their_ids(tmp_path: Path, home: Path) -> None:
    """As an application makes them; two with a part in common are told apart."""
    path = tmp_path / "app.db"

    async def make() -> None:
        async with open_journal(path) as journal, open_system("app") as system:
            ref = system.spawn(lambda: MemoryActor(journal), "memory")
            base = await rp.Memory.open(ref, "app", scope_id="team-a")
            await base.store("The tide.", item_id="a")
            await base.fork("app", scope_id="team-b")

    anyio.run(make, backend="trio")
    assert "1 item" in look(path, "ls", "team-b", home=home).out
    assert "2 scopes, 1 item" in look(path, "ls", "-a", home=home).out
    assert look(path, "diff", "team-b", home=home).out == "team-b would be merged into team-a: nothing was changed\n"
    refused = look(path, "ls", "team", home=home)
    assert (refused.code, refused.out) == (4, "")
    assert "'team' fits more than one scope; give more of the id: team-a, team-b" in refused.err
    refused = look(path, "ls", home=home)
    assert "there is no run with a memory in" in refused.err
    assert "repertory memory ls -a lists all scopes" in refused.err


def test_an_item_of_any_content_is_shown(team: Path, home: Path) -> None:
    """Text as it is, data as JSON, bytes by what they are; nothing of it steers the terminal."""
    out = look(team, "show", "plan", home=home).out
    assert re.fullmatch(r"plan  custom · 32 bytes · [-0-9: ]+ · tags plan\nThe plan is yellow\.\nIt was blue\.\n", out)
    out = look(team, "show", "/memories/tides.json", home=home).out
    assert '"high": "noon"' in out
    assert "\x1b" not in out
    done = look(team, "show", "chart", home=home)
    assert "image/png" in done.out
    assert done.out.endswith("\n[image/png, 264 bytes]\n")
    assert "repertory memory show --raw chart > FILE" in done.err
    data = look(team, "show", "/memories/tides.json", "--json", home=home).json
    assert data["content"] == {"high": "noon", "by": [HOSTILE, 1, None]}
    assert set(data) == documented("memory show")


def test_raw_content_is_what_was_stored_to_the_byte(team: Path, home: Path) -> None:
    """Bytes and text, into a pipe; the real command."""
    for item_id, content in (("chart", PNG), ("tables", PAGE.encode())):
        words = [sys.executable, "-m", "repertory", "memory", "show", item_id, "--raw", "--db", str(team)]
        done = subprocess.run(words, capture_output=True, env=settings(home), timeout=PATIENCE, check=True)
        assert done.stdout == content


def test_search_gives_the_best_first_with_excerpts(team: Path, home: Path) -> None:
    """In all contents that have words, with the words in the excerpt; nothing found is no error."""
    out = look(team, "search", "blue plans", home=home).out
    assert out.startswith("plan  custom")
    assert "    The plan is yellow. It was blue." in out
    shown = look(team, "search", "tables", "--json", home=home).json
    assert [item["item_id"] for item in shown["items"]] == ["tables"]
    assert "tide tables" in shown["items"][0]["preview"]
    assert set(shown) | set(shown["items"][0]) < documented("memory search")
    nothing = look(team, "search", "zebra", home=home)
    assert (nothing.code, nothing.out) == (0, "")
    assert f"no item that {ROOT} sees has all of these words: zebra" in nothing.err
    few = look(team, "search", "tide", "--limit", "1", home=home)
    assert few.out.count("bytes ·") == 1


def test_a_diff_says_what_a_merge_would_do(team: Path, home: Path) -> None:
    """What is new, changed and ended, and what both have changed; nothing is written."""
    checker = below(team, "checker", home)
    out = look(team, "diff", checker, home=home).out
    blocks = re.split(r"\n(?=[-+~!] |scope)", out.rstrip())
    assert sorted(block.split("\n")[0] for block in blocks[:4]) == [
        "! conflict plan", "+ added check", "- ended chart", "~ changed old",
    ]  # fmt: skip
    assert "~ changed old\n   old news\n  +and new" in out
    assert f"  +A check: {SHOWN}" in out
    assert "! conflict plan\n  -The plan is yellow.\n  +The plan is red.\n   It was blue." in out
    assert blocks[4] == f"scope-{checker} would be merged into {ROOT}: 2 written, 1 ended, 1 conflict"
    shown = look(team, "diff", checker, "--json", home=home).json
    assert {change["item_id"]: change["change"] for change in shown["changes"]} == {
        "plan": "conflict",
        "check": "added",
        "chart": "ended",
        "old": "changed",
    }
    fields = set(shown) | set(shown["changes"][0])
    assert documented("memory diff") - {"added", "changed", "ended", "conflict"} == fields


def test_a_merge_by_hand_is_not_bound_by_quotas_that_it_does_not_know(tmp_path: Path, home: Path) -> None:
    """A program may allow more than there is room for by default, and its quotas are not on record."""
    path, large = tmp_path / "large.db", "x" * 1_100_000

    async def fill() -> None:
        quotas = MemoryQuota(item_bytes=2_000_000)
        async with open_journal(path) as journal, open_system() as system:
            root = await Memory.open(system.spawn(lambda: MemoryActor(journal, quota=quotas), "memory"), "run-1")
            child = await root.fork("run-1.a", scope_id="child")
            await child.store(large, item_id="large")

    anyio.run(fill, backend="trio")
    assert "+ written large" in look(path, "merge", "child", home=home).out


def test_a_merge_does_what_the_diff_said_and_a_second_one_nothing(mine: Path, home: Path) -> None:
    """An open conflict is an exit code and a word on what to do; ``--prefer`` settles it."""
    checker = below(mine, "checker", home)
    done = look(mine, "merge", checker, home=home)
    assert done.code == 1
    assert {"+ written old", "+ written check", "- ended chart", "! conflict, left open: plan"} < set(
        done.out.split("\n")
    )
    assert "1 conflict left open: merge again with --prefer child, parent or both" in done.err
    assert "2 written, 1 ended, 1 conflict" in done.out
    settled = look(mine, "merge", checker, "--prefer", "child", "--json", home=home)
    assert settled.code == 0
    report: Any = settled.json
    assert (report["written"], [conflict["taken"] for conflict in report["conflicts"]]) == (["plan"], ["child"])
    fields = set(report) | set(report["conflicts"][0])
    assert documented("memory merge") == fields
    assert look(mine, "show", "plan", "--json", home=home).json["content"] == "The plan is red.\nIt was blue."
    again = look(mine, "merge", checker, home=home)
    assert (again.code, again.out.count("\n")) == (0, 1)
    assert again.out.endswith("4 items merged before or unchanged\n")
    assert "would be merged" in look(mine, "diff", checker, home=home).out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("ls", "nothing"), 4, "there is no run and no memory scope 'nothing' in"),
        (("ls", LEAD, "--all"), 2, "leave RUN or --all out"),
        (("show", "nothing"), 4, f"has no item 'nothing'; repertory memory ls {ROOT} lists the items that it sees"),
        (("show", "plan", "--raw", "--json"), 2, "leave one out"),
        (("search", " "), 2, "expected WORDS with some text, got an empty one"),
        (("diff", LEAD), 4, f"scope '{ROOT}' is root, so it has no parent to merge into"),
        (("merge", LEAD), 4, f"scope '{ROOT}' is root, so it has no parent to merge into"),
        (("merge", LEAD, "--prefer", "mine"), 2, "invalid value for '--prefer'"),
        (("merge",), 2, "missing argument 'RUN'"),
        ((), 2, "missing command; see repertory memory --help"),
    ],
)
def test_what_cannot_be_done_is_one_line(words: tuple[str, ...], code: int, said: str, team: Path, home: Path) -> None:
    """With what to do instead."""
    result = invoke("memory", *words, *(("--db", team) if words else ()), home=home)
    assert (result.code, result.out) == (code, "")
    assert result.err.count("\n") == 1
    assert said in result.err


def test_a_scope_is_found_without_reading_every_other(mine: Path, home: Path) -> None:
    """However many there are, also if the record of one of them is damaged."""
    with closing(sqlite3.connect(mine)) as database, database:
        database.execute("UPDATE scopes SET at = 1 WHERE mode = 'isolated'")
    for name in ([], [ROOT], [ROOT[-6:]]):
        assert "The plan is yellow" in look(mine, "show", "plan", *name, home=home).out


def test_a_run_without_a_memory_is_said(made: Path, home: Path) -> None:
    """A database that never had one, too."""
    for words in (("ls", OTHER), ("search", "tide", OTHER)):
        result = look(made, *words, home=home)
        assert (result.code, result.out) == (4, "")
        assert "memory scope" in result.err


def test_a_database_that_somebody_writes_to_is_read_and_not_merged(mine: Path, home: Path) -> None:
    """What is read beside its owner is said with the command for it."""
    checker = below(mine, "checker", home)

    async def main() -> None:
        async with open_journal(mine):
            refused = await anyio.to_thread.run_sync(
                lambda: in_a_process("memory", "merge", checker, "--db", str(mine), home=home)
            )
            assert refused.code == 75
            assert "is in use by process" in refused.err
            assert f"read meanwhile with `repertory ps --db {mine}`" in refused.err
            beside = await anyio.to_thread.run_sync(lambda: look(mine, "diff", checker, home=home))
            assert "1 conflict" in beside.out

    anyio.run(main)
