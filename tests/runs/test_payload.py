"""The payload of a run: typed, changed with a tool's outcome or by its caller, shared in parts with sub-agents."""

from __future__ import annotations

import gc
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import anyio
import msgspec
import pydantic
import pytest

import repertory as rp
from backends import RunAsync
from repertory.errors import ConfigurationError, ModelUnavailable, PayloadInvalid, RunError
from repertory.llm.messages import ToolResult, text_of
from repertory.llm.model import ModelRequest
from repertory.memory.documents import document_of, is_same
from repertory.runs.events import PayloadConflicted
from repertory.testing import FunctionModel, ScriptedModel, call


class Research(msgspec.Struct):
    """What a research team produces."""

    topic: str = "tides"
    rounds: int = 0
    notes: list[str] = msgspec.field(default_factory=list[str])
    scores: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    sources: list[rp.SourceRecord] = msgspec.field(default_factory=list[rp.SourceRecord])


@rp.tool(effect="transactional")
async def note(text: str, context: rp.ToolContext) -> str:
    """Keep a note.

    Args:
        text: The note.
    """
    context.payload.append("notes", text)
    return f"kept as note {len(context.payload.get('notes'))}"


@rp.tool(effect="transactional")
async def put(path: str, value: Any, context: rp.ToolContext) -> str:
    """Put a value into the payload."""
    context.payload.set(path, value)
    return "put"


@rp.tool(effect="transactional")
async def fail_after_note(text: str, context: rp.ToolContext) -> str:
    """Keep a note and fail."""
    context.payload.append("notes", text)
    raise rp.ToolFailed("the pen broke")


def results_of(request: ModelRequest) -> list[str]:
    """What the tools said, in order."""
    return [text_of(block) for m in request.messages for block in m.content if isinstance(block, ToolResult)]


def agent_with(*steps: Any, tools: Any = (note, put, fail_after_note), **options: Any) -> rp.Agent:
    """An agent that makes these calls, with a payload."""
    options.setdefault("payload", Research)
    return rp.Agent("researcher", tools=tools, model=ScriptedModel([*steps, "done"]), **options)


async def run_to_end(agent: rp.Agent, journal: Any = None, **options: Any) -> rp.Run:
    """Run it in a supervisor of its own."""
    async with rp.open_supervisor(journal=journal) as supervisor:
        run = await supervisor.spawn(agent, "Find out.", **options)
        await run.wait_result()
        return run


class Plain(TypedDict, total=False):
    """The same as a mapping."""

    topic: str
    notes: list[str]


@dataclass
class Data:
    """The same as a dataclass."""

    topic: str = "tides"
    notes: list[str] = field(default_factory=list[str])


class Model(pydantic.BaseModel):
    """The same as a model."""

    topic: str = "tides"
    notes: list[str] = []


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Research, Research(topic="moons")),
        (Data, Data(topic="moons")),
        (Plain, {"topic": "moons", "notes": []}),
        (Plain, {"topic": "moons"}),  # the list is not there yet, and both calls begin it
        (dict[str, Any], {"topic": "moons", "notes": []}),
        (dict[str, Any], {}),
        (Model, Model(topic="moons")),
    ],
)
def test_a_payload_of_any_kind_is_typed_durable_and_changed_by_tools(
    kind: Any, value: Any, run_async: RunAsync
) -> None:
    """What comes out is of the type that went in, changed, and a copy; every version is in the record."""

    async def main() -> None:
        async with rp.open_supervisor() as supervisor:
            agent = agent_with([call("note", text="one"), call("note", text="two")], payload=kind)
            run = await supervisor.spawn(agent, "Find out.", payload=value)
            await run.wait_result()
            payload = run.payload
            assert type(payload) is type(value)
            got = payload if isinstance(payload, dict) else vars(payload) if kind is not Research else None
            notes = got["notes"] if got is not None else payload.notes
            assert sorted(notes) == ["one", "two"]
            notes.clear()  # a copy
            assert run.payload != payload
            versions = await supervisor.journal.read_payload(run.id)
            assert [(version.version, version.author) for version in versions] == [
                (1, "spawn"),
                (2, "tool"),
                (3, "tool"),
            ]

    run_async(main)


