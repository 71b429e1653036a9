"""Recorded runs through the real loop."""

from __future__ import annotations

import multiprocessing
import os
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from replay_stories import MESSAGES, TASK, long_run, read, write

from backends import RunAsync
from repertory.context import ContextPolicy
from repertory.errors import ConfigurationError, PromptTooLong, RecordingError
from repertory.llm import profile_for
from repertory.llm.messages import Image, Message, RawBlock, Text, Thinking, ToolResult, ToolUse, text_of, tool_uses
from repertory.llm.model import Breakpoint, ModelRequest, ModelResponse
from repertory.replay import (
    Played,
    RecordedRun,
    Turn,
    figures,
    play,
    play_all,
    policy_named,
    profile_named,
)
from repertory.replay.model import ReplayModel, replay_tools, times_of
from repertory.replay.playing import _work  # pyright: ignore[reportPrivateUsage]
from repertory.shortening import ResultPolicy
from repertory.tools import ToolContext, call_tool

CHEAP_READS = profile_named("r=0.1")


async def played(run: RecordedRun, policy: ContextPolicy | None, **more: Any) -> Played:
    """Play a run at the price of the older models."""
    return await play(run, policy=policy, profile=more.pop("profile", CHEAP_READS), **more)


def test_a_plain_loop_is_the_append_only_loop(run_async: RunAsync, tmp_path: Any) -> None:
    """Nothing shortened, so both bills are the same to the token, everything is in view, and every result whole."""
    [short] = read(write(tmp_path / "r.json", MESSAGES))
    for run in (short, long_run(40)):
        result = run_async(played, run, None)
        assert (result.error, result.view, result.costs) == ("", result.plain, result.plain_costs)
        assert result.usage == result.plain_usage
        assert len(result.view) == len(run.turns)
        meaning = result.meaning
        assert all(seen for *_, seen in meaning.counts)
        assert meaning.result_tokens == meaning.whole_tokens > 0
        assert (meaning.blind, meaning.standing_chars, sum(result.rereads)) == (0, 0, 0)
        assert (result.invalid, meaning.without_task, result.decisions) == (0, 0, Counter())


def test_the_loop_is_shown_what_was_recorded(run_async: RunAsync, tmp_path: Any) -> None:
    """Results, errors and what the user said come back in their order, and no request but those is made."""
    [run] = read(write(tmp_path / "r.json", MESSAGES))
    requests: list[ModelRequest] = []

    async def main() -> None:
        model = await listening(run, requests)
        assert model.asked == 3

    run_async(main)
    shown = [[text_of(block) or block for block in message.content] for message in requests[-1].messages]
    assert shown[0] == [TASK]
    assert shown[2] == [MESSAGES[2]["content"][0]["content"], "no such file", "Hurry up."]
    [_, error, _] = requests[-1].messages[2].content
    assert isinstance(error, ToolResult)
    assert error.is_error


async def listening(run: RecordedRun, requests: list[ModelRequest]) -> ReplayModel:
    """Play a run with a model that keeps what it is asked."""
    from repertory.agents import Agent
    from repertory.supervisor import open_supervisor

    handle: list[Any] = []

    async def say(text: str) -> None:
        await handle[0].send(text)

    async with anyio.create_task_group() as tasks:
        model = ReplayModel(
            run, profile=CHEAP_READS, say=say, judge=lambda _, request, usage: requests.append(request), tasks=tasks
        )
        async with open_supervisor(model=model) as supervisor:
            handle.append(await supervisor.spawn(Agent("r", tools=replay_tools(run)), run.task))
            await handle[0].wait_result()
    return model


def test_the_figures_do_not_depend_on_how_many_processes_play() -> None:
    """Two processes and one: the same figures in the same order, but for how long it took; every request is counted."""
    runs = [long_run(turns, run_id=f"run-{turns}") for turns in (60, 90, 70)]
    profiles = [profile_named("r=0.1"), profile_named("r=0.05+binding")]
    counted: list[int] = []
    told = [
        [
            {name: msgspec.structs.replace(of, build_seconds=[]) for name, of in models.items()}
            for models in play_all(
                runs, policy="thrifty", profiles=profiles, jobs=jobs, on_request=lambda: counted.append(1)
            )
        ]
        for jobs in (1, 2)
    ]
    assert told[0] == told[1]
    assert [models["r=0.1"].run.id for models in told[1]] == ["run-60", "run-90", "run-70"]
    assert len(counted) == 2 * 2 * (60 + 90 + 70)


