"""ps, inspect and ledger: what a database says, also while somebody writes to it."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from cli_support import CHILD, EVIL, EVIL_SHOWN, OTHER, RUN, WHOLE, Result, in_a_process, invoke

import repertory as rp
from repertory.cli import reading
from repertory.record import EventLogged, RunStarted, open_journal
from repertory.record.records import RunStateChanged
from repertory.service.sources import RecordSource
from repertory.testing import FunctionModel, ScriptedModel, call


def test_ps_shows_what_is_not_finished(made: Path, home: Path) -> None:
    """A run that says it goes on, in a database nobody owns, is interrupted; how to go on is said."""
    result = invoke("ps", "--db", made, home=home)
    assert result.code == 0
    assert OTHER in result.out
    assert "interrupted" in result.out
    assert RUN not in result.out
    assert f"repertory resume {OTHER}" in result.out


def test_ps_all_shows_the_tree_with_figures(made: Path, home: Path) -> None:
    """Sub-agents stand below their parents; tokens and costs are sums over the calls."""
    lines = invoke("ps", "-a", "--db", made, home=home).out.split("\n")
    assert lines[0].split() == ["RUN", "AGENT", "STATE", "AGE", "ITER", "TOKENS", "COST", "TASK"]
    assert lines[1].split()[:3] == [RUN, "lead", "failed"]
    assert "750" in lines[1]
    assert "$0.0030" in lines[1]
    assert lines[2].startswith("└ .0badc0de")


def test_lists_of_runs_stay_short_however_many_have_ended(tmp_path: Path) -> None:
    """Of a thousand and more, all that have not ended are listed; all others only if that is asked for."""
    path = tmp_path / "many.db"

    async def fill() -> None:
        async with open_journal(path, durability="process") as journal:
            for number in range(1_003):
                run_id, at = f"run-{number}", float(number)
                journal.submit([RunStarted(run_id=run_id, agent="a", task="Go.", at=at)])
                if number not in (1, 1_000):
                    journal.submit([RunStateChanged(run_id=run_id, state="done", at=at)])
            await journal.write([])

    anyio.run(fill)
    listed = invoke("ps", "--json", "--db", path, home=tmp_path).json
    assert ([run["id"] for run in listed["runs"]], listed["more"]) == (["run-1", "run-1000"], 2)
    everything = invoke("ps", "-a", "--json", "--db", path, home=tmp_path).json
    assert (len(everything["runs"]), everything["more"]) == (1_003, 0)
    welcome = invoke(home=tmp_path, env={"REPERTORY_DB": str(path)}).out
    assert invoke("ps", "--db", path, home=tmp_path).out in welcome
    once = invoke("top", "--db", path, home=tmp_path, env={"FORCE_COLOR": "1", "TERM": "xterm"}).out
    assert "2 older runs left out" in once
    assert "\x1b[?25l" not in once  # in colour, but no picture: this is no terminal


def test_the_last_events_are_shown_without_reading_all(made: Path, tmp_path: Path) -> None:
    """Of all runs, however much has happened in them, also if the record of an early event is damaged."""
    path = Path(shutil.copy(made, tmp_path / "long.db"))

    async def fill() -> None:
        async with open_journal(path, durability="process") as journal:
            for number in range(1_100):  # two in a hundred have a line
                said: dict[str, Any] = {"view_tokens": 1, "record_tokens": 1}
                told = {"text": str(number), "attached": ""}
                kind, said = ("IterationStarted", said) if number % 50 else ("UserSaid", told)
                journal.submit([EventLogged(run_id=OTHER, type=kind, body=said, at=float(number))])
            await journal.write([])

    anyio.run(fill)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE events SET at = 7 WHERE seq = (SELECT min(seq) FROM events)")
    for lines, first in ((3, 950), (12, 500)):
        shown = invoke("logs", "-a", "-n", str(lines), "--db", path, home=tmp_path).out.splitlines()
        assert [line.split()[-1] for line in shown] == [str(number) for number in range(first, 1_100, 50)]
    assert len(invoke("logs", "-a", "-n", "20", "--json", "--db", path, home=tmp_path).out.splitlines()) == 20
    assert invoke("logs", "-a", "--db", path, home=tmp_path).code == 78


def test_ps_json_is_one_object_with_every_run(made: Path, home: Path) -> None:
    """The same data for a program, and nothing else on standard output or standard error."""
    result = invoke("ps", "-a", "--json", "--db", made, home=home)
    assert result.err == ""
    runs = {run["id"]: run for run in result.json["runs"]}
    assert set(runs) == {RUN, CHILD, OTHER}
    assert runs[RUN]["state"] == "failed"
    assert runs[RUN]["figures"]["tokens_seen"] == 750
    assert runs[RUN]["figures"]["iterations"] == 3
    assert runs[RUN]["figures"]["cost"] == pytest.approx(0.003)
    assert runs[CHILD]["parent_id"] == RUN
    assert [run_id for run_id, run in runs.items() if run["resumable"]] == [RUN, OTHER]


def test_a_run_is_not_called_interrupted_while_its_database_is_owned(made: Path, home: Path) -> None:
    """Reading works beside the owner, and tells a living process from a dead one."""

    async def look() -> None:
        async with open_journal(made):
            result = await anyio.to_thread.run_sync(lambda: in_a_process("ps", "--json", "--db", str(made), home=home))
            states = {run["id"]: run["state"] for run in result.json["runs"]}
            assert states[OTHER] == "running"
            assert [run["id"] for run in result.json["runs"] if run["live"]] == [OTHER]

    anyio.run(look)
    assert not any(run["live"] for run in invoke("ps", "--json", "--db", made, home=home).json["runs"])


@pytest.mark.parametrize("name", [[RUN], [RUN[-6:]], []])
def test_a_run_is_found_without_reading_every_other(made: Path, tmp_path: Path, name: list[str]) -> None:
    """However many there are, also if the record of one of them is damaged."""
    copy = tmp_path / "damaged.db"
    shutil.copy(made, copy)
    with closing(sqlite3.connect(copy)) as database:
        database.execute("UPDATE runs SET task = 'another' WHERE run_id = ?", [OTHER])
        if not name:  # the newest is the one that is left
            database.execute("UPDATE runs SET parent_id = 'nobody' WHERE run_id = ?", [OTHER])
        database.commit()
    for words in ("ledger", "content ls"):
        result = invoke(*words.split(), *name, "--db", copy, home=tmp_path)
        assert result.code == 0, result.err


def test_ps_without_any_database_says_how_to_begin(tmp_path: Path) -> None:
    """An empty state explains the next step, and is no error."""
    result = invoke("ps", home=tmp_path)
    assert (result.code, result.err) == (0, "")
    assert "repertory demo" in result.out
    assert invoke("ps", "--json", home=tmp_path).json == {"database": None, "service": None, "runs": [], "more": 0}


def test_inspect_json_says_whose_memory_each_run_uses_and_what_it_spent(demo: Result) -> None:
    """The memory of the root is its own; the demo's researchers share it."""
    shown = invoke("inspect", "--json", "--db", demo.json["database"], home=Path(demo.json["database"]).parent).json
    root, below = shown["tree"], shown["tree"]["children"]
    assert [root["memory"], *(node["memory"] for node in below)] == ["root", *["shared"] * len(below)]
    total = sum(node["statistics"]["cost_seen"] for node in (root, *below))
    assert shown["tree_statistics"]["cost_seen"] == pytest.approx(total)
    assert (shown["run"]["state"], shown["result"]) == ("done", demo.json["answer"])