def test_parallel_tools_that_change_different_places_both_land(run_async: RunAsync) -> None:
    """Each began with the same version, and neither undoes the other."""
    both = [call("put", path="rounds", value=2), call("put", path="scores.a", value=1), call("note", text="n")]

    async def main() -> None:
        run = await run_to_end(agent_with(both))
        assert run.payload == Research(rounds=2, scores={"a": 1}, notes=["n"])

    run_async(main)


def test_parallel_tools_that_change_the_same_place_keep_the_first_and_say_so(run_async: RunAsync) -> None:
    """The model, the watcher and the record are told; the other value stands in the record."""
    begun, gate = anyio.Event(), anyio.Event()

    @rp.tool(effect="transactional")
    async def slow_put(value: str, context: rp.ToolContext) -> str:
        """Put a topic late."""
        context.payload.set("topic", value)
        begun.set()
        await gate.wait()
        return "put"

    @rp.tool(effect="transactional")
    async def quick_put(value: str, context: rp.ToolContext) -> str:
        """Put a topic once the other has begun."""
        await begun.wait()
        context.payload.set("topic", value)
        return "put"

    @rp.tool(effect="pure")
    async def open_gate(context: rp.ToolContext) -> str:
        """Let the slow one go on once the quick one has ended."""
        while context.record is None or len(context.record.snapshot()) < 3:
            await anyio.lowlevel.checkpoint()
        gate.set()
        return "open"

    told: list[str] = []

    def last(request: ModelRequest) -> str:
        told.extend(results_of(request))
        return "done"

    calls = [call("slow_put", value="late"), call("quick_put", value="early"), call("open_gate")]
    agent = rp.Agent("a", tools=[slow_put, quick_put, open_gate], model=ScriptedModel([calls, last]), payload=Research)

    async def main() -> None:
        async with rp.open_supervisor() as supervisor:
            run = await supervisor.spawn(agent, "Race.")
            await run.wait_result()
            events = [event async for event in run.events() if isinstance(event, PayloadConflicted)]
            versions = await supervisor.journal.read_payload(run.id)
            assert run.payload.topic == "early"
            assert [(event.source, event.version, event.paths) for event in events] == [("slow_put", 3, ("$.topic",))]
            (conflict,) = versions[-1].conflicts
            assert (conflict.change.value, conflict.version, versions[-1].changes) == ("late", 2, ())
            note_on = next(text for text in told if "[payload:" in text)
            assert "$.topic" in note_on
            assert "version 2" in note_on

    run_async(main)


def test_a_tool_that_fails_changes_nothing(run_async: RunAsync) -> None:
    """Neither what is seen nor what is recorded; a note that comes later is the first."""

    async def main() -> None:
        run = await run_to_end(agent_with(call("fail_after_note", text="lost"), call("note", text="kept")))
        assert run.payload.notes == ["kept"]

    run_async(main)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("rounds", "many", "Expected `int`, got `str` - at `$.rounds`"),
        ("tpoic", "x", "no 'tpoic'"),
        ("notes.5", "x", "no item '5' at $.notes, a list of 0"),
        ("topic.deep", "x", "which has no 'deep'"),
        ("scores.a", 1.5, "$.scores[...]"),
    ],
)
async def test_a_value_that_does_not_fit_is_an_error_result_that_names_the_field(
    path: str, value: Any, words: str
) -> None:
    """The model reads what was expected and where; nothing has changed, and the run goes on."""
    told: list[str] = []

    def last(request: ModelRequest) -> str:
        told.extend(results_of(request))
        return "done"

    agent = rp.Agent(
        "a", tools=[put], model=ScriptedModel([call("put", path=path, value=value), last]), payload=Research
    )
    run = await run_to_end(agent)
    assert words in told[0]
    assert run.payload == Research()


