"""The Anthropic model through the real SDK, against a real local server, on both backends."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from email.utils import formatdate
from pathlib import Path
from typing import Any

import anyio
import httpx2
import msgspec
import pytest
import trio.testing

from backends import RunAsync
from patience import PATIENCE
from repertory.errors import (
    ConfigurationError,
    ModelAuthenticationError,
    ModelError,
    ModelRequestRejected,
    ModelResponseInvalid,
    ModelTimeout,
    ModelUnavailable,
    PromptTooLong,
    ThinkingMismatch,
    UnknownModel,
)
from repertory.llm import (
    AnthropicModel,
    Message,
    Model,
    ModelRequest,
    ModelResponse,
    RetryPolicy,
    StreamEvent,
    Text,
    ToolResult,
    ToolUse,
    profile_for,
)
from repertory.llm.messages import RawBlock, Thinking
from repertory.llm.model import Breakpoint, BrokenOff, Retrying, TextDelta, TokenCounter, ToolSchema, encode_request
from repertory.testing import FunctionModel, MessagesServer, open_messages_server
from repertory.testing.faults import (
    Break,
    Drip,
    Fault,
    Garbage,
    Refuse,
    Reset,
    Stall,
    Truncate,
    overloaded,
    prompt_too_long,
    rate_limited,
    server_error,
)
from repertory.testing.wire import encode_event, events_of

NAME = "claude-sonnet-4-6"
KEY = "sk-ant-test-0123456789"
QUICK = RetryPolicy(attempts=3, first_delay=0.001, longest_delay=0.002)
ADD = ToolSchema("add", "Add two numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}})
ANSWER = (
    Thinking("The sum is easy."),
    Text("I add them, one after the other. " * 5),
    ToolUse("toolu_1", "add", {"a": 1}),
)


def request(text: str = "What is 1 + 2?", *, model: str = NAME, **more: Any) -> ModelRequest:
    """A small request."""
    return ModelRequest(model=model, messages=(Message("user", (Text(text),)),), tools=(ADD,), max_tokens=1024, **more)


def answering(*_: Any) -> FunctionModel:
    """A responder that always says the same."""
    return FunctionModel(lambda _: ANSWER)


def client(server: MessagesServer, **options: Any) -> AnthropicModel:
    """A model that talks to the test's server."""
    return AnthropicModel(NAME, **{"base_url": server.url, "api_key": KEY, "retry": QUICK, **options})


def test_an_answer_comes_back_whole(run_async: RunAsync) -> None:
    """Thinking, text, tool call, usage, stop reason and id; every piece is streamed; the request is what we encode."""

    async def main() -> None:
        async with open_messages_server(answering(), api_key=KEY) as server:
            model = client(server)
            assert isinstance(model, Model)
            assert isinstance(model, TokenCounter)
            events: list[StreamEvent] = []
            asked = request()
            response = await model.complete(asked, on_event=events.append)
            signed, text, call = response.content
            assert isinstance(signed, Thinking)
            assert signed.thinking == "The sum is easy."
            assert signed.signature
            assert (text, call) == ANSWER[1:]
            assert response.stop_reason == "tool_use"
            assert response.model == NAME
            assert response.response_id.startswith("msg_")
            assert response.usage == server.usage
            assert "".join(event.text for event in events if isinstance(event, TextDelta)) == ANSWER[1].text  # type: ignore[union-attr]
            assert server.exchanges[0].body == {**encode_request(asked), "stream": True}
            assert "anthropic-beta" not in server.exchanges[0].headers

            result = Message("user", (ToolResult("toolu_1", "3"),))
            again = msgspec.structs.replace(
                asked, messages=(*asked.messages, Message("assistant", response.content), result)
            )
            assert (await model.complete(again)).content  # the signed thinking is accepted when it comes back
            assert await model.count_tokens(again) == server.exchanges[-2].usage.prompt_tokens
            await model.aclose()
            await model.aclose()
            await model.complete(asked)  # a closed model opens again
            await model.aclose()

    run_async(main)


def test_cache_writes_and_reads_are_reported_by_ttl(run_async: RunAsync) -> None:
    """The figures that cost money arrive complete although the answer is streamed."""

    async def main() -> None:
        async with open_messages_server(answering()) as server:
            model = client(server)
            head = (Text("Be brief. " * 600),)
            marked = request(system=head, breakpoints=(Breakpoint(None, "1h"), Breakpoint(0)))
            first = (await model.complete(marked)).usage
            second = (await model.complete(marked)).usage
            await model.aclose()
            assert first.cache_write_1h_tokens > 1_000
            assert first.cache_write_tokens > 0
            assert first.cache_read_tokens == 0
            assert second.cache_read_tokens == first.cache_write_1h_tokens + first.cache_write_tokens
            assert second.cache_write_tokens == second.cache_write_1h_tokens == 0

    run_async(main)