def test_inspect_shows_how_each_entry_was_shown(made: Path, home: Path) -> None:
    """At iteration 2 one result is a stub; the decision stands there with its arithmetic."""
    result = invoke("inspect", RUN, "-i", "2", "--db", made, home=home)
    rows = {line.split()[0]: line.split()[2] for line in result.out.split("\n") if line[:1].isdigit()}
    assert rows == {"0": "verbatim", "1": "verbatim", "2": "stub"}
    assert "an old result: clears 795 tokens, costs $0.0123 now, saves $0.0021 a call" in result.out
    assert "[stub of call-1]" in result.out
    assert "\nsaw 250 of 250 tokens (50 from the cache), wrote 10, $0.0010, 1.5 s\n" in result.out  # in 80 columns
    assert 'assistant: search query="tides' in result.out  # as everywhere, not as Python shows a dict


def test_inspect_json_holds_the_request_as_it_was_sent(made: Path, home: Path) -> None:
    """The request of the newest iteration, cache markers in place, beside the record it was made from."""
    shown = invoke("inspect", RUN, "--json", "--db", made, home=home).json
    assert (shown["iteration"], shown["iterations"]) == (3, 3)
    assert [entry["shown"] for entry in shown["record"]] == ["verbatim", "covered", "covered", "verbatim", "shaped"]
    blocks = [block for message in shown["request"]["messages"] for block in message["content"]]
    assert any("[summary of the beginning]" in json.dumps(block.get("content")) for block in blocks)
    assert shown["request"]["system"] == [{"type": "text", "text": "You lead.", "cache_control": {"type": "ephemeral"}}]
    assert shown["usage"]["input_tokens"] == 300
    assert [decision["iteration"] for decision in shown["decisions"]] == [2, 3]
    assert shown["decisions"][0]["arithmetic"]["saving_per_call"] == 0.0021


