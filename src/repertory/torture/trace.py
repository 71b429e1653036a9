"""The trace of the shim: one event for each operation on the files of a folder, in order."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

_HEADER: Final = struct.Struct("<IIQII")  # kind, file, offset, flags, length of what follows


class Opened(msgspec.Struct, frozen=True):
    """A file or folder was opened; later events refer to it by ``file``."""

    file: int
    path: str
    folder: bool


class Written(msgspec.Struct, frozen=True):
    """Bytes were written."""

    file: int
    offset: int
    data: bytes


class Truncated(msgspec.Struct, frozen=True):
    """A file was given a size."""

    file: int
    size: int


class Synced(msgspec.Struct, frozen=True):
    """A sync returned; with ``lost`` it failed, and it is unknown which unsynced writes are on the disk."""

    file: int
    lost: bool = False


class Renamed(msgspec.Struct, frozen=True):
    """A name changed."""

    path: str
    to: str


class Removed(msgspec.Struct, frozen=True):
    """A name of a file or folder is gone."""

    path: str


class FolderMade(msgspec.Struct, frozen=True):
    """A folder was made."""

    path: str


class Marked(msgspec.Struct, frozen=True):
    """The workload wrote a message, such as that an append was acknowledged."""

    text: str


class Faulted(msgspec.Struct, frozen=True):
    """The shim made a call fail, or ended the process."""

    what: str
    error: int


Event: TypeAlias = Opened | Written | Truncated | Synced | Renamed | Removed | FolderMade | Marked | Faulted


def read_trace(path: Path) -> list[Event]:
    """The events of one process, up to the last complete one: a killed process may have left half of one."""
    return list(_events(path.read_bytes())) if path.exists() else []


def _events(raw: bytes) -> Iterator[Event]:
    at = 0
    while at + _HEADER.size <= len(raw):
        kind, file, offset, flags, length = _HEADER.unpack_from(raw, at)
        at += _HEADER.size
        data = raw[at : at + length]
        at += length
        if len(data) < length:
            return
        yield _event(kind, file, offset, flags, data)


def _event(kind: int, file: int, offset: int, flags: int, data: bytes) -> Event:
    match kind:  # the numbers of the first enum in shim.c
        case 1:
            return Opened(file, data.decode(), bool(flags))
        case 2:
            return Written(file, offset, data)
        case 3:
            return Truncated(file, offset)
        case 4:
            return Synced(file)
        case 5:
            return Synced(file, lost=True)
        case 6:
            source, _, target = data.decode().partition("\0")
            return Renamed(source, target)
        case 7 | 9:
            return Removed(data.decode())
        case 8:
            return FolderMade(data.decode())
        case 10:
            return Marked(data.decode())
        case 11:
            return Faulted(data.decode(), flags)
        case _:
            raise ValueError(f"the trace has an event of kind {kind}, which shim.c does not write")
