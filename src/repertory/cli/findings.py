"""The checks of ``repertory doctor`` for a company file and a PostgreSQL server."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from repertory.cli.output import count
from repertory.errors import ConfigurationError, JournalError, ModelError
from repertory.service.health import Check, make_check

if TYPE_CHECKING:
    from repertory._postgres_address import PostgresAddress

_APART: Final = 5.0  # seconds; schedules, quotas and leases are not more precise than this
_CONNECTIONS: Final = 20  # a service uses about six, and another one must be able to take over


async def check_company(file: Path) -> AsyncIterator[Check]:
    """Check that a company could be started: its agents load, their models have keys, and its secrets are there."""
    from repertory.service import read_company

    try:
        company = read_company(file)
        company.options()
        await company.check_keys()
    except (ConfigurationError, ModelError) as error:
        yield make_check("company", str(error), "nothing was started or changed", fail=True)
        return
    names = f": {', '.join(sorted(company.offers))}" if company.offers else ""
    told = "; it has the secrets of its webhooks" if company.webhooks else ""
    has = f"{count(len(company.offers), 'agent')}{names}{told}"
    yield make_check("company", f"{company.name} has {has}; its database is {company.database}")
    for schedule in company.schedules:
        due = datetime.fromtimestamp(next(schedule.due_after(time.time())), ZoneInfo(schedule.timezone))
        yield make_check("schedule", f"{schedule.name} is due next at {due:%Y-%m-%d %H:%M} {schedule.timezone}")


def check_postgres(address: PostgresAddress) -> Iterator[Check]:
    """Check that a server keeps what it acknowledges, and has free connections and a correct clock."""
    from repertory.record.postgres_sql import connect, driver, explain

    name = "postgresql"
    try:
        with connect(address, readonly=True) as connection:
            settings = {
                each: str((connection.execute("SELECT current_setting($1)", [each]).fetchone() or ("",))[0])
                for each in ("server_version", "fsync", "full_page_writes", "synchronous_commit", "max_connections")
            }
            (used,) = connection.execute("SELECT count(*) FROM pg_stat_activity").fetchone() or (0,)
            before = time.time()
            (at,) = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone() or (0.0,)
            apart = max(before - at, at - time.time(), 0.0)
    except driver().Error as error:
        yield make_check(name, str(explain(error, address, "look at")), fail=True)
        return
    except (ConfigurationError, JournalError) as error:
        yield make_check(name, str(error), fail=True)
        return
    yield make_check(name, f"version {settings['server_version']}")
    lost = [each for each in ("fsync", "full_page_writes") if settings[each] != "on"]
    kept = ", ".join(f"{each} {settings[each]}" for each in ("fsync", "full_page_writes", "synchronous_commit"))
    advice = f"set {' and '.join(lost)} on: a power failure can damage the whole database"
    yield make_check(name, kept, advice, fail=bool(lost))
    free = int(settings["max_connections"]) - used
    fact = f"{free} of {settings['max_connections']} connections are free"
    advice = "raise max_connections: a service takes about six, and so does its successor"
    yield make_check(name, fact, advice, warn=free < _CONNECTIONS)
    fact = "the server's and this machine's agree within a few seconds"
    if is_off := apart > _APART:
        fact = f"its clock and that of this machine differ by {apart:,.0f} s"
    advice = "set them by NTP: schedules use this machine's, leases the server's"
    yield make_check("clock", fact, advice, warn=is_off)