async def test_a_pure_tool_cannot_change_the_payload() -> None:
    """It may be answered from an earlier call, so that its change would be lost."""

    @rp.tool(effect="pure")
    async def sly(context: rp.ToolContext) -> str:
        """Look, and write."""
        context.payload.set("rounds", 3)
        return "ok"

    run = await run_to_end(agent_with(call("sly"), tools=[sly]))
    assert run.payload.rounds == 0


async def test_a_caller_changes_the_payload_all_at_once_or_not_at_all() -> None:
    """One version; what does not fit is refused as a whole, and after the end nothing changes."""
    gate = anyio.Event()

    async def wait(request: ModelRequest) -> str:
        await gate.wait()
        return "done"

    async with rp.open_supervisor(model=FunctionModel(wait)) as supervisor:
        run = await supervisor.spawn(rp.Agent("a", payload=Research), "Wait.")
        await run.change_payload({"topic": "moons", ("scores", "a.b"): 3}, append={"notes": "one"})
        with pytest.raises(PayloadInvalid, match=r"rounds"):
            await run.change_payload({"topic": "stars", "rounds": "many"})
        await run.change_payload(remove=[("scores", "a.b")])
        versions = await supervisor.journal.read_payload(run.id)
        assert [version.author for version in versions] == ["spawn", "caller", "caller"]
        gate.set()
        await run.wait_result()
        with pytest.raises(RunError, match="has ended"):
            await run.change_payload({"topic": "late"})
        assert run.payload == Research(topic="moons", notes=["one"])


async def test_a_run_without_a_payload_says_how_to_have_one() -> None:
    """To callers, at spawn, and to tools."""
    async with rp.open_supervisor(model=ScriptedModel([call("note", text="x"), "done"])) as supervisor:
        with pytest.raises(PayloadInvalid, match=r"agent a takes no payload.*Agent\(payload=…\)"):
            await supervisor.spawn(rp.Agent("a"), "Go.", payload={"topic": "x"})
        run = await supervisor.spawn(rp.Agent("a", tools=[note]), "Go.")
        await run.wait_result()
        assert run.payload is None
        result = (await supervisor.journal.read_entries(run.id))[2]
    assert "this run has no payload" in text_of(result.content)


async def test_a_first_value_that_does_not_fit_is_refused_by_its_field() -> None:
    """No run begins; a type without a default for a field needs a value."""

    class Strict(msgspec.Struct):
        topic: str

    async with rp.open_supervisor(model=ScriptedModel([])) as supervisor:
        with pytest.raises(PayloadInvalid, match=r"`str`, got `int` - at `\$.topic`"):
            await supervisor.spawn(rp.Agent("a", payload=Research), "Go.", payload={"topic": 3})
        with pytest.raises(PayloadInvalid, match="topic"):
            await supervisor.spawn(rp.Agent("a", payload=Strict), "Go.")
        assert await supervisor.runs() == []
    with pytest.raises(ConfigurationError, match=r"agent a: payload"):
        rp.Agent("a", payload=object())


