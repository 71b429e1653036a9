"""Context editing on the server: old tool results and old thinking cleared before the model reads the prompt.

The server keeps no state between requests, so the boundary of what is cleared moves with every request whose prompt
exceeds the trigger. The documents do not say whether the real boundary is sticky; this is the more expensive reading.
The request as sent is not changed, so thinking stays valid: signatures are checked before the edits.
"""

from __future__ import annotations

from typing import Any

from repertory.llm.messages import Json
from repertory.llm.profiles import ModelProfile
from repertory.testing.cache import prompt_tokens
from repertory.testing.refusal import refuse
from repertory.testing.wire import blocks_of

BETA = "context-management-2025-06-27"
CLEARED = "[Old tool result content cleared]"
_TOOLS, _THINKING = "clear_tool_uses_20250919", "clear_thinking_20251015"
_FIELDS: dict[str, frozenset[str]] = {
    _TOOLS: frozenset({"type", "trigger", "keep", "clear_at_least", "clear_tool_inputs", "exclude_tools"}),
    _THINKING: frozenset({"type", "keep"}),
}
_TRIGGER, _KEEP = 100_000, 3
_LAST_TURN_ONLY = ("haiku", "sonnet-4-5")  # models that by default keep only the thinking of the last turn


def check_editing(body: Json, profile: ModelProfile) -> None:
    """Check the ``context_management`` parameter."""
    seen: set[str] = set()
    for index, edit in enumerate((body.get("context_management") or {}).get("edits", [])):
        where = f"context_management.edits.{index}"
        kind = edit.get("type")
        if kind not in _FIELDS:
            refuse(f"{where}.type: Input should be '{_TOOLS}' or '{_THINKING}'")
        if kind in seen:
            refuse(f"context_management.edits: strategy '{kind}' may be specified only once")
        seen.add(kind)
        for field in edit:
            if field not in _FIELDS[kind]:
                refuse(f"{where}.{kind}.{field}: Extra inputs are not permitted")
        if kind == _THINKING:
            _check_thinking(edit, body, profile, where, first=index == 0)
        else:
            _check_tools(edit, where)


def _check_thinking(edit: Json, body: Json, profile: ModelProfile, where: str, *, first: bool) -> None:
    if not first:
        refuse(f"context_management.edits: `{_THINKING}` must be the first strategy in the list")
    kind = (body.get("thinking") or {}).get("type")
    if kind == "disabled" or (kind is None and profile.target != "binding"):
        refuse(f"{where}: `{_THINKING}` strategy requires `thinking` to be enabled or adaptive")
    keep = edit.get("keep", "all")
    if keep == "all" or (isinstance(keep, dict) and keep.get("type") == "all"):
        return
    _check_count(keep, f"{where}.{_THINKING}.keep", ("thinking_turns",), least=1)


def _check_tools(edit: Json, where: str) -> None:
    where = f"{where}.{_TOOLS}"
    for field, kinds in (
        ("trigger", ("input_tokens", "tool_uses")),
        ("keep", ("tool_uses",)),
        ("clear_at_least", ("input_tokens",)),
    ):
        if edit.get(field) is not None:
            _check_count(edit[field], f"{where}.{field}", kinds, least=1 if field == "trigger" else 0)
    for field, plain in (("exclude_tools", False), ("clear_tool_inputs", True)):
        value = edit.get(field)
        names = isinstance(value, list) and all(isinstance(name, str) for name in value)
        if value is not None and not names and not (plain and isinstance(value, bool)):
            refuse(f"{where}.{field}: Input should be a valid list")


def _check_count(value: Any, where: str, kinds: tuple[str, ...], *, least: int) -> None:
    if not isinstance(value, dict) or value.get("type") not in kinds:
        refuse(f"{where}.type: Input should be {' or '.join(repr(kind) for kind in kinds)}")
    count = value.get("value")
    if not isinstance(count, int) or isinstance(count, bool) or count < least:
        refuse(f"{where}.value: Input should be greater than or equal to {least}")