def test_a_process_that_dies_ends_the_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the name of a run that it played, and without waiting for it for ever."""
    code = "import multiprocessing, os\nif multiprocessing.parent_process():\n    os._exit(3)\npolicy = None\n"
    (tmp_path / "deadly.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    runs = [long_run(200, run_id=f"run-{number}") for number in range(2)]
    with pytest.raises(RecordingError, match=r"the process that played run-\d was ended"):
        play_all(runs, policy="deadly:policy", profiles=[CHEAP_READS], jobs=2)


def test_a_process_whose_starter_is_gone_ends_without_a_word() -> None:
    """Also where that had sent a half of a run."""
    ours, theirs = multiprocessing.Pipe()
    os.write(ours.fileno(), struct.pack("!i", 1000) + b"a half")
    ours.close()
    _work(theirs, "thrifty", [CHEAP_READS])


async def test_thrift_is_cheaper_than_appending_and_strict_shows_less() -> None:
    """The two policies differ as they should: one saves money, the other shows little and forgets."""
    run = long_run(100, size=6_000)
    thrifty, strict = await played(run, ContextPolicy()), await played(run, ContextPolicy(rhythm="strict"))
    assert sum(thrifty.costs) < 0.8 * sum(thrifty.plain_costs)
    assert sum(thrifty.decisions.values()) > 0
    assert thrifty.cleared_tokens > 0
    assert max(thrifty.view) < max(thrifty.plain)
    assert thrifty.meaning.whole_tokens == thrifty.meaning.result_tokens
    assert strict.meaning.whole_tokens == 0
    assert max(strict.view) < max(thrifty.view)
    assert len(thrifty.build_seconds) == 100
    assert (thrifty.invalid, strict.invalid, thrifty.error, strict.error) == (0, 0, "", "")


async def test_what_a_policy_takes_away_is_missed() -> None:
    """Negative control of the recall: old results that are removed without a trace are needed, and not in view."""
    run = long_run(40)
    policy = ContextPolicy(
        rhythm="strict",
        strict_chars=0,
        summaries=False,
        results=ResultPolicy(expiration_mode="remove", expiration_turns=2),
    )
    result = await played(run, policy)
    found = figures([result])
    assert found["recall_over_10"]["union"] == found["facts"]["over_10"] == 0
    assert found["retrievals_needed"] > 0
    assert found["reread_cost_ratio"] > 0


def test_the_same_recording_gives_the_same_figures_every_time() -> None:
    """Nothing in a replay depends on chance, names of citations included."""
    run = long_run(100, size=6_000)
    one, other = (anyio.run(played, run, ContextPolicy(), backend="asyncio") for _ in range(2))
    first, second = ({**figures([each]), "build_ms_p50": 0, "build_ms_p99": 0} for each in (one, other))
    assert first == second
    assert (one.view, one.costs) == (other.view, other.costs)
    assert one.decisions


async def test_pauses_of_the_recording_let_the_cache_go_cold() -> None:
    """Ten minutes between turns: nothing is read from the cache; control: one minute."""
    for pause, reads in ((600, False), (60, True)):
        run = long_run(12, pause=pause)
        result = await played(run, None)
        assert (result.usage.cache_read_tokens > 0) is reads
        assert result.costs == result.plain_costs
    assert times_of(long_run(2, pause=600)) == [1_000_000.0, 1_000_600.0]
    back = RecordedRun(
        id="r", file="", task="?", turns=tuple(Turn(content=(), results={}, at=at) for at in (9.0, 5.0, None))
    )
    assert times_of(back) == [9.0, 9.0, 19.0]


async def test_the_planner_hears_of_a_cold_cache() -> None:
    """The loop's clock is the recording's: where edits cost nothing more, the view is smaller than where they do."""
    cold, warm = [await played(long_run(30, size=4_000, pause=pause), ContextPolicy()) for pause in (600, 60)]
    assert cold.decisions
    assert sum(cold.view) < sum(warm.view)


async def test_pictures_in_results_are_shown_and_billed() -> None:
    """They cost what the estimate says, in both loops."""
    picture = Image({"type": "url", "url": "u"})
    turns = [
        Turn(content=(ToolUse("a", "t", {}),), results={"a": ToolResult("a", (picture, Text("seen")))}),
        Turn(content=(Text("A cat."),), results={}),
    ]
    result = await played(RecordedRun(id="r", file="", task="Look.", turns=tuple(turns)), None)
    assert result.view[1] > 1_600
    assert result.view == result.plain


# --- what the provider would refuse -----------------------------------------------------------------------


async def test_on_a_binding_model_every_turn_thinks_and_nothing_breaks_it() -> None:
    """Append-only keeps every block valid, and both loops pay for the same thinking."""
    binding = profile_named("r=0.05+binding")
    run = long_run(40)
    result = await played(run, None, profile=binding)
    assert (result.invalid, result.costs) == (0, result.plain_costs)
    assert (await played(run, ContextPolicy(), profile=binding)).invalid == 0
    assert sum(result.view) > sum((await played(run, None)).view)


async def test_a_request_that_breaks_a_bound_thought_is_counted() -> None:
    """Negative control: an edit in front of thinking, and thinking missing in between, are what a provider refuses."""
    turns = tuple(Turn(content=(Text(f"Turn {n}."),), results={}, said=("Go on.",)) for n in range(5))
    run = RecordedRun(id="r", file="", task="?", turns=turns)
    heard: list[str] = []

    async def say(text: str) -> None:
        heard.append(text)

    async with anyio.create_task_group() as tasks:
        model = ReplayModel(run, profile=profile_named("r=0.1+binding"), say=say, judge=lambda *_: None, tasks=tasks)
        messages = [Message("user", (Text("?"),))]

        async def ask() -> ModelResponse:
            return await model.complete(ModelRequest(model="m", messages=tuple(messages), max_tokens=10))

        for _ in range(3):
            messages += [Message("assistant", (await ask()).content), Message("user", (Text("Go on."),))]
        assert isinstance(messages[1].content[0], Thinking)
        assert model.broken == 0
        whole = list(messages)
        messages[3] = Message("assistant", messages[3].content[1:])
        await ask()
        assert model.broken == 1  # the third thought stood behind the second, which is gone
        messages[:] = whole
        messages[1] = Message("assistant", messages[1].content[1:])
        model.broken = 0
        last = await ask()
        assert model.broken == 0  # the oldest may go
        assert last.stop_reason == "end_turn"
        messages[0] = Message("user", (Text("Edited."),))
        model.asked = 0
        await ask()
        assert model.broken == 1
    assert len(heard) == 5


async def test_a_signed_summary_keeps_later_thoughts_valid() -> None:
    """It is billed beside the turns and reads the live cache; the thinking behind it stays what it was."""
    turns = tuple(Turn(content=(Text(f"Turn {n} of module_{n:03d}."),), results={}, said=("Go on.",)) for n in range(9))
    run = RecordedRun(id="r", file="", task="?", turns=turns)

    async def say(text: str) -> None:
        assert text == "Go on."

    async with anyio.create_task_group() as tasks:
        profile = profile_named("r=0.1+binding")
        model = ReplayModel(run, profile=profile, say=say, judge=lambda *_: None, tasks=tasks)
        messages = [Message("user", (Text("? " * 4_000),))]

        async def ask(**options: Any) -> ModelResponse:
            marks = (Breakpoint(len(messages) - 1),)
            return await model.complete(
                ModelRequest(model="m", messages=tuple(messages), max_tokens=10, breakpoints=marks, options=options)
            )

        for _ in range(3):
            messages += [Message("assistant", (await ask()).content), Message("user", (Text("Go on."),))]
        await ask()
        summary = await ask(compaction={"type": "summarize"})
        assert (model.asked, summary.stop_reason) == (4, "compaction")
        [(after, usage)] = model.beside
        assert after == 4
        assert usage.cache_read_tokens == usage.prompt_tokens
        assert usage.output_tokens > 0
        messages += [Message("assistant", (await ask()).content), Message("user", (Text("Go on."),))]
        covered = len(messages) - 2
        messages[:covered] = [Message("user", summary.content)]
        await ask()
        assert model.broken == 0
        [block] = summary.content
        assert isinstance(block, RawBlock)
        assert "module_000" in block.raw["content"]
        again = await ask(compaction={"type": "summarize"})
        assert "module_000" in str(again.content)
        for bad in ("", "xyz|"):  # control: a summary of something else
            messages[0] = Message("user", (RawBlock({**block.raw, "signature": bad}),))
            model.broken = 0
            await ask()
            assert model.broken == 1
        mismatch = {"block_binding": {"prefix_mismatch_behavior": "drop_block"}}
        model.broken = 0
        await ask(thinking=mismatch)
        assert model.broken == 0  # dropped, as asked for


async def test_a_thought_is_bound_to_its_own_request() -> None:
    """A summary's request that is billed while the user is heard changes nothing about it."""
    turns = tuple(Turn(content=(Text(f"Turn {n}."),), results={}, said=("Go on.",)) for n in range(4))
    run = RecordedRun(id="r", file="", task="?", turns=turns)
    other = ModelRequest(
        model="m", messages=(Message("user", (Text("other"),)),), options={"compaction": {"type": "summarize"}}
    )

    async def say(text: str) -> None:
        await model.complete(other)

    async with anyio.create_task_group() as tasks:
        profile = profile_named("r=0.1+binding")
        model = ReplayModel(run, profile=profile, say=say, judge=lambda *_: None, tasks=tasks)
        messages = [Message("user", (Text("?"),))]
        for _ in range(4):
            answer = await model.complete(ModelRequest(model="m", messages=tuple(messages)))
            messages += [Message("assistant", answer.content), Message("user", (Text("Go on."),))]
    assert model.broken == 0
    assert len(model.beside) == 3


