"""Play a recorded run through the real loop, and judge every request that it makes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import anyio
import msgspec

from repertory.agents import Agent, Limits, Run, open_supervisor
from repertory.agents.events import IterationStarted, from_record
from repertory.context import ContextPolicy, decode_decision
from repertory.errors import InvalidRequest, RunFailed
from repertory.llm.model import ModelRequest, Usage
from repertory.llm.profiles import ModelProfile, cost_of
from repertory.record import open_journal
from repertory.replay.billing import Biller, Position, plain_requests
from repertory.replay.meaning import Meaning, Meter
from repertory.replay.model import PLAIN_REASONING, ReplayModel, output_tokens, replay_tools, times_of
from repertory.replay.needs import Needs
from repertory.replay.recording import RecordedRun

_RUN_ID = "run-replay"  # always the same: names of citations follow from it, and figures must not depend on chance


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one run under one policy and one model's prices. Lists have one element for each iteration.

    Attributes:
        run: What was recorded.
        view: Tokens of the prompt.
        plain: Tokens of the prompt of a loop that shortens nothing.
        costs: US dollars, those of signed summaries included.
        plain_costs: The same for the loop that shortens nothing.
        usage: All tokens as billed.
        plain_usage: The same for the loop that shortens nothing.
        rereads: US dollars that reading again would cost of what the request lacked, and did not cost.
        meaning: What the requests said of what was needed.
        invalid: Requests that the provider would have refused.
        refused: Requests that were too long, and were made again smaller.
        decisions: How many of each kind the planner took.
        cleared_tokens: What they took out of the view, all together.
        summaries: Swapped in.
        build_seconds: What planning, projecting and checking took.
        error: Why the replay did not come to the recording's end; "" where it did.
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


class _Judge:
    """Looks at every request of one replay, at what it costs and at what it says."""

    def __init__(self, meter: Meter, profile: ModelProfile, on_request: Callable[[ModelRequest], None]) -> None:
        self.meter = meter
        self._profile = profile
        self._on_request = on_request
        self.view: list[int] = []
        self.costs: list[float] = []
        self.rereads: list[float] = []
        self.usage = Usage()
        self.frame: ModelRequest | None = None

    def look(self, iteration: int, request: ModelRequest, usage: Usage, positions: Sequence[Position]) -> None:
        self.frame = request
        self.view.append(usage.prompt_tokens)
        self.costs.append(cost_of(self._profile, usage))
        self.usage += usage
        self.meter.see(iteration, request)
        again = self.meter.rereads[-1]
        call = Usage(cache_read_tokens=usage.prompt_tokens, cache_write_tokens=again)
        self.rereads.append(cost_of(self._profile, call) if again else 0.0)
        self._on_request(request)


async def play(
    run: RecordedRun,
    *,
    policy: ContextPolicy | None,
    profile: ModelProfile,
    needs: Needs | None = None,
    on_request: Callable[[ModelRequest], None] = lambda _: None,
) -> Played:
    """Play one run through the agent loop.

    The loop, its planner, its summarizer and its journal are the real ones; the model says what it said then, and
    every tool answers what it answered then.

    Args:
        run: What was recorded.
        policy: How the view is kept small; None for a plain loop.
        profile: The model to stand in for: its prices, its window, its cache, and whether it binds thinking.
        needs: What ``needs_of`` says about the run, where it has been asked before.
        on_request: Called with every request after it was judged.
    """
    judge = _Judge(Meter(run, needs), profile, on_request)
    handle: list[Run] = []
    error: RunFailed | None = None
    played: Played | None = None

    async def say(text: str) -> None:
        await handle[0].send(text)

    async with anyio.create_task_group() as tasks, open_journal(None) as journal:
        model = ReplayModel(run, profile=profile, say=say, judge=judge.look, tasks=tasks)
        agent = Agent(
            "replay",
            instructions=run.system,
            tools=replay_tools(run),
            model=model,
            context=policy,
            limits=Limits(iterations=len(run.turns) + 1),
            max_tokens=min(8_192, profile.max_output),
        )
        async with open_supervisor(journal=journal, clock=lambda: model.now) as supervisor:
            handle.append(await supervisor.spawn(agent, run.task, run_id=_RUN_ID))
            try:
                await handle[0].wait_result()
            except RunFailed as failed:
                error = failed
        decisions = [decode_decision(made.body) for made in await journal.read_decisions(_RUN_ID)]
        events = [from_record(record) for _, record in await journal.read_events(_RUN_ID)]
        plain = _Plain(run, profile, judge.frame, len(judge.view))
        for turns, usage in model.beside:
            judge.costs[turns - 1] += cost_of(profile, usage)
            judge.usage += usage
        played = Played(
            run=run,
            view=judge.view,
            plain=plain.view,
            costs=judge.costs,
            plain_costs=plain.costs,
            usage=judge.usage,
            plain_usage=plain.usage,
            rereads=judge.rereads,
            meaning=judge.meter.found,
            invalid=model.broken + (error is not None and isinstance(error.__cause__, InvalidRequest)),
            refused=model.refused,
            decisions=Counter(decision.kind for decision in decisions),
            cleared_tokens=sum(decision.arithmetic.cleared_tokens for decision in decisions),
            summaries=handle[0].statistics().summaries,
            build_seconds=[event.build_seconds for event in events if isinstance(event, IterationStarted)],
            error="" if error is None else str(error.__cause__ or error),
        )
    assert played is not None
    return played


class _Plain:
    """The same turns in a loop that shortens nothing, as far as the replay came."""

    def __init__(self, run: RecordedRun, profile: ModelProfile, frame: ModelRequest | None, iterations: int) -> None:
        self.view: list[int] = []
        self.costs: list[float] = []
        self.usage = Usage()
        if frame is None:
            return
        biller, times = Biller(profile), times_of(run)
        reasoning = PLAIN_REASONING if profile.target == "binding" else None
        requests = plain_requests(run, frame, reasoning=reasoning)
        for turn, at, request, _ in zip(run.turns, times, requests, range(iterations), strict=False):
            usage, _ = biller.bill(request, at=at)
            usage = msgspec.structs.replace(usage, output_tokens=output_tokens(turn, profile))
            self.view.append(usage.prompt_tokens)
            self.costs.append(cost_of(profile, usage))
            self.usage += usage
