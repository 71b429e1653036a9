"""The memory tool of the Messages API (``memory_20250818``), which shows the items of the agent's memory as files.

A file is an item whose id is its path, such as ``/memories/notes.md``, so the other memory tools find it too. A
directory exists as long as it holds a file. The texts for the model are those of the provider's own implementation in
``anthropic.tools``, because models are trained on these very words. The tests run both side by side.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from urllib.parse import unquote

import msgspec

from repertory.errors import ItemChanged, ItemNotFound, MemoryStoreError, RecordRefused
from repertory.memory.items import Item
from repertory.record.items import ItemQuery
from repertory.record.memory_records import ItemInfo
from repertory.tools.context import ToolContext
from repertory.tools.decorator import Tool, tool
from repertory.tools.output import ErrorDetail, ToolOutput

if TYPE_CHECKING:
    from repertory.memory import Memory

ROOT: Final = "/memories"
PROVIDER_TYPE: Final = "memory_20250818"

_MAX_PATH = 1_000  # characters; paths are ids, and a listing has those of a whole scope
_MAX_LINES = 999_999  # six digits, as wide as line numbers are shown
_LISTED_LEVELS = 2
_MOST_OCCURRENCES = 100  # listed when a replacement is refused; the provider's lists all, a million in a large file
_SLASHES = dict.fromkeys(map(ord, "\\\N{FRACTION SLASH}\N{DIVISION SLASH}\N{SET MINUS}\N{BIG SOLIDUS}"), "/")

_DESCRIPTION = """\
Keep notes in files below /memories, for later and for whoever goes on with this work. View the directory /memories
before you begin: it may hold earlier progress. Record what you find and decide as you go: what is not written down
there may be lost at any moment. Keep the files few, current and well named.

Commands, and what each needs:
- view: path of a file, with view_range [first line, last line or -1] for a part of it; or of a directory, to list it.
- create: path and file_text of a new file. It must not exist.
- str_replace: path, old_str and new_str. old_str must occur exactly once.
- insert: path, insert_line and insert_text; 0 inserts before the first line.
- delete: path of a file, or of a directory with all that is in it.
- rename: old_path and new_path of a file or directory. The new one must not exist.
"""

Command: TypeAlias = Literal["view", "create", "str_replace", "insert", "delete", "rename"]

_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "view": ("path",),
    "create": ("path", "file_text"),
    "str_replace": ("path", "old_str", "new_str"),
    "insert": ("path", "insert_line", "insert_text"),
    "delete": ("path",),
    "rename": ("old_path", "new_path"),
}


def memory_files_tool() -> Tool:
    """Make the tool ``memory``: view, create, edit, delete and rename files below ``/memories``.

    The files are items of the memory that the run may use, in its scope and within its quotas. If a model's provider
    knows the memory tool, the tool is declared by its type alone, and the provider adds the instructions; for other
    models it is described like any tool.
    """

    async def memory(
        command: Command,
        context: ToolContext,
        *,
        path: str | None = None,
        view_range: list[int] | None = None,
        file_text: str | None = None,
        old_str: str | None = None,
        new_str: str | None = None,
        insert_line: int | None = None,
        insert_text: str | None = None,
        old_path: str | None = None,
        new_path: str | None = None,
    ) -> ToolOutput:
        given: dict[str, Any] = {
            "path": path,
            "file_text": file_text,
            "old_str": old_str,
            "new_str": new_str,
            "insert_line": insert_line,
            "insert_text": insert_text,
            "old_path": old_path,
            "new_path": new_path,
        }
        needed = {name: given[name] for name in _NEEDED[command]}
        missing = [name for name, value in needed.items() if value is None]
        if missing:
            return _error_output(f"The command `{command}` needs {' and '.join(f'`{name}`' for name in missing)}.")
        if command == "view":
            needed["view_range"] = view_range
        run: Callable[..., Awaitable[str]] = getattr(_Files(context), command)
        try:
            return ToolOutput(await run(**needed), source_type="memory")
        except (_Refused, MemoryStoreError, RecordRefused) as error:
            return _error_output(str(error))

    made = tool(memory, description=_DESCRIPTION, effect="idempotent")
    return msgspec.structs.replace(made, provider_type=PROVIDER_TYPE)


def _error_output(text: str) -> ToolOutput:
    """An error in the contract's own words, without any text of ours."""
    return ToolOutput(text, status="error", source_type="memory", error=ErrorDetail(cause="retry", message=text))


class _Refused(Exception):
    """A command is refused; the model is told why."""


class _Edit(msgspec.Struct, frozen=True):
    """An edit of a file: its new text, and the line, from 0, around which it is shown."""

    text: str
    line: int = 0


