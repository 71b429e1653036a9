"""Tools that list, search and view the files of one folder."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Final

import msgspec

from repertory._choices import Positive, check_number
from repertory._counting import counted
from repertory.errors import ToolFailed, ToolRetry
from repertory.shortening import ResultPolicy
from repertory.tools.confined import Folder, FoundFile, Parts, printable, read_all
from repertory.tools.decorator import Tool, tool
from repertory.tools.globs import match_glob
from repertory.tools.output import ToolOutput
from repertory.tools.patterns import LONGEST_PATTERN, Matches, search_lines

Glob = Annotated[str, msgspec.Meta(max_length=1_000)]

PAGE: Final = 30_000  # characters of one answer: some 8,000 tokens, the most that a result may have without being cut
MAX_BYTES: Final = 10_000_000  # of one file
MAX_LINE: Final = 2_000  # characters of one line in a view of several
MAX_HIT: Final = 300  # characters of one line in a search
SEARCH_SECONDS: Final = 20.0
_OUT_OF_TIME: Final = "or more for lack of time: narrow the path"
_BATCH: Final = 8_000_000  # characters that one regular-expression process is given


def file_tools(
    root: str | os.PathLike[str],
    *,
    deny: Iterable[str | os.PathLike[str]] = (),
    allow: Iterable[str] = (),
    search_timeout: float = SEARCH_SECONDS,
) -> list[Tool]:
    """Make the tools ``list_files``, ``search_files`` and ``view_file`` for one folder.

    They cannot leave the folder: ``..``, absolute paths and links are refused. They open only regular files, and never
    an SQLite database, because that would drop the locks of a journal that this process keeps open. Files with the
    name of a secret (``.env``, ``*.pem``, ``id_rsa``, ``.aws/``; all are in ``repertory.tools.secret_names``) are
    listed, but neither viewed nor searched.

    Args:
        root: The folder.
        deny: What to hide: names (``.env``, ``*.pem``) at any depth, paths from the root (``config/keys/``), absolute
            paths.
        allow: Files that may be read although they have the name of a secret, as names or paths from the root:
            ``test.pem``, ``certs/``.
        search_timeout: Seconds after which a search or a listing returns what it has found so far.

    Raises:
        ConfigurationError: There is no such folder, or a value is of another type.
    """
    check_number("file_tools: search_timeout", search_timeout, int | float, least=0)
    folder = Folder(root, deny=deny, allow=allow)

    def list_files(path: str = ".", pattern: Glob = "*", limit: Positive = 200) -> ToolOutput:
        """List files, one path a line, sorted, subfolders included. Use it to learn what there is.

        Args:
            path: The folder to look in; "." is the top.
            pattern: Only files whose path below it fits, such as "*.py" or "tests/**/test_*.py".
            limit: How many to show at most.
        """
        return _list(folder, path, pattern, search_timeout, limit)

    def search_files(
        pattern: Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_PATTERN)],
        *,
        path: str = ".",
        glob: Glob = "*",
        regex: bool = False,
        ignore_case: bool = False,
        context_lines: Annotated[int, msgspec.Meta(ge=0, le=20)] = 0,
        limit: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 50,
    ) -> ToolOutput:
        """Find a text in the files, line by line: "path:line: text". Search before you read: it is much cheaper.

        Args:
            pattern: The text to find, exactly as it stands in one line.
            path: The folder or file to search; "." is everything.
            glob: Only in files whose path below it fits, such as "*.py" or "docs/**".
            regex: Whether the pattern is a regular expression (Python syntax).
            ignore_case: Whether capital and small letters are the same.
            context_lines: Lines to show before and after each match, as "path-line- text".
            limit: How many matches to show at most.
        """
        wanted = _Wanted(pattern=pattern, path=path, glob=glob, regex=regex, ignore_case=ignore_case)
        return _search(folder, wanted, search_timeout, context_lines, limit)

    def view_file(path: str, start_line: Positive = 1, end_line: Positive | None = None) -> ToolOutput:
        """Read a text file with line numbers. Give a range of lines where you know which part you need.

        Args:
            path: The file.
            start_line: First line to show; the first of the file is 1.
            end_line: Last line to show; by default as many as fit, the answer says where to go on.
        """
        return _view(folder, path, start_line, end_line)

    def make(function: Callable[..., ToolOutput], compactor: str | None = None) -> Tool:
        policy = ResultPolicy(compactor=compactor)
        # Others write to the folder meanwhile: an editor, another run, the program whose log is watched.
        return tool(function, effect="pure", repeatable=False, deadline=60, computes=True, policy=policy)

    return [make(list_files, "listing"), make(search_files), make(view_file, "file")]


def _list(folder: Folder, path: str, pattern: str, seconds: float, limit: int) -> ToolOutput:
    skipped: Counter[str] = Counter()
    shown: list[str] = []
    total, size, tops = 0, 0, Counter[str]()
    for found, below in _walk(folder, path, pattern, seconds, skipped):
        total += 1
        tops[f"{printable(below[:1])}/" if len(below) > 1 else "directly here"] += 1
        size += len(found.path) + 1
        if total <= limit and size <= PAGE:
            shown.append(found.path)
    head = f"{counted(total, 'file')} in {printable([path])}"
    if len(shown) < total:
        folders = ", ".join(f"{name} {count:,}" for name, count in tops.most_common(30))
        head += f", the first {len(shown):,} shown; narrow path or pattern for the rest. Where they are: {folders}"
    facts = {"path": path, "total": total, "shown": len(shown), "complete": _OUT_OF_TIME not in skipped}
    return ToolOutput("\n".join([head + _note(skipped), *shown]), source_type="file", facts=facts)


def _view(folder: Folder, path: str, start_line: int, end_line: int | None) -> ToolOutput:
    parts = folder.parts_of(path)
    if end_line is not None and end_line < start_line:
        raise ToolRetry(f"end_line {end_line} is before start_line {start_line}")
    with folder.open_file(parts) as fd:
        data, more = read_all(fd, MAX_BYTES)
    name = printable(parts)
    if _is_binary(data):
        raise ToolFailed(f"{name!r} is a binary file of {counted(len(data), 'byte')}{' or more' * more}, not text")
    lines = split_lines(data)
    rest = ", and more that are too many to view" * more
    if start_line > max(1, len(lines)):
        raise ToolRetry(f"{name!r} has {counted(len(lines), 'line')}{rest}; start_line {start_line} is beyond them")
    shown: list[str] = []
    size, most = 0, PAGE if start_line == end_line else MAX_LINE
    for number, line in enumerate(lines[start_line - 1 : end_line], start_line):
        text = f"{number:>6}\t{line[:most]}"
        if len(line) > most:
            how = "" if most == PAGE else f"; start_line={number}, end_line={number} shows more"
            text += f" [… {counted(len(line) - most, 'more character')}{how}]"
        size += len(text) + 1
        if size > PAGE and shown:
            break
        shown.append(text)
    last = start_line + len(shown) - 1
    head = f"{name} (lines {start_line}-{last} of {len(lines)}{rest})" if lines else f"{name} (empty)"
    if last < min(len(lines), end_line or len(lines)):
        shown.append(f"[stopped at line {last} of {len(lines)}; go on with start_line={last + 1}]")
    facts = {"path": name, "first": start_line, "last": last, "lines": len(lines)}
    return ToolOutput("\n".join([head, *shown]), source_type="file", format="code", facts=facts)


class _Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What to search for, and where."""

    pattern: str
    path: str
    glob: str
    regex: bool
    ignore_case: bool


