"""What each turn of a recorded run takes from before it, and where that stood. No view has a part in this."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from repertory.llm.messages import text_of
from repertory.replay.identifiers import kinds_of
from repertory.replay.recording import RecordedRun
from repertory.replay.words import lines_of, spoken

AGES = ("1", "2-3", "4-10", "over_10")


class Source(msgspec.Struct, frozen=True):
    """One result, or one text or one call of the agent.

    Attributes:
        own: Whether the agent wrote it.
        text: Its words; of a call the keys and values of its arguments.
        iteration: When it came, from 1.
    """

    own: bool
    text: str
    iteration: int


class Need(msgspec.Struct, frozen=True):
    """Something that a turn takes from results, or from the agent's own words.

    Attributes:
        text: The identifier, or the line.
        kinds: The tokenizers that find the identifier in the turn; nothing for a line.
        own: Whether it is taken from the agent's own words.
        age: Iterations since the newest source of it; 1 for the iteration right before.
        sources: All that hold it, of that sort, by their place among the run's sources, oldest first.
    """

    text: str
    kinds: tuple[str, ...]
    own: bool
    age: int
    sources: tuple[int, ...]

    @property
    def bucket(self) -> str:
        """The one of ``AGES`` that the age belongs to."""
        return AGES[(self.age > 1) + (self.age > 3) + (self.age > 10)]


class Needs(msgspec.Struct, frozen=True):
    """What the turns of a run need.

    Attributes:
        sources: All results and all words of the agent, in their order.
        turns: For each turn, what it takes.
        given: What the recorder and the user said: instructions, task, remarks. It is never needed.
    """

    sources: list[Source]
    turns: list[tuple[Need, ...]]
    given: list[str]


def needs_of(run: RecordedRun, *, on_turn: Callable[[], None] = lambda: None) -> Needs:
    """Find what each turn of a run takes from results and from the agent's earlier words.

    An identifier belongs to who said it first, a result or the agent; a line to who said it last, so that it is no
    older than it has to be. What the task or the user said before does not count: no view loses that.

    Args:
        run: What was recorded.
        on_turn: Called after every turn.
    """
    heard = _Heard()
    given = [run.system, run.task]
    for text in given:
        heard.give(text)
    turns: list[tuple[Need, ...]] = []
    for iteration, turn in enumerate(run.turns, 1):
        turns.append(tuple(heard.needs(spoken(turn.content), iteration)))
        for block in turn.content:
            heard.add(Source(True, spoken((block,)), iteration))
        for result in turn.results.values():
            heard.add(Source(False, text_of(result), iteration))
        for said in turn.said:
            given.append(said)
            heard.give(said)
        on_turn()
    return Needs(heard.sources, turns, given)


class _Heard:
    """Where every identifier and every line of a run stood so far."""

    def __init__(self) -> None:
        self.sources: list[Source] = []
        self._names: dict[str, list[int]] = {}  # the places of those that hold it
        self._lines: dict[str, list[int]] = {}
        self._given: set[str] = set()  # names and lines

    def give(self, text: str) -> None:
        """Take in what the user said: from then on it is not needed, unless somebody had said it before."""
        self._given.update(name for name in kinds_of(text) if name not in self._names)
        self._given.update(line for line in lines_of(text) if line not in self._lines)

    def add(self, source: Source) -> None:
        """Take in a result, or words of the agent."""
        place = len(self.sources)
        self.sources.append(source)
        for name in kinds_of(source.text):
            self._names.setdefault(name, []).append(place)
        for line in lines_of(source.text):
            self._lines.setdefault(line, []).append(place)

    def needs(self, words: str, iteration: int) -> Iterator[Need]:
        """What a turn takes, in an order that is always the same."""
        for name, kinds in sorted(kinds_of(words).items()):
            if name in self._names and name not in self._given:
                places = self._names[name]
                yield self._need(name, tuple(kinds), places, self.sources[places[0]].own, iteration)
        for line in sorted(lines_of(words)):
            if line in self._lines and line not in self._given:
                places = self._lines[line]
                yield self._need(line, (), places, self.sources[places[-1]].own, iteration)

    def _need(self, text: str, kinds: tuple[str, ...], places: Sequence[int], own: bool, iteration: int) -> Need:
        holders = tuple(place for place in places if self.sources[place].own is own)
        return Need(text, kinds, own, iteration - self.sources[holders[-1]].iteration, holders)
