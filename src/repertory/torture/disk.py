"""A model of a disk that loses power: what each file and each name could be afterwards.

It reads POSIX pessimistically. Of the data written since the last sync, any sector may be there or not, in any order;
a sector that is new to the file may hold rubbish, an existing one holds the old or the new data. A new name is durable
once its folder was synced, not with the file itself. When a sync fails, the kernel keeps the pages and marks them
clean: readers see them, no later sync writes them, and it is unknown whether the disk has them until they are written
again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from repertory.torture.trace import Event, FolderMade, Opened, Removed, Renamed, Synced, Truncated, Written

SECTOR: Final = 512  # bytes that a disk writes atomically; larger sectors allow fewer images, but no others

Mode: TypeAlias = Literal["nothing", "everything", "in order", "writes", "sectors", "torn"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)


class Image(msgspec.Struct, frozen=True):
    """The content of the disk after a power cut: files and folders by their path."""

    files: dict[str, bytes]
    folders: tuple[str, ...]

    def restore(self, folder: Path) -> None:
        """Write the image into an empty folder."""
        for path in self.folders:
            (folder / path).mkdir()
        for path, data in self.files.items():
            (folder / path).write_bytes(data)


class _Change(msgspec.Struct):
    """An unsynced write of bytes at an offset, or if ``data`` is None of a size; ``turn`` orders those of all files."""

    turn: int
    offset: int
    data: bytes | None


class _File:
    def __init__(self, *, folder: bool) -> None:
        self.folder = folder
        self.cached = bytearray()  # what readers see
        self.durable = bytearray()
        self.pending: list[_Change] = []
        self.lost: dict[int, bytes] = {}  # sectors that a failed sync left behind, by number

    def write(self, change: _Change) -> None:
        if change.data is None:
            _resize(self.cached, change.offset)
            self.lost = {number: data for number, data in self.lost.items() if number * SECTOR < change.offset}
        else:
            _overwrite(self.cached, change.offset, change.data)
        self.pending.append(change)

    def sync(self) -> None:
        _resize(self.durable, len(self.cached))
        for number in self._touched():
            start = number * SECTOR
            self.durable[start : start + SECTOR] = self.cached[start : start + SECTOR]
            self.lost.pop(number, None)
        self.pending.clear()

    def lose(self) -> None:
        for number in self._touched():
            self.lost[number] = bytes(self.cached[number * SECTOR : (number + 1) * SECTOR])
        self.pending = [change for change in self.pending if change.data is None]  # a size is not a page

    def _touched(self) -> Iterator[int]:
        seen: set[int] = set()
        for change in self.pending:
            if change.data is not None:
                seen.update(range(change.offset // SECTOR, -(-(change.offset + len(change.data)) // SECTOR)))
        size = len(self.cached)
        return (number for number in seen if number * SECTOR < size)


class Disk:
    """The files below one folder. It is given the events of one process after another."""

    def __init__(self) -> None:
        self._names: dict[str, _File] = {}
        self._durable_names: dict[str, _File] = {}
        self._pending_names: list[dict[str, _File | None]] = []  # each one change: paths with the files they now name
        self._open: dict[int, tuple[_File, str]] = {}
        self._turn = 0

    def start_process(self) -> None:
        """Begin the events of another process, which sees what the last one wrote."""
        self._open.clear()

    def cut(self, image: Image) -> None:
        """Simulate a power cut after which the disk holds this image, and nothing is unsynced."""
        self._names.clear()
        self._pending_names.clear()
        self.start_process()
        for path in image.folders:
            self._names[path] = _File(folder=True)
        for path, data in image.files.items():
            file = self._names[path] = _File(folder=False)
            file.cached[:] = file.durable[:] = data
        self._durable_names = dict(self._names)

    def apply(self, *events: Event) -> None:
        """Apply events."""
        for event in events:
            self._turn += 1
            match event:
                case Opened(number, path, folder):
                    self._open[number] = self._find(path, folder=folder), path
                case Written(number, offset, data):
                    self._open[number][0].write(_Change(self._turn, offset, data))
                case Truncated(number, size):
                    self._open[number][0].write(_Change(self._turn, size, None))
                case Synced(number, lost):
                    self._sync(*self._open[number], lost=lost)
                case FolderMade(path):
                    self._find(path, folder=True)
                case Removed(path):
                    self._rename({path: None})
                case Renamed(path, to):
                    self._rename({path: None, to: self._names[path]})
                case _:
                    pass

    def _find(self, path: str, *, folder: bool) -> _File:
        if not path:
            return _File(folder=True)
        if path not in self._names:
            self._rename({path: _File(folder=folder)})
        return self._names[path]

    def _rename(self, change: dict[str, _File | None]) -> None:
        _change_names(self._names, change)
        self._pending_names.append(change)

    def _sync(self, file: _File, path: str, *, lost: bool) -> None:
        if not file.folder:
            file.lose() if lost else file.sync()
        elif not lost:
            left: list[dict[str, _File | None]] = []
            for change in self._pending_names:
                if any(_parent(name) == path for name in change):
                    _change_names(self._durable_names, change)
                else:
                    left.append(change)
            self._pending_names = left

    # --- what could be left -------------------------------------------------------------------------------

    def image(self, chance: random.Random, mode: Mode) -> Image:
        """Draw one of the states in which the disk could be if the power failed now.

        Args:
            mode: Which of the unsynced writes are there: none, all, all up to one of them, each write at random, each
                sector at random, or each sector at random with rubbish in some new ones.
        """
        names = self._cut_names(chance, mode)
        unsynced = sorted(change.turn for file in names.values() for change in file.pending)
        last = chance.choice(unsynced) if unsynced else 0
        share = chance.choice((0.1, 0.5, 0.9))
        files: dict[str, bytes] = {}
        folders: list[str] = []
        for path in sorted(names):  # folders come before what is in them
            parent = _parent(path)
            if parent and parent not in folders:
                continue
            if names[path].folder:
                folders.append(path)
            elif path.endswith("-shm"):
                # Mapped memory, which is never synced, may hold anything.
                if (what := chance.randrange(3)) > 0:
                    files[path] = bytes(32768) if what == 1 else chance.randbytes(32768)
            else:
                files[path] = _cut_file(names[path], chance, mode, last, share)
        return Image(files, tuple(folders))

    def _cut_names(self, chance: random.Random, mode: Mode) -> dict[str, _File]:
        names = dict(self._durable_names)
        pending = self._pending_names
        if mode == "everything" or chance.random() < 0.25:
            kept = len(pending)
        elif mode == "nothing" or chance.random() < 0.25:
            kept = 0
        elif mode == "in order":
            kept = chance.randint(0, len(pending))
        else:
            lost: set[str] = set()  # a path keeps the order of its own changes
            for change in pending:
                if lost.isdisjoint(change) and chance.random() < 0.5:
                    _change_names(names, change)
                else:
                    lost.update(change)
            return names
        for change in pending[:kept]:
            _change_names(names, change)
        return names


def _cut_file(file: _File, chance: random.Random, mode: Mode, last: int, share: float) -> bytes:
    data = bytearray(file.durable)
    if file.lost and (every := chance.random()) > 0.25:
        for number, sector in file.lost.items():
            if every > 0.75 or chance.random() < 0.5:
                _overwrite(data, number * SECTOR, sector)
    for change in file.pending:
        if mode == "everything" or (mode == "in order" and change.turn < last):
            parts = [(change.offset, change.data)]
        elif mode == "nothing" or (mode == "in order" and change.turn > last):
            continue
        elif change.data is None or mode == "writes":
            parts = [(change.offset, change.data)] if chance.random() < share else []
        else:
            end = len(file.durable) if mode == "torn" else None
            parts = list(_torn(change.offset, change.data, chance, share, rubbish_from=end))
        for offset, part in parts:
            if part is None:
                _resize(data, offset)
            else:
                _overwrite(data, offset, part)
    return bytes(data)


def _torn(
    offset: int, data: bytes, chance: random.Random, share: float, *, rubbish_from: int | None
) -> Iterator[tuple[int, bytes]]:
    """The sectors of a write that reached the disk; other bytes in its first and last sector stay unchanged."""
    start = offset
    while start < offset + len(data):
        end = min((start // SECTOR + 1) * SECTOR, offset + len(data))
        if chance.random() < share:
            yield start, data[start - offset : end - offset]
        elif rubbish_from is not None and start >= rubbish_from and chance.random() < 0.2:
            yield start, chance.randbytes(end - start)
        start = end


def _overwrite(content: bytearray, offset: int, data: bytes) -> None:
    if offset > len(content):
        _resize(content, offset)
    content[offset : offset + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _change_names(names: dict[str, _File], change: dict[str, _File | None]) -> None:
    for path, file in change.items():
        if file is None:
            names.pop(path, None)
        else:
            names[path] = file


def _parent(path: str) -> str:
    parent = str(PurePosixPath(path).parent)
    return "" if parent == "." else parent
