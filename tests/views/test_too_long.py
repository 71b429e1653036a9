"""A prompt that the server refuses as too long: a smaller one is sent, never the same again, and then an error."""

from __future__ import annotations

from base64 import b64encode
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import repertory as rp
from context_scenes import clerk
from repertory._json_text import canonical_json
from repertory.errors import ContextOverflow, MediaUnreadable, ModelUnavailable, PromptTooLong, RunFailed
from repertory.llm.anthropic import AnthropicModel
from repertory.llm.estimate import estimate_tokens
from repertory.llm.messages import Image, Text, Thinking, ToolResult
from repertory.llm.model import ModelRequest, ModelResponse
from repertory.record import open_journal
from repertory.testing import FunctionModel, MessagesServer, call, open_messages_server
from repertory.testing.faults import prompt_too_long
from repertory.views.prompt_limits import PromptLimits

NAME = "claude-haiku-4-5"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(60)
SILENT = FunctionModel(lambda request: "")


def reading(days: int) -> object:
    """A responder that reads a day per answered request."""
    answered = 0

    def answer(request: ModelRequest) -> ModelResponse | str:
        nonlocal answered
        answered += 1
        return call("read_log", day=answered) if answered <= days else "Done."

    return answer


def sent(server: MessagesServer) -> list[Any]:
    """The exchanges in which the model was called; counting a prompt is not sending it."""
    return [exchange for exchange in server.exchanges if "count_tokens" not in exchange.path]


def refused(server: MessagesServer) -> list[int]:
    """Indices, among those, of the requests that were refused as too long."""
    return [index for index, exchange in enumerate(sent(server)) if exchange.status != 200]


def check_that_nothing_was_sent_twice(server: MessagesServer) -> None:
    """Each request is another one, and the one after a refusal is smaller."""
    bodies = [canonical_json(exchange.body["messages"]) for exchange in sent(server)]
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
        entries = await supervisor.journal.read_entries(run.id)
    assert refused(server) == [10]
    turns = [entry.model_call for entry in entries if entry.role == "assistant"]
    assert turns == [
        call for call in range(1, len(sent(server)) + 1) if call != 11
    ]  # each names the call that wrote it
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


async def test_what_does_not_fit_after_a_refusal_comes_from_it() -> None:
    """The error that ends the run leads to what the server said."""

    def refuse(request: ModelRequest) -> str:
        raise PromptTooLong("the prompt is too long: 300 tokens > 10 maximum")

    async with rp.open_supervisor(model=FunctionModel(refuse)) as supervisor:
        run = await supervisor.spawn(clerk(rp.ContextPolicy()), "Read.")
        with pytest.raises(RunFailed) as caught:
            await run.wait_result()
    overflow = caught.value.__cause__
    assert isinstance(overflow, ContextOverflow)
    assert isinstance(overflow.__cause__, PromptTooLong)


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


@pytest.mark.parametrize("at_once", [1, 30])
async def test_pictures_beyond_what_a_request_may_have_leave_view(at_once: int) -> None:
    """The oldest first; those of one result all, if there are too many of them. The run goes on."""

    @rp.tool
    def look(way: int) -> list[object]:
        """Look around."""
        return [rp.media_block(PNG, "image/png")] * at_once

    seen: list[int] = []

    def answer(request: ModelRequest) -> ModelResponse | str:
        blocks = [block for message in request.messages for block in message.content]
        results = [block.content for block in blocks if isinstance(block, ToolResult)]
        seen.append(sum(isinstance(part, Image) for parts in results for part in parts))
        if seen[-1] > 20:
            raise PromptTooLong("too many images and documents: 21 + 0 > 20")
        return call("look", way=len(seen)) if len(model.requests) < 40 else "Done."

    model = FunctionModel(answer)
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(rp.Agent("guard", tools=[look], context=rp.ContextPolicy(window=50)), "Look.")
        assert await run.wait_result() == "Done."
    assert max(seen) > 20 >= seen[-1]
    assert at_once > 1 or min(seen[20:]) >= 5, seen  # the newest stay


