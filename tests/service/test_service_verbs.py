"""Every command about runs, beside a service and where there is none."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
from service_commands import environment
from test_service_process import HERE, Served, until
from typer.testing import CliRunner

from patience import PATIENCE
from repertory.cli.app import app, load
from repertory.cli.sections import COMMANDS
from repertory.record import open_journal
from repertory.record.records import EventLogged, Record, RunStarted, RunStateChanged
from repertory.record.sqlite_file import FileLock
from repertory.service.places import Place, announce_service, file_announced, file_served, service_of
from repertory.service.sockets import default_socket, unix_listener


class Expected(NamedTuple):
    """What a command leaves behind: its exit code, and words that it says."""

    code: int
    words: str


class Verb(NamedTuple):
    """A command line, with what comes of it. ``RUN`` stands for a run whose calls wait."""

    line: str
    served: Expected
    alone: Expected


_DONE = Expected(0, "")
_NOBODY = Expected(1, "no service runs for")
VERBS = {
    "ps": Verb("ps", Expected(0, "waiting"), Expected(0, "interrupted")),
    "ps --json": Verb("ps --json", Expected(0, '"state": "waiting"'), Expected(0, '"state": "interrupted"')),
    "approvals": Verb("approvals", Expected(0, "repertory approve CALL"), Expected(0, "no service runs these")),
    "approvals --json": Verb("approvals --json", Expected(0, '"call_id": "c0"'), Expected(0, '"call_id": "c0"')),
    "top": Verb("top", Expected(0, " calls wait"), Expected(0, "1 interrupted   3 calls wait")),
    "logs": Verb("logs RUN", Expected(0, "waits for approval: pay"), Expected(0, "starts: Go.")),
    "logs --json": Verb("logs RUN --json", Expected(0, '"ApprovalRequested"'), Expected(0, '"RunSpawned"')),
    "attach": Verb("attach RUN", Expected(0, "I heard: Go."), Expected(1, "no process runs run-")),
    "stats": Verb("stats RUN", Expected(0, "prompt tokens"), Expected(0, "prompt tokens")),
    "stats --json": Verb("stats RUN --tree --json", Expected(0, '"purposes"'), Expected(0, '"purposes"')),
    "inspect": Verb("inspect RUN", Expected(0, "WHAT THE MODEL SAW"), Expected(0, "WHAT THE MODEL SAW")),
    "inspect --json": Verb("inspect RUN -i 1 --json", Expected(0, '"places"'), Expected(0, '"tree_statistics"')),
    "ledger": Verb("ledger RUN", Expected(0, "calls: pay"), Expected(0, "calls: pay")),
    "ledger --json": Verb("ledger RUN --json", Expected(0, '"entries"'), Expected(0, '"entries"')),
    "start": Verb("start payer Pay.", Expected(0, "run-"), _NOBODY),
    "start --json": Verb("start payer Pay. --json", Expected(0, '{"id": "run-'), _NOBODY),
    "approve": Verb("approve c0 --run RUN", _DONE, _NOBODY),
    "deny": Verb("deny c1 no --run RUN", _DONE, _NOBODY),
    "give": Verb("give c9 ink --run RUN", Expected(1, "no call 'c9' of run run-"), _NOBODY),
    "send": Verb("send RUN Hurry.", _DONE, _NOBODY),
    "pause": Verb("pause RUN", _DONE, _NOBODY),
    "resume": Verb("resume RUN", Expected(0, "continues in the service"), _DONE),
    "resume what was killed": Verb("resume RUN", Expected(0, "continues in the service"), _DONE),
    "vacuum": Verb("vacuum", Expected(0, "MiB after"), Expected(0, "MiB after")),
    "vacuum --json": Verb("vacuum --json", Expected(0, "{"), Expected(0, "{")),
    "fork": Verb("fork RUN", Expected(0, "run-"), Expected(0, "run-")),
    "fork --json": Verb("fork RUN --json", Expected(0, '"run-'), Expected(0, '"run-')),
    "rewind": Verb("rewind RUN --iteration 0", Expected(0, "run-"), Expected(0, "run-")),
    "rewind --json": Verb("rewind RUN --iteration 0 --json", Expected(0, '"run-'), Expected(0, '"run-')),
    "rm": Verb("rm RUN", _DONE, _DONE),
    "stop": Verb("stop RUN", _DONE, _NOBODY),
    "kill": Verb("kill RUN", _DONE, _NOBODY),
}


ON_ENDED = {"attach", "fork", "fork --json", "rewind", "rewind --json", "rm"}
"""What is tried on a run that has its answer."""


def test_the_table_has_every_command_that_may_ask_a_service() -> None:
    """Those with ``--socket``, and ``--json`` wherever there is one; only ``serve`` listens itself."""
    asking = {name: {option for parameter in load(name).params for option in parameter.opts} for name in COMMANDS}
    expected = {name for name, options in asking.items() if "--socket" in options and name != "serve"}
    assert {verb.line.split()[0] for verb in VERBS.values()} == expected
    lists = {name for name in expected if "--json" in asking[name]} - {"resume"}
    assert {name.split()[0] for name in VERBS if "--json" in name} == lists


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder with a short name, as a socket needs it."""
    with tempfile.TemporaryDirectory(prefix="rp") as path:
        yield Path(path)


