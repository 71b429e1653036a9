"""Running one tool call: it checks the arguments, limits time and output, and turns every failure into an outcome."""

from __future__ import annotations

import difflib
import inspect
import logging
import math
import traceback
from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import msgspec

from repertory._cancelling import part_for_others
from repertory._choices import check_type
from repertory._counting import counted
from repertory._error_texts import leaves_of, safe_str
from repertory._frozen import freeze
from repertory._log import Log
from repertory.errors import ToolAbort, ToolFailed, ToolRetry
from repertory.record.records import EntryAppended, OutcomeStatus, RunStarted
from repertory.tools.arguments import read_arguments
from repertory.tools.context import ToolContext
from repertory.tools.decorator import Tool
from repertory.tools.event_loops import wrong_event_loop
from repertory.tools.output import Cause, ErrorDetail, ToolOutput, one_line, to_output
from repertory.tools.repeats import arguments_digest
from repertory.tools.schema import LONGEST_NAME
from repertory.tools.threads import compute, compute_limiter, run_in_thread

log = Log("repertory.tools")


class Unfinished(BaseException):
    """A call that continues when the tree is resumed: the supervisor closes, or the whole tree was stopped.

    The call has no outcome until then. This is not an ``Exception``, so that no tool code turns it into a result.
    """


async def execute(tool: Tool, arguments: Any, context: ToolContext) -> ToolOutput:
    """Run one call of a tool and return its outcome.

    Every failure becomes an outcome: wrong arguments, an error, a hang until the deadline, a result that cannot be
    shown. A cancelled call may have had its effect; a plain function may still be running.

    Raises:
        ToolAbort: The tool ends the run. Apart from it, only cancellation, ``KeyboardInterrupt``, ``GeneratorExit`` and
            ``Unfinished`` are raised.
    """
    try:
        freeze(arguments)  # raises if they are nested too deep to be recorded
        values = read_arguments(tool, arguments)
        digest = context.arguments_digest or arguments_digest(tool.name, arguments)
    except ToolRetry as error:
        return _failure(tool, str(error), "arguments", error)
    except RecursionError as error:
        return _failure(tool, "invalid arguments: they are nested too deep", "arguments", error)
    async with compute_limiter() if tool.computes else nullcontext():
        begun = anyio.current_time()  # the wait for a turn does not count as the tool's time
        context = msgspec.structs.replace(
            context,
            staged=[],
            arguments_digest=digest,
            expires_at=None if tool.deadline is None else begun + tool.deadline,
        )
        if tool.definition.context_parameter is not None:
            values[tool.definition.context_parameter] = context
        output = await _run(tool, values, context)
        if output.is_error:
            context.payload.discard()
        return msgspec.structs.replace(output, duration=anyio.current_time() - begun)


async def call_tool(tool: Tool, arguments: Any = None, *, context: ToolContext | None = None) -> ToolOutput:
    """Run a tool the way an agent would, for tests and scripts.

    Args:
        tool: The tool to run.
        arguments: The arguments that a model would send; None for no arguments.
        context: The context to pass to the tool; None for an empty one.

    Raises:
        ConfigurationError: ``tool`` is not a ``Tool``, or ``context`` is not a ``ToolContext``.
        ToolAbort: The tool ends the run.
    """
    check_type("call_tool: tool", tool, Tool, "a Tool, such as tool(function) makes")
    check_type("call_tool: context", context, ToolContext | None, "a ToolContext(…), or None")
    return await execute(tool, {} if arguments is None else arguments, ToolContext() if context is None else context)


def unknown_tool(name: str, available: Iterable[str]) -> ToolOutput:
    """The outcome of a call to a tool that does not exist. It tells the model similar names."""
    names, name = sorted(available), name[:LONGEST_NAME]  # a model may have written a very long name
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    text = f"there is no tool named {name!r}.{hint} Available: {', '.join(names) or 'none'}."
    return ToolOutput(text, status="error", error=ErrorDetail(cause="unknown-tool", message=text))


async def _run(tool: Tool, values: dict[str, Any], context: ToolContext) -> ToolOutput:
    finished, value = False, None
    scope = anyio.CancelScope(deadline=math.inf if context.expires_at is None else context.expires_at)
    # The handler is outside the scope, so that a crash while the tool was being cancelled arrives here alone.
    try:
        with scope:
            value = await _call(tool, values)
            finished = True
    except BaseException as error:  # noqa: BLE001 - supervises foreign code; every error becomes an outcome
        # Not only each ``Exception``: a function that reads a command line calls sys.exit() for words that are wrong,
        # and the model wrote these; a panic of an extension in Rust would end every run of the process.
        if (others := part_for_others(error, KeyboardInterrupt, GeneratorExit, Unfinished)) is not None:
            raise others from None
        output = _explain(tool, error, context, timed_out=scope.cancel_called)
    else:
        if not finished:
            return _timeout_failure(tool, None)
        return await compute(partial(_present, tool, value, context), size=_size_of(value))
    # A crash during cancellation hides the cancellation on asyncio; it must win, as it does on trio.
    await anyio.lowlevel.checkpoint_if_cancelled()
    return output


