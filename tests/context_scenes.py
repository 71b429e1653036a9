"""A clerk who reads long logs, and a model that stops where a test wants to step in."""

from __future__ import annotations

import trio

import repertory as rp
from repertory.llm.messages import ToolResult, text_of
from repertory.llm.model import ModelRequest, ModelResponse
from repertory.testing import FunctionModel, call

STRICT = rp.ContextPolicy(rhythm="strict", window=2, strict_chars=0)


def log_of(day: int, lines: int = 60) -> str:
    """A day's log."""
    return "\n".join(f"day {day}, hour {hour}: ship {day * 100 + hour} at berth {hour % 7}" for hour in range(lines))


@rp.tool(effect="pure")
def read_log(day: int) -> str:
    """Read the log of a day."""
    return log_of(day)


def clerk(context: rp.ContextPolicy | None = STRICT, **options: object) -> rp.Agent:
    """An agent that reads logs."""
    return rp.Agent("clerk", tools=[read_log], context=context, **options)  # type: ignore[arg-type]


class Reader:
    """Reads a day per request, and waits at given requests until ``go`` is called.

    Attributes:
        model: What to run the agent with.
    """

    def __init__(self, days: int, *, stop_at: int, first: int = 1) -> None:
        self._days = days
        self._first = first
        self._stop_at = stop_at
        self.arrived, self._go = trio.Event(), trio.Event()
        self.model = FunctionModel(self._answer)

    async def _answer(self, request: ModelRequest) -> ModelResponse | str:
        count = len(self.model.requests)
        if count == self._stop_at:
            self.arrived.set()
            await self._go.wait()
        return call("read_log", day=self._first + count - 1) if count <= self._days else "Done."

    def go(self) -> None:
        """Let the model answer."""
        self._go.set()

    def sees(self, number: int, words: str) -> bool:
        """Whether request ``number``, from 1, shows these words, in a result or kept beside a summary."""
        blocks = (block for message in self.model.requests[number - 1].messages for block in message.content)
        return any(words in text_of(block) for block in blocks)

    def shown(self, number: int) -> list[str]:
        """The results that request ``number``, from 1, shows."""
        return [
            text_of(block)
            for message in self.model.requests[number - 1].messages
            for block in message.content
            if isinstance(block, ToolResult)
        ]