def test_betas_and_options_reach_the_server(run_async: RunAsync) -> None:
    """Beta values go into the header and the query; the model's own thinking option fills in for a missing one."""

    async def main() -> None:
        async with open_messages_server(answering(), profile=profile_for("claude-sonnet-5-5")) as server:
            model = AnthropicModel("claude-sonnet-5-5", base_url=server.url, thinking={"type": "adaptive"})
            beta = "thinking-binding-controls-2026-08-01"
            response = await model.complete(request(model="claude-sonnet-5-5", betas=(beta, "other-2026-01-01")))
            assert response.extra["input_transformations"] == []
            options = {"thinking": {"type": "between_tools"}, "service_tier": "auto", "stop_sequences": ["END"]}
            explicit = request(model="claude-sonnet-5-5", options=options)
            await model.complete(explicit)
            assert await model.count_tokens(explicit) > 0
            await model.aclose()
            first, second, _ = server.exchanges
            assert first.headers["anthropic-beta"] == f"{beta},other-2026-01-01"
            assert first.body["thinking"] == {"type": "adaptive"}
            assert second.body["thinking"] == {"type": "between_tools"}

    run_async(main)


def test_a_beta_from_the_environment_is_sent_beside_those_that_a_request_needs(
    run_async: RunAsync, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a feature that was asked for there would be gone from the run's first summary on."""
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "Anthropic-Beta: mine-2026-01-01,compact-2026-09-04")

    async def main() -> None:
        async with open_messages_server(answering()) as server:
            model = client(server)
            await model.complete(request())
            await model.complete(request(betas=("other-2026-01-01",), options={"context_management": {"edits": []}}))
            await model.aclose()
            first, second = (exchange.headers["anthropic-beta"] for exchange in server.exchanges)
            assert first == "mine-2026-01-01,compact-2026-09-04"
            assert second == "other-2026-01-01,mine-2026-01-01,compact-2026-09-04,context-management-2025-06-27"

    run_async(main)


def test_a_local_server_needs_no_key(run_async: RunAsync, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a base URL and no key no authentication is sent at all, and the environment's is used where it is set."""
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)

    async def main() -> None:
        async with open_messages_server(answering()) as server:
            model = AnthropicModel(NAME, base_url=server.url)
            await model.complete(request())
            await model.aclose()
            assert "authorization" not in server.exchanges[0].headers
            assert "x-api-key" not in server.exchanges[0].headers
            with pytest.MonkeyPatch.context() as environment:
                environment.setenv("ANTHROPIC_BASE_URL", server.url)
                environment.setenv("ANTHROPIC_AUTH_TOKEN", "token-from-the-environment")
                model = AnthropicModel(NAME)
                await model.complete(request())
                await model.aclose()
            assert server.exchanges[1].headers["authorization"] == "Bearer token-from-the-environment"

    run_async(main)


# --- faults -------------------------------------------------------------------------------------------------------

PASSING: list[Fault] = [
    rate_limited(milliseconds=1),
    rate_limited(),
    overloaded(),
    server_error(),
    server_error(503),
    Reset(),
    Reset(after=1),
    Reset(after=6),
    Truncate(after=1),
    Truncate(after=7),
    Garbage(after=3),
    Garbage(after=0, data="[1, 2]"),
    Break(after=2),
    Break(after=4, kind="api_error", message="Internal server error"),
]


@pytest.mark.parametrize("fault", PASSING, ids=repr)
def test_what_may_pass_is_tried_again(run_async: RunAsync, fault: Fault) -> None:
    """One fault, one retry, announced with its reason; the answer is whole, as if nothing had been."""

    async def main() -> None:
        async with open_messages_server(answering(), faults=[fault]) as server:
            model = client(server)
            events: list[StreamEvent] = []
            response = await model.complete(request(), on_event=events.append)
            await model.aclose()
            assert response.content[1:] == ANSWER[1:]
            retries = [event for event in events if isinstance(event, Retrying)]
            assert [event.attempt for event in retries] == [2]
            refused = isinstance(fault, Refuse) or fault == Reset()
            assert events.count(BrokenOff()) == (not refused), "what the server had begun to answer is billed"
            assert retries[0].reason
            after = events[events.index(retries[0]) + 1 :]
            assert "".join(e.text for e in after if isinstance(e, TextDelta)) == ANSWER[1].text  # type: ignore[union-attr]
            assert len(server.exchanges) == 2

    run_async(main)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (overloaded(), ModelUnavailable),
        (Reset(), ModelUnavailable),
        (Truncate(), ModelResponseInvalid),
        (Garbage(), ModelResponseInvalid),
    ],
    ids=repr,
)
def test_tries_are_bounded(run_async: RunAsync, fault: Fault, error: type[ModelError]) -> None:
    """After the last attempt the error says what happened and how often it was tried; no call more is made."""

    async def main() -> None:
        async with open_messages_server(answering(), faults=[fault] * 10) as server:
            model = client(server)
            with pytest.raises(error, match="after 3 attempts") as caught:
                await model.complete(request())
            assert type(caught.value) is error
            assert len(server.exchanges) == 3
            once = client(server, retry=RetryPolicy(attempts=1))
            with pytest.raises(error, match="after one attempt"):
                await once.complete(request())
            assert len(server.exchanges) == 4
            await model.aclose()
            await once.aclose()

    run_async(main)


