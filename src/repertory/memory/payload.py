"""The payload of a run: one value of the user's own type beside the conversation, kept version by version.

Inside it is a JSON document, which the type reads and writes. Whoever changes it works on a draft; what the draft
differs in is committed in one transaction with the cause, a tool's outcome for instance. Of two drafts made side by
side that change the same place, the first one counts, and the other's change is kept as a conflict.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from hashlib import blake2b
from itertools import takewhile
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin

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
from repertory.record.records import (
    ContentStored,
    Effect,
    PathParts,
    PayloadAuthor,
    PayloadChange,
    PayloadChanged,
    PayloadConflict,
)
from repertory.record.rows import encode_json


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceRecord:
    """Where something that the run has read came from. A field ``sources: list[SourceRecord]`` is kept by the runtime.

    Attributes:
        id: Of the source: the same for one address, however often it is read.
        type: ``web``, ``database``, ``file``, ``search``, ``tool``, …
        url: Its address; "" where it has none.
        content_id: The citation id under which the content store has what was read last.
        format: ``text``, ``markdown``, ``json``, ``code``, …
        length: Characters of the whole content.
        accessed_at: Seconds since 1970.
    """

    id: str
    type: str = ""
    url: str = ""
    content_id: str = ""
    format: str = "text"
    length: int = 0
    accessed_at: float = 0.0

    @classmethod
    def of(cls, stored: ContentStored) -> SourceRecord:
        """The source of a stored content."""
        digest = blake2b((stored.url or stored.content_id).encode("utf-8", "replace"), digest_size=6).hexdigest()
        return cls(
            id=f"s-{digest}",
            type=stored.source_type,
            url=stored.url,
            content_id=stored.content_id,
            format=stored.format,
            length=stored.length,
            accessed_at=stored.at,
        )


class PayloadScope(msgspec.Struct, frozen=True, kw_only=True):
    """Which places of its lead's payload a sub-agent gets; everything else is hidden from it.

    A path is the names of fields with dots between them. It leads through fields and mappings, not into a list.

    Attributes:
        read: What goes in, and cannot be changed there.
        write: What goes in, and comes back changed when the sub-agent is done.

    Raises:
        ConfigurationError: They are no paths.
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
        """All that goes in."""
        return tuple(parts_of(path) for path in (*self.read, *self.write))

    def of(self, document: Any) -> Json:
        """What a sub-agent gets of a document: what is at the paths, as far as there is something."""
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
        """Raise ``PayloadInvalid`` for a change of what may only be read."""
        writable = any(parts_of(own) == path[: len(parts_of(own))] for own in self.write)
        if not writable and any(overlaps(parts_of(own), path) for own in self.read):
            raise PayloadInvalid(
                f"{show_path(path)} of the payload is the lead's, and may only be read here; payload_scope.write names "
                f"what may be changed: {', '.join(self.write) or 'nothing'}"
            )


_NO_SCOPE: Final = PayloadScope()


class Staged(msgspec.Struct, frozen=True, kw_only=True):
    """Changes that are to be committed together.

    Attributes:
        base: The version that they were made of.
        source: The tool, or the sub-agent's run; a sub-agent's changes are committed once.
    """

    changes: Sequence[PayloadChange]
    base: int
    author: PayloadAuthor
    source: str = ""


