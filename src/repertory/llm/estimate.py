"""Estimates how many tokens something takes in a prompt: from its length, calibrated by the provider's counts."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from repertory._json_text import canonical_json
from repertory._pdf import count_pages
from repertory.llm.messages import Block, Image, Message, RawBlock, ToolResult, encode_block, is_document, is_media
from repertory.llm.model import ModelRequest, ToolSchema

IMAGE_TOKENS = 1_600  # a large picture's price at the Messages API; its bytes say nothing about its tokens
# A page of a PDF is sent as 1,500 to 3,000 tokens of text and as an image (platform.claude.com/docs, PDF support).
PAGE_TOKENS = 2_200 + IMAGE_TOKENS

_LEAST, _MOST = 0.3, 4.0  # beyond these the figures do not describe the same prompt
_LEAST_FIRST, _MOST_FIRST = 0.8, 1.25  # beyond these, a first prompt has parts that no estimate can see
_FORGETS = 0.9  # share of the learned growth that each further call keeps
_ENOUGH = 500  # above this many estimated tokens, growth says more than the whole prompt
_DOUBT, _FIRST_DOUBT = 0.15, 0.3  # share of the change since the last count; of a prompt before the first count

Countable = Block | Message | ToolSchema | ModelRequest | str


def estimate_tokens(value: Countable | Iterable[Countable]) -> int:
    """Estimate how many tokens a value takes in a prompt.

    Estimates add up, so a prefix may be summed block by block: each block counts a quarter of the bytes of its JSON,
    rounded up. Bytes, because text outside ASCII takes more tokens than its number of characters suggests. An image
    counts a flat 1,600, and each page of a document 3,800.

    Args:
        value: Text, a block, a message, a tool, a whole request, or an iterable of these.

    Returns:
        Tokens; 0 only for an empty iterable.
    """
    match value:
        case str():
            return -(-count_bytes(value) // 4)
        case Message():
            return estimate_tokens(value.content)
        case ModelRequest():
            return estimate_tokens((*value.tools, *value.system, *value.messages))
        case ToolSchema():
            return _of_bytes(canonical_json(value))
        case Image():
            return IMAGE_TOKENS
        case RawBlock() if is_document(value):
            return _document_tokens(value)
        case ToolResult(content=tuple() as content) if any(map(is_media, content)):
            media = tuple(part for part in content if is_media(part))
            bare = msgspec.structs.replace(value, content=tuple(part for part in content if not is_media(part)))
            return estimate_tokens((bare, *media))
        case msgspec.Struct():
            return _of_bytes(canonical_json(encode_block(value)))
        case _:
            return sum(map(estimate_tokens, value))


def count_bytes(text: str) -> int:
    """Count the bytes of a text in UTF-8; a lone surrogate has three."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


def _of_bytes(written: bytes) -> int:
    return -(-len(written) // 4)


def _document_tokens(block: RawBlock) -> int:
    match block.raw.get("source"):
        case {"type": "base64", "data": str(data)}:
            with suppress(binascii.Error):
                return count_pages(base64.b64decode(data)) * PAGE_TOKENS
            return PAGE_TOKENS
        case {"type": "url" | "file"}:
            return PAGE_TOKENS  # the number of pages is unknown here; the provider's count will tell
        case _:  # a text
            return _of_bytes(canonical_json(block.raw))


def text_tokens(text: str) -> int:
    """Estimate the tokens of a text block: a quarter of the text's bytes, and the block around it."""
    return count_bytes(text) // 4 + 8


class Calibration(msgspec.Struct, frozen=True):
    """How far estimates are from what the provider counts.

    Attributes:
        real: The provider's count for the last prompt, in tokens; 0 before the first call.
        estimate: The uncalibrated estimate of that prompt.
        factor: Real tokens per estimated token, for what has changed since. It is learned from how prompts grow,
            because what no estimate can see, such as hidden instructions, is the same in all of them.
        grown_real: Real tokens of that growth, the newest counting most.
        grown_estimate: The same, estimated.
    """

    real: int = 0
    estimate: int = 0
    factor: float = 1.0
    grown_real: float = 0.0
    grown_estimate: float = 0.0

    def observe(self, *, estimate: int, real: int) -> Calibration:
        """Learn from one call.

        Args:
            estimate: The uncalibrated estimate of its prompt.
            real: What the provider counted: ``usage.prompt_tokens``.

        Returns:
            The calibration for the next call; this one if the provider counted nothing.
        """
        if estimate <= 0 or real <= 0:
            return self
        more, estimated_more = real - self.real, estimate - self.estimate
        grown, estimated = self.grown_real, self.grown_estimate
        if self.real and more > 0 and estimated_more > 0:
            grown, estimated = grown * _FORGETS + more, estimated * _FORGETS + estimated_more
        if estimated > _ENOUGH:
            factor = min(_MOST, max(_LEAST, grown / estimated))
        else:
            factor = min(_MOST_FIRST, max(_LEAST_FIRST, real / estimate))
        return Calibration(real, estimate, factor, grown, estimated)

    def real_tokens(self, estimate: int) -> int:
        """Predict the tokens of a prompt from its estimate: the last real count plus what has changed since."""
        return max(1, round(self.real + (estimate - self.estimate) * self.factor))

    def doubt(self, estimate: int) -> int:
        """How many tokens ``real_tokens`` may be off by."""
        if not self.real:
            return round(estimate * _FIRST_DOUBT)
        return round(abs(estimate - self.estimate) * self.factor * _DOUBT)
