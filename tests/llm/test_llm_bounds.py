"""What a server may make us read, keep and wait for, and where it may send us."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import msgspec
import pytest

from backends import RunAsync
from repertory.errors import ModelError, ModelRequestRejected, ModelResponseInvalid, ModelTimeout, ModelUnavailable
from repertory.llm import AnthropicModel, Message, ModelRequest, RetryPolicy, Text
from repertory.llm._bounds import ANSWER_BYTES, DOCUMENT_BYTES, ERROR_BYTES, ERROR_CHARS, MOST_BLOCKS, MOST_VALUES
from repertory.llm._stream import Assembler, EventReader
from repertory.testing import FunctionModel, MessagesServer, open_messages_server
from repertory.testing.faults import Fault, Raw, Stall
from repertory.testing.wire import encode_event

NAME = "claude-sonnet-4-6"
REQUEST = ModelRequest(model=NAME, messages=(Message("user", (Text("Hello?"),)),), max_tokens=64)
ONCE = RetryPolicy(attempts=1)
START = {"type": "message_start", "message": {"id": "m", "model": NAME, "content": [], "usage": {}}}
BLOCK = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
STOP = {"type": "message_stop"}
PLAIN = {"content-type": "application/json"}


def delta(text: str) -> dict[str, Any]:
    """A piece of text."""
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}


async def outcome(fault: Fault, **options: Any) -> Any:
    """What comes of one call that the server spoils so, and the most memory that Python held for it, in bytes."""
    async with open_messages_server(FunctionModel(lambda _: "fine")) as server:
        warm = AnthropicModel(NAME, base_url=server.url)
        await warm.complete(REQUEST)  # so that imports do not count
        await warm.aclose()
        server.inject(fault)
        model = AnthropicModel(NAME, base_url=server.url, retry=ONCE, **options)
        tracemalloc.start()
        try:
            return await model.complete(REQUEST), tracemalloc.get_traced_memory()[1]
        except ModelError as error:
            return error, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            await model.aclose()


# --- the reader, without a server -------------------------------------------------------------------------------------


def test_a_large_event_is_read_in_one_pass_however_it_is_cut() -> None:
    """A reader that went over what it has at every piece would take some hours for this."""
    text = "x" * (DOCUMENT_BYTES - 200)
    data = encode_event(delta(text))
    reader, events = EventReader(), []
    for start in range(0, len(data), 16):
        events.extend(reader.feed(data[start : start + 16]))
    assert events == [delta(text)]


def test_a_text_of_many_pieces_is_put_together_once() -> None:
    """A block that was copied at every piece would take an hour for this."""
    answer = Assembler()
    for event in (START, BLOCK, *[delta("twelve bytes")] * 300_000, STOP):
        answer.feed(event)
    assert answer.finish().content == (Text("twelve bytes" * 300_000),)


def test_an_event_that_does_not_end_is_given_up() -> None:
    """Whether its bytes come in one line, in many, or in comments."""
    for piece in (b"x" * 4096, b"data: " + b"x" * 4096 + b"\n", b": " + b"x" * 4096 + b"\n"):
        reader = EventReader()
        with pytest.raises(ModelResponseInvalid, match="an event of the answer has more than"):
            for _ in range(DOCUMENT_BYTES // 4096 + 2):
                assert not list(reader.feed(piece))


def test_an_answer_that_does_not_end_is_given_up() -> None:
    """Many small events are bounded together, also those that say nothing."""
    reader = EventReader()
    piece = encode_event({"type": "ping", "padding": "x" * 65_536})
    with pytest.raises(ModelResponseInvalid, match="the answer has more than"):
        for _ in range(ANSWER_BYTES // len(piece) + 2):
            assert not list(reader.feed(piece))


def test_blocks_without_end_are_given_up() -> None:
    """Each costs memory, even an empty one."""

    def blocks() -> Iterator[dict[str, Any]]:
        for index in range(MOST_BLOCKS + 1):
            yield {**BLOCK, "index": index}

    answer = Assembler()
    answer.feed(START)
    with pytest.raises(ModelResponseInvalid, match="more than 10,000 blocks"):
        for event in blocks():
            answer.feed(event)


def test_values_without_end_are_given_up() -> None:
    """Each costs many times its bytes once it is read; those of a call may come in pieces, and within a text."""
    arguments = {"type": "input_json_delta", "partial_json": "[]," * 100_000}
    for piece in (
        {"type": "content_block_delta", "index": 0, "delta": arguments},
        {**BLOCK, "content_block": {"type": "web_search_tool_result", "content": [[]] * 100_000}},
    ):
        reader, data = EventReader(), encode_event(piece)
        with pytest.raises(ModelResponseInvalid, match="the answer has more than 4,000,000 values"):
            for _ in range(ANSWER_BYTES // len(data)):
                list(reader.feed(data))
    least = encode_event(delta("x"))
    most = ANSWER_BYTES // len(least) * sum(map(least.count, b"[{,"))
    assert most < MOST_VALUES, "an answer in the shortest pieces may have as many bytes as any other"


# --- through the real SDK ---------------------------------------------------------------------------------------------


@cache
def bomb() -> bytes:
    """64 MB that are 64 kB as they are sent."""
    return gzip.compress(b"\0" * 64 * 2**20, 9)


@pytest.mark.parametrize(
    ("status", "headers"), [(400, PLAIN), (200, PLAIN), (200, {"content-type": "text/event-stream"})]
)
def test_a_small_body_does_not_become_a_large_one(run_async: RunAsync, status: int, headers: dict[str, str]) -> None:
    """Nothing is uncompressed that was not asked for: 64 kB that stand for 64 MB stay 64 kB."""
    assert len(bomb()) < 70_000
    error, peak = run_async(outcome, Raw(status, {**headers, "content-encoding": "gzip"}, bomb()))
    assert isinstance(error, ModelRequestRejected if status == 400 else ModelResponseInvalid)
    assert peak < 4 * 2**20


def test_a_long_error_is_neither_read_nor_kept_whole(run_async: RunAsync) -> None:
    """Memory and message stay small, and what stands at the beginning is still understood."""
    body = msgspec.json.encode({"error": {"type": "invalid_request_error", "message": "no " * 2_000_000}})
    error, peak = run_async(outcome, Raw(400, PLAIN, body))
    assert type(error) is ModelRequestRejected
    assert "invalid_request_error" in str(error)
    assert len(str(error)) < ERROR_CHARS + 200
    assert peak < 4 * 2**20 + 2 * ERROR_BYTES


def test_a_long_error_inside_a_stream_is_cut(run_async: RunAsync) -> None:
    """The journal keeps what a server said, so it must not say too much."""
    event = {"type": "error", "error": {"type": "api_error", "message": "sorry " * 500_000}}
    error, _ = run_async(outcome, Raw(body=encode_event(event)))
    assert type(error) is ModelUnavailable
    assert len(str(error)) < ERROR_CHARS + 200


def test_an_answer_without_streaming_is_bounded(run_async: RunAsync) -> None:
    """A gateway's JSON is one document."""
    error, _ = run_async(outcome, Raw(200, PLAIN, b" " * (DOCUMENT_BYTES + 1)))
    assert type(error) is ModelResponseInvalid
    assert "more than 8,388,608 bytes" in str(error)


