"""What a server's refusals teach about how long a prompt may be, where its window is smaller than the profile says."""

from __future__ import annotations

import re

NOT_SENT = "not sent"  # how the refusal of a prompt begins that was counted and never sent
_SMALLER = 0.75  # of a refused prompt's tokens, where the server names no limit
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


class ServerLimit:
    """The length that a server is known to take.

    Attributes:
        tokens: What a prompt may have from now on; None as long as nothing was refused.
    """

    def __init__(self, max_tokens: int) -> None:
        """Know nothing yet; ``max_tokens`` is what each request leaves for the answer."""
        self.tokens: int | None = None
        self._max_tokens = max_tokens
        self._accepted = 0

    def accepted(self, tokens: int) -> None:
        """Learn from a prompt that was answered."""
        self._accepted = max(self._accepted, tokens)

    def refused(self, tokens: int, words: str) -> int:
        """Learn from one that was not: the limit that the server names, or else something below what it refused.

        Args:
            tokens: What it is estimated to have had.
            words: What the server said.

        Returns:
            The tokens that it had by the server's count; 0 where it does not say, or nothing that makes sense.
        """
        said, limit = named_size(words), named_limit(words, self._max_tokens)
        if said and not tokens / _PLAUSIBLE <= said <= tokens * _PLAUSIBLE:
            said = limit = 0  # of another prompt, such as all of a batch
        size = said or tokens
        if not 0 < limit < size:
            known = self._accepted if self._accepted < size else 0
            limit = max(known, int(size * _SMALLER))
        self.tokens = limit if self.tokens is None else min(self.tokens, limit)
        return said


def named_limit(words: str, max_tokens: int) -> int:
    """The tokens that a prompt may have by a server's refusal; 0 where it does not say.

    Args:
        words: The refusal.
        max_tokens: What the request asked for as its answer, which the window must hold as well.
    """
    if found := _PROMPT.search(words):
        return _number(found[2])
    if found := _SUM.search(words):
        return _number(found[3]) - _number(found[2])
    if found := _WINDOW.search(words):
        window = _number(found[1])
        return window - min(max_tokens, window // 2)
    return 0


def named_size(words: str) -> int:
    """The tokens that the refused prompt had by a server's refusal; 0 where it does not say."""
    found = _PROMPT.search(words) or _SUM.search(words) or _HAD.search(words)
    return _number(next(group for group in found.groups() if group)) if found else 0


def _number(digits: str) -> int:
    return int(digits.replace(",", ""))
