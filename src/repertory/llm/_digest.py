"""Names that follow from a request's content alone, so that the same request always gives the same answer."""

from __future__ import annotations

from hashlib import blake2b

from repertory.llm.messages import canonical_json
from repertory.llm.model import ModelRequest, encode_request


def request_digest(request: ModelRequest) -> str:
    """Sixteen hexadecimal digits that stand for everything the request says."""
    return blake2b(canonical_json(encode_request(request)), digest_size=8).hexdigest()
