"""Storms: random trouble for a real supervisor and a real file, repeatable by its seed.

A storm takes a seed and its size, and returns what went wrong, one line each; the list must be empty.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
from anyio.lowlevel import checkpoint
from msgspec import structs
from sniffio import current_async_library

from patience import PATIENCE
from repertory.agents import Agent, Limits
from repertory.errors import RunFailed, RunNotFound
from repertory.llm.messages import Text, is_media, text_of
from repertory.llm.model import ModelRequest, ModelResponse, Usage
from repertory.llm.profiles import OFFLINE, with_prices
from repertory.record import open_journal
from repertory.record.journal import Journal
from repertory.record.records import FINAL_STATES
from repertory.supervisor import Run, Supervisor, open_supervisor
from repertory.testing.models import FunctionModel, call
from repertory.tools.media import media_block

_PICTURE = media_block(b"\x89PNG\r\n\x1a\n", "image/png")
_TOKENS = 1_010  # per call; the prompt has fewer than its estimate, so that no call uses more than it reserved
_TOGETHER = 16  # calls that are made, and cancelled, concurrently
_MOST_CHECKPOINTS = 14  # a spawn passes about ten
_LONGEST = 0.03  # seconds; a spawn takes a few milliseconds, most of them on the disk


async def cancel_storm(seed: int, count: int) -> list[str]:
    """Cancel ``spawn`` and ``send`` at random checkpoints, by scopes and on asyncio also by bare ``Task.cancel``.

    A call must have taken effect both in the journal and in the process, or in neither: no recorded run may lack a
    process, and no recorded message may go unread.

    Args:
        seed: Determines every random choice.
        count: How many calls are made.
    """
    chance = random.Random(seed)
    go = anyio.Event()

    async def answer(request: ModelRequest) -> str:
        await go.wait()
        return f"heard {sum(message.role == 'user' for message in request.messages)}"

    with TemporaryDirectory() as folder:
        path = Path(folder) / "storm.db"
        async with open_supervisor(path, model=FunctionModel(answer), durability="process") as supervisor:
            calls = _Calls(supervisor, chance)
            for begin in range(0, count, _TOGETHER):
                async with anyio.create_task_group() as group:
                    for number in range(begin, min(count, begin + _TOGETHER)):
                        group.start_soon(calls.make, number)
            go.set()
            return await disagreements(supervisor, calls.returned)


async def limit_storm(seed: int, count: int) -> list[str]:
    """Cut off trees of runs at random instants, resume them until they end, and compare their use with their limits.

    The model charges a dollar for each call and keeps its own books, as a provider does. A tree may have as many runs,
    and as many iterations in each, as its limits allow, and may exceed its limits of cost and tokens by one call.

    Args:
        seed: Determines every random choice.
        count: How many trees are grown.
    """
    chance = random.Random(seed)
    found = list[str]()
    for number in range(count):
        found += [f"tree {number}: {words}" for words in await Tree(chance).failures()]
    return found


class Tree:
    """One tree of runs that would grow and spend forever, and its limits."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._taken = 0
        self._wide = chance.randint(1, 5)
        self._limits = Limits(
            runs=chance.randint(1, 9),
            depth=chance.randint(1, 3),
            cost=float(chance.randint(1, 20)) if chance.random() < 0.8 else None,
            tokens=_TOKENS * chance.randint(1, 20) if chance.random() < 0.5 else None,
            iterations=chance.randint(2, 9),
        )
        # A dollar for a thousand output tokens, which is as many as an answer may have.
        profile = with_prices(structs.replace(OFFLINE, name="dollars"), input=0.0, output=1_000.0)
        self._model = FunctionModel(self._answer, profile=profile)

    def _agent(self) -> Agent:
        limits = Limits(iterations=self._limits.iterations)
        leaf = Agent("leaf", limits=limits, max_tokens=1_000)
        branch = Agent("branch", team=[leaf], limits=limits, max_tokens=1_000)
        return Agent("root", team=[branch, leaf], limits=self._limits, max_tokens=1_000)

    async def _answer(self, request: ModelRequest) -> ModelResponse:
        self._taken += 1
        for _ in range(self._chance.randrange(4)):
            await checkpoint()
        members = [tool.input_schema["properties"]["agent"]["enum"] for tool in request.tools]
        calls = [call("nothing")]
        if members and self._chance.random() < 0.8:
            wide = self._chance.randint(1, self._wide)
            calls = [call("delegate", agent=self._chance.choice(members[0]), task=f"part {n}") for n in range(wide)]
        done = self._chance.random() < 0.05
        content = (Text("Done."),) if done else tuple(calls)
        return ModelResponse(content=content, usage=Usage(input_tokens=_TOKENS - 1_000, output_tokens=1_000))

    async def failures(self) -> list[str]:
        """Cut it off a few times, let it end, and check the journal and the provider's books."""
        limits, agent = self._limits, self._agent()
        async with open_journal() as journal:
            for _ in range(self._chance.randint(0, 5)):
                async with open_supervisor(journal=journal, model=self._model, drain_timeout=0) as supervisor:
                    await supervisor.spawn(agent, "Grow.", run_id="run-1")
                    for _ in range(self._chance.randrange(400)):
                        await checkpoint()
            async with open_supervisor(journal=journal, model=self._model) as supervisor:
                run = await supervisor.spawn(agent, "Grow.", run_id="run-1")
                with suppress(RunFailed), anyio.fail_after(PATIENCE):
                    await run.wait_result()
            rows = await journal.read_runs()
            found = [f"{row.started.run_id} is {row.state}" for row in rows if row.state not in FINAL_STATES]
            found += [f"{row.error}" for row in rows if row.error and not row.error.startswith("LimitExceeded")]
            if len(rows) > limits.runs:
                found.append(f"{len(rows)} runs, and limits.runs is {limits.runs}")
            if limits.cost is not None and self._taken > limits.cost + 1:
                found.append(f"{self._taken} dollars spent, and limits.cost is {limits.cost:g}")
            if limits.tokens is not None and self._taken * _TOKENS > limits.tokens + _TOKENS:
                found.append(f"{self._taken * _TOKENS} tokens used, and limits.tokens is {limits.tokens}")
            for row in rows:
                entries = await journal.read_entries(row.started.run_id)
                answers = sum(entry.role == "assistant" for entry in entries)
                if answers > limits.iterations:
                    found.append(f"{row.started.run_id} has {answers} answers, and may have {limits.iterations}")
                if row.started.depth > limits.depth:
                    found.append(f"{row.started.run_id} is at depth {row.started.depth} of {limits.depth}")
            return found