def test_an_iteration_shows_only_what_was_decided_by_then(made: Path, home: Path) -> None:
    """The past is shown as it was seen then, not as it is seen now."""
    shown = invoke("inspect", RUN, "-i", "1", "--json", "--db", made, home=home).json
    assert shown["decisions"] == []
    assert [entry["shown"] for entry in shown["record"]] == ["verbatim"]


def test_the_ledger_shows_every_entry(made: Path, home: Path) -> None:
    """The whole record, and for each large result where its whole is."""
    result = invoke("ledger", RUN, "--db", made, home=home)
    assert [line.split()[0] for line in result.out.split("\n") if line.startswith("#")] == [f"#{n}" for n in range(7)]
    assert "whole: repertory content show cite-3" in result.out
    entries = invoke("ledger", RUN, "--json", "--db", made, home=home).json["entries"]
    assert [entry["position"] for entry in entries] == list(range(7))
    assert entries[2]["content"][0]["type"] == "tool_result"


def test_a_stored_content_is_shown_whole(made: Path, home: Path) -> None:
    """As text it is harmless, as JSON it is exact."""
    assert invoke("content", "show", "cite-1", "--db", made, home=home).out == f"{WHOLE}{EVIL_SHOWN}\n"
    assert invoke("content", "show", "cite-1", "--json", "--db", made, home=home).json["body"] == WHOLE + EVIL


@pytest.mark.parametrize(
    "words",
    [
        ("ps", "-a"),
        ("ps", "-a", "--json"),
        ("inspect", RUN),
        ("inspect", RUN, "--full"),
        ("inspect", RUN, "--json"),
        ("ledger", RUN, "--full"),
        ("ledger", RUN, "--json"),
        ("content", "show", "cite-1"),
        ("content", "show", "cite-1", "--json"),
    ],
    ids=" ".join,
)
def test_no_command_lets_the_record_steer_the_terminal(words: tuple[str, ...], made: Path, home: Path) -> None:
    """The record is full of escape sequences; none of them comes out raw, whichever way it is looked at."""
    out = invoke(*words, "--db", made, home=home).out
    assert not set(out) & set("\x1b\x07\x9b\x00\u202e\u2066")


def test_the_name_of_a_database_is_shown_clean_and_as_a_shell_takes_it(made: Path, tmp_path: Path) -> None:
    """It may be anybody's: what ps advises has no escape sequence in it, and is one word again when it is copied."""
    path = tmp_path / "two words\x1b[2J.db"
    shutil.copy(made, path)
    out = invoke("ps", "-a", "--db", path, home=tmp_path).out
    assert "\x1b" not in out
    assert out.rstrip().endswith(f" --db '{tmp_path}/two words\\x1b[2J.db'")