@pytest.mark.parametrize("way_back", ["retrieved", "pinned", "expanded"])
@pytest.mark.parametrize("name", [NAME, "claude-sonnet-5-5"])
async def test_pictures_that_the_server_cannot_read_leave_view(name: str, way_back: str) -> None:
    """Those that it accepted before stay, and so does the reasoning. The run goes on, later too, also if they are
    brought back; where there are none, the caller is told.
    """
    bad = PNG + b"damaged"

    @rp.tool
    async def look(way: int) -> rp.ToolOutput:
        """Look around."""
        if way_back == "expanded" and way == 3:
            await run.expand(next(entry.position for entry in run.view() if entry.representation == "stub"))
        picture = rp.media_block(bad if way == 2 else PNG, "image/png")
        return rp.ToolOutput((Text("around"), picture), pin=way_back == "pinned")

    seen: list[list[str]] = []
    thoughts: list[int] = []

    def answer(request: ModelRequest) -> Any:
        parts = [
            block.content for message in request.messages for block in message.content if isinstance(block, ToolResult)
        ]
        images = [part.source["data"] for each in parts for part in each if isinstance(part, Image)]
        seen.append(images)
        thoughts.append(sum(isinstance(block, Thinking) for each in request.messages for block in each.content))
        if b64encode(bad).decode() in images or "Stumble" in str(request.messages[-1]):
            raise MediaUnreadable("Could not process image")
        if "Again" in str(request.messages[-1]):
            return call("context_retrieve", tool_name="look", iteration=2)
        if len(parts) >= 3:
            return "Done."
        return ModelResponse(
            content=(Thinking("Hm.", f"signed-{len(parts)}"), call("look", way=len(parts) + 1)), stop_reason="tool_use"
        )

    model = FunctionModel(answer, profile=rp.profile_for(name))
    agent = rp.Agent("guard", tools=[look, *rp.context_tools()])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(agent, "Look.")
        assert await run.wait_result() == "Done."
        assert list(map(len, seen)) == [0, 1, 2, 1, *([3, 1] if way_back == "expanded" else [2])]
        assert thoughts[:4] == [0, 1, 2, 2]
        run = await supervisor.resume(run.id, agent=agent)
        assert await run.ask("And now?") == "Done."
        assert await run.ask("Again.") == "Done."
        with pytest.raises(RunFailed, match="MediaUnreadable"):
            await run.ask("Stumble.")


@pytest.mark.parametrize("rhythm", ["thrifty", "strict"])
async def test_a_window_smaller_than_the_profile_says_is_found_out(rhythm: str) -> None:
    """The server's window holds 9,000 tokens, the client believes 200,000: refusals teach it, and the run ends well."""
    small = msgspec.structs.replace(rp.profile_for(NAME), context_window=9_000, max_output=1_000)
    policy = rp.ContextPolicy(
        rhythm=rhythm,  # type: ignore[arg-type]
        window=50,
        keep_recent=50,
        strict_chars=0,
        summarize_every=0,
        show_once=False,
    )
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
    policy = rp.ContextPolicy(rhythm="strict", window=50, keep_recent=12, strict_chars=0, summarize_every=0)
    async with (
        open_messages_server(reading(30), faults=[None] * 29 + [prompt_too_long()]) as server,
        aclosing(AnthropicModel(NAME, base_url=server.url, api_key="none")) as model,
        rp.open_supervisor(model=model) as supervisor,
    ):
        run = await supervisor.spawn(clerk(policy), "Read.")
        assert await run.wait_result() == "Done."
    before, after = (canonical_json(sent(server)[index].body["messages"]).decode() for index in (29, 30))
    assert refused(server) == [29]
    assert len(before) > 40_000
    assert len(after) < 30_000
    assert all(f"day {day}, hour 30" in after for day in (27, 28, 29))


class Narrow(FunctionModel):
    """A model whose server takes less than its profile says, and may say how much."""

    def __init__(
        self, window: int, *, says: bool, days: int, fails_at: int = 0, name: str = NAME, server: str = ""
    ) -> None:
        super().__init__(self._read, name=name)
        self.refused = 0
        self.server = server
        self._window, self._says, self._days, self._fails_at, self._day = window, says, days, fails_at, 0

    def _read(self, request: ModelRequest) -> ModelResponse | str | Exception:
        tokens = estimate_tokens(request)
        if tokens > self._window:
            self.refused += 1
            words = f"prompt is too long: {tokens} tokens > {self._window} maximum" if self._says else "too long"
            return PromptTooLong(words)
        if self._fails_at == len(self.requests):
            return ModelUnavailable("gone for now")
        self._day += 1
        return call("read_log", day=self._day) if self._day <= self._days else "Done."


