"""What runs keep: ``repertory memory``, ``content`` and ``payload``."""

from __future__ import annotations

import difflib
import json
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from operator import itemgetter
from typing import TypeAlias

import msgspec
import typer
from msgspec.structs import asdict
from rich.console import Console
from rich.text import Text

from repertory._choices import check_text
from repertory._counting import counted
from repertory.actors import open_system
from repertory.cli import output
from repertory.cli.commands import Answer, command
from repertory.cli.databases import find_id, need_run, open_database
from repertory.cli.options import AS_JSON, DATABASE, RUN, argument, option
from repertory.cli.output import clean, one_line
from repertory.cli.runs import tree_table
from repertory.errors import ConfigurationError, ItemNotFound, RepertoryError, RunNotFound
from repertory.llm.messages import Json
from repertory.memory import Conflict, Item, ItemInfo, Memory, MemoryActor, MemoryQuota
from repertory.memory.merging import Prefer, parent_of
from repertory.memory.scopes import read_scope
from repertory.record import open_journal
from repertory.service.memories import (
    ItemChange,
    ItemLine,
    MemoryView,
    read_changes,
    read_item,
    read_memory,
    read_scopes,
)
from repertory.service.reports import read_contents, read_payload, read_payload_history
from repertory.service.sources import RecordSource

memory = typer.Typer(help="Show what agents have kept, and merge one's memory into another's.")
content = typer.Typer(help="Show what runs have stored whole.")
payload = typer.Typer(help="Show the payload of a run, and how it came to be so.")

SCOPE = argument("RUN", "A run or a memory scope: its id, or any part that fits only one. Default: the newest run.")
CHILD = argument("RUN", "The run that has a snapshot, or its scope: its id, or any part that fits only one.", ...)


# --- finding a scope ---------------------------------------------------------------------------------


async def _need_scope(source: RecordSource, name: str | None) -> str:
    """The id of a scope, by that or that of its run, or a part of either; None for the newest run's."""
    journal = source.journal
    fitting = await journal.read_scope_ids(name) if name else []
    if name in fitting:
        return name
    run_id = await find_id(source, name)
    scope_id = "" if run_id is None else (await journal.read_run(run_id)).started.scope_id
    if scope_id and await journal.read_scope(scope_id):
        return scope_id
    if len(fitting) > 1:
        raise RunNotFound(f"{name!r} fits more than one scope; give more of the id: {', '.join(fitting[:4])}")
    if fitting:
        return fitting[0]
    what = "no run with a memory" if name is None else f"no run and no memory scope {name!r}"
    raise output.NothingThere(f"there is {what} in {source.database}; repertory memory ls -a lists all scopes")


# --- lists ----------------------------------------------------------------------------------------


@memory.command()
@command
async def ls(
    run_id: str | None = SCOPE,
    *,
    everything: bool = option("-a, --all", "List the scopes of all runs, and no items.", False),
    limit: int = option("--limit N", "How many items, the newest first.", 50, min=1),
    db: str | None = DATABASE,
) -> Answer:
    """List the memory scopes of a run and its sub-agents, and the items it sees.

    ITEMS and BYTES count what was written in each scope; what it sees of another one is counted there. A shared scope
    is its parent's under another name; a snapshot shows its parent as it was at that time, and its own writes.
    """
    if everything and run_id is not None:
        raise ConfigurationError("--all lists the scopes of all runs; leave RUN or --all out")
    view: MemoryView | None = None
    async with open_database(db) as source:
        journal = source.journal
        if not everything:
            view = await read_memory(journal, await _need_scope(source, run_id), limit=limit)
        owner = None if view is None else view.scope.owner
        agents = {row.started.run_id: row.started.agent for row in await journal.read_runs(below=owner)}
        scopes = await read_scopes(journal, owner)

    def show(screen: Console) -> None:
        rows: list[Json] = []
        for scope in scopes:
            above = scope.scope_id.rpartition(".")[0]  # a sub-agent's scope is named after that of its parent
            agent = one_line(agents.get(scope.owner, ""), 20)
            rows.append({**asdict(scope), "parent": above, "agent": agent})
        columns = "SCOPE=tree AGENT MODE >ITEMS >BYTES >AGE=at"
        output.print_table(screen, tree_table(columns, rows, itemgetter("scope_id", "parent")))
        if view is None:
            items = counted(sum(scope.items for scope in scopes), "item")
            output.show(screen, f"{counted(len(scopes), 'scope')}, {items}")
            return
        output.print_table(screen, output.table(_ITEMS, view.items, preview=_preview))
        seen = f"more than these {counted(limit, 'item')}; --limit N lists more"
        seen = seen if view.more else counted(len(view.items), "item")
        output.show(screen, one_line(f"{view.scope.scope_id} sees {seen}"))

    return Answer({"database": source.database, "scopes": scopes, **_seen(view)}, show)