async def test_a_secret_that_is_redacted_is_in_no_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the run holds is what the record holds."""
    monkeypatch.setenv("MY_TOKEN", "s3cret-token-value")
    path = tmp_path / "s.db"
    agent = agent_with(call("note", text="with s3cret-token-value"))
    async with rp.open_supervisor(path, redact=["MY_TOKEN"]) as supervisor:
        run = await supervisor.spawn(agent, "Go.", payload=Research(topic="s3cret-token-value"))
        await run.wait_result()
        assert run.payload == Research(topic="[redacted: MY_TOKEN]", notes=["with [redacted: MY_TOKEN]"])
        assert is_same(document_of(await supervisor.journal.read_payload(run.id)), msgspec.to_builtins(run.payload))
    assert b"s3cret" not in path.read_bytes()


async def test_the_history_can_be_queried_with_sql(tmp_path: Path) -> None:
    """One row for each change, made or not."""
    path = tmp_path / "h.db"
    async with rp.open_supervisor(path) as supervisor:
        run = await supervisor.spawn(agent_with(call("put", path="rounds", value=2)), "Go.")
        await run.wait_result()
    with closing(sqlite3.connect(path)) as connection, connection:
        rows = connection.execute(
            "SELECT version, author, source, path, op, value, conflicts_with FROM payload_history WHERE version > 1"
        ).fetchall()
    assert rows == [(2, "tool", "put", '["rounds"]', "set", 2, None)]


# --- instructions ---------------------------------------------------------------------------------------------------


async def test_instructions_show_the_payload_as_the_run_began_with_it() -> None:
    """Also after it has changed, so that the prompt's beginning stays; other braces are left alone."""
    model = ScriptedModel([call("put", path="topic", value="moons"), "done"])
    text = 'On {payload.topic}, {payload.scores}, answer {"a": {b}} and {{payload.topic}}, not {topic}.'
    agent = rp.Agent("a", instructions=text, tools=[put], model=model, payload=Research)
    await run_to_end(agent, payload=Research(scores={"x": 1}))
    shown = {text_of(request.system).split("\n")[0] for request in model.requests}
    assert shown == {'On tides, {"x":1}, answer {"a": {b}} and {payload.topic}, not {topic}.'}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"payload": Research, "instructions": "On {payload.tpoic}."}, "its payload has notes, rounds"),
        ({"instructions": "On {payload.topic}."}, "it has no payload"),
        ({"payload": dict, "instructions": "On {payload.topic}."}, "has no 'topic'"),
        ({"payload": Research, "instructions": "On {payload.scores.x}."}, "has no 'x'"),
    ],
)
async def test_a_template_that_names_what_is_not_there_is_refused_at_spawn(options: Any, words: str) -> None:
    """The agent, the template and what there is are named."""
    async with rp.open_supervisor(model=ScriptedModel([])) as supervisor:
        with pytest.raises(ConfigurationError, match=r"agent a: its instructions show \{payload\.") as caught:
            await supervisor.spawn(rp.Agent("a", **options), "Go.")
        assert words in str(caught.value)
        assert await supervisor.runs() == []


# --- sub-agents -----------------------------------------------------------------------------------------------------


def family(worker_calls: Any, *, scope: rp.PayloadScope, kind: Any = None) -> rp.Agent:
    """A lead that delegates twice at once, and workers that make the given calls."""
    worker = rp.Agent("worker", instructions="You work.", tools=[note, put], payload=kind, payload_scope=scope)

    def answer(request: ModelRequest) -> Any:
        done = len(results_of(request))
        if text_of(request.system) == "You work.":
            task = text_of(request.messages[0].content).split("\n", 1)[0]
            return worker_calls(task) if done == 0 else f"{task}: {results_of(request)}"
        return (
            [call("delegate", agent="worker", task=name) for name in ("one", "two")]
            if not done
            else "\n".join(results_of(request))
        )

    return rp.Agent("lead", team=[worker], model=FunctionModel(answer), payload=Research)


async def test_a_sub_agent_gets_its_scope_and_what_it_may_write_comes_back() -> None:
    """Everything else is hidden; lists that only grew are joined; the lead's record says who wrote what."""
    scope = rp.PayloadScope(read=("topic",), write=("notes",))
    lead = family(lambda task: call("note", text=f"by {task}"), scope=scope)
    async with rp.open_supervisor() as supervisor:
        run = await supervisor.spawn(lead, "Go.", payload=Research(notes=["first"], rounds=7))
        await run.wait_result()
        assert sorted(run.payload.notes) == ["by one", "by two", "first"]
        first = (await supervisor.journal.read_payload(run.children[0].id))[0]
        assert first.changes[0].value == {"topic": "tides", "notes": ["first"]}
        versions = await supervisor.journal.read_payload(run.id)
        assert [version.author for version in versions] == ["spawn", "sub-agent", "sub-agent"]
        assert {version.source for version in versions[1:]} == {child.id for child in run.children}
        outcome = {row.intended.call_id for row in await supervisor.journal.read_tool_calls(run.id)}
        assert {version.call_id for version in versions[1:]} == outcome


