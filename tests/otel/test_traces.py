"""What a tracing backend gets to see of runs."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import ExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler

import repertory as rp
from backends import RunAsync
from repertory.errors import ModelResponseInvalid, RunFailed
from repertory.llm.messages import Block, RawBlock, Text, Thinking, text_of
from repertory.llm.model import ModelRequest, ModelResponse
from repertory.otel import OpenTelemetry
from repertory.testing import FunctionModel, ScriptedModel, call


class Backend:
    """What was exported, and the telemetry that exports it."""

    def __init__(self, *, content: bool | None = None) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        meters = MeterProvider([self.reader])
        self.telemetry = OpenTelemetry(tracer_provider=self.provider, meter_provider=meters, content=content)

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        """By name; the last of each."""
        return {span.name: span for span in self.exporter.get_finished_spans()}

    def points(self, name: str) -> list[Any]:
        """What one instrument measured."""
        data = self.reader.get_metrics_data()
        assert data is not None
        metrics = [each for of in data.resource_metrics for scope in of.scope_metrics for each in scope.metrics]
        return [point for each in metrics if each.name == name for point in each.data.data_points]


def parent_of(span: ReadableSpan) -> int | None:
    """The id of the span above it."""
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    """Its own."""
    assert span.context is not None
    return span.context.span_id


@rp.tool(effect="pure")
async def look(place: str) -> str:
    """Look."""
    with trace.get_tracer("application", tracer_provider=BACKEND[0].provider).start_as_current_span("application work"):
        return f"{place} is green"


BACKEND: list[Backend] = []


def play(request: ModelRequest) -> Any:
    """A lead delegates; its member looks."""
    asked = text_of(request.messages[-1].content)
    if text_of(request.system) == "You look.":
        return "It is green." if "green" in asked else call("look", place="sea")
    return "The sea is green." if "green" in asked else call("delegate", agent="scout", task="Look at the sea.")


scout = rp.Agent("scout", instructions="You look.", tools=[look])
lead = rp.Agent("lead", instructions="You lead.", team=[scout])


def test_a_team_is_one_trace_with_each_call_in_its_place(run_async: RunAsync) -> None:
    """A sub-agent's run is below the call that delegated to it, and an application's own span below its tool's."""
    backend = Backend()
    BACKEND[:] = [backend]

    async def main() -> str:
        async with rp.open_supervisor(model=FunctionModel(play), telemetry=backend.telemetry) as supervisor:
            run = await supervisor.spawn(lead, "What colour is the sea?", client="ann")
            assert await run.wait_result() == "The sea is green."
            return run.id

    run_id = run_async(main)
    spans = backend.spans
    clients = {name for name, span in spans.items() if dict(span.attributes or {}).get("repertory.client") == "ann"}
    assert clients == {"invoke_agent lead", "invoke_agent scout"}
    assert len({span.context.trace_id for span in spans.values() if span.context}) == 1
    above = {
        "invoke_agent lead": None,
        "execute_tool delegate": "invoke_agent lead",
        "invoke_agent scout": "execute_tool delegate",
        "execute_tool look": "invoke_agent scout",
        "application work": "execute_tool look",
    }
    for name, parent in above.items():
        assert parent_of(spans[name]) == (None if parent is None else id_of(spans[parent])), name
    chats = [span for span in backend.exporter.get_finished_spans() if span.name.startswith("chat")]
    assert len(chats) == 4
    assert {parent_of(chat) for chat in chats} == {id_of(spans[f"invoke_agent {name}"]) for name in ("lead", "scout")}
    facts = dict(spans["invoke_agent lead"].attributes or {})
    assert facts["gen_ai.conversation.id"] == run_id
    assert facts["gen_ai.operation.name"] == "invoke_agent"
    chat: dict[str, Any] = dict(chats[0].attributes or {})
    assert chat["gen_ai.usage.input_tokens"] > 0
    assert chat["gen_ai.response.finish_reasons"] == ("tool_use",)
    assert backend.points("gen_ai.client.inference.duration")[0].count == 4
    bounds = [
        backend.points(name)[0].explicit_bounds
        for name in ("gen_ai.execute_tool.duration", "gen_ai.invoke_agent.duration")
    ]
    assert [(each[0], each[-1]) for each in bounds] == [(0.01, 81.92), (0.1, 409.6)]  # in seconds
    assert sum(point.value for point in backend.points("gen_ai.client.inference.usage.output_tokens")) > 0
    assert {point.attributes["gen_ai.tool.name"] for point in backend.points("gen_ai.execute_tool.duration")} == {
        "look",
        "delegate",
    }


