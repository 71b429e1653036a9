"""What each turn of a recorded run takes from earlier texts, and from which. This does not depend on any view."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from repertory.llm.messages import text_of
from repertory.replay.recording import RecordedRun
from repertory.replay.words import spoken, tokens_of

AGES = ("1", "2-3", "4-10", "over_10")


class Source(msgspec.Struct, frozen=True):
    """One result, or one text or one call of the agent.

    Attributes:
        own: Whether the agent wrote it.
        text: Its words; for a call the keys and values of its arguments.
        iteration: The iteration that it is from, from 1.
    """

    own: bool
    text: str
    iteration: int


class Need(msgspec.Struct, frozen=True):
    """Something that a turn takes from results, or from the agent's own words.

    Attributes:
        text: The identifier, or the line.
        kinds: The tokenizers that find the identifier in the turn; empty for a line.
        own: Whether it is taken from the agent's own words.
        age: Iterations since its newest source; 1 for the iteration right before.
        sources: All sources of that kind (own or results) that hold it, oldest first.
    """

    text: str
    kinds: tuple[str, ...]
    own: bool
    age: int
    sources: tuple[Source, ...]

    @property
    def bucket(self) -> str:
        """The member of ``AGES`` to which the age belongs."""
        return AGES[(self.age > 1) + (self.age > 3) + (self.age > 10)]


class Needs(msgspec.Struct, frozen=True):
    """What the turns of a run need.

    Attributes:
        turns: For each turn, what it takes.
        texts: All texts of the run: results, the agent's words, instructions, task, remarks.
    """

    turns: list[tuple[Need, ...]]
    texts: set[str]


def needs_of(run: RecordedRun) -> Needs:
    """Find what each turn of a run takes from results and from the agent's earlier words.

    An identifier belongs to its first source, a result or the agent; a line to its last source, so that it is no older
    than necessary. What the task or the user said before does not count: no view loses that.
    """
    index: dict[str, list[Source]] = {}  # for each identifier and each line, its sources
    given: set[str] = set()  # of these, what the user said before anybody else
    found = Needs([], set())

    def add_given(text: str) -> None:
        found.texts.add(text)
        given.update(tokens_of(text).keys() - index)

    def add(source: Source) -> None:
        found.texts.add(source.text)
        for token in tokens_of(source.text):
            index.setdefault(token, []).append(source)

    def needs_in(words: str, iteration: int) -> Iterator[Need]:
        """Yield needs in a deterministic order, identifiers first."""
        for token, kinds in sorted(tokens_of(words).items(), key=lambda each: (not each[1], each[0])):
            if token in index and token not in given:
                sources = index[token]
                own = sources[0 if kinds else -1].own
                holders = tuple(source for source in sources if source.own is own)
                yield Need(token, tuple(kinds), own, iteration - holders[-1].iteration, holders)

    add_given(run.system)
    add_given(run.task)
    for iteration, turn in enumerate(run.turns, 1):
        found.turns.append(tuple(needs_in(spoken(turn.content), iteration)))
        for block in turn.content:
            add(Source(True, spoken((block,)), iteration))
        for result in turn.results.values():
            add(Source(False, text_of(result), iteration))
        for said in turn.said:
            add_given(said)
    return found
