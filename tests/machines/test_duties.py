"""What one machine at a time does for all that share a journal."""

from __future__ import annotations

import subprocess
import sys
import uuid
from typing import Any

import anyio
import pytest

import repertory as rp
from backends import RunAsync
from patience import PATIENCE
from postgres_server import PostgresServer
from repertory.errors import LeaseLost
from repertory.testing import FunctionModel


def supervisor_at(uri: str, **options: Any) -> Any:
    """A supervisor that takes part."""
    return rp.open_supervisor(uri, labels=(), model=FunctionModel(lambda _: "Done."), **options)


async def held(supervisor: rp.Supervisor, *names: str) -> set[str]:
    """What it holds of these."""
    return {*await supervisor.hold_duties(names)}


def test_a_duty_is_held_by_one_machine_until_it_gives_it_up_drains_or_leaves(
    postgres: PostgresServer, run_async: RunAsync
) -> None:
    """The others take what is free at their next look; what stands in no list is given up."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        async with supervisor_at(uri) as first, supervisor_at(uri) as second:
            assert await held(first, "a", "b") == {"a", "b"}
            assert await held(second, "a", "b", "c") == {"c"}
            assert await held(first, "b") == {"b"}
            assert await held(second, "a", "b", "c") == {"a", "c"}
            await second.drain()
            assert await held(second, "a", "b", "c") == set()
            assert await held(first, "a", "b", "c") == {"a", "b", "c"}
        async with supervisor_at(uri) as third:
            assert await held(third, "a", "c") == {"a", "c"}

    run_async(main)


def test_machines_that_ask_at_once_share_no_duty(postgres: PostgresServer, run_async: RunAsync) -> None:
    """Each of many is one's, and soon none is nobody's."""
    uri = postgres.emptied_journal()
    names = [f"duty {number}" for number in range(20)]

    async def main() -> None:
        async with supervisor_at(uri) as first, supervisor_at(uri) as second, supervisor_at(uri) as third:
            shares: dict[int, set[str]] = {}

            async def take(number: int, supervisor: rp.Supervisor) -> None:
                shares[number] = await held(supervisor, *names)

            for _ in range(2):  # in the first round one may have looked while another was taking some
                async with anyio.create_task_group() as tasks:
                    for number, supervisor in enumerate((first, second, third)):
                        tasks.start_soon(take, number, supervisor)
                assert sum(map(len, shares.values())) == len(set().union(*shares.values()))
            assert set().union(*shares.values()) == {*names}

    run_async(main)


def test_the_duties_of_a_machine_that_is_lost_are_taken_over(postgres: PostgresServer, run_async: RunAsync) -> None:
    """Once it is lost, and not before; whoever was lost is refused."""
    uri = postgres.emptied_journal()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()

    async def main() -> None:
        async with supervisor_at(uri) as supervisor:
            with postgres.connect(uri) as connection, connection.transaction():
                dead = uuid.uuid4()
                connection.execute(
                    """INSERT INTO machines (machine_id, name, labels, host, pid, kernel, version, lease, started_at,
                                             until)
                       SELECT %s, 'dead', labels, host, %s, kernel, version, lease, started_at, until FROM machines""",
                    (dead, gone.pid),
                )
                connection.execute("INSERT INTO duties VALUES ('a', %s)", (dead,))
            with anyio.fail_after(PATIENCE):
                while await held(supervisor, "a") != {"a"}:
                    await anyio.sleep(0.01)
            with postgres.connect(uri) as connection:
                (lost,) = connection.execute("SELECT lost_at IS NOT NULL FROM machines WHERE name = 'dead'").fetchone()
            assert lost
        with pytest.raises(LeaseLost):
            async with supervisor_at(uri, name="lost") as supervisor:
                with postgres.connect(uri) as connection:
                    connection.execute("UPDATE machines SET lost_at = clock_timestamp() WHERE name = 'lost'")
                await supervisor.hold_duties(["a"])

    run_async(main)


def test_a_journal_of_ones_own_has_every_duty(run_async: RunAsync) -> None:
    """There is nobody else."""

    async def main() -> None:
        async with rp.open_supervisor() as supervisor:
            assert await held(supervisor, "a") == {"a"}
            assert supervisor.lease == 0

    run_async(main)
