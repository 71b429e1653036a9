"""What ``repertory doctor`` finds out about a company file, and about a PostgreSQL server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias
from zoneinfo import ZoneInfo

from repertory.errors import ConfigurationError, JournalError

if TYPE_CHECKING:
    from repertory._postgres_address import PostgresAddress
    from repertory.service.company import Company

Verdict: TypeAlias = Literal["ok", "warning", "problem"]

_APART: Final = 5.0  # seconds; schedules, quotas and leases are reckoned in no less
_CONNECTIONS: Final = 20  # a service has about six, and another one has to be able to take over


class Finding(NamedTuple):
    """One thing that was looked at. ``advice`` says what to do where it is not ok."""

    name: str
    verdict: Verdict
    fact: str
    advice: str = ""


def check_company(file: Path) -> Iterator[Finding]:
    """Whether a company could be brought up, but for its models: its agents load, and its secrets are there."""
    from repertory.service import read_company

    try:
        company = read_company(file)
        company.options()
    except ConfigurationError as error:
        yield Finding("company", "problem", str(error), "nothing of it was started or changed")
        return
    count = f"{len(company.offers)} agents" if len(company.offers) != 1 else "1 agent"
    names = f": {', '.join(sorted(company.offers))}" if company.offers else ""
    told = f"; secrets of {len(company.webhooks)} webhooks are there" if company.webhooks else ""
    yield Finding("company", "ok", f"{company.name} has {count}{names}{told}; its database is {company.database}")
    yield from _schedules(company)


def _schedules(company: Company) -> Iterator[Finding]:
    for schedule in company.schedules:
        due = datetime.fromtimestamp(next(schedule.due_after(time.time())), ZoneInfo(schedule.timezone))
        yield Finding("schedule", "ok", f"{schedule.name} is due next at {due:%Y-%m-%d %H:%M} {schedule.timezone}")


def check_postgres(address: PostgresAddress) -> Iterator[Finding]:
    """Whether a server keeps what it acknowledges, and can be kept on."""
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
        yield Finding(name, "problem", str(explain(error, address, "look at")), "is it running, and may you connect?")
        return
    except (ConfigurationError, JournalError) as error:
        yield Finding(name, "problem", str(error))
        return
    yield Finding(name, "ok", f"version {settings['server_version']}")
    lost = [each for each in ("fsync", "full_page_writes") if settings[each] != "on"]
    kept = ", ".join(f"{each} {settings[each]}" for each in ("fsync", "full_page_writes", "synchronous_commit"))
    if lost:
        yield Finding(
            name, "problem", kept, f"set {' and '.join(lost)} on: a loss of power can damage all that is kept"
        )
    else:
        yield Finding(name, "ok", kept)
    free = int(settings["max_connections"]) - used
    fact = f"{free} of {settings['max_connections']} connections are free"
    if free < _CONNECTIONS:
        yield Finding(name, "warning", fact, "raise max_connections: a service takes about six, and so does its heir")
    else:
        yield Finding(name, "ok", fact)
    if apart > _APART:
        fact = f"its clock and that of this machine are {apart:,.0f} s apart"
        yield Finding("clock", "warning", fact, "set them by NTP: schedules go by this one's, leases by the server's")
    else:
        yield Finding("clock", "ok", "that of the server is this machine's, give or take a few seconds")