async def test_a_prompt_that_is_too_long_is_refused_as_a_server_would() -> None:
    """A plain loop ends there; the error says why, and what was played until then is judged."""
    run = long_run(12, size=8_000)
    small = msgspec.structs.replace(CHEAP_READS, context_window=20_000, max_output=4_000)
    result = await played(run, None, profile=small)
    assert "more than the 20,000" in result.error
    assert result.refused == 1
    assert 0 < len(result.view) == len(result.plain) < 12
    assert (await played(run, ContextPolicy(), profile=small)).error == ""  # control: it makes room


async def test_a_refused_prompt_plays_no_turn() -> None:
    """The turn is still to come when the loop asks again, smaller."""
    run = long_run(2)

    async def say(text: str) -> None:
        raise AssertionError(text)

    async with anyio.create_task_group() as tasks:
        model = ReplayModel(run, profile=profile_for("claude-haiku-4-5"), say=say, judge=lambda *_: None, tasks=tasks)
        with pytest.raises(PromptTooLong, match="more than the 200,000 of claude-haiku-4-5"):
            await model.complete(ModelRequest(model="m", messages=(Message("user", (Text("x" * 800_000),)),)))
        assert (model.asked, model.refused) == (0, 1)
        await model.complete(ModelRequest(model="m", messages=(Message("user", (Text("x"),)),)))
        assert model.asked == 1
        await model.aclose()


