"""Values that nobody can keep are refused by a typed error that names the field, wherever callers hand them in."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

import repertory as rp
from repertory.actors import Supervision
from repertory.errors import ConfigurationError, RecordRefused, RepertoryError
from repertory.llm import RetryPolicy
from repertory.mcp import McpServer
from repertory.memory import ItemQuery
from repertory.runs.telemetry import NoTelemetry
from repertory.testing import ScriptedModel, call


class Notes(msgspec.Struct):
    """A payload."""

    lines: list[Any] = []


def nested(levels: int) -> list[Any]:
    """A list in a list, so many times."""
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def endless() -> list[Any]:
    """A list that contains itself."""
    value: list[Any] = []
    value.append(value)
    return value


Call = Callable[[rp.Supervisor, "rp.Run[Any]", Any], Awaitable[object]]
AGENT = rp.Agent("clerk", payload=Notes)
LISTER = rp.Agent("lister", input=list[Any])


@pytest.mark.parametrize("value", [nested(3_000), nested(100_000), endless()], ids=["deep", "deeper", "endless"])
@pytest.mark.parametrize(
    ("where", "hand_in"),
    [
        ("options", lambda supervisor, _, value: supervisor.spawn(AGENT, "Go.", options={"a": value})),
        ("task", lambda supervisor, _, value: supervisor.spawn(AGENT, value)),
        ("run_id", lambda supervisor, _, value: supervisor.spawn(AGENT, "Go.", run_id=value)),
        ("payload", lambda supervisor, _, value: supervisor.spawn(AGENT, "Go.", payload=value)),
        ("lines", lambda _, run, value: run.change_payload({"lines": value})),
        ("path", lambda _, run, value: run.change_payload(remove=[value])),
        ("message", lambda _, run, value: run.send(value)),
        ("content", lambda _, run, value: run.memory.store(value)),
        ("metadata", lambda _, run, value: run.memory.store("a", metadata={"a": value})),
        ("run_id", lambda supervisor, _, value: supervisor.clean(value)),
        ("content_id", lambda supervisor, run, value: supervisor.share_content(value, run.id)),
    ],
)
async def test_what_is_nested_too_deep_is_refused_by_name(where: str, hand_in: Call, value: Any) -> None:
    """Also where an error would have to show it; the run goes on."""
    async with rp.open_supervisor(model=ScriptedModel(["Done."])) as supervisor:
        run = await supervisor.spawn(AGENT, "Go.")
        with pytest.raises(RepertoryError, match=where):
            await hand_in(supervisor, run, value)
        assert await run.wait_result() == "Done."


@pytest.mark.parametrize("value", [nested(100_000), endless()], ids=["deeper", "endless"])
async def test_a_typed_task_that_nothing_can_write_is_refused(value: Any) -> None:
    """It becomes text, so it may be as deep as the writer of JSON can go, which depends on Python's version."""
    async with rp.open_supervisor(model=ScriptedModel([])) as supervisor:
        with pytest.raises(ConfigurationError, match="a task of agent lister"):
            await supervisor.spawn(LISTER, value)


@pytest.mark.parametrize("wrong", [{"values": ["lines"]}, {"values": "lines"}, {"append": 5}, {"remove": "lines"}])
async def test_changes_of_a_payload_are_by_path(wrong: dict[str, Any]) -> None:
    """A list or a text in place of a mapping is named; a text is not taken for a list of its letters."""
    async with rp.open_supervisor(model=ScriptedModel(["Done."])) as supervisor:
        run = await supervisor.spawn(AGENT, "Go.")
        with pytest.raises(ConfigurationError, match=f"change_payload: {next(iter(wrong))} must be"):
            await run.change_payload(**wrong)
        assert run.payload == Notes()


@pytest.mark.parametrize("wrong", [{"tags": "plan"}, {"tags": 5}, {"related_to": "item-1"}])
async def test_labels_of_an_item_are_lists(wrong: dict[str, Any]) -> None:
    """One text would be taken for its letters."""
    async with rp.open_supervisor(model=ScriptedModel(["Done."])) as supervisor:
        run = await supervisor.spawn(AGENT, "Go.")
        with pytest.raises(ConfigurationError, match=f"{next(iter(wrong))} must be a list of texts"):
            await run.memory.store("a", **wrong)
        assert await run.memory.query(ItemQuery(limit=2**70)) == []


