"""Regular expressions that a model wrote, searched where they can be stopped.

``re`` keeps the interpreter's lock while it matches, so one pattern such as ``(a+)+$`` would freeze the whole
process, deadline and all. The search runs in a bare Python process, which is killed when its time is over.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from repertory.errors import ToolFailed, ToolRetry

SECONDS: Final = 5.0

_SEARCH: Final = """\
import json, re, sys
source = sys.stdin.buffer
request = json.loads(source.readline())
try:
    find = re.compile(request["pattern"], re.IGNORECASE if request["ignore_case"] else 0).search
except (re.error, OverflowError, RecursionError) as error:
    sys.exit(json.dumps({"error": str(error)}))
answer = []
for length in request["lengths"]:
    lines = source.read(length).decode().split("\\n")
    answer.append([(number, match.start()) for number, line in enumerate(lines) if (match := find(line))])
print(json.dumps({"lines": answer}))
"""


def search_lines(
    pattern: str, texts: Sequence[str], *, ignore_case: bool = False, seconds: float = SECONDS
) -> list[list[tuple[int, int]]]:
    """Find the lines of texts in which a pattern occurs. Blocks; call it in a thread.

    Args:
        pattern: In the syntax of ``re``.
        texts: Their lines are what is between newlines.
        ignore_case: Whether case matters not.
        seconds: Time for all of it.

    Returns:
        For each text, the index of each line that matches and the offset of its first match.

    Raises:
        ToolRetry: The pattern is wrong, or takes too long.
        ToolFailed: There is no interpreter to run it in.
    """
    bodies = [text.encode("utf-8", "replace") for text in texts]
    request = {"pattern": pattern, "ignore_case": ignore_case, "lengths": [len(body) for body in bodies]}
    if not sys.executable:
        raise ToolFailed("regular expressions are not available here; search for plain text")
    try:
        done = subprocess.run(  # noqa: S603 - our own program; the pattern travels as data
            [sys.executable, "-I", "-S", "-c", _SEARCH],
            input=b"\n".join([msgspec.json.encode(request), b"".join(bodies)]),
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except UnicodeEncodeError:
        raise ToolRetry(f"the pattern {pattern!r} holds characters that are not text") from None
    except subprocess.TimeoutExpired:
        raise ToolRetry(
            f"the pattern {pattern!r} took longer than {seconds:g} seconds; make it simpler, without nested repeats"
        ) from None
    if done.returncode:
        raise ToolRetry(f"the pattern {pattern!r} is wrong: {_reason(done.stderr)}")
    found: list[list[tuple[int, int]]] = msgspec.json.decode(done.stdout, type=_Answer).lines
    return found


class _Answer(msgspec.Struct):
    error: str = ""
    lines: list[list[tuple[int, int]]] = []


def _reason(stderr: bytes) -> str:
    try:
        return msgspec.json.decode(stderr, type=_Answer).error
    except msgspec.DecodeError:
        return stderr.decode("utf-8", "replace").strip().rpartition("\n")[2] or "the search was killed"
