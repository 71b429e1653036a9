"""The Messages server over real sockets: what any client sees, also one that is not ours."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.abc
import anyio.to_thread
import h11
import pytest

from backends import RunAsync
from patience import PATIENCE
from repertory.errors import ConfigurationError
from repertory.llm import Text, ToolUse, profile_for
from repertory.offline import OfflineModel
from repertory.testing import FunctionModel, ScriptedModel, open_messages_server
from repertory.testing.faults import Drip, Fault, Refuse, Reset, Truncate, overloaded
from repertory.testing.http import Gone, Reply
from repertory.testing.wire import decode_request

HEADERS = {"content-type": "application/json", "anthropic-version": "2026-10-21"}
BODY: dict[str, Any] = {
    "model": "claude-sonnet-4-6",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "hello"}],
}


def post(
    url: str, body: Any, *, path: str = "/v1/messages", headers: dict[str, str] | None = None, method: str = "POST"
) -> tuple[int, dict[str, str], str]:
    """Ask as a plain client does, from a plain thread."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE)
    try:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data, HEADERS if headers is None else headers)
        response = connection.getresponse()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read().decode()
    finally:
        connection.close()


def test_a_plain_client_gets_an_answer(run_async: RunAsync) -> None:
    """One JSON object, with usage and ids; the same seed and requests give the same bytes."""

    async def main() -> None:
        texts = []
        for _ in range(2):
            async with open_messages_server(
                lambda _: [Text("hi"), ToolUse("t", "f", {})], seed=7, thinks=True
            ) as server:
                status, headers, text = await anyio.to_thread.run_sync(lambda: post(server.url, BODY))
                assert status == 200
                assert headers["request-id"].startswith("req_")
                texts.append(text)
        answer = json.loads(texts[0])
        assert texts[0] == texts[1]
        assert [block["type"] for block in answer["content"]] == ["thinking", "text", "tool_use"]
        assert answer["stop_reason"] == "tool_use"
        assert answer["usage"]["input_tokens"] > 0
        assert answer["id"].startswith("msg_")

    run_async(main)


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        ([Text("x" * 100)], [{"type": "text", "text": "x" * 12}]),
        ([Text("x" * 12), Text("y")], [{"type": "text", "text": "x" * 12}]),
        (
            [ToolUse("call_1", "add", {"a": 1, "b": 2})],
            [{"type": "tool_use", "id": "call_1", "name": "add", "input": {}}],
        ),
    ],
)
def test_an_answer_ends_at_its_limit(run_async: RunAsync, answer: Any, kept: list[dict[str, Any]]) -> None:
    """It is cut off there, as by the API, and billed as far as it went."""

    async def main() -> None:
        async with open_messages_server(lambda _: answer) as server:
            status, _, text = await anyio.to_thread.run_sync(post, server.url, {**BODY, "max_tokens": 3})
            said = json.loads(text)
            assert (status, said["stop_reason"], said["content"]) == (200, "max_tokens", kept)
            assert said["usage"]["output_tokens"] == 3

    run_async(main)


def test_a_stream_has_the_events_that_the_api_documents(run_async: RunAsync) -> None:
    """Order, names, a ping, and usage at both ends."""

    async def main() -> None:
        async with open_messages_server(ScriptedModel(["hello " * 20])) as server:
            status, headers, text = await anyio.to_thread.run_sync(lambda: post(server.url, {**BODY, "stream": True}))
        assert status == 200
        assert headers["content-type"].startswith("text/event-stream")
        events = [part.split("\n") for part in text.strip().split("\n\n")]
        names = [name.removeprefix("event: ") for name, _ in events]
        data = [json.loads(line.removeprefix("data: ")) for _, line in events]
        assert [event["type"] for event in data] == names
        assert names[:3] == ["message_start", "ping", "content_block_start"]
        assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
        assert set(names[3:-3]) == {"content_block_delta"}
        assert "cache_creation" in data[0]["message"]["usage"]
        assert data[-2]["usage"]["output_tokens"] > 1

    run_async(main)


