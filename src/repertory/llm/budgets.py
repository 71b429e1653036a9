"""Room for model calls under limits: what a call can take is reserved before it begins and settled after."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from repertory.llm.profiles import Amount


class Reservation:
    """The room of one model call.

    Attributes:
        at_most: What one attempt can take.
        lost: What those attempts can have taken that broke off: they are billed as a rule, and nobody says how much.
    """

    def __init__(self, at_most: Amount) -> None:
        self.at_most = at_most
        self.lost = Amount()

    def broke_off(self) -> None:
        """Count an attempt that broke off; another one may follow."""
        self.lost += self.at_most


class Budget(Protocol):
    """What a run may still take."""

    def reserved(self, call: int, at_most: Amount, *, wait: bool) -> AbstractAsyncContextManager[Reservation]:
        """Make a model call of the run; raises ``LimitExceeded`` where there is no room, and it is not to wait."""
        ...