@pytest.mark.parametrize("wrong", [range(3), range(0), [], (), "", 0, [("a", 1)], re.match("a", "a")])
async def test_metadata_of_an_item_is_a_dict(wrong: Any) -> None:
    """Neither something empty of another type, nor what can be indexed as a dict can, is taken for one."""
    async with rp.open_supervisor(model=ScriptedModel(["Done."])) as supervisor:
        run = await supervisor.spawn(AGENT, "Go.")
        with pytest.raises(ConfigurationError, match=r"StoreItem: .*metadata"):
            await run.memory.store("a", metadata=wrong)
        assert (await run.memory.store("a", metadata={})).metadata == {}
        assert await run.wait_result() == "Done."


@pytest.mark.parametrize(
    ("made", "wrong"),
    [
        (ItemQuery, {"tags": "plan"}),
        (ItemQuery, {"types": ["a", 1]}),
        (ItemQuery, {"limit": -1}),
        (ItemQuery, {"limit": True}),
        (ItemQuery, {"since": float("nan")}),
        (ItemQuery, {"text": None}),
        (Supervision, {"strategy": "one_for_one"}),
        (Supervision, {"max_restarts": 2.5}),
        (RetryPolicy, {"attempts": "3"}),
        (rp.ResultLater, {"note": 5}),
        (rp.ResultLater, {"timeout": "soon"}),
        (rp.ResultLater, {"timeout": -1.0}),
        (rp.ResultLater, {"timeout": float("inf")}),
        (rp.ResultLater, {"schema": "object"}),
        (rp.ResultLater, {"schema": range(3)}),
        (rp.ResultLater, {"state": [1]}),
        *(
            (rp.ToolContext, {name: 5})
            for name in ("run_id", "agent", "call_id", "idempotency_key", "arguments_digest")
        ),
        *((rp.ToolContext, {name: 5}) for name in ("answer", "progress", "record", "contents", "memory", "staged")),
        (rp.ToolContext, {"payload": {}}),
        (rp.ToolContext, {"iteration": "first"}),
        (rp.ToolContext, {"expires_at": "soon"}),
        *(
            (rp.ToolOutput, {name: 5})
            for name in ("content", "status", "source_type", "url", "format", "facts", "metadata")
        ),
        *((rp.ToolOutput, {name: 5}) for name in ("records", "as_is", "retrieved", "pin", "error", "later")),
        *((rp.ToolOutput, {name: range(3)}) for name in ("facts", "metadata")),
        (rp.ToolOutput, {"content": b"raw"}),
        (rp.ToolOutput, {"content": ["text"]}),
    ],
)
def test_what_is_made_with_a_wrong_value_is_refused_where_it_is_made(made: Any, wrong: dict[str, Any]) -> None:
    """The field is named; not only whoever uses it later finds out."""
    needed = {"content": "text"} if made is rp.ToolOutput else {}
    with pytest.raises(ConfigurationError, match=f"{made.__name__}.{next(iter(wrong))}"):
        made(**{**needed, **wrong})


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda: rp.ToolContext().commit(5), "commit: records must be some records, got 5"),  # type: ignore[arg-type]
        (lambda: rp.ToolContext().commit([5]), "commit: each must be a record, .*, got 5"),  # type: ignore[list-item]
        (lambda: rp.file_tools(5), "the folder must be a path, got 5"),  # type: ignore[arg-type]
        (lambda: rp.file_tools(".", deny=".env"), "deny must be a list of names and paths, got '.env'"),
        (lambda: rp.file_tools(".", allow="*.pem"), r"allow must be a list of names and paths, got '\*.pem'"),
        (lambda: rp.file_tools(".", deny=[5]), "deny: each must be a name or a path, got 5"),  # type: ignore[list-item]
        (lambda: rp.file_tools(".", search_timeout=-1), "search_timeout must be a number of at least 0, got -1"),
        (lambda: rp.context_tools(max_repeats=-1), "max_repeats must be a whole number of at least 0, got -1"),
        (lambda: rp.memory_tools(read_only="no"), "read_only must be True or False, got 'no'"),  # type: ignore[arg-type]
        (lambda: rp.skill_tool(5), "skills must be a folder, .*, got 5"),  # type: ignore[arg-type]
        (lambda: rp.media_block("data", "image/png"), "data must be bytes, got 'data'"),  # type: ignore[arg-type]
    ],
)
def test_tools_refuse_a_wrong_value_where_it_is_given(make: Callable[[], object], where: str) -> None:
    """A text is not taken for a list of its letters: of these ``*`` would allow every secret there is."""
    with pytest.raises(ConfigurationError, match=where):
        make()