# --- tools and names --------------------------------------------------------------------------------------


async def test_a_replayed_tool_takes_anything_and_answers_as_it_did(tmp_path: Any) -> None:
    """It goes by the call's id alone; an error stays one."""
    [run] = read(write(tmp_path / "r.json", MESSAGES))
    listing, reading = replay_tools(run)
    assert (listing.name, reading.name) == ("list", "read")
    output = await call_tool(reading, {"any": ["thing"], "at": 1}, context=ToolContext(call_id="call_2"))
    assert (output.content, output.is_error) == ("no such file", True)
    assert not (await call_tool(listing, {}, context=ToolContext(call_id="call_1"))).is_error


async def test_calls_of_the_last_turn_are_not_made(tmp_path: Any) -> None:
    """Nobody recorded what came after them, so no request is made up."""
    [run] = read(write(tmp_path / "r.json", MESSAGES[:4]))
    result = await played(run, None)
    assert len(result.view) == 2
    assert tool_uses(run.turns[-1].content)
    assert result.error == ""


async def test_whatever_was_recorded_is_played_to_its_end(tmp_path: Path) -> None:
    """A run that ends with a search of the provider's, and without a word; one of repertory's own, with its trail."""
    server = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    call = {"type": "tool_use", "id": "t", "name": "context_trail", "input": {}}
    messages = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "1. a log"}]},
        {"role": "assistant", "content": [server]},
    ]
    [run] = read(write(tmp_path / "r.json", messages))
    result = await played(run, ContextPolicy())
    assert (result.error, len(result.view), run.tools) == ("", 2, ["context_trail_"])


