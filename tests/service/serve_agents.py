"""An agent for a service in a process of its own: what it does and waits for are files in the folder $SERVE_FOLDER."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

import repertory as rp
from repertory.llm.messages import ToolResult, text_of
from repertory.llm.model import ModelRequest, ModelResponse, StreamEvent, TextDelta
from repertory.otel import OpenTelemetry
from repertory.testing import FunctionModel, call

FOLDER = Path(os.environ["SERVE_FOLDER"])
STEPS = 6


@rp.tool(effect="idempotent")
async def step(number: int, context: rp.ToolContext) -> str:
    """Leave a line, then wait for leave to go on."""
    with (FOLDER / "steps").open("a", encoding="utf-8") as file:
        file.write(f"{number} {context.idempotency_key}\n")
    while number == 3 and not (FOLDER / "go").exists():
        await anyio.sleep(0.01)
    return f"step {number} done"


async def _answer(request: ModelRequest) -> object:
    results = [block for message in request.messages for block in message.content if isinstance(block, ToolResult)]
    while (FOLDER / "hang").exists():
        (FOLDER / "hanging").touch()
        await anyio.sleep(0.01)
    if len(results) < STEPS:
        return call("step", call_id=f"step{len(results)}", number=len(results))
    return f"{len(results)} steps"


@rp.tool(effect="pure")
def read_day(day: int) -> str:
    """Read the log of a day."""
    return f"day {day}: " + "ship " * 200


async def _next_day(request: ModelRequest) -> object:
    return call("read_day", day=len(_days.requests)) if len(_days.requests) < 12 else "All read."


_days = FunctionModel(_next_day)
policy = rp.ContextPolicy(rhythm="strict", window=2, strict_chars=0, summarize_every=3)
reader = rp.Agent("reader", tools=[read_day], model=_days, context=policy)
walker = rp.Agent("walker", tools=[step], model=FunctionModel(_answer), context=None)


@rp.tool(approval="always")
async def pay(to: str, amount: int) -> str:
    """Pay somebody."""
    return f"paid {to} {amount}"


async def _pay_all(request: ModelRequest) -> object:
    results = [block for message in request.messages for block in message.content if isinstance(block, ToolResult)]
    if results:
        return " | ".join(str(block.content) for block in results)
    return [call("pay", call_id=f"c{n}", to=to, amount=n) for n, to in enumerate(("ann", "<b>bob</b>", "cyn"))]


payer = rp.Agent("payer", tools=[pay], model=FunctionModel(_pay_all), context=None)


async def _pay_one(request: ModelRequest) -> object:
    results = [block for message in request.messages for block in message.content if isinstance(block, ToolResult)]
    return str(results[0].content) if results else call("pay", call_id="c0", to="ann", amount=1234567890123456789)


@rp.tool
async def order(what: str) -> rp.ResultLater:
    """Order something."""
    return rp.ResultLater("the shop")


async def _order(request: ModelRequest) -> object:
    results = [block for message in request.messages for block in message.content if isinstance(block, ToolResult)]
    return str(results[0].content) if results else call("order", call_id="c9", what="ink")


orderer = rp.Agent("orderer", tools=[order], model=FunctionModel(_order), context=None)


exact_payer = rp.Agent("exact_payer", tools=[pay], model=FunctionModel(_pay_one), context=None)


@rp.tool(effect="pure")
def fall_over() -> str:
    """Fail by mistake."""
    raise RuntimeError("a mistake, \x1b[31min red")


async def _fall(request: ModelRequest) -> object:
    return "It fell." if isinstance(request.messages[-1].content[0], ToolResult) else call("fall_over")


clumsy = rp.Agent("clumsy", tools=[fall_over], model=FunctionModel(_fall), context=None)


async def _echo(request: ModelRequest) -> object:
    return f"I heard: {text_of(request.messages[-1].content).splitlines()[-1]}"


def telemetry() -> OpenTelemetry:
    """Leave the name of each span in a file."""
    file = (FOLDER / "spans").open("a", encoding="utf-8")
    provider = TracerProvider()
    exporter = ConsoleSpanExporter(out=file, formatter=lambda span: f"{span.name}\n")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return OpenTelemetry(tracer_provider=provider)


class _Halting(FunctionModel):
    async def complete(
        self, request: ModelRequest, *, on_event: Callable[[StreamEvent], Any] | None = None
    ) -> ModelResponse:
        """Say the beginning of an answer, and nothing more."""
        if on_event is not None:
            on_event(TextDelta("Half an ans"))
        return await anyio.sleep_forever()


halting = rp.Agent("halting", model=_Halting(_echo), context=None)
talker = rp.Agent("talker", model=FunctionModel(_echo), context=None)
