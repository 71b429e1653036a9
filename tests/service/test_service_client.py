"""What commands ask a service with: it reads what there is, and never waits long for what is none."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import httpx2
import msgspec
import pytest
from service_parts import open_client

from patience import PATIENCE
from repertory.cli.databases import find_id
from repertory.errors import ModelUnavailable, QueueFull, RepertoryError, RunNotFound, ServiceGone, ServiceUnavailable
from repertory.runs.streaming import TextStreamed
from repertory.service import client as client_module
from repertory.service.client import ServiceClient
from repertory.service.client import open_client as ask
from repertory.service.places import Place
from repertory.service.views import ServiceView
from repertory.testing import FunctionModel, ScriptedModel

WORDS = "one\u2028two\u2029three\x85four\x0bfive\x1csix\r\nseven\n\neight"
VIEW = ServiceView(version="1", database="a.db", pid=1, started_at=1.0, seq=1, resuming=False, going=0)
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


@asynccontextmanager
async def odd_service(folder: Path, said: bytes) -> AsyncIterator[ServiceClient]:
    """A client of something that says who it is, and to everything else the same, and then nothing."""
    greeting = msgspec.json.encode(VIEW)

    async def answer(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(greeting)
            await stream.receive()
            await stream.send(head + greeting)
            await stream.receive()
            await stream.send(said)
            await anyio.sleep_forever()

    async with await anyio.create_unix_listener(folder / "s") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        async with ask(Place(socket=str(folder / "s"))) as client:
            yield client
        tasks.cancel_scope.cancel()


def test_a_database_whose_path_is_no_utf8_is_known_again(short: Path, run_async: Any) -> None:
    """Though its service can name it in JSON only with a mark for what is none."""

    async def main() -> None:
        folder = short / "caf\udce9"
        folder.mkdir()
        async with (
            open_client(folder, ScriptedModel([]), database=str(folder / "r.db")) as service,
            ask(Place(socket=str(service.address)), database=folder / "r.db") as client,
        ):
            assert (await client.list_runs()).runs == []

    run_async(main)


def test_a_port_where_no_service_ever_was_is_the_news(tmp_path: Path, run_async: Any) -> None:
    """And not the file of its token, which none has made."""

    async def main() -> None:
        with socket.socket() as taken:  # bound, so that nobody else comes there, and refusing who connects
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
            with pytest.raises(ServiceUnavailable, match=rf"^no service answers at 127\.0\.0\.1:{port} .*serve"):
                async with ask(Place(port=port, token_file=str(tmp_path / "none"))):
                    pass

    run_async(main)


def test_what_ends_a_line_for_python_ends_none_of_a_stream(short: Path, run_async: Any) -> None:
    """Texts come whole whatever characters they hold: from the model, and as what somebody says."""

    async def main() -> None:
        async with (
            open_client(short, ScriptedModel([WORDS])) as service,
            ask(Place(socket=str(service.address))) as client,
        ):
            run_id = await client.start("clerk", f"Say {WORDS}")
            async with aclosing(client.stream(run_id)) as pieces:
                texts = [piece.text async for piece in pieces if isinstance(piece, TextStreamed)]
            assert "".join(texts) in ("", WORDS)  # it may have ended before anybody read along
            async with aclosing(client.follow()) as events:
                async for event in events:
                    if event.type == "RunSpawned":
                        assert event.body["task"] == f"Say {WORDS}"
                    if event.type == "ModelAnswered":
                        assert event.body["text"] == WORDS
                        break

    run_async(main)


@pytest.mark.parametrize("data", [b"not JSON", b'{"seq": "one"}', b"\xff\xfe", b"[" * 100_000])
def test_a_stream_of_something_else_is_said_to_be_one(short: Path, run_async: Any, data: bytes) -> None:
    """As an answer that is none."""

    async def main() -> None:
        async with odd_service(short, STREAM + b"data: %b\n\n" % data) as client:
            with pytest.raises(ServiceUnavailable, match="no service of this version"):
                async with aclosing(client.follow()) as events:
                    await anext(events)

    run_async(main)


def test_who_gets_no_answer_learns_what_may_have_happened(short: Path, run_async: Any) -> None:
    """Whoever asked for a run again, as if there were none, would have two."""

    async def main() -> None:
        asked: list[tuple[Callable[[ServiceClient], Awaitable[object]], str]] = [
            (lambda it: it.start("clerk", "Go."), r"if the run began all the same, it is run-[0-9a-z]+-[0-9a-z]+:"),
            (lambda it: it.fork("run-1", None, text=None), "if the run began all the same, it is run-"),
            (
                lambda it: it.send("run-1", "Hurry."),
                r"may have come all the same: repertory logs run-1 --db \S+ shows it",
            ),
        ]
        for number, (ask_for, words) in enumerate(asked):
            (short / f"{number}").mkdir()
            async with odd_service(short / f"{number}", b"half an answer\r\n\r\n") as client:
                with pytest.raises(ServiceGone, match=words):
                    await ask_for(client)

    run_async(main)


def test_a_refusal_that_never_ends_is_not_waited_for(
    short: Path, run_async: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream may be silent for long, what is said instead of it may not."""

    async def main() -> None:
        refusal = b"HTTP/1.1 503 Busy\r\ncontent-length: 100\r\n\r\n{"
        async with odd_service(short, refusal) as client:
            monkeypatch.setattr(client_module, "ANSWER", 0.2)
            with pytest.raises(ServiceUnavailable, match="did not answer"):
                async with aclosing(client.follow()) as events:
                    await anext(events)

    run_async(main)


