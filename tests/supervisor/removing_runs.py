"""A program that removes a large run from a journal; made to be killed. Prints ``OPEN``, then ``DONE``."""

from __future__ import annotations

import sys

import repertory as rp


async def main(path: str) -> None:
    """Remove the run, unless an earlier process has come so far."""
    async with rp.open_supervisor(path, durability="process", model="offline") as supervisor:
        print("OPEN", flush=True)
        if "large" in [row.started.run_id for row in await supervisor.runs()]:
            await supervisor.remove("large")
        print("DONE", flush=True)


if __name__ == "__main__":
    rp.run(main, sys.argv[1])
