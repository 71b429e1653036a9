"""Language models: what is said to them, what they answer, what it costs.

Nothing here imports a provider's SDK before the first call to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repertory.llm.estimate import estimate_tokens
from repertory.llm.features import compaction_request, compaction_text, dropping_mismatched, is_compaction
from repertory.llm.messages import (
    Block,
    Image,
    Json,
    Message,
    RawBlock,
    RedactedThinking,
    Role,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    canonical_json,
    decode_block,
    decode_content,
    decode_message,
    encode_block,
    encode_message,
    text_of,
    tool_uses,
)
from repertory.llm.model import (
    Breakpoint,
    Model,
    ModelRequest,
    ModelResponse,
    Retrying,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    TokenCounter,
    ToolSchema,
    ToolUseStarted,
    Usage,
    encode_request,
)
from repertory.llm.profiles import CacheRules, ModelProfile, Prices, cost_of, prices_at, profile_for, with_prices

if TYPE_CHECKING:
    from repertory.llm.anthropic import AnthropicModel
    from repertory.llm.choose import open_model
    from repertory.llm.offline import OfflineModel
    from repertory.llm.retry import RetryPolicy

__all__ = [
    "AnthropicModel",
    "Block",
    "Breakpoint",
    "CacheRules",
    "Image",
    "Json",
    "Message",
    "Model",
    "ModelProfile",
    "ModelRequest",
    "ModelResponse",
    "OfflineModel",
    "Prices",
    "RawBlock",
    "RedactedThinking",
    "RetryPolicy",
    "Retrying",
    "Role",
    "StreamEvent",
    "Text",
    "TextDelta",
    "Thinking",
    "ThinkingDelta",
    "TokenCounter",
    "ToolResult",
    "ToolSchema",
    "ToolUse",
    "ToolUseStarted",
    "Usage",
    "canonical_json",
    "compaction_request",
    "compaction_text",
    "cost_of",
    "decode_block",
    "decode_content",
    "decode_message",
    "dropping_mismatched",
    "encode_block",
    "encode_message",
    "encode_request",
    "estimate_tokens",
    "is_compaction",
    "open_model",
    "prices_at",
    "profile_for",
    "text_of",
    "tool_uses",
    "with_prices",
]

_LATE = {
    "AnthropicModel": "repertory.llm.anthropic",
    "OfflineModel": "repertory.llm.offline",
    "RetryPolicy": "repertory.llm.retry",
    "open_model": "repertory.llm.choose",
}


def __getattr__(name: str) -> Any:
    # The implementations load when first named: most code needs the shapes alone.
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATE[name]), name)
