"""Signing and checking of thinking blocks, which are bound to what precedes them.

A signature covers the model, a digest of everything before the block, and the previous thinking block, with a key that
only the server has. On a binding model a block is valid only after the same system prompt, tools and messages. Whole
thinking blocks may be removed from the beginning or from the end, but without leaving a gap.

A compaction block is signed too. It carries the digests of the history that it stands for, so that the thinking of kept
turns stays valid after it: if a binding model wrote it, the system prompt and the tools are the same, and the first
kept message has another role than the last summarized one. Later thinking is bound to the compaction block.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from repertory._json_text import canonical_json
from repertory.llm.messages import Block, Json, RawBlock, Thinking, encode_block
from repertory.llm.profiles import ModelProfile
from repertory.testing.fallback import left_out
from repertory.testing.refusal import refuse
from repertory.testing.wire import blocks_of, unmarked

BINDING_BETA = "thinking-binding-controls-2026-08-01"
_THINKING = frozenset({"thinking", "redacted_thinking"})
_MISMATCH = "prefix_binding_mismatch"


class _Seal(msgspec.Struct, frozen=True, array_like=True):
    model: str
    prefix: str
    previous: str
    mac: str


class _Summary(msgspec.Struct, frozen=True, array_like=True):
    text: str  # a digest of it
    head: str
    role: str  # of the last summarized message
    histories: tuple[str, ...]  # digests that thinking after the block may be bound to
    mac: str


class Binder:
    """Signs thinking and compaction blocks and checks them when they come back.

    Args:
        seed: Determines the signing key; servers with the same seed accept each other's blocks.
    """

    def __init__(self, seed: int) -> None:
        self._key = f"repertory-{seed}".encode()

    def sign(
        self, content: Sequence[Block], *, body: Json, model: str, dropped: Iterable[Json] = ()
    ) -> tuple[Block, ...]:
        """Sign the thinking of an answer to a request. Blocks that already have a signature keep it.

        Args:
            body: The request, as it was sent.
            model: The name of the model that answers.
            dropped: What ``check`` reported about the request.
        """
        blocks: list[Block] = []
        history = self._history(body, dropped)
        lost = left_out([encode_block(block) for block in content])
        for place, block in enumerate(content):
            signed = block
            if isinstance(block, Thinking) and not block.signature:
                signature = self._signature(block.thinking, model, history.digests[0], history.previous)
                signed = msgspec.structs.replace(block, signature=signature)
            blocks.append(signed)
            if place not in lost:
                history.add("assistant", encode_block(signed))
        return tuple(blocks)

    def sign_summary(self, text: str, *, body: Json, profile: ModelProfile, dropped: Iterable[Json] = ()) -> RawBlock:
        """Make the compaction block that stands for a request's messages."""
        history = self._history(body, dropped)
        bound = history.digests if profile.target == "binding" else ()
        parts = (_digest("", text), history.head, body["messages"][-1]["role"], bound)
        signature = base64.b64encode(msgspec.json.encode(_Summary(*parts, self._mac(*parts)))).decode()
        return RawBlock({"type": "compaction", "content": text, "signature": signature})

    def check(self, body: Json, *, profile: ModelProfile, betas: frozenset[str]) -> tuple[Json, list[Json]]:
        """Check every signed block of a request.

        Returns:
            The request as the model reads it, without dropped blocks; and the API's report of those in
            ``input_transformations``.

        Raises:
            Refusal: A signature is not ours, or a block is bound to another history and may not be dropped.
        """
        binding = (body.get("thinking") or {}).get("block_binding") or {}
        drop = BINDING_BETA in betas and binding.get("prefix_mismatch_behavior") == "drop_block"
        history = _History(body)
        report: list[Json] = []
        messages: list[Json] = []
        for number, message in enumerate(body["messages"]):
            content = message["content"]
            kept: list[Json] = []
            mismatch = False  # the rest of a run of thinking goes with its first bad block
            for index, block in enumerate(blocks_of(content)):
                reason = None
                path = f"messages.{number}.content.{index}"
                history.meet(message["role"], block)
                if block["type"] == "thinking":
                    reason, why = self._verdict(block, path, history, profile)
                    if reason is None and mismatch:
                        reason = _MISMATCH
                    mismatch = reason == _MISMATCH
                    if mismatch and not drop:
                        needs = f" That setting requires the `{BINDING_BETA}` value in the `anthropic-beta` header."
                        refuse(
                            f"{path}: Invalid `signature` in `thinking` block. The block is bound to a different "
                            "conversation. Remove the block, or set "
                            '`thinking.block_binding.prefix_mismatch_behavior` to "drop_block".'
                            f"{'' if BINDING_BETA in betas else needs} {why}".rstrip()
                        )
                    if reason is not None:
                        report.append({"type": "thinking_dropped", "path": path, "reason": reason})
                elif block["type"] not in _THINKING:
                    mismatch = False
                if reason is None:
                    kept.append(block)
                if reason != _MISMATCH:
                    self._add(history, message["role"], block, path)
            messages.append(message if isinstance(content, str) else {**message, "content": kept})
        return {**body, "messages": messages}, report

    def _history(self, body: Json, dropped: Iterable[Json]) -> _History:
        """What an answer to a request is bound to: everything that was sent, except thinking that failed the check."""
        history = _History(body)
        failed = {entry["path"] for entry in dropped if entry["reason"] == _MISMATCH}
        for number, message in enumerate(body["messages"]):
            for index, block in enumerate(blocks_of(message["content"])):
                path = f"messages.{number}.content.{index}"
                history.meet(message["role"], block)
                if path not in failed:
                    self._add(history, message["role"], block, path)
        return history

    def _add(self, history: _History, role: str, block: Json, path: str) -> None:
        if block["type"] == "compaction":
            if block.get("content") is not None:
                history.swap(block, self._open_summary(block, path))
        else:
            history.add(role, block)

    def _open_summary(self, block: Json, path: str) -> _Summary:
        try:
            seal = msgspec.json.decode(base64.b64decode(block.get("signature") or "", validate=True), type=_Summary)
        except ValueError:
            seal = None
        if seal is None or not hmac.compare_digest(
            seal.mac, self._mac(seal.text, seal.head, seal.role, seal.histories)
        ):
            refuse(
                f"{path}: the `signature` of the `compaction` block does not verify",
                code="compaction_signature_invalid",
            )
        if _digest("", block["content"]) != seal.text:
            refuse(
                f"{path}: the `content` of the `compaction` block differs from the text its `signature` recorded",
                code="compaction_content_mismatch",
            )
        return seal

    def _verdict(self, block: Json, path: str, history: _History, profile: ModelProfile) -> tuple[str | None, str]:
        seal = self._open(block)
        if seal is None:
            refuse(f"{path}: Invalid `signature` in `thinking` block")
        if seal.model != profile.name:
            return "model_binding_mismatch", ""
        if profile.target != "binding":
            return None, ""
        if seal.prefix not in history.digests:
            why = "A message, the `system` prompt or the `tools` before it differ from those it was created with."
            return _MISMATCH, why
        if history.previous and seal.previous != history.previous:
            why = "The `thinking` block that preceded this one when it was created is missing from this request."
            return _MISMATCH, why
        return None, ""

    def _signature(self, thinking: str, model: str, prefix: str, previous: str) -> str:
        seal = _Seal(model, prefix, previous, self._mac(thinking, model, prefix, previous))
        return base64.b64encode(msgspec.json.encode(seal)).decode()

    def _open(self, block: Json) -> _Seal | None:
        try:
            seal = msgspec.json.decode(base64.b64decode(block["signature"], validate=True), type=_Seal)
        except ValueError:  # not base64, or not ours; msgspec's errors are ValueErrors too
            return None
        mac = self._mac(block["thinking"], seal.model, seal.prefix, seal.previous)
        return seal if hmac.compare_digest(mac, seal.mac) else None

    def _mac(self, *parts: str | tuple[str, ...]) -> str:
        return hmac.digest(self._key, canonical_json(parts), "sha256").hex()[:32]


