"""run and resume: agents of one's own, signals, and every way it can go wrong."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from cli_support import OTHER, RUN, Result, in_a_process, invoke, settings

from patience import PATIENCE
from repertory.record import open_journal
from repertory.record.sqlite_file import FileLock
from repertory.testing import open_messages_server

AGENTS = '''
import sys
from pathlib import Path
import msgspec
import repertory as rp
from repertory.errors import ModelUnavailable
from repertory.llm.messages import ToolResult
from repertory.testing import FunctionModel, call

@rp.tool(effect="pure")
async def wait_for_gate() -> str:
    """Say that it waits, and wait until somebody opens the gate."""
    import anyio
    print("waiting", file=sys.stderr, flush=True)
    while not await anyio.Path("gate").exists():
        await anyio.sleep(0.02)
    return "open"

@rp.tool(effect="pure")
def quick() -> str:
    """Answer at once."""
    return "quick"

def _results(request):
    return sum(isinstance(block, ToolResult) for message in request.messages for block in message.content)

gated = rp.Agent("gated", tools=[wait_for_gate], model=FunctionModel(
    lambda request: "Through the gate." if _results(request) else call("wait_for_gate")))

def of(root, **options):
    return rp.Agent("quick", tools=[quick], model=FunctionModel(
        lambda request: f"Done in {root}: \\x1b[31mred" if _results(request) else call("quick")))

@rp.tool(effect="pure")
def read_day(day: int) -> str:
    """Read the log of a day."""
    return f"day {day}: " + "ship " * 200

def _next_day(request):
    day = len(busy.model.requests)
    if day == 2 and not Path("gate").exists():
        raise ModelUnavailable("closed")
    return call("read_day", day=day) if day < 12 else "All read."

class Topic(msgspec.Struct):
    """A task of a type."""

    name: str

class Report(msgspec.Struct):
    """A result of a type."""

    title: str
    lines: list[int]

typed = rp.Agent("typed", input=Topic, output=Report, model=FunctionModel(
    lambda request: call("final_result", title="tides", lines=[1, 2])))

busy = rp.Agent(
    "busy", tools=[read_day], model=FunctionModel(_next_day),
    context=rp.ContextPolicy(rhythm="strict", window=2, strict_chars=0, summarize_every=3))

nothing = 3
'''


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with agents of one's own in it."""
    (tmp_path / "own_agents.py").write_text(AGENTS)
    return tmp_path


def test_an_agent_of_ones_own_runs_and_its_answer_is_all_there_is_on_stdout(place: Path) -> None:
    """The function is handed the folder; progress goes to standard error, and the answer is made harmless."""
    result = in_a_process("run", "Go.", "--agent", "own_agents:of", "--db", "r.db", home=place)
    assert result.code == 0, result.err
    assert result.out == f"Done in {place}: \\x1b[31mred\n"
    assert "iteration 2" in result.err


def test_run_json_is_one_object_and_nothing_else(place: Path) -> None:
    """Not even progress, on either stream."""
    result = in_a_process("run", "Go.", "--agent", "own_agents:of", "--db", "r.db", "--json", home=place)
    assert (result.code, result.err) == (0, "")
    assert result.json["answer"] == f"Done in {place}: \x1b[31mred"
    assert result.json["tool_calls"] == 1


def test_a_result_of_a_type_is_json(place: Path) -> None:
    """For people as indented text, for programs as a value; the task is JSON, and is checked before anything begins."""
    words = ("--agent", "own_agents:typed", "--db", "r.db")
    shown = in_a_process("run", '{"name": "tides"}', *words, home=place)
    assert shown.out == '{\n  "title": "tides",\n  "lines": [\n    1,\n    2\n  ]\n}\n'
    asked = in_a_process("run", '{"name": "tides"}', *words, "--json", home=place)
    assert asked.json["result"] == {"title": "tides", "lines": [1, 2]}
    refused = in_a_process("run", '{"name": 3}', *words, home=place)
    assert refused.code != 0
    assert "a task of agent typed must be Topic" in refused.err


def writers(path: Path) -> set[str]:
    """The models that were asked for summaries."""
    connection = sqlite3.connect(path)
    found = connection.execute("SELECT model FROM context_growth WHERE purpose = 'summary'").fetchall()
    connection.close()
    return {model for (model,) in found}


