"""``repertory doctor``: checks what this machine has and how it is set up."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from rich.console import Console
from rich.table import Table
from rich.text import Text

from repertory._postgres_address import PostgresAddress
from repertory._version import __version__
from repertory._web_address import port_of, read_base_address
from repertory.cli import output
from repertory.cli.commands import Answer, command
from repertory.cli.databases import (
    Database,
    company_database,
    data_dir,
    db_option,
    known_databases,
    named_database,
    open_to_read,
)
from repertory.cli.findings import Finding, Verdict, check_company, check_postgres, check_systemd
from repertory.cli.options import DATABASE, MODEL, argument, option
from repertory.cli.service import unit_folder
from repertory.errors import ConfigurationError, RepertoryError

if TYPE_CHECKING:
    from repertory.llm import Block, Model

_LIBRARIES = ("anyio", "trio", "msgspec", "aiosqlite", "anthropic", "structlog", "typer", "rich", "platformdirs")
_PATIENCE = 3.0  # seconds to reach a server
_CLOCK = 300.0  # seconds that a file may be ahead of the clock: the clock of another machine may be off by this much
_BACKUP_AGE = 7 * 86_400.0  # seconds: an older backup is worth a warning
_KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")
_ELSEWHERE = "name a database with --db FILE or $REPERTORY_DB"
_NEEDS_TOOLS = "agents need tools, so use a model that can call them; llama.cpp: llama-server --jinja"
_LEGAL_ID = re.compile(r"[A-Za-z0-9_-]+")
_VERDICTS: Mapping[str, Verdict] = {"ok": "ok", "warn": "warning", "fail": "problem"}
_SIGNS: Mapping[str, tuple[str, str]] = {"ok": ("ok", "green"), "warning": ("!!", "yellow"), "problem": ("no", "red")}


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
    findings = await _look(company, db, model, llm, deep)
    problems = [finding for finding in findings if finding.verdict == "problem"]
    found = f"{len(problems)} of {len(findings)} checks found a problem"
    fields = {"ok": not problems, "checks": [finding._asdict() for finding in findings]}
    return Answer(fields, partial(_print, findings=findings), RepertoryError(found) if problems else None)


async def _look(company: Path | None, db: str | None, name: str | None, llm: bool, deep: bool) -> list[Finding]:
    from repertory.runs import open_model

    database = named_database(db) or (None if company is None else company_database(company))
    if database is None:
        database = next(iter(known_databases()), None)
    findings = [
        *_installed(),
        *(check_postgres(database) if isinstance(database, PostgresAddress) else [_sqlite()]),
        *([finding async for finding in check_company(company)] if company is not None else ()),
        _folder(data_dir()),
        await _database(database, deep),
        *_keeping(database),
        *[finding async for finding in _service(database, company)],
        *check_systemd(unit_folder(), os.environ),
        _key(os.environ),
        await _server(os.environ),
    ]
    try:
        model = open_model(name)
    except RepertoryError as error:
        return [*findings, Finding("model", "problem", str(error))]
    findings.append(_model(model))
    if llm:
        findings.append(await _call(model))
    await model.aclose()
    return findings


def _installed() -> Iterator[Finding]:
    import platform
    from importlib import metadata, util

    python = f"{platform.python_implementation()} {platform.python_version()}"
    yield Finding("python", "ok", f"{python}, repertory {__version__}")
    found = [*_LIBRARIES, *(["uvloop"] if util.find_spec("uvloop") is not None else [])]
    yield Finding("libraries", "ok", ", ".join(f"{name} {metadata.version(name)}" for name in found))


def _sqlite(version: tuple[int, ...] = sqlite3.sqlite_version_info) -> Finding:
    from repertory.service.health import sqlite_check

    check = sqlite_check(version)
    return Finding(check.name, _VERDICTS[check.state], check.fact, check.advice)


def _folder(folder: Path) -> Finding:
    name = "data folder"
    if folder.exists():
        if os.access(folder, os.W_OK | os.X_OK):
            return _private(name, folder, str(folder))
        return Finding(name, "problem", f"{folder} is not writable", _ELSEWHERE)
    above = next(path for path in folder.parents if path.exists())
    if above.is_dir() and os.access(above, os.W_OK):
        return Finding(name, "ok", f"{folder} will be created when it is needed")
    return Finding(name, "problem", f"{folder} cannot be created", _ELSEWHERE)


def _private(name: str, path: Path, fact: str) -> Finding:
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        return Finding(name, "warning", f"{fact} can be read by other users (mode {mode:o})", f"chmod go= {path}")
    return Finding(name, "ok", fact)


async def _database(path: Database | None, deep: bool) -> Finding:
    from repertory.record import SqliteJournal
    from repertory.record.opening import is_owned

    name = "database"
    if path is None or (isinstance(path, Path) and not os.path.exists(path)):  # noqa: ASYNC240 - nothing else goes on
        return Finding(name, "ok", f"{path} does not exist yet" if path else "none yet; repertory demo creates one")
    try:
        async with open_to_read(path) as journal:
            damage = await journal.check(deep=True) if deep and isinstance(journal, SqliteJournal) else None
            if damage:
                advice = "restore it from a backup; undamaged runs can still be read"
                return Finding(name, "problem", f"{path} is damaged: {'; '.join(damage)}", advice)
            runs = len(await journal.read_runs())
    except RepertoryError as error:
        return Finding(name, "problem", str(error))
    whole = ", and all of it is intact" if damage is not None else "; --deep checks files only" if deep else ""
    owner = ", in use by a process" if is_owned(path) else ""
    fact = f"{path} holds {output.count(runs, 'run')}{whole}{owner}"
    return _private(name, path, fact) if isinstance(path, Path) else Finding(name, "ok", fact)


def _keeping(database: Database | None) -> Iterator[Finding]:
    """Check what a database file needs to be kept for weeks: disk space, a correct clock, backups."""
    if isinstance(database, Path) and os.path.exists(database):
        yield _disk(database)
        yield _clock(database)
        yield _backups(database)


def _disk(path: Path) -> Finding:
    from repertory.record.sqlite_file import WAL_LIMIT

    status = os.statvfs(path.absolute().parent)
    free = status.f_bavail * status.f_frsize
    size = path.stat().st_size
    fact = f"{free // 2**20:,} MiB free, {size / 2**20:,.1f} MiB used by the database"
    advice = "remove old runs, or move the database"
    if free < WAL_LIMIT:
        return Finding("disk", "problem", fact, advice)
    # A backup to the same folder, or a vacuum without a service, needs the same space again.
    return Finding("disk", "ok", fact) if free > max(2**30, 2 * size) else Finding("disk", "warning", fact, advice)


def _clock(path: Path) -> Finding:
    ahead = path.stat().st_mtime - time.time()
    if ahead > _CLOCK:
        fact = f"the database was last written {ahead:,.0f} s in the future"
        return Finding("clock", "warning", fact, "set the clock: schedules, quotas and times of records depend on it")
    return Finding("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S %Z"))


def _backups(path: Path) -> Finding:
    from repertory.cli.keeping import NOTE

    name, advice = "backups", f"repertory backup FOLDER/{db_option(path)}"
    try:
        note = json.loads(Path(f"{os.path.realpath(path)}{NOTE}").read_text(encoding="utf-8"))
        file, age = Path(note["file"]), time.time() - float(note["at"])
    except FileNotFoundError:
        return Finding(name, "warning", "none yet", advice)
    except (OSError, ValueError, TypeError, KeyError) as error:
        return Finding(name, "warning", f"the note about the last one cannot be read: {error}", advice)
    if not file.exists():
        return Finding(name, "warning", f"the last one is no longer at {file}", advice)
    fact = f"the last one is {age / 86_400:,.1f} days old: {file}"
    return Finding(name, "ok", fact) if age < _BACKUP_AGE else Finding(name, "warning", fact, advice)


async def _service(database: Database | None, company: Path | None) -> AsyncIterator[Finding]:
    """Check whether the service of a company, or of the database, reports that it is healthy."""
    from repertory.record.opening import is_owned
    from repertory.service.places import anchor_of, service_of

    name = "service"
    if database is None or (isinstance(database, Path) and not os.path.exists(database)):  # noqa: ASYNC240 - as above
        return
    place = service_of(database if company is None or isinstance(database, Path) else anchor_of(company))
    if place is None:
        owned = await anyio.to_thread.run_sync(is_owned, database)
        who = "another process uses this database" if owned else "none runs for this database"
        yield Finding(name, "ok", who)
        return
    try:
        from repertory.service.client import open_client

        async with open_client(place) as client:
            wrong = [check for check in (await client.health()).checks if check.state != "ok"]
    except RepertoryError as error:
        yield Finding(name, "problem", str(error))
        return
    for check in wrong:
        fact = f"the service at {place} reports on its {check.name}: {check.fact}"
        yield Finding(name, _VERDICTS[check.state], fact, check.advice)
    if not wrong:
        yield Finding(name, "ok", f"the service at {place} is healthy")


def _key(environment: Mapping[str, str]) -> Finding:
    for variable in _KEYS:
        value = environment.get(variable)
        if value and value != value.strip():
            return Finding("key", "problem", f"{variable} begins or ends with white space", "set it again without it")
        if value:
            return Finding("key", "ok", f"{variable} is set")
    return Finding("key", "ok", "none is set; the offline model needs none")


async def _server(environment: Mapping[str, str]) -> Finding:
    name, advice = "server", "write http://HOST:PORT"
    address = environment.get("ANTHROPIC_BASE_URL")
    if not address:
        return Finding(name, "ok", "ANTHROPIC_BASE_URL is not set; a key is used with the provider's own API")
    try:
        parts = read_base_address("ANTHROPIC_BASE_URL", address)
    except ConfigurationError as error:
        return Finding(name, "problem", str(error), advice)
    host, port = str(parts.hostname), port_of(parts)
    where = f"{parts.scheme}://{host}:{port}"  # without the user and password that a URL may hold
    try:
        with anyio.fail_after(_PATIENCE):
            stream = await anyio.connect_tcp(host, port)
            await stream.aclose()
    except (OSError, TimeoutError) as error:
        advice = "is it running? Ollama: ollama serve; llama.cpp: llama-server --jinja"
        return Finding(name, "problem", f"{where} cannot be reached: {error or 'no answer in time'}", advice)
    if parts.path.rstrip("/").endswith("/v1"):
        return Finding(name, "warning", f"{where} answers, but the address ends in /v1", "leave the /v1 out")
    return Finding(name, "ok", f"{where} answers")


def _model(model: Model) -> Finding:
    profile = model.profile
    if not profile.known:
        return Finding(
            "model",
            "warning",
            f"{model.name} is unknown: {profile.context_window:,} tokens and no prices are assumed",
            "costs will read $0; give the model a profile in Python if that matters",
        )
    as_of = f", prices of {profile.as_of}" if profile.as_of else ""
    return Finding("model", "ok", f"{model.name}: {profile.context_window:,} tokens{as_of}")


async def _call(model: Model) -> Finding:
    """Check that the model answers, and calls a tool when asked to: no agent works without that."""
    from repertory.llm.messages import Message, Text, encode_block, text_of, tool_uses
    from repertory.llm.model import ModelRequest, ToolSchema

    name = "model call"
    query = {"type": "string", "description": "One word."}
    schema = {"type": "object", "properties": {"query": query}, "required": ["query"], "additionalProperties": False}
    tool = ToolSchema("search", "Search the notes for a word.", schema)
    asked = Message("user", (Text("Use the tool search, once, to look up the word lighthouse."),))
    # Not forced by `tool_choice`, which the newest models refuse; max_tokens leaves room for thinking.
    request = ModelRequest(model=model.name, messages=(asked,), tools=(tool,), max_tokens=1024)
    begun = time.monotonic()
    try:
        content = (await model.complete(request)).content
    except RepertoryError as error:
        return Finding(name, "problem", f"{type(error).__name__}: {error}")
    for block in filter(_is_broken_call, content):
        fact = output.one_line(f"its call is not legal: {encode_block(block)}", 160)
        return Finding(name, "warning", fact, _NEEDS_TOOLS)
    calls = tool_uses(content)
    if not calls:
        words = output.one_line(text_of(content), 40)
        return Finding(name, "warning", f"it was asked to call a tool, but answered {words!r}", _NEEDS_TOOLS)
    word = output.one_line(calls[0].input["query"], 40)
    return Finding(name, "ok", f"called search(query={word!r}) in {time.monotonic() - begun:.1f} s")


def _is_broken_call(block: Block) -> bool:
    """Whether a block is a tool call that does not fit the offered tool."""
    from repertory.llm.messages import RawBlock, ToolUse

    match block:
        case ToolUse(id=id_, name="search", input={"query": str(), **others}):
            return bool(others) or not _LEGAL_ID.fullmatch(id_)
        case ToolUse() | RawBlock(raw={"type": "tool_use"}):
            return True
        case _:
            return False


def _print(screen: Console, findings: list[Finding]) -> None:
    table = Table.grid(padding=(0, 2, 0, 0))
    for finding in findings:
        sign, colour = _SIGNS[finding.verdict]
        advice = f"\n{output.one_line(finding.advice)}" if finding.advice else ""
        fact = Text.assemble(output.one_line(finding.fact), (advice, "dim"), overflow="fold")
        table.add_row(Text(sign, style=colour), Text(finding.name, no_wrap=True), fact)
    output.show(screen, table)
