"""Looking into a question: search, read around the best hits, note what fits, answer with sources."""

from __future__ import annotations

from repertory.llm.messages import Block
from repertory.llm.offline.toolbox import Toolbox
from repertory.llm.offline.view import View


def next_turn(view: View, toolbox: Toolbox, steps: int) -> list[Block] | None:
    """The next turn of a researcher; None where the tools do not serve."""
    return None