class Payload:
    """The payload as one tool call sees and changes it: as it stood when the call began, with the call's own changes.

    Nobody else sees a change before it is committed, together with the call's outcome; a call that fails changes
    nothing. A path is ``"author.name"``, or its parts, ``("links", "https://…")``, where a name has a dot in it; ""
    is the whole. To test a tool, give it ``ToolContext(payload=Payload(value))`` and look at ``value`` afterwards.
    """

    def __init__(self, value: Any = None, kind: Any = None) -> None:
        """Make one that belongs to no run.

        Args:
            value: What it holds; None makes one that nobody can read or change, as in a run without a payload.
            kind: Its type; None means that of the value.
        """
        self._type = None if value is None else ValueType(type(value) if kind is None else kind, "Payload: kind")
        self._document: Any = None if self._type is None else _canonical(self._type, _json(value, ()))
        self._base, self._version = self._document, 0
        self._scope = _NO_SCOPE
        self._brought: list[Staged] = []
        self._is_read_only = False

    @classmethod
    def draft(cls, state: PayloadState | None, *, changed_by: Effect = "transactional") -> Payload:
        """One of a run's payload as it stands, for a tool of some effect; a pure one may only read it."""
        made = cls()
        made._is_read_only = changed_by == "pure"
        if state is not None:
            made._type, made._version, made._scope = state.type, state.version, state.scope
            made._document = made._base = state.document
        return made

    @property
    def value(self) -> Any:
        """A copy of the whole, of the payload's type; changing it changes nothing, ``replace`` takes it back in."""
        return self._need().from_json(self._document)

    def get(self, path: Path = "") -> Any:
        """A copy of what stands at a path, as JSON.

        Raises:
            PayloadInvalid: Nothing does.
        """
        self._need()
        return thaw(find(self._document, resolve(self._document, path)))

    def set(self, path: Path, value: Any) -> None:
        """Put a value at a path.

        Raises:
            PayloadInvalid: It does not fit there, or there is no such place, or it may only be read.
        """
        self._need()
        parts = resolve(self._document, path, last=False)
        self._adopt(PayloadChange(path=parts, value=_json(value, parts)))

    def append(self, path: Path, *values: Any) -> None:
        """Add values to the end of a list. What others append meanwhile stays, too.

        Raises:
            PayloadInvalid: As ``set``; or there is no list.
        """
        self._need()
        parts = resolve(self._document, path)
        there = find(self._document, parts)
        if not isinstance(there, list):
            raise PayloadInvalid(f"the payload has {there!r:.60} at {show_path(parts)}, and only a list grows")
        self._adopt(PayloadChange(path=parts, op="append", value=_json([*values], parts)))

    def remove(self, path: Path) -> None:
        """Take a name out of a mapping.

        Raises:
            PayloadInvalid: As ``set``; or it is an item of a list, or a field of the type.
        """
        self._need()
        parts = resolve(self._document, path)
        if not parts or isinstance(parts[-1], int):
            raise PayloadInvalid(f"{show_path(parts)} of the payload cannot be removed; set the list without it")
        self._adopt(PayloadChange(path=parts, op="remove"))

    def replace(self, value: Any) -> None:
        """Put another value in place of the whole; of it only what differs counts as changed.

        Raises:
            PayloadInvalid: It does not fit the type, or what differs may only be read.
        """
        self._need()
        self._adopt(PayloadChange(path=(), value=_json(value, ())))

    def bring_back(self, changes: Sequence[PayloadChange], *, base: int, run_id: str) -> None:
        """Stage what a sub-agent changed, of the version that it was given; ``value`` does not show it yet."""
        self._brought.append(Staged(changes=changes, base=base, author="sub-agent", source=run_id))

    def staged(self, author: PayloadAuthor, source: str = "") -> list[Staged]:
        """All that is to be committed."""
        own = [] if self._document is self._base else [*changes_between(self._base, self._document)]
        mine = [Staged(changes=own, base=self._version, author=author, source=source)] if own else []
        return [*mine, *self._brought]

    def discard(self) -> None:
        """Take back everything that was changed."""
        self._document, self._brought = self._base, []

    def _need(self) -> ValueType:
        if self._type is None:
            raise ConfigurationError("this run has no payload: its agent named no type for one, Agent(payload=…)")
        return self._type

    def _adopt(self, change: PayloadChange) -> None:
        if self._is_read_only:
            raise PayloadInvalid('a pure tool only reads, the payload too; declare @tool(effect="transactional")')
        kind, path = self._need(), change.path
        document = _canonical(kind, changed(self._document, change))
        is_there = find(document, path) is not MISSING
        if change.op == "set" and not is_there:
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
        type: Of its value.
        scope: What of it is the lead's, for a sub-agent.
        version: The number of the last commit; 0 before the first.
        document: As it stands.
        first: As it stood at the beginning; instructions show this one, so that they never change.
        base: The version of the lead's payload that a sub-agent's was made of.
    """

    def __init__(self, kind: ValueType, scope: PayloadScope | None = None) -> None:
        self.type = kind
        self.scope = _NO_SCOPE if scope is None else scope
        self.version = self.base = 0
        self.document: Any = None
        self.first: Any = None
        self._changes: list[tuple[int, PayloadChange]] = []  # all that were made, with their versions
        self._brought: set[str] = set()  # the sub-agents whose changes are in
        hints = kind.hints().items()
        self._source_fields = [(name,) for name, hint in hints if _lists_sources(hint)]

    @property
    def value(self) -> Any:
        """A copy of the value."""
        return self.type.from_json(self.document)

    def begin(self, value: Any, *, run_id: str, at: float, base: int = 0) -> PayloadChanged:
        """The record of the first version, which ``adopt`` takes.

        Raises:
            PayloadInvalid: The value does not fit the type.
        """
        change = PayloadChange(path=(), value=_canonical(self.type, _json(value, ())))
        return PayloadChanged(run_id=run_id, version=1, author="spawn", base=base, changes=(change,), at=at)

    def adopt(self, record: PayloadChanged) -> None:
        """Make what a record says part of the payload; the record is on its way to the disk, or comes from there."""
        for change in record.changes:
            self.document = changed(self.document, change)
            self._changes.append((record.version, change))
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
        redact: Callable[[PayloadChanged], PayloadChanged] = lambda record: record,
    ) -> list[PayloadChanged]:
        """The records of what is to be committed, which ``adopt`` takes once they are on their way to the disk.

        Args:
            staged: What was changed, each lot a record of its own.
            run_id: The run.
            at: Seconds since 1970.
            call_id: The tool call.
            stored: A content that was stored with the call, whose source goes into the payload.
            redact: Takes out of a record what must not be kept.
        """
        trial, out = self._copy(), list[PayloadChanged]()
        for each in staged:
            if each.source in trial._brought:
                continue
            out.append(redact(trial._record(each, run_id=run_id, at=at, call_id=call_id)))
            trial.adopt(out[-1])
        records = [] if stored is None else [msgspec.to_builtins(SourceRecord.of(stored))]
        if stored is not None and (found := [*trial._sources(records, trial._source_fields)]):
            lot = Staged(changes=found, base=trial.version, author="tool", source=stored.source)
            out.append(trial._record(lot, run_id=run_id, at=at, call_id=call_id))
        return out

    def brings_back(self) -> list[PayloadChange]:
        """What a sub-agent has changed of its lead's payload since it was given it."""
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
        """The record of one lot, what cannot be made of it as conflicts."""
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
            self.type.from_json(reduce(changed, made, self.document))
        except Misfit as error:  # each fits, but not together with what others have changed meanwhile
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
        """Whether what is wanted is so already."""
        there = find(self.document, wanted.path)
        return there is MISSING if wanted.op == "remove" else wanted.op == "set" and is_same(there, wanted.value)

    def _sources(self, records: Sequence[Json], fields: Sequence[PathParts]) -> Iterator[PayloadChange]:
        """The changes by which sources are in the payload, each once, as they were read last."""
        for field in fields:
            there = find(self.document, field)
            if not isinstance(there, list):  # a TypedDict may do without
                yield PayloadChange(path=field, value=[*records])
                continue
            ids = [source["id"] for source in there]
            for record in records:
                if record["id"] in ids:
                    yield PayloadChange(path=(*field, ids.index(record["id"])), value=record)
            if new := [record for record in records if record["id"] not in ids]:
                yield PayloadChange(path=field, op="append", value=new)