async def test_what_is_started_and_collected_comes_back_once() -> None:
    """With the collection that reports it, also where its report is looked at again; what failed brings nothing."""
    worker = rp.Agent("worker", instructions="You work.", tools=[note], payload_scope=rp.PayloadScope(write=("notes",)))

    def answer(request: ModelRequest) -> Any:
        done = results_of(request)
        if text_of(request.system) == "You work.":
            return call("note", text="by the worker") if not done else "noted"
        if not done:
            return call("delegate_start", agent="worker", task="Note.")
        run_id = done[0].split()[-1]
        return call("delegate_collect", runs=[run_id]) if len(done) < 3 else "done"

    lead = rp.Agent(
        "lead", team=[worker], model=FunctionModel(answer), payload=Research, delegation=rp.Delegation(background=True)
    )
    async with rp.open_supervisor() as supervisor:
        run = await supervisor.spawn(lead, "Go.")
        await run.wait_result()
        assert run.payload.notes == ["by the worker"]
        versions = await supervisor.journal.read_payload(run.id)
    assert [version.author for version in versions] == ["spawn", "sub-agent"]


async def test_two_sub_agents_that_change_the_same_place_keep_the_first_and_report_the_other() -> None:
    """In the lead's result, as an event, and in the record with the other value."""
    lead = family(lambda task: call("put", path="topic", value=task), scope=rp.PayloadScope(write=("topic",)))
    async with rp.open_supervisor() as supervisor:
        run = await supervisor.spawn(lead, "Go.")
        answer = await run.wait_result()
        versions = await supervisor.journal.read_payload(run.id)
        events = [event async for event in run.events() if isinstance(event, PayloadConflicted)]
    (conflict,) = versions[-1].conflicts
    assert {run.payload.topic, conflict.change.value} == {"one", "two"}
    assert answer.count("[payload: not everything could be changed") == 1
    assert [event.paths for event in events] == [("$.topic",)]


async def test_a_conflict_of_sub_agents_is_reported_after_a_restart_too(tmp_path: Path) -> None:
    """Both had changed the place before the process ended; which of them came first is told by the record."""
    path = tmp_path / "c.db"
    runs: list[rp.Run[Any]] = []

    def worker(request: ModelRequest) -> Any:
        done, task = results_of(request), text_of(request.messages[0].content).split("\n", 1)[0]
        if not done:
            return call("put", path="topic", value=task)
        if len(done) == 1:
            runs[0].stop()  # at the next boundary, with all below it
            return call("note", text=f"by {task}")
        return "done"

    def lead(request: ModelRequest) -> Any:
        both = [call("delegate", agent="worker", task=name) for name in ("one", "two")]
        return "\n".join(results_of(request)) or both

    member = rp.Agent(
        "worker",
        tools=[put, note],
        model=FunctionModel(worker),
        payload_scope=rp.PayloadScope(write=("topic", "notes")),
    )
    agent = rp.Agent("lead", team=[member], model=FunctionModel(lead), payload=Research)
    async with rp.open_supervisor(path, durability="process") as supervisor:
        runs.append(await supervisor.spawn(agent, "Go.", run_id="r1"))
        with pytest.raises(RunError):
            await runs[0].wait_result()
        assert runs[0].payload == Research()
    async with rp.open_supervisor(path, durability="process") as supervisor:
        run = await supervisor.resume("r1", agent=agent)
        assert (await run.wait_result()).count("[payload: not everything could be changed") == 1
        (conflict,) = [each for record in await supervisor.journal.read_payload("r1") for each in record.conflicts]
        assert {run.payload.topic, conflict.change.value} == {"one", "two"}
        assert sorted(run.payload.notes) == ["by one", "by two"]


async def test_what_a_sub_agent_may_only_read_is_refused_to_it() -> None:
    """Its tool says so; the lead's payload stays."""
    lead = family(lambda task: call("put", path="topic", value=task), scope=rp.PayloadScope(read=("topic",)))
    async with rp.open_supervisor() as supervisor:
        run = await supervisor.spawn(lead, "Go.")
        assert "may only be read here" in await run.wait_result()
        assert run.payload.topic == "tides"


