"""What all prompts of the summarizer share: the frame around the material, the room for it, and the answer."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

import msgspec

from repertory._cutting import cut
from repertory.errors import ModelRefused
from repertory.llm.messages import Block, Message, Text, text_of
from repertory.llm.model import CUT_OFF, Model, ModelRequest, ModelResponse

# Thinking counts towards max_tokens, and by now small models think unasked, too (platform.claude.com/docs, What's new
# in Claude Haiku 5.5). Without room for it a short summary would be cut off. What is not used costs nothing.
_THINKING: Final = 4_000  # tokens; our own rough guess


class Written(msgspec.Struct, frozen=True):
    """A valid summary.

    Attributes:
        text: Its words.
        model: The model that wrote it; "" for no model.
        content: What is shown instead of the text: the provider's signed block; () shows the text.
        key: The key under which it is stored for reuse; "" if it is not.
    """

    text: str
    model: str = ""
    content: tuple[Block, ...] = ()
    key: str = ""


def mark_for(texts: Iterable[str]) -> str:
    """Return a word that none of the texts contains, the same for the same texts: none can end a frame named by it."""
    whole = "\n".join(texts)
    mark = ""
    while not mark or mark in whole:
        mark = blake2b((mark + whole).encode(errors="replace"), digest_size=4).hexdigest()
    return mark


def room_of(model: Model) -> int:
    """Return how many characters a model can be given to summarize: half its window, or less if long prompts cost more
    per token."""
    profile = model.profile
    tokens = min([profile.context_window // 2, *(prices.above for prices in profile.prices if prices.above)])
    return int(tokens * profile.chars_per_token * 0.9)  # a tenth is for the instructions and for errors of the estimate


def shortened(text: str, limit: int) -> str:
    """Cut the middle out of a text if it is too long."""
    short = cut(text, limit)
    return text if short is None else short.text


def prompt(model: Model, *, system: str, material: str, tokens: int) -> ModelRequest:
    """Make a request for a summary of so many tokens: no tools or cache markers, the material in the user's turn."""
    profile = model.profile
    return ModelRequest(
        model=model.name,
        system=(Text(sendable(system)),),
        messages=(Message("user", (Text(sendable(material)),)),),
        max_tokens=min(tokens + _THINKING, profile.max_output, profile.context_window // 2),
    )


def answer_of(response: ModelResponse) -> str:
    """Return the words of an answer.

    Raises:
        ModelRefused: The model declined.
        ValueError: The answer was cut off, or is empty.
    """
    if response.stop_reason == "refusal":
        raise ModelRefused("the model declined to summarize this")
    if response.stop_reason in CUT_OFF:
        raise ValueError("the model did not come to an end within its bound")
    text = text_of([block for block in response.content if isinstance(block, Text)]).strip()
    if not text:
        raise ValueError("the summary is empty")
    return sendable(text)


def sendable(text: str) -> str:
    """Remove what cannot be sent or stored as text: lone surrogates and NUL."""
    return text.encode(errors="replace").decode().replace("\0", "?")
