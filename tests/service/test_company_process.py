"""``repertory up``, ``down`` and ``reload`` as processes: detached, killed with runs in the queue, reloaded."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from company_kit import COMPANY, DESK, Company, until
from typer.testing import CliRunner

from patience import PATIENCE
from repertory.cli.app import app
from repertory.record.sqlite_file import owner_of
from repertory.service.company import EXAMPLE


@pytest.fixture
def company(short: Path) -> Iterator[Company]:
    """A company; what runs of it at the end is killed."""
    made = Company(short)
    yield made
    if (owner := owner_of(made.database)) is not None:
        os.kill(owner.pid, signal.SIGKILL)
        until(lambda: owner_of(made.database) is None)


def test_a_killed_company_goes_on_with_those_who_waited_in_their_order(company: Company) -> None:
    """Up, three runs for one place, kill -9, up: each begins and ends once, in order; then down, and it is down."""
    code, said = company.command("up", "--detach")
    assert (code, f"up: process {company.pid} at unix:{company.folder}/s" in said) == (0, True), said
    assert f"serving {company.database} at unix:{company.folder}/s" in said  # with the page's link, where it has one
    code, said = company.command("up")
    assert code == 75
    assert f"company.toml is already up: process {company.pid} serves it" in said
    runs = [company.start("a"), company.start("b"), company.start("c", priority=1)]
    began = company.folder / "began"
    until(lambda: began.exists() and began.read_text() == "a\n")
    killed = company.pid
    os.kill(killed, signal.SIGKILL)
    until(lambda: owner_of(company.database) is None)
    assert company.command("up", "--detach")[0] == 0
    queue = until(lambda: (found := company.ask("GET", "/queue")) and len(found) == 2 and found)
    assert [each["run_id"] for each in queue] == [runs[2], runs[1]]
    listed = json.loads(company.run("ps", "--json").stdout)  # its folder says which service is meant
    assert listed["service"] == f"unix:{company.folder}/s"
    assert {run["id"] for run in listed["runs"]} == set(runs)
    (company.folder / "go").touch()
    for run_id, task in zip(runs, "abc", strict=True):
        ended = until(lambda of=f"/runs/{run_id}/result?wait=60": (got := company.ask("GET", of))["result"] and got)
        assert ended["result"] == f"Done: {task}"
    assert began.read_text().split() == ["a", "a", "c", "b"]
    serving = company.pid
    code, said = company.command("down")
    assert (code, said) == (
        0,
        f"repertory: process {serving} is ending; runs in progress: 0; each stops at its next boundary "
        "and can be resumed\n"
        "repertory: ended\n",
    )
    assert owner_of(company.database) is None


@pytest.mark.nightly  # it is waited for ten seconds
def test_a_company_that_stands_still_holds_nobody_up(company: Company) -> None:
    """``down`` gives up, and says how to go on; once it moves again it ends, as it was told to."""
    assert company.command("up", "--detach")[0] == 0
    stopped = company.pid
    os.kill(stopped, signal.SIGSTOP)
    code, said = company.command("down")
    os.kill(stopped, signal.SIGCONT)
    assert code == 75
    assert f"kill -CONT {stopped}" in said
    assert "repertory down --now" in said
    until(lambda: owner_of(company.database) is None)


def test_a_wrong_file_changes_nothing_and_a_good_one_does(company: Company) -> None:
    """By ``reload`` and by SIGHUP: the error names line, table and key; what was waiting begins with more room."""
    assert company.command("up", "--detach")[0] == 0
    first, second = company.start("a"), company.start("b")
    company.write(COMPANY.replace("max_runs = 1", "max_rums = 2"))
    code, said = company.command("reload")
    assert (code, "line 3: [service] max_rums: unknown key; did you mean 'max_runs'?" in said) == (2, True)
    os.kill(company.pid, signal.SIGHUP)
    log = company.folder / "company.log"
    until(lambda: "not reloaded, continuing as before" in log.read_text())
    assert company.ask("GET", f"/runs/{second}")["run"]["state"] == "queued"
    company.write(COMPANY.replace("max_runs = 1", 'name = "desk"\nmax_runs = 2'))
    code, said = company.command("reload")
    assert (code, "[service] name changes with the next" in said, said.endswith("reloaded\n")) == (0, True, True)
    for run_id in (first, second):
        until(lambda run_id=run_id: company.ask("GET", f"/runs/{run_id}")["run"]["state"] == "running")
    assert company.command("down", "--now")[0] == 0
    assert owner_of(company.database) is None


def test_a_hangup_while_a_company_starts_has_it_reload_once_it_serves(company: Company) -> None:
    """It comes while libraries and agents are loaded, as the log is moved away or its file was changed.

    A process that a module starts meanwhile hears of hangups as ever.
    """
    child = "import signal; print(signal.getsignal(signal.SIGHUP), signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    begin = f"""
