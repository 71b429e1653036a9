"""A signal that comes before anybody can act on it."""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would take longer than everything else here
if TYPE_CHECKING:
    from types import FrameType


class HeldSignal:
    """A handler that notes that its signal came. Unlike a mask, child processes do not inherit it."""

    came = False

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        self.came = True
