"""Models whose answers a test decides.

==============  ========================================  =========================================
model           the answer comes from                     use it when
==============  ========================================  =========================================
ScriptedModel   a list, one step per call, in order       the test knows the course of the run
FunctionModel   a function of the request                 the answer depends on what is asked,
                                                          or several runs share one model
==============  ========================================  =========================================
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias

import anyio.lowlevel
import msgspec

from repertory._choices import show
from repertory._counting import counted
from repertory.errors import ConfigurationError, ModelError, ModelResponseInvalid
from repertory.llm.estimate import estimate_tokens
from repertory.llm.messages import Block, Message, Text, Thinking, ToolUse, equal_items, text_of
from repertory.llm.model import (
    ModelRequest,
    ModelResponse,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseStarted,
    Usage,
    request_digest,
)
from repertory.llm.profiles import OFFLINE, ModelProfile

Answer: TypeAlias = ModelResponse | str | Block | Sequence[Block]
"""What a function that plays a model returns: a text, a tool call (see ``call``), several blocks or a ModelResponse."""

Step: TypeAlias = Answer | BaseException | Callable[[ModelRequest], "Answer | Awaitable[Answer]"]
"""One step of a script: an answer, an error to raise, or a function of the request. Annotate a list of steps as
``list[Step]``: otherwise type checkers infer a list of objects from texts and calls."""


def call(tool: str, /, *, call_id: str = "", **arguments: Any) -> ToolUse:
    """Make a tool call for a script: ``call("search", query="tides")``.

    Args:
        tool: The tool's name.
        call_id: The call's id; "" lets the model generate one.
        arguments: The tool's arguments.
    """
    return ToolUse(call_id, tool, arguments)


class _Fake:
    """What all test models have: a name, a profile, and the requests they received."""

    def __init__(self, name: str, profile: ModelProfile | None) -> None:
        self._name = name
        self._profile = profile or msgspec.structs.replace(OFFLINE, name=name)
        self._prompts = _Prompts()
        self.requests: list[ModelRequest] = []

    @property
    def name(self) -> str:
        """The model's name."""
        return self._name

    @property
    def profile(self) -> ModelProfile:
        """What the planner knows about the model."""
        return self._profile

    async def aclose(self) -> None:
        """Nothing to release."""

    async def _play(
        self, step: Step, request: ModelRequest, on_event: Callable[[StreamEvent], Any] | None
    ) -> ModelResponse:
        await anyio.lowlevel.checkpoint()
        if callable(step):
            result = step(request)
            step = await result if inspect.isawaitable(result) else result
        if isinstance(step, BaseException):
            raise step
        response = _as_response(step, request, self._prompts)
        if on_event is not None:
            for event in _events_of(response):
                on_event(event)
        return response


class ScriptedModel(_Fake):
    """Answers with the steps of a script, one per call, no matter which run calls.

    A step is a text, a ``ToolUse`` (see ``call``), a sequence of blocks, a whole ``ModelResponse``, an exception to
    raise, or a function of the request (async or not) that returns any of these. Missing call ids, stop reason and
    usage are filled in; usage is computed by ``estimate_tokens``. Where a function fails, as by an ``assert``, every
    later request fails with the same error, so that a run that tries again does not get past it.

    ::

        model = ScriptedModel([call("search", query="tides"), "Twice a day."])
        ...
        model.assert_complete()

    Args:
        steps: The script.
        name: The model's name.
        profile: The model's profile; None for the offline model's profile under this name.

    Attributes:
        requests: Every request so far, in order.

    Raises:
        ConfigurationError: ``steps`` is a text, or nothing to iterate over.
    """

    def __init__(self, steps: Iterable[Step], *, name: str = "scripted", profile: ModelProfile | None = None) -> None:
        super().__init__(name, profile)
        if isinstance(steps, str) or not isinstance(steps, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"the steps of a ScriptedModel must be a list, not {show(steps)}")
        self._steps = tuple(steps)
        self._failed: Exception | None = None

    async def complete(
        self, request: ModelRequest, *, on_event: Callable[[StreamEvent], Any] | None = None
    ) -> ModelResponse:
        """Answer with the next step; the exceptions of a function propagate, at every later request too.

        Raises:
            AssertionError: The script has no more steps.
            ModelResponseInvalid: The step is not an answer.
        """
        self.requests.append(request)
        if self._failed is not None:
            raise self._failed
        number = len(self.requests)  # taken before the first await: two calls at once get two steps
        if number > len(self._steps):
            raise AssertionError(
                f"the script of model {self.name!r} is over after {counted(len(self._steps), 'step')}, and nothing "
                f"answers the request that ends with: {text_of(request.messages[-1].content)[-200:]!r}"
            )
        step = self._steps[number - 1]
        try:
            return await self._play(step, request, on_event)
        except Exception as error:
            if callable(step) and not isinstance(error, ModelError):
                self._failed = error
            raise

    def assert_complete(self) -> None:
        """Fail unless every step of the script was played, and no function among them failed."""
        if self._failed is not None:
            raise self._failed
        left = len(self._steps) - len(self.requests)
        assert left <= 0, f"{left} of {len(self._steps)} steps of model {self.name!r} were never asked for"