def test_an_empty_name_is_no_run(tmp_path: Path) -> None:
    """Of a variable that is not set, say; else it would be a part of the id of the one tree that there is."""
    path = tmp_path / "runs.db"
    rp.run_sync(rp.Agent("a"), "task", path=path, model=ScriptedModel(["done"]))
    for words in (("ledger", ""), ("payload", "show", ""), ("fork", "")):
        result = invoke(*words, "--db", path, home=tmp_path)
        assert (result.code, result.out, result.err.count("\n")) == (4, "", 1), result


def test_a_traceback_cannot_steer_the_terminal(tmp_path: Path) -> None:
    """What --debug shows is somebody's words, too."""
    (tmp_path / "odd_maker.py").write_text("def agent():\n    raise ValueError('\\x1b[2J\\u202e')\n")
    result = in_a_process("run", "x", "--agent", "odd_maker:agent", "--debug", home=tmp_path)
    assert "Traceback" in result.err
    assert "ValueError: \\x1b[2J\\u202e" in result.err
    assert not set(result.err) & {"\x1b", "\u202e"}


@pytest.mark.parametrize("part", [RUN, "aaaaaa", "x2c-aaaaaa"])
def test_any_part_of_an_id_that_fits_one_tree_will_do(part: str, made: Path, home: Path) -> None:
    """The beginning of ids made on one day is the same, so the end is what people type."""
    assert invoke("ledger", part, "--json", "--db", made, home=home).json["run_id"] == RUN


def test_a_database_without_runs_has_no_newest_one(home: Path, tmp_path: Path) -> None:
    """That is said, and no list is offered that would be empty."""

    async def main() -> None:
        async with rp.open_journal(tmp_path / "empty.db"):
            pass

    rp.run(main)
    result = invoke("inspect", "--db", tmp_path / "empty.db", home=home)
    assert (result.code, result.err) == (4, f"repertory: there is no run in {tmp_path / 'empty.db'} yet\n")


def test_no_id_means_the_newest_run(made: Path, home: Path) -> None:
    """What one looks at most often needs no id."""
    assert invoke("ledger", "--json", "--db", made, home=home).json["run_id"] == OTHER


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("inspect", "nothing"), 4, "there is no run 'nothing'"),
        (("inspect", "run-01"), 4, "fits more than one run"),
        (("inspect", RUN, "-i", "9"), 4, "has no iteration 9; it made 1 to 3"),
        (("inspect", OTHER), 4, "has not called a model yet"),
        (("content", "show", "nothing"), 4, "no content 'nothing'"),
        (("inspect", RUN, "-i", "0"), 2, "--iteration"),
    ],
)
def test_what_is_not_there_is_one_line_and_an_exit_code(
    words: tuple[str, ...], code: int, said: str, made: Path, home: Path
) -> None:
    """Nothing on standard output; on standard error one line that says what to do."""
    result = invoke(*words, "--db", made, home=home)
    assert result.code == code
    assert result.out == ""
    assert said in result.err
    assert result.err.startswith("repertory: ")
    assert result.err.count("\n") == 1


def test_what_to_do_next_names_the_database_that_was_meant(made: Path, home: Path) -> None:
    """A command that is copied from the line looks where the first one did."""
    for words in (("inspect", "nothing"), ("fork", "nothing"), ("rm", "nothing")):
        assert f"repertory ps -a --db {made} lists" in invoke(*words, "--db", made, home=home).err


def test_a_run_is_forked_and_removed_where_no_service_runs(made: Path, tmp_path: Path) -> None:
    """In the database in the data folder, if none is named; only its whole id removes a run."""
    path = tmp_path / "data" / "repertory" / "runs.db"
    path.parent.mkdir(parents=True)
    shutil.copy(made, path)
    forked = invoke("fork", RUN, "--iteration", "2", home=tmp_path)
    assert (forked.code, forked.err) == (0, "")
    assert invoke("rm", RUN[:-1], home=tmp_path).code == 4
    assert invoke("rm", RUN, home=tmp_path).code == 0
    listed = invoke("ps", "-a", "--json", "--db", path, home=tmp_path).json["runs"]
    assert [run["id"] for run in listed] == [OTHER, forked.out.strip()]