def test_counting_tokens_agrees_with_the_bill(run_async: RunAsync) -> None:
    """What the count says is what the same request is billed for."""

    async def main() -> None:
        async with open_messages_server(FunctionModel(lambda _: "ok")) as server:

            def ask() -> tuple[int, int]:
                count = {key: value for key, value in BODY.items() if key != "max_tokens"}
                counted = json.loads(post(server.url, count, path="/v1/messages/count_tokens?beta=true")[2])
                return counted["input_tokens"], json.loads(post(server.url, BODY)[2])["usage"]["input_tokens"]

            counted, billed = await anyio.to_thread.run_sync(ask)
            assert counted == billed
            assert server.usage.input_tokens == billed

    run_async(main)


@pytest.mark.parametrize(
    ("change", "status", "kind", "says"),
    [
        ({"path": "/v2/messages"}, 404, "not_found_error", "Not found: POST /v2/messages"),
        ({"method": "GET"}, 404, "not_found_error", "Not found: GET"),
        ({"body": b"{"}, 400, "invalid_request_error", "not valid JSON"),
        ({"body": [1]}, 400, "invalid_request_error", "not valid JSON"),
        ({"headers": {}}, 401, "authentication_error", "x-api-key header is required"),
        ({"body": {**BODY, "model": "claude-9"}}, 404, "not_found_error", "model: claude-9"),
        ({"body": {**BODY, "model": "claude-opus-5"}}, 404, "not_found_error", "model: claude-opus-5"),
        ({"body": {"max_tokens": 1, "messages": []}}, 400, "invalid_request_error", "model: Field required"),
        ({"body": {**BODY, "messages": []}}, 400, "invalid_request_error", "at least one message"),
        (
            {"body": {**BODY, "max_tokens": 64_001, "messages": [{"role": "user", "content": "x" * 3_800_000}]}},
            400,
            "invalid_request_error",
            "exceed context limit",
        ),
    ],
)
def test_a_refusal_has_status_type_and_words(
    run_async: RunAsync, change: dict[str, Any], status: int, kind: str, says: str
) -> None:
    """Errors look like the API's, and are recorded for the test to see."""

    async def main() -> None:
        profile = profile_for("claude-sonnet-4-6")
        async with open_messages_server(FunctionModel(lambda _: "ok"), profile=profile, api_key="k") as server:
            arguments = {"headers": {**HEADERS, "x-api-key": "k"}, "body": BODY, **change}
            body = arguments.pop("body")
            got, headers, text = await anyio.to_thread.run_sync(lambda: post(server.url, body, **arguments))
            assert got == status
            error = json.loads(text)
            assert error["type"] == "error"
            assert error["error"]["type"] == kind
            assert says in error["error"]["message"]
            assert error["request_id"] == headers["request-id"]
            [exchange] = server.exchanges
            assert (exchange.status, exchange.message) == (status, error["error"]["message"])

    run_async(main)


def test_faults_spoil_one_request_each_in_order(run_async: RunAsync) -> None:
    """A refusal with its headers, a pass, a reset; then all is well again, and the record tells."""

    async def main() -> None:
        refuse = Refuse(429, "rate_limit_error", "slow down", {"retry-after": "3"})
        async with open_messages_server(FunctionModel(lambda _: "ok"), faults=[refuse, None]) as server:
            server.inject(Reset())

            def ask() -> list[Any]:
                first, second = post(server.url, BODY), post(server.url, BODY)
                with pytest.raises(ConnectionError):
                    post(server.url, BODY)
                return [first, second, post(server.url, BODY)]

            (status, headers, _), second, fourth = await anyio.to_thread.run_sync(ask)
            assert (status, headers["retry-after"]) == (429, "3")
            assert second[0] == fourth[0] == 200
            assert [exchange.status for exchange in server.exchanges] == [429, 200, 0, 200]
            assert [exchange.fault for exchange in server.exchanges] == [refuse, None, Reset(), None]

    run_async(main)