class FunctionModel(_Fake):
    """Answers with what a function of the request returns: anything that may be a step of a ``ScriptedModel``.

    Where an ``assert`` of the function fails, every later request fails with it: otherwise a lead would only be told
    that its sub-agent failed, and the test would pass.

    Args:
        function: Called with each request; may be async.
        name: The model's name.
        profile: The model's profile; None for the offline model's profile under this name.

    Attributes:
        requests: Every request so far, in order.
    """

    def __init__(
        self,
        function: Callable[[ModelRequest], Answer | Awaitable[Answer]],
        *,
        name: str = "function",
        profile: ModelProfile | None = None,
    ) -> None:
        super().__init__(name, profile)
        self._function = function
        self._failed: AssertionError | None = None

    async def complete(
        self, request: ModelRequest, *, on_event: Callable[[StreamEvent], Any] | None = None
    ) -> ModelResponse:
        """Answer with the function's result; its exceptions propagate, a failed ``assert`` at every later request too.

        Raises:
            ModelResponseInvalid: The result is not an answer.
        """
        self.requests.append(request)
        if self._failed is not None:
            raise self._failed
        try:
            return await self._play(self._function, request, on_event)
        except AssertionError as error:
            self._failed = error
            raise


class _Prompts:
    """Estimates the prompts of a run, which mostly repeat the previous one: only new messages are measured."""

    def __init__(self) -> None:
        self._messages: tuple[Message, ...] = ()
        self._tokens: list[int] = []  # of each message

    def estimate(self, request: ModelRequest) -> int:
        """Return exactly what ``estimate_tokens`` would."""
        known = equal_items(self._messages, request.messages)
        self._tokens[known:] = map(estimate_tokens, request.messages[known:])
        self._messages = request.messages
        return estimate_tokens((*request.tools, *request.system)) + sum(self._tokens)


def _as_response(answer: Answer, request: ModelRequest, prompts: _Prompts) -> ModelResponse:
    """Complete an answer to a response: add call ids, the stop reason and estimated usage where they are missing.

    Raises:
        ModelResponseInvalid: It is not an answer.
    """
    if isinstance(answer, ModelResponse):
        response = answer
    else:
        several: Sequence[Any] = answer if isinstance(answer, Sequence) else (answer,)
        blocks: tuple[Any, ...] = (Text(answer),) if isinstance(answer, str) else tuple(several)
        if not all(isinstance(block, Block) for block in blocks):
            raise ModelResponseInvalid(
                "a test model answers with a text, a call (see repertory.testing.call), a list of blocks such as Text "
                f"and calls, or a ModelResponse, not {show(answer)}"
            )
        stop_reason = "tool_use" if any(isinstance(block, ToolUse) for block in blocks) else "end_turn"
        response = ModelResponse(content=blocks, stop_reason=stop_reason)
    content = response.content
    if any(isinstance(block, ToolUse) and not block.id for block in content):
        digest = request_digest(request)  # not a counter: a new model object for a resumed run must not reuse an id
        content = tuple(
            msgspec.structs.replace(block, id=f"call_{digest}_{index}")
            if isinstance(block, ToolUse) and not block.id
            else block
            for index, block in enumerate(content)
        )
    usage = response.usage
    if usage == Usage():
        usage = Usage(input_tokens=prompts.estimate(request), output_tokens=estimate_tokens(content))
    return msgspec.structs.replace(response, content=content, usage=usage, model=response.model or request.model)


def _events_of(response: ModelResponse) -> list[StreamEvent]:
    """The events that a server would send to stream this answer."""
    events: list[StreamEvent] = []
    for block in response.content:
        match block:
            case Text(text):
                events.append(TextDelta(text))
            case Thinking(thinking):
                events.append(ThinkingDelta(thinking))
            case ToolUse(id=call_id, name=name):
                events.append(ToolUseStarted(call_id, name))
            case _:
                pass
    return events
