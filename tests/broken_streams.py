"""A grammar of broken answers: what a server, a proxy or a gateway could send in place of a good stream.

``broken_answer(seed)`` gives the same answer for the same seed, so a failure is replayed by its number alone.
"""

from __future__ import annotations

import copy
import gzip
import json
import random
from collections.abc import Callable
from typing import Any

from repertory.llm import ModelResponse, Text, ToolUse, Usage
from repertory.llm.messages import Thinking
from repertory.testing.faults import Raw
from repertory.testing.wire import events_of

Event = Any

DEEP = "[" * 100_000 + "]" * 100_000
ODD: list[Any] = [
    None, True, False, 0, -1, 10**30, -(10**30), 1e308, 2.5, 12.0, "", "0", "text", "12", [], {}, [[]], [None],
    {"type": {}}, "\ud800", "x" * 5_000, {"a": {"b": {"c": [1, 2, {"d": None}]}}},
]  # fmt: skip
RETRY_AFTER = [
    "Fri, 31 Dec 99999 23:59:59 GMT", "Mon, 99 Foo 2026 99:99:99 GMT", "Thu, 01 Jan 1970 00:00:00 GMT", "-5", "nan",
    "inf", "-inf", "1e-9", "0", "", ",", "Sat, 30 Feb 2027 25:61:61 +9999", "Tue, 0 Jan 0 0:0:0 GMT", "\xff", "9" * 400,
    "Mon, 01 Jan 2024 00:00:00 +99999999999999",
]  # fmt: skip


def broken_answer(seed: int) -> Raw:
    """One HTTP response that is probably no good answer."""
    chance = random.Random(seed)
    if chance.random() < 0.15:
        return _broken_refusal(chance)
    events: list[Event] = list(events_of(_answer(chance)))
    for _ in range(chance.randint(1, 3)):
        chance.choice(EVENT_MUTATIONS)(events, chance)
        events = copy.deepcopy(events)  # so that the next one changes none of the odd values themselves
    lines = [_written(event, chance) for event in events]
    for _ in range(chance.choice((0, 0, 1, 2))):
        lines.insert(chance.randint(0, len(lines)), chance.choice(LINES))
    body = b"".join(lines)
    if chance.random() < 0.1:
        body = body[: chance.randint(0, len(body))]
    return _sent(body, chance)


def _answer(chance: random.Random) -> ModelResponse:
    blocks = [
        Thinking("Let me see. " * chance.randint(1, 9), "c2ln"),
        Text("Words, and more of them. " * chance.randint(0, 9)),
        ToolUse("toolu_1", "add", {"a": 1, "b": [2, {"c": "three"}]}),
        ToolUse("toolu_2", "stop", {}),
    ]
    content = tuple(block for block in blocks if chance.random() < 0.7)
    usage = Usage(*(chance.randint(0, 9_999) for _ in range(5)))
    stop = chance.choice(("end_turn", "tool_use", "max_tokens", "refusal", "pause_turn"))
    return ModelResponse(content=content, stop_reason=stop, usage=usage, model="m", response_id="msg_1")


def _broken_refusal(chance: random.Random) -> Raw:
    status = chance.choice((204, 300, 304, 307, 400, 401, 404, 413, 418, 429, 500, 503, 529, 599))
    error: Any = {"type": chance.choice(ODD), "error": {"type": chance.choice(ODD), "message": chance.choice(ODD)}}
    body = json.dumps(chance.choice((error, {"error": chance.choice(ODD)}, chance.choice(ODD)))).encode()
    body = chance.choice((body, body, DEEP.encode(), b"\xff\xfe", b"", b"{" * 200_000))
    headers = {"retry-after": chance.choice(RETRY_AFTER), "x-should-retry": chance.choice(("true", "false", "?"))}
    if status < 400:
        headers["location"] = chance.choice(
            ("http://[", "//", "\xff", "http://127.0.0.1:1/v1/messages", "/v1/messages")
        )
    if status in (204, 304):
        body = b""
    return Raw(status, {"content-type": "application/json", **headers}, body)


def _sent(body: bytes, chance: random.Random) -> Raw:
    headers = {"content-type": "text/event-stream"}
    match chance.randint(0, 19):
        case 0:
            headers["content-type"] = chance.choice(("application/json", "", "text/html; charset=\xff"))
        case 1:
            headers["content-encoding"] = "gzip"
            body = gzip.compress(body, mtime=0)
        case 2:
            headers["content-encoding"] = chance.choice(("gzip", "deflate", "br", "zstd", "gzip, gzip, gzip", "none"))
        case 3:
            body = body.replace(b"\n", b"\r\n")
        case 4:
            headers["retry-after"] = chance.choice(RETRY_AFTER)
        case _:
            pass
    return Raw(200, headers, body)


