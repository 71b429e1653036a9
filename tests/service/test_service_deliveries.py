"""Webhooks over real HTTP: signed, in order, at least once, and nobody waits for a dead one."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import h11
import msgspec
import pytest

import repertory as rp
from patience import PATIENCE
from repertory.errors import ConfigurationError, RunNotFound
from repertory.service.deliveries import Backoff, Deliveries
from repertory.service.duties import Duties
from repertory.service.webhooks import Webhook, signature
from repertory.testing import FunctionModel

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SOON = Backoff(first=0.005, factor=1.5, most=0.05)
clerk = rp.Agent("clerk", instructions="You are a clerk.")
Answer = Callable[[dict[str, Any]], int]


class Receiver:
    """A server that keeps what it is posted, and answers with what a function says."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.answer: Answer = lambda body: 204
        self.headers: list[tuple[str, str]] = []
        self.url = ""
        self._news = anyio.Event()

    async def serve(self, stream: anyio.abc.SocketStream) -> None:
        """Answer one request."""
        async with stream:
            http = h11.Connection(h11.SERVER)
            head, body = None, b""
            while True:
                event = http.next_event()
                if event is h11.NEED_DATA:
                    try:
                        http.receive_data(await stream.receive())
                    except (anyio.EndOfStream, anyio.BrokenResourceError):
                        return
                elif isinstance(event, h11.Request):
                    head = event
                elif isinstance(event, h11.Data):
                    body += bytes(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    break
            assert head is not None
            headers = {name.decode(): value.decode() for name, value in head.headers}
            self.check(headers, body)
            said = json.loads(body)
            status = self.answer(said)
            self.got.append((headers, said))
            news, self._news = self._news, anyio.Event()
            news.set()
            response = h11.Response(status_code=status, headers=[("connection", "close"), *self.headers])
            await stream.send(http.send(response) + http.send(h11.EndOfMessage()))

    def check(self, headers: dict[str, str], body: bytes) -> None:
        """See that it is signed as the specification has it."""
        secret = base64.b64decode(SECRET.removeprefix("whsec_"))
        made = signature(secret, headers["webhook-id"], int(headers["webhook-timestamp"]), body)
        assert headers["webhook-signature"] == made
        assert headers["content-type"] == "application/json"

    async def wait(self, count: int) -> list[tuple[str, str]]:
        """The run and the state of each message, once there are so many."""
        while len(self.got) < count:
            await self._news.wait()
        return [(body["data"]["id"], body["data"]["state"]) for _, body in self.got]


@asynccontextmanager
async def receiving(monkeypatch: pytest.MonkeyPatch, receiver: Receiver | None = None) -> AsyncIterator[Receiver]:
    """A receiver until the end of the block."""
    monkeypatch.setenv("HOOK", SECRET)
    receiver = receiver or Receiver()
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        receiver.url = f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}/hook"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, receiver.serve)
            yield receiver
            tasks.cancel_scope.cancel()


async def notify(supervisor: rp.Supervisor, deliveries: Deliveries) -> None:
    """Say that something has happened, as a service does."""
    async for _ in supervisor.events():
        deliveries.notify()


@asynccontextmanager
async def telling(path: Path | None, *hooks: Webhook, backoff: Backoff = SOON) -> AsyncIterator[rp.Supervisor]:
    """A supervisor whose webhooks are served."""
    async with rp.open_supervisor(
        path, model=FunctionModel(lambda request: "Done."), durability="process"
    ) as supervisor:
        deliveries = Deliveries(supervisor.journal, Duties(supervisor), backoff=backoff)
        deliveries.set_webhooks(hooks)
        supervisor.deliveries = deliveries  # type: ignore[attr-defined]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(deliveries.run)
            tasks.start_soon(notify, supervisor, deliveries)
            while hooks and len(await supervisor.journal.read_webhooks()) < len(hooks):
                await anyio.sleep(0.005)
            yield supervisor
            tasks.cancel_scope.cancel()


