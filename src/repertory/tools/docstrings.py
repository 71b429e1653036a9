"""Reading Google-style docstrings, for the model and for the description of the service."""

from __future__ import annotations

import re
from typing import Final

_SECTION: Final = re.compile(r"(Args|Arguments|Parameters|Attributes|Returns?|Yields|Raises|Examples?|Notes?):\s*")
_ARGUMENTS: Final = frozenset({"Args", "Arguments", "Parameters", "Attributes"})
_SHOWN: Final = frozenset({"", "Example", "Examples", "Note", "Notes"})
_ARGUMENT: Final = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Split a docstring that is already dedented.

    Returns:
        The description of the function (with notes and examples, but without what only callers in Python need), and
        the description of each argument or attribute.
    """
    kept: list[str] = []
    arguments: dict[str, list[str]] = {}
    section, current, margin = "", "", -1
    # If the docstring begins with a section, dedenting has removed the section's own indentation.
    flat = bool(_SECTION.fullmatch(text.partition("\n")[0]))
    for line in text.split("\n"):
        depth = len(line) - len(line.lstrip())
        if depth == 0 and (header := _SECTION.fullmatch(line)):
            section, current, margin = header[1], "", -1
            if section in _SHOWN:
                kept.append(line)
            continue
        if line and depth == 0 and not flat:
            section = ""
        if section in _SHOWN:
            kept.append(line)
        elif section in _ARGUMENTS and line.strip():
            margin = depth if margin < 0 else margin
            found = _ARGUMENT.fullmatch(line.strip()) if depth <= margin else None
            if found:
                current = found[1]
                arguments[current] = [found[2]]
            elif current:
                arguments[current].append(line.strip())
    said = {name: " ".join(part for part in parts if part) for name, parts in arguments.items()}
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip(), said
