"""``repertory memory``: lists, shows and searches the memory of runs, and merges snapshots."""

from __future__ import annotations

import difflib
import shlex
import sys
from collections import Counter
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from repertory.cli import output
from repertory.cli.commands import Answer, command
from repertory.cli.databases import Database, find_id, open_database
from repertory.cli.options import AS_JSON, DATABASE, argument, option
from repertory.cli.output import clean, one_line
from repertory.cli.runs import in_tree
from repertory.errors import ConfigurationError, ItemNotFound, RepertoryError, RunNotFound

if TYPE_CHECKING:
    from repertory.llm.messages import Json
    from repertory.memory import Conflict, Item, ItemInfo, MergeReport
    from repertory.service.memories import ItemChange, ItemLine, MemoryView
    from repertory.service.sources import RecordSource

Prefer: TypeAlias = Literal["neither", "child", "parent", "both"]

memory = typer.Typer(help="Show what agents have kept, and merge one's memory into another's.")

SCOPE = argument("RUN", "A run or a memory scope: its id, or any part that fits only one. Default: the newest run.")
CHILD = argument("RUN", "The run that has a snapshot, or its scope: its id, or any part that fits only one.", ...)
_MARKS = {
    "added": ("+", "green"),
    "written": ("+", "green"),
    "changed": ("~", "cyan"),
    "ended": ("-", "red"),
    "conflict": ("!", "yellow"),
}
_TAKEN = {"child": "took the child's", "parent": "kept the parent's", "both": "kept both", "neither": "left open"}


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
    from repertory.service.memories import read_memory, read_scopes

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
        tree = in_tree(scopes, lambda each: (each.scope_id, _above(each.scope_id)))
        rows = [
            {
                **msgspec.structs.asdict(scope),
                "scope": f"{branch}{scope.scope_id.removeprefix(_above(scope.scope_id) if branch else '')}",
                "agent": one_line(agents.get(scope.owner, ""), 20),
            }
            for branch, scope in tree
        ]
        columns = "SCOPE AGENT MODE >ITEMS >BYTES >AGE=at"
        output.print_table(screen, output.table(columns, rows, scope=itemgetter("scope")))
        if view is not None:
            _print_items(screen, view, limit)
        else:
            items = output.count(sum(scope.items for scope in scopes), "item")
            output.show(screen, f"{output.count(len(scopes), 'scope')}, {items}")

    seen: Json = {"scope_id": "", "items": [], "more": False} if view is None else _seen(view)
    return Answer({"database": source.database, "scopes": scopes, **seen}, show)


def _seen(view: MemoryView) -> Json:
    return {"scope_id": view.scope.scope_id, "items": view.items, "more": view.more}


def _above(scope_id: str) -> str:
    """The id of the parent's scope: a sub-agent's scope is named after it, with a part of its own."""
    return scope_id.rpartition(".")[0]


def _print_items(screen: Console, view: MemoryView, limit: int) -> None:
    def preview(item: ItemLine) -> str:
        return one_line(item.preview) + (f" [{one_line(', '.join(item.tags), 30)}]" if item.tags else "")

    columns = "ITEM=item_id TYPE >BYTES=size >AGE=at CONTENT=preview"
    output.print_table(screen, output.table(columns, view.items, preview=preview))
    scope_id = one_line(view.scope.scope_id)
    if view.more:
        output.show(screen, f"{scope_id} sees more than these {output.count(limit, 'item')}; --limit N lists more")
    else:
        output.show(screen, f"{scope_id} sees {output.count(len(view.items), 'item')}")


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
    from repertory.service.memories import read_item

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
    facts = [item.type, item.media_type, f"{item.size:,} bytes", output.timestamp(item.at)]
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
    from repertory._choices import check_text
    from repertory.service.memories import read_memory

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


