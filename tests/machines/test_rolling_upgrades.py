"""A fleet whose machines have different versions of an agent: each run goes on with the one that it was begun with."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from versioned_machine import CLERK, VERSION, make_clerk

import repertory as rp
from patience import PATIENCE
from postgres_server import PostgresServer
from repertory.supervisor import Supervisor
from repertory.testing import FunctionModel

PROGRAM = Path(__file__).parent / "versioned_machine.py"


async def owners_of(supervisor: Supervisor, run: rp.Run[str]) -> list[tuple[str, str]]:
    """The machines that owned a run, by name, and why it came there, as far as that is on record."""
    records = await supervisor.journal.read_events(run.id, types=["RunClaimed"])
    return [(record.body["name"], record.body["why"]) for _, record in records]


@contextmanager
def machine_with(uri: str, version: str, *, name: str) -> Generator[subprocess.Popen[str]]:
    """A process whose code has a version of the agent; it is killed at the end of the block if it is there still."""
    command = [sys.executable, str(PROGRAM), uri, name, version]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "OPEN\n"
            yield process
        finally:
            process.kill()


async def queue_run(supervisor: Supervisor, version: str, monkeypatch: pytest.MonkeyPatch) -> rp.Run[str]:
    """Queue a run of a version of the agent for any machine that has it."""
    monkeypatch.setenv(VERSION, version)
    return await supervisor.spawn(make_clerk(), "Work.", agent_ref=CLERK)


def test_runs_go_on_with_the_definition_that_they_were_begun_with(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when their machine dies where most are upgraded; those whose version nobody has wait, and say so."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        model = FunctionModel(lambda _: "Done by none.")
        async with rp.open_supervisor(uri, labels=None, name="desk", model=model) as desk:
            await desk.drain()  # so that all it starts is for others
            with machine_with(uri, "one", name="stuck") as stuck, machine_with(uri, "two", name="new"):
                first, second, third = [
                    await queue_run(desk, version, monkeypatch) for version in ("one", "two", "three")
                ]
                with anyio.fail_after(PATIENCE):
                    assert await second.wait_result() == "Done by new, version two."
                    while await owners_of(desk, first) != [("stuck", "queued")]:
                        await anyio.sleep(0.1)
                    stuck.kill()
                    stuck.wait()  # or it counts as there until its lease has run out
                    while await desk.elsewhere() != {first.id: "", third.id: ""}:  # the new machine leaves it alone
                        await anyio.sleep(0.1)
                    with machine_with(uri, "one", name="old"):
                        assert await first.wait_result() == "Done by old, version one."
                    (left,) = await desk.queue()
            assert (left.run_id, left.reason) == (third.id, "it waits for a machine that has room and knows its agent")
            assert await owners_of(desk, first) == [("stuck", "queued"), ("old", "taken over")]
            assert await owners_of(desk, second) == [("new", "queued")]
            assert await owners_of(desk, third) == []

    anyio.run(main, backend="trio")
