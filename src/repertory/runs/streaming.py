"""Streaming of a model's answers: kept in memory for readers, and never journalled.

All readers of a run share its last few answers, and each reads from its own place. What has arrived since a reader last
looked comes as one piece, so a slow reader holds nothing up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Self, TypeAlias

import msgspec

from repertory._repeated_event import RepeatedEvent
from repertory.llm.model import Retrying, StreamEvent, TextDelta, ThinkingDelta, ToolUseStarted

__all__ = [
    "Piece",
    "PiecesMissed",
    "StreamReader",
    "StreamRestarted",
    "TextStreamed",
    "ThinkingStreamed",
    "ToolCallStreamed",
]

_KEPT: Final = 4  # answers; a reader that is further behind finds older ones in the record


class _Piece(msgspec.Struct, frozen=True, kw_only=True, tag_field="piece", tag=True):
    """A piece of an answer.

    Attributes:
        iteration: The iteration whose answer it is.
    """

    iteration: int


class TextStreamed(_Piece, frozen=True, kw_only=True):
    """More of an answer's text."""

    text: str


class ThinkingStreamed(_Piece, frozen=True, kw_only=True):
    """More of the model's thinking before its answer, as far as the provider shows it."""

    text: str


class ToolCallStreamed(_Piece, frozen=True, kw_only=True):
    """The model has begun to write a tool call; ``ToolStarted`` follows once it is complete."""

    call_id: str
    tool: str


class StreamRestarted(_Piece, frozen=True, kw_only=True):
    """The call broke off and is made again: discard what came so far of this iteration's answer.

    Attributes:
        reason: Why the call broke off, in one line.
    """

    reason: str


class PiecesMissed(_Piece, frozen=True, kw_only=True):
    """The reader was too slow: earlier answers are no longer in memory. The record has them."""


Piece: TypeAlias = TextStreamed | ThinkingStreamed | ToolCallStreamed | StreamRestarted | PiecesMissed
"""Whatever a ``StreamReader`` yields."""


@dataclass(slots=True, eq=False)
class _Answer:
    """The current answer, or one of the last ones.

    Attributes:
        attempt: How often it was restarted.
        restarted: Why it was restarted the last time.
        held: Text that is held back because it may be the beginning of a secret.
    """

    number: int
    iteration: int
    pieces: list[TextDelta | ThinkingDelta | ToolUseStarted] = field(default_factory=list)  # as they came
    attempt: int = 0
    restarted: str = ""
    held: dict[type[TextDelta | ThinkingDelta], str] = field(default_factory=dict)
    done: bool = False


class Stream:
    """The answer that the model of one run is giving, and its last answers.

    Args:
        redact: Replaces secrets.
        reach: Length of the longest secret, 0 if there is none. Almost that much of a text's end is held back, as a
            secret may arrive in pieces.
    """

    def __init__(self, redact: Callable[[str], str], reach: int) -> None:
        self._redact = redact
        self._held_length = max(0, reach - 1)
        self.answers: deque[_Answer] = deque(maxlen=_KEPT)
        self.closed = False
        self.changed = RepeatedEvent()

    def begin(self, iteration: int) -> None:
        """Begin an answer; called again within an iteration if its request has to be made again."""
        last = self.answers[-1] if self.answers else None
        if last is not None and not last.done:
            self._restart(last, "the request is made anew")
        else:
            self.answers.append(_Answer(last.number + 1 if last is not None else 0, iteration))

    def take(self, event: StreamEvent) -> None:
        """Add what the model has sent."""
        answer = self.answers[-1]
        if isinstance(event, TextDelta | ThinkingDelta):
            if self._held_length:
                self._add_redacted(answer, event)
            else:
                answer.pieces.append(event)
        elif isinstance(event, ToolUseStarted):
            self._flush_held(answer)
            answer.pieces.append(event)
        elif isinstance(event, Retrying):
            self._restart(answer, event.reason)
        self.changed.set()

    def finish(self) -> None:
        """End the answer: it is complete."""
        self._flush_held(self.answers[-1])
        self.answers[-1].done = True
        self.changed.set()

    def close(self) -> None:
        """End the stream, as the run has ended: readers end once they have read everything."""
        self.closed = True
        self.changed.set()

    def _add_redacted(self, answer: _Answer, event: TextDelta | ThinkingDelta) -> None:
        """Add a piece, but hold back its end, which may be the beginning of a secret."""
        kind = type(event)
        if kind not in answer.held:  # what came before has ended, and comes before this
            self._flush_held(answer)
        text = self._redact(answer.held.get(kind, "") + _text_of(event))
        text, answer.held[kind] = text[: -self._held_length], text[-self._held_length :]
        if text:
            answer.pieces.append(kind(text))

    def _flush_held(self, answer: _Answer) -> None:
        """Release what was held back, at the end of a text."""
        for kind, text in answer.held.items():
            if text:
                answer.pieces.append(kind(text))
        answer.held.clear()

    def _restart(self, answer: _Answer, reason: str) -> None:
        answer.pieces, answer.restarted = [], self._redact(reason)  # a server may quote anything in it
        answer.attempt += 1
        answer.held.clear()
        self.changed.set()


class StreamReader:
    """An asynchronous iterator over the pieces of a run's answers, until the run ends. Any number may read.

    It begins with the current answer, if there is one, or ``from_start`` with the oldest in memory.
    """

    def __init__(self, stream: Stream, *, from_start: bool = False) -> None:
        self._stream = stream
        last = stream.answers[-1] if stream.answers and not from_start else None
        self._number = 0 if last is None else last.number + last.done  # of the answer being read
        self._attempt = 0 if last is None or last.done else last.attempt
        self._read = 0  # how many of its pieces

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Piece:
        while True:
            piece = self._next()
            if piece is not None:
                return piece
            if self._stream.closed:
                raise StopAsyncIteration
            await self._stream.changed.wait()

    def _next(self) -> Piece | None:
        for answer in self._stream.answers:
            if answer.number < self._number:
                continue
            if answer.number > self._number:
                return self._skip_to(answer)
            if answer.attempt != self._attempt:
                seen, self._attempt, self._read = self._read > 0, answer.attempt, 0
                if seen:
                    return StreamRestarted(iteration=answer.iteration, reason=answer.restarted)
            if self._read < len(answer.pieces):
                return self._take(answer)
            if not answer.done:
                return None
            self._number, self._attempt, self._read = answer.number + 1, 0, 0
        return None

    def _skip_to(self, answer: _Answer) -> PiecesMissed:
        """Continue with the oldest answer in memory."""
        self._number, self._attempt, self._read = answer.number, answer.attempt, 0
        return PiecesMissed(iteration=answer.iteration)

    def _take(self, answer: _Answer) -> Piece:
        """The next piece, joined with the pieces of the same kind that follow it."""
        pieces, begin = answer.pieces, self._read
        first = pieces[begin]
        self._read += 1
        if isinstance(first, ToolUseStarted):
            return ToolCallStreamed(iteration=answer.iteration, call_id=first.id, tool=first.name)
        while self._read < len(pieces) and type(pieces[self._read]) is type(first):
            self._read += 1
        text = "".join(map(_text_of, pieces[begin : self._read]))
        kind = TextStreamed if isinstance(first, TextDelta) else ThinkingStreamed
        return kind(iteration=answer.iteration, text=text)


def _text_of(event: TextDelta | ThinkingDelta | ToolUseStarted) -> str:
    if isinstance(event, TextDelta):
        return event.text
    return event.thinking if isinstance(event, ThinkingDelta) else ""
