"""The payload of a run: one value of the user's own type beside the conversation, kept version by version.

Internally it is a JSON document, which the type reads and writes. Changes are made to a draft. The differences are
committed in one transaction with their cause, such as a tool's outcome. If two concurrent drafts change the same
place, the first one committed counts, and the other's change is kept as a conflict.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any, Final

import msgspec

from repertory._choices import show
from repertory._frozen import freeze, freeze_fields, thaw
from repertory._json_values import Misfit, ValueType, to_plain
from repertory.errors import ConfigurationError, PayloadInvalid
from repertory.llm.messages import Json
from repertory.memory.documents import (
    MISSING,
    Path,
    changed,
    changes_between,
    collide,
    find,
    is_same,
    overlaps,
    parts_of,
    resolve,
    show_path,
)
from repertory.memory.sources import SourceRecord, lists_sources
from repertory.record.memory_records import PathParts, PayloadAuthor, PayloadChange, PayloadChanged, PayloadConflict
from repertory.record.records import ContentStored, Effect
from repertory.record.rows import encode_json


class PayloadScope(msgspec.Struct, frozen=True, kw_only=True):
    """Which parts of its lead's payload a sub-agent gets; everything else is hidden from it.

    A path is field names joined by dots. It leads through fields and mappings, not into a list.

    Attributes:
        read: Paths that the sub-agent can read but not change.
        write: Paths that it can read and change. The changes come back when the sub-agent is done.

    Raises:
        ConfigurationError: A value is not a list of paths.
    """

    read: Sequence[str] = ()
    write: Sequence[str] = ()

    def __post_init__(self) -> None:
        freeze_fields(self, sequences=("read", "write"))
        given: list[tuple[str, Any]] = [("read", self.read), ("write", self.write)]
        for name, paths in given:
            if not isinstance(paths, tuple) or not all(isinstance(path, str) and path for path in paths):
                raise ConfigurationError(
                    f"payload_scope.{name} must be paths, such as ('author.name',), got {show(paths)}"
                )

    @property
    def paths(self) -> tuple[PathParts, ...]:
        """All paths that the sub-agent gets."""
        return tuple(parts_of(path) for path in (*self.read, *self.write))

    def of(self, document: Any) -> Json:
        """The part of a document that a sub-agent gets; paths at which there is nothing are left out."""
        inside: Json = {}
        for parts in self.paths:
            value, place = find(document, parts), inside
            if value is MISSING:
                continue
            for part in parts[:-1]:
                place = place.setdefault(str(part), {})
            place[str(parts[-1])] = thaw(value)
        return inside

    def check_change(self, path: PathParts) -> None:
        """Raise ``PayloadInvalid`` for a change in a part that is read-only."""
        writable = any(parts_of(own) == path[: len(parts_of(own))] for own in self.write)
        if not writable and any(overlaps(parts_of(own), path) for own in self.read):
            raise PayloadInvalid(
                f"{show_path(path)} of the payload is the lead's, and may only be read here; payload_scope.write names "
                f"what may be changed: {', '.join(self.write) or 'nothing'}"
            )


_NO_SCOPE: Final = PayloadScope()


class Staged(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to be committed together.

    Attributes:
        base: The version that they were made to.
        source: The tool, or the sub-agent's run; a sub-agent's changes are committed only once.
    """

    changes: Sequence[PayloadChange]
    base: int
    author: PayloadAuthor
    source: str = ""