async def finish(supervisor: rp.Supervisor, run_id: str) -> None:
    """Run something to its end."""
    run = await supervisor.spawn(clerk, "Count.", run_id=run_id)
    await run.wait_result()


async def outcomes(supervisor: rp.Supervisor) -> list[tuple[str, str, int]]:
    """Every attempt, oldest first."""
    found = await supervisor.journal.read_webhooks()
    return [(tried.run_id, tried.outcome, tried.attempt) for _, tried in reversed(found)]


def test_a_change_of_state_is_told_once_and_signed(run_async: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those states that are wanted; what there was before is not told."""

    async def main() -> None:
        async with receiving(monkeypatch) as receiver, telling(None) as supervisor:
            await finish(supervisor, "before")
            supervisor.deliveries.set_webhooks([Webhook(url=receiver.url, secret_env="HOOK", on=["done"])])  # type: ignore[attr-defined]
            while not await supervisor.journal.read_webhooks():
                await anyio.sleep(0.005)
            await finish(supervisor, "one")
            await finish(supervisor, "two")
            assert await receiver.wait(2) == [("one", "done"), ("two", "done")]
            headers, body = receiver.got[0]
            assert headers["webhook-id"].startswith("msg_")
            assert "." not in headers["webhook-id"]
            assert body["type"] == "run.done"
            assert body["timestamp"].endswith("Z")

    run_async(main)


@pytest.mark.parametrize("others_after", [0, 3, 6])
def test_what_fails_is_tried_again_with_the_same_id_and_others_do_not_wait(
    run_async: Any, monkeypatch: pytest.MonkeyPatch, others_after: int
) -> None:
    """Later changes of the run wait behind it, those of other runs arrive; a redirect is not followed.

    Also where it failed so often meanwhile that the address is taken to be down.
    """

    async def main() -> None:
        async with receiving(monkeypatch) as receiver:
            refused: list[str] = []

            def answer(body: dict[str, Any]) -> int:
                others = any(body["data"]["id"] == "good" for _, body in receiver.got)
                if body["data"]["id"] == "good" or (others and len(refused) >= 3):
                    return 200
                refused.append(body["data"]["id"])
                return 302

            receiver.answer, receiver.headers = answer, [("location", "http://127.0.0.1:1/")]
            slow = Backoff(first=0.1, factor=1.0, attempts=100_000)  # however long the others take
            hook = Webhook(url=receiver.url, secret_env="HOOK")
            async with telling(None, hook, backoff=slow) as supervisor:
                await finish(supervisor, "bad")
                run = await supervisor.spawn(clerk, "Count.", run_id="bad")
                await run.send("Go on.")
                await run.wait_result()
                await receiver.wait(others_after)
                await finish(supervisor, "good")
                told = await receiver.wait(1)
                while told[-2:] != [("bad", "running"), ("bad", "done")]:
                    told = await receiver.wait(len(told) + 1)
                of_bad = [state for run_id, state in told if run_id == "bad"]
                assert of_bad == ["done"] * (len(refused) + 1) + ["running", "done"]
                ids = [headers["webhook-id"] for headers, body in receiver.got if body["data"]["id"] == "bad"]
                assert len(set(ids[: len(refused) + 1])) == 1
                assert len(set(ids)) == 3

    run_async(main)


async def test_a_dead_address_costs_a_run_nothing_and_is_disabled_at_last(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing listens there; the log says so, and the next start tries again."""
    monkeypatch.setenv("HOOK", SECRET)
    hook = Webhook(url="http://127.0.0.1:1/", secret_env="HOOK")
    async with telling(None, hook, backoff=Backoff(first=0.001, most=0.002, attempts=4)) as supervisor:
        for number in range(3):
            await finish(supervisor, f"run-{number}")
        with anyio.fail_after(PATIENCE):
            while (await outcomes(supervisor))[-1][1] != "disabled":
                await anyio.sleep(0.005)
        await finish(supervisor, "later")
        assert ("run-0", "disabled", 4) in await outcomes(supervisor)
        assert "webhook.disabled" in caplog.text
        before = len(await outcomes(supervisor))
        supervisor.deliveries.set_webhooks([hook])  # type: ignore[attr-defined]
        with anyio.fail_after(PATIENCE):
            while len(await outcomes(supervisor)) == before:
                await anyio.sleep(0.005)


async def test_what_failed_is_tried_again_after_the_clock_was_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a year: the next attempt is not due in a year."""
    now = [2e9]
    async with (
        receiving(monkeypatch) as receiver,
        rp.open_supervisor(model=FunctionModel(lambda request: "Done."), durability="process") as supervisor,
        anyio.create_task_group() as tasks,
    ):
        receiver.answer = lambda body: 503 if now[0] == 2e9 else 200
        deliveries = Deliveries(
            supervisor.journal, Duties(supervisor), backoff=Backoff(first=100.0, most=100.0), clock=lambda: now[0]
        )
        deliveries.set_webhooks([Webhook(url=receiver.url, secret_env="HOOK")])
        tasks.start_soon(deliveries.run)
        tasks.start_soon(notify, supervisor, deliveries)
        while not await supervisor.journal.read_webhooks():
            await anyio.sleep(0.005)
        await finish(supervisor, "one")
        await receiver.wait(1)
        while ("one", "failed", 1) not in await outcomes(supervisor):
            await anyio.sleep(0.005)
        now[0] -= 365 * 86_400.0
        await finish(supervisor, "two")
        told = await receiver.wait(3)
        assert sorted(told[1:]) == [("one", "done"), ("two", "done")]
        tasks.cancel_scope.cancel()


async def test_an_address_that_is_gone_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """410 disables it at once."""
    async with receiving(monkeypatch) as receiver:
        receiver.answer = lambda body: 410
        async with telling(None, Webhook(url=receiver.url, secret_env="HOOK")) as supervisor:
            await finish(supervisor, "one")
            await receiver.wait(1)
            while len(await outcomes(supervisor)) < 2:
                await anyio.sleep(0.005)
            assert await outcomes(supervisor) == [("", "begun", 0), ("one", "disabled", 1)]


@pytest.mark.parametrize("location", ["//:1/", "http://[::ffff:127.0.0.1]:1/", "x:"])
async def test_a_redirect_is_a_failure_wherever_it_leads(monkeypatch: pytest.MonkeyPatch, location: str) -> None:
    """It is neither followed nor read, and a cookie beside it is not kept; the next attempt is the same."""
    async with receiving(monkeypatch) as receiver:
        receiver.answer = lambda body: 200 if len(receiver.got) else 302
        receiver.headers = [("location", location), ("set-cookie", "a=b")]
        async with telling(None, Webhook(url=receiver.url, secret_env="HOOK")) as supervisor:
            await finish(supervisor, "one")
            await receiver.wait(2)
            while len(await outcomes(supervisor)) < 3:
                await anyio.sleep(0.005)
            assert await outcomes(supervisor) == [("", "begun", 0), ("one", "failed", 1), ("one", "delivered", 2)]
            first, second = (set(headers) for headers, _ in receiver.got)
            assert first == second


async def test_a_disabled_address_is_tried_again_from_there_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if what comes next is of the run that had disabled it; and as patiently as the first time."""
    async with receiving(monkeypatch) as receiver:
        receiver.answer = lambda body: 410
        hook = Webhook(url=receiver.url, secret_env="HOOK", on=["done"])
        async with telling(tmp_path / "a.db", hook) as supervisor:
            await finish(supervisor, "one")
            await receiver.wait(1)
            while ("one", "disabled", 1) not in await outcomes(supervisor):
                await anyio.sleep(0.005)
            run = await supervisor.spawn(clerk, "Count.", run_id="one")
            await run.send("Count again.")
            await run.wait_result()
        receiver.answer = lambda body: 503 if len(receiver.got) < 4 else 204
        async with telling(tmp_path / "a.db", hook, backoff=msgspec.structs.replace(SOON, attempts=4)) as supervisor:
            assert await receiver.wait(6) == [("one", "done")] * 6
        assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 2


async def test_a_change_is_told_again_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever became of it; one that is none is refused."""
    async with (
        receiving(monkeypatch) as receiver,
        telling(None, Webhook(url=receiver.url, secret_env="HOOK")) as supervisor,
    ):
        await finish(supervisor, "one")
        await receiver.wait(1)
        while len(await outcomes(supervisor)) < 2:
            await anyio.sleep(0.005)
        ((_, tried), *_) = await supervisor.journal.read_webhooks()
        again = await supervisor.deliveries.redeliver(tried.change)  # type: ignore[attr-defined]
        assert again.outcome == "delivered"
        first, second = await receiver.wait(2)
        assert first == second
        assert receiver.got[0][0]["webhook-id"] == receiver.got[1][0]["webhook-id"]
        for number, url in ((tried.change + 1, None), (0, None), (tried.change, "http://localhost/")):
            with pytest.raises(RunNotFound):
                await supervisor.deliveries.redeliver(number, url)  # type: ignore[attr-defined]
        await supervisor.remove("one")
        assert await outcomes(supervisor) == [("", "begun", 0)]


class Plain(Receiver):
    """A receiver that takes no TLS for anything that it knows."""

    async def serve(self, stream: anyio.abc.SocketStream) -> None:
        """Refuse one request."""
        async with stream:
            await stream.receive()
            await stream.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")


async def test_what_is_wrong_with_tls_is_on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """On trio there was only the name of an error, as for a certificate that nobody trusts."""
    async with receiving(monkeypatch, Plain()) as receiver:
        hook = Webhook(url=receiver.url.replace("http:", "https:"), secret_env="HOOK", on=["done"])
        async with telling(None, hook, backoff=Backoff(attempts=1)) as supervisor:
            await finish(supervisor, "one")
            with anyio.fail_after(PATIENCE):
                while not (tried := [each for _, each in await supervisor.journal.read_webhooks() if each.run_id]):
                    await anyio.sleep(0.005)
            assert (tried[0].outcome, tried[0].status) == ("disabled", 0)
            assert "[SSL" in tried[0].error


class Slow(Receiver):
    """A receiver that says when a request has come, and answers once it may."""

    def __init__(self) -> None:
        super().__init__()
        self.come, self.go = anyio.Semaphore(0), anyio.Semaphore(0)

    async def serve(self, stream: anyio.abc.SocketStream) -> None:
        """Answer one request."""
        async with stream:
            self.come.release()
            await self.go.acquire()
            await super().serve(stream)


@pytest.mark.parametrize("status", [204, 500])
async def test_nothing_is_left_of_a_run_that_is_removed_while_a_webhook_is_told_of_it(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome was written after the removal, and stayed for good; a failure was read again at each start."""
    async with (
        receiving(monkeypatch, slow := Slow()) as receiver,
        telling(None, Webhook(url=receiver.url, secret_env="HOOK", on=["done"])) as supervisor,
    ):
        receiver.answer = lambda body: status
        await finish(supervisor, "one")
        await slow.come.acquire()
        await supervisor.remove("one")
        await finish(supervisor, "two")
        slow.go.release()
        await slow.come.acquire()
        assert await outcomes(supervisor) == [("", "begun", 0)]


async def test_a_change_is_told_on_request_as_soon_as_the_attempt_under_way_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An address gets one request at a time, and a request of a person goes before what else is to be sent."""
    async with (
        receiving(monkeypatch, slow := Slow()) as receiver,
        telling(None, Webhook(url=receiver.url, secret_env="HOOK", on=["done"])) as supervisor,
    ):
        await finish(supervisor, "one")
        await slow.come.acquire()
        for run_id in ("two", "three", "four"):  # it finds them together when it has told the first
            await finish(supervisor, run_id)
        slow.go.release()
        await slow.come.acquire()
        first = next(tried.change for _, tried in await supervisor.journal.read_webhooks() if tried.run_id)
        deliveries: Deliveries = supervisor.deliveries  # type: ignore[attr-defined]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(deliveries.redeliver, first)
            while not deliveries._senders[receiver.url]._turn.statistics().tasks_waiting:
                await anyio.sleep(0.005)
            for _ in range(4):
                slow.go.release()
        assert [run_id for run_id, _ in await receiver.wait(5)] == ["one", "two", "one", "three", "four"]


async def test_wrong_webhooks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is served."""
    hook = Webhook(url="http://127.0.0.1:1/", secret_env="HOOK")
    async with rp.open_supervisor(model=FunctionModel(lambda request: "x")) as supervisor:
        monkeypatch.delenv("HOOK", raising=False)
        with pytest.raises(ConfigurationError, match="no HOOK"):
            Deliveries(supervisor.journal, Duties(supervisor)).set_webhooks([hook])
        monkeypatch.setenv("HOOK", SECRET)
        with pytest.raises(ConfigurationError, match="the same url"):
            Deliveries(supervisor.journal, Duties(supervisor)).set_webhooks(
                [hook, msgspec.structs.replace(hook, on=("done",))]
            )


PROGRAM = """
import sys, anyio, repertory as rp
from repertory.service.deliveries import Backoff, Deliveries
from repertory.service.duties import Duties
from repertory.service.webhooks import Webhook
from repertory.testing import FunctionModel

async def main(path, url, first):
    async with rp.open_supervisor(path, model=FunctionModel(lambda r: "Done."), durability="process") as supervisor:
        soon = Backoff(first=0.01, factor=1.2, most=0.05)
        deliveries = Deliveries(supervisor.journal, Duties(supervisor), backoff=soon)
        deliveries.set_webhooks([Webhook(url=url, secret_env="HOOK")])
        async with anyio.create_task_group() as tasks:
            async def notify():
                async for _ in supervisor.events():
                    deliveries.notify()

            tasks.start_soon(deliveries.run)
            tasks.start_soon(notify)
            while not await supervisor.journal.read_webhooks():
                await anyio.sleep(0.005)
            for number in range(int(first), int(first) + 10):
                run = await supervisor.spawn(rp.Agent("clerk"), "Count.", run_id=f"r{number}")
                await run.wait_result()
                print(f"r{number}", flush=True)
            await anyio.sleep_forever()

rp.run(main, *sys.argv[1:])
"""


def test_nothing_is_left_out_by_kills(tmp_path: Path, run_async: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed again and again: whatever it had acknowledged is told at last, by the same ids."""

    async def main() -> None:
        async with receiving(monkeypatch) as receiver:
            calls = 0

            def answer(body: dict[str, Any]) -> int:
                nonlocal calls
                calls += 1
                return 503 if calls % 3 == 0 else 200

            receiver.answer = answer
            path, finished = tmp_path / "a.db", list[str]()
            for number in range(4):
                command = [sys.executable, "-c", PROGRAM, str(path), receiver.url, str(number * 100)]
                with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                    assert process.stdout is not None
                    for _ in range(3 * number + 1):
                        line = await anyio.to_thread.run_sync(process.stdout.readline)
                        finished.append(line.strip())
                    process.send_signal(signal.SIGKILL)
                    process.stdout.close()
            hook = Webhook(url=receiver.url, secret_env="HOOK")
            async with telling(path, hook) as supervisor:
                with anyio.fail_after(PATIENCE):
                    while not {*finished} <= {
                        tried[0] for tried in await outcomes(supervisor) if tried[1] == "delivered"
                    }:
                        await anyio.sleep(0.01)
            by_run: dict[str, set[str]] = {}
            for headers, body in receiver.got:
                by_run.setdefault(body["data"]["id"], set()).add(headers["webhook-id"])
            assert {*finished} <= by_run.keys()
            assert all(len(by_run[run_id]) == 1 for run_id in finished)

    run_async(main)
