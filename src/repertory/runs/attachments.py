"""Images and documents that come from outside, with a message or as a result: stored so that no event contains them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, Literal

from repertory._json_text import canonical_json
from repertory.llm.messages import Block, decode_block, encode_block
from repertory.record.journal import Journal
from repertory.record.records import ContentStored
from repertory.record.rows import decode_json
from repertory.tools.media import base64_of
from repertory.tools.threads import compute

_UNREAD: Final = 7 * 86_400.0
"""Seconds after the end of a run's tree. The entry of a message that was read has it all; another may be read later."""


async def attach(
    journal: Journal, run_id: str, kind: Literal["given", "said"], name: str, blocks: Sequence[Block], *, at: float
) -> ContentStored:
    """Make the record of blocks under an id that follows from them.

    Args:
        journal: The journal that redacts their texts, and to which the caller writes the record.
        kind: Whether they are a result or come with a message.
        name: The id of the call or of the message.
        blocks: Texts, images and documents. Their id is the same in each run, so that a fork knows them again.
    """

    def store() -> ContentStored:
        body = canonical_json(journal.redact(encoded)).decode()
        digest = hashlib.blake2b(f"{name}\0{body}".encode(), digest_size=8).hexdigest()
        return ContentStored(
            content_id=f"{kind}-{digest}",
            run_id=run_id,
            source_type=kind,
            source=name,
            body=body,
            format="json",
            at=at,
            retention=_UNREAD if kind == "said" else None,
        )

    encoded = [encode_block(block) for block in blocks]
    return await compute(store, size=sum(len(base64_of(block)) for block in blocks))


async def read_attached(journal: Journal, run_id: str, content_id: str) -> tuple[Block, ...] | None:
    """The blocks that were stored for a run; None if they were cleaned up since, after the run had ended."""
    stored = await journal.read_content(content_id, root=run_id)
    if stored is None or not stored.body:
        return None
    return tuple(decode_block(raw) for raw in decode_json(stored.body))  # a title may have half a pair