class Payload:
    """The payload as one tool call sees it: as it was when the call began, with the call's own changes.

    Nobody else sees the changes until they are committed together with the call's outcome; a call that fails changes
    nothing. A path is ``"author.name"``, or a tuple of its parts if a name has a dot in it, ``("links", "https://…")``;
    "" is the whole. To test a tool, pass it ``ToolContext(payload=Payload(value))`` and look at ``value`` afterwards.
    """

    def __init__(self, value: Any = None, kind: Any = None) -> None:
        """Make a payload that belongs to no run.

        Args:
            value: Its value; None makes a payload that cannot be read or changed, as in a run without a payload.
            kind: Its type; None means the type of the value.
        """
        self._type = None if value is None else ValueType(type(value) if kind is None else kind, "Payload: kind")
        self._document: Any = None if self._type is None else _canonical(self._type, _json(value, ()))
        self._base, self._version = self._document, 0
        self._scope = _NO_SCOPE
        self._brought: list[Staged] = []
        self._is_read_only = False

    @classmethod
    def draft(cls, state: PayloadState | None, *, changed_by: Effect = "transactional") -> Payload:
        """A draft of a run's payload as it is now, for a tool with this effect; a pure tool may only read it."""
        made = cls()
        made._is_read_only = changed_by == "pure"
        if state is not None:
            made._type, made._version, made._scope = state.type, state.version, state.scope
            made._document = made._base = state.document
        return made

    @property
    def value(self) -> Any:
        """A copy of the whole, of the payload's type. To change the payload, pass a changed copy to ``replace``."""
        return self._require_type().from_json(self._document)

    def get(self, path: Path = "") -> Any:
        """A copy of the value at a path, as JSON.

        Raises:
            PayloadInvalid: There is nothing at the path.
        """
        self._require_type()
        return thaw(find(self._document, resolve(self._document, path)))

    def set(self, path: Path, value: Any) -> None:
        """Set the value at a path.

        Raises:
            PayloadInvalid: The value does not fit there, or there is no such place, or it is read-only.
        """
        self._require_type()
        parts = resolve(self._document, path, last=False)
        self._adopt(PayloadChange(path=parts, value=_json(value, parts)))

    def append(self, path: Path, *values: Any) -> None:
        """Append values to a list; where there is nothing yet, it begins. What others append meanwhile is kept too.

        Raises:
            PayloadInvalid: As for ``set``; or the value at the path is not a list.
        """
        self._require_type()
        parts = resolve(self._document, path, last=False)
        there = find(self._document, parts)
        if there is not MISSING and not isinstance(there, list):
            raise PayloadInvalid(f"the payload has {there!r:.60} at {show_path(parts)}, and only a list grows")
        self._adopt(PayloadChange(path=parts, op="append", value=_json([*values], parts)))

    def remove(self, path: Path) -> None:
        """Remove a key from a mapping.

        Raises:
            PayloadInvalid: As for ``set``; or the path leads to an item of a list, or to a field of the type.
        """
        self._require_type()
        parts = resolve(self._document, path)
        if not parts or isinstance(parts[-1], int):
            raise PayloadInvalid(f"{show_path(parts)} of the payload cannot be removed; set the list without it")
        self._adopt(PayloadChange(path=parts, op="remove"))

    def replace(self, value: Any) -> None:
        """Replace the whole value. Only the parts that differ count as changed.

        Raises:
            PayloadInvalid: The value does not fit the type, or a part that differs is read-only.
        """
        self._require_type()
        self._adopt(PayloadChange(path=(), value=_json(value, ())))

    def bring_back(self, changes: Sequence[PayloadChange], *, base: int, run_id: str) -> None:
        """Stage what a sub-agent changed in the version ``base`` that it was given; ``value`` does not show it yet."""
        self._brought.append(Staged(changes=changes, base=base, author="sub-agent", source=run_id))

    def staged(self, author: PayloadAuthor, source: str = "") -> list[Staged]:
        """All changes that are to be committed."""
        own = [] if self._document is self._base else [*changes_between(self._base, self._document)]
        mine = [Staged(changes=own, base=self._version, author=author, source=source)] if own else []
        return [*mine, *self._brought]

    def discard(self) -> None:
        """Undo all changes."""
        self._document, self._brought = self._base, []

    def _require_type(self) -> ValueType:
        if self._type is None:
            raise ConfigurationError("this run has no payload: its agent named no type for one, Agent(payload=…)")
        return self._type

    def _adopt(self, change: PayloadChange) -> None:
        if self._is_read_only:
            raise PayloadInvalid('a pure tool only reads, the payload too; declare @tool(effect="transactional")')
        kind, path = self._require_type(), change.path
        document = _canonical(kind, changed(self._document, change))
        is_there = find(document, path) is not MISSING
        if change.op != "remove" and not is_there:
            fields = ", ".join(find(self._document, path[:-1]))
            raise PayloadInvalid(f"{kind.name} has no {show(path[-1])} at {show_path(path[:-1])}; there is {fields}")
        if change.op == "remove" and is_there:
            raise PayloadInvalid(f"{show_path(path)} is a field of {kind.name}, which cannot be removed; set it")
        if self._scope.read:
            for each in changes_between(self._document, document):
                self._scope.check_change(each.path)
        self._document = document