def test_what_cannot_pass_is_not_tried_again(run_async: RunAsync) -> None:
    """Malformed, too long, unknown, unauthorised: one call, one error, at once."""

    async def main() -> None:
        async with open_messages_server(answering(), api_key=KEY, faults=[prompt_too_long()]) as server:
            model = client(server)
            cases: list[tuple[AnthropicModel, ModelRequest, type[ModelError]]] = [
                (model, request(), PromptTooLong),
                (model, request(""), ModelRequestRejected),
                (model, request(model="claude-nonsense-9"), UnknownModel),
                (client(server, api_key="wrong-key-0123"), request(), ModelAuthenticationError),
                (model, request("x" * 4_200_000), PromptTooLong),
            ]
            for asked, what, error in cases:
                before = len(server.exchanges)
                with pytest.raises(error) as caught:
                    await asked.complete(what)
                assert type(caught.value) is error
                assert "wrong-key-0123" not in str(caught.value)
                assert len(server.exchanges) == before + 1
            with pytest.raises(UnknownModel):
                await model.count_tokens(request(model="claude-nonsense-9"))
            for asked, _, _ in cases:
                await asked.aclose()

    run_async(main)


def test_an_edit_of_the_past_is_told_apart_on_a_binding_model(run_async: RunAsync) -> None:
    """The error that only a change of plan can cure has its own type; dropping the thinking is one cure."""

    async def main() -> None:
        name = "claude-opus-5-5"
        async with open_messages_server(answering(), profile=profile_for(name)) as server:
            model = AnthropicModel(name, base_url=server.url, retry=QUICK)
            asked = request(model=name)
            response = await model.complete(asked)
            turn = (Message("assistant", response.content), Message("user", (ToolResult("toolu_1", "3"),)))
            edited = msgspec.structs.replace(
                request("What is 2 + 2?", model=name), messages=(Message("user", (Text("Else"),)), *turn)
            )
            with pytest.raises(ThinkingMismatch, match=r"messages\.1\.content\.0"):
                await model.complete(edited)
            dropping = msgspec.structs.replace(
                edited,
                betas=("thinking-binding-controls-2026-08-01",),
                options={"thinking": {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}},
            )
            again = await model.complete(dropping)
            await model.aclose()
            [dropped] = again.extra["input_transformations"]
            assert dropped == {
                "type": "thinking_dropped",
                "path": "messages.1.content.0",
                "reason": "prefix_binding_mismatch",
            }

    run_async(main)


def test_pings_do_not_keep_a_silent_call_alive(run_async: RunAsync) -> None:
    """Content must come; a server that only pings is given up, and the next attempt may be luckier."""

    async def main() -> None:
        async with open_messages_server(answering(), faults=[Stall(after=3, pings=0.01)]) as server:
            model = client(server, content_idle_timeout=4.0)  # no machine is silent that long in a good answer
            events: list[StreamEvent] = []
            response = await model.complete(request(), on_event=events.append)
            assert response.content[1:] == ANSWER[1:]
            assert ["no content for 4 s" in e.reason for e in events if isinstance(e, Retrying)] == [True]
            await model.aclose()
            server.inject(Stall(), *[Stall(after=1)] * 2)
            model = client(server, content_idle_timeout=0.1)
            with pytest.raises(ModelTimeout, match="content_idle_timeout"):
                await model.complete(request())
            await model.aclose()

    run_async(main)


