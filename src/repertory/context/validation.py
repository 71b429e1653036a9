"""What the Messages API would refuse, checked before anything is sent. A violation is a bug of ours."""

from __future__ import annotations

import re
from typing import Any, NoReturn

from repertory.errors import InvalidRequest
from repertory.llm.features import is_compaction, is_server_tool
from repertory.llm.messages import (
    KNOWN_TYPES,
    Block,
    Image,
    Message,
    RawBlock,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
)
from repertory.llm.model import ModelRequest, ToolSchema
from repertory.llm.profiles import ModelProfile

MOST_BREAKPOINTS = 4
_MOST_TOOLS = 10_000
TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_OTHER = {"user": "assistant", "assistant": "user"}
CALL_ID = re.compile(r"[a-zA-Z0-9_-]+")


def validate(request: ModelRequest, profile: ModelProfile | None = None) -> None:
    """Check a request against the rules of the Messages API.

    Args:
        request: What is about to be sent.
        profile: The model's, for the rules that differ between models; None checks the common ones.

    Raises:
        InvalidRequest: It would be refused; the message names the rule and the place, such as
            ``messages[4].content[1]``.
    """
    _check_sizes(request, profile)
    _check_tools(request.tools)
    for index, block in enumerate(request.system):
        if not isinstance(block, Text | RawBlock):
            _refuse(f"system[{index}]", f"must be text, got {type(block).__name__}")
        _check_text(block, f"system[{index}]")
    _check_roles(request.messages)
    for index, message in enumerate(request.messages):
        for at, block in enumerate(message.content):
            _check_block(block, message.role, f"messages[{index}].content[{at}]")
            if is_compaction(block) and (index or at):
                _refuse(f"messages[{index}].content[{at}]", "a compaction block must be the first of all")
        if message.role == "assistant" and isinstance(message.content[-1], Thinking | RedactedThinking):
            _refuse(f"messages[{index}]", "an assistant's turn must not end with thinking")
    _check_pairs(request.messages)
    _check_breakpoints(request, profile)


def _refuse(place: str, rule: str) -> NoReturn:
    raise InvalidRequest(f"{place}: {rule}")


def _check_sizes(request: ModelRequest, profile: ModelProfile | None) -> None:
    if request.max_tokens < 1:
        _refuse("max_tokens", f"must be at least 1, got {request.max_tokens}")
    if profile is not None and request.max_tokens > profile.max_output:
        _refuse("max_tokens", f"is {request.max_tokens}; {profile.name} writes at most {profile.max_output}")
    thinking: dict[str, Any] = request.options.get("thinking") or {}
    budget = thinking.get("budget_tokens")
    if isinstance(budget, int) and not 1024 <= budget < request.max_tokens:
        _refuse("thinking.budget_tokens", f"must be from 1024 to below max_tokens ({request.max_tokens}), got {budget}")


def _check_tools(tools: tuple[ToolSchema, ...]) -> None:
    seen: set[str] = set()
    if len(tools) > _MOST_TOOLS:
        _refuse("tools", f"at most {_MOST_TOOLS:,} may be given, got {len(tools):,}")
    for index, tool in enumerate(tools):
        if not TOOL_NAME.fullmatch(tool.name):
            _refuse(f"tools[{index}].name", f"{tool.name!r} must be 1 to 128 of a-z, A-Z, 0-9, _ and -")
        if tool.name in seen:
            _refuse(f"tools[{index}].name", f"{tool.name!r} is there twice")
        if tool.input_schema.get("type") != "object":
            _refuse(f"tools[{index}].input_schema", "must be of type object")
        seen.add(tool.name)


def _check_roles(messages: tuple[Message, ...]) -> None:
    if not messages:
        _refuse("messages", "there must be at least one")
    # A provider's summary stands first, at the head of the turn that followed it.
    summarized = bool(messages[0].content) and is_compaction(messages[0].content[0])
    first = messages[0].role if summarized else "user"
    for index, message in enumerate(messages):
        expected = first if index % 2 == 0 else _OTHER[first]
        if message.role != expected:
            _refuse(f"messages[{index}].role", f"roles alternate and begin with {first}; expected {expected}")
        if not message.content:
            _refuse(f"messages[{index}].content", "must not be empty")
    last = messages[-1]
    # A turn that the server paused is sent back as it is; any other would be a prefill, which new models refuse.
    if last.role == "assistant" and not any(map(is_server_tool, last.content)):
        _refuse(f"messages[{len(messages) - 1}].role", "the last message must be the user's")


