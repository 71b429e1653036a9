"""The provider's signed summary, as a replay stands in for it: nobody recorded one."""

from __future__ import annotations

from repertory.context.trail import digest
from repertory.llm.estimate import estimate_tokens
from repertory.llm.messages import RawBlock
from repertory.llm.model import ModelRequest
from repertory.record import Entry
from repertory.replay.billing import Position, seal
from repertory.replay.words import is_summary, words_of

_TOKENS = 1_500  # about what a model writes for a long conversation


def write_summary(request: ModelRequest, last: Position) -> RawBlock:
    """Write the block that may stand for all messages of a request from then on.

    Its words are extracted, not written by a model: what recall it gives is a lower bound for a model that was told
    to keep names.

    Args:
        request: What is summarized.
        last: Its last position.
    """
    entries = [
        Entry(
            position=index,
            created_at=0.0,
            role=message.role,
            kind="assistant" if message.role == "assistant" else "action-result",
            content=tuple(block for block in message.content if not is_summary(block)),
            tokens=estimate_tokens(message),
        )
        for index, message in enumerate(request.messages)
    ]
    previous = "\n".join(words_of(block) for block in request.messages[0].content if is_summary(block))
    text = digest(entries, tokens=_TOKENS, previous=previous, retrieval=False)
    return RawBlock({"type": "compaction", "content": text, "signature": seal(last)})
