"""Hand-made recordings: one conversation, in every format that is read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from repertory.errors import RecordingError
from repertory.llm.messages import Text, ToolResult, ToolUse, encode_block
from repertory.replay import RecordedRun, Turn, read_recordings

TASK = "Find out why src/cli/main.py fails."
LISTING = "src/cli/main.py\nsrc/cli/session_store.py\nerror 40417 in parse_header"

MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": TASK},
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I look around."},
            {"type": "tool_use", "id": "call_1", "name": "list", "input": {"path": "src"}},
            {"type": "tool_use", "id": "call_2", "name": "read", "input": {"path": "README"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "call_1", "content": LISTING},
            {"type": "tool_result", "tool_use_id": "call_2", "content": "no such file", "is_error": True},
            {"type": "text", "text": "Hurry up."},
        ],
    },
    {
        "role": "assistant",
        "content": [
            {"type": "tool_use", "id": "call_3", "name": "read", "input": {"path": "src/cli/session_store.py"}}
        ],
    },
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "call_3", "content": "def parse_header(): ..."}],
    },
    {"role": "assistant", "content": [{"type": "text", "text": "parse_header raises 40417."}]},
]

CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "You debug."},
    {"role": "user", "content": TASK},
    {
        "role": "assistant",
        "content": "I look around.",
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "list", "arguments": '{"path": "src"}'}},
            {"id": "call_2", "type": "function", "function": {"name": "read", "arguments": '{"path": "README"}'}},
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": LISTING},
    {"role": "tool", "tool_call_id": "call_2", "content": "no such file"},
    {"role": "user", "content": "Hurry up."},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_3", "function": {"name": "read", "arguments": '{"path": "src/cli/session_store.py"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "call_3", "content": "def parse_header(): ..."},
    {"role": "assistant", "content": [{"type": "text", "text": "parse_header raises 40417."}]},
]


def event(uuid: str, parent: str | None, role: str, content: Any, **more: Any) -> dict[str, Any]:
    """One line of a session file."""
    message = {"role": role, "content": content, **more.pop("message", {})}
    return {"type": role, "uuid": uuid, "parentUuid": parent, "sessionId": "s-1", "message": message, **more}


def session() -> list[dict[str, Any]]:
    """The conversation as Claude Code keeps it, with all that is beside it."""
    text, first, second = MESSAGES[1]["content"]
    result_1, result_2, hurry = MESSAGES[2]["content"]
    answer = {"message": {"id": "msg_1", "model": "claude-opus-4-6", "usage": {"input_tokens": 9, "output_tokens": 5}}}
    return [
        {"type": "file-history-snapshot", "messageId": "x", "snapshot": {}},
        event("u0", None, "user", "A first try.", isSidechain=False),
        event("a0", "u0", "assistant", [{"type": "text", "text": "Taken back."}]),
        event("u1", None, "user", TASK, timestamp="2026-03-01T10:00:00.000Z"),
        event("a1", "u1", "assistant", [{"type": "thinking", "thinking": "Hm.", "signature": "s"}], **answer),
        event("a2", "a1", "assistant", [text], timestamp="2026-03-01T10:00:10.000Z", **answer),
        event("a3", "a2", "assistant", [first], **answer),
        event("r1", "a3", "user", [result_1]),
        event("a4", "a3", "assistant", [second], **answer),
        event("r2", "a4", "user", [result_2]),
        {"type": "system", "uuid": "y1", "parentUuid": "r2", "subtype": "stop_hook_summary", "sessionId": "s-1"},
        event("k1", None, "user", "Look at it.", isSidechain=True, agentId="k"),
        event("k2", "k1", "assistant", [{"type": "text", "text": "Looked."}], isSidechain=True, agentId="k"),
        event("u2", "y1", "user", [hurry]),
        event(
            "a5", "u2", "assistant", MESSAGES[3]["content"], timestamp="2026-03-01T11:00:00Z", message={"id": "msg_2"}
        ),
        event("a6", "a5", "assistant", "Overloaded.", message={"id": "e", "model": "<synthetic>"}),
        event("r3", "a6", "user", MESSAGES[4]["content"]),
        event("a7", "r3", "assistant", MESSAGES[5]["content"], message={"id": "msg_3"}),
    ]


def write(path: Path, *documents: Any, packed: bool = False) -> Path:
    """Write documents, one a line."""
    data = "".join(json.dumps(document) + "\n" for document in documents).encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    return path


def read(path: Path) -> list[RecordedRun]:
    """Read a file in which nothing is wrong."""
    found = list(read_recordings(path))
    assert [run for run in found if isinstance(run, RecordingError)] == []
    return [run for run in found if isinstance(run, RecordedRun)]


def long_run(turns: int, *, size: int = 2_000, parallel: int = 1, pause: int = 0, run_id: str = "long") -> RecordedRun:
    """A run of one kind of call after another; each third turn uses again what a result of long ago brought.

    Args:
        turns: How many.
        size: Characters of each result.
        parallel: Calls of each turn.
        pause: Seconds that pass between turns; 0 for times that nobody recorded.
        run_id: Its name.
    """
    made: list[Turn] = []
    for number in range(turns):
        old = f"module_{number - 12:04d}" if number > 12 and number % 3 == 0 else "next"
        calls = [ToolUse(f"c{number}_{n}", "look", {"what": f"{old} {number}{n}"}) for n in range(parallel)]
        results = {
            call.id: ToolResult(
                call.id, f"module_{number:04d} in pkg/part{number}/file.py\n" + "lorem ipsum " * (size // 12)
            )
            for call in calls
        }
        at = 1_000_000.0 + number * pause if pause else None
        said = ("And then?",) if number % 10 == 9 else ()
        made.append(Turn(content=(Text(f"Step {number}."), *calls), results=results, said=said, at=at))
    return RecordedRun(id=run_id, file="made.jsonl", task=TASK, system="You look things up.", turns=tuple(made))


def as_messages(run: RecordedRun) -> list[dict[str, Any]]:
    """A run as the conversation that it was recorded from."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": run.task}]
    for turn in run.turns:
        messages.append({"role": "assistant", "content": [encode_block(block) for block in turn.content]})
        results = [encode_block(result) for result in turn.results.values()]
        messages.append(
            {"role": "user", "content": [*results, *({"type": "text", "text": said} for said in turn.said)]}
        )
    return messages