class _Files:
    """The tool's commands, for one scope of memory."""

    def __init__(self, context: ToolContext) -> None:
        self._memory: Memory = context.need_memory()
        # Every write names its call. A call that a crash cut off is made again, and must recognise its own writes.
        self._call = context.idempotency_key
        self._writer = {"run": context.run_id, "agent": context.agent, "iteration": context.iteration}

    async def view(self, path: str, view_range: list[int] | None) -> str:
        """Show a file with line numbers, or list a directory."""
        place = _resolve(path)
        item = await self._find(place)
        if item is not None:
            shown = _view_lines(_text_of(item.content, path), path, view_range)
            return f"Here's the content of {path} with line numbers:\n{shown}"
        files = await self._below(place)
        if not files and place != ROOT:
            raise _Refused(f"The path {path} does not exist. Please provide a valid path.")
        header = f"Here're the files and directories up to 2 levels deep in {path}, excluding hidden items:"
        sizes = _tree_sizes(files, place)
        lines = [f"{_size(sizes.pop(()))}\t{path}"]
        for parts, size in sorted(sizes.items()):
            if not any(part.startswith(".") for part in parts):
                is_file = "/".join((place, *parts)) in files
                lines.append(f"{_size(size)}\t{path}/{'/'.join(parts)}{'' if is_file else '/'}")
        return "\n".join([header, *lines])

    async def create(self, path: str, file_text: str) -> str:
        """Create a file."""
        place = _resolve(path)
        item = await self._find(place)
        if item is None or not self._is_mine(item):
            if item is not None or place == ROOT or await self._below(place):
                raise _Refused(f"File {path} already exists")
            await self._check_parents(place)
            try:
                await self._memory.store(file_text, type="file", item_id=place, metadata=self._mark(), if_position=0)
            except ItemChanged:
                raise _Refused(f"File {path} already exists") from None
        return f"File created successfully at: {path}"

    async def str_replace(self, path: str, old_str: str, new_str: str) -> str:
        """Replace the only occurrence of ``old_str``."""

        def replace(text: str) -> _Edit:
            count = text.count(old_str)
            if count == 0:
                raise _Refused(f"No replacement was performed, old_str `{old_str}` did not appear verbatim in {path}.")
            if count > 1:
                raise _Refused(
                    f"No replacement was performed. Multiple occurrences of old_str `{old_str}` in lines: "
                    f"{_lines_of(text, old_str)}. Please ensure it is unique"
                )
            at = text.index(old_str)
            return _Edit(text[:at] + new_str + text[at + len(old_str) :], text.count("\n", 0, at))

        edit = await self._edit(path, replace)
        lines = edit.text.split("\n")
        first = max(0, edit.line - 2)
        snippet = _numbered(lines[first : edit.line + 3], first + 1)
        return (
            f"The memory file has been edited. Here is the snippet showing the change (with line numbers):\n{snippet}"
        )

    async def insert(self, path: str, insert_line: int, insert_text: str) -> str:
        """Insert text after a line; the file ends with a newline afterwards."""

        def insert(text: str) -> _Edit:
            lines = text.split("\n")
            if not lines[-1]:
                lines.pop()
            if not 0 <= insert_line <= len(lines):
                raise _Refused(
                    f"Invalid `insert_line` parameter: {insert_line}. It should be within the range [0, {len(lines)}]."
                )
            lines.insert(insert_line, insert_text.rstrip("\n"))
            joined = "\n".join(lines)
            return _Edit(joined if joined.endswith("\n") else f"{joined}\n")

        await self._edit(path, insert)
        return f"The file {path} has been edited."

    async def delete(self, path: str) -> str:
        """Delete a file, or all files below a directory.

        Repeated after a crash, it may report that there is none: a deleted item does not name the call that deleted it.
        """
        place = _resolve(path)
        if place == ROOT:
            raise _Refused("Cannot delete the /memories directory itself")
        found = [place] if await self._find(place) is not None else list(await self._below(place))
        if not found:
            raise _Refused(f"The path {path} does not exist")
        await self._memory.move(dict.fromkeys(found))  # those that another agent has deleted meanwhile are gone
        return f"Successfully deleted {path}"

    async def rename(self, old_path: str, new_path: str) -> str:
        """Move a file, or all files below a directory, at once."""
        old, new = _resolve(old_path), _resolve(new_path)
        if old == ROOT:
            raise _Refused("Cannot rename the /memories directory itself")
        item, there = await self._find(old), await self._find(new)
        files = [old] if item is not None else [*await self._below(old)]
        taken = {new: there} if there is not None else await self._below(new)
        if taken and all(map(self._is_mine, taken.values())):
            return f"Successfully renamed {old_path} to {new_path}"  # before a crash
        if new == ROOT or taken:
            raise _Refused(f"The destination {new_path} already exists")
        if not files:
            raise _Refused(f"The path {old_path} does not exist")
        if f"{new}/".startswith(f"{old}/"):
            raise _Refused(f"Cannot move {old_path} into itself")
        await self._check_parents(new)
        moves = {item_id: new + item_id.removeprefix(old) for item_id in files}
        try:
            moved = await self._memory.move(moves, metadata=self._mark())
        except ItemChanged:
            raise _Refused(f"The destination {new_path} already exists") from None
        if not moved:  # another agent was first
            raise _Refused(f"The path {old_path} does not exist")
        return f"Successfully renamed {old_path} to {new_path}"

    async def _edit(self, path: str, change: Callable[[str], _Edit]) -> _Edit:
        """Change a file, unless this call has already done so."""
        place = _resolve(path)
        while True:
            item = await self._find(place)
            if item is None:
                is_directory = place == ROOT or await self._below(place)
                raise _Refused(
                    f"The path {path} is not a file."
                    if is_directory
                    else f"The path {path} does not exist. Please provide a valid path."
                )
            text = _text_of(item.content, path)
            if self._is_mine(item):
                return _Edit(text, item.metadata.get("line", 0))
            edit = change(text)
            try:
                await self._memory.store(
                    edit.text,
                    type=item.type,
                    item_id=place,
                    source=item.source,
                    tags=item.tags,
                    related_to=item.related_to,
                    metadata={**item.metadata, **self._mark(), "line": edit.line},
                    media_type=item.media_type,
                    if_position=item.position,
                )
            except ItemChanged:
                continue  # another agent has written to it meanwhile, and its edit must not be lost
            return edit

    def _mark(self) -> dict[str, Any]:
        return {**self._writer, "call": self._call}

    def _is_mine(self, item: ItemInfo) -> bool:
        return bool(self._call) and item.metadata.get("call") == self._call

    async def _find(self, place: str) -> Item | None:
        """The file at a path; None if there is none, or if it is a directory."""
        try:
            return await self._memory.retrieve(place)
        except ItemNotFound:
            return None

    async def _below(self, place: str) -> dict[str, ItemInfo]:
        """The files below a directory, by path."""
        return {item.item_id: item for item in await self._memory.query(ItemQuery(id_prefix=f"{place}/"))}

    async def _check_parents(self, place: str) -> None:
        """Refuse a path that goes through a file."""
        above = place.rpartition("/")[0]
        while above != ROOT:
            if await self._find(above) is not None:
                raise _Refused(f"The path {above} is not a directory.")
            above = above.rpartition("/")[0]