def _lists_sources(hint: Any) -> bool:
    """Whether a field is a list of sources, or may be one."""
    if get_origin(hint) in (Union, UnionType):
        return any(map(_lists_sources, get_args(hint)))
    return get_origin(hint) in (list, tuple, Sequence) and SourceRecord in get_args(hint)


def without_sources(document: Json, content_ids: set[str] | None) -> Iterator[PayloadChange]:
    """The changes that take the sources of some contents out of a payload; None for all of them.

    Sources are known by their fields: the type of the payload of a run that ended long ago is known to nobody.
    """
    fields = {field.name for field in dataclasses.fields(SourceRecord)}
    for name, value in document.items():
        if not (isinstance(value, list) and all(isinstance(item, dict) and item.keys() == fields for item in value)):
            continue
        sources: list[Json] = value
        left = [] if content_ids is None else [each for each in sources if each["content_id"] not in content_ids]
        if len(left) < len(sources):
            yield PayloadChange(path=(name,), value=left)


def replay(kind: ValueType, records: Sequence[PayloadChanged], scope: PayloadScope | None = None) -> PayloadState:
    """The payload that the records of a run left.

    Raises:
        PayloadInvalid: It does not fit the type; another one was named when the run began.
    """
    state = PayloadState(kind, scope)
    for record in records:
        state.adopt(record)
    try:
        kind.from_json(state.document)
    except Misfit as error:
        run_id = records[0].run_id
        raise PayloadInvalid(f"the payload of run {run_id} on record does not fit {kind.name}: {error}") from error
    return state


def _canonical(kind: ValueType, document: Any) -> Any:
    """A document as its type writes it, with the defaults of what it does not say."""
    try:
        canonical = freeze(to_plain(kind.from_json(document)))
        encode_json(canonical)  # which refuses what the journal could not keep
    except (Misfit, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise PayloadInvalid(f"the payload does not fit {kind.name}: {error}") from error
    if not isinstance(canonical, dict):
        raise PayloadInvalid(f"a payload has fields, and {canonical!r:.100} of {kind.name} has none")
    return canonical


def _json(value: Any, path: PathParts) -> Any:
    try:
        return to_plain(value)
    except Misfit as error:
        raise PayloadInvalid(f"{error} - at `{show_path(path)}` of the payload") from error