async def test_what_the_lead_does_not_have_yet_comes_back_too() -> None:
    """A list that only the members' type has, with what both of them have appended."""

    class Notes(msgspec.Struct):
        topic: str = ""
        notes: list[str] = msgspec.field(default_factory=list[str])

    scope = rp.PayloadScope(read=("topic",), write=("notes",))
    lead = family(lambda task: call("note", text=f"by {task}"), scope=scope, kind=Notes)
    lead = msgspec.structs.replace(lead, payload=dict[str, Any])
    async with rp.open_supervisor() as supervisor:
        run = await supervisor.spawn(lead, "Go.", payload={"topic": "tides"})
        await run.wait_result()
        assert sorted(run.payload["notes"]) == ["by one", "by two"]


async def test_what_has_no_place_in_the_leads_payload_is_a_conflict() -> None:
    """The lead goes on, its payload stays, and what could not be put there is on record."""

    class Counts(msgspec.Struct):
        notes: dict[str, int] = msgspec.field(default_factory=dict[str, int])

    lead = family(
        lambda task: call("put", path="notes.ann", value=1), scope=rp.PayloadScope(write=("notes.ann",)), kind=Counts
    )
    async with rp.open_supervisor() as supervisor:
        run = await supervisor.spawn(msgspec.structs.replace(lead, payload=dict), "Go.", payload={"notes": "none"})
        assert "cannot be changed where there is 'none'" in await run.wait_result()
        assert run.payload == {"notes": "none"}
        conflicts = [each for record in await supervisor.journal.read_payload(run.id) for each in record.conflicts]
    assert [conflict.change.value for conflict in conflicts] == [1, 1]


async def test_a_scope_that_does_not_fit_the_members_type_is_told_to_the_lead() -> None:
    """The delegation fails with the field's name, and the run goes on."""

    class Narrow(msgspec.Struct):
        topic: int

    lead = family(lambda task: "x", scope=rp.PayloadScope(read=("topic",)), kind=Narrow)
    async with rp.open_supervisor() as supervisor:
        run = await supervisor.spawn(lead, "Go.")
        answer = await run.wait_result()
    assert "worker was not started" in answer
    assert "$.topic" in answer


@pytest.mark.parametrize(
    ("lead", "member", "words"),
    [
        ({}, {"payload_scope": rp.PayloadScope(read=("topic",))}, "lead has none"),
        ({"payload": Research}, {"payload_scope": rp.PayloadScope(read=("tpoic",))}, "payload of lead has no 'tpoic'"),
        (
            {"payload": Research},
            {"payload_scope": rp.PayloadScope(read=("rounds",)), "payload": Data},
            "payload of worker has no 'rounds'",
        ),
        ({}, {"payload": msgspec.defstruct("Need", [("topic", str)])}, "begins with the defaults of its type"),
    ],
)
async def test_a_team_whose_payloads_do_not_fit_together_is_refused_at_spawn(
    lead: Any, member: Any, words: str
) -> None:
    """Before anything runs; the agent and the field are named."""
    agent = rp.Agent("lead", team=[rp.Agent("worker", **member)], **lead)
    async with rp.open_supervisor(model=ScriptedModel([])) as supervisor:
        with pytest.raises(ConfigurationError, match=f"agent worker: .*{words}"):
            await supervisor.spawn(agent, "Go.")


# --- sources --------------------------------------------------------------------------------------------------------


async def test_what_is_cited_has_one_source_record_of_its_true_length() -> None:
    """Read twice it is one record, of what was read last; what is shown whole has none."""

    @rp.tool(effect="unsafe")
    async def fetch(url: str, size: int) -> rp.ToolOutput:
        """Fetch a page."""
        return rp.ToolOutput("line of text\n" * size, source_type="web", url=url, format="markdown")

    steps = [
        call("fetch", url="https://a", size=500),
        call("fetch", url="https://a", size=600),
        call("fetch", url="https://b", size=500),
        call("fetch", url="https://c", size=1),
    ]
    policy = rp.ContextPolicy(results=rp.ResultPolicy(cite_over=1_000))
    async with rp.open_supervisor() as supervisor:
        run = await supervisor.spawn(agent_with(*steps, tools=[fetch], context=policy), "Read.")
        await run.wait_result()
        contents = {stored.content_id: stored for stored in await supervisor.journal.read_contents(run.id)}
        sources = run.payload.sources
    assert [(source.url, source.length) for source in sources] == [("https://a", 7_800), ("https://b", 6_500)]
    for source in sources:
        stored = contents[source.content_id]
        assert (source.type, source.format, source.length) == ("web", "markdown", stored.length)
        assert source.accessed_at == stored.at


