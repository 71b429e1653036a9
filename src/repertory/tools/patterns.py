"""Search with a regular expression that a model wrote, where it can be stopped.

``re`` cannot be interrupted and holds the interpreter while it works, and ``(a+)+$`` on thirty characters works
for hours. So the search runs in a Python process of its own (20 ms), which is killed when its time is over.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

from repertory.errors import PatternRefused

SEARCH_TIMEOUT: Final = 2.0  # seconds
LONGEST_PATTERN: Final = 1_000  # characters
_MOST_MATCHES: Final = 20_000

_CHILD: Final = f"""
import json, re, sys
request = json.load(sys.stdin)
try:
    found = re.compile(request["pattern"], re.MULTILINE).finditer(request["text"])
    places = []
    for match in found:
        places.append(match.start())
        if len(places) == {_MOST_MATCHES}:
            break
    answer = {{"places": places}}
except (re.error, OverflowError, RecursionError) as error:
    answer = {{"error": str(error)}}
print(json.dumps(answer))
"""


def find_pattern(text: str, pattern: str, *, timeout: float = SEARCH_TIMEOUT) -> list[int]:
    """Offsets of the matches of a pattern; ``^`` and ``$`` match at lines. Blocks: call it in a thread.

    Raises:
        PatternRefused: It is no regular expression, too long, or took more than ``timeout`` seconds.
    """
    if len(pattern) > LONGEST_PATTERN:
        raise PatternRefused(
            f"the pattern has {len(pattern)} characters, at most {LONGEST_PATTERN} are taken; search for words instead"
        )
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter and our own program; the pattern is data
            [sys.executable, "-I", "-S", "-c", _CHILD],
            input=json.dumps({"pattern": pattern, "text": text}).encode(),
            capture_output=True,
            timeout=timeout,
            check=True,
        )
    except subprocess.TimeoutExpired:
        raise PatternRefused(
            f"the pattern {pattern!r} took more than {timeout:g} s; write it without nested repetitions, "
            "or search for words"
        ) from None
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise PatternRefused(f"the pattern {pattern!r} is no regular expression: {answer['error']}")
    places: list[int] = answer["places"]
    return places