def test_a_model_writes_the_summaries_if_it_is_named(place: Path) -> None:
    """Of a run, and of one that is resumed; control: without the option none is asked."""
    words = ("run", "Go.", "--agent", "own_agents:busy", "--db")
    failed = in_a_process(*words, "resumed.db", home=place)
    assert (failed.code, writers(place / "resumed.db")) == (1, set())
    (place / "gate").touch()
    named = ("--summary-model", "offline")
    for command in (
        (*words, "without.db"),
        (*words, "run.db", *named),
        ("resume", "--db", "resumed.db", *named),
    ):
        result = in_a_process(*command, home=place)
        assert (result.code, result.out) == (0, "All read.\n"), result.err
    (run,) = in_a_process("stats", "--db", "without.db", "--json", home=place).json["runs"]
    assert run["statistics"]["summaries_written"] > 0
    found = [writers(place / f"{name}.db") for name in ("without", "run", "resumed")]
    assert found == [set(), {"offline"}, {"offline"}]


def test_resume_takes_the_newest_run_that_did_not_finish(place: Path) -> None:
    """Not the newest of all, which is done; once every run is done, there is nothing to go on with."""
    begun = ("--db", "r.db", "--agent")
    assert in_a_process("run", "First.", *begun, "own_agents:busy", home=place).code == 1
    assert in_a_process("run", "Second.", *begun, "own_agents:of", home=place).code == 0
    (place / "gate").touch()
    resumed = in_a_process("resume", "--db", "r.db", home=place)
    assert (resumed.code, resumed.out) == (0, "All read.\n"), resumed.err
    nothing = in_a_process("resume", "--db", "r.db", home=place)
    assert (nothing.code, nothing.out) == (4, "")
    assert "every run in r.db has finished" in nothing.err


def test_limits_are_kept_with_the_run_until_it_is_resumed_with_others(place: Path) -> None:
    """The agent has its own where nothing is said; one that was reached can be lifted."""
    (place / "gate").touch()
    words = ("--agent", "own_agents:busy", "--db", "r.db", "--limit", "iterations=2", "--limit", "seconds=600.5")
    limited = in_a_process("run", "Read.", *words, home=place)
    assert limited.code == 1
    assert "limits.iterations" in limited.err
    assert "r.db --limit NAME=VALUE, with a higher value" in limited.err  # without it the same would come again
    again = in_a_process("resume", "--db", "r.db", home=place)
    assert "no answer after 2 iterations" in again.err
    wider = in_a_process("resume", "--db", "r.db", "--limit", "iterations=40", "--limit", "seconds=none", home=place)
    assert (wider.code, wider.out) == (0, "All read.\n"), wider.err


def _start(place: Path, *words: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "repertory", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=settings(place),
        cwd=place,
    )
    assert process.stderr is not None
    while b"waiting" not in process.stderr.readline():
        assert process.poll() is None
    return process


def _end(process: subprocess.Popen[bytes]) -> Result:
    out, err = process.communicate(timeout=PATIENCE)
    return Result(process.returncode, out.decode(), err.decode())


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_ctrl_c_stops_at_the_next_boundary_and_resume_goes_on(backend: str, place: Path) -> None:
    """The tool that is under way is finished, nothing after it begins, and the run goes on in a new process."""
    words = ("run", "Go.", "--agent", "own_agents:gated", "--db", "r.db", "--backend", backend, "--json")
    process = _start(place, *words)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert b"stopping at the next boundary" in process.stderr.readline()
    (place / "gate").touch()
    stopped = _end(process)
    assert stopped.code == 130
    assert stopped.json["state"] == "interrupted"
    assert "continue with: repertory resume run-" in stopped.err
    (listed,) = in_a_process("ps", "--db", "r.db", "--json", home=place).json["runs"]
    assert listed["state"] == "interrupted"
    resumed = in_a_process("resume", "--db", "r.db", "--backend", backend, home=place)
    assert (resumed.code, resumed.out) == (0, "Through the gate.\n")
    assert f"continuing {listed['id']}, which is interrupted: Go." in resumed.err


