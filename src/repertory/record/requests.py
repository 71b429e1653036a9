"""Recorded requests: written without repeating what is already on record, and put together again when read.

A recorded request leaves out what the call before it sent (see ``ModelCalled``), and blocks that the ledger holds. In
the ``content`` of a message

- ``{"type": "entry", "position": 7, "block": 0}`` stands for the first block of the entry at position 7 of the run,
- ``{"type": "entry", "literal": {…}}`` stands for the block in it, whose own type is named ``entry``.

The Messages API has no such type today. If it gets one, the second form distinguishes its blocks from references.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, Final

import msgspec

from repertory._json_text import canonical_json
from repertory.errors import JournalUnreadable
from repertory.llm.messages import Block, Json, Message, encode_block, encode_message, equal_items
from repertory.llm.model import Breakpoint, ModelRequest, encode_request, put_markers
from repertory.record.entries import Entry
from repertory.record.records import ModelCalled

_ENTRY: Final = "entry"
_MARKERS: Final = "prompt_cache"  # sorts after "messages", so what changes in every call comes after the hashed prefix


def request_digest(request: Json) -> str:
    """BLAKE2b-128 of the request's canonical JSON, as ``ModelCalled.digest`` holds it."""
    return blake2b(canonical_json(request), digest_size=16).hexdigest()


# --- writing ----------------------------------------------------------------------------------------------


def entry_reference(position: int, block: int) -> Json:
    """The reference to block ``block`` of the run's entry at ``position``, both from 0, in a recorded request."""
    return {"type": _ENTRY, "position": position, "block": block}


class EntryBlocks:
    """Knows the blocks of a ledger, so that a recorded request refers to them instead of repeating them.

    A block is recognised by identity. An equal but different object is written whole, which is always correct.
    """

    def __init__(self) -> None:
        self._places: dict[int, tuple[Block, Json]] = {}  # keeps the block alive, so that its id is not reused

    def add(self, entries: Iterable[Entry]) -> None:
        """Add the blocks of further entries."""
        for entry in entries:
            for index, block in enumerate(entry.content):
                self._places[id(block)] = block, entry_reference(entry.position, index)

    def encode(self, content: Iterable[Block]) -> list[Json]:
        """Blocks of a message as ``ModelCalled.body`` holds them."""
        found: list[Json] = []
        for block in content:
            known = self._places.get(id(block))
            encoded = encode_block(block) if known is None else known[1]
            foreign = known is None and encoded.get("type") == _ENTRY
            found.append({"type": _ENTRY, "literal": encoded} if foreign else encoded)
        return found


class RequestRecorder:
    """Records successive requests, each without what the last one said and without what the ledger holds.

    It keeps the last request and a hash of everything before each of its messages, so what an edit left alone is
    neither recorded nor hashed again.
    """

    def __init__(self) -> None:
        """Start with no earlier request, so that the first one repeats nothing."""
        self._frame: ModelRequest | None = None
        self._outer: Json = {}  # everything around the messages
        self._after: Json = {}  # the part of it that follows the messages
        self._hashes = [blake2b(digest_size=16)]
        self._base: int | None = None
        self._messages: tuple[Message, ...] = ()
        self._blocks = EntryBlocks()
        self._known = 0  # entries below have their blocks in ``_blocks``

    def record(self, request: ModelRequest, entries: Sequence[Entry], *, call: int, **fields: Any) -> ModelCalled:
        """Make a record of a request that is about to be sent.

        The record's body has no cache markers in it; their places are listed under ``prompt_cache``, and ``sent_body``
        puts them back. ``entries`` is the ledger, which only grows from call to call, and ``fields`` are those of the
        record that do not follow from the request.
        """
        if self._known < len(entries):
            self._blocks.add(entries[self._known :])
            self._known = len(entries)
        frame = msgspec.structs.replace(request, messages=(), breakpoints=())
        if frame != self._frame:
            self._begin(frame)
        messages, points = request.messages, [msgspec.structs.asdict(point) for point in request.breakpoints]
        shared, blocks = equal_items(self._messages, messages), 0
        if shared < min(len(self._messages), len(messages)) and self._messages[shared].role == messages[shared].role:
            blocks = equal_items(self._messages[shared].content, messages[shared].content)
        del self._hashes[shared + 1 :]
        tail: list[Json] = []
        for message in messages[shared:]:
            found = self._hashes[-1].copy()
            found.update((b"," if len(self._hashes) > 1 else b"") + canonical_json(encode_message(message)))
            self._hashes.append(found)
            content = message.content if tail else message.content[blocks:]
            tail.append({"role": message.role, "content": self._blocks.encode(content)})
        whole = self._hashes[-1].copy()
        whole.update(b"]," + canonical_json({**self._after, _MARKERS: points})[1:])
        base, self._base, self._messages = self._base, call, messages
        return ModelCalled(
            call=call,
            model=request.model,
            digest=whole.hexdigest(),
            body={**self._outer, "messages": tail, _MARKERS: points},
            base_call=base if shared or blocks else None,
            shared_messages=shared,
            shared_blocks=blocks,
            **fields,
        )

    def _begin(self, frame: ModelRequest) -> None:
        self._frame, self._base, self._messages = frame, None, ()
        outer: Json = {**encode_request(frame), **({"betas": list(frame.betas)} if frame.betas else {})}
        self._outer = {name: value for name, value in outer.items() if name not in ("messages", _MARKERS)}
        before: Json = {name: value for name, value in self._outer.items() if name < "messages"}
        self._after = {name: value for name, value in self._outer.items() if name > "messages"}
        opening = canonical_json(before)[:-1] + (b"," if before else b"") + b'"messages":['
        self._hashes = [blake2b(opening, digest_size=16)]