def _check_block(block: Block, role: str, place: str) -> None:
    match block:
        case Text():
            _check_text(block, place)
        case Thinking() | RedactedThinking() | ToolUse() if role != "assistant":
            _refuse(place, f"{type(block).__name__} belongs to the assistant")
        case ToolUse():
            if not CALL_ID.fullmatch(block.id):
                _refuse(f"{place}.id", f"{block.id!r} must be of a-z, A-Z, 0-9, _ and -")
            if not TOOL_NAME.fullmatch(block.name):
                _refuse(f"{place}.name", f"{block.name!r} must be 1 to 128 of a-z, A-Z, 0-9, _ and -")
        case ToolResult():
            if role != "user":
                _refuse(place, "ToolResult belongs to the user")
            if not isinstance(block.content, str):
                for at, part in enumerate(block.content):
                    _check_text(part, f"{place}.content[{at}]")
                    # An API rule: pictures cannot stand in a result that reports an error.
                    if block.is_error and not isinstance(part, Text):
                        _refuse(f"{place}.content[{at}]", "an error's content must be text")
        case Image() if role != "user":
            _refuse(place, "Image belongs to the user")
        case RawBlock():
            if not isinstance(block.raw.get("type"), str):
                _refuse(place, "has no type")
            if role == "assistant" and block.raw["type"] in KNOWN_TYPES:
                _refuse(place, f"a block of type {block.raw['type']!r} lacks a field")
        case _:
            pass


def _check_text(block: Block, place: str) -> None:
    if isinstance(block, Text) and not block.text.strip():
        _refuse(place, "text must not be blank")


def _check_pairs(messages: tuple[Message, ...]) -> None:
    """Every call is answered in the next message, once, results first; every result answers a call."""
    seen: set[str] = set()
    asked: dict[str, str] = {}
    for index, message in enumerate(messages):
        if message.role == "user":
            _check_answers(message, asked, index)
            asked = {}
            continue
        for at, block in enumerate(message.content):
            if isinstance(block, ToolUse):
                place = f"messages[{index}].content[{at}]"
                if block.id in seen:
                    _refuse(f"{place}.id", f"{block.id!r} was used before")
                seen.add(block.id)
                asked[block.id] = place
    for call, place in asked.items():
        _refuse(place, f"call {call!r} has no result")


def _check_answers(message: Message, asked: dict[str, str], index: int) -> None:
    answered: set[str] = set()
    others = False
    for at, block in enumerate(message.content):
        place = f"messages[{index}].content[{at}]"
        if not isinstance(block, ToolResult):
            others = True
            continue
        if others:
            _refuse(place, "results must come first in their message")
        if block.tool_use_id not in asked:
            _refuse(place, f"result of {block.tool_use_id!r}, which the message before did not ask for")
        if block.tool_use_id in answered:
            _refuse(place, f"a second result of {block.tool_use_id!r}")
        answered.add(block.tool_use_id)
    for call, place in asked.items():
        if call not in answered:
            _refuse(place, f"call {call!r} has no result in the next message")


def _check_breakpoints(request: ModelRequest, profile: ModelProfile | None) -> None:
    points = request.breakpoints
    most = MOST_BREAKPOINTS if profile is None else min(MOST_BREAKPOINTS, profile.cache.breakpoints)
    if len(points) > most:
        _refuse("breakpoints", f"at most {most} may be given, got {len(points)}")
    before, short = -2, False
    for index, point in enumerate(points):
        place = -1 if point.message is None else point.message
        if place <= before:
            _refuse(f"breakpoints[{index}]", "must be in order, each place once")
        if point.message is None and not (request.system or request.tools):
            _refuse(f"breakpoints[{index}]", "there is no static head to mark")
        if place >= len(request.messages):
            _refuse(f"breakpoints[{index}]", f"message {place} does not exist")
        if place >= 0 and not any(_markable(block) for block in request.messages[place].content):
            _refuse(f"breakpoints[{index}]", f"message {place} has no block that can carry a marker")
        if point.ttl == "1h" and short:
            _refuse(f"breakpoints[{index}]", "a 1-hour marker must not follow a 5-minute one")
        before, short = place, short or point.ttl == "5m"


def _markable(block: Block) -> bool:
    return not isinstance(block, Thinking | RedactedThinking)
