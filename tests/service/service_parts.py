"""A service in this process, at a real socket, and a client for it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import h11
import httpx2
import msgspec

import repertory as rp
from patience import PATIENCE
from repertory.llm.model import ModelRequest
from repertory.record import FINAL_STATES
from repertory.service import Access, Control, Offers, create_app, serve_http
from repertory.service.sockets import tcp_listener, unix_listener
from repertory.testing import FunctionModel, call

JSON = {"content-type": "application/json"}
TOKEN = "t" * 43


@rp.tool(effect="pure", repeatable=False)
async def look_up(word: str) -> str:
    """Look a word up.

    Args:
        word: The word.
    """
    return f"{word} has {len(word)} letters"


clerk = rp.Agent("clerk", instructions="You are a clerk.\nYou are exact.", tools=[look_up])
scribe = rp.Agent("scribe", instructions="You write.")


class Gate:
    """A model that looks up one word per iteration, and answers once it is let go."""

    def __init__(self, *, answer_after: int | None = None) -> None:
        self.model = FunctionModel(self.answer)
        self.calls = 0
        self.answer_after = answer_after
        self.hold = False
        self.held = anyio.Event()
        self.go = anyio.Event()

    async def answer(self, request: ModelRequest) -> Any:
        """One answer."""
        self.calls += 1
        if self.hold:
            self.held.set()
            await self.go.wait()
        await anyio.sleep(0)
        if self.answer_after is not None and self.calls > self.answer_after:
            return "It is done."
        return call("look_up", word="w" * self.calls)


class Client:
    """A client of one service; also gives what was reported."""

    def __init__(self, http: httpx2.AsyncClient, control: Control, reports: list[str], access: Access) -> None:
        self.http = http
        self.control = control
        self.reports = reports
        self.access = access
        self.address: Any = None
        self.stopping = anyio.Event()

    async def get(self, path: str, status: int = 200, **headers: str) -> Any:
        """GET, expecting a status; the answer's JSON."""
        answer = await self.http.get(path, headers=headers)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def post(self, path: str, body: Any, status: int = 202) -> Any:
        """POST, expecting a status; the answer's JSON."""
        answer = await self.http.post(path, content=msgspec.json.encode(body), headers=JSON)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def start(self, task: str = "Count the letters.", agent: str = "clerk") -> str:
        """Start a run; its id."""
        return str((await self.post("/runs", {"agent": agent, "task": task}, 201))["id"])

    async def wait_for(self, run_id: str, *states: str) -> Any:
        """Follow a run until it is in one of the states, and has left the process if it has ended; its details then."""
        token = None if isinstance(self.address, str) else TOKEN
        async with self.follow(f"/runs/{run_id}/events", token=token) as stream:
            while True:
                event = await stream.event()
                if event["type"] == "StateChanged" and event["body"]["state"] in states:
                    if event["body"]["state"] in FINAL_STATES:
                        await self.control.wait_ended(run_id, PATIENCE)
                    return await self.get(f"/runs/{run_id}")

    async def connect(self) -> anyio.abc.ByteStream:
        """A bare connection to the service."""
        if isinstance(self.address, str):
            return await anyio.connect_unix(self.address)
        return await anyio.connect_tcp(*self.address)

    @asynccontextmanager
    async def follow(
        self, path: str, *, last: int | None = None, token: str | None = None
    ) -> AsyncIterator[EventStream]:
        """An open event stream, after the event with the id ``last``."""
        host = "localhost" if isinstance(self.address, str) else f"localhost:{self.address[1]}"
        headers = {"host": host} | ({} if last is None else {"last-event-id": str(last)})
        async with await self.connect() as connection:
            stream = EventStream(connection)
            await stream.begin(path, headers | ({} if token is None else {"authorization": f"Bearer {token}"}))
            yield stream


class EventStream:
    """Reads an event stream as the standard says, over a connection of its own."""

    def __init__(self, connection: anyio.abc.ByteStream) -> None:
        self._connection = connection
        self._http = h11.Connection(h11.CLIENT)
        self._text = ""
        self.last: int | None = None
        self.status = 0
        self.headers: dict[str, str] = {}

    async def begin(self, path: str, headers: dict[str, str]) -> None:
        """Ask for the stream, and read the head of the answer."""
        asked = h11.Request(method="GET", target=path, headers=list(headers.items()))
        await self._connection.send(self._http.send(asked) + self._http.send(h11.EndOfMessage()))
        head = await self._next()
        assert isinstance(head, h11.Response)
        self.status = head.status_code
        self.headers = {name.decode(): value.decode() for name, value in head.headers}

    async def _next(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            try:
                self._http.receive_data(await self._connection.receive())
            except anyio.EndOfStream:
                self._http.receive_data(b"")
        return event

    async def block(self) -> dict[str, str] | None:
        """The fields of the next block; None at the end."""
        while "\n\n" not in self._text:
            event = await self._next()
            if not isinstance(event, h11.Data):
                return None
            self._text += event.data.decode()
        block, _, self._text = self._text.partition("\n\n")
        return dict(line.split(": ", 1) for line in block.split("\n"))

    async def event(self) -> Any:
        """The next event of a run; raises ``EOFError`` at the end."""
        while (fields := await self.block()) is not None:
            if "event" not in fields and "data" in fields:
                data = json.loads(fields["data"])
                assert int(fields["id"]) == data["seq"]
                self.last = data["seq"]
                return data
        raise EOFError


@asynccontextmanager
async def open_client(
    folder: Path,
    model: Any,
    *,
    agents: Sequence[str] = ("service_parts:clerk", "service_parts:scribe"),
    database: str | None = None,
    root: Path | None = None,
    tcp: bool = False,
    ping: float = 15.0,
    max_followers: int = 64,
    drain_timeout: float = 5.0,
    **limits: Any,
) -> AsyncIterator[Client]:
    """A service and its client, until the end of the block."""
    reports: list[str] = []
    opened = tcp_listener(0) if tcp else unix_listener(folder / "s")
    async with rp.open_supervisor(
        database, model=model, durability="process", drain_timeout=drain_timeout
    ) as supervisor:
        control = Control(supervisor, Offers(agents, root=root))
        with opened as listener:
            address = listener.getsockname()
            port = address[1] if tcp else None
            access = Access(port=port, token=TOKEN if tcp else None)
            app = create_app(control, access, ping=ping, max_followers=max_followers)
            transport = httpx2.AsyncHTTPTransport(uds=None if tcp else str(address))
            headers = {"authorization": f"Bearer {TOKEN}"} if tcp else {}
            base = f"http://localhost:{port}" if tcp else "http://localhost"
            async with anyio.create_task_group() as tasks:
                async with httpx2.AsyncClient(
                    transport=transport, base_url=base, headers=headers, timeout=PATIENCE
                ) as http:
                    client = Client(http, control, reports, access)
                    client.address = address
                    tasks.start_soon(control.run)
                    stopping = client.stopping
                    tasks.start_soon(
                        partial(serve_http, app, listener, stopping=stopping, report=reports.append, **limits)
                    )
                    yield client
                control.close()
                stopping.set()