@pytest.mark.parametrize("rhythm", ["thrifty", "strict"])
@pytest.mark.parametrize(("says", "most"), [(True, 2), (False, 3)])
async def test_what_a_refusal_teaches_holds_for_the_rest_of_the_run(rhythm: str, says: bool, most: int) -> None:
    """The server is not asked at every growth whether it takes more by now; also not after a restart.

    An estimate may pass a limit that the server named by a few tokens.
    """
    policy = rp.ContextPolicy(rhythm=rhythm, window=50, strict_chars=0)  # type: ignore[arg-type]
    model = Narrow(3_000, says=says, days=40, fails_at=30)
    async with open_journal() as journal:
        async with rp.open_supervisor(model=model, journal=journal) as supervisor:
            run = await supervisor.spawn(clerk(policy), "Read.")
            with pytest.raises(RunFailed):
                await run.wait_result()
        assert 1 <= model.refused <= most
        async with rp.open_supervisor(model=model, journal=journal) as supervisor:
            again = await supervisor.resume(run.id, agent=clerk(policy))
            assert await again.wait_result() == "Done."
    assert 1 <= model.refused <= most


@pytest.mark.parametrize(
    ("name", "server", "forgotten"),
    [(NAME, "http://small", False), ("claude-sonnet-4-5", "http://small", True), (NAME, "http://large", True)],
    ids=["the same", "another model", "another server"],
)
async def test_what_a_server_taught_is_forgotten_with_another(name: str, server: str, forgotten: bool) -> None:
    """A run that goes on with a model or server that takes more is shown as much as that takes."""
    policy = rp.ContextPolicy(rhythm="strict", window=50, strict_chars=0)
    first = Narrow(3_000, says=True, days=20, fails_at=15, server="http://small")
    then = Narrow(50_000, says=True, days=30, name=name, server=server)
    async with open_journal() as journal:
        async with rp.open_supervisor(model=first, journal=journal) as supervisor:
            run = await supervisor.spawn(clerk(policy), "Read.")
            with pytest.raises(RunFailed):
                await run.wait_result()
        async with rp.open_supervisor(model=then, journal=journal) as supervisor:
            again = await supervisor.resume(run.id, agent=clerk(policy))
            assert await again.wait_result() == "Done."
    assert (first.refused, then.refused) == (1, 0)
    largest = max(estimate_tokens(request) for request in then.requests)
    assert (largest > 2 * 3_000) is forgotten


