"""Plays a recorded run through the real loop, and measures every request that it makes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

import anyio
import msgspec

from repertory.agents import Agent, Limits
from repertory.context import ContextPolicy, decode_decision
from repertory.errors import InvalidRequest, RecordingError, RunFailed
from repertory.llm.model import ModelRequest, Usage
from repertory.llm.profiles import ModelProfile, cost_of
from repertory.record import open_journal
from repertory.replay.billing import Biller, plain_requests
from repertory.replay.choices import policy_named
from repertory.replay.meaning import Meaning, Meter
from repertory.replay.model import PLAIN_REASONING, ReplayModel, output_tokens, replay_tools, times_of
from repertory.replay.needs import Needs, needs_of
from repertory.replay.recording import RecordedRun
from repertory.runs.events import IterationStarted, from_record
from repertory.supervisor import Run, open_supervisor
from repertory.supervisor import run as run_async

_RUN_ID = "run-replay"  # constant: names of citations derive from it, and figures must not depend on chance
_REQUESTS_PER_PROCESS = 200  # requests, about three seconds of work: five times what starting a process takes


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """The result of playing one run under one policy and one model's prices. Lists have one element per iteration.

    Attributes:
        run: The recorded run.
        view: Tokens of the prompt.
        plain: Tokens of the prompt of a plain loop, which shortens nothing.
        costs: US dollars, including signed summaries.
        plain_costs: The same for the plain loop.
        usage: All tokens as billed.
        plain_usage: The same for the plain loop.
        rereads: US dollars that reading again what the request lacked would cost. ``costs`` do not include them.
        meaning: How much the requests contained of what was needed.
        invalid: Requests that the provider would have refused.
        refused: Requests that were too long, and were made again smaller.
        decisions: The number of the planner's decisions of each kind.
        cleared_tokens: Tokens that all decisions together took out of the view.
        summaries: Number of summaries that were swapped in.
        build_seconds: Seconds for planning, projecting and checking.
        error: Why the replay did not reach the recording's end; "" if it did.
    """

    run: RecordedRun
    view: list[int]
    plain: list[int]
    costs: list[float]
    plain_costs: list[float]
    usage: Usage
    plain_usage: Usage
    rereads: list[float]
    meaning: Meaning
    invalid: int = 0
    refused: int = 0
    decisions: Counter[str] = msgspec.field(default_factory=Counter[str])
    cleared_tokens: int = 0
    summaries: int = 0
    build_seconds: list[float] = msgspec.field(default_factory=list[float])
    error: str = ""


class _Bill:
    """What the requests of one loop cost."""

    def __init__(self, profile: ModelProfile) -> None:
        self._profile = profile
        self.view: list[int] = []
        self.costs: list[float] = []
        self.usage = Usage()

    def add(self, usage: Usage) -> None:
        self.view.append(usage.prompt_tokens)
        self.costs.append(cost_of(self._profile, usage))
        self.usage += usage


async def play(
    run: RecordedRun,
    *,
    policy: ContextPolicy | None,
    profile: ModelProfile,
    needs: Needs | None = None,
    on_request: Callable[[ModelRequest], None] = lambda _: None,
) -> Played:
    """Play one run through the agent loop.

    The loop, its planner, its summarizer and its journal are the real ones; the model and the tools give the recorded
    answers.

    Args:
        run: The recorded run.
        policy: How the view is kept small; None for a plain loop.
        profile: The model to play: its prices, window and cache, and whether it binds thinking.
        needs: The answer of ``needs_of`` for the run, if it is known already.
        on_request: Called with every request after it was measured.
    """
    meter = Meter(run, needs)
    seen = _Bill(profile)
    rereads: list[float] = []
    frame: ModelRequest | None = None
    handle: list[Run[Any]] = []
    failed: BaseException | None = None

    def judge(iteration: int, request: ModelRequest, usage: Usage) -> None:
        nonlocal frame
        frame = request
        seen.add(usage)
        again = meter.see(iteration, request)
        call = Usage(cache_read_tokens=usage.prompt_tokens, cache_write_tokens=again)
        rereads.append(cost_of(profile, call) if again else 0.0)
        on_request(request)

    async def say(text: str) -> None:
        await handle[0].send(text)

    tasks = anyio.create_task_group()
    model = ReplayModel(run, profile=profile, say=say, judge=judge, tasks=tasks)
    agent = Agent(
        "replay",
        instructions=run.system,
        tools=replay_tools(run),
        model=model,
        context=policy,
        limits=Limits(iterations=len(run.turns) + 1),
        max_tokens=min(8_192, profile.max_output),
    )
    async with open_journal(None) as journal:
        async with tasks, open_supervisor(journal=journal, clock=lambda: model.now) as supervisor:
            handle.append(await supervisor.spawn(agent, run.task, run_id=_RUN_ID))
            try:
                await handle[0].wait_result()
            except RunFailed as error:
                failed = error.__cause__ or error
        decisions = [decode_decision(made.body) for made in await journal.read_decisions(_RUN_ID)]
        events = [from_record(record) for _, record in await journal.read_events(_RUN_ID)]
    if failed is None and model.asked < len(run.turns):
        failed = RecordingError(f"turn {model.asked} calls no tool, and nobody spoke after it: the run ended there")
    for turns, usage in model.beside:
        seen.costs[turns - 1] += cost_of(profile, usage)
        seen.usage += usage
    plain = _Bill(profile) if frame is None else _plain_bill(run, profile, frame, len(seen.view))
    return Played(
        run=run,
        view=seen.view,
        plain=plain.view,
        costs=seen.costs,
        plain_costs=plain.costs,
        usage=seen.usage,
        plain_usage=plain.usage,
        rereads=rereads,
        meaning=meter.found,
        invalid=model.broken + isinstance(failed, InvalidRequest),
        refused=model.refused,
        decisions=Counter(decision.kind for decision in decisions),
        cleared_tokens=sum(decision.arithmetic.cleared_tokens for decision in decisions),
        summaries=handle[0].statistics().summaries,
        build_seconds=[event.build_seconds for event in events if isinstance(event, IterationStarted)],
        error="" if failed is None else str(failed),
    )


def _plain_bill(run: RecordedRun, profile: ModelProfile, frame: ModelRequest, iterations: int) -> _Bill:
    """Bill the same turns in a plain loop, as far as the replay got."""
    bill, biller = _Bill(profile), Biller(profile)
    requests = plain_requests(run, frame, reasoning=PLAIN_REASONING if profile.target == "binding" else None)
    for turn, at, request in islice(zip(run.turns, times_of(run), requests, strict=True), iterations):
        usage, _ = biller.bill(request, at=at)
        bill.add(msgspec.structs.replace(usage, output_tokens=output_tokens(turn, profile)))
    return bill


# --- many runs --------------------------------------------------------------------------------------------


def play_all(
    runs: Sequence[RecordedRun],
    *,
    policy: str,
    profiles: Sequence[ModelProfile],
    jobs: int = 1,
    on_request: Callable[[], None] = lambda: None,
) -> list[dict[str, Played]]:
    """Play runs, each with every model. The figures do not depend on the number of processes.

    A program that uses more than one process needs ``if __name__ == "__main__"``, as ``multiprocessing`` does. When
    the caller's process ends, for whatever reason, so do the others.

    Args:
        runs: The recorded runs.
        policy: A name as for ``policy_named``.
        profiles: The models to play.
        jobs: Most processes. No more are started than there are runs, or than are worth their start.
        on_request: Called after every request.

    Returns:
        For each run its results, by the name of the model.

    Raises:
        ConfigurationError: There is no such policy.
        RecordingError: A process ended before its run did.
    """
    chosen = policy_named(policy)  # before any process is started
    work = sum(len(run.turns) for run in runs) * len(profiles)
    jobs = min(jobs, len(runs), max(1, work // _REQUESTS_PER_PROCESS))
    if jobs <= 1:
        return [_play_models(run, chosen, profiles, on_request) for run in runs]
    played: dict[int, dict[str, Played]] = {}
    # The longest first, so that none is left for the end.
    waiting = sorted(range(len(runs)), key=lambda index: len(runs[index].turns))
    with ExitStack() as stack:
        workers = [stack.enter_context(_worker(policy, profiles)) for _ in range(jobs)]
        playing: dict[Connection, int] = {}
        while len(played) < len(runs):
            for connection in workers:
                if connection not in playing and waiting:
                    playing[connection] = waiting.pop()
                    with suppress(ConnectionError):  # the process has ended, which is handled below
                        connection.send(runs[playing[connection]])
            for ready in wait(list(playing)):
                assert isinstance(ready, Connection)
                try:
                    message = ready.recv()
                except (EOFError, ConnectionError):
                    lost = runs[playing[ready]]
                    raise RecordingError(f"{lost.file}: the process that played {lost.id} was ended") from None
                if message is None:
                    on_request()
                else:
                    played[playing.pop(ready)] = message
    return [played[index] for index in range(len(runs))]


def _play_models(
    run: RecordedRun,
    policy: ContextPolicy | None,
    profiles: Sequence[ModelProfile],
    on_request: Callable[[], None],
) -> dict[str, Played]:
    needs = needs_of(run)

    def count(_: ModelRequest) -> None:
        on_request()

    async def main() -> dict[str, Played]:
        return {
            profile.name: await play(run, policy=policy, profile=profile, needs=needs, on_request=count)
            for profile in profiles
        }

    # asyncio starts tasks in the order in which they were made: the same recording always gives the same figures.
    return run_async(main, backend="asyncio")


@contextmanager
def _worker(policy: str, profiles: Sequence[ModelProfile]) -> Generator[Connection]:
    """Start a process that plays the runs it is sent; it ends with the block, or with the process that started it."""
    # Spawned, not forked: a fork would take over whatever threads and event loops the caller has.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, policy, profiles), daemon=True)
    # A terminal's Ctrl-C is for the parent process. Python's resource tracker, which the first process would start,
    # unblocks signals.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    process.start()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.terminate()
        process.join()


def _work(connection: Connection, policy: str, profiles: Sequence[ModelProfile]) -> None:
    def send(what: object) -> None:
        try:
            connection.send(what)
        except OSError:  # the parent process is gone
            os._exit(1)

    chosen = policy_named(policy)
    while True:
        try:
            run = connection.recv()
        except (EOFError, OSError):  # the parent process is gone, maybe while sending a run
            return
        send(_play_models(run, chosen, profiles, lambda: send(None)))