# --- what happens to events -------------------------------------------------------------------------------------------


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every container and key in a JSON value."""
    found: list[tuple[Any, Any]] = []
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(pairs):
        found.append((value, key))
        found.extend(_places(inner))
    return found


def _drop(events: list[Event], chance: random.Random) -> None:
    if events:
        del events[chance.randrange(len(events))]


def _repeat(events: list[Event], chance: random.Random) -> None:
    if events:
        events.insert(chance.randint(0, len(events)), json.loads(json.dumps(chance.choice(events))))


def _swap(events: list[Event], chance: random.Random) -> None:
    if events:
        first, second = chance.randrange(len(events)), chance.randrange(len(events))
        events[first], events[second] = events[second], events[first]


def _cut(events: list[Event], chance: random.Random) -> None:
    del events[chance.randint(0, len(events)) :]


def _reverse(events: list[Event], chance: random.Random) -> None:
    events.reverse()


def _remove_key(events: list[Event], chance: random.Random) -> None:
    places = [(where, key) for where, key in _places(events) if isinstance(where, dict)]
    if places:
        where, key = chance.choice(places)
        del where[key]


def _odd_value(events: list[Event], chance: random.Random) -> None:
    places = _places(events)
    if places:
        where, key = chance.choice(places)
        where[key] = chance.choice(ODD)


def _odd_index(events: list[Event], chance: random.Random) -> None:
    indexed = [event for event in events if isinstance(event, dict) and "index" in event]
    for event in chance.sample(indexed, min(len(indexed), chance.randint(1, 3))):
        event["index"] = chance.choice([*ODD, 0, 1, 2, 7])


def _odd_usage(events: list[Event], chance: random.Random) -> None:
    names = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "iterations")
    usage: Any = {name: chance.choice([*ODD, -1_000_000, 10**15]) for name in names if chance.random() < 0.7}
    usage["cache_creation"] = chance.choice([*ODD, {"ephemeral_1h_input_tokens": chance.choice(ODD)}])
    usage["iterations"] = chance.choice([*ODD, [usage.copy(), {"iterations": [{}]}]])
    usage = chance.choice((usage, usage, *ODD))
    for event in events:
        if isinstance(event, dict) and isinstance(event.get("message"), dict):
            event["message"]["usage"] = usage
        elif isinstance(event, dict) and event.get("type") == "message_delta":
            event["usage"] = usage


def _foreign_event(events: list[Event], chance: random.Random) -> None:
    kind = chance.choice(("error", "weather", "content_block_delta", "message_stop", "message_start", "ping", "", None))
    event = {"type": kind, "index": chance.choice(ODD), "delta": chance.choice(ODD), "error": chance.choice(ODD)}
    events.insert(chance.randint(0, len(events)), event)


def _foreign_delta(events: list[Event], chance: random.Random) -> None:
    names = ("text", "thinking", "signature", "partial_json", "citation", "sketch")
    kind = chance.choice(("text_delta", "thinking_delta", "input_json_delta", "citations_delta", "sketch_delta"))
    delta = {"type": kind, **{name: chance.choice(ODD) for name in names if chance.random() < 0.6}}
    event = {"type": "content_block_delta", "index": chance.randint(0, 3), "delta": delta}
    events.insert(chance.randint(0, len(events)), event)


def _nested(events: list[Event], chance: random.Random) -> None:
    if events:
        place = chance.randrange(len(events))
        events[place] = {
            "type": chance.choice(("message_start", "x")),
            "message": events[place],
            "delta": events[place],
        }


EVENT_MUTATIONS: list[Callable[[list[Event], random.Random], None]] = [
    _drop, _repeat, _swap, _cut, _reverse, _remove_key, _odd_value, _odd_value, _odd_value, _odd_index, _odd_usage,
    _foreign_event, _foreign_delta, _nested,
]  # fmt: skip

LINES = [
    b"\n", b"\r\n\r\n", b": a comment\n\n", b"event: ping\n\n", b"data\n\n", b"data:\n\n", b"data: [DONE]\n\n",
    b"data: [1]\n\n", b'data: "text"\n\n', b"data: null\n\n", b"data: {\n\n", b"data: {}\n\n", b"data: {\ndata: }\n\n",
    b'data: {"type": NaN}\n\n', b'data: {"type": 1, "type": "x"}\n\n', b"\xef\xbb\xbf", b"\xff\xfe\x00\n\n",
    b'data: {"type": "\xff"}\n\n', b'data: {"type": "\\ud800"}\n\n', b"data: " + DEEP.encode() + b"\n\n",
    b'data: {"type": "x", "deep": ' + DEEP[99_500:-99_500].encode() + b"}\n\n", b"retry: 99999999999999999999\n\n",
    b"id: \x00\n\n", b"data: " + b"9" * 6_000 + b"\n\n", b'data: {"type": ' + b"9" * 6_000 + b"}\n\n", b"\r" * 50,
]  # fmt: skip


def _written(event: Event, chance: random.Random) -> bytes:
    data = json.dumps(event, ensure_ascii=True).encode()
    if chance.random() < 0.02:
        data = data.replace(b'"index": 0', b'"index": 0, "deep": ' + DEEP[99_600:-99_600].encode())
    if chance.random() < 0.02:
        return b"data:" + data.replace(b", ", b",\ndata: ", 1) + b"\n\n"
    return b"event: x\ndata: " + data + b"\n\n"
