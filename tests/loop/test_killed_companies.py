"""A company whose process is killed again and again, with sub-agents in the background."""

from __future__ import annotations

import random
from pathlib import Path

import anyio
from killed_company import PARTS

from killing import kill, play
from repertory.llm.messages import ToolResult, ToolUse
from repertory.record import FINAL_STATES, open_journal

COMPANY = Path(__file__).with_name("killed_company.py")
KILLS = 8


def test_a_killed_company_reports_every_part_once_and_leaves_nothing_open(tmp_path: Path) -> None:
    """Wherever the kills fall: the same five runs go on, each call has one result, and nothing is delegated twice."""
    path, chance = tmp_path / "runs.db", random.Random(7)
    kills = sum(kill(COMPANY, path, after=chance.randint(1, 6), chance=chance) for _ in range(KILLS))
    assert kills > 0  # however busy the machine is, the first life does not come to its end
    answer = play(COMPANY, path)
    assert sorted({*answer}) == [f"counted {part}" for part in PARTS]

    async def look() -> None:
        async with open_journal(path, readonly=True) as journal:
            rows = await journal.read_runs()
            assert {row.state for row in rows} <= FINAL_STATES
            assert sorted(row.started.task for row in rows if row.started.parent_id) == PARTS
            for row in rows:
                entries = await journal.read_entries(row.started.run_id)
                blocks = [block for entry in entries for block in entry.content]
                asked = sorted(block.id for block in blocks if isinstance(block, ToolUse))
                assert asked == sorted(block.tool_use_id for block in blocks if isinstance(block, ToolResult))

    anyio.run(look)