async def _call(tool: Tool, values: dict[str, Any]) -> object:
    function = tool.function
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        value = await function(**values)
    else:
        value = await run_in_thread(lambda: function(**values), name=f"tool {tool.name}")
    return await value if inspect.isawaitable(value) else value  # a wrapper around an async function


def _size_of(value: object) -> int:
    """The number of characters of what a tool returned, if it is known without work; otherwise 0."""
    content = value.content if isinstance(value, ToolOutput) else value
    return len(content) if isinstance(content, str | bytes | bytearray | memoryview) else 0


def _present(tool: Tool, value: object, context: ToolContext) -> ToolOutput:
    try:
        output = to_output(value, name=tool.name, cap=tool.output_cap)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the value's own code may raise anything, such as a computed field
        # The tool has run; only its result cannot be shown. The records it staged are dropped, as after any error.
        _log_crash(tool, error, context)
        text = f"{tool.name} ran, but its result cannot be shown: {one_line(error)}"
        return _failure(tool, text, "result", error)
    records = () if output.is_error else (*output.records, *context.staged)
    own = next((record for record in records if isinstance(record, RunStarted | EntryAppended)), None)
    if own is not None:  # each of these has a unique id or position, and the journal refuses a second one
        text = f"{tool.name} ran, but commits a {type(own).__name__}, which the runtime alone writes; nothing was kept"
        return _failure(tool, text, "result", None)
    return msgspec.structs.replace(output, records=records) if records != output.records else output


def _rank(error: BaseException) -> int:
    kinds = (ToolAbort, ToolRetry, ToolFailed, Exception)  # a cancellation, which is none, says least
    return next((rank for rank, kind in enumerate(kinds) if isinstance(error, kind)), len(kinds))


def _explain(tool: Tool, error: BaseException, context: ToolContext, *, timed_out: bool) -> ToolOutput:
    """Turn an error into what the model is told. If several errors came together, the most telling one is used."""
    spoken = min(leaves_of(error), key=_rank)
    if isinstance(spoken, ToolAbort):
        raise spoken
    if timed_out:
        return _timeout_failure(tool, error)
    text = safe_str(spoken)
    if isinstance(spoken, ToolRetry):
        return _failure(tool, f"{text or tool.name + ' did not work'}\nYou may call it again, changed.", "retry", error)
    if isinstance(spoken, ToolFailed):
        return _failure(
            tool, f"{text or tool.name + ' failed'}\nDo not call it again for this; go on without.", "failed", error
        )
    # The model is told in one line; the developer of the tool needs the rest.
    told, advice = wrong_event_loop(tool.name, spoken)
    if told:
        spoken.add_note(f"{told}: {advice}")  # appears in the log and in the journal, below the traceback
    _log_crash(tool, error, context)
    return _failure(tool, f"{told}. Go on without it." if told else one_line(spoken), "crash", error)


def _log_crash(tool: Tool, error: BaseException, context: ToolContext) -> None:
    whose = {"run": context.run_id or None, "agent": context.agent or None, "call_id": context.call_id or None}
    log(logging.WARNING, "tool.crashed", exc_info=error, tool=tool.name, **whose)


def _timeout_failure(tool: Tool, error: BaseException | None) -> ToolOutput:
    assert tool.deadline is not None
    text = f"{tool.name} gave no result within {counted(tool.deadline, 'second')} and was stopped."
    status: OutcomeStatus = "error"
    if tool.effect in ("unsafe", "idempotent"):
        status, text = "interrupted", f"{text} It may have had its effect: find out before you call it again."
    return _failure(tool, text, "deadline", error, status=status)


def _failure(
    tool: Tool, text: str, cause: Cause, error: BaseException | None, *, status: OutcomeStatus = "error"
) -> ToolOutput:
    detail = ErrorDetail(cause=cause, message=text)
    if error is not None:
        trace = "".join(traceback.format_exception(error))
        detail = ErrorDetail(cause=cause, type=type(error).__name__, message=safe_str(error), traceback=trace)
    return to_output(ToolOutput(text, status=status, error=detail), name=tool.name, cap=tool.output_cap)
