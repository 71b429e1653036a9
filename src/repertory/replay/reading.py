"""Reads files of recorded runs, and detects their format from the content."""

from __future__ import annotations

import codecs
import json
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from repertory._json_text import decode_received
from repertory.errors import RecordingError
from repertory.replay.formats import read_document
from repertory.replay.recording import RecordedRun
from repertory.replay.sessions import Session, is_session

MAX_FILE = 2**30  # bytes, packed and unpacked: files are held in memory
_GZIP = b"\x1f\x8b"
_SQLITE = b"SQLite format 3\0"
_NO_ANSWER = "expected a message of the assistant, in the format of the Messages API, OpenAI or Claude Code; got none"


def read_recordings(path: Path) -> Iterator[RecordedRun | RecordingError]:
    """Read the runs of one file. Errors are yielded, not raised, and reading continues after them.

    A file, gzipped or not, has one JSON document, or one on each line. A document is a list of messages or an object
    with such a list under ``messages``, in the shape of the Messages API or of OpenAI's chat API; or the lines together
    are a session of Claude Code.
    """
    try:
        data, whole = _unpack(_read(path))
    except (OSError, ValueError, zlib.error) as error:
        words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        yield RecordingError(f"{path}: expected a readable file of recorded runs, got: {words}")
        return
    if not whole:
        data = _without_partial_line(data)
    if data.startswith(_SQLITE):
        yield RecordingError(f"{path}: expected JSON or JSONL, got an SQLite database")
    elif data.strip():
        yield from _runs(_as_utf8(data.removeprefix(codecs.BOM_UTF8)), path)
    elif whole:
        yield RecordingError(f"{path}: expected recorded runs, got an empty file")
    if not whole:
        yield RecordingError(f"{path}: expected gzipped data with its end, got a file that was cut off")


def _runs(data: bytes, path: Path) -> Iterator[RecordedRun | RecordingError]:
    name = path.name.removesuffix(".gz").removesuffix(".jsonl").removesuffix(".json")
    session = Session(file=path.name, name=name)
    seen = found = False  # whether there was an event of a session, and a problem with one
    for where, number, document in _documents(data, path):
        try:
            if isinstance(document, RecordingError):
                yield document
            elif is_session(document):
                seen = True
                session.add(document, where=where)
            else:
                run_id = f"{name}:{number}" if number else name
                run = read_document(document, run_id=run_id, file=path.name, where=where)
                yield run or RecordingError(f"{where}: {_NO_ANSWER}")
        except RecordingError as error:
            found = found or is_session(document)
            yield error
    runs = list(session.runs())
    yield from runs
    if seen and not runs and not found:
        yield RecordingError(f"{path}: {_NO_ANSWER}")


def _documents(data: bytes, path: Path) -> Iterator[tuple[str, int, Any]]:
    """Yield the documents in a file, or errors in their places, each with where it is and its line number or 0."""
    try:
        yield str(path), 0, decode_received(data)
        return
    except ValueError as error:
        if b"\n" not in data.strip():
            yield str(path), 0, RecordingError(f"{path}: {error}")
            return
    pending: list[tuple[str, int, Any]] = []  # until one line could be read
    readable = False
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}: line {number}"
        try:
            document = decode_received(line)
        except ValueError as error:
            document = RecordingError(f"{where}: {error}")
        else:
            readable = readable or isinstance(document, list | dict)
        pending.append((where, number, document))
        if readable:
            yield from pending
            pending.clear()
    yield from pending[:1]  # a single broken document, not one problem for each of its lines


def _as_utf8(data: bytes) -> bytes:
    """Convert what PowerShell, say, has written in UTF-16."""
    encoding = json.detect_encoding(data)
    return data if encoding == "utf-8" else data.decode(encoding, "replace").encode()


def _read(path: Path) -> bytes:
    """Read a file or a pipe. Raises ``OSError`` or ``ValueError``."""
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise ValueError("a device, which may have no end")
        data = file.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise _too_large()
    return data


def _too_large() -> ValueError:
    return ValueError(f"more than {MAX_FILE:,} bytes; split it")


def _unpack(data: bytes) -> tuple[bytes, bool]:
    """Unpack a file as far as possible; return the data and whether that is all. Raises ``ValueError`` if too large."""
    if not data.startswith(_GZIP):
        return data, True
    parts: list[bytes] = []
    left = MAX_FILE
    while data:
        member = zlib.decompressobj(wbits=31)  # 31: with the header and the checksum of gzip
        parts.append(member.decompress(data, left + 1))
        left -= len(parts[-1])
        if left < 0:
            raise _too_large()
        if not member.eof:
            return b"".join(parts), False
        data = member.unused_data.lstrip(b"\0")
    return b"".join(parts), True


def _without_partial_line(data: bytes) -> bytes:
    before, _, last = data.rpartition(b"\n")
    try:
        decode_received(last)
    except ValueError:
        return before
    return data
