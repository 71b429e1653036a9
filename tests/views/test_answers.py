"""Whatever a model answers, the run's record can be sent again and no call runs that did not come whole."""

from __future__ import annotations

import json
import math
import random
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from mutated_answers import TOOLS, kept_and_sent, mutated_answer, play_answers, unread_answers

import repertory as rp
from backends import RunAsync
from failing_journals import SlowJournal
from patience import PATIENCE
from repertory.errors import LimitExceeded, ModelRefused, ModelUnavailable, RunFailed
from repertory.llm.anthropic import AnthropicModel
from repertory.llm.messages import (
    Block,
    Json,
    RawBlock,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    encode_block,
    text_of,
    tool_uses,
)
from repertory.llm.model import ModelRequest, ModelResponse, Usage
from repertory.llm.profiles import profile_for
from repertory.summarizer.messages import ResultSummarized
from repertory.testing import FunctionModel, ScriptedModel, call, open_messages_server
from repertory.views.answers import MAX_DEPTH, Answer, read_answer
from seeds import seeds

BINDING = "claude-opus-5-5"


def read(
    *content: Any, stop_reason: str = "tool_use", known: frozenset[str] = frozenset(), most: int = 10_000
) -> Answer:
    """An answer as it goes into the record of a run with the tool ``wipe``."""
    response = ModelResponse(content=content, stop_reason=stop_reason)
    return read_answer(response, known=known, tools=["wipe"], most=most)


def deep(levels: int) -> Json:
    """An object of so many levels."""
    value: Json = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


# --- reading ----------------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32), st.sampled_from([2_000, 131_072]))
def test_whatever_comes_is_kept_in_a_form_that_can_be_sent_again(seed: int, most: int) -> None:
    """The journal gives it back, our validation and the strict server take it, and there is nothing more to change."""
    response = mutated_answer(random.Random(seed)).response
    answer = read_answer(response, known={"call_0"}, tools=TOOLS, most=most)
    assert kept_and_sent(answer) == ""
    ids = [use.id for use in tool_uses(answer.content)]
    assert len(ids) == len({*ids, "call_0"}) - 1
    assert set(answer.rejected) <= set(ids)
    assert bool(answer.raw) == (len(answer.content) != len(response.content) or answer.content != response.content)
    kept = ModelResponse(content=answer.content, stop_reason=answer.stop_reason)
    again = read_answer(kept, known=(), tools=TOOLS, most=10 * most)
    assert (again.content, again.raw) == (answer.content, "")


def test_answers_that_are_kept_as_they_came_poison_a_run() -> None:
    """The control: without being read, more than half of them could not be kept or sent again."""
    assert len(unread_answers(1, 200)) > 100


def test_a_legal_answer_is_kept_as_it_came() -> None:
    """Signed thinking, citations and blocks of unknown types ride along untouched, and nothing is kept twice."""
    content = (
        Thinking("Hm.", "signed"),
        Text("Look:", {"citations": [{"type": "char_location"}]}),
        ToolUse("toolu_1", "wipe", {"path": ".", "more": [1, None, {"a": 0.5}]}, {"caller": {"type": "direct"}}),
        RawBlock({"type": "of next year", "data": {"x": 1}}),
    )
    answer = read(*content)
    assert (answer.content, answer.rejected, answer.raw) == (content, {}, "")


@pytest.mark.parametrize(
    ("came", "kept"),
    [
        ("functions.wipe:0", "functions_wipe_0"),
        ("t1", "t1_2"),
        ("", "call"),
        (7, "call"),
        (None, "call"),
        ("é", "call"),
        ("_a-b_", "_a-b_"),
        ("trail-0-9", "call_trail-0-9"),
        ("trail-" + "9" * 250, "call_trail-" + "9" * 245),
        ("i" * 1_000, "i" * 256),
    ],
)
def test_an_illegal_or_used_id_is_replaced_and_the_call_is_made(came: Any, kept: str) -> None:
    """Only the pairing hangs on an id, so a call with another one is the same call."""
    answer = read(ToolUse(came, "wipe", {"path": "."}), known=frozenset({"t1"}))
    assert tool_uses(answer.content) == (ToolUse(kept, "wipe", {"path": "."}),)
    assert answer.rejected == {}


