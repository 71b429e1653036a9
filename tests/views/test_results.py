"""Typed tasks and results: what the model is told, what is taken, what is told back, and what stands on record."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import pydantic
import pytest
import trio

import repertory as rp
from patience import PATIENCE
from repertory.errors import ConfigurationError, LimitExceeded, ResultInvalid, RunExists, RunFailed
from repertory.llm.messages import Message, Text, ToolResult, ToolUse, text_of
from repertory.llm.model import ModelRequest, ModelResponse
from repertory.llm.profiles import profile_for
from repertory.llm.validation import validate
from repertory.record import Entry
from repertory.record.records import EntryAppended, RunStarted
from repertory.testing import FunctionModel, ScriptedModel, call, open_messages_server


class Finding(msgspec.Struct, frozen=True):
    """One place."""

    path: str
    line: int


class Report(msgspec.Struct, frozen=True):
    """What was found."""

    title: str
    findings: tuple[Finding, ...] = ()
    risk: Literal["low", "high"] = "low"


class Topic(msgspec.Struct, frozen=True):
    """What is to be looked into."""

    name: str
    depth: int = 1


@dataclass
class Claim:
    """What somebody says."""

    text: str


class Size(msgspec.Struct, rename={"size": "größe"}):
    """How large it is."""

    size: int


class Verdict(pydantic.BaseModel):
    """Whether it holds."""

    holds: bool


SONNET = profile_for("claude-sonnet-5-5")  # has JSON outputs
GOOD = {"title": "x", "findings": [{"path": "a.py", "line": 3}]}
REPORT = Report("x", (Finding("a.py", 3),))


def final(**fields: Any) -> ToolUse:
    """The call by which a model gives its result."""
    return call("final_result", **fields)


def said_last(request: ModelRequest) -> str:
    """The newest words that the model is shown."""
    return text_of(request.messages[-1].content)


def legal(request: ModelRequest) -> None:
    """See that every call has its result."""
    validate(request)


async def entries_of(supervisor: rp.Supervisor, run: rp.Run[Any]) -> list[Entry]:
    """The record of a run."""
    return await supervisor.journal.read_entries(run.id)


# --- a result of a type -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "arguments", "value"),
    [
        (Report, GOOD, REPORT),
        (Claim, {"text": "so"}, Claim("so")),
        (Verdict, {"holds": True}, Verdict(holds=True)),
        (list[Finding], {"result": [{"path": "a", "line": 1}]}, [Finding("a", 1)]),
        (Finding | Claim, {"result": {"text": "so"}}, Claim("so")),
        (Literal["yes", "no"], {"result": "YES"}, "yes"),
        (int, {"result": 3}, 3),
        (Report | None, {"result": None}, None),
        (dict[str, int], {"result": {"a": 1}}, {"a": 1}),
        (Size, {"result": {"größe": 3}}, Size(3)),  # the Messages API takes no such name for an argument
    ],
)
def test_a_final_call_gives_a_value_of_the_type(kind: Any, arguments: Any, value: Any) -> None:
    """A model without JSON outputs calls a tool that is offered beside its own; the caller gets the value."""
    model = ScriptedModel([final(**arguments)])
    assert rp.run_sync(rp.Agent[Any]("a", output=kind), "Go.", model=model) == value
    (offered,) = model.requests[0].tools
    assert (offered.name, offered.input_schema["type"]) == ("final_result", "object")
    assert "output_config" not in model.requests[0].options
    assert "final_result" in text_of(model.requests[0].system)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Report, '{"title": "x", "findings": [{"path": "a.py", "line": 3}]}', REPORT),
        (list[Finding], '{"result": [{"path": "a", "line": 1}]}', [Finding("a", 1)]),
        (Verdict, '{"holds": false}', Verdict(holds=False)),
        (int, "```json\n3\n```", 3),
    ],
)
def test_a_model_with_json_outputs_answers_in_json(kind: Any, text: str, value: Any) -> None:
    """The provider is given the schema, every request the same, and no tool stands beside."""
    model = ScriptedModel([call("nothing"), text], profile=SONNET)
    agent = rp.Agent[Any]("a", output=kind, options={"output_config": {"effort": "low"}})
    assert rp.run_sync(agent, "Go.", model=model) == value
    first, second = model.requests
    assert first.options == second.options
    assert first.options["output_config"]["effort"] == "low"
    schema = first.options["output_config"]["format"]["schema"]
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert first.tools == ()


def test_what_the_provider_cannot_be_told_comes_by_the_final_call() -> None:
    """Names that are not known before are nothing that a format can hold."""
    model = ScriptedModel([final(result={"a": 1})], profile=SONNET)
    assert rp.run_sync(rp.Agent("a", output=dict[str, int]), "Go.", model=model) == {"a": 1}
    assert "output_config" not in model.requests[0].options


def test_text_stays_text() -> None:
    """Without a type, or with ``str``, nothing is different."""
    for agent in (rp.Agent("a"), rp.Agent("a", output=str)):
        model = ScriptedModel(["done"])
        assert rp.run_sync(agent, "Go.", model=model) == "done"
        assert model.requests[0].tools == ()


# --- a result that does not fit -----------------------------------------------------------------------------------


def test_a_misfit_is_told_with_its_place_and_given_again() -> None:
    """The model reads what was expected where, and every request stays legal."""
    bad = {"title": "x", "findings": [{"path": "a.py", "line": "three"}]}
    model = ScriptedModel([final(**bad), "I have it.", final(**GOOD)])
    assert rp.run_sync(rp.Agent("a", output=Report), "Go.", model=model) == REPORT
    assert "Expected `int`, got `str` - at `$.findings[0].line`" in said_last(model.requests[1])
    assert "calling `final_result`" in said_last(model.requests[2])
    for request in model.requests:
        legal(request)


def test_a_text_that_fits_is_taken_where_a_call_was_asked_for() -> None:
    """Weak models answer in JSON instead of calling."""
    model = ScriptedModel(['Here:\n```json\n{"title": 1}\n```', '```json\n{"title": "x"}\n```'])
    assert rp.run_sync(rp.Agent("a", output=Report), "Go.", model=model) == Report("x")


def test_words_are_taken_where_the_type_has_them() -> None:
    """A value of ``Report | str`` or of a literal need not be JSON; JSON that is broken is still given again."""
    for kind, said in ((Report | str, "I found nothing."), (Literal["yes", "no"], "Yes"), (str | None, '"so" it is')):
        model = ScriptedModel([said])
        assert rp.run_sync(rp.Agent[Any]("a", output=kind), "Go.", model=model) == (said if said != "Yes" else "yes")
    model = ScriptedModel(['{"title": "x"', '{"title": "x"}'])
    assert rp.run_sync(rp.Agent[Any]("a", output=Report | str), "Go.", model=model) == Report("x")


@pytest.mark.parametrize("profile", [None, SONNET])
async def test_what_never_fits_fails_with_the_field_and_stays_on_record(profile: rp.ModelProfile | None) -> None:
    """Two misfits are told, the third ends the run; what came last is the last turn."""
    model = FunctionModel(lambda _: final(title=7) if profile is None else '{"title": 7}', profile=profile)
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(rp.Agent("a", output=Report), "Go.")
        with pytest.raises(RunFailed) as failed:
            await run.wait_result()
        assert isinstance(failed.value.__cause__, ResultInvalid)
        assert "3 results did not fit" in str(failed.value)
        assert "`$.title`" in str(failed.value)
        assert len(model.requests) == 3
        turns = [entry for entry in await entries_of(supervisor, run) if entry.role == "assistant"]
        assert "7" in str(turns[-1].content)
        (row,) = await supervisor.runs()
        assert row.state == "failed"
        assert "$.title" in (row.error or "")


async def test_a_failed_run_goes_on_when_it_is_resumed() -> None:
    """Resuming gives it as many tries again, and its record is legal."""
    model = ScriptedModel([final(title=7), final(**GOOD)])
    agent = rp.Agent("a", output=Report, output_retries=0)
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(agent, "Go.")
        with pytest.raises(RunFailed, match="one result did not fit"):
            await run.wait_result()
        resumed = await supervisor.resume(run.id, agent=agent)
        assert await resumed.wait_result() == REPORT
    legal(model.requests[-1])


def test_half_a_json_text_is_not_continued() -> None:
    """An answer that the output limit cut off is given anew."""
    cut = ModelResponse(content=(Text('{"title": "x'),), stop_reason="max_tokens")
    model = ScriptedModel([cut, '{"title": "y"}'], profile=SONNET)
    assert rp.run_sync(rp.Agent("a", output=Report), "Go.", model=model) == Report("y")
    assert "anew" in said_last(model.requests[1])


@pytest.mark.parametrize("number", ["NaN", "1e999"])
def test_a_number_that_cannot_be_kept_is_no_result(number: str) -> None:
    """What would be read back as something else is told to the model like any misfit."""
    model = ScriptedModel([number, "1.5"], profile=SONNET)
    assert rp.run_sync(rp.Agent("a", output=float), "Go.", model=model) == 1.5


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_results_have_types_on_both_backends(backend: Literal["trio", "asyncio"]) -> None:
    """Nothing in it waits."""
    model = ScriptedModel([final(title=1), final(**GOOD)])
    assert rp.run_sync(rp.Agent("a", output=Report), "Go.", model=model, backend=backend) == REPORT


def test_what_was_cut_off_is_no_result_though_it_fits() -> None:
    """12 may be the beginning of 123."""
    cut = ModelResponse(content=(Text("12"),), stop_reason="max_tokens")
    model = ScriptedModel([cut, '{"result": 123}'], profile=SONNET)
    assert rp.run_sync(rp.Agent("a", output=int), "Go.", model=model) == 123


def test_a_call_that_was_cut_off_is_no_result() -> None:
    """What may be incomplete is not taken, though it fits."""
    cut = ModelResponse(content=(ToolUse("c1", "final_result", {"title": "x"}),), stop_reason="max_tokens")
    model = ScriptedModel([cut, final(title="y")])
    assert rp.run_sync(rp.Agent("a", output=Report), "Go.", model=model) == Report("y")


# --- calls beside the result --------------------------------------------------------------------------------------


def looker(ran: list[str]) -> rp.Tool:
    """A tool that fails where it is told to."""

    @rp.tool(effect="pure", repeatable=False)
    async def look(what: str) -> str:
        """Look."""
        ran.append(what)
        if what == "bad":
            raise rp.ToolFailed("nothing there")
        return "seen"

    return look


def test_calls_beside_the_result_are_made_before_it_is_taken() -> None:
    """Their results and that of the final call stand on record, each once."""
    ran: list[str] = []
    model = ScriptedModel([[final(title="x"), call("look", what="a"), call("look", what="b")]])
    assert rp.run_sync(rp.Agent("a", output=Report, tools=[looker(ran)]), "Go.", model=model) == Report("x")
    assert sorted(ran) == ["a", "b"]


def test_a_result_is_not_taken_where_a_call_beside_it_fails() -> None:
    """The model reads of the failure first, and this is no misfit."""
    ran: list[str] = []
    model = ScriptedModel([[call("look", what="bad"), final(title="x")], final(title="y")])
    agent = rp.Agent("a", output=Report, tools=[looker(ran)], output_retries=0)
    assert rp.run_sync(agent, "Go.", model=model) == Report("y")
    assert "Not taken: look failed" in said_last(model.requests[1])
    legal(model.requests[1])


def test_of_two_results_in_one_turn_the_first_that_fits_is_taken() -> None:
    """The others are answered too."""
    model = ScriptedModel([[final(title=1), final(title="x"), final(title="y")]])
    assert rp.run_sync(rp.Agent("a", output=Report), "Go.", model=model) == Report("x")


async def test_the_record_of_a_finished_run_can_be_gone_on_with() -> None:
    """The call that gave the result has its own result, so a later question finds a legal conversation."""
    model = ScriptedModel([final(**GOOD)])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(rp.Agent("a", output=Report), "Go.")
        await run.wait_result()
        *_, turn, result = await entries_of(supervisor, run)
    (use,) = turn.content
    (block,) = result.content
    assert isinstance(use, ToolUse)
    assert isinstance(block, ToolResult)
    assert (block.tool_use_id, block.is_error) == (use.id, False)
    request = model.requests[0]
    asked = Message("user", (*result.content, Text("And now?")))
    legal(msgspec.structs.replace(request, messages=(*request.messages, Message("assistant", turn.content), asked)))


async def test_what_is_said_meanwhile_is_answered_before_the_run_ends() -> None:
    """A result that was on its way when somebody said more is not the last word, and tries are counted anew."""

    async def answer(request: ModelRequest) -> Any:
        if len(model.requests) == 1:
            await run.send("And the risk?")
            return final(title="x")
        legal(request)
        return final(title="x", risk="high")

    model = FunctionModel(answer)
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(rp.Agent("a", output=Report), "Go.")
        with trio.fail_after(PATIENCE):
            assert await run.wait_result() == Report("x", risk="high")


# --- on record ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", [None, SONNET])
async def test_a_result_is_kept_as_json_and_read_by_the_type_of_now(
    profile: rp.ModelProfile | None, tmp_path: Path
) -> None:
    """After a restart the same value comes; of another type it is an error that names the field."""
    agent = rp.Agent("a", output=Report)
    answer = final(**GOOD) if profile is None else '{"title": "x", "findings": [{"path": "a.py", "line": 3}]}'
    async with rp.open_supervisor(tmp_path / "a.db", model=ScriptedModel([answer], profile=profile)) as supervisor:
        run = await supervisor.spawn(agent, "Go.")
        assert await run.wait_result() == REPORT
        (row,) = await supervisor.runs()
        assert row.result == '{"title":"x","findings":[{"path":"a.py","line":3}],"risk":"low"}'
    async with rp.open_supervisor(tmp_path / "a.db", model=ScriptedModel([])) as supervisor:
        again = await supervisor.resume(run.id, agent=agent)
        assert await again.wait_result() == REPORT
        other = await supervisor.resume(run.id, agent=rp.Agent("a", output=Claim))
        with pytest.raises(ResultInvalid, match="missing required field `text`"):
            await other.wait_result()
        plain = await supervisor.resume(run.id, agent=rp.Agent("a"))
        assert await plain.wait_result() == row.result


async def test_a_text_on_record_is_no_value(tmp_path: Path) -> None:
    """A run that ended as text, resumed with a type, says so."""
    async with rp.open_supervisor(tmp_path / "a.db", model=ScriptedModel(["done"])) as supervisor:
        run = await supervisor.spawn(rp.Agent("a"), "Go.")
        await run.wait_result()
        typed = await supervisor.resume(run.id, agent=rp.Agent("a", output=Report))
        with pytest.raises(ResultInvalid, match="does not fit Report: it is not JSON"):
            await typed.wait_result()


# --- a task of a type ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [Topic("tides", 2), {"name": "tides", "depth": 2}, '{"depth": 2, "name": "tides"}'])
async def test_a_typed_task_is_kept_and_shown_as_json(task: Any) -> None:
    """A value, what JSON has of one, and JSON text are the same task."""
    model = FunctionModel(lambda _: "done")
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(rp.Agent("a", input=Topic), task, run_id="r")
        await run.wait_result()
        assert run.task == '{"name":"tides","depth":2}'
        assert (await supervisor.spawn(rp.Agent("a", input=Topic), Topic("tides", 2), run_id="r")).id == "r"
        with pytest.raises(RunExists, match="another task"):
            await supervisor.spawn(rp.Agent("a", input=Topic), Topic("winds"), run_id="r")
    shown = said_last(model.requests[0])
    assert shown == 'Your task, as JSON (Topic):\n{\n  "name": "tides",\n  "depth": 2\n}'


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ({"name": 3}, "Expected `str`, got `int` - at `$.name`"),
        ("tides", "it is not JSON"),
        (Topic(name=3), "at `$.name`"),  # type: ignore[arg-type]
        (object(), "object"),
    ],
)
async def test_a_task_that_does_not_fit_is_refused(task: Any, words: str) -> None:
    """Before anything begins, with the field, and with the fields that there are."""
    async with rp.open_supervisor(model=ScriptedModel([])) as supervisor:
        with pytest.raises(ConfigurationError, match="a task of agent a must be Topic") as refused:
            await supervisor.spawn(rp.Agent("a", input=Topic), task)
        assert words in str(refused.value)
        assert "must be Topic(name: string, depth: integer = 1), or JSON of it" in str(refused.value)
        with pytest.raises(ConfigurationError, match=r"must be list\[.*Topic\], or JSON of it"):
            await supervisor.spawn(rp.Agent("a", input=list[Topic]), {})
        with pytest.raises(ConfigurationError, match="a task with some text"):
            await supervisor.spawn(rp.Agent("a"), Topic("tides"))
        assert await supervisor.runs() == []


# --- what a definition may say ------------------------------------------------------------------------------------


def test_a_definition_that_cannot_be_meant_is_refused() -> None:
    """With the agent and the field."""

    @rp.tool(name="final_result")
    def mine() -> str:
        """Mine."""
        return ""

    @rp.tool(name="context_trail")
    def trail() -> str:
        """Not ours."""
        return ""

    output_format = {"output_config": {"format": {}}}
    for fields, words in (
        ({"output": complex}, "agent a: output is complex"),
        ({"input": complex}, "agent a: input is complex"),
        ({"output": Report, "tools": [mine]}, "a tool is named final_result"),
        ({"tools": [trail]}, "a tool is named context_trail"),
        ({"output": Report, "options": output_format}, "leave the latter out"),
        ({"output_retries": -1}, "agent a: output_retries"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            rp.Agent("a", **fields)


def test_another_type_is_another_definition() -> None:
    """A run that is resumed with one says that its agent has changed."""
    digests = {rp.Agent("a").digest, rp.Agent("a", output=Report).digest, rp.Agent("a", input=Report).digest}
    assert len(digests) == 3


def test_calls_that_cannot_be_made_do_not_go_on_for_ever() -> None:
    """A model that only ever fails beside its result reaches its limit of iterations."""
    model = FunctionModel(lambda _: [call("look", what="bad"), final(title="x")])
    agent = rp.Agent("a", output=Report, tools=[looker([])], limits=rp.Limits(iterations=4))
    with pytest.raises(RunFailed) as failed:
        rp.run_sync(agent, "Go.", model=model)
    assert isinstance(failed.value.__cause__, LimitExceeded)


# --- crashes ------------------------------------------------------------------------------------------------------


async def resumed_after(
    started: RunStarted, entries: Sequence[Entry], agent: rp.Agent[Any], model: rp.Model
) -> tuple[Any, list[Entry]]:
    """The result, and the record, of a run whose process died when so much of it was on record."""
    async with rp.open_journal() as journal:
        await journal.write([started, *(EntryAppended(run_id=started.run_id, entry=entry) for entry in entries)])
        async with rp.open_supervisor(journal=journal, model=model) as supervisor:
            run = await supervisor.resume(started.run_id, agent=agent)
            with trio.fail_after(PATIENCE):
                return await run.wait_result(), await entries_of(supervisor, run)


@pytest.mark.parametrize("profile", [None, SONNET])
async def test_a_crash_after_any_entry_changes_nothing(profile: rp.ModelProfile | None) -> None:
    """Wherever the record breaks off, the run comes to the same result, asks nothing twice, and stays legal."""

    def answer(request: ModelRequest) -> Any:
        legal(request)
        turns = sum(message.role == "assistant" for message in request.messages)
        if profile is not None:
            return ([call("look", what="a")], '{"title": 1}', '{"title": "x"}')[turns]
        return ([call("look", what="a"), final(title=1)], "words", [call("look", what="b"), final(title="x")])[turns]

    agent = rp.Agent("a", output=Report, tools=[looker([])])
    model = FunctionModel(answer, profile=profile)
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(agent, "Go.")
        assert await run.wait_result() == Report("x")
        whole, (row,) = await entries_of(supervisor, run), await supervisor.runs()
    for cut in range(1, len(whole) + 1):
        again = FunctionModel(answer, profile=profile)
        result, entries = await resumed_after(row.started, whole[:cut], agent, again)
        assert result == Report("x")
        assert [entry.content for entry in entries] == [entry.content for entry in whole]
        turns_left = sum(entry.role == "assistant" for entry in whole[cut:])
        assert len(again.requests) == turns_left


async def test_a_result_of_another_form_is_asked_for_again() -> None:
    """A run that was resumed with another type before its end was on record is told so."""
    async with rp.open_supervisor(model=ScriptedModel([final(title="x")])) as supervisor:
        run = await supervisor.spawn(rp.Agent("a", output=Report), "Go.")
        await run.wait_result()
        whole, (row,) = await entries_of(supervisor, run), await supervisor.runs()
    model = ScriptedModel([final(text="x")])
    result, _ = await resumed_after(row.started, whole, rp.Agent("a", output=Claim), model)
    assert result == Claim("x")
    assert "the form that is asked for changed" in said_last(model.requests[0])
    legal(model.requests[0])


# --- in a team ----------------------------------------------------------------------------------------------------


async def test_a_member_takes_a_typed_task_and_gives_a_typed_result() -> None:
    """The lead reads JSON; a task that does not fit is told to it with the field."""
    member = rp.Agent("member", instructions="You work.", input=Topic, output=Report)

    def answer(request: ModelRequest) -> Any:
        if text_of(request.system).startswith("You work."):
            assert '"name": "tides"' in said_last(request)
            return final(**GOOD)
        replies = [text_of(block) for message in request.messages for block in message.content]
        if len(request.messages) == 1:
            return call("delegate", agent="member", task={"name": 3})
        if len(request.messages) == 3:
            assert "$.name" in replies[-1]
            return call("delegate", agent="member", task={"name": "tides"})
        return replies[-1]

    async with rp.open_supervisor(model=FunctionModel(answer)) as supervisor:
        run = await supervisor.spawn(rp.Agent("lead", team=[member]), "Go.")
        with trio.fail_after(PATIENCE):
            report = await run.wait_result()
        assert msgspec.json.decode(report, type=Report) == REPORT
        (child,) = run.children
        assert await child.wait_result() == REPORT


# --- over the wire ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["claude-opus-5-5", "claude-haiku-4-5"])
@pytest.mark.parametrize("kind", [Report, dict[str, str]])
async def test_a_strict_server_takes_every_request_and_caches_them(name: str, kind: Any) -> None:
    """By an output format and by a final call, with thinking that is bound to the history; nothing varies."""
    value = {"title": "x"}

    def answer(request: ModelRequest) -> Any:
        turns = sum(message.role == "assistant" for message in request.messages)
        if turns < 4:
            return call("look", what=f"{turns} " + "and more to see " * 1_000)
        if kind is Report:
            return '{"title": 1}' if turns == 4 else '{"title": "x"}'
        return final(result={"title": 1}) if turns == 4 else final(result=value)

    async with (
        open_messages_server(answer, thinks=True) as server,
        aclosing(rp.AnthropicModel(name, base_url=server.url, api_key="k")) as model,
        rp.open_supervisor(model=model, summaries=()) as supervisor,
    ):
        agent = rp.Agent[Any]("a", output=kind, tools=[looker([])])
        run = await supervisor.spawn(agent, "Go.")
        with trio.fail_after(PATIENCE):
            assert await run.wait_result() == (Report("x") if kind is Report else value)
    assert [exchange.status for exchange in server.exchanges] == [200] * 6
    assert all(exchange.usage.cache_read_tokens > 0 for exchange in server.exchanges[3:])
    formats = {str((exchange.body.get("output_config") or {}).get("format")) for exchange in server.exchanges}
    tools = {str(exchange.body["tools"]) for exchange in server.exchanges}
    assert len(formats) == len(tools) == 1
    assert (formats == {"None"}) == (kind is not Report)


async def test_a_provider_that_refuses_the_format_is_told_of_with_the_way_out() -> None:
    """A gateway or an organization may not let it through; with the profile that the error names the run goes well."""
    known = profile_for("claude-haiku-4-5")
    without = msgspec.structs.replace(known, json_outputs=False)
    async with open_messages_server(lambda _: final(**GOOD), profile=without) as server:
        for profile in (known, without):
            async with (
                aclosing(rp.AnthropicModel(known.name, base_url=server.url, api_key="k", profile=profile)) as model,
                rp.open_supervisor(model=model, summaries=()) as supervisor,
            ):
                run = await supervisor.spawn(rp.Agent("a", output=Report), "Go.")
                if profile is without:
                    assert await run.wait_result() == REPORT
                else:
                    with pytest.raises(RunFailed, match=r"does not support output format.*json_outputs=False"):
                        await run.wait_result()