class PayloadState:
    """The payload of one run as it is committed.

    Attributes:
        scope: For a sub-agent, which parts of it are the lead's.
        version: The number of the last commit; 0 before the first.
        first: The document at the beginning. Instructions show this one, so that they never change.
        base: For a sub-agent, the version of the lead's payload that it was made from.
    """

    def __init__(self, kind: ValueType, scope: PayloadScope | None = None) -> None:
        self.type = kind
        self.scope = _NO_SCOPE if scope is None else scope
        self.version = self.base = 0
        self.document: Any = None
        self.first: Any = None
        self._changes: list[tuple[int, PayloadChange]] = []  # all changes, with the versions that made them
        self._brought: set[str] = set()  # the sub-agents' runs whose changes have been committed
        hints = kind.hints().items()
        self._source_fields = [(name,) for name, hint in hints if lists_sources(hint)]

    @property
    def value(self) -> Any:
        """A copy of the value."""
        return self.type.from_json(self.document)

    def begin(self, value: Any, *, run_id: str, at: float, base: int = 0) -> PayloadChanged:
        """Make the record of the first version, to be passed to ``adopt``.

        Raises:
            PayloadInvalid: The value does not fit the type.
        """
        change = PayloadChange(path=(), value=_canonical(self.type, _json(value, ())))
        return PayloadChanged(run_id=run_id, version=1, author="spawn", base=base, changes=(change,), at=at)

    def adopt(self, record: PayloadChanged) -> None:
        """Apply a record to the payload; the record has been submitted to the journal, or was read from it."""
        self.document = changed(self.document, *record.changes)
        self._changes += [(record.version, change) for change in record.changes]
        if record.version == 1:
            self.first, self.base = self.document, record.base
        self.version = record.version
        if record.author == "sub-agent":
            self._brought.add(record.source)

    def commit(
        self,
        staged: Sequence[Staged],
        *,
        run_id: str,
        at: float,
        call_id: str = "",
        stored: ContentStored | None = None,
    ) -> list[PayloadChanged]:
        """Make the records of staged changes, to be passed to ``adopt`` once they are submitted to the journal.

        The source of ``stored``, a content that is stored with them, is added to the payload.
        """
        trial, out = self._copy(), list[PayloadChanged]()
        for each in staged:
            if each.source in trial._brought:
                continue
            out.append(trial._record(each, run_id=run_id, at=at, call_id=call_id))
            trial.adopt(out[-1])
        records = [] if stored is None else [msgspec.to_builtins(SourceRecord.of(stored))]
        if stored is not None and (found := [*trial._sources(records, trial._source_fields)]):
            lot = Staged(changes=found, base=trial.version, author="tool", source=stored.source)
            out.append(trial._record(lot, run_id=run_id, at=at, call_id=call_id))
        return out

    def fill_in(self, *, run_id: str, at: float) -> list[PayloadChanged]:
        """Make the record of fields that the type has got since the payload was written; none if nothing is missing.

        Without them in the document, a list that a new version of the program has added could never grow.
        """
        changes = tuple(changes_between(self.document, _filled(self.type, self.document)))
        record = PayloadChanged(
            run_id=run_id, version=self.version + 1, author="resume", base=self.version, changes=changes, at=at
        )
        return [record] if changes else []

    def brings_back(self) -> list[PayloadChange]:
        """What a sub-agent has changed in its lead's payload since it was given it."""
        out: list[PayloadChange] = []
        for parts in map(parts_of, self.scope.write):
            was, now = find(self.first, parts), find(self.document, parts)
            if now is MISSING:
                out += [] if was is MISSING else [PayloadChange(path=parts, op="remove")]
            elif was is MISSING:
                out.append(PayloadChange(path=parts, value=now))
            elif parts in self._source_fields:
                new = [source for source in now or () if not any(is_same(source, known) for known in was or ())]
                out += [PayloadChange(path=parts, op="append", value=new)] if new else []
            else:
                out += changes_between(was, now, parts)
        return out

    def _copy(self) -> PayloadState:
        trial = copy.copy(self)
        trial._changes, trial._brought = [*self._changes], {*self._brought}
        return trial

    def _record(self, lot: Staged, *, run_id: str, at: float, call_id: str) -> PayloadChanged:
        """The record of one set of staged changes; those that cannot be made are recorded as conflicts."""
        since = [*takewhile(lambda made: made[0] > lot.base, reversed(self._changes))]
        made: list[PayloadChange] = []
        conflicts: list[PayloadConflict] = []
        for wanted in lot.changes:
            other = next((version for version, change in since if collide(change, wanted)), 0)
            if lot.author == "sub-agent" and wanted.op == "append" and wanted.path in self._source_fields:
                made += self._sources(wanted.value, [wanted.path])
            elif not other:
                made.append(wanted)
            elif not self._has(wanted):
                conflicts.append(PayloadConflict(change=wanted, version=other))
        try:
            self.type.from_json(changed(self.document, *made))
        except Misfit as error:  # each change fits, but not together with what others have changed meanwhile
            conflicts += [PayloadConflict(change=change, reason=str(error)) for change in made]
            made = []
        return PayloadChanged(
            run_id=run_id,
            version=self.version + 1,
            author=lot.author,
            base=lot.base,
            changes=tuple(made),
            conflicts=tuple(conflicts),
            call_id=call_id,
            source=lot.source,
            at=at,
        )

    def _has(self, wanted: PayloadChange) -> bool:
        """Whether the document already is as the change would make it."""
        there = find(self.document, wanted.path)
        return there is MISSING if wanted.op == "remove" else wanted.op == "set" and is_same(there, wanted.value)

    def _sources(self, records: Sequence[Json], fields: Sequence[PathParts]) -> Iterator[PayloadChange]:
        """The changes that put sources into the payload, each source once, as it was last read."""
        for field in fields:
            there = find(self.document, field)
            if not isinstance(there, list):  # a TypedDict may leave the field out
                yield PayloadChange(path=field, value=[*records])
                continue
            ids = [source["id"] for source in there]
            for record in records:
                if record["id"] in ids:
                    yield PayloadChange(path=(*field, ids.index(record["id"])), value=record)
            if new := [record for record in records if record["id"] not in ids]:
                yield PayloadChange(path=field, op="append", value=new)