def edit_context(body: Json, profile: ModelProfile) -> tuple[Json, list[Json]]:
    """Apply a request's edits, in order.

    Returns:
        The request as the model reads it, and the API's ``applied_edits``: the edits that had an effect.
    """
    applied: list[Json] = []
    for edit in (body.get("context_management") or {}).get("edits", []):
        before = prompt_tokens(body)
        if edit["type"] == _THINKING:
            edited, count = _without_thinking(body, _turns_kept(edit, profile))
            report = {"type": _THINKING, "cleared_thinking_turns": count}
        else:
            edited, count = _without_results(body, edit, before)
            report = {"type": _TOOLS, "cleared_tool_uses": count}
        cleared = before - prompt_tokens(edited)
        least = (edit.get("clear_at_least") or {}).get("value", 0)
        if count and cleared > 0 and cleared >= least:
            body = edited
            applied.append({**report, "cleared_input_tokens": cleared})
    return body, applied


def _turns_kept(edit: Json, profile: ModelProfile) -> int | None:
    """How many turns keep their thinking; None for all."""
    keep = edit.get("keep")
    if keep is None:
        return 1 if any(name in profile.name for name in _LAST_TURN_ONLY) else None
    return None if keep == "all" or keep["type"] == "all" else keep["value"]


def _without_thinking(body: Json, keep: int | None) -> tuple[Json, int]:
    """Clear the thinking of all but the last turns. Tool results do not end a turn; a user's message does."""
    if keep is None:
        return body, 0
    contents = [blocks_of(message["content"]) for message in body["messages"]]
    turn = 1  # the first message may be the assistant's, after a summary
    thinking: list[int] = []  # for each message, the turn whose thinking it has; 0 for none
    for message, blocks in zip(body["messages"], contents, strict=True):
        turn += message["role"] == "user" and any(block["type"] != "tool_result" for block in blocks)
        thinking.append(turn if any(map(_is_thought, blocks)) else 0)
    cleared = set(sorted({*thinking} - {0})[:-keep])
    messages = [
        {**message, "content": [block for block in blocks if not _is_thought(block)]} if turn in cleared else message
        for message, blocks, turn in zip(body["messages"], contents, thinking, strict=True)
    ]
    return {**body, "messages": messages}, len(cleared)


def _without_results(body: Json, edit: Json, tokens: int) -> tuple[Json, int]:
    """Clear the oldest tool results, if the trigger is exceeded."""
    uses = [
        block for message in body["messages"] for block in blocks_of(message["content"]) if block["type"] == "tool_use"
    ]
    trigger: Json = edit.get("trigger") or {"type": "input_tokens", "value": _TRIGGER}
    if (tokens if trigger["type"] == "input_tokens" else len(uses)) <= trigger["value"]:
        return body, 0
    keep = (edit.get("keep") or {"value": _KEEP})["value"]
    excluded = set(edit.get("exclude_tools") or ())
    clearable = [use for use in uses if use["name"] not in excluded]
    old = {use["id"] for use in clearable[: max(0, len(clearable) - keep)]}
    inputs = edit.get("clear_tool_inputs") or False
    count = 0

    def show(block: Json) -> Json:
        nonlocal count
        if block["type"] == "tool_result" and block["tool_use_id"] in old:
            count += 1
            return {**block, "content": CLEARED}
        if (
            block["type"] == "tool_use"
            and block["id"] in old
            and (inputs is True or (inputs and block["name"] in inputs))
        ):
            return {**block, "input": {}}
        return block

    messages = [
        message
        if isinstance(message["content"], str)
        else {**message, "content": [show(b) for b in message["content"]]}
        for message in body["messages"]
    ]
    return {**body, "messages": messages}, count


def _is_thought(block: Json) -> bool:
    return block["type"] in ("thinking", "redacted_thinking")