def test_a_second_ctrl_c_stops_at_once(place: Path) -> None:
    """Nobody opens the gate, and the process ends all the same; its record says how to go on."""
    process = _start(place, "run", "Go.", "--agent", "own_agents:gated", "--db", "r.db", "--json")
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert b"stopping at the next boundary" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert _end(process).code == 130
    (listed,) = in_a_process("ps", "--db", "r.db", "--json", home=place).json["runs"]
    assert listed["state"] == "interrupted"


def test_sigterm_is_graceful_too(place: Path) -> None:
    """As service managers expect; the exit code tells it from Ctrl-C."""
    process = _start(place, "run", "Go.", "--agent", "own_agents:gated", "--db", "r.db", "--json")
    process.send_signal(signal.SIGTERM)
    (place / "gate").touch()
    assert _end(process).code == 143


def test_a_reader_that_goes_away_is_no_error_worth_a_word(made: Path, home: Path) -> None:
    """As in ``repertory ledger | head -1``."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "repertory", "ledger", "aaaaaa", "--full", "--db", str(made)],
        stdout=write,
        stderr=subprocess.PIPE,
        env=settings(home),
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


# --- what can go wrong ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "x", "--model", "gpt-4"), "unknown model 'gpt-4'"),
        (("run", "x", "--model", "nobody"), "unknown model 'nobody'"),
        (("run", "x", "--model", "offline", "--summary-model", "gpt-4"), "unknown model 'gpt-4'"),
        (("run", "x", "--root", "/nowhere"), "there is no folder /nowhere"),
        (("run", "x", "--agent", "nowhere_at_all:agent"), "no module named 'nowhere_at_all'"),
        (("run", "x", "--agent", "nonsense"), "module:name"),
        (("run", " "), "expected a task with some text"),
        (("demo", "--model", "gpt-4"), "unknown model 'gpt-4'"),
        (("run", "x", "--limit", "cost"), "--limit must look like cost=2 or cost=none, got 'cost'"),
        (("run", "x", "--limit", "money=2"), "there is no limit 'money'; there are iterations, depth, runs, cost"),
        (("demo", "--limit", "runs=1.5"), "limits.runs must be a whole number"),
        (("serve", "--limit", "runs=none"), "limits.runs must be a whole number"),
        (("run",), "missing argument"),
        (("run", "x", "--model"), "option '--model' requires an argument; see repertory run --help"),
        (("ps", "--nonsense"), "no such option"),
        (("nonsense",), "no such command"),
        (("rnu",), "no such command 'rnu'; perhaps 'run'; see repertory --help"),
        (("run", "x", "--backend", "nonsense"), "nonsense"),
    ],
)
def test_wrong_usage_is_one_line_that_says_what_to_do(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    """Exit code 2, before anything is written but an empty database at most; never a traceback."""
    result = invoke(*words, home=tmp_path)
    assert (result.code, result.out) == (2, "")
    assert said in result.err
    assert result.err.count("\n") == 1


def test_debug_shows_where_an_error_comes_from(tmp_path: Path) -> None:
    """The traceback is for who asks for it, anywhere on the line."""
    result = in_a_process("run", "x", "--model", "gpt-4", "--debug", home=tmp_path)
    assert "Traceback" in result.err
    assert "ConfigurationError" in result.err


@pytest.mark.parametrize("words", [("ps",), ("inspect", "x"), ("ledger", "x"), ("resume", "x")], ids=" ".join)
def test_a_database_that_is_not_there_is_not_found(words: tuple[str, ...], tmp_path: Path) -> None:
    """Reading makes no file; the message says how one is made."""
    path = tmp_path / "none.db"
    result = invoke(*words, "--db", path, home=tmp_path)
    assert (result.code, result.out) == (4, "")
    assert f"no database at {path}; repertory demo" in result.err
    assert not path.exists()


@pytest.mark.parametrize(
    "words", [("ps",), ("inspect",), ("run", "x", "--model", "offline"), ("resume",)], ids=" ".join
)
def test_what_is_no_database_is_refused_and_left_as_it_is(words: tuple[str, ...], tmp_path: Path) -> None:
    """Exit code 78, and not one byte is changed."""
    path = tmp_path / "letter.db"
    path.write_bytes(b"Dear reader, " * 100)
    result = invoke(*words, "--db", path, home=tmp_path)
    assert result.code == 78
    assert str(path) in result.err
    assert path.read_bytes() == b"Dear reader, " * 100


@pytest.mark.parametrize("words", [("ps",), ("run", "x", "--model", "offline")], ids=" ".join)
def test_a_database_of_a_newer_version_is_refused(words: tuple[str, ...], made: Path, tmp_path: Path) -> None:
    """Exit code 78; an older program must not write to what it does not understand."""
    path = tmp_path / "newer.db"
    shutil.copy(made, path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 999")
    connection.close()
    result = invoke(*words, "--db", path, home=tmp_path)
    assert result.code == 78
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("words", [("run", "x", "--model", "offline"), ("resume", OTHER)], ids=" ".join)
def test_a_database_in_use_is_busy(words: tuple[str, ...], made: Path, tmp_path: Path) -> None:
    """Exit code 75: try again later."""
    path = tmp_path / "busy.db"
    shutil.copy(made, path)
    (tmp_path / "nowhere_to_be_found.py").write_text("import repertory as rp\nagent = rp.Agent('lead')\n")

    async def main() -> Result:
        async with open_journal(path):
            return await anyio.to_thread.run_sync(lambda: in_a_process(*words, "--db", str(path), home=tmp_path))

    result = anyio.run(main)
    assert result.code == 75
    assert f"{path} is in use by process {os.getpid()}" in result.err
    assert f"`kill {os.getpid()}`, or read meanwhile with `repertory ps --db {path}`" in result.err
    assert "readonly" not in result.err


def test_a_run_whose_agent_is_gone_says_how_to_name_it(made: Path, home: Path) -> None:
    """The module that the run was started with is not importable here."""
    result = invoke("resume", OTHER, "--db", made, home=home)
    assert (result.code, result.out) == (2, "")
    assert "nowhere_to_be_found" in result.err


@pytest.mark.parametrize("verb", ["resume", "chat"])
def test_a_run_that_does_not_name_its_agent_says_so(verb: str, made: Path, home: Path) -> None:
    """A program that handed its agent in started it; ``chat`` does not take another agent in its place."""
    result = invoke(verb, RUN, "--db", made, home=home)
    assert (result.code, result.out) == (2, "")
    assert f"run {RUN} does not say where its agent 'lead' is defined; name it with --agent" in result.err


def test_a_refused_key_fails_the_run_and_is_never_shown(tmp_path: Path) -> None:
    """A server that refuses the key: exit code 1, the record kept, and the key itself nowhere."""
    secret = "sk-canary-0123456789"

    async def main() -> Result:
        async with open_messages_server(lambda request: "hello", api_key="the right one") as server:
            env = {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": secret}
            words = ("run", "x", "--db", "r.db", "--json")
            return await anyio.to_thread.run_sync(lambda: in_a_process(*words, home=tmp_path, env=env))

    result = anyio.run(main)
    assert result.code == 1
    assert result.json["state"] == "failed"
    assert "ModelAuthenticationError" in result.json["error"]
    assert "continue with: repertory resume run-" in result.err
    assert secret not in result.out + result.err
    assert all(secret.encode() not in file.read_bytes() for file in tmp_path.glob("r.db*"))


def test_a_local_server_answers_the_run(tmp_path: Path) -> None:
    """With a base URL set and nothing else said, that server's model is asked, over real HTTP."""

    async def main() -> Result:
        async with open_messages_server(lambda request: "hello from the server") as server:
            env = {"ANTHROPIC_BASE_URL": server.url}
            return await anyio.to_thread.run_sync(
                lambda: in_a_process("run", "x", "--db", "r.db", home=tmp_path, env=env)
            )

    result = anyio.run(main)
    assert (result.code, result.out) == (0, "hello from the server\n")


def test_what_another_process_runs_is_not_said_to_be_continued(made: Path, tmp_path: Path) -> None:
    """While somebody has the database, its newest run is under way and not interrupted."""
    lock = FileLock(str(made))
    held = invoke("resume", "--db", made, home=tmp_path).err
    lock.release()
    assert "continuing" not in held
    assert "continuing run-" in invoke("resume", "--db", made, home=tmp_path).err