# --- reading ----------------------------------------------------------------------------------------------


class RecordedRequest:
    """One request, put together from its parts; its references to the ledger are not filled in yet.

    Attributes:
        positions: The positions of the entries that it refers to.
    """

    def __init__(self, chain: Sequence[ModelCalled]) -> None:
        """Put together the request of one call.

        Args:
            chain: The call, and then those that it builds on, newest first. One of which the request has nothing may be
                left out.

        Raises:
            JournalUnreadable: A part is missing, or the parts do not fit together.
        """
        self._called, first = chain[0], chain[-1]
        self._name = f"model call {self._called.call} of {self._called.run_id}"
        self._messages: list[Json] = []
        if first.base_call is not None and (first.shared_messages or first.shared_blocks):
            raise JournalUnreadable(f"{self._name} builds on call {first.base_call}, which is not recorded before it")
        try:
            for record in reversed(chain):
                own: list[Json] = [*record.body["messages"]]
                if record.shared_blocks:
                    begun = self._messages[record.shared_messages]["content"][: record.shared_blocks]
                    own[0] = {**own[0], "content": [*begun, *own[0]["content"]]}
                self._messages[record.shared_messages :] = own
            items = (item for message in self._messages for item in message["content"])
            self.positions: set[int] = {item["position"] for item in items if _stands_for(item, "position", "block")}
        except (LookupError, TypeError, AttributeError) as error:
            raise JournalUnreadable(f"the parts of {self._name} do not fit: {error}") from error

    def whole(self, entries: Iterable[Entry] = ()) -> Json:
        """The request as it was sent; ``entries`` are the run's at ``positions``.

        Raises:
            JournalUnreadable: An entry or a block that it refers to is missing, or the result does not have the
                recorded digest.
        """
        known = {entry.position: entry.content for entry in entries}

        def filled_in(item: Any) -> Any:
            if not _stands_for(item, "position", "block"):
                return item["literal"] if _stands_for(item, "literal") else item
            try:
                return encode_block(known[item["position"]][item["block"]])
            except (LookupError, TypeError):
                raise JournalUnreadable(
                    f"{self._name} names block {item['block']} of entry {item['position']}, which is not recorded"
                ) from None

        messages = [{**message, "content": [*map(filled_in, message["content"])]} for message in self._messages]
        body = {**self._called.body, "messages": messages}
        if (digest := request_digest(body)) != self._called.digest:
            raise JournalUnreadable(f"{self._name} gives digest {digest} where {self._called.digest} was recorded")
        return body


def _stands_for(item: Any, *names: str) -> bool:
    """Whether a block of a recorded request is of the form that has these names, as described above."""
    return isinstance(item, dict) and item.get("type") == _ENTRY and item.keys() == {"type", *names}


def sent_body(recorded: Json) -> Json:
    """The body of ``POST /v1/messages`` that ``Journal.read_request`` returns, with its cache markers put back."""
    body = {name: value for name, value in recorded.items() if name not in (_MARKERS, "betas")}
    body.update((name, list(body[name])) for name in ("system", "tools") if name in body)
    body["messages"] = [{**message, "content": list(message["content"])} for message in body["messages"]]
    put_markers(body, (Breakpoint(**point) for point in recorded.get(_MARKERS, ())))
    return body