CANARY = "only-the-model-may-know"


@pytest.mark.parametrize(("content", "redact"), [(False, []), (True, []), (None, []), (True, ["CANARY"])])
def test_content_is_in_the_spans_only_where_that_was_asked_for(
    run_async: RunAsync, content: bool | None, redact: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """None asks the usual environment variable. What the record may not hold is in no span."""
    monkeypatch.setenv("CANARY", CANARY)
    if content is None:
        monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    backend = Backend(content=content)

    @rp.tool(effect="pure")
    def tell(what: str) -> str:
        """Tell."""
        return f"{what} {CANARY}"

    def refuse(request: ModelRequest) -> Any:
        raise ModelResponseInvalid(f"cannot read {CANARY}")

    async def main() -> None:
        model = ScriptedModel([call("tell", what=CANARY), f"Done: {CANARY}"])
        async with rp.open_supervisor(model=model, telemetry=backend.telemetry, redact=redact) as supervisor:
            await (await supervisor.spawn(rp.Agent("teller", tools=[tell]), f"Tell {CANARY}")).wait_result()
            failing = await supervisor.spawn(rp.Agent("failing", model=FunctionModel(refuse)), "Go.")
            with pytest.raises(RunFailed, match="cannot read"):
                await failing.wait_result()

    run_async(main)
    told = [span.name for span in backend.exporter.get_finished_spans() if CANARY in span.to_json()]
    assert bool(told) == (content is not False and not redact), told
    if told:
        assert {name.split()[0] for name in told} == {"chat", "execute_tool", "invoke_agent"}


def test_messages_are_told_in_the_words_of_the_conventions(run_async: RunAsync) -> None:
    """Viewers know no others: to them, the provider's own blocks were empty."""
    backend = Backend(content=True)

    @rp.tool(effect="pure")
    def tell(what: str) -> list[Text]:
        """Tell."""
        return [Text(f"told {what}")]

    async def main() -> None:
        done = ModelResponse(content=(Text("Done."),), model="scripted-2", response_id="msg_7")
        model = ScriptedModel([[Thinking("hm", "signed"), call("tell", what="this")], done])
        async with rp.open_supervisor(model=model, telemetry=backend.telemetry) as supervisor:
            await (await supervisor.spawn(rp.Agent("teller", tools=[tell]), "Tell it")).wait_result()

    run_async(main)
    chats = [span.attributes or {} for span in backend.exporter.get_finished_spans() if span.name.startswith("chat")]
    asked, called, told = json.loads(str(chats[1]["gen_ai.input.messages"]))
    assert asked["parts"][-1] == {"type": "text", "content": "Tell it"}
    thought, use = called["parts"]
    assert thought == {"type": "reasoning", "content": "hm"}
    assert (use["type"], use["name"], use["arguments"]) == ("tool_call", "tell", {"what": "this"})
    (result,) = told["parts"]
    assert result == {
        "type": "tool_call_response",
        "id": use["id"],
        "response": [{"type": "text", "content": "told this"}],
    }
    (answer,) = json.loads(str(chats[1]["gen_ai.output.messages"]))
    assert answer["finish_reason"] == "end_turn"
    assert (chats[1]["gen_ai.response.model"], chats[1]["gen_ai.response.id"]) == ("scripted-2", "msg_7")


class OddModel:
    """An application's own model, which answers and names its server as it likes."""

    name = "odd"
    profile = rp.profile_for("odd")

    def __init__(self, server: str, *blocks: Block) -> None:
        self.server = server
        self._blocks = blocks

    async def complete(self, request: ModelRequest, *, on_event: Any = None) -> ModelResponse:
        """Answer."""
        return ModelResponse(content=(*self._blocks, Text("Done.")))

    async def aclose(self) -> None:
        """Nothing to release."""


@pytest.mark.parametrize(
    "model",
    [
        OddModel("http://host:port", Text("half \ud83d")),
        OddModel("http://[", RawBlock({"type": "new", "of": object()})),
    ],
)
def test_what_cannot_be_shown_in_a_span_stops_no_run(run_async: RunAsync, model: OddModel) -> None:
    """Neither content that is no JSON nor a server's address that is none."""
    backend = Backend(content=True)

    async def main() -> None:
        async with rp.open_supervisor(model=model, telemetry=backend.telemetry) as supervisor:
            assert "Done." in await (await supervisor.spawn(rp.Agent("clerk"), "Do it")).wait_result()

    run_async(main)
    assert len(backend.exporter.get_finished_spans()) == 2
    assert "gen_ai.output.messages" in (backend.spans["chat odd"].attributes or {})


class Broken(SpanProcessor, Sampler, ExemplarFilter):
    """A part of a tracing backend that always fails."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """Fail."""
        raise OSError("the disk is full")

    def on_end(self, span: Any) -> None:
        """Fail."""
        raise OSError("the disk is full")

    def should_sample(self, *_: Any, **__: Any) -> Any:
        """Fail."""
        raise OSError("the disk is full")

    def get_description(self) -> str:
        """Its name."""
        return "broken"


@pytest.mark.parametrize("sampler", [None, Broken()], ids=["processor", "sampler"])
def test_a_backend_that_fails_stops_no_run(
    run_async: RunAsync, sampler: Sampler | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The SDK passes on what its parts raise; the log tells of it."""
    provider = TracerProvider(sampler=sampler)
    provider.add_span_processor(Broken())
    meters = MeterProvider([InMemoryMetricReader()], exemplar_filter=Broken())
    telemetry = OpenTelemetry(tracer_provider=provider, meter_provider=meters)

    @rp.tool(effect="pure")
    def measure(place: str) -> str:
        """Measure."""
        return place

    async def main() -> str:
        model = ScriptedModel([call("measure", place="harbour"), "done"])
        async with rp.open_supervisor(model=model, telemetry=telemetry) as supervisor:
            return await (await supervisor.spawn(rp.Agent("clerk", tools=[measure]), "go")).wait_result()

    assert run_async(main) == "done"
    assert 'otel.failed error="OSError: the disk is full"' in caplog.text


def test_what_fails_is_an_error_in_its_span_and_in_its_duration(run_async: RunAsync) -> None:
    """A tool's, and the run's: neither raises where it is measured."""
    backend = Backend()

    @rp.tool(effect="pure")
    def fail() -> str:
        """Fail."""
        raise ValueError("no")

    async def main() -> None:
        model = ScriptedModel([call("fail"), call("fail")])
        agent = rp.Agent("clerk", tools=[fail], limits=rp.Limits(iterations=2))
        async with rp.open_supervisor(model=model, telemetry=backend.telemetry) as supervisor:
            with pytest.raises(RunFailed):
                await (await supervisor.spawn(agent, "Fail")).wait_result()

    run_async(main)
    tool, run = (dict(backend.spans[name].attributes or {}) for name in ("execute_tool fail", "invoke_agent clerk"))
    assert (tool["error.type"], run["error.type"]) == ("ValueError", "LimitExceeded")
    for name, error in (("execute_tool", "ValueError"), ("invoke_agent", "LimitExceeded")):
        assert [point.attributes["error.type"] for point in backend.points(f"gen_ai.{name}.duration")] == [error]


def test_what_is_ended_from_outside_is_told_alike_on_both_backends(run_async: RunAsync) -> None:
    """Not with the name of a backend's own exception, nor with its text about a task of ours."""
    backend = Backend(content=True)

    async def main() -> None:
        asked = anyio.Event()

        async def never(request: ModelRequest) -> str:
            asked.set()
            await anyio.sleep_forever()
            return ""

        async with rp.open_supervisor(model=FunctionModel(never), telemetry=backend.telemetry) as supervisor:
            run = await supervisor.spawn(rp.Agent("clerk"), "Wait.")
            await asked.wait()
            run.kill()
            await run.wait_ended()

    run_async(main)
    for name in ("chat function", "invoke_agent clerk"):
        span = backend.spans[name]
        assert (span.status.description, dict(span.attributes or {})["error.type"]) == ("Cancelled", "Cancelled")


def test_the_text_of_an_error_can_be_exported(run_async: RunAsync) -> None:
    """Half a surrogate pair in a span's status would lose the whole batch."""
    backend = Backend(content=True)

    async def main() -> None:
        model = ScriptedModel([ModelResponseInvalid("half \ud83d a pair")])
        async with rp.open_supervisor(model=model, telemetry=backend.telemetry) as supervisor:
            with pytest.raises(RunFailed):
                await (await supervisor.spawn(rp.Agent("clerk"), "Go.")).wait_result()

    run_async(main)
    assert ascii(backend.spans["invoke_agent clerk"].status.description) == ascii("half \ufffd a pair")


def test_a_run_is_below_what_was_current_where_it_was_begun_or_asked_again(run_async: RunAsync) -> None:
    """As a web request is: its trace shows what the agent did for it, and each question of a chat has its own."""
    backend = Backend()
    tracer = trace.get_tracer("application", tracer_provider=backend.provider)

    async def main() -> None:
        model = ScriptedModel(["One.", "Two."])
        async with rp.open_supervisor(model=model, telemetry=backend.telemetry, max_runs=1) as supervisor:
            with tracer.start_as_current_span("first request"):
                run = await supervisor.spawn(rp.Agent("clerk"), "Count.")
            await run.wait_result()
            with tracer.start_as_current_span("second request"):
                await run.send("Go on.")
            await run.wait_result()

    run_async(main)
    first, second = (span for span in backend.exporter.get_finished_spans() if span.name == "invoke_agent clerk")
    assert parent_of(first) == id_of(backend.spans["first request"])
    assert parent_of(second) == id_of(backend.spans["second request"])
    assert [link.context.span_id for link in second.links] == [id_of(first)]
    calls = (span for span in backend.exporter.get_finished_spans() if span.name == "chat scripted")
    for run, call_of_it in zip((first, second), calls, strict=True):  # each tells only of what was done within it
        for kind in ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"):
            assert dict(run.attributes or {})[kind] == dict(call_of_it.attributes or {})[kind]


def test_a_run_that_goes_on_is_another_trace_with_a_link_to_the_first(run_async: RunAsync, tmp_path: Any) -> None:
    """As after a crash: the record says where it was traced before."""
    first, second = Backend(), Backend()
    agent = rp.Agent("clerk")

    async def main(backend: Backend, run_id: str | None) -> str:
        model = ScriptedModel(["Done."] if run_id else [RuntimeError("it breaks")] * 9)
        async with rp.open_supervisor(tmp_path / "runs.db", model=model, telemetry=backend.telemetry) as supervisor:
            if run_id:
                await (await supervisor.resume(run_id, agent=agent)).wait_result()
                return run_id
            run = await supervisor.spawn(agent, "Do it")
            with pytest.raises(RunFailed):
                await run.wait_result()
            return run.id

    run_id = run_async(main, first, None)
    run_async(main, second, run_id)
    before = first.exporter.get_finished_spans()
    (link,) = second.spans["invoke_agent clerk"].links
    assert link.context.span_id in {id_of(span) for span in before if span.name == "invoke_agent clerk"}
    assert parent_of(second.spans["invoke_agent clerk"]) is None


def test_without_a_configured_backend_nothing_is_kept(run_async: RunAsync) -> None:
    """The global providers do nothing then, and no record says that there was a trace."""

    async def main() -> set[str]:
        async with rp.open_supervisor(model=ScriptedModel(["Done."]), telemetry=OpenTelemetry()) as supervisor:
            run = await supervisor.spawn(rp.Agent("clerk"), "Do it")
            await run.wait_result()
            return {record.type for _, record in await supervisor.journal.read_events(run.id)}

    assert "Traced" not in run_async(main)
