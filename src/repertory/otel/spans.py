"""Runs, model calls and tool calls as spans and metrics, by the semantic conventions for generative AI.

The conventions are in development (status of November 2026). All names are in this file, as they are on the main branch
of the conventions' repository.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import anyio

from repertory._error_texts import safe_str
from repertory._json_text import json_text
from repertory._log import Log
from repertory._version import __version__
from repertory._web_address import port_of
from repertory.errors import ConfigurationError
from repertory.llm.messages import Block, Json, Message, Text, Thinking, ToolResult, ToolUse, encode_block
from repertory.llm.model import ModelRequest, ModelResponse, server_of
from repertory.llm.profiles import cost_of
from repertory.record.records import EventLogged
from repertory.runs.telemetry import TRACED, TracedRun
from repertory.tools import Tool, ToolOutput
from repertory.tools.output import clean_text, one_line

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

log = Log("repertory.otel")

CAPTURE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_SCOPE: Final = "repertory"
# Seconds between the buckets of durations, as the conventions want them. The SDK's own are for milliseconds: whatever
# takes less than five seconds would be in the first.
_SHORT: Final = [round(0.01 * 2**step, 2) for step in range(14)]
_LONG: Final = [round(0.1 * 2**step, 1) for step in range(13)]
_Attributes = dict[str, Any]


class OpenTelemetry:
    """Traces the runs of a supervisor: ``open_supervisor("runs.db", telemetry=OpenTelemetry())``.

    Each run is a span ``invoke_agent``, a child of what was current where it was begun or continued: the tool call that
    delegated to it, a web request. Within it each model call, with all its attempts, is a span ``chat``, and each tool
    call a span ``execute_tool``. Spans that a tool makes itself are children of its span. A run that continues has
    another span, linked to the one before. Without a configured SDK nothing is traced.

    Args:
        tracer_provider: Makes the tracer; None uses the global provider.
        meter_provider: Makes the meter; None uses the global provider.
        content: Whether spans contain messages, tool arguments and tool results. None reads the environment variable
            ``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT``; they do not unless it is true.

    Raises:
        ConfigurationError: The extra ``repertory[otel]`` is not installed.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        content: bool | None = None,
    ) -> None:
        try:
            from opentelemetry import context, metrics, trace
        except ImportError as error:
            raise ConfigurationError("traces need the extra: pip install 'repertory[otel]'") from error
        self._trace = trace
        self._context = context
        self._tracer = trace.get_tracer(_SCOPE, __version__, tracer_provider)
        meter = metrics.get_meter(_SCOPE, __version__, meter_provider)
        self._content = os.environ.get(CAPTURE, "").lower() == "true" if content is None else content
        self._durations = {
            operation: meter.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=bounds)
            for operation, name, description, bounds in (
                ("chat", "gen_ai.client.inference.duration", "Duration of a model call with all its attempts.", _SHORT),
                ("invoke_agent", "gen_ai.invoke_agent.duration", "Duration of a run in this process.", _LONG),
                ("execute_tool", "gen_ai.execute_tool.duration", "Duration of a tool call.", _SHORT),
            )
        }
        self._tokens = {
            kind: meter.create_counter(f"gen_ai.client.inference.usage.{kind}", "{token}", f"Tokens: {kind}.")
            for kind in ("input_tokens", "output_tokens", "cache_read.input_tokens", "cache_write.input_tokens")
        }
        self._cost = meter.create_counter("repertory.cost", "{USD}", "US dollars by the profile's prices.")

    def here(self) -> Any:
        """The current context, the parent of a run that is about to begin or to continue."""
        return self._context.get_current()

    @contextmanager
    def run(self, live: TracedRun) -> Generator[Callable[[str | None], None]]:
        """Open a span ``invoke_agent``."""
        name = live.agent.name
        attributes: _Attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": name,
            "gen_ai.conversation.id": live.run_id,
        }
        if client := live.root.started.client:
            attributes["repertory.client"] = client
        links = [] if live.trace.earlier is None else [self._link(live.trace.earlier)]
        # Not the context that happens to be current in the task of the run's actor.
        parent = live.trace.parent or self._context.Context()
        before = live.statistics  # of what it did before, which other spans tell of
        with self._span(live, f"invoke_agent {name}", attributes, context=parent, links=links) as span:
            self._remember(live, span)

            def ended(error: str | None) -> None:
                if error is not None:
                    kind, _, text = error.partition(": ")
                    self._fail(live, span, attributes, kind, text)

            try:
                yield ended
            finally:
                figures = live.statistics
                span.set_attribute("gen_ai.usage.input_tokens", figures.tokens_seen - before.tokens_seen)
                span.set_attribute("gen_ai.usage.output_tokens", figures.output_tokens - before.output_tokens)

    @contextmanager
    def model_call(self, live: TracedRun, request: ModelRequest) -> Generator[Callable[[ModelResponse], None]]:
        """Open a span ``chat``."""
        address = _address(server_of(live.model))
        attributes: _Attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "anthropic" if address else "repertory",
            "gen_ai.request.model": request.model,
            "gen_ai.request.max_tokens": request.max_tokens,
            "gen_ai.request.stream": True,
            "gen_ai.conversation.id": live.run_id,
            **address,
        }
        if isinstance(request.options.get("temperature"), int | float):
            attributes["gen_ai.request.temperature"] = request.options["temperature"]
        common = {name: attributes[name] for name in _OF_METRICS if name in attributes}
        with self._span(live, f"chat {request.model}", attributes, kind=self._trace.SpanKind.CLIENT) as span:

            def answered(response: ModelResponse) -> None:
                usage = response.usage
                read, written = usage.cache_read_tokens, usage.cache_write_tokens + usage.cache_write_1h_tokens
                counts = {
                    "input_tokens": usage.prompt_tokens,
                    "output_tokens": usage.output_tokens,
                    "cache_read.input_tokens": read,
                    "cache_write.input_tokens": written,
                }
                for kind, count in counts.items():
                    span.set_attribute(f"gen_ai.usage.{kind}", count)
                with _contained():
                    for kind, count in counts.items():
                        self._tokens[kind].add(count, common)
                    self._cost.add(cost_of(live.model.profile, response.usage), common)
                span.set_attribute("gen_ai.response.finish_reasons", [response.stop_reason])
                if response.model:
                    span.set_attribute("gen_ai.response.model", response.model)
                if response.response_id:
                    span.set_attribute("gen_ai.response.id", response.response_id)
                answer = [Message("assistant", response.content)]
                self._show(live, span, "gen_ai.output.messages", answer, finish_reason=response.stop_reason)

            self._show(live, span, "gen_ai.input.messages", request.messages)
            yield answered

    @contextmanager
    def tool_call(self, live: TracedRun, tool: Tool, use: ToolUse) -> Generator[Callable[[ToolOutput], None]]:
        """Open a span ``execute_tool``."""
        attributes: _Attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": tool.name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": use.id,
            "gen_ai.conversation.id": live.run_id,
        }
        with self._span(live, f"execute_tool {tool.name}", attributes) as span:
            self._show(live, span, "gen_ai.tool.call.arguments", use.input)

            def ended(output: ToolOutput) -> None:
                if output.is_error:
                    error = output.error.type or output.error.cause if output.error else output.status
                    self._fail(live, span, attributes, error)
                self._show(live, span, "gen_ai.tool.call.result", output.text)

            yield ended

    @contextmanager
    def _span(
        self,
        live: TracedRun,
        name: str,
        attributes: _Attributes,
        *,
        context: Any = None,
        links: Any = (),
        kind: Any = None,
    ) -> Generator[Span]:
        """Open a span and make it current; record the error that ends it, and its duration as a metric."""
        trace, operation, begun = self._trace, attributes["gen_ai.operation.name"], perf_counter()
        span = trace.INVALID_SPAN
        with _contained():
            span = self._tracer.start_span(
                name, context=context, kind=kind or trace.SpanKind.INTERNAL, attributes=attributes, links=links
            )
        try:
            with trace.use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
                yield span
        except anyio.get_cancelled_exc_class():  # each backend has its own, whose text names a task of ours
            self._fail(live, span, attributes, "Cancelled")
            raise
        except BaseException as raised:
            self._fail(live, span, attributes, type(raised).__name__, safe_str(raised))
            raise
        finally:
            common = {name: value for name, value in attributes.items() if name in _OF_METRICS}
            with _contained():
                span.end()
            with _contained():
                self._durations[operation].record(perf_counter() - begun, common)

    def _fail(self, live: TracedRun, span: Span, attributes: _Attributes, error: str, text: str = "") -> None:
        """Mark a span, and the metric of its attributes, as failed."""
        attributes["error.type"] = error
        span.set_attribute("error.type", error)
        shown = clean_text(live.shared.journal.redact(text))[0] if self._content else ""
        span.set_status(self._trace.StatusCode.ERROR, shown or error)

    def _show(
        self, live: TracedRun, span: Span, name: str, content: str | Json | Sequence[Message], **more: str
    ) -> None:
        """Put content into a span if it is wanted there, without the values that the record may not have either."""
        if not self._content:
            return
        if not isinstance(content, str):
            try:
                parts = content if isinstance(content, Mapping) else [{**_in_parts(each), **more} for each in content]
                content = json_text(parts)
            except (TypeError, ValueError, RecursionError) as error:  # the run itself may well get along with it
                content = f"[it cannot be written as JSON: {type(error).__name__}]"
        span.set_attribute(name, live.shared.journal.redact(content))

    def _remember(self, live: TracedRun, span: Span) -> None:
        """Record where the run's trace is, for a process that resumes the run later."""
        here = span.get_span_context()
        if here.is_valid:
            body = {"trace_id": f"{here.trace_id:032x}", "span_id": f"{here.span_id:016x}"}
            now, journal = live.shared.clock(), live.shared.journal
            journal.submit([EventLogged(run_id=live.run_id, type=TRACED, body=body, at=now, iteration=live.iteration)])
            live.trace.earlier = body

    def _link(self, traced: Mapping[str, str]) -> Any:
        """Make a link to where the run was traced before."""
        trace = self._trace
        there = trace.SpanContext(int(traced["trace_id"], 16), int(traced["span_id"], 16), is_remote=True)
        return trace.Link(there)


