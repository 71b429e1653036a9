"""Limits: counted from the record, reserved before anything begins, and refused where they could not be kept."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

import repertory as rp
from backends import RunAsync
from context_scenes import Reader, clerk
from failing_journals import SlowJournal
from patience import PATIENCE
from repertory.errors import ConfigurationError, LimitExceeded, RunFailed
from repertory.llm import with_prices
from repertory.llm.messages import Text, ToolResult, text_of
from repertory.llm.model import BrokenOff, ModelRequest, ModelResponse, Usage
from repertory.llm.profiles import OFFLINE, Amount, amount_at_most, profile_for
from repertory.runs.accounting import Spending, Tally
from repertory.runs.events import SummaryRefused
from repertory.testing import FunctionModel, ScriptedModel, call, open_messages_server
from repertory.testing.faults import Raw
from seeds import seeds
from storms import Tree, limit_storm

# A dollar for a thousand tokens written, which is as many as an answer of these agents may have.
DOLLARS = with_prices(msgspec.structs.replace(OFFLINE, name="dollars"), input=0.0, output=1_000.0)


def one_dollar(answer: Any) -> Any:
    """An answer that is billed one dollar."""
    if isinstance(answer, ModelResponse):
        return answer
    blocks = answer if isinstance(answer, list) else [Text(answer) if isinstance(answer, str) else answer]
    return ModelResponse(content=tuple(blocks), usage=Usage(input_tokens=100, output_tokens=1_000))


class Paid:
    """A model that takes a dollar for each call and counts what it has taken, as its provider would."""

    def __init__(self, answer: Callable[[ModelRequest], Any]) -> None:
        self.taken = 0
        self.at_once = self.most_at_once = 0
        self._answer = answer
        self.model = FunctionModel(self._call, profile=DOLLARS)

    async def _call(self, request: ModelRequest) -> Any:
        self.taken += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            for _ in range(50):  # longer than anything between two calls takes
                await trio.lowlevel.checkpoint()
            return one_dollar(self._answer(request))
        finally:
            self.at_once -= 1


def is_worker(request: ModelRequest) -> bool:
    """Whether the worker asks."""
    return text_of(request.system) == "You work."


def reports_in(request: ModelRequest) -> list[str]:
    """The tool results that a request shows."""
    return [text_of(b) for message in request.messages for b in message.content if isinstance(b, ToolResult)]


def lead(limits: rp.Limits) -> rp.Agent:
    """A lead with a worker that never comes to an end by itself."""
    many = rp.Limits(iterations=1_000)
    worker = rp.Agent("worker", instructions="You work.", limits=many, context=None, max_tokens=1_000)
    return rp.Agent("lead", team=[worker], limits=limits, context=None, max_tokens=1_000)


def parts(number: int) -> list[Any]:
    """Delegations side by side."""
    return [call("delegate", agent="worker", task=f"part {part}") for part in range(number)]


@pytest.mark.parametrize("slow", [False, True])
async def test_delegations_side_by_side_count_before_they_begin(*, slow: bool) -> None:
    """Eight at once under a limit of four runs are three and five refusals, also while the disk takes its time."""
    journal = SlowJournal()

    def answer(request: ModelRequest) -> Any:
        if is_worker(request):
            return "done"
        if not reports_in(request):
            if slow:
                journal.hold()
            return parts(8)
        return " / ".join(reports_in(request))

    async with rp.open_supervisor(journal=journal, model=FunctionModel(answer)) as supervisor:
        run = await supervisor.spawn(lead(rp.Limits(runs=4)), "Go.")
        while slow and not journal.waiting:
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        journal.release()
        result = await run.wait_result()
        assert result.count("limits.runs") == 5
        assert len(await supervisor.runs()) == 4


async def test_runs_of_earlier_processes_count() -> None:
    """A resumed tree has the runs that it had, whether or not anybody asks for them again."""

    def answer(request: ModelRequest) -> Any:
        if is_worker(request):
            return "done"
        reports = reports_in(request)
        if len(reports) < 2:
            return parts(2)
        if len(reports) == 2:
            return rp.errors.ModelUnavailable("down") if down.pop() else parts(3)
        return " / ".join(reports)

    down = [False, True]
    async with rp.open_journal() as journal:
        async with rp.open_supervisor(journal=journal, model=FunctionModel(answer)) as supervisor:
            run = await supervisor.spawn(lead(rp.Limits(runs=4)), "Go.")
            with pytest.raises(RunFailed, match="down"):
                await run.wait_result()
        async with rp.open_supervisor(journal=journal, model=FunctionModel(answer)) as supervisor:
            again = await supervisor.resume(run.id, agent=lead(rp.Limits(runs=4)))
            assert (await again.wait_result()).count("limits.runs") == 2
            assert len(await supervisor.runs()) == 4


class Moody(FunctionModel):
    """A model that can be used at first, and then not."""

    moody = False

    @property
    def name(self) -> str:
        """Its name."""
        if self.moody:
            raise OSError("not now")
        return "moody"


async def test_a_delegation_that_could_not_begin_takes_no_room() -> None:
    """What was reserved for it is given back: a later one has it."""
    moody = Moody(lambda request: "done")
    worker = rp.Agent("worker", instructions="You work.", model=moody)
    other = rp.Agent("other", instructions="You work.")
    agent = rp.Agent("lead", team=[worker, other], limits=rp.Limits(runs=2))

    def answer(request: ModelRequest) -> Any:
        moody.moody = True
        if is_worker(request):
            return "done"
        done = reports_in(request)
        return call("delegate", agent=("worker", "other")[len(done)], task="x") if len(done) < 2 else " / ".join(done)

    async with rp.open_supervisor(model=FunctionModel(answer)) as supervisor:
        run = await supervisor.spawn(agent, "Go.")
        assert (await run.wait_result()).split(" / ") == ["OSError: not now", "done"]


async def test_a_member_whose_model_does_not_exist_is_refused_at_once() -> None:
    """Not at the first delegation, hours later."""
    agent = rp.Agent("lead", team=[rp.Agent("worker", model="no-such-model")])
    async with rp.open_supervisor(model=ScriptedModel([])) as supervisor:
        with pytest.raises(ConfigurationError, match="unknown model 'no-such-model'"):
            await supervisor.spawn(agent, "Go.")
        assert await supervisor.runs() == []


@pytest.mark.parametrize("workers", [1, 8])
async def test_a_tree_uses_at_most_its_tokens_and_one_call(workers: int) -> None:
    """Prompts and answers, of all runs together."""
    paid = Paid(lambda request: call("nothing") if is_worker(request) else parts(workers))
    async with rp.open_supervisor(model=paid.model) as supervisor:
        run = await supervisor.spawn(lead(rp.Limits(tokens=44_000)), "Go.")
        words = r"used 4\d,\d00 tokens; the limit of agent lead is 44,000 tokens \(limits\.tokens\)"
        with pytest.raises(RunFailed, match=words), trio.fail_after(PATIENCE):
            await run.wait_result()
        assert paid.taken in (40, 41)
        assert run.statistics(tree=True).tokens_billed == 1_100 * paid.taken


def test_a_limit_holds_also_at_a_server_that_says_nothing_of_tokens(run_async: RunAsync) -> None:
    """Its answers count by an estimate; by its own words the run would never have used anything."""
    again = {"content": [{"type": "tool_use", "id": "c", "name": "look", "input": {}}], "stop_reason": "tool_use"}
    raw = Raw(200, {"content-type": "application/json"}, msgspec.json.encode(again))

    @rp.tool(effect="pure", repeatable=False)
    def look() -> str:
        """Look."""
        return "nothing " * 100

    async def main() -> None:
        async with (
            open_messages_server(ScriptedModel([]), faults=[raw] * 20) as server,
            aclosing(rp.AnthropicModel("qwen3", base_url=server.url)) as model,
            rp.open_supervisor(model=model) as supervisor,
        ):
            run = await supervisor.spawn(rp.Agent("a", tools=[look], limits=rp.Limits(tokens=4_000)), "Go.")
            with pytest.raises(RunFailed) as failed:
                await run.wait_result()
            assert isinstance(failed.value.__cause__, LimitExceeded)
            assert len(server.exchanges) < 10

    run_async(main)


@pytest.mark.parametrize("workers", [1, 8])
async def test_a_tree_spends_at_most_its_bound_and_one_call(workers: int) -> None:
    """However many work side by side, and they do as long as there is money for it."""
    paid = Paid(lambda request: call("nothing") if is_worker(request) else parts(workers))
    async with rp.open_supervisor(model=paid.model) as supervisor:
        run = await supervisor.spawn(lead(rp.Limits(cost=40.0)), "Go.")
        with pytest.raises(RunFailed, match=r"limits\.cost"), trio.fail_after(PATIENCE):
            await run.wait_result()
        assert paid.taken in (40, 41)
        assert run.statistics(tree=True).cost_seen == paid.taken
        assert paid.most_at_once == workers


@pytest.mark.parametrize("how", ["stop", "pause"])
async def test_who_waits_for_money_makes_no_call_once_the_tree_is_to_stop_or_pause(how: str) -> None:
    """Each of them would begin another call, one after the other, that nobody wants and that is paid for."""
    go, asked = trio.Event(), 0

    async def answer(request: ModelRequest) -> ModelResponse:
        nonlocal asked
        asked += is_worker(request)
        content = [Text("Done.")] if reports_in(request) else parts(4)
        if is_worker(request):
            await go.wait()
            content = [Text("Done.") if asked > 8 else call("nothing")]
        return ModelResponse(content=tuple(content), usage=Usage(input_tokens=100, output_tokens=10))

    async with rp.open_supervisor(model=FunctionModel(answer, profile=DOLLARS)) as supervisor:
        run = await supervisor.spawn(lead(rp.Limits(cost=2.0)), "Go.")
        await trio.testing.wait_all_tasks_blocked()
        assert asked == 2  # each may cost a dollar
        getattr(run, how)()
        go.set()
        await trio.testing.wait_all_tasks_blocked()
        assert asked == 2
        if how == "stop":
            assert await run.wait_ended() == "stopped"
        else:
            run.resume()
            assert await run.wait_result() == "Done."
            rows = await supervisor.journal.read_runs(below=run.id)
            assert [row.iteration for row in rows[1:]] == [
                len(await supervisor.journal.read_model_calls(row.started.run_id)) for row in rows[1:]
            ]


@pytest.mark.parametrize("first", [[], ["pause"]])
async def test_an_answer_that_waits_for_sub_agents_is_kept_when_its_lead_stops_before_there_is_room(
    first: list[str],
) -> None:
    """The lead was reminded of its sub-agent, whose call takes all that is left; what it had answered is its result."""
    go, begun = trio.Event(), trio.Event()

    async def answer(request: ModelRequest) -> ModelResponse:
        if is_worker(request):
            begun.set()
            await go.wait()
            return ModelResponse(content=(Text("Worked."),), usage=Usage(output_tokens=10))
        if not reports_in(request):
            started = call("delegate_start", agent="worker", task="x")
            return ModelResponse(content=(started,), usage=Usage(output_tokens=10))
        await begun.wait()
        return ModelResponse(content=(Text("Mine."),), usage=Usage(output_tokens=1_000))

    worker = rp.Agent("worker", instructions="You work.", max_tokens=1_000)
    background, limits = rp.Delegation(background=True), rp.Limits(cost=2.0)
    agent = rp.Agent("lead", team=[worker], delegation=background, limits=limits, max_tokens=1_000)
    async with rp.open_supervisor(model=FunctionModel(answer, profile=DOLLARS)) as supervisor:
        run = await supervisor.spawn(agent, "Go.")
        await trio.testing.wait_all_tasks_blocked()
        for how in (*first, "stop"):
            getattr(run, how)()
            await trio.testing.wait_all_tasks_blocked()
        go.set()
        assert await run.wait_result() == "Mine."


async def test_money_of_earlier_processes_counts_also_that_of_calls_that_were_cut_off() -> None:
    """Killed again and again with calls under way: what the provider has taken stays within the bound and a call."""
    paid = Paid(lambda request: call("nothing") if is_worker(request) else parts(4))
    agent = lead(rp.Limits(cost=30.0))
    async with rp.open_journal() as journal:
        run_id = ""
        for _ in range(8):
            stop_at = paid.taken + 4
            async with rp.open_supervisor(journal=journal, model=paid.model, drain_timeout=0) as supervisor:
                if run_id:
                    run = await supervisor.resume(run_id, agent=agent)
                else:
                    run = await supervisor.spawn(agent, "Go.")
                run_id = run.id
                while paid.taken < stop_at and run.state != "failed":
                    await trio.lowlevel.checkpoint()
        async with rp.open_supervisor(journal=journal, model=paid.model) as supervisor:
            run = await supervisor.resume(run_id, agent=agent)
            with pytest.raises(RunFailed, match=r"limits\.cost"):
                await run.wait_result()
    assert 20 < paid.taken <= 31


class BreaksOff(FunctionModel):
    """A model whose server breaks off twice before it answers."""

    async def complete(self, request: ModelRequest, *, on_event: Any = None) -> ModelResponse:
        """Answer at the third attempt."""
        for _ in range(2):
            on_event(BrokenOff())
        return await super().complete(request, on_event=on_event)


async def test_attempts_that_broke_off_count_with_the_most_that_they_can_have_taken() -> None:
    """They are billed as a rule: one call of a dollar, made at the third attempt, counts as three dollars."""
    model = BreaksOff(lambda request: one_dollar(call("nothing")), profile=DOLLARS)
    agent = rp.Agent("a", limits=rp.Limits(cost=6.0), max_tokens=1_000, context=None)
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(agent, "Go.")
        with pytest.raises(RunFailed, match=r"have spent \$6\.0000, \$4\.0000 of it at most, for calls that broke off"):
            await run.wait_result()
        figures = run.statistics()
    assert (len(model.requests), figures.cost_seen, figures.cost_lost) == (2, 2.0, 4.0)
    assert figures.tokens_lost > 4 * 1_000


async def test_a_summary_is_made_only_where_all_of_it_can_be_paid() -> None:
    """Where it could take more than is left, no model is asked for it, that is said, and the run goes on without."""
    reader, summaries = Reader(3, stop_at=3), Paid(lambda request: "Short.")
    results = rp.ResultPolicy(compact_mode="summary", compact_length=200)
    async with rp.open_supervisor(model=reader.model, summaries=summaries.model) as supervisor:
        run = await supervisor.spawn(clerk(limits=rp.Limits(cost=0.1)), "Read.", results=results)
        await reader.arrived.wait()
        await trio.testing.wait_all_tasks_blocked()
        reader.go()
        await run.wait_result()
        refused = [event.reason async for event in run.events() if isinstance(event, SummaryRefused)]
    assert len(refused) >= 2
    assert "what is left under the limits does not suffice" in refused[0]
    assert summaries.taken == 0


async def test_a_call_that_must_fit_needs_room_for_all_of_it() -> None:
    """A call of the loop may go beyond the limit; a summary may not."""
    agent = rp.Agent("a", limits=rp.Limits(tokens=100))
    spending = Spending("run", agent, Tally())
    fits = partial(spending.reserved, must_fit=True)
    with fits(1, Amount(0.0, 40)), fits(2, Amount(0.0, 50)):
        with pytest.raises(LimitExceeded, match="what is left"), fits(3, Amount(0.0, 10)):
            raise AssertionError
        assert not spending.is_full()  # something is left
        with spending.reserved(4, Amount(0.0, 1_000)):
            assert spending.is_full()


async def test_what_a_cut_off_call_can_have_cost_is_on_record() -> None:
    """Prompt and longest answer, at the prices of the model."""
    started = trio.Event()

    async def hang(request: ModelRequest) -> str:
        started.set()
        await trio.sleep_forever()
        return ""

    async with rp.open_supervisor(model=FunctionModel(hang), drain_timeout=0) as supervisor:
        run = await supervisor.spawn(rp.Agent("a", max_tokens=1_000), "Go.")
        await started.wait()
        (row,) = await supervisor.journal.read_model_calls(run.id)
    expected = amount_at_most(OFFLINE, prompt=row.called.expected_tokens, output=1_000).cost
    assert row.called.cost_at_most == pytest.approx(expected)
    assert expected > 1_000 * 5 / 1_000_000


async def test_iterations_of_earlier_processes_count() -> None:
    """Each resumption goes on counting where the record stands."""
    model = FunctionModel(lambda request: call("nothing"))
    agent = rp.Agent("a", limits=rp.Limits(iterations=3))
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(agent, "Go.")
        for _ in range(3):
            with pytest.raises(RunFailed, match=r"limits\.iterations"):
                await run.wait_result()
            run = await supervisor.resume(run.id, agent=agent)
    assert len(model.requests) == 3


UNKNOWN = ScriptedModel([], name="mystery", profile=profile_for("mystery"))


@pytest.mark.parametrize(
    "agent",
    [
        rp.Agent("a", model=UNKNOWN, limits=rp.Limits(cost=1.0)),
        rp.Agent("a", limits=rp.Limits(cost=1.0), team=[rp.Agent("b", team=[rp.Agent("c", model=UNKNOWN)])]),
        rp.Agent("a", team=[rp.Agent("b", model=UNKNOWN, limits=rp.Limits(cost=1.0))]),
    ],
)
async def test_a_limit_on_money_is_refused_where_nobody_knows_the_prices(agent: rp.Agent) -> None:
    """At spawn, with the model and the agent that have to be changed; nothing is durable."""
    async with rp.open_supervisor(model=ScriptedModel([])) as supervisor:
        with pytest.raises(
            ConfigurationError, match=r"limits\.cost of agent \w cannot be kept.*'mystery'.*with_prices"
        ):
            await supervisor.spawn(agent, "Go.")
        assert await supervisor.runs() == []


async def test_a_limit_on_money_knows_what_summaries_cost_too() -> None:
    """A summarizer's model without prices would spend unseen; one that was said to be free may be used."""
    agent = rp.Agent("a", limits=rp.Limits(cost=1.0))
    async with rp.open_supervisor(model=ScriptedModel([]), summaries=UNKNOWN) as supervisor:
        with pytest.raises(ConfigurationError, match="writes summaries"):
            await supervisor.spawn(agent, "Go.")
    free = with_prices(profile_for("mystery"), input=0.0, output=0.0)
    model = ScriptedModel(["Done."], profile=free)
    async with rp.open_supervisor(model=model, summaries=model) as supervisor:
        assert await (await supervisor.spawn(agent, "Go.")).wait_result() == "Done."


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("iterations", 0, "a whole number of at least 1"),
        ("iterations", "5", "a whole number"),
        ("iterations", 2.5, "a whole number"),
        ("runs", True, "a whole number"),
        ("runs", None, "a whole number"),
        ("depth", -1, "a whole number of at least 0"),
        ("parallel_tools", [], "a whole number"),
        ("cost", 0, "a number above 0 or None"),
        ("cost", -1.0, "a number above 0 or None"),
        ("cost", "1", "a number"),
        ("cost", math.nan, "a number"),
        ("cost", math.inf, "a number"),
        ("seconds", 0, "a number above 0 or None"),
        ("seconds", math.inf, "a number"),
        ("tool_calls", 0, "a whole number of at least 1 or None"),
        ("tokens", 0, "a whole number of at least 1 or None"),
        ("tokens", 1e6, "a whole number"),
    ],
)
def test_what_is_no_limit_is_refused_where_it_is_written(field: str, value: Any, words: str) -> None:
    """With the field, what was expected and what came."""
    with pytest.raises(ConfigurationError, match=rf"limits\.{field} must be {words}"):
        rp.Limits(**{field: value})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"limits": {"iterations": 5}}, "limits must be Limits.*iterations, depth, runs, cost, tokens.*parallel_tools"),
        ({"limits": None}, "limits must be Limits"),
        ({"instructions": ["a"]}, "instructions must be a text"),
        ({"description": 1}, "description must be a text"),
        ({"options": ["a"]}, "options must be a dict"),
        ({"max_tokens": "8192"}, "max_tokens must be a whole number of at least 1"),
        ({"max_tokens": 0}, "max_tokens must be a whole number of at least 1"),
    ],
)
def test_what_an_agent_cannot_be_made_of_is_refused_where_it_is_written(fields: dict[str, Any], words: str) -> None:
    """Not hours later, by whatever stumbles over it."""
    with pytest.raises(ConfigurationError, match=f"agent a: {words}"):
        rp.Agent("a", **fields)


def test_a_name_that_is_no_text_is_refused() -> None:
    """Also where it is no string at all."""
    with pytest.raises(ConfigurationError, match="agent name"):
        rp.Agent(7)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", seeds(1, at_night=50))
def test_no_storm_takes_a_tree_beyond_its_limits(run_async: RunAsync, *, seed: int) -> None:
    """Random trees under random limits, cut off at random instants and resumed."""
    assert run_async(limit_storm, seed, 8) == []


async def test_the_storm_notices_a_tree_beyond_its_limits() -> None:
    """The check can fail: agents that have looser limits than the ones compared with go beyond them."""

    class Loose(Tree):
        def _agent(self) -> rp.Agent:
            tight, self._limits = self._limits, rp.Limits(iterations=9, runs=9, depth=3)
            agent = super()._agent()
            self._limits = tight
            return agent

    found = [words for seed in range(2) for words in await Loose(random.Random(seed)).failures()]
    assert any("limits.runs" in words for words in found)
    assert any("limits.cost" in words for words in found)
    assert any("limits.tokens" in words for words in found)
    assert any("answers, and may have" in words for words in found)
