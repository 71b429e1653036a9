"""Thinking blocks and what they are bound to, as a server that signs them sees it.

A signature holds the model, a digest of everything before the block, and the thinking block before it, under a key
that only the server has. On a binding model a block is valid only behind the same system, tools and messages; thinking
may be taken out as a whole, from the beginning or from the end, but never so that a gap remains.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from repertory.llm.messages import Block, Json, Thinking, canonical_json, encode_block
from repertory.llm.profiles import ModelProfile
from repertory.testing.refusal import refuse

_BETA = "thinking-binding-controls-2026-08-01"
_THINKING = frozenset({"thinking", "redacted_thinking"})


class _Seal(msgspec.Struct, frozen=True, array_like=True):
    model: str
    prefix: str
    previous: str
    mac: str


class Binder:
    """Signs thinking blocks and checks them when they come back.

    Args:
        seed: Makes the signing key; two servers with one seed accept each other's blocks.
    """

    def __init__(self, seed: int) -> None:
        self._key = f"repertory-{seed}".encode()

    def sign(self, content: Sequence[Block], *, body: Json, model: str) -> tuple[Block, ...]:
        """Sign the thinking of an answer to a request. Blocks that already have a signature keep it."""
        blocks: list[Block] = []
        history = _History(body)
        for message in body["messages"]:
            history.add(message["role"], message["content"])
        for block in content:
            signed = block
            if isinstance(block, Thinking) and not block.signature:
                signature = self._signature(block.thinking, model, history.digest, history.previous)
                signed = msgspec.structs.replace(block, signature=signature)
            blocks.append(signed)
            history.add("assistant", [encode_block(signed)])
        return tuple(blocks)

    def check(self, body: Json, *, profile: ModelProfile, betas: frozenset[str]) -> tuple[Json, list[Json]]:
        """Check every thinking block of a request.

        Returns:
            The request as the model reads it, without the blocks that were dropped; and what the API reports about
            that in ``input_transformations``.

        Raises:
            Refusal: A signature is not ours, or a block is bound to another history and may not be dropped.
        """
        binding = (body.get("thinking") or {}).get("block_binding") or {}
        drop = _BETA in betas and binding.get("prefix_mismatch_behavior") == "drop_block"
        history = _History(body)
        report: list[Json] = []
        messages: list[Json] = []
        for number, message in enumerate(body["messages"]):
            content = message["content"]
            if isinstance(content, str):
                history.add(message["role"], content)
                messages.append(message)
                continue
            kept: list[Json] = []
            mismatch = False  # the rest of a run of thinking goes with its first bad block
            for index, block in enumerate(content):
                reason = None
                if block["type"] == "thinking":
                    path = f"messages.{number}.content.{index}"
                    reason, why = self._verdict(block, path, history, profile)
                    if reason is None and mismatch:
                        reason = "prefix_binding_mismatch"
                    mismatch = reason == "prefix_binding_mismatch"
                    if mismatch and not drop:
                        refuse(
                            f"{path}: Invalid `signature` in `thinking` block. The block is bound to a different "
                            "conversation. Remove the block, or set "
                            '`thinking.block_binding.prefix_mismatch_behavior` to "drop_block". That setting requires '
                            f"the `{_BETA}` value in the `anthropic-beta` header. {why}".rstrip()
                        )
                    if reason is not None:
                        report.append({"type": "thinking_dropped", "path": path, "reason": reason})
                elif block["type"] not in _THINKING:
                    mismatch = False
                if reason is None:
                    kept.append(block)
                history.add(message["role"], [block])
            messages.append({**message, "content": kept})
        return {**body, "messages": messages}, report

    def _verdict(self, block: Json, path: str, history: _History, profile: ModelProfile) -> tuple[str | None, str]:
        seal = self._open(block)
        if seal is None:
            refuse(f"{path}: Invalid `signature` in `thinking` block")
        if seal.model != profile.name:
            return "model_binding_mismatch", ""
        if profile.target != "binding":
            return None, ""
        if seal.prefix != history.digest:
            why = "A message, the `system` prompt or the `tools` before it differ from those it was created with."
            return "prefix_binding_mismatch", why
        if history.previous and seal.previous != history.previous:
            why = "The `thinking` block that preceded this one when it was created is missing from this request."
            return "prefix_binding_mismatch", why
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

    def _mac(self, *parts: str) -> str:
        return hmac.digest(self._key, canonical_json(parts), "sha256").hex()[:32]


class _History:
    """What stands before a block: a digest of all that counts, and the thinking block that came last."""

    def __init__(self, body: Json) -> None:
        system = body.get("system") or []
        blocks = [{"type": "text", "text": system}] if isinstance(system, str) else system
        head = [[_plain(block) for block in blocks], [_plain(tool) for tool in body.get("tools") or []]]
        self.digest = _digest("", head)
        self.previous = ""

    def add(self, role: str, content: Any) -> None:
        """Go on behind more content, as it was sent; whether a block was dropped does not matter here."""
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            if block["type"] in _THINKING:
                self.previous = _digest("", block.get("signature") or block.get("data"))
            else:
                # The role goes in with every block, so neighbouring messages of one role count as one.
                self.digest = _digest(self.digest, [role, _plain(block)])


def _plain(block: Json) -> Json:
    """A block without its cache markers, which are not part of what is bound."""
    plain = {name: value for name, value in block.items() if name != "cache_control"}
    if isinstance(plain.get("content"), list):
        plain["content"] = [_plain(part) for part in plain["content"]]
    return plain


def _digest(before: str, value: Any) -> str:
    return blake2b(before.encode() + b"\0" + canonical_json(value), digest_size=12).hexdigest()
