"""Runs on models that bind thinking to the history: over real HTTP, against a server that checks every signature."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

import repertory as rp
from backends import RunAsync
from repertory.errors import ModelUnavailable, RunFailed
from repertory.llm import (
    AnthropicModel,
    ModelRequest,
    ModelResponse,
    RetryPolicy,
    Text,
    ToolUse,
    Usage,
    estimate_tokens,
    profile_for,
    text_of,
)
from repertory.llm.features import is_compaction
from repertory.llm.messages import RawBlock, Thinking
from repertory.llm.model import encode_request
from repertory.runs.events import ContextEdited, SummaryRefused, SummaryTaken
from repertory.testing import FunctionModel, call
from repertory.testing.binding import Binder
from repertory.testing.faults import Refuse
from repertory.testing.server import MessagesServer, open_messages_server
from repertory.testing.transcript import check_messages

NAME = "claude-sonnet-5-5"
TASK = "Measure the tides of pier 7, never before noon."
SUMMARY = "GOAL: measure the tides.\nOPEN: go on with the next pier."
STEPS = 150  # more than the planner waits before it takes a risk
MANY = rp.Limits(iterations=300)


@rp.tool(effect="pure")
async def measure(pier: int) -> str:
    """Measure at a pier.

    Args:
        pier: Its number.
    """
    return f"pier {pier}: " + " ".join(f"{pier * 97 + i}mm" for i in range(600))


def steps(count: int = STEPS) -> Callable[[ModelRequest], Any]:
    """A model that measures at so many piers, then says that it is done; it counts by itself, as its view shrinks."""
    made = 0

    def respond(_: ModelRequest) -> Any:
        nonlocal made
        made += 1
        return call("measure", pier=made) if made <= count else "Done."

    return respond


@asynccontextmanager
async def scene(responder: Any = None, **options: Any) -> AsyncIterator[tuple[MessagesServer, AnthropicModel]]:
    """A strict server on which every answer thinks, and the real SDK's client for it."""
    options.setdefault("summarizer", lambda _: SUMMARY)
    async with open_messages_server(responder or steps(), thinks=True, **options) as server:
        model = AnthropicModel(NAME, base_url=server.url, api_key="none", retry=RetryPolicy(attempts=1))
        try:
            yield server, model
        finally:
            await model.aclose()


async def play(model: Any, **options: Any) -> tuple[str, list[Any]]:
    """One run to its end: its result, its events."""
    agent = rp.Agent("clerk", instructions="You are a clerk.", tools=[measure], limits=MANY, **options)
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(agent, TASK)
        events = [event async for event in run.events()]
        return await run.wait_result(), events


def kinds(events: list[Any]) -> list[str]:
    """What was edited, in order."""
    return [event.kind for event in events if isinstance(event, ContextEdited)]


def chats(server: MessagesServer) -> list[Any]:
    """The exchanges that are turns of the conversation."""
    return [exchange for exchange in server.exchanges if "compaction" not in exchange.body]


def asked(server: MessagesServer) -> list[Any]:
    """The exchanges that asked for a summary."""
    return [exchange for exchange in server.exchanges if "compaction" in exchange.body]


def test_a_long_run_is_compacted_by_the_provider_and_nothing_is_ever_refused(run_async: RunAsync) -> None:
    """Many tool calls with thinking on: summaries are swapped in, no thinking is lost, the task stays in view."""

    async def main() -> MessagesServer:
        async with scene() as (server, model):
            result, events = await play(model)
        assert result == "Done."
        assert [exchange.message for exchange in server.exchanges if exchange.status != 200] == []
        assert kinds(events).count("provider") >= 1
        assert set(kinds(events)) == {"provider"}
        bodies = [exchange.body for exchange in chats(server)]
        swapped = [body for body in bodies if body["messages"][0]["content"][0]["type"] == "compaction"]
        assert len(swapped) > 10
        for body in bodies:
            assert TASK in msgspec.json.encode(body["messages"]).decode()
        assert max(len(msgspec.json.encode(body)) for body in bodies) < len(msgspec.json.encode(bodies[-1])) * 60
        assert max(e.usage.prompt_tokens for e in chats(server)) < STEPS * 1_500
        return server

    server = run_async(main)
    check_what_was_asked(server)
    check_what_was_swapped(server)


