"""Secrets that must not be recorded: the values of named environment variables, wherever they turn up in a record.

Everything that becomes durable passes ``Journal.submit``, so that is where they are replaced. What is shown before
that, or kept beside it, asks ``Journal.redact`` for the same.
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

from repertory._frozen import FrozenDict, FrozenList, freeze
from repertory.errors import ConfigurationError, RecordRefused

T = TypeVar("T")

logger = logging.getLogger("repertory.journal")

SHORTEST: Final = 8  # characters; a shorter value is found in harmless text, too
_LINE: Final = 16  # characters from where on a single line of a value with several is replaced by itself


class Redactor:
    """Replaces the values of environment variables by ``[redacted: NAME]``.

    A value is found as it is, in base 64, in hexadecimal, as a part of a URL and as a part of JSON; a value of several
    lines also line by line. A value that was cut or encoded in another way is not found.

    Args:
        names: Environment variables. One that is not set now has no value to replace; the log says so.
        environment: Where the values are; None means this process's.

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
                    f"redact: the value of {name} has {len(value)} characters; with fewer than {SHORTEST} it could not "
                    "be told from other text"
                )
            for form in _forms(value):
                names_of.setdefault(form, name)
        self._names = dict(sorted(names_of.items(), key=lambda item: -len(item[0])))  # the longest first
        self._pattern = re.compile("|".join(map(re.escape, self._names)))

    @property
    def reach(self) -> int:
        """Characters of the longest text that is replaced; 0 where there is none."""
        return len(next(iter(self._names), ""))

    def __call__(self, value: T) -> T:
        """The same value without the secrets; the very same where there are none in it.

        Raises:
            RecordRefused: It is nested too deep to be looked through.
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
        if isinstance(value, msgspec.Struct):
            fields = {name: getattr(value, name) for name in value.__struct_fields__}
            changed = {name: new for name, old in fields.items() if (new := self._walk(old)) is not old}
            return msgspec.structs.replace(value, **changed) if changed else value
        if isinstance(value, dict):
            pairs = [(self._walk(key), self._walk(item)) for key, item in value.items()]
            if all(key in value and value[key] is item for key, item in pairs):
                return value
            return freeze(dict(pairs)) if isinstance(value, FrozenDict) else dict(pairs)
        if isinstance(value, list | tuple):
            items = [self._walk(item) for item in value]
            if all(new is old for new, old in zip(items, value, strict=True)):
                return value
            if isinstance(value, tuple):
                return tuple(items)
            return freeze(items) if isinstance(value, FrozenList) else items
        if isinstance(value, bytes):
            text = value.decode("latin-1")
            return value if (new := self._text(text)) is text else new.encode("latin-1", "replace")
        return value


def _forms(value: str) -> set[str]:
    """How a value is written where it is not written as it is."""
    data = value.encode("utf-8", "surrogatepass")
    plain = {value, *(line.strip() for line in value.splitlines() if len(line.strip()) >= _LINE)}
    escaped = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    quoted = {quote(data, safe=""), quote(data), quote_plus(data)}
    coded = {data.hex(), data.hex().upper()}
    for before in range(3):  # what stands before it decides how its bits fall on the letters
        letters = base64.b64encode(b"\0" * before + data + b"\0\0").decode()
        core = letters[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]
        coded |= {core, core.replace("+", "-").replace("/", "_")}
    return {form for form in plain | escaped | quoted | coded if len(form) >= SHORTEST}