@pytest.mark.parametrize(
    ("said", "words"), [(b"", "''"), (b"Internal Server Error\n", "'Internal"), (b'{"error": "\xff"}', "'{")]
)
def test_a_refusal_that_does_not_say_why_is_named_by_its_status(
    short: Path, run_async: Any, said: bytes, words: str
) -> None:
    """And by who gave it. An error without any words would explain nothing."""
    refusal = b"HTTP/1.1 500 Oh\r\ncontent-length: %d\r\n\r\n%b" % (len(said), said)

    async def main() -> None:
        async with odd_service(short, refusal) as client:
            with pytest.raises(RepertoryError, match=f"the service at unix:.* answered 500: {words}"):
                await client.waiting()

    run_async(main)


def test_runs_are_found_however_many_came_after_them(
    short: Path, run_async: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the page of trees that one request has: by any part of an id, as the newest to continue, in the list."""

    def fail_once(request: object) -> str:
        if "fail" in str(request):
            raise ModelUnavailable("the server failed")
        return "Done."

    async def main() -> None:
        monkeypatch.setattr(client_module, "MAX_TREES", 2)
        async with (
            open_client(short, FunctionModel(fail_once)) as service,
            ask(Place(socket=str(service.address))) as client,
        ):
            assert await find_id(client, None) is None
            for run_id, task in (("first-1", "fail"), *((f"later-{number}", "x") for number in range(5))):
                await service.post("/runs", {"agent": "clerk", "task": task, "run_id": run_id}, 201)
                await service.get(f"/runs/{run_id}/result?wait=20")
            assert await client.newest_resumable() == "first-1"
            assert await find_id(client, "rst-") == "first-1"
            made = await client.start("clerk", "x")
            assert await find_id(client, made) == await find_id(client, made[:-1]) == made
            asked: list[str] = []

            async def note(request: httpx2.Request) -> None:
                asked.append(request.url.raw_path.decode())

            client._http.event_hooks["request"].append(note)
            assert await find_id(client, "first-1") == "first-1"
            assert asked == ["/runs/first-1/result"]  # a whole id needs no list of thousands
            assert await find_id(client, "irst-") == "first-1"
            assert asked[2:] == ["/runs?limit=2&part=irst-"]  # nor does a part of one
            listed = await client.list_runs(9)
            assert [run.id for run in listed.runs] == ["first-1", *(f"later-{number}" for number in range(5)), made]
            assert listed.more == 0
            assert await find_id(client, None) == made
            assert await find_id(client, "none") is await find_id(client, "\udcff") is None
            with pytest.raises(RunNotFound, match="fits more than one run"):
                await find_id(client, "-1")

    run_async(main)


def test_a_list_goes_on_though_runs_are_removed_between_two_pages(
    short: Path, run_async: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next page begins behind whichever of the page's runs is still there."""

    async def main() -> None:
        monkeypatch.setattr(client_module, "MAX_TREES", 2)
        async with (
            open_client(short, ScriptedModel(["Done."] * 6)) as service,
            ask(Place(socket=str(service.address))) as client,
        ):
            for number in range(6):
                await service.post("/runs", {"agent": "clerk", "task": "x", "run_id": f"r-{number}"}, 201)
                await service.control.wait_ended(f"r-{number}", PATIENCE)
            leaving = ["r-4"]

            async def remove(request: httpx2.Request) -> None:
                while "before" in request.url.params and leaving:
                    await service.control.remove(leaving.pop())

            client._http.event_hooks["request"].append(remove)
            assert [run.id for run in (await client.list_runs(9)).runs] == [f"r-{number}" for number in range(6)]
            leaving += ["r-3", "r-5"]
            with pytest.raises(RunNotFound, match="it may have been removed"):
                await client.list_runs(9)

    run_async(main)


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [("7", 7.0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0), ("nan", 0.0), ("later", 0.0), ("-1", 0.0)],
)
def test_a_full_queue_asks_to_wait_in_any_form(short: Path, run_async: Any, asked: str, seconds: float) -> None:
    """A proxy before the service may name a date; what cannot be read asks for nothing."""
    refusal = f"HTTP/1.1 429 Busy\r\nretry-after: {asked}\r\ncontent-length: 4\r\n\r\nbusy".encode()

    async def main() -> None:
        async with odd_service(short, refusal) as client:
            with pytest.raises(QueueFull, match="busy") as caught:
                await client.start("clerk", "x")
            assert caught.value.retry_after == seconds

    run_async(main)
