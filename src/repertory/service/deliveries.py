"""Tells webhooks of changes of state: from the journal, at least once, and in order for each run.

Attempts are recorded, so nothing is lost if the process is killed; the id of a message is the same each time it is
sent. An address gets one request at a time, and no run waits for it. Failed attempts are repeated at growing
intervals; meanwhile further changes of the same run wait, and those of other runs are sent. Only failures are held in
memory, one entry per run: the rest is read from the journal when its turn comes. If several services share a journal,
one at a time serves an address.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import anyio
import msgspec

from repertory._error_texts import name_error, telling
from repertory._ids import root_of
from repertory._json_text import json_bytes
from repertory._repeated_event import RepeatedEvent
from repertory._version import __version__
from repertory.errors import ConfigurationError, RunNotFound
from repertory.llm.retry import asked_delay
from repertory.record.journal import Journal
from repertory.record.records import RunStateChanged, WebhookTried
from repertory.runs.log import log
from repertory.service.duties import Duties
from repertory.service.webhooks import Webhook, signature

if TYPE_CHECKING:
    import httpx2

TIMEOUT: Final = 15.0  # seconds for an answer; the specification recommends 15 to 30
_PAGE: Final = 50  # changes that are read at once
_MAX_FAILED: Final = 1000  # runs that wait for another attempt; with more of them nothing new is sent
_DOWN: Final = 3  # failures in a row after which the address itself is assumed to be down
_GONE: Final = 410  # the status with which an address unsubscribes


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """How long to wait before the next attempt; all in seconds.

    Attributes:
        first: The pause after the first failure.
        factor: The factor by which the pause grows.
        most: The longest pause.
        attempts: The number of attempts before the address is disabled: with these defaults that takes three days, as
            in the specification's example schedule.
    """

    first: float = 5.0
    factor: float = 3.0
    most: float = 6 * 3600.0
    attempts: int = 20

    def after(self, failures: int) -> float:
        """The pause after this many failures, varied by up to a fifth so that not everything is retried at once."""
        pause = min(self.first * self.factor ** min(failures - 1, 40), self.most)
        return pause * random.uniform(0.8, 1.2)  # noqa: S311 - no secret


def _message_id(number: int, change: RunStateChanged) -> str:
    """The id of the message about a change, the same each time it is sent."""
    return f"msg_{blake2b(f'{change.run_id}:{number}'.encode(), digest_size=12).hexdigest()}"


def _message(change: RunStateChanged) -> bytes:
    """The posted body: which run came into which state. The run's result is not in it; ask for it by the id."""
    at = datetime.fromtimestamp(change.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    error = (change.error or "")[:1000]
    data = {"id": change.run_id, "state": change.state, "iteration": change.iteration, "error": error}
    return json_bytes({"type": f"run.{change.state}", "timestamp": at, "data": data})


class Deliveries:
    """Serves the webhooks of one service whose duty it is; ``notify`` wakes it when there is something to send."""

    def __init__(
        self,
        journal: Journal,
        duties: Duties,
        *,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.duties = duties
        self.journal = journal
        self.new_changes = RepeatedEvent()  # set when a state changes
        self.backoff = backoff or Backoff()
        self.clock = clock
        self._senders: dict[str, WebhookSender] = {}
        self._changed = RepeatedEvent()

    def set_webhooks(self, hooks: Sequence[Webhook]) -> None:
        """Replace the webhooks by these. A new one is told of what happens from now on.

        Raises:
            ConfigurationError: A secret is not in the environment, or an address is listed twice.
        """
        senders = {hook.url: WebhookSender(self, hook) for hook in hooks}
        if len(senders) < len(hooks):
            raise ConfigurationError("two webhooks have the same url")
        self._senders = senders
        self.duties.want("webhook", senders)
        self._changed.set()

    async def run(self) -> None:
        """Serve until it is cancelled."""
        while True:
            seen = self._changed.count
            async with anyio.create_task_group() as tasks:
                for sender in self._senders.values():
                    tasks.start_soon(sender.run)
                await self._changed.wait(seen)
                tasks.cancel_scope.cancel()

    def notify(self) -> None:
        """Make the webhooks look for changes of state."""
        self.new_changes.set()

    async def redeliver(self, number: int, url: str | None = None) -> WebhookTried:
        """Send a change again to a webhook, or to the only one, whatever its outcome was; the attempt is recorded.

        Raises ``RunNotFound`` if there is no such change or webhook.
        """
        senders = [sender for sender in self._senders.values() if url in (None, sender.hook.url)]
        if len(senders) != 1:
            known = ", ".join(self._senders)
            raise RunNotFound(f"name one of the webhooks: {known}" if known else "this service has no webhooks")
        found = await self.journal.read_state_changes(after=number - 1, limit=1) if number else []
        if not found or found[0][0] != number or number > await senders[0].reached():
            raise RunNotFound(f"change {number} is not on record, or its turn has not come yet")
        return await senders[0].send_again(*found[0])


def _open_http() -> httpx2.AsyncHTTPTransport:
    """A bare transport: a client would read where an answer redirects to, which may fail, and keep its cookies."""
    import httpx2

    return httpx2.AsyncHTTPTransport(trust_env=False)


class WebhookSender:
    """What was sent to one webhook, and what is still to be sent.

    Attributes:
        cursor: Every change up to this number was tried, or waits behind a failed one.
    """

    def __init__(self, deliveries: Deliveries, hook: Webhook) -> None:
        self.hook = hook
        self._deliveries = deliveries
        self._secret = hook.read_secret()
        self.cursor = 0
        self._failed: dict[str, WebhookTried] = {}  # the failure that each run waits behind
        self._failures = 0  # in a row, of any run
        self._down_until = 0.0
        self._disabled = False
        self._turn = anyio.Lock()

    async def run(self) -> None:
        """Send every change as it happens, until cancelled or the address is disabled."""
        duties = self._deliveries.duties
        while True:
            await duties.wait_held("webhook", self.hook.url)
            if not await self._serve():
                return

    async def _serve(self) -> bool:
        """Send every change while this process has that duty; returns whether it ended because the duty was lost."""
        await self._open()
        async with _open_http() as http:
            while self._deliveries.duties.held("webhook", self.hook.url):
                seen = self._deliveries.new_changes.count  # before looking, so that nothing is missed
                more = await self._round(http)
                if self._disabled:
                    return False
                if not more:
                    with anyio.move_on_after(self._pause()):
                        await self._deliveries.new_changes.wait(seen)
        return True

    async def reached(self) -> int:
        """The change up to which it was told, also if another machine does that."""
        if self._deliveries.duties.held("webhook", self.hook.url):
            return self.cursor
        return await self._deliveries.journal.read_webhook_position(self.hook.url) or 0

    async def send_again(self, number: int, change: RunStateChanged) -> WebhookTried:
        """Send one change now, out of its order, after the attempt that is under way."""
        async with _open_http() as http:
            return await self._try(http, number, change, 1)

    async def _open(self) -> None:
        """Find out from the journal how far an earlier process came; a new webhook begins with the next change."""
        journal, url = self._deliveries.journal, self.hook.url
        found = await journal.read_webhook_position(url)
        if found is None:
            found = await journal.last_state_change()
            begun = WebhookTried(url=url, run_id="", change=found, at=self._deliveries.clock(), outcome="begun")
            await journal.write([begun])
        self.cursor, self._disabled = found, False
        # Retry at once, not when it was due: whoever starts a service wants to see whether it works now. What had
        # disabled the address gets all its attempts again.
        self._failed = {
            tried.run_id: msgspec.structs.replace(
                tried, outcome="failed", attempt=0 if tried.outcome == "disabled" else tried.attempt, next_at=0.0
            )
            for tried in await journal.read_failed_webhooks(url)
        }

    def _pause(self) -> float:
        due = min((self._left_until(tried.next_at) for tried in self._failed.values()), default=float("inf"))
        return max(due, self._left_until(self._down_until))

    def _left_until(self, time: float) -> float:
        """Seconds until a time; also 0 if that is longer than any pause, because the clock was set back since."""
        wait = time - self._deliveries.clock()
        return wait if 0.0 < wait <= 2 * self._deliveries.backoff.most else 0.0

    async def _round(self, http: httpx2.AsyncHTTPTransport) -> bool:
        """Try what is due, until the address is disabled or seems down; returns whether there may be more.

        New changes come first: otherwise one message that is always refused would make the address seem down forever
        and block the changes of all other runs.
        """
        more = not self._rests() and await self._try_new(http)
        for run_id, tried in [*self._failed.items()]:
            if self._rests():
                break
            if not self._left_until(tried.next_at):
                await self._catch_up(http, run_id, tried)
        return more

    def _rests(self) -> bool:
        """Whether nothing may be sent now."""
        return self._disabled or self._left_until(self._down_until) > 0

    async def _try_new(self, http: httpx2.AsyncHTTPTransport) -> bool:
        if len(self._failed) >= _MAX_FAILED:
            return False
        found = await self._deliveries.journal.read_state_changes(after=self.cursor, limit=_PAGE)
        for number, change in found:
            if change.run_id not in self._failed and self._wants(change):
                await self._send(http, number, change, 1)
            self.cursor = number
            if self._rests():
                return False
        return bool(found)

    def _wants(self, change: RunStateChanged) -> bool:
        return not self.hook.on or change.state in self.hook.on

    async def _catch_up(self, http: httpx2.AsyncHTTPTransport, run_id: str, failed: WebhookTried) -> None:
        """Send the waiting changes of a run, in order, as long as they arrive."""
        for number, change in await self._deliveries.journal.read_records(RunStateChanged, run_id):
            if failed.change <= number <= self.cursor and self._wants(change):
                attempt = failed.attempt + 1 if number == failed.change else 1
                if not await self._send(http, number, change, attempt):
                    return
        del self._failed[run_id]  # also if the run was removed meanwhile

    async def _send(self, http: httpx2.AsyncHTTPTransport, number: int, change: RunStateChanged, attempt: int) -> bool:
        """Send a change in its turn; returns whether it arrived. If not, later changes of its run wait behind it."""
        tried = await self._try(http, number, change, attempt)
        if tried.outcome == "delivered":
            return True
        self._failed[change.run_id] = tried
        self._disabled = tried.outcome == "disabled"
        return False

    async def _try(
        self, http: httpx2.AsyncHTTPTransport, number: int, change: RunStateChanged, attempt: int
    ) -> WebhookTried:
        """Send one change, and record the outcome."""
        async with self._turn:
            status, error, asked = await self._post(http, number, change)
        arrived = 200 <= status < 300
        self._failures = 0 if arrived else self._failures + 1
        now, backoff = self._deliveries.clock(), self._deliveries.backoff
        ends = not arrived and (attempt >= backoff.attempts or status == _GONE)
        tried = WebhookTried(
            url=self.hook.url,
            run_id=change.run_id,
            change=number,
            at=now,
            outcome="delivered" if arrived else "disabled" if ends else "failed",
            attempt=attempt,
            status=status,
            error=error,
            next_at=0.0 if arrived else now + max(asked, backoff.after(attempt)),
        )
        if not await self._deliveries.journal.was_removed(root_of(change.run_id)):  # nobody would remove this any more
            await self._deliveries.journal.write([tried])
        if not arrived:
            level = logging.ERROR if ends else logging.WARNING
            log(level, f"webhook.{tried.outcome}", url=self.hook.url, run=change.run_id, status=status, reason=error)
        self._down_until = now + backoff.after(self._failures) if self._failures >= _DOWN else 0.0
        return tried

    async def _post(
        self, http: httpx2.AsyncHTTPTransport, number: int, change: RunStateChanged
    ) -> tuple[int, str, float]:
        """Returns the status of the answer, 0 for none; why there is none; and the seconds it asks us to wait."""
        import httpx2

        message_id, body, timestamp = _message_id(number, change), _message(change), int(self._deliveries.clock())
        headers = {
            "content-type": "application/json",
            "user-agent": f"repertory/{__version__}",
            "webhook-id": message_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": signature(self._secret, message_id, timestamp, body),
        }
        try:
            request = httpx2.Request("POST", self.hook.url, content=body, headers=headers)
            with anyio.fail_after(TIMEOUT):
                async with aclosing(await http.handle_async_request(request)) as answer:
                    wait = asked_delay(answer.headers, now=self._deliveries.clock()) or 0.0
                    # Its body is not read: it may be long.
                    return answer.status_code, "", min(wait, self._deliveries.backoff.most)
        except TimeoutError:
            return 0, f"no answer within {TIMEOUT:g} s", 0.0
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            return 0, name_error(telling(error))[:300], 0.0