def test_a_reset_of_a_connection_that_the_client_has_closed_ends_it_alone(run_async: RunAsync) -> None:
    """A client that was cancelled meanwhile does not take the server down."""

    async def main() -> None:
        async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
            port = listener.extra(anyio.abc.SocketAttribute.local_port)
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                await stream.aclose()
                with pytest.raises(Gone):
                    Reply(stream, h11.Connection(h11.SERVER)).reset()

    run_async(main)


def test_a_client_that_is_gone_before_it_is_turned_away_ends_its_connection_alone(run_async: RunAsync) -> None:
    """It resets the connection once the refusal comes, as one that gives up an attempt to speak TLS does."""

    async def main() -> None:
        async with open_messages_server(FunctionModel(lambda _: "ok")) as server:
            host, port = server.url.removeprefix("http://").split(":")
            for _ in range(20):  # the server's next step may come first
                async with await anyio.connect_tcp(host, int(port)) as stream:
                    await stream.send(b"\x16\x03\x01 no HTTP\r\n\r\n")
                    await stream.receive()
                    with pytest.raises(Gone):
                        Reply(stream, h11.Connection(h11.SERVER)).reset()
            assert (await anyio.to_thread.run_sync(lambda: post(server.url, BODY)))[0] == 200

    run_async(main)


def has_ipv6() -> bool:
    """Whether this machine has it; some containers have not."""
    try:
        with socket.socket(socket.AF_INET6) as tried:
            tried.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    "host", ["localhost", pytest.param("::1", marks=pytest.mark.skipif(not has_ipv6(), reason="needs IPv6"))]
)
def test_its_address_can_be_asked_whatever_it_listens_on(host: str, run_async: RunAsync) -> None:
    """A name, and an address with colons in it, which stands in brackets before a port."""

    async def main() -> None:
        async with open_messages_server(OfflineModel(), host=host) as server:
            assert urlsplit(server.url).hostname == host
            status, *_ = await anyio.to_thread.run_sync(lambda: post(server.url, BODY))
            assert status == 200

    run_async(main)


