"""Cutting what a server's process writes into lines, each of which is a message, with a limit for each.

The SDK goes over all that it has of a line with every piece of it, so that a line of 100 MB took two minutes, and it
keeps one without an end whole. As its option for that is an encoding, this is one.
"""

from __future__ import annotations

import codecs
import json
import re
from typing import Any, Final

from repertory._json_text import json_bytes

# Bytes of one answer. A request to Claude's API may have 32 MB (platform.claude.com/docs, API overview), so nothing
# longer could be shown to a model.
LONGEST_ANSWER: Final = 32_000_000
# The beginning of an answer that says whose it is, as most SDKs write it. Further on it may be content.
ANSWERED: Final = re.compile(r'\{\s*"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*(\d{1,18}+|"[^"\\]*+")(?!\s*,\s*"method")')
_KEPT: Final = 1_000  # bytes of a line that is too long: its beginning says which call it answers
_CANNOT_PARSE: Final = -32700  # the protocol's code of that error


def whole_lines() -> str:
    """The name of an encoding, UTF-8, that is decoded line by line."""
    name = "repertory_whole_lines"
    try:
        codecs.lookup(name)
    except LookupError:
        made = codecs.CodecInfo(codecs.utf_8_encode, codecs.utf_8_decode, incrementaldecoder=_WholeLines, name=name)
        codecs.register({name: made}.get)
    return name


class _WholeLines(codecs.IncrementalDecoder):
    """Gives each line in one go once it has ended. An answer that is too long becomes an error of its call."""

    def __init__(self, errors: str = "strict") -> None:
        super().__init__(errors)
        self._begun: list[bytes] = []  # pieces of the line that has not ended yet
        self._size = 0  # bytes of it, also of those that are not kept

    def decode(self, input: Any, final: bool = False) -> str:  # noqa: A002 - its name in the library
        """The lines that end in this piece, with their ends."""
        ended: list[bytes] = []
        for index, piece in enumerate(bytes(input).split(b"\n")):
            if index:
                ended += [*self._begun, b"\n"]
                self._begun, self._size = [], 0
            self._begun.append(piece)
            self._size += len(piece)
            if self._size > LONGEST_ANSWER:
                self._begun = [_error_instead(b"".join(self._begun)[:_KEPT])]
        return b"".join(ended).decode(errors=self.errors)


def _error_instead(beginning: bytes) -> bytes:
    """The error of the call that a line answers; its beginning if that does not say which."""
    answered = ANSWERED.match(beginning.decode(errors="replace"))
    error = {"code": _CANNOT_PARSE, "message": f"it has more than {LONGEST_ANSWER:,} bytes"}
    return json_bytes({"jsonrpc": "2.0", "id": json.loads(answered[1]), "error": error}) if answered else beginning