def _seen(view: MemoryView | None) -> dict[str, object]:
    if view is None:
        return {"scope_id": "", "items": [], "more": False}
    return {"scope_id": view.scope.scope_id, "items": view.items, "more": view.more}


_ITEMS = "ITEM=item_id TYPE >BYTES=size >AGE=at CONTENT=preview"


def _preview(item: ItemLine) -> str:
    return one_line(item.preview) + (f" [{one_line(', '.join(item.tags), 30)}]" if item.tags else "")


# --- one item ---------------------------------------------------------------------------------------------


@memory.command()
@command
async def show(
    item_id: str = argument("ITEM", "The item's id, as memory ls names it.", ...),
    run_id: str | None = SCOPE,
    *,
    raw: bool = option("--raw", "Write the raw content, also bytes, into a file or a pipe.", False),
    db: str | None = DATABASE,
    as_json: bool = AS_JSON,
) -> Answer:
    """Show an item of memory.

    Text is shown as it is, data as JSON; of images and other bytes, what they are.
    """
    if raw and as_json:
        raise ConfigurationError("--raw writes the content alone and --json all that is known about it; leave one out")
    async with open_database(db) as source:
        scope_id = await _need_scope(source, run_id)
        try:
            item = await read_item(source.journal, scope_id, item_id)
        except ItemNotFound as error:
            raise ItemNotFound(f"{error}; repertory memory ls {scope_id} lists the items that it sees") from None

    def show(screen: Console) -> None:
        screen.print(_heading(item), soft_wrap=True)
        output.write(item.text)
        if isinstance(item.content, bytes):
            where = "" if run_id is None else f" {shlex.quote(run_id)}"
            output.say(f"repertory memory show --raw {shlex.quote(item_id)}{where} > FILE writes the bytes to a file")

    fields = {"database": source.database, **msgspec.to_builtins(item)}
    return Answer(fields, (lambda _: _write_raw(item)) if raw else show)


def _write_raw(item: Item) -> None:
    if sys.stdout.isatty():
        raise ConfigurationError("raw content could control the terminal; redirect it to a file or a pipe")
    content = item.content if isinstance(item.content, bytes) else item.text.encode("utf-8", "surrogatepass")
    sys.stdout.flush()
    sys.stdout.buffer.write(content)


def _heading(item: ItemInfo) -> Text:
    facts = [item.type, item.media_type, counted(item.size, "byte"), output.timestamp(item.at)]
    facts += [f"from {item.source}"] if item.source else []
    facts += [f"tags {', '.join(item.tags)}"] if item.tags else []
    facts += [f"related to {', '.join(item.related_to)}"] if item.related_to else []
    return Text.assemble((one_line(item.item_id), "bold"), (f"  {one_line(' · '.join(filter(None, facts)))}", "dim"))


# --- search ---------------------------------------------------------------------------------------------


@memory.command()
@command
async def search(
    words: str = argument("WORDS", "Words that must all be there, in any form; a phrase in double quotes.", ...),
    run_id: str | None = SCOPE,
    *,
    limit: int = option("--limit N", "How many at most.", 20, min=1),
    db: str | None = DATABASE,
) -> Answer:
    """Search the items that a run sees by their words, the best first."""
    check_text("WORDS", words)
    async with open_database(db) as source:
        scope_id = await _need_scope(source, run_id)
        view = await read_memory(source.journal, scope_id, text=words, limit=limit)

    def show(screen: Console) -> None:
        for item in view.items:
            screen.print(_heading(item), soft_wrap=True)
            screen.print(Text(f"    {one_line(item.preview)}\n"), soft_wrap=not screen.is_terminal)
        if not view.items:
            output.say(f"no item that {scope_id} sees has all of these words: {words}")
        elif view.more:
            output.say(f"there are more than these {limit}; --limit N lists more")

    return Answer({"database": source.database, **_seen(view)}, show)


