"""The preloaded library: compiled when it is needed, and told by a workload what to watch and which faults to make."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from repertory.errors import RepertoryError
from repertory.torture.trace import Synced, Written, read_trace

On: TypeAlias = Literal["write", "sync", "truncate", "name", "any"]
Action: TypeAlias = Literal["fail", "partly", "lie", "die before", "die after"]

# The numbers of the enums in shim.c.
_ON: Final[dict[On, int]] = {"write": 0, "sync": 1, "truncate": 2, "name": 3, "any": 4}
_ACTIONS: Final[dict[Action, int]] = {"fail": 1, "partly": 2, "lie": 3, "die before": 4, "die after": 5}
FOR_EVER: Final = 10**9


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A fault for calls of one kind, which are counted from 1 over all files whose path ends with ``suffix``.

    Attributes:
        on: Which calls. ``name`` are those that make, rename or remove a file or folder; ``any`` are all.
        first: The first affected call.
        last: The last affected call.
        action: ``fail`` with ``error``; ``partly`` writes half; ``lie`` only pretends to sync; ``die`` kills the
            process, before the call or after it.
        suffix: The end of the path, such as ``-wal``; "" for every file.
        error: The error of a failing call.
    """

    on: On
    first: int
    last: int
    action: Action
    suffix: str = ""
    error: int = errno.EIO


@cache
def missing() -> str | None:
    """Why the shim cannot be used on this machine; None if it can."""
    if not sys.platform.startswith("linux"):
        return "needs Linux, to preload a library"
    if _compiler() is None:
        return "needs a C compiler: cc, gcc or clang"
    try:
        preload = library()
    except (RepertoryError, OSError) as error:  # a cache that cannot be written
        return str(error)
    return None if _sees_sqlite(preload) else "this Python's SQLite does not call the C library where it can be seen"


_PROBE: Final = """
import ctypes, sqlite3, sys
assert ctypes.CDLL(None).shim_begin(sys.argv[1].encode(), sys.argv[2].encode(), b"") == 0
sqlite3.connect(sys.argv[1] + "/probe.db").execute("CREATE TABLE t (x)")
"""


def _sees_sqlite(preload: Path) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace"
        root = Path(folder) / "root"
        root.mkdir()
        command = [sys.executable, "-c", _PROBE, str(root), str(trace)]
        subprocess.run(command, env={**os.environ, "LD_PRELOAD": str(preload)}, capture_output=True, check=False)
        return {Written, Synced} <= {type(event) for event in read_trace(trace)}


def _compiler() -> str | None:
    return next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)


def library() -> Path:
    """The path of the compiled shim; it is compiled first if it does not exist yet.

    Raises:
        RepertoryError: It cannot be compiled.
    """
    source = Path(__file__).with_name("shim.c")
    from platformdirs import user_cache_path

    digest = hashlib.blake2b(source.read_bytes(), digest_size=8).hexdigest()
    made = user_cache_path("repertory") / f"shim-{digest}.so"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        fresh = made.with_name(f"{made.name}.{os.getpid()}")
        command = [_compiler() or "cc", "-O1", "-shared", "-fPIC", "-o", str(fresh), str(source), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RepertoryError(f"{command[0]} cannot compile {source}: {done.stderr.strip()}")
        fresh.replace(made)  # atomically, as others may compile at the same time
    return made


def begin(folder: str, trace: str, rules: list[Rule]) -> None:
    """Watch a folder from now on; only in a process that was started with the shim preloaded.

    Raises:
        OSError: The trace cannot be written.
    """
    plan = "\n".join(
        f"{_ON[rule.on]} {rule.suffix or '-'} {rule.first} {rule.last} {_ACTIONS[rule.action]} {rule.error}"
        for rule in rules
    )
    failed = _shim().shim_begin(folder.encode(), trace.encode(), plan.encode())
    if failed:
        raise OSError(failed, os.strerror(failed), trace)


def mark(text: str) -> None:
    """Write a message into the trace, such as that an append was acknowledged."""
    _shim().shim_mark(text.encode())


@cache
def _shim() -> ctypes.CDLL:
    return ctypes.CDLL(None)