def test_the_ledger_of_a_run_that_failed_says_why(made: Path, home: Path) -> None:
    """Below what it did, on standard error."""
    result = invoke("ledger", RUN, "--db", made, home=home)
    assert result.code == 0
    assert "#6" in result.out
    assert "the run failed: ModelUnavailable: gone" in result.err


def test_ledger_shows_where_a_tool_went_wrong(tmp_path: Path, home: Path) -> None:
    """The model was told one line; whoever reads the whole record sees the traceback, in the text and as data."""

    def divide(number: int) -> int:
        """Divide by nothing."""
        return number // 0

    path = tmp_path / "runs.db"
    agent = rp.Agent("a", tools=[divide])
    rp.run_sync(agent, "task", path=path, model=ScriptedModel([call("divide", number=1), "told"]))
    short, whole = (invoke("ledger", *more, "--db", path, home=home).out for more in ((), ("--full",)))
    assert "ZeroDivisionError: " in short
    assert "Traceback" not in short
    assert "what the tool raised:\nTraceback (most recent call last):" in whole
    assert "in divide\n    return number // 0" in whole
    entries = invoke("ledger", "--json", "--db", path, home=home).json["entries"]
    assert [bool(entry["traceback"]) for entry in entries] == [False, False, True, False]


@pytest.fixture
def long_run(tmp_path: Path) -> Path:
    """A database with one run of 60 iterations, whose view left most of its record."""

    @rp.tool(effect="pure", repeatable=False)
    def read(number: int) -> str:
        """Read."""
        return f"page {number}: " + f"words of page {number} " * 30

    calls = iter(range(59))
    model = FunctionModel(lambda _: "Done." if (number := next(calls, None)) is None else call("read", number=number))
    reader = rp.Agent("reader", tools=[read], limits=rp.Limits(iterations=60))
    rp.run_sync(reader, "Read all.", path=tmp_path / "long.db", model=model)
    return tmp_path / "long.db"


@pytest.mark.parametrize("newest", [1, 30, 1000])
def test_the_newest_part_of_a_record_tells_the_same_of_what_was_seen(long_run: Path, newest: int) -> None:
    """It has the newest entries and those that the model saw; nothing else of the inspection differs."""

    async def look() -> None:
        async with open_journal(long_run, readonly=True) as journal:
            source = RecordSource(journal, long_run, owned=False)
            run_id = (await source.list_runs()).runs[0].id
            for iteration in (1, 7, 60):
                whole = await source.read_inspection(run_id, iteration, newest=0)
                part = await source.read_inspection(run_id, iteration, newest=newest)
                seen = {at for line in whole["places"] for at in line}
                wanted = [
                    entry
                    for entry in whole["record"]
                    if entry["position"] in seen or entry["position"] >= whole["length"] - newest
                ]
                assert part == {**whole, "record": wanted}
            assert len(wanted) < len(whole["record"]) or newest == 1000

    anyio.run(look)


def test_of_a_long_run_a_person_sees_the_newest_part(
    long_run: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left out is said; --full and --json have the whole. A ledger is read page by page."""
    monkeypatch.setattr(reading, "_NEWEST", 2)
    monkeypatch.setattr(reading, "_PAGE", 7)
    short, full = (invoke("inspect", *more, "--db", long_run, home=home).out for more in ((), ("--full",)))
    assert "older ones left out; --full shows all" in short
    assert "left out" not in full
    assert len(invoke("inspect", "--json", "--db", long_run, home=home).json["record"]) == 119
    entries = invoke("ledger", "--json", "--db", long_run, home=home).json["entries"]
    assert [entry["position"] for entry in entries] == list(range(120))
    lines = invoke("ledger", "-n", "9", "--db", long_run, home=home).out.split("\n")
    assert [int(line[1:5]) for line in lines if line.startswith("#")] == list(range(111, 120))