@pytest.mark.parametrize(("tool", "context"), [(len, None), (rp.memory_tools()[0], 5)])
async def test_a_call_needs_a_tool_and_a_context(tool: Any, context: Any) -> None:
    """A plain function or another object in their place is named."""
    with pytest.raises(ConfigurationError, match=r"call_tool: (tool|context) must be"):
        await rp.call_tool(tool, {}, context=context)


@pytest.mark.parametrize("wrong", [{"content": (5,)}, {"facts": "few"}, {"records": 5}, {"error": 5}])
async def test_an_output_that_is_none_does_not_end_the_run(wrong: dict[str, Any]) -> None:
    """The model is told what the tool did wrong, and goes on."""

    @rp.tool(effect="pure")
    def broken() -> rp.ToolOutput:
        """Give what is no output."""
        return rp.ToolOutput(**{"content": "text", **wrong})

    model = ScriptedModel([call("broken"), "Done."])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk", tools=[broken]), "Go.")
        assert await run.wait_result() == "Done."
    assert f"ToolOutput.{next(iter(wrong))}" in str(model.requests[-1].messages[-1])


async def test_what_is_refused_as_too_deep_is_an_error_of_the_record() -> None:
    """One class, whoever finds it: the struct that holds it, or the journal that writes it."""
    async with rp.open_supervisor(model=ScriptedModel(["Done."])) as supervisor:
        with pytest.raises(RecordRefused, match=r"RunStarted\.options: a value that contains itself"):
            await supervisor.spawn(AGENT, "Go.", options={"a": endless()})


HALF = "\ud800"
LONG = "x" * 1_000_000


class Pool:
    """A tool set whose class has all that a tool set has."""

    name = "pool"
    lifetime = "run"

    def open(self) -> Any:
        """Nothing is opened."""


COMPACTOR = rp.ResultPolicy(compactor=LONG)
TEMPLATE = rp.ResultPolicy(compact_prompt=f"{{{{ {LONG} }}}}")


@pytest.mark.parametrize(
    ("where", "options"),
    [
        ("path", {"path": 5}),
        ("path", {"path": "a\0b"}),
        ("path", {"path": HALF}),
        ("journal", {"journal": "company.db"}),
        ("drain_timeout", {"drain_timeout": None}),
        ("drain_timeout", {"drain_timeout": -1}),
        ("redact", {"redact": "SECRET_KEY"}),
        ("redact", {"redact": [5]}),
        ("max_runs", {"max_runs": 0}),
        ("quotas", {"quotas": {"runs": 1}}),
        ("telemetry", {"telemetry": "otel"}),
        ("clock", {"clock": 5.0}),
        ("labels", {"labels": ""}),
        ("labels", {"labels": "gpu"}),
        ("name", {"name": 5}),
        ("model must be a Model", {"model": rp.OfflineModel}),
        ("telemetry", {"telemetry": NoTelemetry}),
        ("malformed model name", {"summaries": LONG}),
        ("malformed model name", {"summaries": ["offline", LONG]}),
    ],
)
async def test_an_option_of_a_supervisor_is_refused_as_itself(where: str, options: dict[str, Any]) -> None:
    """Before anything is opened, and not in a group: above all one name to redact, which is no list of its letters."""
    with pytest.raises(ConfigurationError, match=where) as caught:
        async with rp.open_supervisor(**options):
            raise AssertionError
    assert len(str(caught.value)) < 1_500


