"""Whether the model was shown what its next turn goes on to use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from repertory.llm.messages import Block, Text, ToolUse, text_of
from repertory.replay.identifiers import TOKENIZERS, leaves
from repertory.replay.recording import RecordedRun

UNION = "union"
KINDS = (UNION, *TOKENIZERS)
AGES = ("1", "2-3", "4-10", "over_10")


class Need(msgspec.Struct, frozen=True):
    """An identifier that a turn uses and that a tool result brought into the run.

    Attributes:
        name: The identifier.
        kinds: The tokenizers that find it in the turn, and ``union``.
        age: Iterations since the newest call whose result held it; 1 for the iteration right before.
    """

    name: str
    kinds: tuple[str, ...]
    age: int

    @property
    def bucket(self) -> str:
        """The one of ``AGES`` that the age belongs to."""
        return AGES[(self.age > 1) + (self.age > 3) + (self.age > 10)]


def needs_of(run: RecordedRun, *, on_turn: Callable[[], None] = lambda: None) -> list[tuple[Need, ...]]:
    """What each turn of a run needs: the identifiers in its words and calls that first stood in a tool result.

    What the task, the user or the model itself said first does not count: no result has to be remembered for it.

    Args:
        run: What was recorded.
        on_turn: Called after every turn.
    """
    from_result: dict[str, bool] = {}  # whether a result said it first
    newest: dict[str, int] = {}  # the iteration of the newest result that holds it
    needed: list[tuple[Need, ...]] = []

    def hear(text: str, iteration: int | None) -> None:
        for name in _kinds_by_name(text):
            from_result.setdefault(name, iteration is not None)
            if iteration is not None:
                newest[name] = iteration

    hear(run.system, None)
    hear(run.task, None)
    for iteration, turn in enumerate(run.turns, 1):
        used = _kinds_by_name(spoken(turn.content))
        needed.append(
            tuple(
                Need(name, (UNION, *kinds), iteration - newest[name])
                for name, kinds in sorted(used.items())
                if from_result.setdefault(name, False)
            )
        )
        for result in turn.results.values():
            hear(text_of(result), iteration)
        for said in turn.said:
            hear(said, None)
        on_turn()
    return needed


def _kinds_by_name(text: str) -> dict[str, list[str]]:
    """The identifiers in a text, each with the tokenizers that find it."""
    found: dict[str, list[str]] = {}
    for kind, tokenize in TOKENIZERS.items():
        for name in tokenize(text):
            found.setdefault(name, []).append(kind)
    return found


def spoken(content: Sequence[Block]) -> str:
    """The words of a turn: its text and the arguments of its calls."""
    parts: list[str] = []
    for block in content:
        if isinstance(block, Text):
            parts.append(block.text)
        elif isinstance(block, ToolUse):
            parts.append(leaves(block.input))
    return "\n".join(parts)


class Recall:
    """Counts what was needed and what of it was in view."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str, bool]] = Counter()  # by tokenizer, age, and whether it was in view
        self.blind = 0  # requests that lacked something: one retrieval each, at least

    def look(self, needs: Sequence[Need], shown: str) -> None:
        """Count what one turn needs.

        Args:
            needs: What the turn uses.
            shown: Everything that its request says.
        """
        lacks = False
        for need in needs:
            found = need.name in shown
            lacks = lacks or not found
            for kind in need.kinds:
                self.counts[kind, need.bucket, found] += 1
        self.blind += lacks
