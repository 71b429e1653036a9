"""A team whose agents leave memory of every kind behind, hostile words among it, for the tests that look at it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

import repertory as rp
from repertory.llm.messages import text_of
from repertory.testing import FunctionModel, call

LEAD = "run-01kb3v8x2c-cccccc"
HOSTILE = (
    "<img src=x onerror='window.evil=1'></script><script>window.evil=2</script>\x1b]52;c;ZXZpbA==\x07\u202egnp.exe"
)
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))  # looks like one from outside
PAGE = "".join(f"Line {number} of the tide tables. {HOSTILE}\n" for number in range(1, 201))


class Notes(msgspec.Struct):
    """What the team works on."""

    topic: str = "tides"
    notes: list[str] = msgspec.field(default_factory=list[str])


@rp.tool(effect="transactional")
async def note(text: str, context: rp.ToolContext) -> str:
    """Put something down."""
    context.payload.append("notes", text)
    return "noted"


@rp.tool(effect="pure")
async def fetch(url: str) -> rp.ToolOutput:
    """Fetch a page."""
    return rp.ToolOutput(PAGE, source_type="web", url=url)


@rp.tool(effect="idempotent")
async def keep(what: str, context: rp.ToolContext) -> str:
    """Keep what this agent has found."""
    memory = context.need_memory()
    if what == "lead":
        await memory.store("The plan is green.\nIt was blue.", item_id="plan", tags=["plan"], source=HOSTILE)
        await memory.store({"high": "noon", "by": [HOSTILE, 1, None]}, item_id="/memories/tides.json", type="fact")
        await memory.store(PNG, item_id="chart", media_type="image/png", tags=[HOSTILE])
        await memory.store("old news", item_id="old")
        await memory.store(PAGE, item_id="tables", type="web_content", related_to=["plan"])
    elif what == "checker":
        await memory.store("The plan is red.\nIt was blue.", item_id="plan", tags=["plan"])
        await memory.store(f"A check: {HOSTILE}", item_id="check")
        await memory.store("old news\nand new", item_id="old")
        await memory.delete("chart")
    else:
        await memory.store("Nobody else sees this.", item_id="secret")
    return "kept"


SCRIPTS = {
    "lead": [
        [call("keep", what="lead"), call("note", text=HOSTILE), call("fetch", url="https://sea.example/tables")],
        call("delegate", agent="checker", task="Check the plan."),
        call("delegate", agent="hermit", task="Think."),
        call("keep_on", text="The plan is yellow.\nIt was blue."),
        f"All is well. {HOSTILE}",
    ],
    "checker": [call("keep", what="checker"), "Checked."],
    "hermit": [call("keep", what="hermit"), "Thought."],
}


@rp.tool(effect="idempotent")
async def keep_on(text: str, context: rp.ToolContext) -> str:
    """Change the plan."""
    await context.need_memory().store(text, item_id="plan", tags=["plan"])
    return "kept"


async def _answer(request: Any) -> Any:
    script = SCRIPTS[text_of(request.system).split()[0]]
    return script[sum(message.role == "assistant" for message in request.messages)]


def lead() -> rp.Agent:
    """The lead, its checker with a snapshot of its memory, and one with a memory of its own; a script plays them."""
    model = FunctionModel(_answer)
    checker = rp.Agent("checker", instructions="checker", tools=[keep], memory="snapshot", model=model)
    hermit = rp.Agent("hermit", instructions="hermit", tools=[keep], memory="isolated", model=model)
    tools = [keep, keep_on, note, fetch]
    team = [checker, hermit]
    return rp.Agent("lead", instructions="lead", tools=tools, team=team, payload=Notes, model=model)


async def make_team(path: Path) -> None:
    """Run the team to its end in a database."""
    async with rp.open_supervisor(path) as supervisor:
        run = await supervisor.spawn(lead(), f"Find the tide. {HOSTILE}", run_id=LEAD)
        await run.wait_result()
