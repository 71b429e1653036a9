"""How long a prompt may be by what the model's server counts, takes and refuses."""

from __future__ import annotations

import re

from repertory.errors import ModelError
from repertory.llm.estimate import Calibration
from repertory.llm.model import Model, ModelRequest, TokenCounter

_SMALLER = 0.75  # of a refused prompt's tokens, where the server names no limit: one step, as three may follow
_PLAUSIBLE = 4  # times more or less than estimated; beyond that the server speaks of something else

# The wordings of Anthropic, llama.cpp, vLLM, SGLang, LM Studio and Ollama; see ``repertory.llm._failures``.
_NUMBER = r"(\d[\d,]*)"
_PROMPT = re.compile(rf"{_NUMBER} tokens > {_NUMBER}")
_SUM = re.compile(rf"{_NUMBER} \+ {_NUMBER} > {_NUMBER}")
_WINDOW = re.compile(rf"context[ _](?:length|size|window)\D{{0,20}}{_NUMBER}", re.IGNORECASE)
_HAD = re.compile(
    rf"(?:request|input) \({_NUMBER} tokens|{_NUMBER} (?:input tokens|in the messages|tokens from the input)",
    re.IGNORECASE,
)


class PromptLimits:
    """The bounds on one run's prompts: those of the model's profile, and what its server was found to take.

    Attributes:
        tokens: What a prompt may have since the server refused one; None as long as it refused nothing.
    """

    def __init__(self, model: Model, *, max_tokens: int) -> None:
        """Know the profile alone; ``max_tokens`` is what each request leaves for the answer."""
        profile = model.profile
        self.tokens: int | None = None
        self._model = model if isinstance(model, TokenCounter) else None
        self._max_tokens = max_tokens
        self._bounds = [profile.context_window - min(max_tokens, profile.context_window // 2)]
        self._bounds += [prices.above for prices in profile.prices[1:]]  # above it, every token costs more
        self._accepted = 0
        self._counted_in = 0

    # --- counting -----------------------------------------------------------------------------------------

    def in_doubt(self, estimate: int, calibration: Calibration) -> int | None:
        """The bound that a prompt of this estimate is expected to respect and may not; None where there is none."""
        expected, doubt = calibration.real_tokens(estimate), calibration.doubt(estimate)
        bounds = self._bounds if self.tokens is None else [*self._bounds, self.tokens]
        return min((bound for bound in bounds if expected <= bound < expected + doubt), default=None)

    async def count(self, request: ModelRequest, *, estimate: int, calibration: Calibration, iteration: int) -> int:
        """Have the server count a request, which is a round trip, where the estimate cannot tell what it will cost.

        That is near a bound, and only if so much has changed since the last count that the estimate may be on its
        wrong side; at most once for an iteration.

        Returns:
            The prompt's tokens; 0 where counting would decide nothing, or the server cannot count.
        """
        if self._model is None or iteration <= self._counted_in or self.in_doubt(estimate, calibration) is None:
            return 0
        self._counted_in = iteration
        try:
            return await self._model.count_tokens(request)
        except ModelError:
            self._model = None  # the estimate has to do, as with servers that count nothing
            return 0

    # --- what the server takes ----------------------------------------------------------------------------

    def accepted(self, tokens: int) -> None:
        """Learn from a prompt that was answered."""
        self._accepted = max(self._accepted, tokens)

    def refused(self, tokens: int, words: str) -> tuple[int, int]:
        """Learn from one that was not: the limit that the server names, or else something below what it refused.

        Args:
            tokens: What it is estimated to have had.
            words: What the server said.

        Returns:
            The tokens that a prompt may have from now on; and those that the refused one had by the server's count, 0
            where it does not say, or nothing that makes sense.
        """
        counted, limit = _named_size(words), self._named_limit(words)
        if counted and not tokens / _PLAUSIBLE <= counted <= tokens * _PLAUSIBLE:
            counted = limit = 0  # of another prompt, such as all of a batch
        size = counted or tokens
        if not 0 < limit < size:
            known = self._accepted if self._accepted < size else 0
            limit = max(known, int(size * _SMALLER))
        self.learn(limit)
        return limit, counted

    def learn(self, limit: int) -> None:
        """Let no prompt be longer than this from now on."""
        self.tokens = limit if self.tokens is None else min(self.tokens, limit)

    def _named_limit(self, words: str) -> int:
        """The tokens that a prompt may have by a server's refusal; 0 where it does not say."""
        if found := _PROMPT.search(words):
            return _number(found[2])
        if found := _SUM.search(words):
            return _number(found[3]) - _number(found[2])
        if found := _WINDOW.search(words):
            window = _number(found[1])
            return window - min(self._max_tokens, window // 2)
        return 0


def _named_size(words: str) -> int:
    """The tokens that the refused prompt had by a server's refusal; 0 where it does not say."""
    found = _PROMPT.search(words) or _SUM.search(words) or _HAD.search(words)
    return _number(next(group for group in found.groups() if group)) if found else 0


def _number(digits: str) -> int:
    return int(digits.replace(",", ""))