def test_slow_content_is_not_silence(run_async: RunAsync) -> None:
    """Negative control of the idle timeout: an answer that drips for longer than the timeout is whole in the end."""

    async def main() -> None:
        async with open_messages_server(FunctionModel(lambda _: "word " * 200), faults=[Drip(0.2)]) as server:
            model = client(server, content_idle_timeout=4.0)
            response = await model.complete(request())
            await model.aclose()
            assert response.content == (Text("word " * 200),)
            assert len(server.exchanges) == 1
            assert len(list(events_of(response))) * 0.2 > 4.0

    run_async(main)


def test_an_answer_that_takes_for_ever_is_bounded(run_async: RunAsync) -> None:
    """The whole attempt has a bound of its own, and is not made again: it would take as long."""

    async def main() -> None:
        async with open_messages_server(FunctionModel(lambda _: "word " * 800), faults=[Drip(0.05)]) as server:
            model = client(server, request_timeout=3.0)
            with pytest.raises(ModelTimeout, match=r"request_timeout=3"):
                await model.complete(request())
            await model.aclose()
            assert len(server.exchanges) <= 1  # a slow machine may not come to ask within the time

    run_async(main)


def test_nobody_listens(run_async: RunAsync) -> None:
    """A server that is not running is named, and the question is asked whether it runs."""

    async def main() -> None:
        async with open_messages_server(answering()) as server:
            url = server.url
        model = AnthropicModel(NAME, base_url=url, retry=QUICK)
        with pytest.raises(ModelUnavailable, match=r"is the server running"):
            await model.complete(request())
        await model.aclose()

    run_async(main)


def test_what_is_wrong_with_tls_is_said(run_async: RunAsync) -> None:
    """On both event loops, as on trio the error at hand says nothing; the server does run."""

    async def main() -> None:
        async with open_messages_server(answering()) as server:
            model = AnthropicModel(NAME, base_url=server.url.replace("http:", "https:"), retry=QUICK)
            with pytest.raises(ModelUnavailable, match=r"\[SSL.* does it speak https, and is its certificate trusted"):
                await model.complete(request())
            await model.aclose()

    run_async(main)


def test_a_cancelled_call_leaves_nothing_behind(run_async: RunAsync) -> None:
    """The server sees the client go, and the next call works on a fresh connection."""

    async def main() -> None:
        async with open_messages_server(answering(), faults=[Stall(after=4, pings=0.01)]) as server:
            model = client(server)
            with anyio.CancelScope() as scope:
                await model.complete(request(), on_event=lambda _: scope.cancel())
            assert scope.cancelled_caught
            assert (await model.complete(request())).content[1:] == ANSWER[1:]
            await model.aclose()

    run_async(main)


def test_an_error_in_the_listener_ends_the_call_cleanly(run_async: RunAsync) -> None:
    """A listener must not raise; where it does, its error comes out as it is, and no generator leaks."""

    async def main() -> None:
        async with open_messages_server(answering()) as server:
            model = client(server)

            def broken(_: StreamEvent) -> None:
                raise LookupError("no screen")

            with pytest.raises(LookupError, match="no screen"):
                await model.complete(request(), on_event=broken)
            assert (await model.complete(request())).content
            await model.aclose()

    run_async(main)


def test_many_calls_share_one_model(run_async: RunAsync) -> None:
    """Twenty calls at once from twenty tasks, some of them retried, each with its own answer."""

    async def main() -> None:
        echo = FunctionModel(lambda asked: asked.messages[0].content[0].text.upper())  # type: ignore[union-attr]
        async with open_messages_server(echo, faults=[overloaded(), None, Reset(), None, Truncate()]) as server:
            model = client(server, retry=msgspec.structs.replace(QUICK, attempts=4))  # one call may meet all faults
            answers: dict[int, ModelResponse] = {}

            async def ask(number: int) -> None:
                answers[number] = await model.complete(request(f"number {number}"))

            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    tasks.start_soon(ask, number)
            await model.aclose()
            assert {n: a.content for n, a in answers.items()} == {n: (Text(f"NUMBER {n}"),) for n in range(20)}

    run_async(main)