def begin(served: Served, agent: str) -> str:
    """Begin a run, and wait until it is where it waits, on the disk too: it is shown a moment before it is there."""
    run_id = str(served.ask("POST", "/runs", {"agent": agent, "task": "Go."})["id"])
    if agent == "talker":
        assert served.ask("GET", f"/runs/{run_id}/result?wait=60")["state"] == "done"
    if agent == "payer":
        with contextlib.closing(sqlite3.connect(f"file:{served.folder / 'a.db'}?mode=ro", uri=True)) as database:
            asked = "SELECT count(*) FROM approvals WHERE run_id = ? AND decision = 'waiting'"
            until(lambda: database.execute(asked, (run_id,)).fetchone()[0] == 3)
    return run_id


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    """A service with agents whose runs stand still."""
    (folder / "on").mkdir()
    served = Served(folder / "on", "--agent", "serve_agents:payer", "--agent", "serve_agents:talker")
    served.hear("serving")
    yield served
    served.process.terminate()
    served.end()


@pytest.fixture(scope="module")
def alone(folder: Path) -> Path:
    """What a killed service has left: a run whose calls waited."""
    (folder / "off").mkdir()
    served = Served(folder / "off", "--agent", "serve_agents:payer")
    served.hear("serving")
    begin(served, "payer")
    served.process.kill()
    served.end()
    assert (folder / "off" / "s").exists()  # nobody tidied up
    return folder / "off"


def invoke(line: str, folder: Path, run_id: str) -> Any:
    """Run a command line about the database of a folder."""
    words = [word.replace("RUN", run_id) if word == "RUN" else word for word in line.split()]
    done = CliRunner().invoke(app, [*words, "--db", str(folder / "a.db")], env=environment(folder))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def check(verb: str, expected: Expected, done: Any) -> None:
    """What came of a command is what was expected; of one that failed, one sentence."""
    assert done.exit_code == expected.code, (verb, done.output)
    assert expected.words in done.output, (verb, done.output)
    assert "Traceback" not in done.output
    if expected.code:
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1
    elif "--json" in verb:
        for line in done.stdout.splitlines():
            json.loads(line)


def test_an_empty_name_is_no_call(served: Served) -> None:
    """Of a variable that is not set, say; else it would be the beginning of whichever one waits."""
    run_id = begin(served, "payer")
    for words in (["approve", "", "--run", run_id], ["deny", "", "no", "--run", run_id]):
        done = CliRunner().invoke(app, [*words, "--db", str(served.folder / "a.db")], env=environment(served.folder))
        assert (done.exit_code, done.stdout) == (2, "")
        assert "CALL" in done.stderr
    served.ask("POST", f"/runs/{run_id}/kill", {})


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_beside_a_service(verb: str, served: Served) -> None:
    """The service is found by the database that it owns, and does what the verb says, or says how the run stands."""
    run_id = begin(served, "talker" if verb in ON_ENDED else "payer")
    before = {"resume": "pause", "resume what was killed": "kill"}.get(verb)
    if before is not None:
        served.ask("POST", f"/runs/{run_id}/{before}", {})
    check(verb, VERBS[verb].served, invoke(VERBS[verb].line, served.folder, run_id))
    if verb not in {"stop", "kill", *ON_ENDED}:
        served.ask("POST", f"/runs/{run_id}/kill", {})


@pytest.mark.parametrize("verb", [verb for verb, each in VERBS.items() if each.line != "resume RUN"])
def test_a_verb_without_a_service(verb: str, alone: Path, tmp_path: Path) -> None:
    """The socket of the killed one is there, and so is what it said beside its database: neither is believed."""
    listed = json.loads(invoke("ps --json", alone, "").stdout)
    assert listed["service"] is None
    place = alone
    if verb in ON_ENDED:  # which write to the database
        place = tmp_path
        for name in ("a.db", "a.db-wal"):
            shutil.copy(alone / name, place / name)
    check(verb, VERBS[verb].alone, invoke(VERBS[verb].line, place, listed["runs"][0]["id"]))


def test_who_serves_a_database_is_believed_only_while_its_lock_is_held(tmp_path: Path) -> None:
    """Not what a dead process left, whoever has its number now, nor what is cut off, nor what others could write."""
    path = tmp_path / "a.db"
    place = Place(socket="/run/caf\udce9/x")  # a folder whose name is no UTF-8
    lock = FileLock(str(path))
    assert service_of(path) is None
    announce_service(path, place)
    assert service_of(path) == place
    file = tmp_path / "a.db.lock"
    whole = file.read_bytes()
    file.write_bytes(whole[:-9])
    assert service_of(path) is None
    file.write_bytes(whole)
    file.chmod(0o666)
    assert service_of(path) is None
    file.chmod(0o600)
    assert service_of(path) == place
    lock.release()
    assert file.read_bytes() == whole  # with the number of this very process, which lives
    assert service_of(path) is None
    again = FileLock(str(path))
    assert service_of(path) is None
    again.release()


