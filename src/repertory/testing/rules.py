"""The rules of the Messages API, with its own error messages. Each check raises ``Refusal`` with the failing path.

They are those of its version 2026-10-21, which the SDK asks for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from repertory.llm.features import FALLBACK, TASK_BUDGETS
from repertory.llm.messages import Json
from repertory.llm.profiles import ModelProfile, canonical_name
from repertory.testing.binding import BINDING_BETA
from repertory.testing.compaction import check_blocks, check_compaction
from repertory.testing.editing import check_editing
from repertory.testing.fallback import check_fallback
from repertory.testing.output_format import check_output_format
from repertory.testing.refusal import Refusal, refuse
from repertory.testing.shape import check_kind, check_schema, check_shape
from repertory.testing.transcript import TOOL_NAME, check_messages, check_system, is_paused
from repertory.testing.wire import CLIENT_TYPES, blocks_of, walk

_MAX_BREAKPOINTS = 4
_PROPERTY = re.compile(r"^[a-zA-Z0-9_.-]{1,64}$")

# Top-level fields, and for each the prefix of the beta header value that it needs, or None.
_FIELDS: dict[str, str | None] = dict.fromkeys(
    (
        *("model", "messages", "max_tokens", "system", "tools", "stream", "metadata", "stop_sequences", "tool_choice"),
        *("thinking", "cache_control", "service_tier", "output_config", "container", "inference_geo", "diagnostics"),
        *("speed", "compaction"),
    )
) | {"context_management": "context-management-", "mcp_servers": "mcp-client-", "fallbacks": FALLBACK}
_COUNT_REFUSES = (
    *("max_tokens", "stream", "stop_sequences", "metadata", "service_tier", "inference_geo", "container"),
    *("diagnostics", "fallbacks"),
)
# The kinds of thinking that each model takes, and those on which no tool can be forced, because they always think
# (platform.claude.com/docs: Troubleshooting thinking, and What's new in Opus 5.5 and in Sonnet 5.5; 2026-11). Fable 5.2
# is assumed to be as 5.1. A model that is not listed takes any kind.
_KINDS = ("enabled", "disabled", "between_tools", "adaptive")
_KINDS_OF = (
    dict.fromkeys(("claude-opus-4-5", "claude-sonnet-4-5", "claude-haiku-4-5"), ("enabled", "disabled"))
    | dict.fromkeys(("claude-opus-4-6", "claude-sonnet-4-6"), ("adaptive", "enabled", "disabled"))
    | dict.fromkeys(("claude-opus-4-7", "claude-opus-4-8", "claude-opus-5"), ("adaptive", "disabled"))
    | dict.fromkeys(("claude-sonnet-5", "claude-haiku-5-5"), ("adaptive", "disabled"))
    | dict.fromkeys(("claude-fable-5", "claude-fable-5-1", "claude-fable-5-2", "claude-opus-5-5"), ("adaptive",))
    | {"claude-sonnet-5-5": ("adaptive", "between_tools")}
)
_EFFORTS = (None, "low", "medium", "high", "xhigh", "max")
_MUST_THINK_HARD = ("claude-opus-5", "claude-haiku-5-5")  # thinking can be disabled, but not at the two highest efforts
_NEVER_FORCED = ("claude-fable-5-1", "claude-fable-5-2", "claude-opus-5-5", "claude-sonnet-5-5")


def check_headers(headers: Mapping[str, str], *, api_key: str | None) -> None:
    """Check the key, if one is required, and the API's version.

    Args:
        headers: The request's headers, with names in lower case.
        api_key: The only key that is accepted; None if none is required.
    """
    if api_key is not None:
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        given = headers.get("x-api-key") or bearer
        if not given:
            raise Refusal(401, "authentication_error", "x-api-key header is required")
        if given != api_key:
            raise Refusal(401, "authentication_error", "invalid x-api-key")
    if "anthropic-version" not in headers:
        refuse("anthropic-version: header is required")
    if "json" not in headers.get("content-type", ""):
        refuse("content-type: must be application/json")


def check_body(body: Any, *, profile: ModelProfile, betas: frozenset[str], counting: bool = False) -> None:
    """Check everything about a request except its length and its thinking signatures.

    Args:
        counting: Whether only the tokens are counted, for which fewer fields are allowed.
    """
    for field in body:
        needs = _FIELDS.get(field, "")
        allowed = needs is None or (needs and any(beta.startswith(needs) for beta in betas))
        if not allowed or (counting and field in _COUNT_REFUSES):
            refuse(f"{field}: Extra inputs are not permitted")
    check_shape(body)
    if (body.get("output_config") or {}).get("task_budget") is not None and TASK_BUDGETS not in betas:
        refuse("output_config.task_budget: Extra inputs are not permitted")
    if not counting:
        _check_max_tokens(body, profile)
    tools = body.get("tools", [])
    if (body.get("output_config") or {}).get("effort") not in _EFFORTS:
        refuse("output_config.effort: Input should be 'low', 'medium', 'high', 'xhigh' or 'max'")
    _check_tools(tools)
    _check_thinking_option(body, betas, counting, profile)
    _check_choice(body, tools, profile)
    check_system(body.get("system"))
    check_messages(body.get("messages"), answered=body.get("compaction") is None)
    _check_prefill(body, profile)
    check_blocks(body, betas)
    check_fallback(body, betas)
    check_compaction(body, betas, counting=counting)
    check_editing(body, profile)
    check_output_format(body, profile)
    _check_breakpoints(body)


def _check_max_tokens(body: Json, profile: ModelProfile) -> None:
    limit = body.get("max_tokens")
    if limit is None:
        refuse("max_tokens: Field required")
    if limit < 1:
        refuse("max_tokens: Input should be greater than or equal to 1")
    if limit > profile.max_output:
        refuse(
            f"max_tokens: {limit} > {profile.max_output}, which is the maximum allowed number of output tokens for "
            f"{profile.name}"
        )


def _check_tools(tools: list[Json]) -> None:
    names: set[str] = set()
    for index, tool in enumerate(tools):
        kind = tool.get("type") or "custom"
        where = f"tools.{index}.{kind}"
        if tool.get("name") is None and kind in ("custom", *CLIENT_TYPES):
            refuse(f"{where}.name: Field required")
        if kind != "custom":
            continue  # a server tool, whose schema the provider knows
        name: str = tool["name"]
        if not TOOL_NAME.fullmatch(name):
            refuse(f"{where}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'")
        if name in names:
            refuse("tools: Tool names must be unique.")
        names.add(name)
        schema = tool.get("input_schema")
        if schema is None:
            refuse(f"{where}.input_schema: Field required")
        check_kind(schema, dict, f"{where}.input_schema")
        if "type" not in schema:
            refuse(f"{where}.input_schema.type: Field required")
        if schema["type"] != "object":
            refuse(f"{where}.input_schema.type: Input should be 'object'")
        check_schema(schema, f"{where}.input_schema")
        if schema.keys() & {"oneOf", "allOf", "anyOf"}:
            refuse(f"{where}.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level")
        if not all(_PROPERTY.fullmatch(key) for key in schema.get("properties", {})):
            refuse(f"{where}.input_schema.properties: Property keys should match pattern '{_PROPERTY.pattern}'")
        check_kind(tool.get("description", ""), str, f"{where}.description")


def _check_choice(body: Json, tools: list[Json], profile: ModelProfile) -> None:
    choice: Any = body.get("tool_choice")
    if choice is None:
        return
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind not in ("auto", "any", "tool", "none"):
        refuse(
            "tool_choice: Input tag found using 'type' does not match any of the expected tags: 'auto', 'any', "
            "'tool', 'none'"
        )
    if kind in ("any", "tool") and not tools:
        refuse("tool_choice: may only be specified while providing tools")
    if kind == "tool" and choice.get("name") not in [tool.get("name") for tool in tools]:
        refuse(f"Tool '{choice.get('name')}' not found in provided tools")
    manual = (body.get("thinking") or {}).get("type") == "enabled"
    if kind in ("any", "tool") and (manual or _row(profile) in _NEVER_FORCED):
        refuse("Thinking may not be enabled when tool_choice forces tool use.")


def _check_prefill(body: Json, profile: ModelProfile) -> None:
    """Refuse a beginning of the answer: models from 4.6 on take none, and no model does while it thinks."""
    messages = body["messages"]
    if messages[-1]["role"] != "assistant" or body.get("compaction") is not None or is_paused(messages):
        return
    newer = _row(profile).startswith("claude-") and not _row(profile).endswith("-4-5")
    if newer or profile.target == "binding" or (body.get("thinking") or {}).get("type", "disabled") != "disabled":
        refuse("This model does not support assistant message prefill. The conversation must end with a user message.")


def _row(profile: ModelProfile) -> str:
    """The name of a model in the catalog; see ``profile_for``."""
    return canonical_name(profile.name).replace("mythos-", "fable-")


def _check_thinking_option(body: Json, betas: frozenset[str], counting: bool, profile: ModelProfile) -> None:
    thinking = body.get("thinking")
    if thinking is None:
        return
    kind = thinking.get("type")
    if kind not in _KINDS:
        refuse("thinking.type: Input should be 'enabled', 'disabled', 'between_tools' or 'adaptive'")
    allowed = _KINDS_OF.get(_row(profile), _KINDS)
    if kind not in allowed and kind == "adaptive":
        refuse("adaptive thinking is not supported on this model")
    if kind not in allowed:
        refuse(
            f'"thinking.type.{kind}" is not supported for this model. Use "thinking.type.{allowed[0]}" and '
            '"output_config.effort" to control thinking behavior.'
        )
    effort = (body.get("output_config") or {}).get("effort")
    if kind == "disabled" and effort in ("xhigh", "max") and _row(profile) in _MUST_THINK_HARD:
        refuse(f"thinking: type 'disabled' is not supported with output_config.effort '{effort}'")
    if "block_binding" in thinking:
        if BINDING_BETA not in betas or kind == "disabled":
            refuse(f"thinking.{kind}.block_binding: Extra inputs are not permitted")
        wanted = (thinking["block_binding"] or {}).get("prefix_mismatch_behavior") or "error"
        if wanted not in ("error", "drop_block"):
            refuse(f"thinking.{kind}.block_binding.prefix_mismatch_behavior: Input should be 'error' or 'drop_block'")
    if kind == "enabled":
        budget = thinking.get("budget_tokens")
        if not isinstance(budget, int):
            refuse("thinking.enabled.budget_tokens: Field required")
        if budget < 1024:
            refuse("thinking.enabled.budget_tokens: Input should be greater than or equal to 1024")
        if not counting and body["max_tokens"] <= budget:
            refuse("`max_tokens` must be greater than `thinking.budget_tokens`")


def marked_blocks(body: Json) -> Iterator[tuple[str, Json]]:
    """Everything that may carry a cache marker, with its path, in the order in which the API reads it."""
    places = [("tools", body.get("tools") or []), ("system", blocks_of(body.get("system") or []))]
    places += [(f"messages.{n}.content", blocks_of(message["content"])) for n, message in enumerate(body["messages"])]
    for where, blocks in places:
        for index, block in enumerate(blocks):
            yield from walk(block, f"{where}.{index}")


def _check_breakpoints(body: Json) -> None:
    places = [(path, block["cache_control"]) for path, block in marked_blocks(body) if block.get("cache_control")]
    if body.get("cache_control"):
        places.append(("cache_control", body["cache_control"]))
    if len(places) > _MAX_BREAKPOINTS:
        refuse(f"A maximum of {_MAX_BREAKPOINTS} blocks with cache_control may be provided. Found {len(places)}.")
    short = False
    for path, marker in places:
        if not isinstance(marker, dict) or marker.get("type") != "ephemeral":
            refuse(f"{path}.cache_control.type: Input should be 'ephemeral'")
        ttl = marker.get("ttl", "5m")
        if ttl not in ("5m", "1h"):
            refuse(f"{path}.cache_control.ttl: Input should be '5m' or '1h'")
        if ttl == "1h" and short:
            refuse(
                f"{path}.cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m' "
                "cache_control block. Note that blocks are processed in the following order: `tools`, `system`, "
                "`messages`."
            )
        short = short or ttl == "5m"


def check_length(prompt_tokens: int, body: Json, profile: ModelProfile, *, answered: bool = True) -> None:
    """Check that the prompt fits the window, together with the answer unless a summary is requested."""
    window = profile.context_window
    if prompt_tokens > window:
        refuse(f"prompt is too long: {prompt_tokens} tokens > {window} maximum")
    if answered and prompt_tokens + body["max_tokens"] > window:
        refuse(
            f"input length and `max_tokens` exceed context limit: {prompt_tokens} + {body['max_tokens']} > {window}, "
            "decrease input length or `max_tokens` and try again"
        )
