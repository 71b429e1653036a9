"""A company to look at: 200 runs of every kind, one of them long, and agents that work, fail and ask meanwhile."""

from __future__ import annotations

import base64
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

import repertory as rp
from repertory.errors import ModelAuthenticationError
from repertory.llm.messages import Image, Text, ToolResult, text_of
from repertory.llm.model import ModelRequest, ModelResponse, StreamEvent, TextDelta, ThinkingDelta
from repertory.testing import FunctionModel, call

FOLDER = Path(os.environ.get("SERVE_FOLDER", "."))
LONG = "run-01kb3v8x2c-longer"  # the id of the long run

TASKS = (
    "Compare the checksums of WAL frames in SQLite 3.45 with those of LMDB pages.",
    "Which of the 14 open pull requests touch the scheduler, and which of them conflict?",
    "Write the weekly report about failed deliveries, with the three most frequent reasons.",
    "Find out when the tide tables of the harbour were last corrected, and by whom.",
    "Translate the release notes into German and Japanese; keep the code blocks as they are.",
)
ANSWER = """## What I found

The frames carry a **cumulative checksum**: each depends on all before it, so a torn write shows at the first frame that
does not fit [the file format](https://www.sqlite.org/fileformat2.html#walformat).

1. `aSalt1` and `aSalt2` change with every restart
2. the checksum covers the *first 8 bytes* of the header and the page
   - in native byte order
   - whatever the machine

| store | unit | checksum |
|---|---|---|
| SQLite WAL | frame | 64 bits, cumulative |
| LMDB | page | none |

```c
s1 += *aData++ + s2;
s2 += *aData++ + s1;
```

> A frame is valid if its salts match those of the header.
"""


def picture() -> bytes:
    """A small PNG, drawn here: a wave."""
    rows = bytearray()
    for y in range(60):
        rows.append(0)
        for x in range(160):
            on = abs((y - 30) - 18 * ((x % 40) - 20) / 20) < 3
            rows += bytes((31, 107, 101)) if on else bytes((240, 238, 232))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 160, 60, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(rows))) + chunk(b"IEND", b"")
    )


@rp.tool(effect="pure", repeatable=False)
async def read_page(number: int) -> str:
    """Read a page of the log.

    Args:
        number: Which one.
    """
    hours = (f"{hour:02}:00 wind {hour % 7} sea {hour % 5} ship no. {hour * number}\n" for hour in range(24))
    return f"page {number}: " + "".join(hours)


@rp.tool(effect="pure")
async def look(where: str) -> Image:
    """Look somewhere; gives a picture."""
    data = base64.b64encode(picture()).decode()
    return Image({"type": "base64", "media_type": "image/png", "data": data})


@rp.tool(approval="always")
async def pay(to: str, amount: int, note: str = "") -> str:
    """Pay somebody."""
    return f"paid {to} {amount}"


@rp.tool
async def order(what: str) -> rp.ResultLater:
    """Order something."""
    return rp.ResultLater("the shop in the harbour")


def _results(request: ModelRequest) -> int:
    return sum(isinstance(block, ToolResult) for message in request.messages for block in message.content)


def reading(pages: int, pause: float = 0.0) -> Any:
    """A model that reads so many pages, then answers; with a pause it waits so long before each answer."""

    asked: dict[str, int] = {}

    async def answer(request: ModelRequest) -> object:
        task = str(request.messages[0].content[0])
        asked[task] = number = asked.get(task, 0) + 1
        if pause:
            await anyio.sleep(pause)
        if number > pages:
            del asked[task]
            return ANSWER
        return [Text("I read on."), call("read_page", number=number)]

    return FunctionModel(answer)


async def _look(request: ModelRequest) -> object:
    return "A **wave**, seen from the quay.\n\n" + ANSWER if _results(request) else call("look", where="the harbour")


async def _fail(request: ModelRequest) -> object:
    raise ModelAuthenticationError("the key of this account was revoked on Monday; ask the bursar for another")


async def _buy(request: ModelRequest) -> object:
    if _results(request):
        return "All is paid."
    return [
        call("pay", call_id="c1", to="Ann's Harbour Shop", amount=120, note="ink and paper, as ordered on Monday"),
        call("order", call_id="c2", what="two lamps"),
    ]


QUESTION: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Your name", "minLength": 2},
        "crew": {"type": "integer", "minimum": 1, "maximum": 12, "description": "Who comes along, you included."},
        "berth": {
            "type": "string",
            "oneOf": [{"const": "n", "title": "North quay"}, {"const": "s", "title": "South quay"}],
        },
        "days": {"type": "array", "items": {"type": "string", "enum": ["Monday", "Tuesday", "Friday"]}},
        "pilot": {"type": "boolean", "title": "A pilot is needed", "default": True},
        "mail": {"type": "string", "format": "email"},
    },
    "required": ["name", "crew", "berth"],
    "additionalProperties": False,
}


