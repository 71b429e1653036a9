"""``repertory doctor``: checks what this machine has and how it is set up."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from functools import partial
from importlib import metadata, util
from pathlib import Path
from zoneinfo import ZoneInfo

import anyio
import msgspec
from rich.console import Console
from rich.text import Text

import repertory.service
from repertory._counting import counted
from repertory._postgres_address import PostgresAddress
from repertory._version import __version__
from repertory._web_address import port_of, read_base_address
from repertory.cli import output
from repertory.cli.commands import Answer, command
from repertory.cli.databases import Database, company_database, data_dir, locate, named_database
from repertory.cli.options import DATABASE, MODEL, argument, option
from repertory.errors import ConfigurationError, JournalError, JournalMissing, ModelError, RepertoryError
from repertory.llm import Model
from repertory.llm.messages import Message, encode_block, text_of
from repertory.llm.messages import Text as Words
from repertory.llm.model import ModelRequest, ToolSchema
from repertory.record import SqliteJournal, open_journal
from repertory.record.opening import is_owned
from repertory.record.postgres_sql import connect, driver, explain
from repertory.record.sqlite_file import WAL_LIMIT
from repertory.runs import open_model
from repertory.service.client import open_client
from repertory.service.health import Check, make_check, sqlite_check
from repertory.service.places import anchor_of, service_of

_LIBRARIES = ("anyio", "trio", "msgspec", "aiosqlite", "anthropic", "structlog", "typer", "rich", "platformdirs")
_PATIENCE = 3.0  # seconds to reach a server
_KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")
_ELSEWHERE = "name a database with --db FILE or $REPERTORY_DB"
_APART = 5.0  # seconds; schedules, quotas and leases are not more precise than this
_CONNECTIONS = 20  # a service uses about six, and another one must be able to take over
_NEEDS_TOOLS = "agents need tools, so use a model that can call them; llama.cpp: llama-server --jinja"
_LEGAL_ID = re.compile(r"[A-Za-z0-9_-]+")
_VERDICTS = {"ok": ("ok", "ok", "green"), "warn": ("warning", "!!", "yellow"), "fail": ("problem", "no", "red")}


@command
async def doctor(
    company: Path | None = argument("FILE", "A company file to check, too."),
    *,
    db: str | None = DATABASE,
    model: str | None = MODEL,
    llm: bool = option("--llm", "Ask the model to call a tool, too.", False),
    deep: bool = option("--deep", "Check every record of a database file, too.", False),
) -> Answer:
    """Check this machine and its settings.

    It also shows the versions of what is installed. With a company file it checks that its agents load and its secrets
    are there, and says when its schedules are due next; nothing is started.
    """
    checks = await _look(company, db, model, llm, deep)
    problems = sum(check.state == "fail" for check in checks)
    listed = [
        {"name": check.name, "verdict": _VERDICTS[check.state][0], "fact": check.fact, "advice": check.advice}
        for check in checks
    ]
    error = RepertoryError(f"{problems} of {len(checks)} checks found a problem") if problems else None
    return Answer({"ok": not problems, "checks": listed}, partial(_print, checks=checks), error)


async def _look(company: Path | None, db: str | None, name: str | None, llm: bool, deep: bool) -> list[Check]:
    database = None if company is None else company_database(company)
    database = named_database(db) or database or locate(None)[0]
    checks = [
        *_installed(),
        *(_postgres(database) if isinstance(database, PostgresAddress) else [sqlite_check()]),
        *([check async for check in _company(company)] if company is not None else ()),
        *(() if isinstance(database, PostgresAddress) else [_folder(database.absolute().parent)]),
        await _database(database, company, deep),
        *_disk(database),
        *[check async for check in _service(database, company)],
        _key(),
        await _server(),
    ]
    try:
        model = open_model(name)
    except RepertoryError as error:
        return [*checks, make_check("model", str(error), fail=True)]
    checks.append(_model(model))
    if llm:
        checks.append(await _call(model))
    await model.aclose()
    return checks


def _installed() -> Iterator[Check]:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    yield make_check("python", f"{python}, repertory {__version__}")
    found = [*_LIBRARIES, *(["uvloop"] if util.find_spec("uvloop") is not None else [])]
    yield make_check("libraries", ", ".join(f"{name} {metadata.version(name)}" for name in found))


def _folder(folder: Path) -> Check:
    """Check that the folder of a database file can be written, or made."""
    name = "data folder"
    there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        return make_check(name, f"nothing can be written to {folder}", _ELSEWHERE, fail=True)
    if there != folder:
        return make_check(name, f"{folder} will be created when it is needed")
    return _private(name, folder, str(folder)) if folder == data_dir() else make_check(name, str(folder))


def _private(name: str, path: Path, fact: str) -> Check:
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        return make_check(name, f"{fact} can be read by other users (mode {mode:o})", f"chmod go= {path}", warn=True)
    return make_check(name, fact)


async def _database(path: Database, company: Path | None, deep: bool) -> Check:
    name = "database"
    try:
        async with open_journal(path, readonly=True) as journal:
            damage = await journal.check(deep=True) if deep and isinstance(journal, SqliteJournal) else None
            if damage:
                advice = "restore it from a backup; undamaged runs can still be read"
                return make_check(name, f"{path} is damaged: {'; '.join(damage)}", advice, fail=True)
            runs = len(await journal.read_ids())
    except JournalMissing as error:
        return make_check(name, f"{error} yet; repertory {'demo' if company is None else 'up'} makes one")
    except RepertoryError as error:
        return make_check(name, str(error), fail=True)
    whole = ", and all of it is intact" if damage is not None else "; --deep checks files only" if deep else ""
    owner = ", in use by a process" if is_owned(path) else ""
    fact = f"{path} holds {counted(runs, 'run')}{whole}{owner}"
    return _private(name, path, fact) if isinstance(path, Path) else make_check(name, fact)


def _disk(path: Database) -> Iterator[Check]:
    if not isinstance(path, Path) or not os.path.exists(path):
        return
    status = os.statvfs(path.absolute().parent)
    free = status.f_bavail * status.f_frsize
    size = path.stat().st_size
    fact = f"{free // 2**20:,} MiB free, {size / 2**20:,.1f} MiB used by the database"
    # A backup to the same folder, or a vacuum without a service, needs the same space again.
    is_low = free <= max(2**30, 2 * size)
    yield make_check("disk", fact, "remove old runs, or move the database", warn=is_low, fail=free < WAL_LIMIT)


async def _service(database: Database, company: Path | None) -> AsyncIterator[Check]:
    """Check whether the service of a company, or of the database, reports that it is healthy."""
    name = "service"
    if isinstance(database, Path) and not os.path.exists(database):  # noqa: ASYNC240 - nothing else goes on
        return
    place = service_of(database if company is None or isinstance(database, Path) else anchor_of(company))
    if place is None:
        owned = await anyio.to_thread.run_sync(is_owned, database)
        who = "another process uses this database" if owned else "none runs for this database"
        yield make_check(name, who)
        return
    try:
        async with open_client(place) as client:
            wrong = [check for check in (await client.health()).checks if check.state != "ok"]
    except RepertoryError as error:
        yield make_check(name, str(error), fail=True)
        return
    for check in wrong:
        fact = f"the service at {place} reports on its {check.name}: {check.fact}"
        yield msgspec.structs.replace(check, name=name, fact=fact)
    if not wrong:
        yield make_check(name, f"the service at {place} is healthy")


# --- what a company or a database server needs --------------------------------------------------------------


async def _company(file: Path) -> AsyncIterator[Check]:
    """Check that a company could be started: its agents load, their models have keys, and its secrets are there."""
    try:
        company = repertory.service.read_company(file)
        company.options()
        await company.check_keys()
    except (ConfigurationError, ModelError) as error:
        yield make_check("company", str(error), "nothing was started or changed", fail=True)
        return
    names = f": {', '.join(sorted(company.offers))}" if company.offers else ""
    told = "; it has the secrets of its webhooks" if company.webhooks else ""
    has = f"{counted(len(company.offers), 'agent')}{names}{told}"
    yield make_check("company", f"{company.name} has {has}; its database is {company.database}")
    for schedule in company.schedules:
        due = datetime.fromtimestamp(next(schedule.due_after(time.time())), ZoneInfo(schedule.timezone))
        yield make_check("schedule", f"{schedule.name} is due next at {due:%Y-%m-%d %H:%M} {schedule.timezone}")


def _postgres(address: PostgresAddress) -> Iterator[Check]:
    """Check that a server keeps what it acknowledges, and has free connections and a correct clock."""
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
    fact = f"{free} of {settings['max_connections']} connections free"
    advice = "raise max_connections: a service takes about six, and so does its successor"
    yield make_check(name, fact, advice, warn=free < _CONNECTIONS)
    fact = "the server's and this machine's agree within a few seconds"
    if is_off := apart > _APART:
        fact = f"its clock and that of this machine differ by {apart:,.0f} s"
    advice = "set them by NTP: schedules use this machine's, leases the server's"
    yield make_check("clock", fact, advice, warn=is_off)


# --- the model --------------------------------------------------------------------------------------------


def _key() -> Check:
    variable = next((each for each in _KEYS if os.environ.get(each)), None)
    if variable is None:
        return make_check("key", "none is set; the offline model needs none")
    if os.environ[variable] == os.environ[variable].strip():
        return make_check("key", f"{variable} is set")
    return make_check("key", f"{variable} begins or ends with white space", "set it again without it", fail=True)


async def _server() -> Check:
    name, address = "server", os.environ.get("ANTHROPIC_BASE_URL")
    if not address:
        return make_check(name, "ANTHROPIC_BASE_URL is not set; a key is used with the provider's own API")
    try:
        parts = read_base_address("ANTHROPIC_BASE_URL", address)
    except ConfigurationError as error:
        return make_check(name, str(error), "write http://HOST:PORT", fail=True)
    host, port = str(parts.hostname), port_of(parts)
    where = f"{parts.scheme}://{host}:{port}"  # without the user and password that a URL may hold
    try:
        with anyio.fail_after(_PATIENCE):
            stream = await anyio.connect_tcp(host, port)
            await stream.aclose()
    except (OSError, TimeoutError) as error:
        advice = "is it running? Ollama: ollama serve; llama.cpp: llama-server --jinja"
        return make_check(name, f"{where} cannot be reached: {error or 'no answer in time'}", advice, fail=True)
    if parts.path.rstrip("/").endswith("/v1"):
        return make_check(name, f"{where} answers, but the address ends in /v1", "leave the /v1 out", warn=True)
    return make_check(name, f"{where} answers")


def _model(model: Model) -> Check:
    profile = model.profile
    if not profile.known:
        fact = f"{model.name} is unknown: {profile.context_window:,} tokens and no prices are assumed"
        advice = "costs will read $0; give the model a profile in Python if that matters"
        return make_check("model", fact, advice, warn=True)
    as_of = f", prices of {profile.as_of}" if profile.as_of else ""
    return make_check("model", f"{model.name}: {profile.context_window:,} tokens{as_of}")


async def _call(model: Model) -> Check:
    """Check that the model answers, and calls a tool when asked to: no agent works without that."""
    name = "model call"
    query = {"type": "string", "description": "One word."}
    schema = {"type": "object", "properties": {"query": query}, "required": ["query"], "additionalProperties": False}
    tool = ToolSchema("search", "Search the notes for a word.", schema)
    asked = Message("user", (Words("Use the tool search, once, to look up the word lighthouse."),))
    # Not forced by `tool_choice`, which the newest models refuse; max_tokens leaves room for thinking.
    request = ModelRequest(model=model.name, messages=(asked,), tools=(tool,), max_tokens=1024)
    begun = time.monotonic()
    try:
        content = (await model.complete(request)).content
    except RepertoryError as error:
        return make_check(name, f"{type(error).__name__}: {error}", fail=True)
    for block in map(encode_block, content):
        match block:
            case {"type": "tool_use", "id": str(id_), "name": "search", "input": {"query": str(word), **others}} if (
                not others and _LEGAL_ID.fullmatch(id_)
            ):
                took = time.monotonic() - begun
                return make_check(name, f"called search(query={output.one_line(word, 40)!r}) in {took:.1f} s")
            case {"type": "tool_use"}:
                fact = output.one_line(f"its call is not legal: {block}", 160)
                return make_check(name, fact, _NEEDS_TOOLS, warn=True)
    words = output.one_line(text_of(content), 40)
    return make_check(name, f"it was asked to call a tool, but answered {words!r}", _NEEDS_TOOLS, warn=True)


def _print(screen: Console, checks: list[Check]) -> None:
    for check in checks:
        _, sign, colour = _VERDICTS[check.state]
        fact = Text.assemble(output.one_line(check.fact), (f"\n{output.one_line(check.advice)}", "dim"))
        start = Text.assemble((sign, colour), f"  {check.name:<11}  ")
        for line in fact.wrap(screen, screen.width - len(start), overflow="fold"):
            line.rstrip()
            if line:
                screen.print(start + line)
            start = Text(" " * len(start))