@pytest.mark.parametrize(
    ("words", "limit", "size"),
    [
        ("prompt is too long: 210024 tokens > 200000 maximum", 200_000, 210_024),
        ("input length and `max_tokens` exceed context limit: 199000 + 2000 > 200000, decrease", 198_000, 199_000),
        (
            "This model's maximum context length is 200000 tokens. However, you requested 205000 tokens (203000 in the "
            "messages, 2000 in the completion).",
            198_000,
            203_000,
        ),
        ("request (210,000 tokens) exceeds the available context size (200,000 tokens), try", 198_000, 210_000),
        ("The input (210000 tokens) is longer than the model's context length (200000 tokens).", 198_000, 210_000),
        ("request exceeds the available context size. try increasing it [exceed_context_size_error]", 157_500, 0),
        ("the request exceeds the available context size [n_prompt_tokens 210000, n_ctx 200000]", 198_000, 210_000),
        (
            "The number of tokens to keep from the initial prompt is greater than the context length (n_keep: 210000>= "
            "n_ctx: 4096)",
            2_096,
            210_000,
        ),
        (
            "This model's maximum context length is 200000 tokens. However, you requested 2000 output tokens and your "
            "prompt contains at least 198001 input tokens, for a total of at least 200001 tokens.",
            198_000,
            0,
        ),
        ("The input token count (210000) exceeds the maximum number of tokens allowed (200000).", 200_000, 210_000),
        ("maximum prompt length is 200000 but the request contains 210000 tokens", 200_000, 210_000),
        ("Your request exceeded model token limit: 200000 (requested: 210000)", 200_000, 210_000),
        ("prompt token count of 210000 exceeds the limit of 200000", 200_000, 210_000),
        ("Input length 210000 exceeds the maximum allowed input length of 200000 tokens.", 200_000, 210_000),
        ("Range of input length should be [1, 200000]", 200_000, 0),
        ("Prompt contains 210000 tokens, too large for model with 200000 maximum context length", 198_000, 210_000),
        ("prompt too long; exceeded max context length by 1000 tokens", 157_500, 0),
        ("The decoder prompt (length 210000) is longer than the maximum model length of 200000.", 198_000, 210_000),
        ("too long", 157_500, 0),
        ("prompt is too long: 9000 tokens > 8000 maximum", 157_500, 0),
        ("maximum context length is 300000 tokens", 157_500, 0),
        (f"prompt is too long: {'9' * 5_000} tokens > {'8' * 5_000} maximum", 157_500, 0),
    ],
)
def test_a_limit_is_read_from_what_servers_say(words: str, limit: int, size: int) -> None:
    """In the wordings of several servers; where they say nothing, or nothing that can be, it is three quarters."""
    learned = PromptLimits(SILENT, max_tokens=2_000)
    assert learned.refused(210_000, words) == (limit, size)
    assert learned.tokens == limit


@pytest.mark.parametrize(
    "words",
    [
        "max_tokens=8192 cannot be greater than max_model_len=max_total_tokens=6000. Please request fewer output",
        "'max_tokens' is too large: 8192. This model's maximum context length is 6000 tokens and your request has 500 "
        "input tokens (8192 > 6000 - 500).",
        "input length and `max_tokens` exceed context limit: 500 + 8192 > 6000, decrease input length or `max_tokens`",
    ],
)
async def test_room_for_an_answer_that_the_window_does_not_have_is_not_asked_for_again(
    tmp_path: Path, words: str
) -> None:
    """It is not the prompt that is too long, so half of the window is left for the answer from then on, also later."""
    asked: list[int] = []

    def answer(request: ModelRequest) -> ModelResponse | str | Exception:
        asked.append(request.max_tokens)
        if request.max_tokens > 5_000:
            return PromptTooLong(words)
        return call("read_log", day=len(asked)) if len(asked) < 4 else "Done."

    journal, agent = tmp_path / "runs.db", clerk(rp.ContextPolicy())
    async with rp.open_supervisor(journal, model=FunctionModel(answer, name="qwen3")) as supervisor:
        run = await supervisor.spawn(agent, "Read.")
        assert await run.wait_result() == "Done."
        assert not await supervisor.journal.read_decisions(run.id)
    async with rp.open_supervisor(journal, model=FunctionModel(answer, name="qwen3")) as supervisor:
        again = await supervisor.resume(run.id, agent=agent)
        assert await again.ask("And now?") == "Done."
    assert asked == [8_192, 3_000, 3_000, 3_000, 3_000]


def test_an_unnamed_limit_is_not_below_what_was_accepted() -> None:
    """What was answered once is taken again."""
    learned = PromptLimits(SILENT, max_tokens=2_000)
    learned.accepted(95_000)
    learned.refused(100_000, "too long")
    assert learned.tokens == 95_000
    learned.refused(94_000, "too long after all")
    assert learned.tokens == 70_500


@given(st.lists(st.tuples(st.integers(1, 10**6), st.text(alphabet="0123456789 +>tokensmaxcextlghiw", max_size=60))))
def test_whatever_a_server_says_the_next_prompt_is_smaller(refusals: list[tuple[int, str]]) -> None:
    """A limit is never at or above what was refused, and never rises."""
    learned, before = PromptLimits(SILENT, max_tokens=2_000), 10**7
    for tokens, words in refusals:
        _, said = learned.refused(tokens, words)
        assert learned.tokens is not None
        assert learned.tokens < (said or tokens)
        assert learned.tokens <= before
        before = learned.tokens