def test_one_model_serves_one_event_loop_after_the_other() -> None:
    """A script may run twice with the same agent: connections belong to a loop, the model does not."""
    # In a process of its own: the dead loops' connections are closed by nobody, and pytest would say so.
    script = """
import anyio
from repertory.llm import *
from repertory.testing import *

async def main(port):
    async with open_messages_server(FunctionModel(lambda _: "hello"), port=port) as server:
        request = ModelRequest(model="claude-opus-5", messages=(Message("user", (Text("hi"),)),))
        answers.append((await model.complete(request)).content)
        return server.url

async def free_port():
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        return listener.extra(anyio.abc.SocketAttribute.local_port)

answers = []
port = anyio.run(free_port)
model = AnthropicModel("claude-opus-5", base_url=f"http://127.0.0.1:{port}")
for backend in ("trio", "asyncio", "trio"):
    anyio.run(main, port, backend=backend)
assert answers == [(Text("hello"),)] * 3, answers
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE)


# --- time, without sockets ----------------------------------------------------------------------------------------


class Wire(httpx2.AsyncBaseTransport):
    """A transport that answers from a list and notes when it was asked."""

    def __init__(self, *answers: httpx2.Response | Exception) -> None:
        self.answers = list(answers)
        self.times: list[float] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Give the next answer."""
        self.times.append(anyio.current_time())
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def ok() -> httpx2.Response:
    """A streamed answer."""
    response = ModelResponse(content=(Text("fine"),), model=NAME, response_id="msg_1")
    body = b"".join(encode_event(event) for event in events_of(response))
    return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=body)


def error(status: int, **headers: str) -> httpx2.Response:
    """An error."""
    body = {"type": "error", "error": {"type": "x", "message": "no"}}
    return httpx2.Response(status, headers={k.replace("_", "-"): v for k, v in headers.items()}, json=body)


@pytest.fixture(scope="module", autouse=True)
def _sdk_is_imported() -> None:
    # Virtual time would jump while a worker thread imports it.
    import anthropic  # noqa: F401


async def times_of(
    wire: Wire, policy: RetryPolicy, *, chance: Callable[[], float] = lambda: 0.0
) -> tuple[list[float], Any]:
    """When each attempt began, relative to the first, and what came out."""
    async with httpx2.AsyncClient(transport=wire) as http:
        # Without deadlines of its own: the SDK's first request uses a worker thread, and virtual time would jump to
        # the next deadline meanwhile.
        patience: dict[str, Any] = {"content_idle_timeout": None, "request_timeout": None}
        model = AnthropicModel(NAME, api_key=KEY, retry=policy, http_client=http, chance=chance, **patience)
        try:
            outcome: Any = await model.complete(request())
        except ModelError as failure:
            outcome = failure
        await model.aclose()
    return [time - wire.times[0] for time in wire.times], outcome


async def test_delays_are_exact_and_grow(autojump_clock: trio.testing.MockClock) -> None:
    """Without a word from the server: exponential, bounded, and spread by chance."""
    policy = RetryPolicy(attempts=6, first_delay=1, longest_delay=5, total_time=1000)
    times, outcome = await times_of(Wire(*[error(529)] * 5, ok()), policy)
    assert times == [0, 1, 3, 7, 12, 17]
    assert outcome.content == (Text("fine"),)
    times, _ = await times_of(Wire(*[error(529)] * 2, ok()), policy, chance=lambda: 0.999)
    assert times == pytest.approx([0, 1 - 0.25 * 0.999, 3 - 3 * 0.25 * 0.999])


async def test_the_wait_that_the_server_asks_for_is_kept(autojump_clock: trio.testing.MockClock) -> None:
    """Seconds and milliseconds are honoured to the letter, above the policy's own bound too."""
    policy = RetryPolicy(first_delay=1, longest_delay=2)
    wire = Wire(error(429, retry_after="40"), error(429, retry_after_ms="1500"), httpx2.ConnectError("down"), ok())
    times, outcome = await times_of(wire, policy)
    assert times == [0, 40, 41.5, 43.5]
    assert outcome.content == (Text("fine"),)


async def test_a_date_to_come_back_at_is_kept(autojump_clock: trio.testing.MockClock) -> None:
    """An HTTP date is turned into a wait by the wall clock, to its full seconds."""
    import time

    begun = time.time()
    times, _ = await times_of(Wire(error(429, retry_after=formatdate(begun + 60, usegmt=True)), ok()), RetryPolicy())
    taken = time.time() - begun  # also for importing the SDK
    assert 59 - taken <= times[1] <= 60


async def test_total_time_is_bounded(autojump_clock: trio.testing.MockClock) -> None:
    """No attempt begins after the total time; a server that asks for more is unavailable at once."""
    times, outcome = await times_of(Wire(*[error(529)] * 9), RetryPolicy(attempts=99, first_delay=10, total_time=60))
    assert times == [0, 10, 30, 60]
    assert isinstance(outcome, ModelUnavailable)
    times, outcome = await times_of(Wire(error(429, retry_after="3600")), RetryPolicy())
    assert times == [0]
    assert "asks to wait 3600 s" in str(outcome)