@memory.command()
@command
async def diff(run_id: str = CHILD, *, db: str | None = DATABASE) -> Answer:
    """Show what a merge of a snapshot into its parent would do.

    A conflict is an item that both sides have changed differently since they last agreed.
    """
    from repertory.service.memories import read_changes

    async with open_database(db) as source:
        scope_id = await _need_scope(source, run_id)
        found = await read_changes(source.journal, scope_id)

    def show(screen: Console) -> None:
        for change in found.changes:
            _print_change(screen, change.change, change)
        kinds = Counter(change.change for change in found.changes)
        outcome = _outcome(kinds["added"] + kinds["changed"], kinds["ended"], kinds["conflict"], found.unchanged)
        output.show(screen, one_line(f"{found.scope.scope_id} would be merged into {found.parent.scope_id}: {outcome}"))

    return Answer({"database": source.database, **msgspec.to_builtins(found)}, show)


def _print_change(screen: Console, what: str, change: ItemChange | Conflict) -> None:
    """Print an item that the two sides have differently, as lines that the merge of the child's would change."""
    _print_item(screen, f"{what} {change.item_id}")
    before, after = (clean(side.text).split("\n") if side is not None else [] for side in (change.parent, change.child))
    for line in list(difflib.unified_diff(before, after, lineterm="", n=1))[3:]:  # after names and the first position
        shown = "…" if line.startswith("@@") else line
        screen.print(Text(f"  {shown}", style={"+": "green", "-": "red"}.get(line[:1], "dim")), soft_wrap=True)


def _print_item(screen: Console, what: str) -> None:
    mark, colour = _MARKS[what.split(maxsplit=1)[0].rstrip(",")]
    screen.print(Text(f"{mark} {one_line(what)}", style=f"bold {colour}"), soft_wrap=True)


def _outcome(written: int, ended: int, conflicts: int, unchanged: int) -> str:
    parts = [f"{written:,} written"] if written else []
    parts += [f"{ended:,} ended"] if ended else []
    parts += [output.count(conflicts, "conflict")] if conflicts else []
    parts += [f"{output.count(unchanged, 'item')} merged before or unchanged"] if unchanged else []
    return ", ".join(parts) or "nothing was changed"


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
    parent_id, report = await _merge(source.path, scope_id, prefer)
    left_open = sum(conflict.taken == "neither" for conflict in report.conflicts)

    def show(screen: Console) -> None:
        for item_id in report.written:
            _print_item(screen, f"written {item_id}")
        for item_id in report.deleted:
            _print_item(screen, f"ended {item_id}")
        for conflict in report.conflicts:
            _print_change(screen, f"conflict, {_TAKEN[conflict.taken]}:", conflict)
        counts = len(report.written), len(report.deleted), len(report.conflicts), report.unchanged
        output.show(screen, one_line(f"merged {scope_id} into {parent_id}: {_outcome(*counts)}"))

    said: Json = {"database": source.database, "scope_id": scope_id, "parent_id": parent_id, "prefer": prefer}
    advice = "merge again with --prefer child, parent or both, or change what the parent has"
    error = RepertoryError(f"{output.count(left_open, 'conflict')} left open: {advice}") if left_open else None
    return Answer({**said, **msgspec.to_builtins(report)}, show, error)


async def _merge(path: Database, scope_id: str, prefer: Prefer) -> tuple[str, MergeReport]:
    """Merge through the memory actor, as runs do."""
    from repertory.actors import open_system
    from repertory.memory import Memory, MemoryActor, MemoryQuota
    from repertory.memory.merging import parent_of
    from repertory.memory.scopes import read_scope
    from repertory.record import open_journal

    async with open_journal(path) as journal, open_system("merge") as system:
        parent_id = parent_of(await read_scope(journal, scope_id))
        # Quotas of a program are not on record, and a person who merges by hand wants everything.
        unbounded = MemoryQuota(item_bytes=None, label_bytes=None, items=None, scope_bytes=None)
        ref = system.spawn(partial(MemoryActor, journal, quota=unbounded), "memory")
        return parent_id, await Memory(ref, scope_id).merge(prefer=prefer)
