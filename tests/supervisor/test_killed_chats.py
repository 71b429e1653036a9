"""A chat whose process is killed again and again."""

from __future__ import annotations

import random
from pathlib import Path

import anyio
from killed_chat import QUESTIONS, RUN_ID

from killing import kill, play
from repertory.llm.messages import ToolResult, ToolUse, text_of
from repertory.record import open_journal

CHAT = Path(__file__).with_name("killed_chat.py")
KILLS = 8


def test_a_killed_chat_has_every_question_once_and_one_answer_to_each(tmp_path: Path) -> None:
    """Wherever the kills fall: nothing is lost, nothing is asked twice, and every call has one result."""
    path, chance = tmp_path / "runs.db", random.Random(11)
    kills = sum(kill(CHAT, path, after=chance.randint(1, 3), chance=chance) for _ in range(KILLS))
    assert kills > 0  # however busy the machine is, the first life does not come to its end
    expected = [f"I counted: {number}? has some jars" for number in range(len(QUESTIONS))]
    assert play(CHAT, path) == expected

    async def look() -> None:
        async with open_journal(path, readonly=True) as journal:
            (row,) = await journal.read_runs()
            entries = await journal.read_entries(RUN_ID)
        assert row.state == "done"
        asked = [(entry.message_id, text_of(entry.content)) for entry in entries if entry.kind == "user-input"]
        assert asked == [(f"q{number}", question) for number, question in enumerate(QUESTIONS)]
        answers = [text_of(entry.content) for entry in entries if entry.role == "assistant" and text_of(entry.content)]
        assert answers == [expected[0], *expected]
        blocks = [block for entry in entries for block in entry.content]
        calls = [block.id for block in blocks if isinstance(block, ToolUse)]
        assert calls == [block.tool_use_id for block in blocks if isinstance(block, ToolResult)]

    anyio.run(look)