class _Calls:
    """Calls of public functions that are cancelled before they return."""

    def __init__(self, supervisor: Supervisor, chance: random.Random) -> None:
        self._supervisor = supervisor
        self._chance = chance
        self._agent = Agent("storm")
        self.returned: list[Run[Any]] = []

    async def make(self, number: int) -> None:
        """Spawn a run, or send a message to one; cancelled after some checkpoints."""
        run = self._chance.choice(self.returned) if self.returned and self._chance.random() < 0.5 else None
        steps, delay = self._chance.randrange(_MOST_CHECKPOINTS), self._chance.choice([0.0, _LONGEST])
        delay, bare = delay * self._chance.random(), self._chance.random() < 0.5
        if run is None:
            await cancelled_after(steps, lambda: self._spawn(number), delay=delay, bare=bare)
        else:
            attachments = [_PICTURE] * self._chance.randrange(3)
            say = partial(run.send, f"say {number}", attachments=attachments, message_id=f"m{number}")
            await cancelled_after(steps, say, delay=delay, bare=bare)

    async def _spawn(self, number: int) -> None:
        named = None if self._chance.random() < 0.5 else f"run-{number}"
        self.returned.append(await self._supervisor.spawn(self._agent, f"task {number}", run_id=named))


async def disagreements(supervisor: Supervisor, returned: Sequence[Run[Any]] = ()) -> list[str]:
    """Where journal and process disagree, once every run of this process has ended.

    Args:
        supervisor: The process's supervisor.
        returned: The runs that it returned to callers.
    """
    found = list[str]()
    for row in await supervisor.runs():
        run_id = row.started.run_id
        with suppress(RunNotFound):  # it has ended meanwhile
            with anyio.move_on_after(PATIENCE / 2) as scope:
                await supervisor.run(run_id).wait_result()
            if scope.cancelled_caught:
                found.append(f"run {run_id} does not end")
    rows = await supervisor.runs()
    found += [f"run {row.started.run_id} is {row.state} and nobody runs it" for row in rows if row.state != "done"]
    known = {row.started.run_id for row in rows}
    found += [f"run {run.id} was returned and is not on record" for run in returned if run.id not in known]
    for row in rows:
        found += await unheard(supervisor.journal, row.started.run_id)
    return found


async def unheard(journal: Journal, run_id: str) -> list[str]:
    """The recorded messages of a run that are in no entry, or in more than one."""
    bodies = [record.body for _, record in await journal.read_events(run_id) if record.type == "UserSaid"]
    said, attached = (
        [body["message_id"] for body in bodies],
        {body["message_id"] for body in bodies if body["attached"]},
    )
    entries = await journal.read_entries(run_id)
    seen = {entry.message_id for entry in entries if entry.kind == "user-input" and any(map(is_media, entry.content))}
    heard = Counter(entry.message_id for entry in entries if entry.kind == "user-input")
    texts = {entry.message_id: text_of(entry.content) for entry in entries}
    return [
        f"message {message_id} to {run_id} ({texts.get(message_id, 'never heard')!r}) is on record {count} times and "
        f"was heard {heard[message_id]} times"
        for message_id, count in (Counter(said) | Counter(heard.keys())).items()
        if not count == heard[message_id] == said.count(message_id) == 1
    ] + [f"what came with message {message_id} to {run_id} was not shown with it" for message_id in seen ^ attached]


async def cancelled_after(
    steps: int, function: Callable[[], Awaitable[object]], *, delay: float = 0.0, bare: bool = False
) -> bool:
    """Call a function and cancel it after ``steps`` checkpoints of another task and ``delay`` seconds.

    Args:
        steps: The number of checkpoints.
        function: The function to call.
        delay: Seconds, for functions that wait for other threads; 0.0 for none.
        bare: On asyncio, cancel the task itself, as ``asyncio.timeout`` does, instead of a scope.

    Returns:
        Whether the call was cancelled before it returned.
    """
    returned = False

    async def call() -> None:
        nonlocal returned
        await function()
        returned = True

    if bare and current_async_library() == "asyncio":
        task = asyncio.create_task(call())
        await _wait(steps, delay)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return not returned
    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await _wait(steps, delay)
        group.cancel_scope.cancel()
    return not returned


async def _wait(steps: int, delay: float) -> None:
    for _ in range(steps):
        await checkpoint()
    if delay:
        await anyio.sleep(delay)