def replay(kind: ValueType, records: Sequence[PayloadChanged], scope: PayloadScope | None = None) -> PayloadState:
    """Rebuild a run's payload from its records.

    Raises:
        PayloadInvalid: It does not fit the type, because another type was named when the run began.
    """
    state = PayloadState(kind, scope)
    for record in records:
        state.adopt(record)
    try:
        kind.from_json(state.document)
    except Misfit as error:
        run_id = records[0].run_id
        raise PayloadInvalid(f"the payload of run {run_id} on record does not fit {kind.name}: {error}") from error
    state.first = _filled(kind, state.first)
    return state


def _canonical(kind: ValueType, document: Any) -> Any:
    """A document as its type writes it, with defaults filled in."""
    try:
        canonical = freeze(to_plain(kind.from_json(document)))
        encode_json(canonical)  # raises for what the journal could not keep
    except (Misfit, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise PayloadInvalid(f"the payload does not fit {kind.name}: {error}") from error
    if not isinstance(canonical, dict):
        raise PayloadInvalid(f"a payload has fields, and {canonical!r:.100} of {kind.name} has none")
    return canonical


def _filled(kind: ValueType, document: Any) -> Any:
    """A document with the defaults of the fields that it lacks; as it is if it does not fit the type."""
    try:
        filled = freeze(_with_missing(document, _canonical(kind, document)))
        kind.from_json(filled)
    except (Misfit, PayloadInvalid):  # the beginning of a payload need not fit any more
        return document
    return filled


def _with_missing(there: Any, whole: Any) -> Any:
    if isinstance(there, dict) and isinstance(whole, dict):
        return {**whole, **{name: _with_missing(value, whole.get(name)) for name, value in there.items()}}
    if isinstance(there, list) and isinstance(whole, list) and len(there) == len(whole):
        return [_with_missing(*pair) for pair in zip(there, whole, strict=True)]
    return there


def _json(value: Any, path: PathParts) -> Any:
    try:
        return to_plain(value)
    except Misfit as error:
        raise PayloadInvalid(f"{error} - at `{show_path(path)}` of the payload") from error
