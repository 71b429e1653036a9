"""An agent all of whose words are attacks: what it says, thinks, calls, gets, asks and waits for."""

from __future__ import annotations

import msgspec

import repertory as rp
from repertory.errors import ModelAuthenticationError
from repertory.llm.messages import Image, Text, Thinking, ToolResult, ToolUse
from repertory.llm.model import ModelRequest
from repertory.testing import FunctionModel

PAYLOADS = [
    "<script>window.evil = 1</script> \u202etxt.yap\u2066\U000e0041\U000e0141\u3164\x9d",
    "<img src=x onerror='window.evil = 2'>",
    "<svg onload='window.evil = 3'>",
    "</textarea></pre></script><script>window.evil = 4</script>",
    "javascript:window.evil=5",
    "<iframe srcdoc='<script>parent.evil = 6</script>'></iframe>",
    "<a href='javascript:window.evil=7' autofocus onfocus='window.evil=8'>x</a>",
    "{{constructor.constructor('window.evil=9')()}}",
    "<style>@import 'http://evil.example/'</style><base href='http://evil.example/'>",
    "\u202egnp.exe \x1b[31m&lt;b&gt;<b>bold</b>",
]
MARKDOWN = [
    "[a link](javascript:window.evil=10)",
    "[another](JaVaScRiPt:window.evil=11 'x')",
    "[third](data:text/html,<script>window.evil=12</script>)",
    "![picture](http://evil.example/x.png)",
    "[vb](vbscript:window.evil=13) <javascript:window.evil=14> [x](//evil.example) [x](\tjavascript:window.evil=15)",
    "| <img src=x onerror=window.evil=16> | b |\n|---|---|\n| [c](javascript:window.evil=17) | **<u>d</u>** |",
    "```html\n<script>window.evil=18</script>\n```",
    "[good](https://good.example/a?b=1&c='>) and http://good.example/\"onmouseover=window.evil=19",
    "# <script>window.evil=20</script>\n> <b>quote</b>\n- <i>item</i>\n1. `<u>code</u>`",
]
ALL = " ".join(PAYLOADS)
WORDS = ALL + "\n\n" + "\n\n".join(MARKDOWN)
SVG = "PHN2ZyBvbmxvYWQ9ImV2aWw9MjEiLz4="  # <svg onload="evil=21"/>


class Notes(msgspec.Struct):
    """What it keeps."""

    notes: list[str] = msgspec.field(default_factory=list[str])


@rp.tool(effect="pure")
async def picture(of: str) -> Image:
    """Give a picture that is none."""
    return Image({"type": "base64", "media_type": "image/svg+xml", "data": SVG})


@rp.tool(effect="pure")
async def crash(of: str) -> str:
    """Fail."""
    raise RuntimeError(ALL)


@rp.tool(effect="idempotent")
async def keep(text: str, context: rp.ToolContext) -> rp.ToolOutput:
    """Keep it everywhere."""
    await context.need_memory().store(text, item_id=f"{ALL[:80]}", tags=[ALL[:60]], source=ALL[:60], type="web_content")
    context.payload.append("notes", text)
    return rp.ToolOutput(text * 20, source_type="web", url=f"http://evil.example/{ALL}")


@rp.tool(approval="always")
async def pay(to: str) -> str:
    """Pay."""
    return to


@rp.tool
async def order(what: str) -> rp.ResultLater:
    """Order."""
    return rp.ResultLater(what)


async def _answer(request: ModelRequest) -> object:
    turns = sum(message.role == "assistant" for message in request.messages)
    results = [block for message in request.messages for block in message.content if isinstance(block, ToolResult)]
    if turns == 0:
        calls = [
            ToolUse("c1", "picture", {"of": ALL}),
            ToolUse("c2", "crash", {"of": ALL}),
            ToolUse("c3", "keep", {"text": WORDS}),
        ]
        return [Thinking(WORDS, "signed"), Text(WORDS), *calls]
    if turns == 1:
        return [Text(WORDS), ToolUse("c4", "pay", {"to": ALL}), ToolUse("c5", "order", {"what": ALL})]
    return Text(WORDS) if len(results) > 4 else "?"


hostile = rp.Agent(
    "hostile", instructions=WORDS, tools=[picture, crash, keep, pay, order], payload=Notes, model=FunctionModel(_answer)
)


async def _break(request: ModelRequest) -> object:
    raise ModelAuthenticationError(ALL)


broken = rp.Agent("broken", model=FunctionModel(_break))