# --- a snapshot and its parent ------------------------------------------------------------------------


_KINDS = {  # what becomes of an item: its mark, the colour of that, and how it is counted
    "added": ("+", "green", "written"),
    "written": ("+", "green", "written"),
    "changed": ("~", "cyan", "written"),
    "ended": ("-", "red", "ended"),
    "conflict": ("!", "yellow", "conflict"),
}
_TAKEN = {"child": "took the child's", "parent": "kept the parent's", "both": "kept both", "neither": "left open"}

Change: TypeAlias = tuple[str, str, ItemChange | Conflict | None]
"""What becomes of an item, a line about it, and its two sides if they are shown."""


@memory.command()
@command
async def diff(run_id: str = CHILD, *, db: str | None = DATABASE) -> Answer:
    """Show what a merge of a snapshot into its parent would do.

    A conflict is an item that both sides have changed differently since they last agreed.
    """
    async with open_database(db) as source:
        found = await read_changes(source.journal, await _need_scope(source, run_id))
    changes: list[Change] = [(each.change, f"{each.change} {each.item_id}", each) for each in found.changes]
    words = f"{found.scope.scope_id} would be merged into {found.parent.scope_id}"
    show = partial(_print_changes, changes=changes, unchanged=found.unchanged, words=words)
    return Answer({"database": source.database, **msgspec.to_builtins(found)}, show)


@memory.command()
@command
async def merge(
    run_id: str = CHILD,
    *,
    prefer: Prefer = option(
        "--prefer neither|child|parent|both", "Whose version of a conflict the parent has afterwards.", "neither"
    ),
    db: str | None = DATABASE,
) -> Answer:
    """Merge a snapshot's changes into its parent.

    With neither, the default, the parent keeps its own and the conflict stays open; both writes the child's beside it.
    Quotas that a program sets do not apply. What one merge has settled, a later one leaves alone. If a conflict stays
    open, the exit code is 1.
    """
    async with open_database(db) as source:
        scope_id = await _need_scope(source, run_id)
    async with open_journal(source.path) as journal, open_system("merge") as system:
        parent_id = parent_of(await read_scope(journal, scope_id))
        # Quotas of a program are not on record, and a person who merges by hand wants everything.
        unbounded = MemoryQuota(item_bytes=None, label_bytes=None, items=None, scope_bytes=None)
        ref = system.spawn(partial(MemoryActor, journal, quota=unbounded), "memory")  # merges as runs do
        report = await Memory(ref, scope_id).merge(prefer=prefer)
    changes: list[Change] = [
        *(("written", f"written {item_id}", None) for item_id in report.written),
        *(("ended", f"ended {item_id}", None) for item_id in report.deleted),
        *(("conflict", f"conflict, {_TAKEN[each.taken]}: {each.item_id}", each) for each in report.conflicts),
    ]
    words = f"merged {scope_id} into {parent_id}"
    show = partial(_print_changes, changes=changes, unchanged=report.unchanged, words=words)
    said = {"database": source.database, "scope_id": scope_id, "parent_id": parent_id, "prefer": prefer}
    left_open = sum(conflict.taken == "neither" for conflict in report.conflicts)
    advice = "merge again with --prefer child, parent or both, or change what the parent has"
    error = RepertoryError(f"{counted(left_open, 'conflict')} left open: {advice}") if left_open else None
    return Answer({**said, **msgspec.to_builtins(report)}, show, error)


def _print_changes(screen: Console, changes: Iterable[Change], unchanged: int, words: str) -> None:
    """Print changes of items, with the lines that a merge of the child's would change, and how many there are."""
    counts: Counter[str] = Counter()
    for kind, line, sides in changes:
        mark, colour, outcome = _KINDS[kind]
        counts[outcome] += 1
        screen.print(Text(f"{mark} {one_line(line)}", style=f"bold {colour}"), soft_wrap=True)
        if sides is None:
            continue
        before, after = (clean(side.text).split("\n") if side else [] for side in (sides.parent, sides.child))
        for differs in list(difflib.unified_diff(before, after, lineterm="", n=1))[3:]:  # after names, first position
            shown = "…" if differs.startswith("@@") else differs
            screen.print(Text(f"  {shown}", style={"+": "green", "-": "red"}.get(shown[:1], "dim")), soft_wrap=True)
    parts = [f"{counts[what]:,} {what}" for what in ("written", "ended") if counts[what]]
    parts += [counted(counts["conflict"], "conflict")] if counts["conflict"] else []
    parts += [f"{counted(unchanged, 'item')} merged before or unchanged"] if unchanged else []
    output.show(screen, one_line(f"{words}: {', '.join(parts) or 'nothing was changed'}"))


