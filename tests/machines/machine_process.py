"""One machine: ``python machine_process.py URI LEASE NAME [unguarded]`` takes runs of the shared team until it ends.

Ends with 3 where it was taken over, or its journal failed. ``unguarded`` is a control: it neither looks whether it was
taken over nor lets the database look.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import Any

import anyio

import repertory as rp
from repertory.errors import JournalError
from repertory.machines import lease, ownership
from repertory.testing import FunctionModel


def look_away() -> None:
    """Take the guard and the lease's own care away."""

    class Unguarded(ownership.Guard):
        def __call__(self, group: Sequence[Any]) -> Sequence[Any]:
            return super().__call__(group)[1:]

    from repertory.machines import machine

    machine.Guard = Unguarded  # type: ignore[misc]
    lease.Lease.check = lambda self: None  # type: ignore[method-assign]
    lease.Lease.is_fresh = True  # type: ignore[method-assign,assignment]


async def main(uri: str, seconds: float, name: str) -> None:
    """Take part until SIGTERM."""
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        model = FunctionModel(lambda _: "Done.")
        async with rp.open_supervisor(
            uri, model=model, labels=("deep",), lease=seconds, name=name, max_runs=10, drain_timeout=2.0
        ):
            async for _ in signals:
                break


if __name__ == "__main__":
    if "unguarded" in sys.argv:
        look_away()
    try:
        anyio.run(main, sys.argv[1], float(sys.argv[2]), sys.argv[3], backend="trio")
    except JournalError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        sys.exit(3)