async def test_a_turn_that_nothing_follows_is_named() -> None:
    """Which only a program can make: the loop ends there, but the recording does not."""
    run = RecordedRun(id="r", file="", task="Go.", turns=tuple(Turn(content=(Text("So."),), results={}) for _ in "ab"))
    result = await played(run, None)
    assert (len(result.view), result.error[:27]) == (1, "turn 1 calls no tool, and n")


def test_a_model_is_named_or_described_by_its_price_of_reads() -> None:
    """A preset keeps the usual multiples; a named model is looked up; binding can be had of either."""
    [prices] = profile_named("r=0.025").prices
    assert (prices.cache_read / prices.input, prices.cache_write / prices.input) == (0.025, 1.25)
    assert profile_named("claude-haiku-5-5") == profile_for("claude-haiku-5-5")
    assert profile_named("claude-opus-4-6").target == "free"
    assert profile_named("claude-opus-4-6+binding").target == "binding"
    assert profile_named("r=0.05+binding") == msgspec.structs.replace(
        profile_named("r=0.05"), name="r=0.05+binding", target="binding", compacts=True
    )
    for name in ("r=0", "r=2", "gpt-4o", "r=x"):
        with pytest.raises(ConfigurationError, match=r"r=|gpt"):
            profile_named(name)


MINE = ContextPolicy(window=3)


def mine() -> ContextPolicy:
    """A policy of one's own, made by a function."""
    return MINE


def broken() -> ContextPolicy:
    """A function that makes none."""
    raise ValueError("no such window")


def leaving() -> ContextPolicy:
    """A function that ends the process."""
    raise SystemExit(3)


def needy() -> ContextPolicy:
    """A function that needs what is not installed."""
    import not_installed  # type: ignore[import-not-found]

    return not_installed.policy  # type: ignore[no-any-return]


def test_a_policy_is_named_or_imported() -> None:
    """The three that are built in, and any policy, or function that makes one, in a module."""
    assert policy_named("thrifty") == ContextPolicy()
    assert policy_named("plain") is None
    strict = policy_named("strict")
    assert strict is not None
    assert strict.rhythm == "strict"
    assert policy_named(f"{__name__}:MINE") is policy_named(f"{__name__}:mine") is MINE


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lavish", "expected a policy as thrifty, strict, plain or module:name, got 'lavish'"),
        ("no.such:thing", "no module named 'no' for policy 'no.such:thing'; is its folder on PYTHONPATH"),
        (f"{__name__}:nothing", "has no 'nothing'"),
        (f"{__name__}:MESSAGES", "is of the type list, not a ContextPolicy"),
        (f"{__name__}:broken", f"'{__name__}:broken' makes no policy: ValueError: no such window"),
        (f"{__name__}:leaving", f"'{__name__}:leaving' makes no policy: SystemExit: 3"),
        (f"{__name__}:needy", f"module '{__name__}' needs 'not_installed'"),
        ("json:loads", "'json:loads' makes no policy: TypeError: loads.. missing 1 required"),
    ],
)
def test_a_policy_that_is_none_is_refused(name: str, words: str) -> None:
    """The message says what was expected, or what is missing."""
    with pytest.raises(ConfigurationError, match=words):
        policy_named(name)