def test_many_threads_at_once_are_served(run_async: RunAsync) -> None:
    """Thirty plain threads, each with its own connection and its own answer."""

    async def main() -> None:
        async with open_messages_server(lambda asked: f"you said {asked.messages[0].content[0].text}") as server:  # type: ignore[union-attr]
            answers: dict[int, str] = {}

            def ask(number: int) -> None:
                body = {**BODY, "messages": [{"role": "user", "content": f"number {number}"}]}
                answers[number] = json.loads(post(server.url, body)[2])["content"][0]["text"]

            def ask_all() -> None:
                threads = [threading.Thread(target=ask, args=(number,)) for number in range(30)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()

            await anyio.to_thread.run_sync(ask_all)
            assert answers == {number: f"you said number {number}" for number in range(30)}

    run_async(main)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GARBAGE\r\n\r\n", b"400"),
        (b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: zero\r\n\r\n", b"400"),
        (b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 300_000, b"431"),
        (b"", b""),
        (b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nhalf", b"400"),
    ],
)
def test_a_client_that_speaks_no_http_is_turned_away(run_async: RunAsync, sent: bytes, status: bytes) -> None:
    """Nothing a client sends, or stops sending, disturbs the server: the next one is served."""

    async def main() -> None:
        async with open_messages_server(FunctionModel(lambda _: "ok")) as server:

            def speak() -> bytes:
                host, port = server.url.removeprefix("http://").split(":")
                with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
                    connection.sendall(sent)
                    connection.shutdown(socket.SHUT_WR)
                    said = b""
                    try:
                        while data := connection.recv(65_536):
                            said += data
                    except ConnectionError:
                        pass
                    return said

            said = await anyio.to_thread.run_sync(speak)
            assert said.split(b" ")[1:2] == ([status] if status else [])
            assert (await anyio.to_thread.run_sync(lambda: post(server.url, BODY)))[0] == 200

    run_async(main)


def test_the_tests_own_error_comes_out_as_it_is(run_async: RunAsync) -> None:
    """A failing assertion is not wrapped in a group, in the block or in a responder, whose error ends the block."""

    async def main() -> None:
        with pytest.raises(LookupError, match="mine"):
            async with open_messages_server(FunctionModel(lambda _: "ok")):
                raise LookupError("mine")
        with pytest.raises(AssertionError, match="0 steps"):
            async with open_messages_server(ScriptedModel([])) as server:
                with pytest.raises(ConnectionError):
                    await anyio.to_thread.run_sync(lambda: post(server.url, BODY))
                await anyio.sleep_forever()

    run_async(main)


def test_what_is_no_fault_is_refused(run_async: RunAsync) -> None:
    """Parentheses are soon forgotten, and a test that believes in a fault that never comes passes."""
    wrong: tuple[Any, ...] = ([overloaded], [Truncate], ["overloaded"], overloaded())

    async def main() -> None:
        for faults in wrong:
            with pytest.raises(ConfigurationError, match="fault"):
                async with open_messages_server(FunctionModel(lambda _: "ok"), faults=faults):
                    raise LookupError("it was opened")

    run_async(main)


@pytest.mark.parametrize(
    ("fault", "streams", "says"),
    [
        (Truncate(after=9), True, "Truncate(after=9) comes after the end of the answer, which has 7 events"),
        (Truncate(after=7), True, "which has 7 events"),
        (Drip(0.0), False, "Drip(seconds=0.0) spoils a stream, and met a request that asks for none: /v1/messages"),
        (Reset(after=1), False, "spoils a stream"),
    ],
)
def test_a_fault_that_cannot_come_ends_the_test(run_async: RunAsync, fault: Fault, streams: bool, says: str) -> None:
    """It would pass without it; control: a fault at the last event comes."""

    async def main(fault: Fault) -> None:
        async with open_messages_server(FunctionModel(lambda _: "ok"), faults=[fault]) as server:
            body = {**BODY, "stream": streams}
            await anyio.to_thread.run_sync(lambda: post(server.url, body), abandon_on_cancel=True)

    with pytest.raises(ConfigurationError, match=re.escape(says)):
        run_async(main, fault)
    if streams:
        run_async(main, Truncate(after=6))


def test_a_request_is_read_as_it_was_sent() -> None:
    """Markers stay in the blocks, server tools are left out, and everything else is in the options."""
    marked = {"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}
    body = {
        **BODY,
        "system": [marked],
        "tools": [{"type": "web_search", "name": "w"}],
        "thinking": {"type": "adaptive"},
    }
    request = decode_request(body, ("beta-1",))
    assert request.system == (Text("s", extra={"cache_control": {"type": "ephemeral"}}),)
    assert request.tools == ()
    assert request.options == {"thinking": {"type": "adaptive"}}
    assert (request.betas, request.max_tokens) == (("beta-1",), 100)


def test_the_offline_model_answers_behind_the_server(run_async: RunAsync) -> None:
    """Any model is a responder."""

    async def main() -> None:
        async with open_messages_server(OfflineModel()) as server:
            body = {
                **BODY,
                "messages": [{"role": "user", "content": "Bees dance to tell where flowers are. Why do bees dance?"}],
            }
            text = await anyio.to_thread.run_sync(lambda: post(server.url, body)[2])
            assert "Bees dance to tell where flowers are." in text

    run_async(main)


def test_a_model_that_nobody_knows_is_served_by_the_profile_that_was_handed_in(run_async: RunAsync) -> None:
    """So a test can play a local server's model; without a profile it is refused, as a name that is spelled wrongly."""

    async def main() -> None:
        body = {**BODY, "model": "qwen3"}
        for profile, status in ((profile_for("qwen3"), 200), (None, 404)):
            async with open_messages_server(FunctionModel(lambda _: "ok"), profile=profile) as server:
                assert (await anyio.to_thread.run_sync(post, server.url, body))[0] == status

    run_async(main)
