"""Language models: requests, responses, profiles and prices.

No provider's SDK is imported before it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from repertory.llm.estimate import estimate_tokens
from repertory.llm.messages import Block, Message, Text, Thinking, ToolResult, ToolUse, text_of
from repertory.llm.model import Model, ModelRequest, ModelResponse, StreamEvent
from repertory.llm.profiles import ModelProfile, Usage, profile_for, with_listed_prices, with_prices
from repertory.llm.validation import validate

# Imported on first access: most code needs only the data types.
_LATE = {"AnthropicModel": "anthropic", "RetryPolicy": "retry"}

if TYPE_CHECKING:
    from repertory.llm.anthropic import AnthropicModel
    from repertory.llm.retry import RetryPolicy
else:  # with it, a type checker would accept any name

    def __getattr__(name):
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)


__all__ = [
    "AnthropicModel",
    "Block",
    "Message",
    "Model",
    "ModelProfile",
    "ModelRequest",
    "ModelResponse",
    "RetryPolicy",
    "StreamEvent",
    "Text",
    "Thinking",
    "ToolResult",
    "ToolUse",
    "Usage",
    "estimate_tokens",
    "profile_for",
    "text_of",
    "validate",
    "with_listed_prices",
    "with_prices",
]
