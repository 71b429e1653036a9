"""How long a prompt may be, learned from what the model's server counts, accepts and refuses."""

from __future__ import annotations

import re

from repertory.errors import ModelError
from repertory.llm.estimate import Calibration
from repertory.llm.model import Model, ModelRequest, TokenCounter

_SMALLER = 0.75  # of a refused prompt's tokens, if the server names no limit: one step of up to three
_PLAUSIBLE = 4  # times more or less than estimated; beyond that the server means something else
_HIDDEN = 1_000  # tokens that a server's template may add to any prompt, such as how to write calls

# The wordings of the servers that ``repertory.llm._failures`` names.
_NUMBER = r"(\d[\d,]{0,20})(?![\d,])"  # Python refuses to read some thousand digits
_PROMPT = re.compile(rf"{_NUMBER} tokens > {_NUMBER}")
_SUM = re.compile(rf"{_NUMBER} \+ {_NUMBER} > {_NUMBER}")
# These go first, as LM Studio names the prompt's tokens as "context length".
_N_CTX = re.compile(rf"(?:n_ctx|max_model_len=|max_total_tokens=|maximum model length of)\W{{0,5}}{_NUMBER}")
_WINDOW = re.compile(
    rf"context[ _](?:length|size|window)(?! by)\D{{0,20}}{_NUMBER}|{_NUMBER} maximum context length", re.IGNORECASE
)
_LIMIT = re.compile(rf"(?:allowed|limit|prompt length|should be \[1,)\D{{0,25}}{_NUMBER}", re.IGNORECASE)
# A server that says "at least" has stopped counting.
_PROMPT_SIZE = re.compile(
    rf"(?:request|input) \({_NUMBER} tokens"
    rf"|(?<!at least )(?<![\d,]){_NUMBER} (?:input tokens|in the messages|tokens from the input)"
    rf"|(?:contains|requested:|input length|token count(?: of)?|n_keep:|n_prompt_tokens|prompt \(length) \(?{_NUMBER}",
    re.IGNORECASE,
)


class PromptLimits:
    """The bounds on one run's prompts: those of the model's profile, and those learned from its server.

    Attributes:
        tokens: Most tokens of a prompt since the server refused one; None if it has refused none.
        max_tokens: What each request leaves for the answer; at most half of the window that a server has named.
    """

    def __init__(self, model: Model, *, max_tokens: int) -> None:
        """Start with the profile, and with what the agent wants to leave for the answer."""
        profile = model.profile
        self.tokens: int | None = None
        self._model = model if isinstance(model, TokenCounter) else None
        self.max_tokens = max_tokens
        self._bounds = [profile.context_window - min(max_tokens, profile.context_window // 2)]
        self._bounds += [prices.above for prices in profile.prices[1:]]  # above it, every token costs more
        self._accepted = 0
        self._counted_in = 0

    # --- counting -----------------------------------------------------------------------------------------

    def in_doubt(self, estimate: int, calibration: Calibration) -> int | None:
        """Return the bound that a prompt of this estimate seems to respect but may exceed; None if there is none."""
        expected, doubt = calibration.real_tokens(estimate), calibration.doubt(estimate)
        bounds = self._bounds if self.tokens is None else [*self._bounds, self.tokens]
        return min((bound for bound in bounds if expected <= bound < expected + doubt), default=None)

    async def count(self, request: ModelRequest, *, estimate: int, calibration: Calibration, iteration: int) -> int:
        """Have the server count a request, which is a round trip, if the estimate is not good enough.

        That is the case near a bound, if so much has changed since the last count that the estimate may be on its
        wrong side. It happens at most once per iteration.

        Returns:
            The prompt's tokens; 0 if counting would decide nothing, or if the server cannot count.
        """
        if self._model is None or iteration <= self._counted_in or self.in_doubt(estimate, calibration) is None:
            return 0
        self._counted_in = iteration
        try:
            return await self._model.count_tokens(request)
        except ModelError:
            self._model = None  # use the estimate from now on, as for servers that cannot count
            return 0

    # --- what the server takes ----------------------------------------------------------------------------

    def accepted(self, tokens: int) -> None:
        """Learn from a prompt that was answered."""
        self._accepted = max(self._accepted, tokens)

    def refused(self, tokens: int, message: str) -> tuple[int, int]:
        """Learn from a refused prompt: the limit that the server names, or else something below the refused length.

        If the prompt fits beside half of the window that the server names, only ``max_tokens`` was too much.

        Args:
            tokens: Estimated tokens of the prompt.
            message: The server's error message.

        Returns:
            The most tokens of a prompt from now on; and the refused prompt's tokens by the server's count, 0 if the
            message has no plausible count.
        """
        counted, window = _named_size(message), _named_window(message)
        room = min(self.max_tokens, window // 2)
        limit = window - room if window else _named_limit(message)
        if counted and not tokens / _PLAUSIBLE <= counted <= tokens * _PLAUSIBLE + _HIDDEN:
            counted = limit = room = 0  # these are of something else, such as a whole batch
        size = counted or tokens
        if room and room < self.max_tokens:
            self.max_tokens = room
        elif not 0 < limit < size:
            known = self._accepted if self._accepted < size else 0
            limit = max(known, int(size * _SMALLER))
        self.learn(limit)
        return limit, counted

    def learn(self, limit: int) -> None:
        """Bound all prompts from now on."""
        self.tokens = limit if self.tokens is None else min(self.tokens, limit)


def _named_window(message: str) -> int:
    """Read from a server's refusal how many tokens prompt and answer may have together; 0 if it does not say."""
    if found := _SUM.search(message):
        return _number(found[3])
    found = None if _PROMPT.search(message) else _N_CTX.search(message) or _WINDOW.search(message)
    return _number(found[found.lastindex or 1]) if found else 0


def _named_limit(message: str) -> int:
    """Read from a server's refusal how many tokens a prompt may have; 0 if it does not say."""
    if found := _PROMPT.search(message):
        return _number(found[2])
    found = _LIMIT.search(message)
    return _number(found[1]) if found else 0


def _named_size(message: str) -> int:
    """Read from a server's refusal how many tokens the refused prompt had; 0 if it does not say."""
    found = _PROMPT.search(message) or _SUM.search(message) or _PROMPT_SIZE.search(message)
    return _number(next(group for group in found.groups() if group)) if found else 0


def _number(digits: str) -> int:
    return int(digits.replace(",", ""))