class _Hit(msgspec.Struct, frozen=True):
    """A file, its lines, and which of them match."""

    path: str
    lines: list[str]
    matches: Matches


def _search(folder: Folder, wanted: _Wanted, seconds: float, context_lines: int, limit: int) -> ToolOutput:
    if "\n" in wanted.pattern:
        raise ToolRetry("the pattern must be within one line; search for a part of it")
    skipped: Counter[str] = Counter()
    lines: list[str] = []
    total = files = shown = size = 0
    is_full = False
    for hit in _find(folder, wanted, seconds, skipped):  # one file at a time: all together may not fit into memory
        total += hit.matches.total
        files += 1
        for group in () if is_full else _show(hit, context_lines, begun=bool(lines)):
            size += sum(len(line) + 1 for line in group)
            is_full = shown == limit or (size > PAGE and bool(lines))
            if is_full:  # matches that are not shown are only counted
                break
            lines += group
            shown += 1
    head = f"{counted(total, 'match', 'matches')} in {counted(files, 'file')}"
    if shown < total:
        head += f", the first {shown:,} shown; narrow the pattern, path or glob for the rest"
    complete = _OUT_OF_TIME not in skipped
    facts = {"total": total, "files": files, "shown": shown, "complete": complete}
    return ToolOutput("\n".join([head + _note(skipped), *lines]), source_type="search", facts=facts)


