"""What every test may use."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import anyio
import pytest
import trio
from hypothesis import HealthCheck, settings

from backends import RunAsync
from patience import PATIENCE
from postgres_server import MISSING, VARIABLE, PostgresServer, find_programs, postgres_server

T = TypeVar("T")

# What the user of this machine has set reaches neither a test nor a process that one starts: no key that might be
# spent, no proxy, no colours, no width.
_KEPT = re.compile(r"REPERTORY_(TEST_.*|FIRE|SEED)")
_SETTINGS = re.compile(
    r"(ANTHROPIC|REPERTORY|XDG|OTEL|NOTIFY|LISTEN|WATCHDOG)_.*|.*_PROXY|COLUMNS|LINES|(NO|FORCE|PY|CLI)_?COLOR.*"
    r"|GITHUB_ACTIONS",
    re.IGNORECASE,
)
for name in [*os.environ]:
    if _SETTINGS.fullmatch(name) and not _KEPT.fullmatch(name):
        del os.environ[name]

# A run is judged on the same few examples each time; many new ones are drawn at night, with --hypothesis-profile=new.
# How long they take, and how often one is drawn that is too large, says more of the machine and the draw than the code.
settings.register_profile(
    "new",
    max_examples=500,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("same", parent=settings.get_profile("new"), max_examples=50, derandomize=True)
settings.load_profile("same")


@pytest.fixture(autouse=True)
def _same_order(request: pytest.FixtureRequest) -> None:
    """By day the tasks that are ready together run in the same order each time too: trio shuffles them by this."""
    if settings().derandomize:
        trio._core._run._r.seed(request.node.nodeid)  # the generator that pytest-trio gives to Hypothesis


@pytest.fixture(params=["trio", "asyncio"])
def run_async(request: pytest.FixtureRequest) -> RunAsync:
    """Run the test once on each backend: ``run_async(main)``. For tests that are plain functions."""

    def run(function: Callable[..., Awaitable[T]], *args: Any) -> T:
        async def bounded() -> T:
            with anyio.fail_after(2 * PATIENCE):
                return await function(*args)

        return anyio.run(bounded, backend=request.param)

    run.backend = request.param  # type: ignore[attr-defined]
    return run  # type: ignore[return-value]


def pytest_report_header() -> list[str]:
    """Say in one line what is left out on this machine."""
    return [] if os.environ.get(VARIABLE) or find_programs() is not None else [MISSING]


@pytest.fixture(scope="session")
def postgres_or_none() -> Iterator[PostgresServer | None]:
    """A PostgreSQL server for the whole session; None where there is none to be had."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    """A kind of journal for ``journal_kit.opened``; for "postgres" the address of an empty one."""
    if request.param != "postgres":
        return str(request.param)
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.emptied_journal()


@pytest.fixture
def postgres(postgres_or_none: PostgresServer | None) -> PostgresServer:
    """The same; skips the test where there is none."""
    if postgres_or_none is None:
        pytest.skip(MISSING)
    return postgres_or_none
