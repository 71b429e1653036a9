"""A process that appends durably and says so, to be killed: ``python append_child.py PATH [DURABILITY]``.

It writes ``ready``, then for every acknowledged batch the positions it was told, one line each, unbuffered.
"""

from __future__ import annotations

import os
import sys

import trio

from repertory.llm import Text
from repertory.memory import Draft, Ledger, open_journal

RUN = "run-killed"


async def main(path: str) -> None:
    """Append from ten tasks, batches of one to three, for ever."""
    async with open_journal(path) as journal:
        ledger = await Ledger.open(journal, RUN)
        os.write(1, b"ready\n")

        async def append(writer: int) -> None:
            number = 0
            while True:
                number += 1
                drafts = [
                    Draft(role="user", kind="user-input", content=(Text(f"{os.getpid()}.{writer}.{number}.{part}"),))
                    for part in range(1 + number % 3)
                ]
                entries = await ledger.append(*drafts)
                words = " ".join(f"{entry.position}={entry.content[0].text}" for entry in entries)  # type: ignore[union-attr]
                os.write(1, f"{words}\n".encode())  # a whole line in one write: either all of it or nothing

        async with trio.open_nursery() as nursery:
            for writer in range(10):
                nursery.start_soon(append, writer)


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