@pytest.mark.parametrize(
    "event",
    [{"type": "weather", "wind": 3}, delta(""), {"type": "content_block_stop", "index": 0}, {"type": "ping"}],
    ids=lambda event: str(event["type"]),
)
def test_events_that_say_nothing_do_not_keep_a_call_alive(run_async: RunAsync, event: dict[str, Any]) -> None:
    """Unknown events and empty pieces are no more content than pings are."""
    stall = Stall(after=3, pings=0.01, event=event)
    error, _ = run_async(partial(outcome, stall, content_idle_timeout=0.2))
    assert type(error) is ModelTimeout
    assert "no content for 0.2 s" in str(error)


def test_pieces_that_say_something_keep_a_call_alive(run_async: RunAsync) -> None:
    """Negative control: with content the same stream goes on until the bound of the whole attempt."""
    stall = Stall(after=3, pings=0.01, event=delta("x"))
    error, _ = run_async(partial(outcome, stall, content_idle_timeout=4.0, request_timeout=4.5))
    assert type(error) is ModelTimeout
    assert "request_timeout=4.5" in str(error)


# --- redirects --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(run_async: RunAsync, status: int) -> None:
    """The other server receives nothing, neither prompt nor key, and the error names its host. There is no retry."""

    async def main() -> None:
        answers = FunctionModel(lambda _: "fine")
        async with open_messages_server(answers) as first, open_messages_server(answers) as second:

            def pointing(server: MessagesServer) -> Raw:
                return Raw(status, {"location": f"{server.url.replace('127.0.0.1', 'localhost')}/v1/messages"})

            model = AnthropicModel(NAME, base_url=first.url, api_key="sk-ant-test-0123456789")
            first.inject(pointing(second), pointing(second))
            with pytest.raises(ModelUnavailable, match=f"answered {status} and points to host 'localhost'"):
                await model.complete(REQUEST)
            with pytest.raises(ModelUnavailable, match="redirects are not followed"):
                await model.count_tokens(REQUEST)
            await model.aclose()
            assert len(first.exchanges) == 2
            assert second.exchanges == []

    run_async(main)


def test_an_http_client_that_follows_redirects_does_not_here(run_async: RunAsync) -> None:
    """Also where the caller brings an own client, which is free to follow for other requests."""
    import httpx2

    async def main() -> None:
        answers = FunctionModel(lambda _: "fine")
        async with open_messages_server(answers) as first, open_messages_server(answers) as second:
            async with httpx2.AsyncClient(follow_redirects=True) as http:
                model = AnthropicModel(NAME, base_url=first.url, http_client=http)
                first.inject(Raw(307, {"location": f"{second.url}/v1/messages"}))
                with pytest.raises(ModelUnavailable, match="redirects are not followed"):
                    await model.complete(REQUEST)
            assert second.exchanges == []

    run_async(main)


def test_a_password_in_the_address_is_told_to_nobody(run_async: RunAsync) -> None:
    """Messages and the journal name the server, not who we are there."""

    async def main() -> None:
        async with open_messages_server(FunctionModel(lambda _: "fine"), faults=[Raw(400, PLAIN, b"{}")]) as server:
            url = server.url.replace("http://", "http://me:hush-hush@")
            model = AnthropicModel(NAME, base_url=url, retry=ONCE)
            assert model.server == server.url
            with pytest.raises(ModelRequestRejected) as caught:
                await model.complete(REQUEST)
            assert model.server == server.url
            assert "hush" not in str(caught.value)
            await model.aclose()

    run_async(main)
