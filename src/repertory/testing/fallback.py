"""Fallback on the server: another model goes on where one declines. A ``fallback`` block marks the place.

The provider's page on refusals and fallback says what may come back in the next request (2026-08).
"""

from __future__ import annotations

from collections.abc import Sequence

from repertory.llm.features import FALLBACK, SERVER_CALLS
from repertory.llm.messages import Json
from repertory.testing.refusal import refuse

_LEFT_OUT = ("thinking", "redacted_thinking", "connector_text", "tool_use")
_MOST_MODELS = 3


def left_out(blocks: Sequence[Json]) -> list[int]:
    """The places of those blocks before the last ``fallback`` block of a turn that must not be sent back."""
    last = max((place for place, block in enumerate(blocks) if block["type"] == "fallback"), default=0)
    results = [block.get("tool_use_id") for block in blocks]
    return [
        place
        for place, block in enumerate(blocks[:last])
        if block["type"] in _LEFT_OUT or (block["type"] in SERVER_CALLS and block.get("id") not in results)
    ]


def check_fallback(body: Json, betas: frozenset[str]) -> None:
    """Check the ``fallbacks`` parameter, and what earlier fallbacks have left in the conversation."""
    wanted = body.get("fallbacks")
    if wanted is not None and wanted != "default":
        models = [each.get("model") for each in wanted if isinstance(each, dict)] if isinstance(wanted, list) else []
        if not models or len(models) != len(wanted) or len(models) > _MOST_MODELS:
            refuse(f"fallbacks: Input should be 'default' or a list of 1 to {_MOST_MODELS} models")
        if not all(isinstance(name, str) for name in models) or len({*models, body["model"]}) <= len(models):
            refuse("fallbacks: each entry must name a model that is distinct from the others and from `model`")
    for number, message in enumerate(body["messages"]):
        if isinstance(message["content"], str):
            continue
        path = f"messages.{number}.content"
        kinds = [block["type"] for block in message["content"]]
        if "fallback" in kinds and FALLBACK not in betas:
            place = kinds.index("fallback")
            refuse(f"{path}.{place}: Input tag 'fallback' found using 'type' does not match any of the expected tags")
        for place in left_out(message["content"]):
            refuse(f"{path}.{place}: `{kinds[place]}` blocks before the last `fallback` block must be left out")