def _resolve(path: str) -> str:
    """The normal form of a path, which is the item's id. Raises ``_Refused`` for one that leads out of ``/memories``.

    No path can lead out of a store of items. But the items may be written to a real folder one day, so everything is
    refused that some reader could take for the parent folder: encoded once or more, with other slashes, or look-alikes.
    """
    if path != ROOT and not path.startswith(f"{ROOT}/"):
        raise _Refused(f"Path must start with /memories, got: {path}")
    if len(path) > _MAX_PATH:
        raise _Refused(f"A path has at most {_MAX_PATH:,} characters, got {len(path):,}")
    if not path.isprintable():
        raise _Refused(f"Path {path!r} has characters that cannot be seen")
    read, before = path, ""
    while read != before:
        before = read
        read = unicodedata.normalize("NFKC", unquote(read)).translate(_SLASHES)
    if ".." in read.split("/"):
        raise _Refused(f"Path {path} would escape /memories directory")
    parts = (part for part in unicodedata.normalize("NFC", path).split("/") if part not in ("", "."))
    return "/" + "/".join(parts)


def _text_of(content: object, path: str) -> str:
    if not isinstance(content, str):
        raise _Refused(f"Unsupported file type for {path}")
    return content


def _view_lines(text: str, path: str, view_range: list[int] | None) -> str:
    lines = text.split("\n")
    if len(lines) > _MAX_LINES:
        raise _Refused(f"File {path} exceeds maximum line limit of {_MAX_LINES:,} lines.")
    if view_range is None or len(view_range) != 2:
        return _numbered(lines, 1)
    first, last = max(1, view_range[0]), view_range[1]
    return _numbered(lines[first - 1 : None if last == -1 else last], first)


def _numbered(lines: list[str], first: int) -> str:
    return "\n".join(f"{number:>6}\t{line}" for number, line in enumerate(lines, first))


def _lines_of(text: str, words: str) -> str:
    """The line numbers of all occurrences of a text, overlapping ones included."""
    found: list[str] = []
    line, seen, at = 1, 0, text.find(words)
    while at >= 0 and len(found) < _MOST_OCCURRENCES:
        line, seen = line + text.count("\n", seen, at), at
        found.append(str(line))
        at = text.find(words, at + 1)
    return ", ".join([*found, "…"] if at >= 0 else found)


def _tree_sizes(files: Mapping[str, ItemInfo], place: str) -> dict[tuple[str, ...], int]:
    """The sizes of what a listing of a directory shows, by the parts of their paths; () is the directory."""
    sizes: dict[tuple[str, ...], int] = {(): 0}
    for item_id, item in files.items():
        parts = tuple(item_id.removeprefix(f"{place}/").split("/"))
        for depth in range(min(len(parts), _LISTED_LEVELS) + 1):
            sizes[parts[:depth]] = sizes.get(parts[:depth], 0) + item.size
    return sizes


def _size(count: int) -> str:
    """A size for people: 512B, 5.5K, 1.2M."""
    size, unit = float(count), "B"
    for larger in "KMG":
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f}{unit}" if size == int(size) else f"{size:.1f}{unit}"