def check_what_was_asked(server: MessagesServer) -> None:
    """The compaction request is a request that was sent, with one field more: the prompt is read, not paid again."""
    first = asked(server)[0]
    plain = {name: value for name, value in first.body.items() if name not in ("compaction", "stream")}
    sent = [{n: v for n, v in e.body.items() if n != "stream"} for e in chats(server)]
    assert plain in sent
    usage = first.usage
    assert usage.cache_read_tokens > 10 * (usage.input_tokens + usage.cache_write_tokens)
    assert "compact-2026-09-04" in first.headers["anthropic-beta"]


def check_what_was_swapped(server: MessagesServer) -> None:
    """The turns kept behind the block still carry their thinking, and the server accepts it unasked to drop any."""
    swapped = next(e for e in chats(server) if e.body["messages"][0]["content"][0]["type"] == "compaction")
    first = swapped.body["messages"][0]
    assert first["role"] == "assistant"
    assert [block["type"] for block in first["content"]] == ["compaction", "thinking", "tool_use"]
    assert text_of([Text(b["text"]) for b in swapped.body["messages"][-1]["content"] if b["type"] == "text"]).endswith(
        TASK
    )
    assert "thinking-binding-controls" not in swapped.headers["anthropic-beta"]


async def test_compaction_makes_the_run_cheaper_than_append_only() -> None:
    """Billed by the server's own cache rules, summaries included."""
    async with scene() as (compacted, model):
        await play(model)
    async with scene() as (plain, model):
        await play(model, context=rp.ContextPolicy(summaries=False, stubs=False))
    assert not asked(plain)
    assert compacted.cost < plain.cost


class Tampering:
    """A model whose history is broken on its way: from one request on the first message reads otherwise."""

    def __init__(self, inner: AnthropicModel, *, after: int) -> None:
        self.inner = inner
        self.after = after
        self.requests = 0

    @property
    def name(self) -> str:
        """The name."""
        return self.inner.name

    @property
    def profile(self) -> Any:
        """The profile."""
        return self.inner.profile

    async def complete(self, request: ModelRequest, **options: Any) -> ModelResponse:
        """Send the request, broken."""
        self.requests += 1
        if self.requests > self.after:
            first = request.messages[0]
            broken = msgspec.structs.replace(first, content=(Text("Something else."), *first.content))
            request = msgspec.structs.replace(request, messages=(broken, *request.messages[1:]))
        return await self.inner.complete(request, **options)

    async def aclose(self) -> None:
        """Nothing."""


async def test_a_broken_history_recovers_once_by_dropping_blocks_and_says_so() -> None:
    """The refused request goes out again with drop_block, so does every later one, and the decision is journalled."""
    async with scene(steps(12)) as (server, model):
        result, events = await play(Tampering(model, after=5), context=rp.ContextPolicy(summaries=False))
    assert result == "Done."
    assert [exchange.status for exchange in server.exchanges].count(400) == 1
    assert kinds(events) == ["drop-block"]
    edited = next(event for event in events if isinstance(event, ContextEdited))
    assert "bound to a different conversation" in edited.reason
    at = [exchange.status for exchange in server.exchanges].index(400)
    for exchange in server.exchanges[at + 1 :]:
        assert exchange.body["thinking"]["block_binding"] == {"prefix_mismatch_behavior": "drop_block"}
        assert "thinking-binding-controls-2026-08-01" in exchange.headers["anthropic-beta"]