class Cited(msgspec.Struct):
    """A payload of sources, and of what only looks like them."""

    sources: list[rp.SourceRecord] = msgspec.field(default_factory=list[rp.SourceRecord])
    links: list[dict[str, str]] = msgspec.field(default_factory=list[dict[str, str]])


@pytest.mark.parametrize("held", [True, False], ids=["whose run is at hand", "whose run is not"])
async def test_cleaning_a_run_clears_the_sources_too(held: bool, tmp_path: Path) -> None:
    """Contents and source records of the whole tree go in one transaction; the payload's other parts stay."""

    @rp.tool(effect="unsafe")
    async def fetch(url: str) -> rp.ToolOutput:
        """Fetch a page."""
        return rp.ToolOutput("line of text\n" * 2_000, source_type="web", url=url)

    cut = rp.ContextPolicy(results=rp.ResultPolicy(cap_chars=500))
    worker = rp.Agent(
        "worker",
        instructions="You work.",
        tools=[fetch],
        payload=Cited,
        context=cut,
        payload_scope=rp.PayloadScope(write=("sources",)),
    )

    def answer(request: ModelRequest) -> Any:
        if results_of(request):
            return "done"
        if text_of(request.system) == "You work.":
            return call("fetch", url="https://b")
        return [call("fetch", url="https://a"), call("delegate", agent="worker", task="Fetch.")]

    lead = rp.Agent("lead", tools=[fetch], team=[worker], model=FunctionModel(answer), payload=Cited, context=cut)
    async with rp.open_supervisor(tmp_path / "c.db", durability="process") as supervisor:
        run = await supervisor.spawn(lead, "Read.", run_id="r1", payload=Cited(links=[{"content_id": "x"}]))
        await run.wait_result()
        (child,) = run.children
        assert {source.url for source in run.payload.sources} == {"https://a", "https://b"}
        if not held:
            run = child = None  # type: ignore[assignment]
            gc.collect()
        assert await supervisor.clean("r1") == 2
        journal = supervisor.journal
        for run_id in [row.started.run_id for row in await supervisor.runs()]:
            document = document_of(records := await journal.read_payload(run_id))
            assert (document["sources"], records[-1].author) == ([], "cleaning")
        assert document_of(await journal.read_payload("r1"))["links"] == [{"content_id": "x"}]
        assert await supervisor.clean("r1") == 0
        if held:
            assert (run.payload.sources, child.payload.sources) == ([], [])
        again = await supervisor.resume("r1", agent=lead)
        assert again.payload == Cited(links=[{"content_id": "x"}])


async def test_a_content_whose_time_is_over_takes_its_source_along(tmp_path: Path) -> None:
    """One that can still be read keeps its own."""
    now = 1_000.0

    @rp.tool(effect="unsafe")
    async def fetch(url: str) -> rp.ToolOutput:
        """Fetch a page."""
        return rp.ToolOutput("line of text\n" * 2_000, source_type="web", url=url)

    policy = rp.ContextPolicy(results=rp.ResultPolicy(cap_chars=500, retention=60.0))
    agent = agent_with(call("fetch", url="https://a"), tools=[fetch], payload=Cited, context=policy)
    async with rp.open_supervisor(tmp_path / "c.db", durability="process", clock=lambda: now) as supervisor:
        run = await supervisor.spawn(agent, "Read.", run_id="r1")
        await run.wait_result()
        assert [source.url for source in run.payload.sources] == ["https://a"]
    now += 100.0
    async with rp.open_supervisor(tmp_path / "c.db", durability="process", clock=lambda: now) as supervisor:
        stored = (await supervisor.journal.read_contents("r1"))[0]
        found = await supervisor.journal.read_content(stored.content_id, root="r1")
        again = await supervisor.resume("r1", agent=agent)
        assert found is not None
        assert bool(found.body) == bool(again.payload.sources)
        assert not found.body