async def test_a_gateway_may_answer_without_streaming(autojump_clock: trio.testing.MockClock) -> None:
    """Plain JSON instead of events is read too; unreadable JSON is retried like a broken stream."""
    plain = {
        "id": "m",
        "model": NAME,
        "content": [{"type": "new", "x": 1}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 3},
    }
    wire = Wire(
        httpx2.Response(200, json=["nonsense"]), httpx2.Response(200, content=b"{"), httpx2.Response(200, json=plain)
    )
    _, outcome = await times_of(wire, RetryPolicy())
    assert outcome.content == (RawBlock({"type": "new", "x": 1}),)
    assert outcome.usage.input_tokens == 3


@pytest.mark.parametrize("streamed", [True, False])
async def test_an_error_may_come_with_the_status_of_a_success(
    streamed: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """Gateways send the status before they know of the error; it means the same, also without the outer type."""
    typed = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
    bare = {"error": {"type": "invalid_request_error", "message": "prompt is too long"}}

    def answer(body: dict[str, Any]) -> httpx2.Response:
        written = msgspec.json.encode(body)
        if streamed:
            headers = {"content-type": "Text/Event-Stream; charset=utf-8"}  # in any case, as HTTP has it
            return httpx2.Response(200, headers=headers, content=b"data: " + written + b"\n\n")
        return httpx2.Response(200, headers={"content-type": "application/json"}, content=written)

    times, outcome = await times_of(Wire(answer(typed), answer(bare)), RetryPolicy(first_delay=1))
    assert times == [0, 1]
    assert isinstance(outcome, PromptTooLong)


@pytest.mark.parametrize("headers", [{}, {"content-type": "text/plain"}, {"content-type": "Text/Event-Stream; q=1"}])
async def test_a_stream_is_read_whatever_a_gateway_calls_it(headers: dict[str, str]) -> None:
    """It was asked for, and the provider's own SDK does not look at the type either."""
    body = b"".join(encode_event(event) for event in events_of(ModelResponse(content=(Text("fine"),))))
    _, outcome = await times_of(Wire(httpx2.Response(200, headers=headers, content=body)), RetryPolicy(attempts=1))
    assert outcome.content == (Text("fine"),)


@pytest.mark.parametrize(
    ("kind", "body", "quoted"),
    [
        ("text/html", b"<h1>Welcome to nginx</h1>", "no event of the Messages API, got b'<h1>Welcome to nginx</h1>'"),
        ("text/event-stream", b'data: {"object": "chat.completion.chunk"}\n\n', "chat.completion.chunk"),
        ("text/event-stream", b'event: error\ndata: {"message": "out of memory"}\n\n', "out of memory"),
    ],
    ids=["a page", "another protocol", "an error without a type"],
)
async def test_an_answer_that_is_no_stream_is_quoted(kind: str, body: bytes, quoted: str) -> None:
    """Who points to the wrong address sees what answered there."""
    wire = Wire(httpx2.Response(200, headers={"content-type": kind}, content=body))
    _, outcome = await times_of(wire, RetryPolicy(attempts=1))
    assert isinstance(outcome, ModelError)
    assert quoted in str(outcome)


class Silence(httpx2.AsyncByteStream):
    """A body that never comes."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Wait for ever."""
        await anyio.sleep_forever()
        yield b""


async def test_a_refusal_without_its_reason_is_still_a_refusal(autojump_clock: trio.testing.MockClock) -> None:
    """A server that does not finish the body of an error holds up the call for seconds, not for minutes."""
    started = anyio.current_time()
    times, outcome = await times_of(Wire(httpx2.Response(401, stream=Silence())), RetryPolicy())
    assert isinstance(outcome, ModelAuthenticationError)
    assert times == [0]
    assert anyio.current_time() - started == 5


async def _silence() -> AsyncGenerator[bytes]:
    while True:
        await anyio.sleep(10)
        yield encode_event({"type": "ping"})


async def _broken() -> AsyncGenerator[bytes]:
    raise httpx2.RemoteProtocolError("peer closed connection without sending complete message body")
    yield b""


async def _done() -> AsyncGenerator[bytes]:
    yield b"data: [DONE]\n\n"


async def _failing() -> AsyncGenerator[bytes]:
    yield encode_event({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})


async def _late() -> AsyncGenerator[bytes]:
    yield encode_event(
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": " and more"}}
    )
    await anyio.sleep(10)
    yield encode_event({"type": "message_stop"})


@pytest.mark.parametrize(
    ("after", "text", "seconds"),
    [
        (_silence, "fine", 1),
        (_broken, "fine", 0),
        (_done, "fine", 0),
        (_failing, "fine", 0),
        (_late, "fine and more", 10),
    ],
)
async def test_an_answer_is_whole_once_its_stop_reason_has_come(
    autojump_clock: trio.testing.MockClock, after: Callable[[], AsyncGenerator[bytes]], text: str, seconds: float
) -> None:
    """Also if the end of the stream stays away, or an error comes instead: it would be paid twice, and the second time
    may fail as well.
    """

    async def body() -> AsyncIterator[bytes]:
        for event in events_of(ModelResponse(content=(Text("fine"),))):
            if event["type"] != "message_stop":
                yield encode_event(event)
        async with aclosing(after()) as pieces:
            async for piece in pieces:
                yield piece

    wire = Wire(httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=body()))
    _, outcome = await times_of(wire, RetryPolicy(attempts=1))
    assert isinstance(outcome, ModelResponse), outcome
    assert outcome.content == (Text(text),)
    assert anyio.current_time() - wire.times[0] == pytest.approx(seconds)


