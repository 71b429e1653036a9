"""Searching for a model's regular expressions in a process that can be killed.

``re`` keeps the interpreter's lock while it matches, so one pattern such as ``(a+)+$`` would freeze the whole
process, and no deadline would work. So the search runs in a bare Python process (20 ms), which is killed when it has
computed for too long. Its waits for a busy machine do not count: they say nothing of the pattern.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from repertory.errors import ToolFailed, ToolRetry

SECONDS: Final = 5.0  # of computing
_MEMORY: Final = 300_000_000  # bytes, besides the texts: a group that repeats needs 200 for each character of a line
_LONGEST: Final = 60.0  # seconds for everything, on a machine that is busy with something else
LONGEST_PATTERN: Final = 1_000  # characters
_MOST_PLACES: Final = 20_000  # in one text: a pattern that matches everywhere matches a million times

_SEARCH: Final = """\
import io, itertools, json, re, resource, signal, sys
source = sys.stdin.buffer
request = json.loads(source.readline())
signal.setitimer(signal.ITIMER_VIRTUAL, request["seconds"])
hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
most = request["memory"] if hard == resource.RLIM_INFINITY else min(hard, request["memory"])
resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
found = []
try:
    pattern = re.compile(request["pattern"], re.IGNORECASE if request["ignore_case"] else 0)
    for length in request["lengths"]:
        text = io.StringIO(source.read(length).decode() + "\\n", newline="\\n")
        lines = enumerate(line[:-1] for line in text)
        if request["every"]:
            places = ((number, match.start()) for number, line in lines for match in pattern.finditer(line))
        else:
            places = ((number, match.start()) for number, line in lines if (match := pattern.search(line)))
        first = list(itertools.islice(places, request["most"]))
        found.append((len(first) + sum(1 for _ in places), first))
except (re.error, OverflowError, RecursionError) as error:
    sys.exit(json.dumps({"error": str(error)}))
except MemoryError:
    sys.exit(json.dumps({"error": "it needs too much memory; make it simpler, without nested repeats"}))
print(json.dumps({"found": found}))
"""


class Matches(msgspec.Struct, array_like=True):
    """How often a pattern occurs in a text, and the line and the offset in it, from 0, of the first occurrences."""

    total: int
    places: tuple[tuple[int, int], ...]


def search_lines(
    pattern: str, texts: Sequence[str], *, ignore_case: bool = False, every: bool = False, seconds: float = SECONDS
) -> Sequence[Matches]:
    """Find a pattern of ``re`` in the lines of texts. Blocks; call it in a thread.

    Args:
        every: Whether to count all matches in a line, or only the first.
        seconds: Seconds for which the search may compute.

    Returns:
        What was found in each text.

    Raises:
        ToolRetry: The pattern is invalid, too long, or needs too long or too much memory.
        ToolFailed: There is no interpreter to run it in.
    """
    if len(pattern) > LONGEST_PATTERN:
        raise ToolRetry(f"the pattern has {len(pattern):,} characters, at most {LONGEST_PATTERN:,} are taken")
    if not sys.executable:
        raise ToolFailed("regular expressions are not available here; search for plain text")
    bodies = [text.encode("utf-8", "replace") for text in texts]
    options = {"pattern": pattern, "ignore_case": ignore_case, "every": every, "most": _MOST_PLACES}
    lengths = [len(body) for body in bodies]
    request = {**options, "seconds": seconds, "lengths": lengths, "memory": _MEMORY + 16 * sum(lengths)}
    try:
        done = subprocess.run(  # noqa: S603 - our own program; the pattern travels as data
            [sys.executable, "-I", "-S", "-W", "ignore", "-c", _SEARCH],  # its errors stand alone
            input=b"\n".join([msgspec.json.encode(request), b"".join(bodies)]),
            capture_output=True,
            timeout=_LONGEST,
            check=False,
        )
    except UnicodeEncodeError:
        raise ToolRetry(f"the pattern {pattern!r} holds characters that are not text") from None
    except subprocess.TimeoutExpired:
        raise ToolRetry(f"the search took longer than {_LONGEST:g} seconds on a busy machine; use plain text") from None
    if done.returncode == -signal.SIGVTALRM:
        raise ToolRetry(
            f"the pattern {pattern!r} took longer than {seconds:g} seconds; make it simpler, without nested repeats"
        )
    if done.returncode:
        raise ToolRetry(f"the pattern {pattern!r} is wrong: {_reason(done.stderr)}")
    return msgspec.json.decode(done.stdout, type=_Answer).found


class _Answer(msgspec.Struct):
    error: str = ""
    found: tuple[Matches, ...] = ()


def _reason(stderr: bytes) -> str:
    try:
        return msgspec.json.decode(stderr, type=_Answer).error
    except msgspec.DecodeError:
        return stderr.decode("utf-8", "replace").strip().rpartition("\n")[2] or "the search was killed"
