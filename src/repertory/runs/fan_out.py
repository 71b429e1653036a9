"""Whose turn it is among the sub-agents of one lead: so many at once, in order, and alike ones behind a warm cache."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from repertory.llm.profiles import ModelProfile


class Head(msgspec.Struct, frozen=True):
    """What all runs of one agent begin their requests with: its tools and instructions.

    Attributes:
        digest: The same for the same head of the same model.
        tokens: How long it is, at four characters a token. The models of the table have fewer characters a token, so
            this is less than what the provider counts.
    """

    digest: str
    tokens: int


def worth_warming(head: Head, profile: ModelProfile, warm: bool | None) -> bool:
    """Whether others should wait until a first call has written a head to the prompt cache.

    Args:
        head: What they share.
        profile: Of their model.
        warm: What the lead's agent says; None leaves it to the prices. Where these are not known, or the head is too
            short to be cached, nothing would be saved, and nobody waits.
    """
    if warm is not None:
        return warm
    base, rules = profile.prices[0], profile.cache
    cached = rules.breakpoints > 0 and head.tokens >= rules.minimum_tokens
    return profile.known and cached and base.cache_read < base.cache_write


class Line:
    """The sub-agents of one lead that have not ended, in the order in which they began."""

    def __init__(self, parallel: int, clock: Callable[[], float]) -> None:
        """Begin empty; ``parallel`` is how many work at once, ``clock`` gives seconds."""
        self._parallel = parallel
        self._clock = clock
        self._places: list[Place] = []
        self._warm_until: dict[str, float] = {}  # by the digest of a head

    def join(self, wake: Callable[[], None]) -> Place:
        """Take the last place; ``wake`` is called when it may have become its turn."""
        place = Place(self, wake)
        self._places.append(place)
        return place

    def leave(self, place: Place) -> None:
        """Make room, if it has not left already."""
        if place in self._places:
            self._places.remove(place)
            self._wake()

    def has_turn(self, place: Place) -> bool:
        """Whether a place is among the first. Of those that share a head worth warming, one begins and others wait."""
        if place in self._places and self._places.index(place) >= self._parallel:
            return False
        if place.head is None or self._clock() < self._warm_until.get(place.head.digest, 0.0):
            return True
        if any(other.warms == place.head.digest for other in self._places if other is not place):
            return False
        place.warms = place.head.digest
        return True

    def answered(self, place: Place, ttl: float | None) -> None:
        """Note that a call of a run has an answer under way: its head is in the prompt cache, for ``ttl`` seconds.

        None says that the server did not take the call; others need not wait any longer for that one.
        """
        if place.head is not None and ttl is not None:
            self._warm_until[place.head.digest] = self._clock() + ttl
        if place.warms:
            place.warms = ""
            self._wake()

    def _wake(self) -> None:
        for place in self._places:
            place.wake()


class Place:
    """One sub-agent in the line.

    Attributes:
        wake: Called when it may have become its turn.
        head: What its first request begins with, where that is worth warming.
        warms: The digest of the head that its first call is about to write to the cache; "" for none.
    """

    def __init__(self, line: Line, wake: Callable[[], None]) -> None:
        self._line = line
        self.wake = wake
        self.head: Head | None = None
        self.warms = ""

    @property
    def has_turn(self) -> bool:
        """See ``Line.has_turn``."""
        return self._line.has_turn(self)

    def answered(self, ttl: float | None) -> None:
        """See ``Line.answered``."""
        self._line.answered(self, ttl)

    def leave(self) -> None:
        """See ``Line.leave``."""
        self._line.leave(self)
