"""Keeping secrets out of records: the values of named environment variables are replaced wherever they occur.

Everything that becomes durable passes through ``Journal.submit``, which replaces them. Code that shows something before
that, or keeps it elsewhere, calls ``Journal.redact``.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import quote, quote_plus

import msgspec

from repertory._counting import counted
from repertory._frozen import FrozenDict, FrozenList, freeze
from repertory.errors import ConfigurationError, RecordRefused
from repertory.llm.messages import Image, Json, RawBlock, decode_block, encode_block

T = TypeVar("T")

logger = logging.getLogger("repertory.journal")

SHORTEST: Final = 8  # characters; a shorter value would also be found in harmless text
_LINE: Final = 16  # characters; each line of a multi-line value that is at least so long is also replaced on its own


class Redactor:
    """Replaces the values of environment variables by ``[redacted: NAME]``.

    A value is found as it is, in base 64, in hexadecimal, URL-encoded and in JSON; a value of several lines also line
    by line. A value that was cut, or encoded in another way, is not found. An image or a document with a value in it
    becomes a line of text, as nobody could read what is left of it.

    Args:
        names: Names of environment variables. If one is not set now, there is nothing to replace, and a warning is
            logged.
        environment: The variables with their values; None means those of this process.

    Raises:
        ConfigurationError: A value is shorter than 8 characters.
    """

    def __init__(self, names: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        names_of: dict[str, str] = {}
        for name in names:
            value = environment.get(name, "").strip()
            if not value:
                logger.warning("redact: %s is not set, so nothing of it is redacted; is that its name?", name)
                continue
            if len(value) < SHORTEST:
                raise ConfigurationError(
                    f"redact: the value of {name} has {counted(len(value), 'character')}; with fewer than {SHORTEST} "
                    "it could not be told from other text"
                )
            for form in _forms(value):
                names_of.setdefault(form, name)
        self._names = dict(sorted(names_of.items(), key=lambda item: -len(item[0])))  # the longest first
        self._pattern = re.compile("|".join(map(re.escape, self._names)))

    @property
    def reach(self) -> int:
        """Characters of the longest text that is replaced; 0 if there is none."""
        return len(next(iter(self._names), ""))

    def __call__(self, value: T) -> T:
        """The value with its secrets replaced, or the same object if it has none.

        Raises:
            RecordRefused: It is nested too deep to be searched.
        """
        try:
            return self._walk(value) if self._names else value
        except RecursionError as error:
            raise RecordRefused("it is nested too deep to look for secrets in it; nothing was written") from error

    def _text(self, text: str) -> str:
        if not any(form in text for form in self._names):  # many times faster than the pattern
            return text
        return self._pattern.sub(lambda match: f"[redacted: {self._names[match[0]]}]", text)

    def _walk(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Image | RawBlock):
            raw = encode_block(value)
            return value if (new := self._walk(raw)) is raw else decode_block(new)
        if isinstance(value, msgspec.Struct):
            fields = {name: getattr(value, name) for name in value.__struct_fields__}
            changed = {name: new for name, old in fields.items() if (new := self._walk(old)) is not old}
            return msgspec.structs.replace(value, **changed) if changed else value
        if isinstance(value, dict):
            # With map, as a comprehension would take a second frame for each level on Python 3.11.
            pairs = [*zip(map(self._walk, value), map(self._walk, value.values()), strict=True)]
            if all(key in value and value[key] is item for key, item in pairs):
                return value
            new = self._left_out(value) or dict(pairs)
            return freeze(new) if isinstance(value, FrozenDict) else new
        if isinstance(value, list | tuple):
            items = [*map(self._walk, value)]
            if all(new is old for new, old in zip(items, value, strict=True)):
                return value
            if isinstance(value, tuple):
                return tuple(items)
            return freeze(items) if isinstance(value, FrozenList) else items
        if isinstance(value, bytes):
            text = value.decode("latin-1")
            return value if (new := self._text(text)) is text else new.encode("latin-1", "replace")
        return value

    def _left_out(self, raw: Json) -> Json:
        """What stands for an image or a document, in JSON, if its base 64 has a value in it; {} if that has none."""
        match raw:
            case {"type": "image" | "document" as kind, "source": {"type": "base64", "data": str(data)}}:
                if (found := self._pattern.search(data)) is not None:
                    return {
                        "type": "text",
                        "text": f"[left out: {kind} with [redacted: {self._names[found[0]]}] in it]",
                    }
        return {}


def _forms(value: str) -> set[str]:
    """The forms in which a value may be written, itself included."""
    data = value.encode("utf-8", "surrogatepass")
    plain = {value, *(line.strip() for line in value.splitlines() if len(line.strip()) >= _LINE)}
    escaped = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    quoted = {quote(data, safe=""), quote(data), quote_plus(data)}
    coded = {data.hex(), data.hex().upper()}
    for before in range(3):  # the number of bytes before it decides how its bits are split into letters
        letters = base64.b64encode(b"\0" * before + data + b"\0\0").decode()
        core = letters[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]
        coded |= {core, core.replace("+", "-").replace("/", "_")}
    return {form for form in plain | escaped | quoted | coded if len(form) >= SHORTEST}