@pytest.mark.parametrize(
    ("name", "kept", "told"),
    [
        ("wi pe", "wi_pe", "Did you mean wipe?"),
        ('wipe(path=".")', "wipe_path", "Available: wipe"),
        ("", "unnamed", "there is no tool named ''"),
        ("w" * 200, "w" * 128, "there is no tool named"),
        (5, "unnamed", "'a number'"),
        (None, "unnamed", "'nothing'"),
        ("wipe\n", "wipe", "Did you mean wipe?"),
    ],
)
def test_a_call_with_an_illegal_name_is_not_made(name: Any, kept: str, told: str) -> None:
    """Not even where what is left of the name is a tool's."""
    answer = read(ToolUse("t1", name, {"path": "."}))
    (use,) = tool_uses(answer.content)
    assert use.name == kept
    assert told in answer.rejected["t1"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "a list instead of an object"),
        ('{"path": ', "text instead of an object"),
        ('["."]', "text instead of an object"),
        ('{"path": NaN}', "text instead of an object"),
        (f'{{"path": {"[" * 600}{"]" * 600}}}', "nested more than 100 deep"),
        (deep(600), "nested more than 100 deep"),
        (deep(900), "nested more than 100 deep"),
        ({"path": math.nan}, "nan"),
        ({"path": [-math.inf]}, "-inf"),
        ({"path": 2**64}, "more than 64 bits"),
        ({"path": "x" * 20_000}, "more than an answer may have"),
        ({"path": b"x"}, "bytes"),
        ({1: 2}, "names that are not text"),
    ],
)
def test_a_call_whose_arguments_cannot_be_kept_is_not_made(arguments: Any, told: str) -> None:
    """The model is told what was wrong with them; the record has none instead."""
    answer = read(ToolUse("t1", "wipe", arguments))
    assert tool_uses(answer.content) == (ToolUse("t1", "wipe", {}),)
    assert told in answer.rejected["t1"]
    assert answer.raw


@pytest.mark.parametrize(
    ("sent", "meant"),
    [(None, {}), ("null", {}), ('{"path": "."}', {"path": "."}), (' {"path": "\\ud800"}', {"path": "�"})],
)
def test_arguments_that_a_server_has_wrapped_are_taken_out(sent: Any, meant: Any) -> None:
    """The model can do nothing about what its server makes of them: asked to call again, it would for ever."""
    answer = read(ToolUse("t1", "wipe", sent))
    assert tool_uses(answer.content) == (ToolUse("t1", "wipe", meant),)
    assert not answer.rejected
    assert answer.raw
    cut_off = read(ToolUse("t1", "wipe", sent), stop_reason="max_tokens")
    assert "incomplete" in cut_off.rejected["t1"]


def test_arguments_at_the_bound_are_kept() -> None:
    """So deep, and so large a number, go through."""
    assert read(ToolUse("t1", "wipe", {"a": deep(MAX_DEPTH - 1), "b": 2**64 - 1})).raw == ""


@pytest.mark.parametrize(
    "stop_reason", ["max_tokens", "model_context_window_exceeded", "stop_sequence", "never heard of"]
)
def test_of_an_answer_that_may_be_cut_off_only_whole_calls_are_made(stop_reason: str) -> None:
    """Whole is a call that has arguments and another block behind it."""
    empty, whole, last = ToolUse("a", "wipe", {}), ToolUse("b", "wipe", {"x": 1}), ToolUse("c", "wipe", {"x": 2})
    answer = read(empty, whole, last, Text(" \n"), stop_reason=stop_reason)
    assert set(answer.rejected) == {"a", "c"}
    assert stop_reason in answer.rejected["c"]
    assert set(read(empty, whole, last, Text("So,"), stop_reason=stop_reason).rejected) == {"a"}
    assert read(empty, whole, last, stop_reason="end_turn").rejected == {}


