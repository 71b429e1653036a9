"""A model that plays recorded turns, and the tools that answer as they answered then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import Any

import anyio.abc
import anyio.lowlevel
import msgspec

from repertory.errors import PromptTooLong
from repertory.llm.estimate import estimate_tokens
from repertory.llm.messages import Text, Thinking, ToolUse, text_of, tool_uses
from repertory.llm.model import ModelRequest, ModelResponse, StreamEvent, Usage
from repertory.llm.profiles import ModelProfile
from repertory.replay.billing import Biller, Position
from repertory.replay.recording import RecordedRun, Turn
from repertory.replay.summaries import write_summary
from repertory.tools import Tool, ToolContext, ToolOutput
from repertory.tools.schema import Definition

_END = "[the recording ends here]"
_REASONING = "[reasoning] " * 20  # about 60 tokens; recordings leave out the real reasoning
PLAIN_REASONING = Thinking(_REASONING, "0" * 49)  # as long as a signed block
_SECONDS_PER_TURN = 10.0  # seconds between two answers whose times nobody recorded


class ReplayModel:
    """Plays the turns of a recorded run in order, whatever it is asked, and bills every request.

    If the profile binds thinking to the history, each turn begins with a thinking block that is signed over what it was
    shown. Requests in which such a block follows anything else are counted in ``broken``.

    Args:
        say: Called with what the user says after a turn; the loop must find it when the turn is over.
        judge: Called with the iteration, the request and its usage before the request is answered.
        tasks: Runs what advances the time to the next turn, once the loop has recorded what follows from this one.

    Attributes:
        now: Seconds, by the recording; the loop's clock must show the same time.
        asked: Requests that were answered.
        broken: Requests that the provider would have refused for a thinking block after another history.
        refused: Requests that were too long for the model.
        beside: Usage billed besides the turns, for summaries, each with the number of turns before it.
    """

    def __init__(
        self,
        run: RecordedRun,
        *,
        profile: ModelProfile,
        say: Callable[[str], Awaitable[None]],
        judge: Callable[[int, ModelRequest, Usage], None],
        tasks: anyio.abc.TaskGroup,
    ) -> None:
        self._run = run
        self.name = profile.name
        self.profile = profile
        self._say = say
        self._judge = judge
        self._tasks = tasks
        self._biller = Biller(profile)
        self._times = times_of(run)
        self.now = self._times[0]
        self.asked = 0
        self.broken = 0
        self.refused = 0
        self.beside: list[tuple[int, Usage]] = []

    async def complete(
        self, request: ModelRequest, *, on_event: Callable[[StreamEvent], Any] | None = None
    ) -> ModelResponse:
        """Play the next turn, or write the signed summary that a request asks for.

        Raises:
            PromptTooLong: The prompt does not fit the model's window.
        """
        await anyio.lowlevel.checkpoint()
        usage, kept = self._biller.bill(request, at=self.now)
        positions = self._biller.positions
        if usage.prompt_tokens + request.max_tokens > self.profile.context_window:
            self.refused += 1
            raise PromptTooLong(
                f"the prompt has {usage.prompt_tokens:,} tokens; with {request.max_tokens:,} for the answer that is "
                f"more than the {self.profile.context_window:,} of {self.name}"
            )
        if not _drops_mismatched(request):
            self.broken += any(_is_broken(positions, at) for at in range(max(kept, 1), len(positions)))
        if request.options.get("compaction") is not None:
            summary = write_summary(request, positions[-1])
            usage += Usage(output_tokens=estimate_tokens(summary))
            self.beside.append((self.asked, usage))
            return ModelResponse(content=(summary,), stop_reason="compaction", usage=usage, model=self.name)
        turn = self._run.turns[self.asked]
        self.asked += 1
        last = self.asked == len(self._run.turns)
        usage = msgspec.structs.replace(usage, output_tokens=output_tokens(turn, self.profile))
        self._judge(self.asked, request, usage)
        content = turn.content
        reasoning = _reasoning(positions[-1])  # before anything is awaited: requests for summaries move the positions
        if last:  # no request showed the results of its calls
            content = tuple(block for block in content if not isinstance(block, ToolUse))
            if not text_of(content).strip():  # only words end a run
                content += (Text(_END),)
        else:
            for said in turn.said:
                await self._say(said)
        if self.profile.target == "binding":
            content = (reasoning, *content)
        self._tasks.start_soon(self._pass_time)  # runs when the caller next waits, after it has read the time
        return ModelResponse(
            content=content,
            stop_reason="tool_use" if tool_uses(content) else "end_turn",
            usage=usage,
            model=self.name,
        )

    async def _pass_time(self) -> None:
        self.now = self._times[min(self.asked, len(self._times) - 1)]

    async def aclose(self) -> None:
        """Do nothing: there is nothing to release."""


def times_of(run: RecordedRun) -> list[float]:
    """Return when each turn was requested, in seconds: as recorded, else at a steady pace; never backwards."""
    times: list[float] = []
    for turn in run.turns:
        paced = times[-1] + _SECONDS_PER_TURN if times else 1_000_000.0
        times.append(paced if turn.at is None else max(turn.at, times[-1] if times else turn.at))
    return times


def output_tokens(turn: Turn, profile: ModelProfile) -> int:
    """Estimate the output tokens to bill: of what was recorded and, if thinking is bound, of substitute reasoning."""
    spoken = estimate_tokens(turn.content)
    return spoken + estimate_tokens(PLAIN_REASONING) if profile.target == "binding" else spoken


def _reasoning(before: Position) -> Thinking:
    return Thinking(_REASONING, f"{before.bound.hex()}.{_digest(before.thought)}")


def _digest(signature: str) -> str:
    return blake2b(signature.encode(), digest_size=8).hexdigest()


def _drops_mismatched(request: ModelRequest) -> bool:
    """Whether the provider should drop a thinking block that no longer fits, instead of refusing the request."""
    binding = (request.options.get("thinking") or {}).get("block_binding") or {}
    return bool(binding.get("prefix_mismatch_behavior") == "drop_block")


def _is_broken(positions: list[Position], at: int) -> bool:
    """Whether a thinking block follows something other than what it was written after.

    All thinking before it may be gone, but if some is left, it must be the same as then.
    """
    block, before = positions[at].block, positions[at - 1]
    if not isinstance(block, Thinking):
        return False
    bound, _, thought = block.signature.partition(".")
    return bound != before.bound.hex() or bool(before.thought and _digest(before.thought) != thought)


class _Anything(msgspec.Struct, frozen=True):
    """Accepts whatever arguments were recorded; none of them is read."""


def replay_tools(run: RecordedRun) -> list[Tool]:
    """Make one tool for each name that a run called. It takes any arguments and gives the recorded answers."""
    results = {call_id: result for turn in run.turns for call_id, result in turn.results.items()}

    async def answer(context: ToolContext) -> ToolOutput:
        await anyio.lowlevel.checkpoint()
        result = results[context.call_id]
        return ToolOutput(result.content, status="error" if result.is_error else "ok")

    return [
        Tool(
            name=name,
            function=answer,
            definition=Definition(
                description=f"{name}, as it was recorded.",
                input_schema={"type": "object"},
                arguments=_Anything,
                context_parameter="context",
                signature=f"{name}(…)",
            ),
            effect="pure",  # it only looks answers up
            deadline=None,
            output_cap=None,
        )
        for name in run.tools
    ]
