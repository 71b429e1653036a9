"""Beta features of the Messages API that a request may use, and the headers they need.

A request says what it wants in its fields (``options``) and blocks; the headers follow from that, so that no caller
can forget one: a conversation that begins with a compaction block needs its header on every later request.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

import msgspec

from repertory.llm.messages import Block, Json, RawBlock
from repertory.llm.model import ModelRequest

__all__ = ["compaction_request", "dropping_mismatched"]

COMPACT = "compact-2026-09-04"
CONTEXT_EDITING = "context-management-2025-06-27"
THINKING_CONTROLS = "thinking-binding-controls-2026-08-01"
TASK_BUDGETS = "task-budgets-2026-03-13"
FALLBACK = "server-side-fallback-2026-07-01"

SERVER_CALLS = ("server_tool_use", "mcp_tool_use")  # blocks that call a tool which the provider runs

# Options that a summarization call refuses or ignores, and that by which another model might write the summary.
_REFUSED = ("context_management", "stop_sequences", "fallbacks")


def is_compaction(block: Block) -> bool:
    """Whether a block is the provider's summary of what came before it."""
    return isinstance(block, RawBlock) and block.raw.get("type") == "compaction"


def is_server_tool(block: Block) -> bool:
    """Whether a block is a call of a tool that the provider runs, or the result of one."""
    kind = block.raw.get("type") if isinstance(block, RawBlock) else None
    return isinstance(kind, str) and (kind in SERVER_CALLS or kind.endswith("_tool_result"))


def compaction_request(request: ModelRequest, *, instructions: str = "") -> ModelRequest:
    """Make a request for a signed summary of an earlier request.

    Everything that is cached stays unchanged, so that the call reads the cache entries that the earlier request wrote.

    Args:
        request: A request that was sent and answered.
        instructions: What the summary must hold, at most 16,384 characters; "" for the provider's own prompt.
    """
    options: Json = {name: value for name, value in request.options.items() if name not in _REFUSED}
    if (options.get("tool_choice") or {}).get("type") in ("any", "tool"):
        del options["tool_choice"]
    if "output_config" in options:
        config = {name: value for name, value in options["output_config"].items() if name != "format"}
        if config.get("task_budget"):
            config["task_budget"] = {n: v for n, v in config["task_budget"].items() if n != "remaining"}
        options["output_config"] = config
    options["compaction"] = {"type": "summarize", **({"instructions": instructions} if instructions else {})}
    return msgspec.structs.replace(request, options=options)


def dropping_mismatched(options: Json) -> Json:
    """Options that let the server drop thinking which no longer fits its history, instead of refusing the request.

    If ``thinking`` is not configured, its type is left out: ``AnthropicModel`` adds its own.
    """
    binding = {"prefix_mismatch_behavior": "drop_block"}
    return {**options, "thinking": {**(options.get("thinking") or {}), "block_binding": binding}}


def needed_betas(body: Json, given: Sequence[str] = ()) -> tuple[str, ...]:
    """The ``anthropic-beta`` values that are given, then those that a request's body needs, without duplicates."""
    kinds = [block.get("type") for message in body["messages"] for block in message["content"]]
    needed = {
        COMPACT: body.get("compaction") is not None or "compaction" in kinds,
        FALLBACK: body.get("fallbacks") is not None or "fallback" in kinds,
        CONTEXT_EDITING: body.get("context_management") is not None,
        THINKING_CONTROLS: "block_binding" in (body.get("thinking") or {}),
        TASK_BUDGETS: (body.get("output_config") or {}).get("task_budget") is not None,
        "fast-mode-2026-02-01": body.get("speed") == "fast",  # some models take it without
        "thinking-display-updates-2026-08-18": (body.get("thinking") or {}).get("display") == "updates",
    }
    return tuple(dict.fromkeys((*given, *compress(needed, needed.values()))))
