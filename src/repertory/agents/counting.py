"""When a prompt is counted by the server before it is sent: where the estimate cannot tell what it will cost."""

from __future__ import annotations

import msgspec

from repertory.context import Calibration
from repertory.errors import ModelError
from repertory.llm.model import Model, ModelRequest, TokenCounter


class Counted(msgspec.Struct, frozen=True):
    """A count, and the bound that was in doubt."""

    tokens: int
    bound: int


class PromptCounter:
    """Asks a model's server for a count where it is decisive, and never otherwise: it is a round trip.

    It is decisive near the window and near a length above which every token costs more, and only if so much has
    changed since the last count that the estimate may be on the wrong side. At most once for an iteration.
    """

    def __init__(self, model: Model, *, max_tokens: int) -> None:
        profile = model.profile
        self._model = model if isinstance(model, TokenCounter) else None
        self._bounds = [profile.context_window - min(max_tokens, profile.context_window // 2)]
        self._bounds += [prices.above for prices in profile.prices[1:]]
        self._iteration = 0

    def learn(self, limit: int) -> None:
        """Take what the server was found to accept for a bound as well."""
        self._bounds.append(limit)

    def doubtful(self, estimate: int, calibration: Calibration) -> int | None:
        """The bound that a prompt of this estimate is expected to respect and may not; None where there is none."""
        expected, doubt = calibration.real_tokens(estimate), calibration.doubt(estimate)
        return next((bound for bound in sorted(self._bounds) if expected <= bound < expected + doubt), None)

    async def count(
        self, request: ModelRequest, *, estimate: int, calibration: Calibration, iteration: int
    ) -> Counted | None:
        """Have the server count a request; None where that would decide nothing, or the server cannot."""
        if self._model is None or iteration <= self._iteration:
            return None
        bound = self.doubtful(estimate, calibration)
        if bound is None:
            return None
        self._iteration = iteration
        try:
            return Counted(await self._model.count_tokens(request), bound)
        except ModelError:
            self._model = None  # the estimate has to do, as with servers that count nothing
            return None
