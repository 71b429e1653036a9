"""Measures how much a request still contains of what the turn that answers it uses.

Everything is found in the recording and in the requests that were really sent; how a view is made does not matter.

**identifiers**: of those that a turn takes from results, the share that occurs anywhere in its request.

**facts**: the same, but a line that holds the identifier must be there too: as it was, or 60% of its other words
within 240 characters of the identifier. A line that consists of the identifier alone is there if the identifier is.

**lines**: of the lines (twelve characters, two words, no line numbers) that a turn repeats from results, the share
that is in its request word for word.

**own_lines**, **own_facts**: the same for what a turn takes from the agent's earlier texts and arguments.

Each is counted by age, in iterations since the newest source, and separately for what has **left** verbatim view: no
source of it is in the request as the original block.

**bare names**: the characters, in texts that are not recorded blocks (stubs, trails, summaries, notices), of names
without a sentence, call or line of the recording around them; each text of a run is counted once.

**reading again**: for each missing fact and line of a result, the smallest result that holds it would have to be
written once more, in one more call with the same prompt. What was read again counts as present for ten iterations.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from repertory.llm.estimate import estimate_tokens
from repertory.llm.messages import Block, Message, Text, ToolResult, ToolUse, text_of
from repertory.llm.model import ModelRequest
from repertory.replay.bare_names import BareNames
from repertory.replay.needs import AGES, Need, Needs, Source, needs_of
from repertory.replay.recording import RecordedRun
from repertory.replay.words import TOKENIZERS, places_of, spoken, without_gutter, words_of

UNION = "union"
KINDS = (UNION, *TOKENIZERS)
MEASURES = ("facts", "lines", "own_facts", "own_lines")
OLD = AGES[-1:]
"""The ages of more than ten iterations."""

_REREAD_FOR = 10  # iterations for which what was read again counts as in view
_NEAR = 240  # characters on each side of an identifier
_MIN_SHARE = 0.6  # of a line's words
_WORD = re.compile(r"\w+")


class Meaning(msgspec.Struct, kw_only=True):
    """How much requests contained of what was needed.

    Attributes:
        counts: Counts by measure or tokenizer, age, whether all sources have left verbatim view, and whether the
            request contains it.
        blind: Number of requests that lacked an identifier that their turn used.
        bare_chars: Characters of bare names.
        standing_chars: Characters of all texts that are not recorded blocks.
        result_tokens: Tokens of all results that were followed by a request.
        whole_tokens: Those of them whose result was whole in the request right after its call.
        without_task: Number of requests that do not contain the task word for word.
    """

    counts: Counter[tuple[str, str, bool, bool]] = msgspec.field(default_factory=Counter[tuple[str, str, bool, bool]])
    blind: int = 0
    bare_chars: int = 0
    standing_chars: int = 0
    result_tokens: int = 0
    whole_tokens: int = 0
    without_task: int = 0

    def add(self, other: Meaning) -> None:
        """Add the counts of other requests."""
        for field in self.__struct_fields__:
            setattr(self, field, getattr(self, field) + getattr(other, field))

    def needed(self, measure: str) -> int:
        """Return how many of a measure were needed."""
        return sum(count for (name, *_), count in self.counts.items() if name == measure)

    def share(self, measure: str, *, ages: Sequence[str] = AGES, left: bool = False) -> float | None:
        """Return the share that was in view, from 0 to 1; None if nothing was needed.

        Args:
            measure: One of ``MEASURES``, a tokenizer, or ``union``.
            ages: The ``AGES`` that count.
            left: Whether only what has left verbatim view counts.
        """
        missed = found = 0
        for (name, age, gone, seen), count in self.counts.items():
            if name == measure and age in ages and (gone or not left):
                found += count * seen
                missed += count * (not seen)
        return found / (found + missed) if found + missed else None


class _Shown(msgspec.Struct, frozen=True):
    """A block of a request.

    Attributes:
        block: The block, referenced so that its ``id`` is not reused.
        words: What a reader sees of the block.
        source: The source that it is verbatim: whether the agent's own, and the words; None if it cannot be a source.
    """

    block: Block
    words: str
    source: tuple[bool, str] | None


class Meter:
    """Measures the requests of one run, one after another.

    Args:
        needs: The answer of ``needs_of`` for the run, if it is known already.

    Attributes:
        found: What the requests contained.
    """

    def __init__(self, run: RecordedRun, needs: Needs | None = None) -> None:
        self._run = run
        self._needs = needs_of(run) if needs is None else needs
        self._bare_names = BareNames(self._needs.texts, run.tools)
        self._known_texts = set(self._needs.texts)
        self._shown: dict[int, _Shown] = {}
        self._lines: dict[tuple[str, Source], dict[str, set[str]]] = {}
        self._read_again: dict[Source, int] = {}  # with the iteration of each
        self.found = Meaning()

    def see(self, iteration: int, request: ModelRequest) -> int:
        """Measure a request.

        Args:
            iteration: Iteration of the recorded turn that answers it, from 1.

        Returns:
            Tokens of the results that would have to be read again.
        """
        shown = [self._look_up_block(block, "user") for block in request.system]
        shown += [self._look_up_block(block, message.role) for message in request.messages for block in message.content]
        view = "\n".join([each.words for each in shown])
        verbatim = {each.source for each in shown if each.source is not None}
        missing: list[Need] = []
        lacks_name = False
        for need in self._needs.turns[iteration - 1]:
            left = not any((source.own, source.text) in verbatim for source in need.sources)
            seen = not left or need.text in view
            measure = "own_lines" if need.own else "lines"
            if need.kinds:
                measure = "own_facts" if need.own else "facts"
                if not need.own:
                    lacks_name = lacks_name or not seen
                    for kind in (UNION, *need.kinds):
                        self.found.counts[kind, need.bucket, left, seen] += 1
                seen = seen and (not left or self._is_fact_in_view(need, view))
            self.found.counts[measure, need.bucket, left, seen] += 1
            if not seen and not need.own:
                missing.append(need)
        self.found.blind += lacks_name
        self.found.without_task += self._run.task not in view
        if iteration > 1:
            self._count_arrivals(request.messages[-1], self._run.turns[iteration - 2].results.values())
        if len(self._shown) > 4 * len(shown) + 1_000:  # earlier views showed these blocks, this one does not
            self._shown = {id(each.block): each for each in shown}
        return self._read_missing(missing, iteration)

    def _look_up_block(self, block: Block, role: str) -> _Shown:
        known = self._shown.get(id(block))
        if known is None:
            words = words_of(block)
            source = None
            if isinstance(block, ToolResult):
                source = (False, words)
            elif role == "assistant" and isinstance(block, Text | ToolUse):
                source = (True, spoken((block,)))
            known = self._shown[id(block)] = _Shown(block, words, source)
            if not isinstance(block, ToolUse) and words and words not in self._known_texts:
                bare, standing = self._bare_names.count(words)
                self.found.bare_chars += bare
                self.found.standing_chars += standing
                self._known_texts.add(words)  # a text that stays is counted once
        return known

    def _is_fact_in_view(self, need: Need, view: str) -> bool:
        """Whether a line that holds an identifier is in view, or most of its words are around the identifier there."""
        name = need.text
        lines = {line: others for source in need.sources for line, others in self._lines_with(name, source).items()}
        if any(len(text) > _NEAR and text in view for text in lines):  # its words may be too far away to count as near
            return True
        for at in places_of(name, view):
            end = at + len(name)
            near = {*_WORD.findall(view, max(0, at - _NEAR), at), *_WORD.findall(view, end, end + _NEAR)}
            if any(len(others & near) >= _MIN_SHARE * len(others) for others in lines.values()):
                return True
        return False

    def _lines_with(self, name: str, source: Source) -> dict[str, set[str]]:
        """Return the lines of a source that hold a name, each with its other words."""
        known = self._lines.get((name, source))
        if known is None:
            known = self._lines[name, source] = {}
            own, text = set(_WORD.findall(name)), source.text
            for at in places_of(name, text):
                end = text.find("\n", at)
                line = without_gutter(text[text.rfind("\n", 0, at) + 1 : len(text) if end < 0 else end])
                known[line] = set(_WORD.findall(line)) - own
        return known

    def _read_missing(self, missing: Sequence[Need], iteration: int) -> int:
        """Read again the results that hold what is missing, and return their tokens."""
        tokens = 0
        for need in missing:
            if any(iteration - self._read_again.get(source, -_REREAD_FOR) < _REREAD_FOR for source in need.sources):
                continue
            smallest = min(need.sources, key=lambda source: len(source.text))
            self._read_again[smallest] = iteration
            tokens += estimate_tokens(smallest.text)
        return tokens

    def _count_arrivals(self, message: Message, results: Iterable[ToolResult]) -> None:
        now = {block.tool_use_id: block for block in message.content if isinstance(block, ToolResult)}
        for result in results:
            tokens = estimate_tokens(result)
            self.found.result_tokens += tokens
            shown = now.get(result.tool_use_id)
            if shown is not None and text_of(shown) == text_of(result):
                self.found.whole_tokens += tokens
