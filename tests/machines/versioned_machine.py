"""One machine of a fleet in the middle of an upgrade: ``python versioned_machine.py URI NAME VERSION``.

The agent ``versioned_machine:make_clerk`` is another one in each version. Writes a line once it takes part, and ends
with its standard input. One that is called ``stuck`` has a model that never answers.
"""

from __future__ import annotations

import os
import sys

import anyio
import anyio.to_thread

import repertory as rp
from repertory.llm.model import ModelRequest
from repertory.testing import FunctionModel

VERSION = "REPERTORY_TEST_VERSION"
CLERK = "versioned_machine:make_clerk"


def make_clerk() -> rp.Agent:
    """The agent as the code of this process defines it."""
    return rp.Agent("clerk", instructions=f"You are of version {os.environ[VERSION]}.", context=None)


async def main(uri: str, name: str, version: str) -> None:
    """Take part until nobody needs it any more; the answer says which machine and version have run."""

    async def answer(_: ModelRequest) -> str:
        if name == "stuck":
            await anyio.sleep_forever()
        return f"Done by {name}, version {version}."

    async with rp.open_supervisor(uri, model=FunctionModel(answer), labels=(), name=name):
        print("OPEN", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)


if __name__ == "__main__":
    os.environ[VERSION] = sys.argv[3]
    anyio.run(main, sys.argv[1], sys.argv[2], sys.argv[3], backend="trio")
