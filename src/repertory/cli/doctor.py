"""``repertory doctor`` and ``repertory version``: what this machine has, and whether it will do."""

from __future__ import annotations

import os
import platform
import re
import sqlite3
import sys
import time
from collections.abc import Mapping
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias
from urllib.parse import urlsplit

import anyio
import msgspec

from repertory._version import __version__
from repertory.cli import output
from repertory.cli.databases import data_dir, is_owned, is_there, kept_databases, named_database, open_to_read
from repertory.errors import RepertoryError

if TYPE_CHECKING:
    from repertory.llm import Block, Model

Verdict: TypeAlias = Literal["ok", "warning", "problem"]

_LIBRARIES = ("anyio", "trio", "msgspec", "aiosqlite", "anthropic", "structlog", "typer", "rich", "platformdirs")
_PATIENCE = 3.0  # seconds to reach a server
_KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at. ``advice`` says what to do where it is not ok."""

    name: str
    verdict: Verdict
    fact: str
    advice: str = ""


def show_versions(*, as_json: bool) -> None:
    """See ``repertory version``."""
    versions = {
        "repertory": __version__,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        **{name: metadata.version(name) for name in _LIBRARIES},
    }
    if as_json:
        output.print_json(versions)
    else:
        rest = ", ".join(f"{name} {number}" for name, number in versions.items() if name != "repertory")
        sys.stdout.write(f"repertory {__version__}\n{rest}\n")


def check(*, db: Path | None, model: str | None, llm: bool, deep: bool, as_json: bool) -> None:
    """See ``repertory doctor``.

    Raises:
        RepertoryError: There is a problem.
    """
    findings = anyio.run(_look, db, model, llm, deep)
    problems = [finding for finding in findings if finding.verdict == "problem"]
    if as_json:
        output.print_json({"ok": not problems, "checks": [msgspec.to_builtins(finding) for finding in findings]})
    else:
        _print(findings)
    if problems:
        raise RepertoryError(f"{len(problems)} of {len(findings)} checks found a problem")


async def _look(db: Path | None, name: str | None, llm: bool, deep: bool) -> list[Finding]:
    findings = [
        _python(),
        _backends(),
        _sqlite(sqlite3.sqlite_version_info, sqlite3.sqlite_version),
        _folder(data_dir()),
        await _database(db, deep),
        _key(os.environ),
        await _server(os.environ),
    ]
    try:
        from repertory.llm import open_model

        model = open_model(name)
    except RepertoryError as error:
        findings.append(Finding("model", "problem", str(error)))
        return findings
    findings.append(_model(model))
    if llm:
        findings.append(await _call(model))
        if findings[-1].verdict == "ok":
            findings.append(await _tool_call(model))
    await model.aclose()
    return findings


def _python() -> Finding:
    fact = f"{platform.python_implementation()} {platform.python_version()}, repertory {__version__}"
    return Finding("python", "ok", fact)


def _backends() -> Finding:
    names = [f"trio {metadata.version('trio')}", "asyncio"]
    if util.find_spec("uvloop") is not None:
        names.append(f"uvloop {metadata.version('uvloop')}")
    return Finding("event loops", "ok", ", ".join(names))


def _sqlite(version: tuple[int, ...], text: str) -> Finding:
    fixed = version >= (3, 51, 3) or (version[:2] == (3, 50) and version >= (3, 50, 7))
    fixed = fixed or (version[:2] == (3, 44) and version >= (3, 44, 6))
    if fixed:
        return Finding("sqlite", "ok", text)
    return Finding(
        "sqlite",
        "warning",
        f"{text} has the WAL-reset bug (fixed in 3.51.3, 3.50.7 and 3.44.6), which can damage a database that "
        "several connections write to",
        "repertory writes with one connection only, so its databases are safe; let no other program write to them",
    )


def _folder(folder: Path) -> Finding:
    name = "data folder"
    if not folder.exists():
        parent = next(path for path in folder.parents if path.exists())
        if os.access(parent, os.W_OK):
            return Finding(name, "ok", f"{folder} will be made when it is needed")
        return Finding(name, "problem", f"{folder} cannot be made", "name a database with --db FILE or $REPERTORY_DB")
    if not os.access(folder, os.W_OK | os.X_OK):
        return Finding(name, "problem", f"{folder} is not writable", "name a database with --db FILE or $REPERTORY_DB")
    return _private(name, folder, str(folder))


def _private(name: str, path: Path, fact: str) -> Finding:
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        return Finding(name, "warning", f"{fact} can be read by others (mode {mode:o})", f"chmod go= {path}")
    return Finding(name, "ok", fact)


async def _database(db: Path | None, deep: bool) -> Finding:
    from repertory.record import SqliteJournal

    name = "database"
    path = named_database(db) or next(iter(kept_databases()), None)
    if path is None or not is_there(path):
        return Finding(name, "ok", f"{path or 'none'} yet; repertory demo makes one")
    try:
        async with open_to_read(path) as journal:
            if deep and isinstance(journal, SqliteJournal) and (damage := await journal.check(deep=True)):
                advice = "restore it from a backup; runs without damage can still be read"
                return Finding(name, "problem", f"{path} is damaged: {'; '.join(damage)}", advice)
            runs = len(await journal.read_runs())
    except RepertoryError as error:
        return Finding(name, "problem", str(error))
    owner = ", in use by a process" if is_owned(path) else ""
    whole = ", and all of it is as it was written" if deep else ""
    return _private(name, path, f"{path} holds {runs} runs{whole}{owner}")


def _key(environment: Mapping[str, str]) -> Finding:
    name = "key"
    for variable in _KEYS:
        value = environment.get(variable)
        if value:
            if value != value.strip():
                return Finding(name, "problem", f"{variable} begins or ends with white space", "set it again without")
            return Finding(name, "ok", f"{variable} is set")
    return Finding(name, "ok", "none is set; the offline model needs none")


async def _server(environment: Mapping[str, str]) -> Finding:
    name = "server"
    address = environment.get("ANTHROPIC_BASE_URL")
    if not address:
        return Finding(name, "ok", "ANTHROPIC_BASE_URL is not set; a key is used with the provider itself")
    try:
        parts = urlsplit(address)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        return Finding(name, "problem", f"ANTHROPIC_BASE_URL cannot be read: {error}", "write http://HOST:PORT")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return Finding(name, "problem", "ANTHROPIC_BASE_URL is no address", "write http://HOST:PORT")
    where = f"{parts.scheme}://{parts.hostname}:{port}"  # never the user and password that a URL may hold
    try:
        with anyio.fail_after(_PATIENCE):
            stream = await anyio.connect_tcp(parts.hostname, port)
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
            f"{model.name} is not described: {profile.context_window:,} tokens and no prices are assumed",
            "costs will read $0; give the model a profile in Python where that matters",
        )
    as_of = f", prices of {profile.as_of}" if profile.as_of else ""
    return Finding("model", "ok", f"{model.name}: {profile.context_window:,} tokens{as_of}")


async def _call(model: Model) -> Finding:
    from repertory.llm.messages import Message, Text, text_of
    from repertory.llm.model import ModelRequest

    begun = time.monotonic()
    request = ModelRequest(model=model.name, messages=(Message("user", (Text("Say the word ready."),)),), max_tokens=64)
    try:
        response = await model.complete(request)
    except RepertoryError as error:
        return Finding("model call", "problem", f"{type(error).__name__}: {error}")
    words = output.one_line(text_of(response.content), 40)
    return Finding("model call", "ok", f"answered {words!r} in {time.monotonic() - begun:.1f} s")


_LEGAL_ID = re.compile(r"[A-Za-z0-9_-]+")


async def _tool_call(model: Model) -> Finding:
    """Whether the model calls a tool when it is told to: without that no agent works."""
    from repertory.llm.messages import Message, Text, encode_block, text_of, tool_uses
    from repertory.llm.model import ModelRequest, ToolSchema

    name = "tool call"
    query = {"type": "string", "description": "One word."}
    schema = {"type": "object", "properties": {"query": query}, "required": ["query"], "additionalProperties": False}
    tool = ToolSchema("search", "Search the notes for a word.", schema)
    asked = Message("user", (Text("Use the tool search, once, to look up the word lighthouse."),))
    # Not forced by `tool_choice`, which the newest models refuse; with room for those that think first.
    request = ModelRequest(model=model.name, messages=(asked,), tools=(tool,), max_tokens=1024)
    begun = time.monotonic()
    try:
        response = await model.complete(request)
    except RepertoryError as error:
        return Finding(name, "problem", f"{type(error).__name__}: {error}")
    calls = tool_uses(response.content)
    advice = "agents need tools, so take a model that calls them; llama.cpp: llama-server --jinja"
    for block in response.content:
        if _is_broken_call(block):
            return Finding(
                name, "warning", output.one_line(f"its call is not legal: {encode_block(block)}", 160), advice
            )
    if not calls:
        words = output.one_line(text_of(response.content), 40)
        return Finding(name, "warning", f"it was asked to call a tool, and answered {words!r}", advice)
    word = output.one_line(calls[0].input["query"], 40)
    return Finding(name, "ok", f"called search(query={word!r}) in {time.monotonic() - begun:.1f} s")


def _is_broken_call(block: Block) -> bool:
    """Whether a block calls a tool, and not the one that was offered, as it is to be called."""
    from repertory.llm.messages import RawBlock, ToolUse

    match block:
        case ToolUse(id=id_, name="search", input={"query": str(), **others}):
            return bool(others) or not _LEGAL_ID.fullmatch(id_)
        case ToolUse() | RawBlock(raw={"type": "tool_use"}):
            return True
        case _:
            return False


_SIGNS: Mapping[str, tuple[str, str]] = {"ok": ("ok", "green"), "warning": ("!!", "yellow"), "problem": ("no", "red")}


def _print(findings: list[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        sign, colour = _SIGNS[finding.verdict]
        fact = Text(output.one_line(finding.fact))
        if finding.advice:
            fact.append(f"\n{output.one_line(finding.advice)}", style="dim")
        table.add_row(Text(sign, style=colour), finding.name, fact)
    output.show(output.console(), table)
