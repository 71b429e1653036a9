"""Files of recorded runs: what is in them is found out by looking."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from repertory.errors import RecordingError
from repertory.llm.messages import Json
from repertory.replay.formats import read_document
from repertory.replay.recording import RecordedRun
from repertory.replay.sessions import is_session, read_session

_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"


def read_recordings(path: Path) -> Iterator[RecordedRun | RecordingError]:
    """Read the runs of one file. What cannot be read comes as an error, and the reading goes on behind it.

    A file, gzipped or not, is one JSON document or one a line. A document is a list of messages or an object with
    such a list under ``messages``, in the shape of the Messages API or of OpenAI's chat API; or the lines together
    are a session of Claude Code.

    Args:
        path: The file.
    """
    try:
        data = path.read_bytes()
        if data.startswith(_GZIP):
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        yield RecordingError(f"{path}: expected a readable file of recorded runs, got: {words}")
        return
    if not data.strip():
        yield RecordingError(f"{path}: expected recorded runs, got an empty file")
        return
    name = path.name.removesuffix(".gz").removesuffix(".jsonl").removesuffix(".json")
    try:
        document = msgspec.json.decode(data.removeprefix(_BOM))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if b"\n" not in data.strip():
            yield RecordingError(f"{path}: expected JSON, got: {error}")
        else:
            yield from _lines(data.removeprefix(_BOM), path=path, name=name)
    else:
        if is_session(document):
            yield from _session([(str(path), document)], path=path, name=name)
        else:
            yield _one(document, run_id=name, path=path, where=str(path))


def _lines(data: bytes, *, path: Path, name: str) -> Iterator[RecordedRun | RecordingError]:
    events: list[tuple[str, Json]] = []
    problems: list[RecordingError] = []
    readable = False
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}: line {number}"
        try:
            document = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            problems.append(RecordingError(f"{where}: expected JSON, got: {error}"))
            continue
        readable = True
        if is_session(document):
            events.append((where, document))
        else:
            yield _one(document, run_id=f"{name}:{number}", path=path, where=where)
    if events:
        yield from _session(events, path=path, name=name)
    # Where no line is JSON, it is one broken document and not as many problems as it has lines.
    yield from problems if readable else problems[:1]


def _one(document: Any, *, run_id: str, path: Path, where: str) -> RecordedRun | RecordingError:
    try:
        run = read_document(document, run_id=run_id, file=path.name, where=where)
    except RecordingError as error:
        return error
    return run or RecordingError(f"{where}: expected at least one message of the assistant, got none")


def _session(events: list[tuple[str, Json]], *, path: Path, name: str) -> Iterator[RecordedRun | RecordingError]:
    found = 0
    try:
        for run in read_session(events, file=path.name, name=name):
            found += 1
            yield run
    except RecordingError as error:
        yield error
        return
    if not found:
        yield RecordingError(f"{path}: expected at least one message of the assistant, got none")
