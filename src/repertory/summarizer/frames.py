"""What all prompts of the summarizer share: the frame around what is to be summarized, its room, and the answer."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import msgspec

from repertory._cutting import cut
from repertory.errors import ModelRefused
from repertory.llm.messages import Block, Message, Text, text_of
from repertory.llm.model import Model, ModelRequest, ModelResponse


class Written(msgspec.Struct, frozen=True):
    """A summary that holds.

    Attributes:
        text: Its words.
        model: Who wrote it; "" for no model.
        content: What stands in view instead of the text: the provider's signed block; () for the text.
        key: What it is kept under to be used again; "" where it is not.
    """

    text: str
    model: str = ""
    content: tuple[Block, ...] = ()
    key: str = ""


def mark_for(texts: Iterable[str]) -> str:
    """A word that is in none of the texts, the same for the same texts: none can end a frame that is named by it."""
    whole = "\n".join(texts)
    mark = ""
    while not mark or mark in whole:
        mark = blake2b((mark + whole).encode(errors="replace"), digest_size=4).hexdigest()
    return mark


def room_of(model: Model) -> int:
    """Characters that a model can be given to summarize: half its window; where more costs more by the token, less."""
    profile = model.profile
    tokens = min([profile.context_window // 2, *(prices.above for prices in profile.prices if prices.above)])
    return int(tokens * profile.chars_per_token * 0.9)  # a tenth for the instructions, and where the estimate is wrong


def shortened(text: str, limit: int) -> str:
    """A text without its middle, where it is too long."""
    short = cut(text, limit)
    return text if short is None else short.text


def prompt(model: Model, *, system: str, said: str, tokens: int) -> ModelRequest:
    """A request for a summary: no tools, no cache markers, the material in the user's turn alone."""
    return ModelRequest(
        model=model.name,
        system=(Text(sendable(system)),),
        messages=(Message("user", (Text(sendable(said)),)),),
        max_tokens=min(tokens, model.profile.max_output),
    )


def answer_of(response: ModelResponse) -> str:
    """The words of an answer.

    Raises:
        ModelRefused: The model declined.
        ValueError: It was cut off, or says nothing.
    """
    if response.stop_reason == "refusal":
        raise ModelRefused("the model declined to summarize this")
    if response.stop_reason == "max_tokens":
        raise ValueError("the model did not come to an end within its bound")
    text = text_of([block for block in response.content if isinstance(block, Text)]).strip()
    if not text:
        raise ValueError("the summary is empty")
    return sendable(text)


def sendable(text: str) -> str:
    """A text without what cannot be sent or stored as one: lone surrogates and NUL."""
    return text.encode(errors="replace").decode().replace("\0", "?")
