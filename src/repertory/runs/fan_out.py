"""When each sub-agent of a lead may work: so many at once, in order, and similar ones once the cache is warm."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from repertory.llm.profiles import ModelProfile


class Head(msgspec.Struct, frozen=True):
    """The beginning that the requests of all runs of one agent share: its tools and instructions.

    Attributes:
        digest: The same for the same head and model.
        tokens: Its length at four characters per token. The models of the catalog have fewer characters per token, so
            this is less than the provider counts.
    """

    digest: str
    tokens: int


def worth_warming(head: Head, profile: ModelProfile, warm: bool | None) -> bool:
    """Whether others should wait until a first call has written a head to the prompt cache.

    Args:
        warm: What the lead's agent says; None decides by the prices. If these are unknown, or the head is too short to
            be cached, waiting would save nothing.
    """
    if warm is not None:
        return warm
    base, rules = profile.prices[0], profile.cache
    cached = rules.breakpoints > 0 and head.tokens >= rules.minimum_tokens
    return profile.known and cached and base.cache_read < base.cache_write


class Place(msgspec.Struct, eq=False):
    """One sub-agent in the line.

    Attributes:
        wake: Called when its turn may have come.
        head: The beginning of its first request, if that is worth warming.
        warms: The digest of the head that its first call is about to write to the cache; "" for none.
    """

    line: Line
    wake: Callable[[], None]
    head: Head | None = None
    warms: str = ""


class Line:
    """The sub-agents of one lead that have not ended, in the order in which they began."""

    def __init__(self, parallel: int, clock: Callable[[], float]) -> None:
        """Begin empty; ``parallel`` is how many work at once, ``clock`` returns seconds."""
        self._parallel = parallel
        self._clock = clock
        self._places: list[Place] = []
        self._warm_until: dict[str, float] = {}  # by the digest of a head

    def join(self, wake: Callable[[], None]) -> Place:
        """Take the last place; ``wake`` is called when its turn may have come."""
        place = Place(self, wake)
        self._places.append(place)
        return place

    def leave(self, place: Place) -> None:
        """Leave the line, if the place has not left already."""
        if place in self._places:
            self._places.remove(place)
            self._wake()

    def has_turn(self, place: Place) -> bool:
        """Whether it is a place's turn. Of places that share a head worth warming, one begins and the others wait."""
        if place in self._places[self._parallel :]:
            return False
        if place.head is None or self._clock() < self._warm_until.get(place.head.digest, 0.0):
            return True
        if any(other.warms == place.head.digest for other in self._places if other is not place):
            return False
        place.warms = place.head.digest
        return True

    def answered(self, place: Place, ttl: float | None) -> None:
        """Note that a run is receiving an answer, so its head is in the prompt cache for ``ttl`` seconds.

        None means that the server did not accept the call, so others need not wait for it any longer.
        """
        if place.head is not None and ttl is not None:
            self._warm_until[place.head.digest] = self._clock() + ttl
        if place.warms:
            place.warms = ""
            self._wake()

    def _wake(self) -> None:
        for place in self._places[: self._parallel]:  # nobody behind them can have a turn
            place.wake()
