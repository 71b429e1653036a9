"""What a sub-agent is given to begin with: its task, what its lead shares, and why an earlier attempt failed."""

from __future__ import annotations

from typing import Final

from repertory.agents.live import LiveRun
from repertory.agents.tasks import show_task
from repertory.llm.messages import Text
from repertory.record import Draft

SHARED_TOKENS: Final = 4_000
"""Of a lead's record, what is handed on. It stays in view for the whole run: a 25th of a comfortable prompt."""


async def first_drafts(live: LiveRun) -> list[Draft]:
    """Make the first entries of a run, oldest first."""
    options = live.started.options
    drafts = [Draft(role="user", kind="task", content=(Text(show_task(live.agent, live.started.task)),))]
    if failed := options.get("failed"):
        text = f"[An earlier attempt at this task failed: {failed}]"
        drafts.append(Draft(role="user", kind="retry-context", content=(Text(text),)))
    return drafts
