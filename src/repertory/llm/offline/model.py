"""The offline model: which of its few skills a request calls for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio.lowlevel
import msgspec

from repertory.llm._digest import request_digest
from repertory.llm.estimate import estimate_tokens
from repertory.llm.messages import Block, Text, ToolUse
from repertory.llm.model import ModelRequest, ModelResponse, StreamEvent, TextDelta, ToolUseStarted, Usage
from repertory.llm.offline import answer, delegation, research
from repertory.llm.offline.toolbox import Toolbox
from repertory.llm.offline.view import read
from repertory.llm.profiles import OFFLINE, ModelProfile


class OfflineModel:
    """A deterministic, rule-based stand-in for a language model.

    It keeps no state: an answer is a pure function of the request, down to the ids of its tool calls. What it must
    remember from turn to turn it writes into its visible text, so a context that was shortened does not confuse it.

    What it does is decided by what the request offers:

    - a ``delegate`` tool: it splits the question and delegates the parts side by side, then composes the answer;
    - file or search tools: it searches, reads around the best hits, stores findings in memory, and answers with
      citations;
    - neither: it quotes what fits the last message best from the context; asked for a summary, it makes an
      extractive one.

    Args:
        name: The model's name.
        steps: How many turns of searching and reading a question may take, before it answers.
        profile: What the planner is told; None for the profile of "offline" under this name.
    """

    def __init__(self, name: str = "offline", *, steps: int = 12, profile: ModelProfile | None = None) -> None:
        self._name = name
        self._steps = steps
        self._profile = profile or msgspec.structs.replace(OFFLINE, name=name)

    @property
    def name(self) -> str:
        """The model's name."""
        return self._name

    @property
    def profile(self) -> ModelProfile:
        """What the planner is told: no prompt cache, and a small model's prices, which nobody bills."""
        return self._profile

    async def complete(
        self, request: ModelRequest, *, on_event: Callable[[StreamEvent], Any] | None = None
    ) -> ModelResponse:
        """Answer one request. Never fails."""
        await anyio.lowlevel.checkpoint()
        response = respond(request, steps=self._steps)
        if on_event is not None:
            for block in response.content:
                if isinstance(block, Text):
                    on_event(TextDelta(block.text))
                elif isinstance(block, ToolUse):
                    on_event(ToolUseStarted(block.id, block.name))
        return response

    async def aclose(self) -> None:
        """Nothing to release."""

    def __repr__(self) -> str:
        return f"OfflineModel({self._name!r})"


def respond(request: ModelRequest, *, steps: int = 12) -> ModelResponse:
    """The answer to a request: the same for the same request, always."""
    toolbox = Toolbox(request.tools)
    view = read(request)
    turn: list[Block] | None = None
    if toolbox.delegate is not None:
        turn = delegation.next_turn(view, toolbox)
    if turn is None and toolbox.can_research:
        turn = research.next_turn(view, toolbox, steps)
    if turn is None:
        turn = [Text(answer.from_context(request))]
    digest = request_digest(request)
    content = tuple(
        msgspec.structs.replace(block, id=f"toolu_{digest}_{index}") if isinstance(block, ToolUse) else block
        for index, block in enumerate(turn)
    )
    return ModelResponse(
        content=content,
        stop_reason="tool_use" if any(isinstance(block, ToolUse) for block in content) else "end_turn",
        usage=Usage(input_tokens=estimate_tokens(request), output_tokens=estimate_tokens(content)),
        model=request.model,
        response_id=f"msg_{digest}",
    )