# --- restarts -------------------------------------------------------------------------------------------------------


def test_a_payload_is_replayed_when_its_run_goes_on(tmp_path: Path, run_async: RunAsync) -> None:
    """In another process's place: value, version and what instructions show are as they were."""
    path = tmp_path / "p.db"
    model = ScriptedModel([call("note", text="one"), "done"])
    agent = rp.Agent("a", instructions="On {payload.topic}.", tools=[note, put], model=model, payload=Research)

    async def main() -> None:
        async with rp.open_supervisor(path, durability="process") as supervisor:
            run = await supervisor.spawn(agent, "Go.", payload=Research(topic="moons"), run_id="r1")
            await run.change_payload({"topic": "stars"})
            run.stop()
            with pytest.raises(RunError):
                await run.wait_result()
        other = rp.Agent(
            "a", instructions="On {payload.topic}.", tools=[note], model=ScriptedModel(["done"]), payload=Data
        )
        bad = rp.Agent("a", model=ScriptedModel([]), payload=msgspec.defstruct("Bad", [("topic", int)]))
        async with rp.open_supervisor(path, durability="process") as supervisor:
            with pytest.raises(PayloadInvalid, match=r"payload of run r1 on record does not fit Bad.*topic"):
                await supervisor.resume("r1", agent=bad)
            again = await supervisor.resume("r1", agent=other)
            await again.wait_result()
            assert (again.payload.topic, type(again.payload)) == ("stars", Data)
            versions = await supervisor.journal.read_payload("r1")
            assert [version.version for version in versions] == list(range(1, len(versions) + 1))
        assert text_of(other.model.requests[-1].system).startswith("On moons.")  # type: ignore[union-attr]

    run_async(main)


class Item(msgspec.Struct):
    """A finding, as the first version of a program keeps it."""

    text: str


class Later(Item):
    """The same in its next version."""

    marks: list[str] = msgspec.field(default_factory=list)


class Board(msgspec.Struct):
    """A payload, as the first version of a program keeps it."""

    items: list[Item] = msgspec.field(default_factory=list)


class LaterBoard(msgspec.Struct):
    """The same in its next version, which has more fields."""

    items: list[Later] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=lambda: ["first"])


def test_a_type_may_get_fields_while_a_run_is_interrupted(tmp_path: Path, run_async: RunAsync) -> None:
    """The new ones can be read, shown and appended to like the old ones, and are on record once."""
    path = tmp_path / "p.db"

    @rp.tool(effect="transactional")
    def mark(context: rp.ToolContext) -> str:
        """Use what is new."""
        context.payload.append("notes", "more")
        context.payload.append("items.0.marks", "seen")
        return str(context.payload.get("notes"))

    def version(kind: type, model: ScriptedModel) -> rp.Agent[str]:
        return rp.Agent("a", "On {payload.notes}." * (kind is LaterBoard), tools=[mark], model=model, payload=kind)

    async def main() -> None:
        first = version(Board, ScriptedModel([ModelUnavailable("gone")]))
        async with rp.open_supervisor(path, durability="process") as supervisor:
            run = await supervisor.spawn(first, "Go.", payload=Board([Item("one")]), run_id="r1")
            assert await run.wait_ended() == "failed"
        model = ScriptedModel([[call("mark")], ModelUnavailable("gone"), "Done."])
        later = version(LaterBoard, model)
        for state in ("failed", "done"):
            async with rp.open_supervisor(path, durability="process") as supervisor:
                run = await supervisor.resume("r1", agent=later)
                assert await run.wait_ended() == state
                assert run.payload == LaterBoard([Later("one", ["seen"])], ["first", "more"])
        assert {text_of(request.system) for request in model.requests} == {'On ["first"].'}
        async with rp.open_journal(path, readonly=True) as journal:
            assert [each.author for each in await journal.read_payload("r1")] == ["spawn", "resume", "tool"]

    run_async(main)