class _History:
    """What precedes a block.

    Attributes:
        head: A digest of the system prompt and the tools.
        digests: The digests that thinking at this place may be bound to: one of everything before it; after a
            compaction block also those of the messages that it stands for, with everything that follows them.
        previous: A digest of the last thinking block; "" if there is none.
    """

    def __init__(self, body: Json) -> None:
        system = [unmarked(block) for block in blocks_of(body.get("system") or [])]
        self.head = _digest("", [system, [unmarked(tool) for tool in body.get("tools") or []]])
        self.digests: tuple[str, ...] = (self.head,)
        self.previous = ""
        self._summarized_role = ""  # until the first kept message is there

    def swap(self, block: Json, summary: _Summary) -> None:
        """Continue after a compaction block."""
        old = summary.histories if summary.head == self.head else ()
        self.digests = (_digest(self.head, unmarked(block)), *old)
        self.previous = ""
        self._summarized_role = summary.role

    def meet(self, role: str, block: Json) -> None:
        """Note the next block before it is checked: the API would merge a first kept message of the same role."""
        if self._summarized_role and block["type"] != "compaction":
            if self._summarized_role == role:
                self.digests = self.digests[:1]
            self._summarized_role = ""

    def add(self, role: str, block: Json) -> None:
        """Continue after another block, as it was sent."""
        if block["type"] in _THINKING:
            self.previous = _digest("", block.get("signature") or block.get("data"))
        else:
            # The role goes in with every block, so neighbouring messages of one role count as one.
            self.digests = tuple(_digest(digest, [role, unmarked(block)]) for digest in self.digests)


def _digest(before: str, value: Any) -> str:
    return blake2b(before.encode() + b"\0" + canonical_json(value), digest_size=12).hexdigest()
