"""Checks that keep an agent from retrieving the same thing for ever, however it asks for it.

Earlier retrievals are read from the record itself, so that the check is also right after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from repertory._counting import counted
from repertory.errors import ToolFailed
from repertory.llm.messages import ToolUse
from repertory.record.entries import Part
from repertory.tools.context import ToolContext
from repertory.tools.repeats import arguments_digest

RETRIEVALS: Final = frozenset({"context_retrieve", "retrieve_content"})
WINDOW: Final = 20  # iterations within which repeated retrievals of the same text are counted


def check_calls(context: ToolContext, max_repeats: int) -> str:
    """A note that says how often the very same retrieval was made before; "" for never.

    Raises:
        ToolFailed: More than ``max_repeats`` times.
    """
    iterations: list[int] = []
    for entry in () if context.record is None else context.record.snapshot():
        for block in entry.content if entry.role == "assistant" else ():
            if not isinstance(block, ToolUse) or block.name not in RETRIEVALS:
                continue
            if block.id == context.call_id:
                break
            if arguments_digest(block.name, block.input) == context.arguments_digest:
                iterations.append(entry.iteration)
    if not iterations:
        return ""
    times, when = len(iterations), _listed(iterations)
    often = counted(times, "time")
    if times > max_repeats:
        raise ToolFailed(f"the very same was retrieved {often} already (iterations {when}), and has not changed")
    return f"[retrieved {often} before, in iteration {when}: the same answer again]\n"


def check_parts(context: ToolContext, parts: Sequence[Part], max_repeats: int) -> None:
    """Check that the same text has not been brought back too often, by whatever arguments.

    An earlier retrieval counts if it brought back more than half of the text. Successive pages have no text in common,
    so a long result can be read to its end.

    Raises:
        ToolFailed: More than ``max_repeats`` times within the last ``WINDOW`` iterations.
    """
    characters = sum(part.end - part.start for part in parts)
    iterations: list[int] = []
    for entry in () if context.record is None else reversed(context.record.snapshot()):
        if entry.iteration <= context.iteration - WINDOW:
            break
        earlier = entry.retrieved
        if earlier is not None and 2 * _common(parts, earlier.parts) > characters:
            iterations.insert(0, entry.iteration)
    if len(iterations) > max_repeats:
        raise ToolFailed(
            f"this was brought back {counted(len(iterations), 'time')} in the last {WINDOW} iterations "
            f"({_listed(iterations)}), by these or other arguments, and has not changed; go on with what you know of it"
        )


def _common(some: Iterable[Part], others: Sequence[Part]) -> int:
    """How many characters of some parts are also in others."""
    return sum(
        max(0, min(part.end, other.end) - max(part.start, other.start))
        for part in some
        for other in others
        if part.source == other.source
    )


def _listed(iterations: Sequence[int]) -> str:
    return ", ".join(str(number) for number in iterations[-5:])