async def test_the_choice_to_drop_blocks_outlives_the_process(tmp_path: Path) -> None:
    """A resumed run sends it from its first request on, so nothing is refused a second time."""
    path = tmp_path / "runs.db"
    agent = rp.Agent("clerk", instructions="You are a clerk.", tools=[measure])
    async with scene(steps(8)) as (server, model):
        async with rp.open_supervisor(path, model=Tampering(model, after=3)) as supervisor:
            run = await supervisor.spawn(agent, TASK)
            async for event in run.events():
                if isinstance(event, ContextEdited):
                    break
        assert run.state != "done"
        count = len(server.exchanges)
        async with rp.open_supervisor(path, model=Tampering(model, after=0)) as supervisor:
            run = await supervisor.resume(run.id, agent=agent)
            assert await run.wait_result() == "Done."
    assert len(server.exchanges) > count
    assert all(exchange.status == 200 for exchange in server.exchanges[count:])


async def test_a_second_refusal_ends_the_run_instead_of_looping() -> None:
    """A server that refuses drop_block too gets two requests, no more."""
    message = (
        "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation."
    )
    async with scene(steps(3)) as (server, model):
        server.inject(None, *[Refuse(400, "invalid_request_error", message)] * 5)
        with pytest.raises(RunFailed, match="ThinkingMismatch"):
            await play(model)
    assert [exchange.status for exchange in server.exchanges] == [200, 400, 400]


# --- arrivals, at every step, on a virtual clock ------------------------------------------------------------


BINDING = msgspec.structs.replace(profile_for(NAME), name="bound")


class Provider:
    """A model without sockets that checks its own rules: it signs thinking, compacts, and refuses what is bound
    elsewhere, with the test server's own binder behind it."""

    def __init__(
        self, count: int, *, after: int = 0, fate: str = "ok", seconds: float = 0.0, share: float = 0.0
    ) -> None:
        self.binder = Binder(3)
        self.turns = 0
        self.count = count
        self.after = after  # a summary is answered while so many further turns are made
        self.fate = fate
        self.seconds = seconds
        self.share = share  # of what is summarized: how long the summary is; 0 for a short one
        self.asked: list[ModelRequest] = []
        self.sent: list[ModelRequest] = []
        self._turned = anyio.Event()

    name = "bound"
    profile = BINDING

    async def complete(self, request: ModelRequest, **_: Any) -> ModelResponse:
        """Answer a turn, or write a summary."""
        body = encode_request(request)
        shown, dropped = self.binder.check(body, profile=BINDING, betas=frozenset())
        assert not dropped
        check_messages(shown["messages"])
        if "compaction" in request.options:
            return await self._compact(request, body)
        self.sent.append(request)
        self.turns += 1
        self._turned.set()
        self._turned = anyio.Event()
        await anyio.sleep(1)
        made = self.turns
        said = (
            (Thinking(f"thought {made}"), ToolUse(f"call_{made}", "measure", {"pier": made}))
            if made <= self.count
            else (Thinking("enough"), Text("Done."))
        )
        usage = Usage(cache_read_tokens=estimate_tokens(request), output_tokens=50)
        reason = "tool_use" if made <= self.count else "end_turn"
        content = self.binder.sign(said, body=body, model="bound")
        return ModelResponse(content=content, stop_reason=reason, usage=usage)

    async def _compact(self, request: ModelRequest, body: Any) -> ModelResponse:
        self.asked.append(request)
        wanted = self.turns + self.after
        while self.turns < wanted:
            await self._turned.wait()
        await anyio.sleep(self.seconds)
        if self.fate == "hang":
            await anyio.sleep_forever()
        if self.fate == "fail":
            raise ModelUnavailable("the service is overloaded")
        if self.fate == "empty":
            return ModelResponse(content=(), stop_reason="tool_use")
        text = "x" * 1_000_000 if self.fate == "larger" else SUMMARY
        if self.share:
            text = "x" * round(4 * self.share * estimate_tokens(request.messages))
        block = self.binder.sign_summary(text, body=body, profile=BINDING)
        if self.fate == "plain":
            block = RawBlock({"type": "compaction", "content": "", "signature": ""})
        return ModelResponse(content=(block,), stop_reason="compaction")

    async def aclose(self) -> None:
        """Nothing."""


