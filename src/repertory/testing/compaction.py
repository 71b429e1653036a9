"""Compaction on demand: which requests the API refuses, and how it answers a request for a summary.

The rules are those of the provider's pages on compaction on demand, in the background, and with thinking kept. The
block's signature, and its effect on later thinking, is handled in ``binding``.
"""

from __future__ import annotations

from typing import Any

from repertory.llm.estimate import estimate_tokens
from repertory.llm.messages import Block, Json, RawBlock, Text, ToolUse, text_of
from repertory.llm.model import ModelRequest, ModelResponse, StopReason
from repertory.testing.refusal import refuse
from repertory.testing.shape import check_kind

BETA = "compact-2026-09-04"
MOST_INSTRUCTIONS = 16_384  # characters
_PROMPT = "Summarize the conversation so far, so that the work can go on from the summary alone. Do not call tools."
_EXCERPT = 400  # characters of each message that the server's own summary quotes
_RETURNED = frozenset({"type", "content", "signature", "cache_control"})


def check_compaction(body: Json, betas: frozenset[str], *, counting: bool) -> None:
    """Check the ``compaction`` parameter and what it cannot be combined with. Counting ignores the parameter.

    Args:
        counting: Whether only the tokens are counted.
    """
    _check_budget(body)
    wanted = body.get("compaction")
    if wanted is None:
        return
    if BETA not in betas:
        refuse(f"compaction: the `compaction` parameter requires anthropic-beta: {BETA}")
    if not isinstance(wanted, dict) or wanted.get("type") != "summarize":
        refuse("compaction.type: Input should be 'summarize'")
    for field in wanted:
        if field not in ("type", "instructions"):
            refuse(f"compaction.summarize.{field}: Extra inputs are not permitted")
    instructions = wanted.get("instructions")
    if instructions is not None:
        check_kind(instructions, str, "compaction.summarize.instructions")
        if len(instructions) > MOST_INSTRUCTIONS:
            refuse(
                f"compaction.summarize.instructions: String should have at most {MOST_INSTRUCTIONS} characters, "
                f"got {len(instructions)}"
            )
    if body.get("context_management") is not None:
        refuse("compaction: cannot be combined with `context_management`")
    if counting:
        return
    if body.get("stop_sequences"):
        refuse("stop_sequences: not supported on a compaction request")
    if (body.get("output_config") or {}).get("format") is not None:
        refuse("output_config.format: not supported on a compaction request")
    if (body.get("tool_choice") or {}).get("type") in ("any", "tool"):
        refuse("tool_choice: a type of 'any' or 'tool' is not supported on a compaction request")
    _check_finished(body["messages"])


def check_blocks(body: Json, betas: frozenset[str]) -> None:
    """Check the places of a request's compaction blocks; their signatures are checked elsewhere."""
    found = 0
    for number, message in enumerate(body["messages"]):
        if isinstance(message["content"], str):
            continue
        for index, block in enumerate(message["content"]):
            if block["type"] != "compaction":
                continue
            path = f"messages.{number}.content.{index}"
            if BETA not in betas:
                refuse(
                    f"{path}: Input tag 'compaction' found using 'type' does not match any of the expected tags: "
                    "'image', 'redacted_thinking', 'text', 'thinking', 'tool_result', 'tool_use'"
                )
            _check_fields(block, path)
            if block.get("content") is None:
                continue  # a failed compaction: it has no effect
            found += 1
            if found > 1:
                refuse(f"{path}: more than one `compaction` block", code="compaction_block_ambiguous")
            if number or index:
                refuse(
                    f"{path}: the `compaction` block must be the first block of the conversation; remove the messages "
                    "that it summarizes",
                    code="compaction_block_misplaced",
                )


def begins_with_summary(messages: list[Any]) -> bool:
    """Whether a compaction block comes first, so that the first message may be the assistant's."""
    content = messages[0].get("content") if isinstance(messages[0], dict) else None
    first = content[0] if isinstance(content, list) and content else None
    return isinstance(first, dict) and first.get("type") == "compaction"


def summary_of(answer: ModelResponse, max_tokens: int) -> tuple[str, StopReason]:
    """The summary in a model's answer, and the response's stop reason; "" if the answer is not a summary."""
    text = text_of([block for block in answer.content if isinstance(block, Text)])
    if any(isinstance(block, ToolUse) for block in answer.content):
        return "", "tool_use"
    if answer.stop_reason != "end_turn" or not text.strip():
        return "", answer.stop_reason
    if estimate_tokens(Text(text)) > max_tokens:
        return "", "max_tokens"
    return text, "compaction"


def prompt_of(body: Json) -> int:
    """The tokens of the summarization prompt: the request's instructions, or the server's own."""
    instructions = body["compaction"].get("instructions") or ""
    return estimate_tokens(instructions if instructions.strip() else _PROMPT)


def plain_summary(request: ModelRequest) -> str:
    """The summary that the server writes by itself: the beginning of the conversation, and its end."""
    said = [(message.role, _words(message.content)) for message in request.messages]
    told = [f"{role}: {words[:_EXCERPT]}" for role, words in said if words]
    return "\n".join([f"Summary of {len(request.messages)} messages.", *told[:1], *told[1:][-2:]])


def _words(content: tuple[Block, ...]) -> str:
    parts = [
        str(block.raw.get("content") or "") if isinstance(block, RawBlock) else text_of(block) for block in content
    ]
    return "\n".join(part for part in parts if part)


def _check_fields(block: Json, path: str) -> None:
    for field, value in block.items():
        if field in _RETURNED or (field == "encrypted_content" and value is None):
            continue
        if field == "tool_changes":
            refuse(
                f"{path}: the `tool_changes` of the `compaction` block differ from what was returned with it",
                code="compaction_tool_changes_mismatch",
            )
        refuse(f"{path}.compaction.{field}: Extra inputs are not permitted")
    for field in ("content", "signature"):
        if block.get(field) is not None:
            check_kind(block[field], str, f"{path}.compaction.{field}")
    if block.get("content") == "":
        refuse(f"{path}.compaction.content: String should have at least 1 character")


def _check_budget(body: Json) -> None:
    budget = (body.get("output_config") or {}).get("task_budget") or {}
    carries = body.get("compaction") is not None or begins_with_summary(body["messages"])
    if carries and budget.get("remaining") is not None:
        refuse("output_config.task_budget.remaining: not supported with compaction")


def _check_finished(messages: list[Json]) -> None:
    last = messages[-1]
    blocks = [] if isinstance(last["content"], str) else last["content"]
    if last["role"] == "assistant" and any(block["type"] == "tool_use" for block in blocks):
        refuse(
            f"messages.{len(messages) - 1}: the last `assistant` turn ends in a tool call with no result yet; send its "
            "results first",
            code="compaction_incomplete_turn",
        )
