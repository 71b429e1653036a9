"""A prompt that the server refuses as too long: a smaller one is sent, never the same again, and then an error."""

from __future__ import annotations

from contextlib import aclosing

import msgspec
import pytest
from context_scenes import clerk

import repertory as rp
from repertory.errors import ContextOverflow, PromptTooLong, RunFailed
from repertory.llm.anthropic import AnthropicModel
from repertory.llm.messages import canonical_json
from repertory.llm.model import ModelRequest, ModelResponse
from repertory.testing import MessagesServer, call, open_messages_server
from repertory.testing.faults import prompt_too_long

NAME = "claude-haiku-4-5"


def reading(days: int) -> object:
    """A responder that reads a day per answered request."""
    answered = 0

    def answer(request: ModelRequest) -> ModelResponse | str:
        nonlocal answered
        answered += 1
        return call("read_log", day=answered) if answered <= days else "Done."

    return answer


def refused(server: MessagesServer) -> list[int]:
    """Indices of the requests that were refused as too long."""
    return [index for index, exchange in enumerate(server.exchanges) if exchange.status != 200]


def check_that_nothing_was_sent_twice(server: MessagesServer) -> None:
    """Each request is another one, and the one after a refusal is smaller."""
    bodies = [canonical_json(exchange.body["messages"]) for exchange in server.exchanges]
    assert len(set(bodies)) == len(bodies)
    for index in refused(server):
        if index + 1 < len(bodies):
            assert len(bodies[index + 1]) < len(bodies[index])


async def test_a_refused_prompt_is_sent_again_smaller_and_the_run_goes_on() -> None:
    """The server refuses one request after ten; the next is strictly smaller, and the answer comes."""
    async with (
        open_messages_server(reading(12), faults=[None] * 10 + [prompt_too_long()]) as server,
        aclosing(AnthropicModel(NAME, base_url=server.url, api_key="none")) as model,
        rp.open_supervisor(model=model) as supervisor,
    ):
        run = await supervisor.spawn(clerk(rp.ContextPolicy()), "Read.")
        assert await run.wait_result() == "Done."
        decisions = await supervisor.journal.read_decisions(run.id)
    assert refused(server) == [10]
    assert "recovery" in {decision.kind for decision in decisions}
    check_that_nothing_was_sent_twice(server)


async def test_refusals_without_end_end_in_a_typed_error() -> None:
    """A server that refuses everything is asked a few times, each time with less, and then the caller is told."""
    async with (
        open_messages_server(reading(12), faults=[None] * 10 + [prompt_too_long()] * 20) as server,
        aclosing(AnthropicModel(NAME, base_url=server.url, api_key="none")) as model,
        rp.open_supervisor(model=model) as supervisor,
    ):
        run = await supervisor.spawn(clerk(rp.ContextPolicy()), "Read.")
        with pytest.raises(RunFailed) as caught:
            await run.wait_result()
    assert isinstance(caught.value.__cause__, PromptTooLong | ContextOverflow)
    assert 1 <= len(refused(server)) <= 4
    check_that_nothing_was_sent_twice(server)


async def test_a_plain_loop_is_refused_once() -> None:
    """It has nothing to make smaller, so it does not try again."""
    async with (
        open_messages_server(reading(12), faults=[None, prompt_too_long()]) as server,
        aclosing(AnthropicModel(NAME, base_url=server.url, api_key="none")) as model,
        rp.open_supervisor(model=model) as supervisor,
    ):
        run = await supervisor.spawn(clerk(None), "Read.")
        with pytest.raises(RunFailed) as caught:
            await run.wait_result()
    assert isinstance(caught.value.__cause__, PromptTooLong)
    assert len(server.exchanges) == 2


@pytest.mark.parametrize("rhythm", ["thrifty", "strict"])
async def test_a_window_smaller_than_the_profile_says_is_found_out(rhythm: str) -> None:
    """The server's window holds 9,000 tokens, the client believes 200,000: refusals teach it, and the run ends well."""
    small = msgspec.structs.replace(rp.profile_for(NAME), context_window=9_000, max_output=1_000)
    policy = rp.ContextPolicy(rhythm=rhythm, window=50, strict_chars=0, summarize_every=0)  # type: ignore[arg-type]
    if rhythm == "thrifty":
        policy = rp.ContextPolicy(patience=1_000)
    async with (
        open_messages_server(reading(20), profile=small) as server,
        aclosing(AnthropicModel(NAME, base_url=server.url, api_key="none")) as model,
        rp.open_supervisor(model=model) as supervisor,
    ):
        run = await supervisor.spawn(clerk(policy, max_tokens=1_000), "Read.")
        assert await run.wait_result() == "Done."
    assert refused(server)
    check_that_nothing_was_sent_twice(server)


async def test_strict_rhythm_recovers_to_thirty_kilobytes_and_keeps_what_is_recent() -> None:
    """After one refusal the prompt has at most 30 kB at once, and the newest results are still whole."""
    policy = rp.ContextPolicy(rhythm="strict", window=50, strict_chars=0, summarize_every=0)
    async with (
        open_messages_server(reading(30), faults=[None] * 29 + [prompt_too_long()]) as server,
        aclosing(AnthropicModel(NAME, base_url=server.url, api_key="none")) as model,
        rp.open_supervisor(model=model) as supervisor,
    ):
        run = await supervisor.spawn(clerk(policy), "Read.")
        assert await run.wait_result() == "Done."
    before, after = (canonical_json(server.exchanges[index].body["messages"]).decode() for index in (29, 30))
    assert refused(server) == [29]
    assert len(before) > 50_000
    assert len(after) < 30_000
    assert all(f"day {day}, hour 30" in after for day in (27, 28, 29))
