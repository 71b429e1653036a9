"""Requests on record: written without repeating what the record has already, and put together again to be read.

A recorded request leaves out what the call before it sent (see ``ModelCalled``), and of the rest what the ledger holds:
in the ``content`` of a message

- ``{"type": "entry", "position": 7, "block": 0}`` stands for the first block of the entry at position 7 of the run,
- ``{"type": "entry", "literal": {…}}`` stands for the block in it, which is itself of a type named ``entry``.

The Messages API has no such type today. If it gets one, the second form keeps its blocks apart from references.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

from repertory.errors import JournalUnreadable
from repertory.llm.messages import Block, Json, canonical_json, encode_block
from repertory.record.entries import Entry
from repertory.record.records import ModelCalled

_ENTRY: Final = "entry"


def request_digest(request: Json) -> str:
    """BLAKE2b-128 of the request's canonical JSON, as ``ModelCalled.digest`` holds it."""
    return blake2b(canonical_json(request), digest_size=16).hexdigest()


# --- writing ----------------------------------------------------------------------------------------------


def entry_reference(position: int, block: int) -> Json:
    """What stands in a recorded request for block ``block`` of the run's entry at ``position``, both from 0."""
    return {"type": _ENTRY, "position": position, "block": block}


class EntryBlocks:
    """Knows the blocks of a ledger, so that a recorded request names them instead of repeating them.

    A block is known by its identity: one that is equal and not the same is written whole, which is never wrong.
    """

    def __init__(self) -> None:
        self._places: dict[int, tuple[Block, Json]] = {}  # holds the block, so that its id stays its own

    def add(self, entries: Iterable[Entry]) -> None:
        """Know the blocks of further entries."""
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


# --- reading ----------------------------------------------------------------------------------------------


class RecordedRequest:
    """One request, put together from its parts; what it names of the ledger is still to be filled in.

    Attributes:
        positions: The entries that it names.
    """

    def __init__(self, calls: Mapping[int, ModelCalled], call: int) -> None:
        """Put the request of one call together.

        Args:
            calls: The run's calls by number; those between ``call`` and its first base suffice.
            call: Which request.

        Raises:
            JournalUnreadable: A part is missing, or the parts do not fit.
        """
        called = calls.get(call)
        if called is None:
            raise JournalUnreadable(f"no model call {call} is recorded; read_model_calls lists those that are")
        self._called = called
        self._name = f"model call {call} of {called.run_id}"
        self._messages: list[Json] = []
        chain = [called]
        while (base := chain[-1].base_call) is not None and (chain[-1].shared_messages or chain[-1].shared_blocks):
            if base not in calls or base >= chain[-1].call:
                raise JournalUnreadable(f"{self._name} builds on call {base}, which is not recorded before it")
            chain.append(calls[base])
        try:
            for record in reversed(chain):
                self._build_on(record)
            self.positions: set[int] = {
                item["position"] for message in self._messages for item in _items(message) if _is_reference(item)
            }
        except (LookupError, TypeError, AttributeError) as error:
            raise JournalUnreadable(f"the parts of {self._name} do not fit: {error}") from error

    def _build_on(self, record: ModelCalled) -> None:
        """Make the messages of a request out of those of its base."""
        own: Sequence[Json] = record.body.get("messages", [])
        shared = record.shared_messages if record.base_call is not None else 0
        if record.base_call is not None and record.shared_blocks:
            begun = [*self._messages[shared]["content"][: record.shared_blocks], *own[0]["content"]]
            own = [{**own[0], "content": begun}, *own[1:]]
        del self._messages[shared:]
        self._messages.extend(own)

    def whole(self, entries: Iterable[Entry] = ()) -> Json:
        """The request as it was sent.

        Args:
            entries: Those of the run at ``positions``.

        Raises:
            JournalUnreadable: An entry or a block that it names is missing, or what comes out does not have the
                recorded digest.
        """
        known = {entry.position: entry.content for entry in entries}
        body = dict(self._called.body)
        if "messages" in body:
            body["messages"] = [self._fill_in(message, known) for message in self._messages]
        digest = request_digest(body)
        if digest != self._called.digest:
            raise JournalUnreadable(f"{self._name} gives digest {digest} where {self._called.digest} was recorded")
        return body

    def _fill_in(self, message: Json, entries: Mapping[int, Sequence[Block]]) -> Json:
        if isinstance(message["content"], str):  # which the API takes for one block of text
            return message
        content: list[Any] = []
        for item in message["content"]:
            if _is_reference(item):
                try:
                    content.append(encode_block(entries[item["position"]][item["block"]]))
                except (LookupError, TypeError):
                    raise JournalUnreadable(
                        f"{self._name} names block {item['block']} of entry {item['position']}, which is not recorded"
                    ) from None
            else:
                content.append(item["literal"] if _is_literal(item) else item)
        return {**message, "content": content}


def _items(message: Json) -> Sequence[Any]:
    content = message["content"]
    return () if isinstance(content, str) else content


def _is_reference(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == _ENTRY and item.keys() == {"type", "position", "block"}


def _is_literal(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == _ENTRY and item.keys() == {"type", "literal"}