@pytest.mark.parametrize(
    ("where", "make"),
    [
        ("ContextPolicy.window", lambda: rp.ContextPolicy(window=HALF)),  # type: ignore[arg-type]
        ("model must be a Model", lambda: rp.Agent("a", model=rp.OfflineModel)),  # type: ignore[arg-type]
        (
            "tools[0] is <class 'test_refused_values.Pool'>; make one of it, Pool(…)",
            lambda: rp.Agent("a", tools=[Pool]),
        ),
        ("ContextPolicy.rhythm", lambda: rp.ContextPolicy(rhythm=LONG)),  # type: ignore[arg-type]
        ("ResultPolicy.compact_prompt", lambda: rp.ResultPolicy(compact_prompt=b"shorter")),  # type: ignore[arg-type]
        ("ResultPolicy.compactor", lambda: rp.ResultPolicy(compactor=b"log")),  # type: ignore[arg-type]
        ("preset", lambda: rp.ContextPolicy.preset(LONG)),  # type: ignore[arg-type]
        ("payload_scope.read", lambda: rp.PayloadScope(read=LONG)),
        ("output", lambda: rp.Agent("a", output=LONG)),
        ("delegation.memory", lambda: rp.Delegation(memory=LONG)),  # type: ignore[arg-type]
        ("on_lifecycle", lambda: rp.Agent("a", on_lifecycle=LONG)),  # type: ignore[arg-type]
        ("target", lambda: McpServer("a", LONG)),
        ("target", lambda: McpServer("a", 5)),  # type: ignore[arg-type]
        ("include", lambda: McpServer("a", ["a"], include="add")),
        ("env", lambda: McpServer("a", ["a"], env={"A": 5})),  # type: ignore[dict-item]
        ("deadline", lambda: McpServer("a", ["a"], deadline=float("nan"))),
        ("on_input", lambda: McpServer("a", ["a"], on_input="ask")),  # type: ignore[arg-type]
    ],
)
def test_a_definition_of_the_wrong_type_or_of_a_million_characters_is_refused_in_few_words(
    where: str, make: Callable[[], object]
) -> None:
    """With the field, and no more of the value than a line shows; half a character is a wrong type like any other."""
    with pytest.raises(ConfigurationError, match=re.escape(where)) as caught:
        make()
    assert len(str(caught.value)) < 1_500
    str(caught.value).encode()


@pytest.mark.parametrize(
    ("where", "hand_in"),
    [
        ("malformed model name", lambda supervisor, _, __: supervisor.spawn(rp.Agent("a", model=LONG), "Go.")),
        ("results must be", lambda supervisor, _, __: supervisor.spawn(AGENT, "Go.", results=LONG)),
        ("results must be", lambda supervisor, _, __: supervisor.spawn(AGENT, "Go.", results={LONG: 1})),
        ("compactor", lambda supervisor, _, __: supervisor.spawn(AGENT, "Go.", results=COMPACTOR)),
        ("template has xxx", lambda supervisor, _, __: supervisor.spawn(AGENT, "Go.", results=TEMPLATE)),
        ("run_id", lambda supervisor, _, __: supervisor.fork(5, agent=AGENT)),
        ("run_id", lambda supervisor, _, __: supervisor.rewind(["a"], 0, agent=AGENT)),
        ("id 'xxx", lambda supervisor, _, __: supervisor.resume(LONG, agent=AGENT)),
        ("id 'xxx", lambda supervisor, _, __: supervisor.remove(LONG)),
        ("states", lambda supervisor, _, __: supervisor.runs(states="done")),
        ("states", lambda supervisor, _, __: supervisor.runs(states=["ready"])),
        ("options", lambda supervisor, _, __: supervisor.spawn(AGENT, "Go.", options=HALF)),
        ("approve: arguments", lambda _, run, __: run.approve("call", arguments=[])),
        ("call 'xxx", lambda _, run, __: run.give_result(LONG, "a")),
        ("give_result", lambda _, run, __: run.give_result("call", "a", is_error=HALF)),
        ("start_iteration", lambda _, run, __: run.summary(start_iteration=HALF)),
    ],
)
async def test_a_call_with_the_wrong_type_or_a_million_characters_is_refused_in_few_words(
    where: str, hand_in: Call
) -> None:
    """As definitions are; the run goes on."""
    async with rp.open_supervisor(model=ScriptedModel(["Done."])) as supervisor:
        run = await supervisor.spawn(AGENT, "Go.")
        with pytest.raises(RepertoryError, match=where) as caught:
            await hand_in(supervisor, run, None)
        assert len(str(caught.value)) < 1_500
        assert await run.wait_result() == "Done."
