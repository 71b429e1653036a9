"""Companies on one PostgreSQL database: each due time and each delivery is one machine's, also over kill -9."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import msgspec
import pytest
from company_kit import Company, until
from typer.testing import CliRunner

import journal_kit as kit
import repertory as rp
from backends import RunAsync
from postgres_server import PostgresServer
from repertory.cli.app import app
from repertory.record import open_journal
from repertory.record.records import ScheduleSettled
from repertory.service.cleaning import run_retention
from repertory.service.duties import Duties
from repertory.service.schedules import Schedule, Scheduler
from repertory.testing import FunctionModel

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
MINUTE = 60.0
MISSED = 20
START = 1_763_812_800.0  # 2025-11-22 12:00:00 UTC
CLERK = rp.Agent("clerk", context=None)


def kill_all(postgres: PostgresServer, uri: str) -> None:
    """End what a test has left."""
    for pid in machines(postgres, uri):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Inbox:
    """A server that keeps the id of each message with the run and the state that it tells."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str, str]] = []
        inbox = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = json.loads(self.rfile.read(int(self.headers["content-length"])))["data"]
                inbox.got.append((self.headers["webhook-id"], data["id"], data["state"]))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def told(self) -> Counter[tuple[str, str]]:
        """How often each change was told."""
        return Counter((run_id, state) for _, run_id, state in self.got)


@pytest.fixture
def inbox(monkeypatch: pytest.MonkeyPatch) -> Iterator[Inbox]:
    """A server for webhooks."""
    monkeypatch.setenv("HOOK", SECRET)
    made = Inbox()
    yield made
    made.server.shutdown()
    made.server.server_close()


def company_at(uri: str, folder: Path, runtime: Path, more: str = "") -> Company:
    """A company on a database; ``s`` in its folder is its socket."""
    folder.mkdir()
    text = f'[service]\ndb = "{uri}"\nsocket = "s"\nmax_runs = 20\n[agents.clerk]\nref = "desk:clerk"\n{more}'
    company = Company(folder, text, runtime=runtime)
    (folder / "go").touch()
    return company


def machines(postgres: PostgresServer, uri: str, duty: str = "") -> list[int]:
    """The processes that take part; with a duty the one that has it."""
    which = f"JOIN duties USING (machine_id) WHERE duties.name = '{duty}' AND" if duty else "WHERE"
    with postgres.connect(uri) as connection:
        return [pid for (pid,) in connection.execute(f"SELECT pid FROM machines {which} lost_at IS NULL").fetchall()]