def test_a_call_of_the_server_that_stays_without_result_is_left_out() -> None:
    """No server takes it back; but of a paused turn, or beside calls of ours, the result comes with the next answer."""
    search = RawBlock({"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}})
    found = RawBlock({"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []})
    assert read(Text("So."), search, stop_reason="end_turn").content == (Text("So."),)
    assert read(search, found, Text("So."), stop_reason="end_turn").content == (search, found, Text("So."))
    assert read(search, stop_reason="pause_turn").content == read(search, stop_reason="tool_use").content == (search,)


def test_one_call_that_comes_twice_is_made_once() -> None:
    """A block that a server sent twice is one call; the same arguments under two ids are two."""
    use = ToolUse("t1", "wipe", {"path": "."})
    assert tool_uses(read(use, use).content) == (use,)
    assert len(tool_uses(read(use, ToolUse("t2", "wipe", {"path": "."})).content)) == 2


def test_what_came_is_kept_beside_what_is_sent() -> None:
    """As JSON that a person can read, cut where it has no end."""
    answer = read(ToolUse("a b", "wi pe", {"x": 10**5000, "y": b"z", "z": deep(900)}), Text("w" * 2_000_000), None, 5)
    assert len(answer.raw) <= 1_000_000
    assert answer.raw.startswith('[{"type": "tool_use", "id": "a b", "name": "wi pe", "input": {"x": "0x')
    short = read(ToolUse("a b", "wi pe", {"y": math.nan}), None)
    assert json.loads(short.raw)[0]["id"] == "a b"


def test_an_answer_without_end_is_cut_and_says_so() -> None:
    """A server may ignore the limit on tokens; what it sent must not fill every later request."""
    answer = read(Text("w" * 9_000), Text("w" * 9_000), ToolUse("t1", "wipe", {"path": "."}), stop_reason="end_turn")
    assert len(text_of(answer.content)) < 10_200
    assert text_of(answer.content).endswith("left out: it has more than 10,000 characters.]")
    assert tool_uses(answer.content) == ()


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", seeds(2, at_night=80))
def test_runs_live_through_answers_of_all_kinds(run_async: RunAsync, tmp_path: Path, seed: int) -> None:
    """Over a real journal, cut off and resumed in between; every request is one that a strict server takes."""
    assert run_async(play_answers, seed, 120, tmp_path) == []


def test_runs_live_through_them_over_the_wire(run_async: RunAsync) -> None:
    """The strict server sends what can be sent, and refuses no later request."""

    async def main() -> None:
        rng = random.Random(9)
        answers = [_on_the_wire(mutated_answer(rng).response) for _ in range(30)]
        refused = 0

        def answer(request: ModelRequest) -> ModelResponse:
            return answers.pop() if answers else ModelResponse(content=(Text("The end."),))

        async with (
            open_messages_server(answer) as server,
            aclosing(AnthropicModel(BINDING, base_url=server.url)) as model,
        ):
            agent = rp.Agent("clerk", tools=_tools(), model=model)
            async with rp.open_supervisor() as supervisor:
                run = await supervisor.spawn(agent, "Live through this.")
                while answers:
                    why = await ended(run)
                    if isinstance(why, str):  # one of them was an answer
                        run = await supervisor.spawn(agent, "Live through this.")
                        continue
                    assert isinstance(why, ModelRefused | LimitExceeded), why
                    run = await supervisor.resume(run.id, agent=agent)
                    refused += 1
                assert await ended(run)
            assert {exchange.status for exchange in server.exchanges} == {200}
            assert refused

    run_async(main)


async def ended(run: rp.Run) -> str | BaseException | None:
    """How a run ended: its answer, or what it failed of."""
    try:
        return await run.wait_result()
    except RunFailed as failed:
        return failed.__cause__


def _on_the_wire(response: ModelResponse) -> ModelResponse:
    """What of an answer a server can say: blocks that JSON holds, each with the fields of its type."""
    content = [block for block in response.content if isinstance(block, Text | Thinking | ToolUse | RawBlock)]
    return ModelResponse(content=tuple(filter(_can_be_said, content)), stop_reason=response.stop_reason or "end_turn")


def _can_be_said(block: Any) -> bool:
    try:
        raw = encode_block(block)
        if msgspec.json.decode(msgspec.json.encode(raw)) != raw:
            return False
    except (TypeError, ValueError, RecursionError):
        return False
    match raw.get("type"):
        case "text":
            return isinstance(raw.get("text"), str)
        case "thinking":
            return isinstance(raw.get("thinking"), str) and raw["signature"] == ""  # the server signs it
        case "tool_use":
            return all(
                isinstance(raw.get(field), kind) for field, kind in (("id", str), ("name", str), ("input", dict))
            )
        case kind:
            return isinstance(kind, str)


def _tools(ran: list[str] | None = None) -> list[rp.Tool]:
    """A tool for each name, and one that must not run unasked; what runs is noted."""
    noted = ran if ran is not None else []

    def note(name: str) -> rp.Tool:
        @rp.tool(name=name, effect="pure", repeatable=False)
        def run(mark: int = -1, data: Any = None) -> str:
            """Do it."""
            noted.append(name)
            return "done"

        return run

    @rp.tool(effect="unsafe")
    def wipe(path: str = ".") -> str:
        """Delete everything below a path."""
        noted.append(f"wipe {path}")
        return "gone"

    return [*map(note, TOOLS), wipe]


def reply(*content: Block, stop_reason: str) -> ModelResponse:
    """A whole answer."""
    return ModelResponse(content=content, stop_reason=stop_reason, usage=Usage(1, 1))


async def test_a_refused_answer_runs_nothing_and_another_model_goes_on_from_before_it() -> None:
    """The refused words are in the journal and in no later request; the next model gets what the first one got."""
    ran: list[str] = []
    refusal = ModelResponse(
        content=(Text("I had better not."), ToolUse("t1", "wipe", {"path": "/"})),
        stop_reason="refusal",
        usage=Usage(10, 5),
        extra={"stop_details": {"type": "refusal", "category": "cyber", "explanation": "It could do harm."}},
    )
    first, other = ScriptedModel([call("look", mark=1), refusal], name="first"), ScriptedModel(["Done."], name="other")
    async with rp.open_supervisor() as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk", tools=_tools(ran), model=first), "Clean up.")
        with pytest.raises(RunFailed, match=r"refused to go on \(cyber\): It could do harm") as caught:
            await run.wait_result()
        assert isinstance(caught.value.__cause__, ModelRefused)
        calls = await supervisor.journal.read_model_calls(run.id)
        assert calls[-1].replied is not None
        assert (calls[-1].replied.stop_reason, text_of(calls[-1].replied.content)) == ("refusal", "I had better not.")
        again = await supervisor.resume(run.id, agent=rp.Agent("clerk", tools=_tools(ran), model=other))
        assert await again.wait_result() == "Done."
    assert ran == ["look"]
    assert other.requests[0].messages == first.requests[1].messages


def test_where_one_model_declined_another_goes_on(run_async: RunAsync) -> None:
    """What the first one left is sent back only as far as the server takes it; no call of it is made."""
    ran: list[str] = []
    search = RawBlock({"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}})
    handed_over = RawBlock({"type": "fallback", "from": {"model": BINDING}, "to": {"model": "claude-opus-4-8"}})
    left = (Thinking("Hm."), Text("First"), search, ToolUse("t1", "wipe", {"path": "/"}), handed_over)
    answers = [
        reply(
            *left, Thinking("Rather not."), Text("I look."), ToolUse("t2", "look", {"mark": 1}), stop_reason="tool_use"
        ),
        reply(Text("Done."), stop_reason="end_turn"),
    ]

    async def main() -> None:
        async with (
            open_messages_server(lambda request: answers.pop(0)) as server,
            aclosing(AnthropicModel(BINDING, base_url=server.url)) as model,
            rp.open_supervisor(model=model) as supervisor,
        ):
            run = await supervisor.spawn(rp.Agent("clerk", tools=_tools(ran), options={"fallbacks": "default"}), "Go.")
            assert await run.wait_result() == "Done."
            kinds = [block["type"] for block in server.exchanges[1].body["messages"][1]["content"]]
        assert kinds == ["text", "fallback", "thinking", "text", "tool_use"]
        assert ran == ["look"]

    run_async(main)


async def test_a_refused_run_can_be_resumed_with_a_message() -> None:
    """What is said right after resuming is heard before the model is asked again."""

    def answer(request: ModelRequest) -> ModelResponse:
        said = text_of(request.messages[-1].content)
        kind = "end_turn" if "please" in said else "refusal"
        return reply(Text("With pleasure." if kind == "end_turn" else "No."), stop_reason=kind)

    agent = rp.Agent("clerk", tools=_tools(), model=FunctionModel(answer))
    async with rp.open_supervisor() as supervisor:
        run = await supervisor.spawn(agent, "Do it.")
        with pytest.raises(RunFailed, match="refused to go on: No"):
            await run.wait_result()
        again = await supervisor.resume(run.id, agent=agent)
        await again.send("Do it, please.")
        assert await again.wait_result() == "With pleasure."


@pytest.mark.parametrize("arguments", [{}, {"path": "/"}])
async def test_a_call_that_the_output_limit_cut_off_is_not_run(arguments: Json) -> None:
    """Not with what came of its arguments, and not with its defaults; the model is told, and makes it again."""
    ran: list[str] = []
    cut = reply(ToolUse("t1", "look", {"mark": 1}), ToolUse("t2", "wipe", arguments), stop_reason="max_tokens")
    model = ScriptedModel([cut, call("wipe", path="tmp"), "Done."])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk", tools=_tools(ran)), "Clean up.")
        assert await run.wait_result() == "Done."
    assert ran == ["look", "wipe tmp"]
    made, told = (block for block in model.requests[1].messages[-1].content if isinstance(block, ToolResult))
    assert (made.is_error, told.is_error) == (False, True)
    assert "may be incomplete" in text_of(told)


async def test_calls_that_can_never_be_made_end_the_run() -> None:
    """A model that is cut off in every call costs a few answers, not as many as the run may have."""
    model = FunctionModel(lambda request: reply(ToolUse("", "wipe", {"path": "x"}), stop_reason="max_tokens"))
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk", tools=_tools()), "Clean up.")
        with pytest.raises(RunFailed, match="calls that could not be made") as caught:
            await run.wait_result()
    assert isinstance(caught.value.__cause__, LimitExceeded)
    assert len(model.requests) == 4


async def test_a_paused_turn_with_text_goes_on() -> None:
    """A new model takes no text of its own at the end, so it is asked to go on; the parts are one answer."""
    model = ScriptedModel([reply(Text("The tide "), stop_reason="pause_turn"), "turns."], profile=profile_for(BINDING))
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk"), "Tell me of the tide.")
        assert await run.wait_result() == "The tide turns."
    assert "was paused" in text_of(model.requests[1].messages[-1].content)


async def test_a_turn_in_which_the_server_paused_its_own_tools_is_sent_back_as_it_is() -> None:
    """The server takes it at the end, for its own tools in it; what is said meanwhile is heard behind their results."""
    search = RawBlock({"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "tide"}})
    found = RawBlock({"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []})
    runs: list[rp.Run] = []

    async def answer(request: ModelRequest) -> Any:
        match len(server.exchanges):
            case 0:
                await runs[0].send("And the moon?")
                return reply(Text("I look it up."), search, stop_reason="pause_turn")
            case 1:
                return reply(found, Text("Twice a day."), stop_reason="end_turn")
            case _:
                return "It pulls."

    async with open_messages_server(answer) as server, aclosing(AnthropicModel(BINDING, base_url=server.url)) as model:
        async with rp.open_supervisor(model=model) as supervisor:
            runs.append(await supervisor.spawn(rp.Agent("clerk"), "When does the tide turn?"))
            assert await runs[0].wait_result() == "It pulls."
        said = [exchange.body["messages"][-1] for exchange in server.exchanges]
    assert [message["role"] for message in said] == ["user", "assistant", "user"]
    assert [block["type"] for block in said[1]["content"]] == ["text", "server_tool_use"]
    assert said[2]["content"][0]["text"] == "And the moon?"


async def test_unsigned_thinking_goes_to_no_model_that_signs_its_own() -> None:
    """A run that a local model began can go on with one of Anthropic's."""
    first = ScriptedModel([(Thinking("Hm."), call("look")), ModelUnavailable("gone")])
    async with rp.open_supervisor() as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk", tools=_tools(), model=first), "Look.")
        with pytest.raises(RunFailed, match="gone"):
            await run.wait_result()
        other = ScriptedModel(["Done."], profile=profile_for(BINDING))
        again = await supervisor.resume(run.id, agent=rp.Agent("clerk", tools=_tools(), model=other))
        await again.wait_result()
    assert any(isinstance(block, Thinking) for block in first.requests[1].messages[1].content)
    assert not any(isinstance(block, Thinking) for block in other.requests[0].messages[1].content)


# --- calls after a crash ----------------------------------------------------------------------------------------------


async def test_an_id_that_was_open_at_a_crash_is_not_given_again(tmp_path: Path) -> None:
    """A server that numbers its calls anew in each answer meets the call that the crash left open."""
    keys: dict[str, set[int]] = {}
    crash = anyio.CancelScope()

    @rp.tool(effect="idempotent")
    async def put(number: int, context: rp.ToolContext) -> str:
        """Do what may be done twice under one key."""
        keys.setdefault(context.idempotency_key, set()).add(number)
        if number == 1 and len(keys) == 1 and not crash.cancel_called:
            crash.cancel()
            await anyio.lowlevel.checkpoint()
        return "done"

    model = ScriptedModel([call("put", call_id="t1", number=1), call("put", call_id="t1", number=2), "Done."])
    agent = rp.Agent("clerk", tools=[put], model=model)
    with crash:
        async with rp.open_supervisor(tmp_path / "runs.db", drain_timeout=0.0) as supervisor:
            await (await supervisor.spawn(agent, "Put.", run_id="run")).wait_result()
    async with rp.open_supervisor(tmp_path / "runs.db") as supervisor:
        run = await supervisor.resume("run", agent=agent)
        assert await run.wait_result() == "Done."
    assert sorted(keys.values(), key=min) == [{1}, {2}]
    assert [use.id for message in model.requests[-1].messages for use in tool_uses(message.content)] == ["t1", "t1_2"]


async def test_a_turn_on_its_way_to_the_disk_is_known_to_the_actor_that_is_restarted_meanwhile(
    autojump_clock: Any,
) -> None:
    """The disk is slow, and the actor crashes while the answer is being written: its call is made, under its own id."""
    journal, made = SlowJournal(), list[int]()

    @rp.tool(effect="idempotent")
    async def put(number: int) -> str:
        """Do it."""
        made.append(number)
        return "done"

    def first(request: ModelRequest) -> ToolUse:
        journal.hold()
        return call("put", call_id="t1", number=1)

    model = ScriptedModel([first, call("put", call_id="t1", number=2), "Done."])
    async with rp.open_supervisor(journal=journal, model=model) as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk", tools=[put]), "Put.")
        while not journal.waiting:
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        live = supervisor._runtime.runs.find(run.id)  # pyright: ignore[reportPrivateUsage]
        assert live is not None
        assert live.ref is not None
        live.ref.tell(ResultSummarized(run_id=run.id, position=999, text="of nothing", cost=0.0))  # crashes the actor
        await trio.sleep(1)  # of no real time: until it is started again
        journal.release()
        with trio.fail_after(PATIENCE):
            assert await run.wait_result() == "Done."
    assert made == [1, 2]
    assert [use.id for message in model.requests[-1].messages for use in tool_uses(message.content)] == ["t1", "t1_2"]


async def test_what_came_is_in_the_journal(tmp_path: Path) -> None:
    """The record holds what is sent; the reply has what the model really said beside it."""
    model = ScriptedModel([ToolUse("functions.look:0", "look", {"mark": 1}), ToolUse("t2", "lo ok", {}), "Done."])
    async with rp.open_supervisor(tmp_path / "runs.db", model=model) as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk", tools=_tools()), "Look.")
        await run.wait_result()
    async with rp.open_journal(tmp_path / "runs.db") as journal:
        raws = [row.replied.raw for row in await journal.read_model_calls(run.id) if row.replied is not None]
        outcomes = [entry for entry in await journal.read_entries(run.id) if entry.tool is not None]
    assert ["functions.look:0" in raws[0], "lo ok" in raws[1], raws[2]] == [True, True, ""]
    assert [(entry.tool, entry.tool_call_id) for entry in outcomes] == [("look", "functions_look_0"), ("lo_ok", "t2")]
    assert "Did you mean look?" in text_of(outcomes[1].content)