def _find(folder: Folder, wanted: _Wanted, seconds: float, skipped: Counter[str]) -> Iterator[_Hit]:
    """The files with matches, by path."""
    batch: list[tuple[str, str]] = []
    waiting = 0
    for found, _ in _walk(folder, wanted.path, wanted.glob, seconds, skipped):
        if folder.is_guarded(found.parts):
            skipped["with the name of a secret"] += 1
            continue
        data = _read(folder, found, skipped)
        if data is None:
            continue
        if not wanted.regex:
            hit = _search_text(wanted, found, data)
            if hit:
                yield hit
            continue
        batch.append((found.path, "\n".join(split_lines(data))))
        waiting += len(data)
        if waiting >= _BATCH:
            yield from _search_batch(wanted, batch)
            batch, waiting = [], 0
    if batch:
        yield from _search_batch(wanted, batch)


def _walk(
    folder: Folder, path: str, glob: str, seconds: float, skipped: Counter[str]
) -> Iterator[tuple[FoundFile, Parts]]:
    """The files below a path that fit a glob, with their names from there, until the time is over."""
    start, end = folder.parts_of(path), time.monotonic() + seconds
    for found in folder.walk(start, skipped):
        if time.monotonic() >= end:  # not even counted: of a large or slow disk that takes minutes
            skipped[_OUT_OF_TIME] += 1
            return
        below = found.parts[len(start) :]
        if match_glob(glob, below or found.parts[-1:]):
            yield found, below


def _read(folder: Folder, found: FoundFile, skipped: Counter[str]) -> bytes | None:
    """A text file's bytes; None for a file that cannot or need not be searched, which is counted in ``skipped``."""
    try:
        with folder.open_found(found) as fd:
            data, more = read_all(fd, MAX_BYTES)
    except ToolFailed:
        skipped["databases or not files"] += 1
    except (OSError, ToolRetry):
        skipped["unreadable files"] += 1
    else:
        if more:
            skipped[f"larger than {MAX_BYTES // 1_000_000} MB"] += 1
        elif _is_binary(data):
            skipped["binary"] += 1
        else:
            return data
    return None


def _search_text(wanted: _Wanted, found: FoundFile, data: bytes) -> _Hit | None:
    pattern = wanted.pattern
    if wanted.ignore_case:
        pattern, lines = pattern.lower(), split_lines(data)
        compared = [line.lower() for line in lines]
    elif pattern.encode("utf-8", "surrogatepass") in data:
        compared = lines = split_lines(data)
    else:  # most files hold no match, which their bytes show without being decoded
        return None
    places = tuple((index, line.index(pattern)) for index, line in enumerate(compared) if pattern in line)
    return _Hit(found.path, lines, Matches(len(places), places)) if places else None


def _search_batch(wanted: _Wanted, batch: list[tuple[str, str]]) -> Iterator[_Hit]:
    answers = search_lines(wanted.pattern, [text for _, text in batch], ignore_case=wanted.ignore_case)
    for (path, text), matches in zip(batch, answers, strict=True):
        if matches.total:
            yield _Hit(path, text.split("\n"), matches)


def _show(hit: _Hit, around: int, *, begun: bool) -> Iterator[list[str]]:
    """The lines that show each match, without those that the match before has shown; ``begun``: after other files."""
    matches = dict(hit.matches.places)
    done = -1  # the last line that was shown
    for index in matches:
        first, last = max(done + 1, index - around), min(len(hit.lines) - 1, index + around)
        is_apart = begun if done < 0 else first > done + 1
        group = ["--"] if around and is_apart else []
        for number in range(first, last + 1):
            mark = ":" if number in matches else "-"
            text = _excerpt(hit.lines[number], matches.get(number, 0))
            group.append(f"{hit.path}{mark}{number + 1}{mark} {text}")
        yield group
        done = max(done, last)


def _excerpt(line: str, offset: int) -> str:
    """A line, or for a long line the part around the match."""
    if len(line) <= MAX_HIT:
        return line
    first = max(0, min(offset - MAX_HIT // 4, len(line) - MAX_HIT))
    return f"{'…' * (first > 0)}{line[first : first + MAX_HIT]}{'…' * (first + MAX_HIT < len(line))}"


def _is_binary(data: bytes) -> bool:
    return b"\0" in data[:8192]


def split_lines(data: bytes) -> list[str]:
    """The lines of a file, without their ends; bytes that are not UTF-8 become U+FFFD."""
    lines = data.decode("utf-8-sig", "replace").split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines] if b"\r" in data else lines


def _note(skipped: Counter[str]) -> str:
    if not skipped:
        return ""
    return f" (left out: {', '.join(f'{count:,} {reason}' for reason, count in sorted(skipped.items()))})"