_OF_METRICS: Final = frozenset(
    {
        "gen_ai.operation.name",
        "gen_ai.provider.name",
        "gen_ai.request.model",
        "gen_ai.agent.name",
        "gen_ai.tool.name",
        "server.address",
        "server.port",
        "error.type",
    }
)


@contextmanager
def _contained() -> Generator[None]:
    """Log an error of a sampler, a processor or a filter of metrics, which the SDK passes on: the work that is traced
    has no part in it.
    """
    try:
        yield
    except Exception as error:  # noqa: BLE001 - foreign code
        log(logging.WARNING, "otel.failed", error=one_line(error))


def _address(url: str) -> _Attributes:
    """Where a model's server is; nothing if that is no address: the model may be an application's own."""
    try:
        parts = urlsplit(url)
        return {"server.address": parts.hostname, "server.port": port_of(parts)} if parts.hostname else {}
    except ValueError:
        return {}


def _in_parts(message: Message) -> Json:
    return {"role": message.role, "parts": [*map(_part, message.content)]}


def _part(block: Block) -> Json:
    """A block in the words of the conventions, by which viewers read it; one that they have none for as it is."""
    match block:
        case Text():
            return {"type": "text", "content": block.text}
        case Thinking():
            return {"type": "reasoning", "content": block.thinking}
        case ToolUse():
            return {"type": "tool_call", "id": block.id, "name": block.name, "arguments": block.input}
        case ToolResult(content=content):
            response = content if isinstance(content, str) else [*map(_part, content)]
            return {"type": "tool_call_response", "id": block.tool_use_id, "response": response}
        case _:
            return encode_block(block)
