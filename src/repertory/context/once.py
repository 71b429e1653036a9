"""Shown once: how a run that has saved nothing yet saves something without editing what the cache holds.

A bulky result is shown in full without being written to the cache, and by its beginning and its names from the next
request on. Long arguments of a call are cut before they are ever sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from repertory.context.account import MARGIN, Account
from repertory.context.ageing import Ageing
from repertory.context.cutting import cut
from repertory.context.decisions import CutCall, Edit, HoldBack, StubResult
from repertory.context.live import Live
from repertory.context.stubs import once_stub
from repertory.context.tokens import text_tokens
from repertory.context.vocabulary import LEAST_WORTH, names_of
from repertory.llm.estimate import estimate_tokens
from repertory.llm.messages import Block, ToolUse
from repertory.record.entries import Entry

_WORTH = 3 * LEAST_WORTH  # of a name, or nothing is saved
_BULKY = 800  # tokens of a result that may be shown only once
_LONG = 1_000  # characters of an argument that may be cut


class Once:
    """What one run shows once, for as long as its savings could not pay for a fold."""

    def __init__(self, ageing: Ageing, account: Account, *, minimum_tokens: int) -> None:
        """Follow a run; a prompt of fewer tokens than the minimum is not written to the cache anyway."""
        self._ageing = ageing
        self._account = account
        self._minimum = minimum_tokens

    def _poor(self, live: Live) -> bool:
        """Whether the bank could not pay for a fold of about what there is."""
        rates, tail = self._account.rates, live.tokens - live.covered
        return self._account.bank < MARGIN * (rates.write - rates.read) * (0.25 * tail + 1_500)

    def stubs(self, live: Live, snapshot: Sequence[Entry]) -> list[StubResult]:
        """The stubs of results that the last request showed without writing them to the cache."""
        plan = live.plan
        shown = snapshot[plan.held : plan.decided_at] if plan.held else ()
        return [stub for entry in shown if (stub := self._stub(live, entry, snapshot)) is not None]

    def _stub(self, live: Live, entry: Entry, snapshot: Sequence[Entry]) -> StubResult | None:
        rules = live.rules(entry.tool)
        if entry.tool_call_id is None or entry.tokens < _BULKY or rules.pin:
            return None
        if entry.position in live.plan.pins or entry.position in live.plan.shown:
            return None
        self._ageing.finish(snapshot)
        names = self._ageing.names_to_keep(entry, least=_WORTH)
        text = once_stub(entry, names, rules, summary=live.gist(entry))
        tokens = text_tokens(text) + 15
        if tokens >= entry.tokens // 2:
            return None
        return StubResult(position=entry.position, text=text, tokens=tokens, was_tokens=entry.tokens)

    def shorten(self, live: Live, snapshot: Sequence[Entry], stubs: Sequence[StubResult]) -> list[Edit]:
        """Cut what is new before it is written to the cache; ``stubs`` are made along with it."""
        rates = self._account.rates
        allowed = live.policy.show_once and live.policy.stubs
        if rates.write <= 1.0 or not (allowed and self._poor(live)):
            return []
        edits: list[Edit] = []
        turn = snapshot[live.last_turn]
        if turn.role == "assistant" and turn.position not in live.plan.shown:
            shorter = self._shorter_call(turn, snapshot) if turn.position not in live.plan.pins else None
            if shorter is not None:
                edits.append(shorter)
        hold = live.last_turn + 1
        gain, held = 0.0, 0
        for entry in snapshot[hold:]:
            stub = self._stub(live, entry, snapshot)
            held += entry.tokens
            gain += (rates.write - 1) * entry.tokens - rates.write * stub.tokens if stub else -entry.tokens
        saved = sum(edit.was_tokens - edit.tokens for edit in stubs)
        before = self._account.head + live.tokens - saved - held
        if gain > 0 and before >= self._minimum:
            edits.append(HoldBack(position=hold))
        return edits

    def _shorter_call(self, turn: Entry, snapshot: Sequence[Entry]) -> CutCall | None:
        inputs: dict[str, Any] = {}
        blocks: list[Block] = []
        for block in turn.content:
            if isinstance(block, ToolUse) and _has_long(block.input):
                self._ageing.finish(snapshot)
                shorter = self._shorter(block.input, turn.iteration)
                inputs[block.id] = shorter
                block = msgspec.structs.replace(block, input=shorter)  # noqa: PLW2901
            blocks.append(block)
        tokens = estimate_tokens(blocks)
        if not inputs or tokens >= turn.tokens:
            return None
        return CutCall(position=turn.position, inputs=inputs, tokens=tokens, was_tokens=turn.tokens)

    def _shorter(self, value: Any, iteration: int) -> Any:
        if isinstance(value, dict):
            inside: dict[str, Any] = value
            return {name: self._shorter(inner, iteration) for name, inner in inside.items()}
        if isinstance(value, list):
            items: list[Any] = value
            return [self._shorter(inner, iteration) for inner in items]
        if not isinstance(value, str) or len(value) <= _LONG:
            return value
        found = cut(value, _LONG // 2)
        assert found is not None
        known = [n for n in names_of(value) if self._ageing.vocabulary.is_known(n, iteration) and n not in found.text]
        return f"{found.text}\n{' '.join(known)}" if known else found.text


def _has_long(value: Any) -> bool:
    if isinstance(value, dict):
        inside: dict[str, Any] = value
        return any(map(_has_long, inside.values()))
    if isinstance(value, list):
        items: list[Any] = value
        return any(map(_has_long, items))
    return isinstance(value, str) and len(value) > _LONG