# --- contents ---------------------------------------------------------------------------------------------


@content.command("ls")
@command
async def list_contents(run_id: str | None = RUN, *, db: str | None = DATABASE) -> Answer:
    """List what a run and its sub-agents have stored.

    KEPT says where the whole is: in the content store, in the ledger (from which it is read), or gone.
    """
    async with open_database(db) as source:
        found = await need_run(source, run_id, db)
        contents = await read_contents(source.journal, found)

    def show(screen: Console) -> None:
        if not contents:
            output.say(f"run {found} has stored nothing; only results of more than 1,000 characters are stored")
            return
        columns = "CITATION=content_id RUN=run_id SOURCE FORMAT >CHARACTERS=length KEPT >AGE=at URL"
        own = partial(output.table, columns, contents, run_id=lambda each: each["run_id"].removeprefix(found) or "·")
        output.print_table(screen, own(source=lambda each: one_line(each["source"], 30)))
        held = [each["length"] for each in contents if each["kept"] == "store"]
        whole = f"the store holds {len(held)} of them, {sum(held):,} characters"
        output.show(screen, f"{counted(len(contents), 'content')}; {whole}")

    return Answer({"database": source.database, "run_id": found, "contents": contents}, show)


@content.command("show")
@command
async def show_content(
    citation: str = argument("CITATION", "The citation, as content ls and ledger name it.", ...),
    *,
    db: str | None = DATABASE,
) -> Answer:
    """Show one stored content whole."""
    async with open_database(db) as source:
        found = await source.journal.read_content(citation)
    if found is None:
        raise output.NothingThere(
            f"there is no content {citation!r} in {source.database}; repertory content ls RUN lists those of a run"
        )
    if not found.body and found.length:
        raise output.NothingThere(
            f"content {citation!r} ({found.length:,} characters) was cleaned up and is gone; "
            f"repertory ledger {found.run_id} has what was shown of it"
        )
    return Answer({"database": source.database, **msgspec.to_builtins(found)}, lambda _: output.write(found.body))


# --- payloads ---------------------------------------------------------------------------------------------


@payload.command("show")
@command
async def show_payload(
    run_id: str | None = RUN,
    *,
    version: int | None = option("--version N", "As it was. Default: as it is.", min=1),
    db: str | None = DATABASE,
) -> Answer:
    """Show the payload of a run as JSON."""
    async with open_database(db) as source:
        found = await need_run(source, run_id, db)
        shown = await read_payload(source.journal, found, version)
    text = json.dumps(shown["payload"], indent=2, ensure_ascii=False)
    return Answer({"database": source.database, **shown}, lambda _: output.write(text))


@payload.command()
@command
async def history(run_id: str | None = RUN, *, db: str | None = DATABASE) -> Answer:
    """Show who changed what in a run's payload, version by version."""
    async with open_database(db) as source:
        found = await need_run(source, run_id, db)
        shown = await read_payload_history(source.journal, found)
    lines = [line for version in shown["versions"] for line in _lines(version)]
    return Answer({"database": source.database, **shown}, lambda screen: screen.print(*lines, sep="\n", soft_wrap=True))


def _lines(version: Json) -> Iterator[Text]:
    who = " ".join(one_line(version[name]) for name in ("author", "source") if version[name])
    yield Text.assemble((f"#{version['version']:<4}", "bold"), f"{output.timestamp(version['at'])}  {who}")
    for change in version["changes"]:
        yield Text(f"     {_words(change)}")
    for conflict in version["conflicts"]:
        first = f"version {conflict['version']} came first" if conflict["version"] else one_line(conflict["reason"])
        yield Text(f"     not applied, {first}: {_words(conflict)}", style="yellow")


def _words(change: Json) -> str:
    value = "" if change["op"] == "remove" else f" {json.dumps(change['value'], ensure_ascii=False)}"
    return one_line(f"{change['op']} {change['path']}{value}", 200)