def test_a_company_on_postgresql_goes_up_reloads_and_goes_down(
    postgres: PostgresServer, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command finds it, by its file or by its database, and one process of this machine serves a file."""
    uri = postgres.emptied_journal()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short))
    company = company_at(uri, short / "a", short)

    def invoke(*words: str) -> str:
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.stderr
        return done.stdout + done.stderr if "--json" not in words else done.stdout

    try:
        code, said = company.command("up", "--detach")
        assert (code, f"up: process {machines(postgres, uri)[0]} at unix:{company.folder}/s" in said) == (0, True), said
        assert "its log is company.log" in said
        code, said = company.command("up")
        assert (code, "company.toml is already up: process" in said) == (75, True), said
        started = company.start("Sort.")
        until(lambda: company.ask("GET", f"/runs/{started}/result").get("result"))
        shown = json.loads(invoke("ps", "-a", "--json", "--db", uri))["runs"]
        assert [(run["id"], run["state"]) for run in shown] == [(started, "done")]
        checks = json.loads(company.run("doctor", "company.toml", "--json").stdout)["checks"]
        found = {check["name"]: check["fact"] for check in checks}
        assert found["service"] == f"the service at unix:{company.folder}/s is healthy"
        assert found["company"].endswith(f"its database is {uri}")
        assert "postgresql" in found
        (machine,) = json.loads(company.run("machines", "--json").stdout)["machines"]
        assert machine["pid"] == machines(postgres, uri)[0]
        assert company.command("drain", machine["machine_id"])[0] == 0
        company.write((company.folder / "company.toml").read_text().replace("max_runs = 20", "max_runs = 10"))
        file = str(company.folder / "company.toml")
        assert invoke("reload", file).endswith("reloaded\n")
        assert "runs in progress: 0; each stops at its next boundary, from where any machine continues it" in invoke(
            "down", file
        )
        assert machines(postgres, uri) == []
        assert f"no service runs for {file}" in invoke("down", file)
    finally:
        kill_all(postgres, uri)


PLAN = """[[schedules]]
name = "often"
agent = "clerk"
task = "Sort {{time}}."
cron = "* * * * *"
missed = "all"
overlap = "allow"
[[webhooks]]
url = "{url}"
secret_env = "HOOK"
on = ["done"]
"""


def test_due_times_and_deliveries_are_one_machines_also_when_it_is_killed(
    postgres: PostgresServer, short: Path, inbox: Inbox
) -> None:
    """Two processes make up for what was missed, and the one that does is killed: each due time has exactly one run."""
    uri = postgres.emptied_journal()
    begun = anyio.run(begin_long_ago, uri)
    companies = [company_at(uri, short / name, short) for name in "ab"]
    hook = f"webhook {inbox.url}"
    try:
        for company in companies:
            assert company.command("up", "--detach")[0] == 0
            file = company.folder / "company.toml"
            file.write_text(file.read_text() + PLAN.format(url=inbox.url))
        for company in companies:
            assert company.ask("POST", "/reload", {}) == {"notes": []}
        until(lambda: len(started(postgres, uri)) > 3)
        (killed,) = machines(postgres, uri, "schedule often")
        os.kill(killed, signal.SIGKILL)
        until(lambda: killed not in machines(postgres, uri))
        (left,) = machines(postgres, uri)
        until(lambda: machines(postgres, uri, "schedule often") == machines(postgres, uri, hook) == [left])
        until(lambda: len(started(postgres, uri)) >= MISSED)
        due = started(postgres, uri)
        assert due == [begun + MINUTE * number for number in range(1, len(due) + 1)]
        with postgres.connect(uri) as connection:
            rows = connection.execute("SELECT run_id FROM runs ORDER BY run_id").fetchall()
        runs = [run_id for (run_id,) in rows][: len(due)]  # another minute may have begun since
        assert runs == [
            f"schedule-often-{at:%Y%m%dT%H%MZ}" for at in (datetime.fromtimestamp(each, UTC) for each in due)
        ]
        until(lambda: inbox.told().keys() >= {(run_id, "done") for run_id in runs})
        assert len({each[:2] for each in inbox.got}) == len(inbox.told())  # each under one id
        assert max(inbox.told().values()) <= 2
        assert sum(inbox.told().values()) <= len(inbox.told()) + 1  # the one that was under way at the kill
    finally:
        kill_all(postgres, uri)


async def begin_long_ago(uri: str) -> float:
    """Have the record say that the schedule began long ago, and nothing was settled since; when that was."""
    begun = time.time() // MINUTE * MINUTE - MISSED * MINUTE
    async with open_journal(uri) as journal:
        await journal.write(
            [ScheduleSettled(schedule="often", rule="* * * * * UTC", due=begun, outcome="began", at=begun)]
        )
    return begun


def started(postgres: PostgresServer, uri: str) -> list[float]:
    """The due times for which the record says that a run was started, as they were settled."""
    with postgres.connect(uri) as connection:
        rows = connection.execute("SELECT due FROM schedules WHERE outcome = 'started' ORDER BY seq").fetchall()
    return [due for (due,) in rows]


class Place:
    """A service's scheduler on a supervisor of its own, with a clock that is set."""

    def __init__(self, supervisor: rp.Supervisor, now: list[float], schedule: Schedule) -> None:
        self.duties = Duties(supervisor)
        self.schedule = schedule

        async def start(schedule: Schedule, due: float) -> None:
            await supervisor.spawn(CLERK, schedule.task_at(due), run_id=schedule.run_id(due))

        self.scheduler = Scheduler(supervisor.journal, start, clock=lambda: now[0], duties=self.duties)

    async def run(self, tasks: anyio.abc.TaskGroup) -> None:
        """Begin, until what it wants is known."""
        self.scheduler.plan([self.schedule])
        tasks.start_soon(self.scheduler.run)
        await anyio.wait_all_tasks_blocked()
        await self.duties.look()

    def wake(self) -> None:
        """Have it look at the clock."""
        self.scheduler.plan([self.schedule])


@pytest.mark.parametrize(
    ("missed", "course"),
    [
        ("skip", ["skipped 25 (4)"]),
        ("once", ["skipped 20 (3)", "started 25"]),
        ("all", ["started 10", "started 15", "started 20", "started 25"]),
    ],
)
def test_what_was_missed_between_two_machines_is_skipped_or_made_up_for(
    missed: Any, course: list[str], postgres: PostgresServer, run_async: RunAsync
) -> None:
    """As with one process; and a due time that comes while another takes over is not missed."""
    uri = postgres.emptied_journal()
    now = [START]
    schedule = Schedule(name="s", agent="clerk", task="Sort.", cron="*/5 * * * *", missed=missed, overlap="allow")

    async def settled(journal: rp.Journal, count: int) -> list[str]:
        while len(found := await kit.settled(journal, "s")) < count:
            await anyio.sleep(0.005)
        return [
            f"{each.outcome} {(each.due - START) / MINUTE:g}" + (f" ({each.count})" if each.count > 1 else "")
            for each in found
        ]

    async def main() -> None:
        model = FunctionModel(lambda _: "Sorted.")
        async with (
            rp.open_supervisor(uri, model=model, labels=()) as later,
            anyio.create_task_group() as waiting,
        ):
            second = Place(later, now, schedule)
            async with (
                rp.open_supervisor(uri, model=model, labels=()) as earlier,
                anyio.create_task_group() as tasks,
            ):
                first = Place(earlier, now, schedule)
                await first.run(tasks)
                await second.run(waiting)
                assert (first.duties.held("schedule", "s"), second.duties.held("schedule", "s")) == (True, False)
                await settled(later.journal, 1)
                now[0] += 5 * MINUTE
                second.wake()
                first.wake()
                assert await settled(later.journal, 2) == ["began 0", "started 5"]
                tasks.cancel_scope.cancel()
            now[0] += 23 * MINUTE  # nobody was there
            await second.duties.look()
            assert second.duties.held("schedule", "s")
            expected = ["began 0", "started 5", *course]
            assert await settled(later.journal, len(expected)) == expected
            now[0] += 3.3 * MINUTE  # nor at this one, but only for as long as a take-over may last
            second.wake()
            assert await settled(later.journal, len(expected) + 1) == [*expected, "started 30"]
            assert (await second.scheduler.list())[0].next == START + 35 * MINUTE
            waiting.cancel_scope.cancel()

    run_async(main)


def test_another_company_does_not_end_a_schedule_that_it_does_not_know(
    postgres: PostgresServer, run_async: RunAsync
) -> None:
    """Only whoever had it in its file ends it."""
    uri = postgres.emptied_journal()
    now = [START]

    async def main() -> None:
        async with (
            rp.open_supervisor(uri, labels=()) as one,
            rp.open_supervisor(uri, labels=()) as other,
            anyio.create_task_group() as tasks,
        ):
            journal = one.journal
            days = Schedule(name="days", agent="clerk", task="Sort.", cron="0 0 * * *")
            places = [Place(one, now, days), Place(other, now, msgspec.structs.replace(days, name="nights"))]
            for place in places:
                await place.run(tasks)
            while len(await journal.read_settled()) < 2:
                await anyio.sleep(0.005)
            assert {each.outcome for each in (await journal.read_settled()).values()} == {"began"}
            places[1].scheduler.plan([])
            while (await journal.read_settled())["nights"].outcome != "ended":
                await anyio.sleep(0.005)
            assert (await journal.read_settled())["days"].outcome == "began"
            tasks.cancel_scope.cancel()

    run_async(main)


def test_a_schedule_that_left_the_file_while_no_machine_ran_ends_with_the_next_that_begins(
    postgres: PostgresServer, run_async: RunAsync
) -> None:
    """If it is this company's, and no machine that lives still has it."""
    uri = postgres.emptied_journal()
    now = [START]
    days = Schedule(name="days", agent="clerk", task="Sort.", cron="0 0 * * *")
    nights, weeks = (msgspec.structs.replace(days, name=name) for name in ("nights", "weeks"))

    async def until(journal: rp.Journal, wanted: set[str], *places: Place) -> None:
        """Wait until the schedules stand so; meanwhile each place looks what it can take over."""
        while {f"{each.schedule} {each.outcome}" for each in (await journal.read_settled()).values()} != wanted:
            for place in places:
                await place.duties.look()
            await anyio.sleep(0.005)

    def begin(supervisor: rp.Supervisor, tasks: anyio.abc.TaskGroup, company: str, *plan: Schedule) -> Place:
        """A machine of a company."""
        place = Place(supervisor, now, days)
        place.scheduler.plan(plan, company=company)
        tasks.start_soon(place.scheduler.run)
        return place

    async def main() -> None:
        async with rp.open_supervisor(uri, labels=()) as one, anyio.create_task_group() as tasks:
            place = begin(one, tasks, "mail", days, weeks)
            await until(one.journal, {"days began", "weeks began"}, place)
            tasks.cancel_scope.cancel()
        async with (
            rp.open_supervisor(uri, labels=()) as one,
            rp.open_supervisor(uri, labels=()) as two,
            rp.open_supervisor(uri, labels=()) as three,
            anyio.create_task_group() as tasks,
        ):
            first = begin(one, tasks, "mail", weeks)  # its file has lost one of them
            while not first.duties.held("schedule", "weeks"):
                await first.duties.look()
            second = begin(two, tasks, "mail")  # this one both
            third = begin(three, tasks, "post", nights)  # and another company knows none of them
            await until(three.journal, {"days ended", "weeks began", "nights began"}, third, first, second)
            first.scheduler.plan([], company="mail")
            await until(three.journal, {"days ended", "weeks ended", "nights began"}, third, first, second)
            tasks.cancel_scope.cancel()

    run_async(main)


def test_one_machine_at_a_time_removes_what_is_old(postgres: PostgresServer, run_async: RunAsync) -> None:
    """The next one goes on once it drains."""
    uri = postgres.emptied_journal()
    said: dict[str, list[str]] = {"one": [], "other": []}

    async def main() -> None:
        for lines in said.values():
            lines.clear()
        async with (
            rp.open_supervisor(uri, model=FunctionModel(lambda _: "Done."), labels=()) as one,
            rp.open_supervisor(uri, labels=()) as other,
            anyio.create_task_group() as tasks,
        ):
            runs = [await one.spawn(CLERK, "Sort.") for _ in range(2)]
            for run in runs:
                await run.wait_result()
            supervisors = {"one": one, "other": other}
            duties = {name: Duties(supervisor) for name, supervisor in supervisors.items()}
            for name, supervisor in supervisors.items():
                clean = partial(
                    run_retention,
                    days=7,
                    clock=lambda: time.time() + 8 * 86_400,
                    report=said[name].append,
                    tell=len,
                )
                tasks.start_soon(clean, supervisor, duties[name])
            await anyio.wait_all_tasks_blocked()
            for each in duties.values():
                await each.look()
            while not said["one"]:
                await anyio.sleep(0.005)
            assert said == {"one": ["removed 2 runs that ended more than 7 days ago"], "other": []}
            await one.drain()
            await duties["one"].look()
            await duties["other"].look()
            assert duties["other"].held("retention", "finished runs")
            tasks.cancel_scope.cancel()

    run_async(main)
