"""Splitting a question for a team, and composing one answer from what the team found."""

from __future__ import annotations

from repertory.llm.messages import Block
from repertory.llm.offline.toolbox import Toolbox
from repertory.llm.offline.view import View


def next_turn(view: View, toolbox: Toolbox) -> list[Block] | None:
    """The next turn of a lead; None where there is nothing to delegate."""
    return None