@rp.tool
async def berth() -> rp.ResultLater:
    """Ask for a berth."""
    return rp.ResultLater("server harbour asks: who comes, and when?", schema=QUESTION)


NONSENSE: list[dict[str, Any]] = [
    {"type": "object", "properties": {"a": {"type": "string", "minLength": -5}}},
    {"type": "object", "properties": {"a": {"type": "string"}}, "required": 5},
    {"type": "object", "properties": {"a": {"type": "array", "items": {"enum": [1]}, "default": 5}}},
]


@rp.tool
async def ask(number: int) -> rp.ResultLater:
    """Ask for what nobody can give."""
    return rp.ResultLater("server fog asks", schema=NONSENSE[number])


async def _get_lost(request: ModelRequest) -> object:
    return "Lost." if _results(request) else [call("ask", number=number) for number in range(len(NONSENSE))]


async def _sail(request: ModelRequest) -> object:
    return (
        f"I was told {text_of(request.messages[-1].content[0])}" if _results(request) else call("berth", call_id="c1")
    )


async def _lead(request: ModelRequest) -> object:
    if _results(request) == 0:
        return [call("delegate", agent="reader", task=f"Read part {part} of the log.") for part in (1, 2, 3)]
    return ANSWER


class _Speaking(FunctionModel):
    """Thinks, says half of its answer when there is a file ``say``, the rest at ``go``, and is done at ``end``."""

    async def complete(
        self, request: ModelRequest, *, on_event: Callable[[StreamEvent], Any] | None = None
    ) -> ModelResponse:
        """The answer, after its pieces."""
        pieces = (ThinkingDelta("Well …"), TextDelta("One.\n\n" * 60), TextDelta("Two.\n\n" * 60))
        for piece, then in zip(pieces, ("say", "go", "end"), strict=True):
            if on_event is not None:
                on_event(piece)
            while not (FOLDER / then).exists():
                await anyio.sleep(0.01)
        return await super().complete(request)


@rp.tool(effect="pure")
async def dig() -> str:
    """Dig, until there is a file ``dug``."""
    while not (FOLDER / "dug").exists():
        await anyio.sleep(0.01)
    return "a hole"


def _dig(request: ModelRequest) -> object:
    return "Dug." if _results(request) else [Text("One and two."), call("dig")]


endless = rp.Limits(iterations=10**6)
policy = rp.ContextPolicy(rhythm="strict", window=4, strict_chars=0, summarize_every=8)
reader = rp.Agent("reader", tools=[read_page], model=reading(3), context=policy)
long_reader = rp.Agent("archivist", tools=[read_page], model=reading(10**6), context=policy, limits=endless)
watcher = rp.Agent("watcher", tools=[look], model=FunctionModel(_look))
captain = rp.Agent("captain", tools=[berth], model=FunctionModel(_sail), context=None)
lost = rp.Agent("lost", tools=[ask], model=FunctionModel(_get_lost), context=None)
buyer = rp.Agent("buyer", tools=[pay, order], model=FunctionModel(_buy), context=None)
worker = rp.Agent("worker", tools=[read_page], model=reading(10**6, pause=0.25), context=policy, limits=endless)
speaker = rp.Agent("speaker", model=_Speaking(lambda _: "One and two."))
digger = rp.Agent("digger", tools=[dig], model=_Speaking(_dig))
fails = rp.Agent("courier", model=FunctionModel(_fail))
captain_of_many = rp.Agent("Donaudampfschifffahrtsgesellschaftskapitaen", model=FunctionModel(_fail))
brief = rp.Agent("brief", tools=[read_page], model=reading(2))
lead = rp.Agent("lead", team=[reader], model=FunctionModel(_lead))


async def make_company(database: Path, *, runs: int = 200, iterations: int = 60) -> None:
    """Fill a database: so many runs that have ended, and one with so many iterations."""
    async with rp.open_supervisor(database, durability="process") as supervisor:
        model = reading(iterations)
        archivist = rp.Agent("archivist", tools=[read_page], model=model, context=policy, limits=endless)
        run = await supervisor.spawn(archivist, "Read the whole log of the harbour, page by page.", run_id=LONG)
        await run.wait_result()
        limiter = anyio.CapacityLimiter(8)

        async def one(number: int) -> None:
            async with limiter:
                agent = lead if number % 8 == 0 else watcher if number % 8 == 1 else brief
                made = await supervisor.spawn(agent, TASKS[number % len(TASKS)] + f" (no. {number})")
                await made.wait_result()

        async with anyio.create_task_group() as tasks:
            for number in range(runs):
                tasks.start_soon(one, number)