def test_which_file_the_usual_service_has_is_known_also_while_it_hangs(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody takes a connection here, and it counts for as long as the service lives."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short))
    path = short / "a.db"
    path.touch()
    assert file_served() is None
    with unix_listener(default_socket()) as usual:
        with file_announced(usual, path):
            assert file_served() == path
        assert file_served() is None
    with unix_listener(short / "s") as another, file_announced(another, path):
        assert file_served() is None
    with socket.socket(socket.AF_UNIX) as abstract:  # as systemd may pass one
        abstract.bind(f"\0repertory-{os.getpid()}")
        with file_announced(abstract, path):
            assert file_served() is None


def test_a_service_that_hangs_blocks_nobody(folder: Path) -> None:
    """What reads goes on with the file; what cannot says how to recover; both within ten seconds."""
    (folder / "hung").mkdir()
    served = Served(folder / "hung", "--agent", "serve_agents:payer")
    served.hear("serving")
    run_id = begin(served, "payer")
    os.kill(served.process.pid, signal.SIGSTOP)
    try:
        environ = {**os.environ, **environment(folder / "hung")}
        environ["PYTHONPATH"] = os.pathsep.join(map(str, (HERE, HERE.parent)))
        at = ("--db", str(folder / "hung" / "a.db"))
        lines = (("ps", *at), ("pause", run_id, *at), ("ps", "--socket", str(folder / "hung" / "s")))
        command = [sys.executable, "-m", "repertory"]
        started = [subprocess.Popen([*command, *line], env=environ, stdout=-1, stderr=-1, text=True) for line in lines]
        ended = [(process.communicate(timeout=PATIENCE), process.returncode) for process in started]
    finally:
        os.kill(served.process.pid, signal.SIGCONT)
        served.process.terminate()
        served.end()
    ((listed, remark), code), ((_, paused), second), ((_, named), third) = ended
    assert code == 0
    assert run_id in listed
    for words in (remark, paused, named):
        assert "did not answer within 4 s" in words
        assert "start repertory serve --resume" in words
    assert remark.rstrip().endswith("reading the database file")
    assert (second, third) == (75, 75)


def test_a_service_resumes_only_its_own_runs_and_with_their_settings(folder: Path) -> None:
    """No other database is meant, and nothing is changed under way."""
    served = Served(folder, "--agent", "serve_agents:talker")
    served.hear("serving")
    try:
        for run_id in ["left"], []:  # no such run, and none to continue
            assert invoke(" ".join(["resume", *run_id]), folder, "").exit_code == 4
        run_id = begin(served, "talker")
        refused = invoke(f"resume {run_id} --limit iterations=9", folder, "")
        assert (refused.exit_code, "leave out --agent" in refused.stderr) == (2, True)
    finally:
        served.process.terminate()
        served.end()


def test_a_socket_that_another_service_has_by_now_is_noticed(folder: Path) -> None:
    """It is compared which database is served there."""
    for name in ("one", "two"):
        (folder / name).mkdir()
    first = Served(folder / "one", "--agent", "serve_agents:payer")
    first.hear("serving")
    (folder / "one" / "s").unlink()
    (folder / "one" / "s.lock").unlink()
    second = Served(folder / "two", "--agent", "serve_agents:payer", "--socket", str(folder / "one" / "s"))
    second.hear("serving")
    try:
        done = invoke("start payer Pay.", folder / "one", "")
        assert done.exit_code == 75
        assert f"serves {folder}/two/a.db and not {folder}/one/a.db" in done.stderr
    finally:
        for served in (first, second):
            served.process.terminate()
            served.end()


async def make_long_record(path: Path) -> None:
    """A run that has ended and one that was interrupted, and after them a thousand that have ended."""
    async with open_journal(path) as journal:
        for number, run_id in enumerate(["ended", "left", *(f"n{number}" for number in range(1_000))]):
            at = 1e9 + number
            told = EventLogged(run_id=run_id, type="RunSpawned", body={"task": "Go.", "model": "m"}, at=at)
            records: list[Record] = [RunStarted(run_id=run_id, agent="clerk", task="Go.", at=at), told]
            if run_id != "left":
                records.append(RunStateChanged(run_id=run_id, state="done", at=at, iteration=1))
            await journal.write(records)


def test_what_is_older_than_a_thousand_trees_is_not_overlooked(short: Path) -> None:
    """A run that was left is listed however many came after it, and the log of one that has ended is no empty one."""
    anyio.run(make_long_record, short / "a.db")
    served = Served(short)
    try:
        served.hear("serving")
        at = ["--socket", str(served.socket)]
        listed = json.loads(CliRunner().invoke(app, ["ps", "--json", *at]).stdout)
        assert ([run["id"] for run in listed["runs"]], listed["more"]) == (["left"], 1)
        assert "1 interrupted" in CliRunner().invoke(app, ["top", *at]).stdout
        assert "starts: Go." in CliRunner().invoke(app, ["logs", "ended", *at]).stdout
    finally:
        served.kill()