import os, pathlib, signal, subprocess, sys
os.kill(os.getpid(), signal.SIGHUP)
pathlib.Path("heard").write_bytes(subprocess.check_output([sys.executable, "-c", {child!r}]))
"""
    (company.folder / "desk.py").write_text(f"{begin}\n{DESK}")
    assert company.command("up", "--detach")[0] == 0
    until(lambda: "reloaded" in (company.folder / "company.log").read_text())
    assert (company.folder / "heard").read_text() == f"{signal.SIG_DFL!s} {set()}\n"


def test_a_company_is_found_whatever_its_file_says_by_now(company: Company) -> None:
    """Commands ask the service itself; once none is there, what the file says counts."""
    file = company.folder / "company.toml"
    assert company.command("up", "--detach")[0] == 0
    for text, reloaded, words in (
        ("[service", 2, "is not valid TOML"),
        ('[service]\nsokket = "s"\n', 2, "unknown key"),
        (COMPANY.replace("desk:clerk", "desk:nobody"), 2, "[agents.clerk] ref"),
        (COMPANY.replace("[service]", '[service]\ndb = "other.db"'), 0, "[service] db changes with the next"),
        (file, 2, "cannot be read: Too many levels of symbolic links"),
        (company.folder / "later" / "company.toml", 2, "cannot be read: No such file"),
    ):
        file.unlink()
        if isinstance(text, Path):  # as of a version that is deployed by a link
            file.symlink_to(text)
        else:
            company.write(text)
        code, said = company.command("reload")
        assert (code, words in said) == (reloaded, True), said
    file.unlink()
    assert json.loads(company.run("ps", "--json").stdout)["service"] == f"unix:{company.folder}/s"
    code, said = company.command("down")
    assert (code, said.endswith("repertory: ended\n")) == (0, True), said
    assert owner_of(company.database) is None
    company.write("[service")
    assert company.command("down")[0] == 2


def test_a_company_whose_file_is_wrong_is_found_until_its_last_run_stands(company: Company) -> None:
    """A second ``down`` while a run is waited for ends the process, as a second signal does."""
    assert company.command("up", "--detach")[0] == 0
    company.start("a")  # its model does not answer
    until((company.folder / "began").exists)
    os.kill(company.pid, signal.SIGTERM)
    until(lambda: "runs in progress: 1" in (company.folder / "company.log").read_text())
    company.write("[service")
    code, said = company.command("down")
    assert (code, said.endswith("repertory: ended\n")) == (0, True), said


def test_a_company_that_waits_for_its_database_is_ended(company: Company) -> None:
    """It has no address yet, but holds the lock that stands for its file."""
    company.write(COMPANY.replace("[service]", '[service]\ndb = "postgresql://u@127.0.0.1:1/x"'))
    with company.begin("up") as waits, ExitStack() as stack:
        stack.callback(waits.kill)
        assert waits.stderr is not None
        assert "waiting for the database server" in waits.stderr.readline()
        code, said = company.command("up")
        assert (code, f"process {waits.pid} opens its database" in said) == (75, True), said
        code, said = company.command("down")
        assert (code, said.endswith("repertory: ended\n")) == (0, True), said
        assert waits.wait(PATIENCE) != 0


def test_what_cannot_start_says_why_and_what_to_do(company: Company) -> None:
    """No file, no log, or a port that is taken: no service is left behind, and none is waited for."""
    file = company.folder / "company.toml"
    file.unlink()
    for command in ("up", "down", "reload"):
        done = CliRunner().invoke(app, [command, str(file)])
        assert done.exit_code == 2
        assert done.stderr.endswith(f"there is no file {str(file)!r}; name the company file\n")
        assert (f"Write {file}, for example:\n\n{EXAMPLE}\n" in done.stderr) == (command == "up")
    company.write(COMPANY.replace("[service]", '[service]\nlog = ".."'))
    code, said = company.command("up", "--detach")
    assert (code, "cannot write the log" in said) == (2, True), said
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        company.write(COMPANY.replace('socket = "s"', f"port = {taken.getsockname()[1]}"))
        code, said = company.command("up", "--detach")
    assert code == 75
    assert "the service ended with exit code 75: " in said
    assert owner_of(company.database) is None
    assert CliRunner().invoke(app, ["reload", str(file)]).exit_code == 75
    assert CliRunner().invoke(app, ["down", str(file)]).exit_code == 0


def test_what_reads_the_file_finds_that_of_the_company(company: Company) -> None:
    """At the usual socket no command needs the name of the database."""
    company.write(COMPANY.replace('socket = "s"\n', 'log = "logs/a.log"\n'))
    code, said = company.command("up", "--detach")
    assert (code, f"its log is {company.folder}/logs/a.log" in said) == (0, True), (
        said
    )  # in a new folder, like the database
    code, said = company.command("backup", "backups/")
    assert (code, f"{company.database} is backed up" in said) == (0, True), said
    assert company.command("down", "--now")[0] == 0


def test_a_company_that_is_down_is_still_the_one_of_its_folder(company: Company) -> None:
    """What died in the night is not looked for among the runs of another database, nor is work given to its service."""
    assert json.loads(company.run("ps", "--json").stdout)["database"] != str(company.database)  # it was never up
    assert company.command("up", "--detach")[0] == 0
    os.kill(company.pid, signal.SIGKILL)
    until(lambda: owner_of(company.database) is None)
    listed = json.loads(company.run("ps", "--json").stdout)
    assert (listed["database"], listed["service"]) == (str(company.database), None)
    code, said = company.command("start", "clerk", "Go.")
    assert (code, f"no service runs for {company.database}: repertory up starts one" in said) == (1, True), said
