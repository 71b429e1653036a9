"""Checks requests for what the Messages API would refuse, before they are sent. A violation is a bug in repertory.

Every rule about messages concerns one message and the one before it, so if a request continues the last one, only its
new messages are checked.
"""

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
    equal_items,
    is_document,
)
from repertory.llm.model import ModelRequest, ToolSchema
from repertory.llm.profiles import ModelProfile

MOST_BREAKPOINTS = 4
_MOST_TOOLS = 10_000
TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
CALL_ID = re.compile(r"[a-zA-Z0-9_-]+")
_THINKING = frozenset[type[Block]]({Thinking, RedactedThinking})
_ROLES: dict[type[Block], str] = {
    **dict.fromkeys(_THINKING | {ToolUse}, "assistant"),
    **dict.fromkeys((ToolResult, Image), "user"),
}


def validate(request: ModelRequest, profile: ModelProfile | None = None) -> None:
    """Check a request against the rules of the Messages API.

    Args:
        request: What is about to be sent.
        profile: The model's profile, for the rules that differ between models; None checks only the common ones.

    Raises:
        InvalidRequest: The API would refuse it; the message names the rule and the place, such as
            ``messages[4].content[1]``.
    """
    Validator(profile).validate(request)


class Validator:
    """Checks the requests of one run as ``validate`` does, but only the parts that the previous request lacked."""

    def __init__(self, profile: ModelProfile | None = None) -> None:
        self._profile = profile
        self._passed: ModelRequest | None = None  # the last request that broke no rule
        self._calls: dict[str, tuple[int, int]] = {}  # the place of each call in it, by id, in order

    def validate(self, request: ModelRequest) -> None:
        """Check a request; see ``validate``."""
        passed, self._passed = self._passed, None
        messages, calls = request.messages, self._calls
        _check_sizes(request, self._profile)
        if passed is None or request.system is not passed.system or request.tools is not passed.tools:
            _check_tools(request.tools)
            for at, block in enumerate(request.system):
                if not isinstance(block, Text | RawBlock):
                    _refuse(f"system[{at}]", f"must be text, got {type(block).__name__}")
                _check_text(block, f"system[{at}]")
        same = 0 if passed is None else equal_items(passed.messages, messages)
        while calls and calls[next(reversed(calls))][0] >= same:
            calls.popitem()
        for index in range(same, len(messages)):
            expected = _role_expected(messages, index)
            if messages[index].role != expected:
                _refuse(f"messages[{index}].role", f"roles alternate and begin with user; expected {expected}")
            _check_message(messages[index], index, calls)
        last = len(messages) - 1
        if not messages:
            _refuse("messages", "there must be at least one")
        if messages[-1].role == "assistant":
            # A turn that the server paused is sent back as it is; any other is a prefill, which new models refuse.
            if not any(map(is_server_tool, messages[-1].content)):
                _refuse(f"messages[{last}].role", "the last message must be the user's")
            for call, at in _asked_in(last, calls).items():
                _refuse(f"messages[{last}].content[{at}]", f"call {call!r} has no result")
        _check_breakpoints(request, self._profile)
        self._passed = request


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


def _role_expected(messages: tuple[Message, ...], index: int) -> str:
    message = messages[index]
    if not index:
        # A provider's summary stands first, at the head of the turn that followed it.
        return message.role if message.content and is_compaction(message.content[0]) else "user"
    return "user" if messages[index - 1].role == "assistant" else "assistant"


def _check_message(message: Message, index: int, calls: dict[str, tuple[int, int]]) -> None:
    """Check the blocks of a message.

    Every call has exactly one result, in the next message, results first; every result belongs to a call.

    Args:
        message: The message.
        index: Its place in the request.
        calls: The places of earlier calls; its own are added.
    """
    if not message.content:
        _refuse(f"messages[{index}].content", "must not be empty")
    asked = _asked_in(index - 1, calls)
    results = 0  # so far
    for at, block in enumerate(message.content):
        if isinstance(block, Text) and block.text and not block.text[0].isspace():
            continue  # most blocks
        place = f"messages[{index}].content[{at}]"
        if _ROLES.get(type(block), message.role) != message.role:
            _refuse(place, f"{type(block).__name__} belongs to the {_ROLES[type(block)]}")
        if isinstance(block, ToolUse):
            if not CALL_ID.fullmatch(block.id):
                _refuse(f"{place}.id", f"{block.id!r} must be of a-z, A-Z, 0-9, _ and -")
            if not TOOL_NAME.fullmatch(block.name):
                _refuse(f"{place}.name", f"{block.name!r} must be 1 to 128 of a-z, A-Z, 0-9, _ and -")
            if block.id in calls:
                _refuse(f"{place}.id", f"{block.id!r} was used before")
            calls[block.id] = index, at
        elif isinstance(block, ToolResult):
            if results < at:
                _refuse(place, "results must come first in their message")
            results += 1
            if asked.pop(block.tool_use_id, None) is None:
                again = calls.get(block.tool_use_id, (-1, 0))[0] == index - 1
                which = "which the message before did not ask for" if not again else "which there is already"
                _refuse(place, f"{'a second ' * again}result of {block.tool_use_id!r}, {which}")
            for number, part in enumerate(block.content if isinstance(block.content, tuple) else ()):
                _check_text(part, f"{place}.content[{number}]")
                if block.is_error and not isinstance(part, Text):
                    _refuse(f"{place}.content[{number}]", "an error's content must be text")
        elif isinstance(block, RawBlock):
            kind = block.raw.get("type")
            if not isinstance(kind, str):
                _refuse(place, "has no type")
            if message.role == "assistant" and (kind in KNOWN_TYPES or is_document(block)):
                _refuse(place, f"a block of type {kind!r} lacks a field, or belongs to the user")
            if kind == "compaction" and (index or at):
                _refuse(place, "a compaction block must be the first of all")
        else:
            _check_text(block, place)
    for call, at in asked.items():
        _refuse(f"messages[{index - 1}].content[{at}]", f"call {call!r} has no result in the next message")
    if message.role == "assistant" and type(message.content[-1]) in _THINKING:
        _refuse(f"messages[{index}]", "an assistant's turn must not end with thinking")


def _check_text(block: Block, place: str) -> None:
    if isinstance(block, Text) and not block.text.strip():
        _refuse(place, "text must not be blank")


def _asked_in(index: int, calls: dict[str, tuple[int, int]]) -> dict[str, int]:
    """The calls in the message with this index and their places in it, if no later message has calls."""
    found: dict[str, int] = {}
    for call in reversed(calls):
        if calls[call][0] != index:
            break
        found[call] = calls[call][1]
    return found


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
        if place >= 0 and _THINKING.issuperset(map(type, request.messages[place].content)):
            _refuse(f"breakpoints[{index}]", f"message {place} has no block that can carry a marker")
        if point.ttl == "1h" and short:
            _refuse(f"breakpoints[{index}]", "a 1-hour marker must not follow a 5-minute one")
        before, short = place, short or point.ttl == "5m"