@pytest.mark.parametrize("after", range(3))
@pytest.mark.parametrize("seconds", [0.0, 0.5])
async def test_a_summary_may_arrive_between_any_two_steps(autojump_clock: Any, after: int, seconds: float) -> None:
    """Right away, in the middle of a call, at its end, turns later: every signature stays valid, the task in view."""
    model = Provider(150, after=after, seconds=seconds)
    result, events = await play(model)
    assert result == "Done."
    assert kinds(events).count("provider") >= 1
    assert set(kinds(events)) == {"provider"}
    for request in model.sent:
        assert TASK in text_of([block for message in request.messages for block in message.content])
    swapped = [request for request in model.sent if is_compaction(request.messages[0].content[0])]
    assert any(isinstance(block, Thinking) for block in swapped[0].messages[0].content)


@pytest.mark.parametrize("fate", ["hang", "fail", "empty", "larger", "plain"])
async def test_a_summary_that_fails_changes_nothing(autojump_clock: Any, fate: str) -> None:
    """The run goes on append-only; the provider is asked three times in a row at most."""
    model = Provider(60, fate=fate)
    result, events = await play(model, context=rp.ContextPolicy(comfort_tokens=10_000))
    assert result == "Done."
    assert kinds(events) == []
    assert 1 <= len(model.asked) <= 3
    for earlier, later in pairwise(model.sent):
        assert later.messages[: len(earlier.messages)] == earlier.messages
    if fate != "hang":
        assert any(isinstance(event, SummaryRefused) for event in events)
        assert not any(isinstance(event, SummaryTaken) for event in events)


async def test_a_summary_is_asked_for_only_where_it_could_still_be_swapped_in(autojump_clock: Any) -> None:
    """A long one leaves the view longer than comfortable: the next is of a request that begins with it."""
    model = Provider(40, share=0.5)
    _, events = await play(model, context=rp.ContextPolicy(comfort_tokens=10_000))
    assert kinds(events).count("provider") > 2
    assert [event.reason for event in events if isinstance(event, SummaryRefused)] == []


async def test_summaries_that_would_save_nothing_are_asked_for_three_times_in_a_row(autojump_clock: Any) -> None:
    """They are paid, and with the log beside them the view would be as long as before."""
    model = Provider(40, share=0.9)
    _, events = await play(model, context=rp.ContextPolicy(comfort_tokens=10_000))
    assert kinds(events) == []
    reasons = [event.reason for event in events if isinstance(event, SummaryRefused)]
    assert reasons == ["the provider's summary does not fit what has come since"] * 3
    assert len(model.asked) == 3


async def test_only_one_summary_is_under_way_at_a_time(autojump_clock: Any) -> None:
    """While the provider is slow, no second request is made, however long the history grows."""
    model = Provider(150, seconds=35.0)
    await play(model)
    assert len(model.asked) <= 2


async def test_a_model_that_does_not_think_is_never_asked() -> None:
    """Without thinking every edit is legal, and the provider's summary is not needed."""
    model = FunctionModel(steps(20), profile=BINDING)
    result, events = await play(model)
    assert result == "Done."
    assert "provider" not in kinds(events)


async def test_a_view_that_was_edited_meanwhile_refuses_the_summary(autojump_clock: Any) -> None:
    """The block stands for exactly the messages that were sent, and for no others; a later one is taken."""
    model = Provider(150, after=3)
    cut = rp.ContextPolicy(show_once=False, results=rp.ResultPolicy(cap_chars=3_000))
    agent = rp.Agent("clerk", instructions="You are a clerk.", tools=[measure], limits=MANY, context=cut)
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(agent, TASK)
        while not model.asked:
            await anyio.sleep(0.5)
        await run.expand(2)
        assert await run.wait_result() == "Done."
        events = [event async for event in run.events()]
        decided = [made.kind for made in await supervisor.journal.read_decisions(run.id)]
    reasons = [event.reason for event in events if isinstance(event, SummaryRefused)]
    assert reasons == ["the view was edited while the provider wrote its summary"]
    assert decided[:4] == ["expand", "expand", "pin", "provider"]  # with the reasoning dropped, and the hold over