async def test_running_out_of_window_is_a_prompt_too_long(autojump_clock: trio.testing.MockClock) -> None:
    """The stop reason that only a smaller request can cure is raised as the error that leads to one."""
    response = ModelResponse(content=(Text("half"),), stop_reason="model_context_window_exceeded")
    body = b"".join(encode_event(event) for event in events_of(response))
    wire = Wire(httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=body))
    times, outcome = await times_of(wire, RetryPolicy())
    assert isinstance(outcome, PromptTooLong)
    assert times == [0]


async def test_a_count_that_is_none_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    """A server that answers the count with something else cannot count."""
    async with httpx2.AsyncClient(transport=Wire(httpx2.Response(200, json={"tokens": 1}))) as http:
        with pytest.raises(ModelResponseInvalid, match="input_tokens"):
            await AnthropicModel(NAME, api_key=KEY, http_client=http).count_tokens(request())


@pytest.mark.parametrize("folder", ["there", "not-there"])
async def test_without_a_key_the_message_says_what_to_set(
    folder: str, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing is sent to the real service without a key."""
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "there").mkdir()
    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(tmp_path / folder))
    wire = Wire()
    async with httpx2.AsyncClient(transport=wire) as http:
        with pytest.raises(ModelAuthenticationError, match="set ANTHROPIC_API_KEY"):
            await AnthropicModel(NAME, http_client=http, request_timeout=None).complete(request())
        monkeypatch.setenv("ANTHROPIC_BASE_URL", "localhost:11434")
        with pytest.raises(ConfigurationError, match="ANTHROPIC_BASE_URL must begin with http"):
            await AnthropicModel(NAME, http_client=http).complete(request())
    assert wire.times == []


# --- construction -------------------------------------------------------------------------------------------------


def test_the_key_is_in_no_repr() -> None:
    """A model in a traceback or a log gives nothing away."""
    model = AnthropicModel(NAME, api_key=KEY)
    assert repr(model) == f"AnthropicModel('{NAME}')"
    assert KEY not in str(vars(model).keys())
    assert model.name == NAME
    assert model.profile == profile_for(NAME)


@pytest.mark.parametrize("key", ["a-gateways-key-0123\n", "a-gateways-key-0123 "])
def test_a_key_that_cannot_be_sent_is_not_shown(run_async: RunAsync, key: str) -> None:
    """The end of a line, read from a file with the key, is reported once; no traceback quotes the key."""

    async def main() -> None:
        async with open_messages_server(answering()) as server:
            model = client(server, api_key=key)
            for calling in (model.complete, model.count_tokens):
                with pytest.raises(ModelRequestRejected, match="check the key") as caught:
                    await calling(request())
                assert "a-gateways-key" not in "".join(traceback.format_exception(caught.value))
            await model.aclose()
            assert server.exchanges == []

    run_async(main)


@pytest.mark.parametrize(
    "answer",
    [
        httpx2.Response(200, content=f"<h1>no, {KEY}</h1>".encode()),
        httpx2.Response(200, headers={"content-type": "application/json"}, json={"content": [KEY]}),
        httpx2.RemoteProtocolError(f"illegal status line: {KEY}"),
    ],
    ids=["a page", "no message", "no HTTP"],
)
async def test_a_key_in_an_answer_that_cannot_be_read_is_in_no_traceback(answer: Any) -> None:
    """Neither in the error nor in what it came from, which quotes the answer as it is."""
    _, outcome = await times_of(Wire(answer), RetryPolicy(attempts=1))
    assert isinstance(outcome, ModelResponseInvalid | ModelUnavailable)
    assert KEY not in "".join(traceback.format_exception(outcome))


@pytest.mark.parametrize("value", ["half \ud800", math.nan, b"bytes"], ids=["half a pair", "NaN", "bytes"])
async def test_a_request_that_is_no_json_is_refused(value: Any) -> None:
    """By an error of ours, before anything is sent."""
    wire = Wire(ok())
    async with httpx2.AsyncClient(transport=wire) as http:
        model = AnthropicModel(NAME, api_key=KEY, http_client=http)
        for calling in (model.complete, model.count_tokens):
            with pytest.raises(ModelRequestRejected, match="cannot be written as JSON"):
                await calling(request(options={"thinking": {"type": value}}))
    assert wire.times == []


def test_a_short_key_is_no_secret_and_stays_in_errors(run_async: RunAsync) -> None:
    """Local servers take any; without the letters of a key such as `x` nobody could read what they say."""

    async def main() -> None:
        refusal = Refuse(400, "invalid_request_error", "the text is too complex", {})
        async with open_messages_server(answering(), api_key="x", faults=[refusal]) as server:
            model = AnthropicModel(NAME, api_key="x", base_url=server.url)
            with pytest.raises(ModelError, match="the text is too complex"):
                await model.complete(request())
            await model.aclose()

    run_async(main)


@pytest.mark.parametrize("header", ["X-Api-Key: a-gateways-key-0123", "authorization: Bearer a-gateways-key-0123"])
def test_a_key_from_a_header_of_the_environment_is_not_shown(
    run_async: RunAsync, monkeypatch: pytest.MonkeyPatch, header: str
) -> None:
    """Where a gateway wants its own, and sends it back."""
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", header)

    async def main() -> None:
        refusal = Refuse(401, "authentication_error", "no: a-gateways-key-0123", {})
        async with open_messages_server(answering(), faults=[refusal]) as server:
            model = AnthropicModel(NAME, base_url=server.url)
            with pytest.raises(ModelAuthenticationError, match=r"no: \*\*\* \["):
                await model.complete(request())
            await model.aclose()
            assert "a-gateways-key-0123" in str(server.exchanges[0].headers)

    run_async(main)


@pytest.mark.parametrize("proxy", ["http://me:hush-hush@proxy:port", "socks://me:hush-hush@127.0.0.1:1080"])
def test_a_client_that_cannot_be_made_is_an_error_of_the_configuration(proxy: str) -> None:
    """A bad proxy is found by the HTTP client, with errors of its own. (What the SDK half made warns when deleted.)"""
    code = (
        "import anyio; from repertory.llm import *;"
        "model = AnthropicModel('m', base_url='http://localhost:1', api_key='key');"
        "anyio.run(model.complete, ModelRequest(model='m', messages=(Message('user', (Text('hi'),)),)))"
    )
    environment = {**os.environ, "ALL_PROXY": proxy}
    ran = subprocess.run(
        [sys.executable, "-c", code], check=False, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert "ConfigurationError: no HTTP client can be made for model 'm'" in ran.stderr
    assert "check the proxy variables" in ran.stderr
    assert "hush-hush" not in ran.stderr


def test_options_that_contradict_are_refused() -> None:
    """Before anything is sent, with what to do instead."""
    with pytest.raises(ConfigurationError, match="pass one"):
        AnthropicModel(NAME, api_key="a", auth_token="b")
    for wrong in ({"api_key": KEY.encode()}, {"thinking": True}, {"retry": 3}, {"profile": {}}, {"base_url": 80}):
        with pytest.raises(ConfigurationError, match=f"AnthropicModel: {next(iter(wrong))}") as caught:
            AnthropicModel(NAME, **wrong)  # type: ignore[arg-type]
        assert KEY not in str(caught.value)
    for seconds in (0, -1.0, math.nan, "60"):
        with pytest.raises(ConfigurationError, match="request_timeout must be"):
            AnthropicModel(NAME, request_timeout=seconds)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url",
    ["localhost:11434", "ftp://me:hush@localhost", "http://", "http://[::1", "http://host:port", "http://a..b"],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    """When the model is made, not by an error of the HTTP client in a run; what may be secret in it is not shown."""
    with pytest.raises(ConfigurationError, match=r"base_url \(or ANTHROPIC_BASE_URL\) must begin with http") as caught:
        AnthropicModel(NAME, base_url=url)
    assert "hush" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="has a query or a fragment") as caught:
        AnthropicModel(NAME, base_url="http://a?key=hush")
    assert "hush" not in str(caught.value)


def test_importing_and_making_a_model_does_not_import_the_sdk() -> None:
    """The SDK takes over a second to import; it is loaded by the first call alone."""
    code = (
        "import sys, repertory.llm as llm; llm.AnthropicModel('claude-opus-5');"
        "print([name for name in ('anthropic', 'httpx2', 'trio', 'asyncio') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "anthropic" not in out.stdout
    assert "httpx2" not in out.stdout
