"""Teams: what a lead has delegated to its sub-agents, and the tools with which it delegates.

Everything can be found from the record. A delegation's run has an id that follows from the tool call, so a call that is
made again after a crash finds the run that it began. Runs started in the background are found in the lead's ledger, and
continue together with the lead.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Literal, Protocol

import anyio
import msgspec

from repertory._counting import counted
from repertory._frozen import thaw
from repertory._ids import is_below
from repertory._json_text import canonical_json
from repertory.actors import ActorContext
from repertory.agents.agent import Agent
from repertory.agents.delegation import CANCEL, COLLECT, DELEGATE, MESSAGE, START
from repertory.agents.tasks import read_task, task_schema
from repertory.errors import ConfigurationError, LimitExceeded, PayloadInvalid, RunError, ToolFailed, ToolRetry
from repertory.llm.messages import Json, tool_uses
from repertory.record import Snapshot
from repertory.runs.end import RunEnd
from repertory.runs.inbox import Said
from repertory.runs.live import LiveRun
from repertory.runs.payloads import bring_back
from repertory.tools import Tool, ToolContext, ToolOutput, tool
from repertory.tools.execution import Unfinished

_ALONE = "It sees nothing of your conversation: say"
_SHARED = "It sees nothing of your conversation but what you share: say"
_DELEGATE = """\
Hand a part of your work to a member of your team and get its report. {sees}
in the task all that it needs to know, what exactly to bring back, and what to leave out. Call this several times
in one turn to have parts worked on side by side.

Your team:
"""
_START = """\
Hand a part of your work to a member of your team and go on with your own; the answer is the id of its run. What it
needs to know is the same as for delegate. Get its report with delegate_collect before you answer.
"""
_COLLECT = """\
Wait for sub-agents that you started, and get their reports. A report can be collected again.
"""
_MESSAGE = """\
Say something to a sub-agent that is at work: what has changed, what it may leave out. It reads that before its next
step, as your words.
"""
_CANCEL = """\
End a sub-agent now, whatever it is doing. Its record stays; it brings no report.
"""


class SubRuns(Protocol):
    """Starts and continues the runs below a lead, in this process or, if they are placed, on another machine."""

    async def id_below(self, parent: LiveRun, agent: Agent[Any], key: str) -> str:
        """The id of the run of a delegation: the same whenever the call with this key is repeated."""
        ...

    async def spawn_below(
        self, parent: LiveRun, agent: Agent[Any], task: str, *, run_id: str, call_id: str, options: Json
    ) -> LiveRun:
        """Start the run of a delegation, or find and continue it. Raises ``LimitExceeded``."""
        ...

    async def find_below(self, parent: LiveRun, run_id: str) -> LiveRun | None:
        """A run that was begun before: under way, continued, or ended; None if it can no longer be found."""
        ...

    async def tell(self, live: LiveRun, message_id: str, said: Said) -> None:
        """Send a message to a run. Raises ``RunError`` if it has ended, and ``MachineSilent``."""
        ...


class Delegated:
    """One delegation.

    Attributes:
        run_id: The id of its first run, by which the lead knows it.
        live: The run that works on it: the first, or after a failure the one that retries the task.
        attempt: The number of that attempt, from 1.
        why: Why it was cancelled in this process; "" if it was not.
        postponed: Whether it failed, and another run gets the task once the tree is resumed.
        settled: Set when no run works on it any more, or will in this incarnation of the lead.
    """

    def __init__(self, run_id: str, live: LiveRun, attempt: int = 1) -> None:
        self.run_id = run_id
        self.live = live
        self.attempt = attempt
        self.why = ""
        self.postponed = False
        self.settled = anyio.Event()

    @property
    def name(self) -> str:
        """The run and its agent, as shown to the lead."""
        return f"{self.run_id} ({self.live.agent.name})"

    @property
    def is_unfinished(self) -> bool:
        """Whether it stays as it is until the tree is resumed."""
        end = self.live.end
        stopped = end is not None and end.state == "stopped" and self.live.waits_for_tree
        return self.settled.is_set() and (end is None or stopped or self.postponed)

    @property
    def standing(self) -> str:
        """Its state, in a few words."""
        live, end = self.live, self.live.end
        iterations = counted(live.iteration, "iteration")
        after = f"after {iterations}"
        if not self.settled.is_set() or end is None:
            if live.in_line:
                return "waits for a machine" if live.elsewhere else "waits for its turn"
            return "still at work" + ("" if live.elsewhere else f", {iterations} so far")
        if end.state == "done":
            return f"done {after}"
        if end.state == "failed":
            which = f" in attempt {self.attempt}" if self.attempt > 1 else ""
            return f"failed {after}{which}: {end.error}"
        return f"was cancelled {after}: {self.why}" if self.why else f"was stopped {after}, before it had an answer"


class Team:
    """The delegations of one lead during one incarnation of its actor, and the tools for them."""

    def __init__(self, live: LiveRun, runs: SubRuns, actor: ActorContext) -> None:
        """Begin empty; tasks that it starts live as long as this incarnation of the lead's ``actor``."""
        self._live = live
        self._runs = runs
        self._actor = actor
        self._policy = live.agent.delegation
        self._members = {member.name: member for member in live.agent.team}
        self._known: dict[str, Delegated] = {}
        self._by_call: dict[str, str] = {}  # the runs that were started in the background
        self._collected: set[str] = set()
        self._lost: list[str] = []  # of which there will be no report
        self._reminded: set[str] = set()
        self._ending = False
        self._failed_in = 0  # the iteration whose delegations one failure has cancelled
        self._beginning = anyio.Lock()  # sub-agents begin one after the other, in the order of their calls

    async def open(self, snapshot: Snapshot) -> None:
        """Continue what the lead had started in the background, in an earlier process or incarnation."""
        for entry in snapshot:
            if entry.tool == START and "run" in entry.facts:
                self._by_call[entry.tool_call_id or ""] = entry.facts["run"]
            elif entry.tool == COLLECT:
                self._collected.update(entry.facts.get("collected", ()))
        for run_id in self._started():
            if run_id not in self._collected and await self._find(run_id) is None:
                self._lost.append(run_id)
        self._collected.update(self._lost)

    def _started(self) -> list[str]:
        """The runs that were started in the background, in the order in which the lead asked for them."""
        turns = (entry for entry in self._live.ledger.snapshot() if entry.role == "assistant")
        return [self._by_call[use.id] for turn in turns for use in tool_uses(turn.content) if use.id in self._by_call]

    def _started_before(self) -> frozenset[str]:
        """The runs that were started before the user last said something: an earlier answer did without them."""
        snapshot = self._live.ledger.snapshot()
        asked = max((entry.position for entry in snapshot if entry.kind == "user-input"), default=0)
        return frozenset(
            entry.facts["run"] for entry in snapshot[:asked] if entry.tool == START and "run" in entry.facts
        )

    def reminder(self) -> str:
        """The reminder for a lead that answers before it has collected what it started; "" if none is due or left.

        Most answers that are given while sub-agents work only say that the lead waits for them.
        """
        left = [
            delegated
            for run_id in self._started()
            if run_id not in self._collected and (delegated := self._known.get(run_id)) and not delegated.why
        ]
        before = self._started_before() if left else frozenset[str]()
        left = [each for each in left if not (each.run_id in before and each.live.ended.is_set())]
        if not left or self._reminded.issuperset(delegated.run_id for delegated in left):
            return ""
        self._reminded.update(delegated.run_id for delegated in left)
        listed = "".join(f"\n- {delegated.name}: {delegated.standing}" for delegated in left)
        return (
            f"You have answered, and have not collected all that you started:{listed}\n"
            f"Collect what your answer needs ({COLLECT}). Or give your answer again, if it stands without: then those "
            "still at work are stopped."
        )

    async def end(self, end: RunEnd) -> None:
        """End the sub-agents that are under way, before the lead's own ``end`` is recorded.

        If the lead is stopped, they stop at their own next boundary; otherwise they are ended at once.
        """
        for_good = self._live.settles_tree(end)
        self._ending = True
        async with self._beginning:  # what is about to begin is among the children afterwards
            pass
        for child in self._live.children:
            if for_good and not child.ended.is_set():
                child.stop_asked = True
            if self._live.desired_state != "stop" and not child.ended.is_set():
                child.kill(alone=False)
        while left := [child for child in self._live.children if not child.ended.is_set()]:
            await left[0].ended.wait()

    # --- the tools ----------------------------------------------------------------------------------------

    def tools(self) -> list[Tool]:
        """Make the lead's tools, with its team's names in the schema."""
        if not self._members:
            return []
        roster = "".join(f"- {member.name}: {member.summary}\n" for member in self._members.values())
        sees = _SHARED if self._policy.share else _ALONE
        out = [self._tool(self._delegate, DELEGATE, _DELEGATE.format(sees=sees) + roster)]
        if self._policy.background:
            out += [
                self._tool(self._start, START, _START),
                self._tool(self._collect, COLLECT, _COLLECT),
                self._tool(self._message, MESSAGE, _MESSAGE),
                self._tool(self._cancel, CANCEL, _CANCEL),
            ]
        return out

    def _tool(self, function: Callable[..., Awaitable[ToolOutput]], name: str, description: str) -> Tool:
        """Make a tool from a method, without the arguments for which this lead has no choice."""
        choices: dict[str, Any] = {"agent": Literal[tuple(self._members)]}
        for argument, values in (("memory", self._policy.memory), ("share", self._policy.share)):
            choice: Any = Literal[tuple(values)] if values else None
            choices[argument] = choice | None if values else None
        signature = inspect.signature(function)
        chosen = [
            parameter.replace(annotation=choices.get(argument, parameter.annotation))
            for argument, parameter in signature.parameters.items()
            if choices.get(argument, ...) is not None
        ]

        async def call(**arguments: Any) -> ToolOutput:
            return await function(**arguments)

        call.__doc__ = function.__doc__
        call.__signature__ = signature.replace(parameters=chosen)  # type: ignore[attr-defined]
        made = tool(call, name=name, description=description, effect="idempotent", deadline=None, output_cap=None)
        return self._with_tasks(made) if "task" in signature.parameters else made

    def _with_tasks(self, made: Tool) -> Tool:
        """State in a tool's schema what tasks the members take."""
        takes: dict[bytes, tuple[Json, list[str]]] = {}
        for member in self._members.values():
            kind = task_schema(member)
            takes.setdefault(canonical_json(kind), (kind, []))[1].append(member.name)
        kinds = [{**kind, "description": f"for {', '.join(names)}"} for kind, names in takes.values()]
        schema = thaw(made.input_schema)
        shown = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
        schema["properties"]["task"] = {**shown, "description": "What to do, complete in itself."}
        definition = msgspec.structs.replace(made.definition, input_schema=schema)
        return msgspec.structs.replace(made, definition=definition)

    async def _delegate(
        self, agent: str, task: Any, context: ToolContext, memory: str | None = None, share: str | None = None
    ) -> ToolOutput:
        """Args:
        agent: Who is to do it.
        task: What to do, complete in itself.
        memory: Whose memory it uses: yours (shared), yours as it is now (snapshot), its own (isolated).
        share: What of your own record to hand on: your newest summary, or the trail of all that you did.
        """
        delegated = await self._begin(agent, task, context, memory, share)
        await self._wait(delegated.settled.is_set)
        if delegated.is_unfinished:
            raise Unfinished
        live, end = delegated.live, delegated.live.end
        if end is None or end.state != "done":
            raise ToolFailed(f"{agent} {delegated.standing}")
        bring_back(context.payload, live.run_id, live.payload)
        facts = {"run": live.run_id, "agent": agent, "iterations": live.iteration}
        form = "markdown" if live.agent.output_type is None else "json"
        return ToolOutput(end.result or "", source_type="agent", format=form, facts=facts)

    async def _start(
        self, agent: str, task: Any, context: ToolContext, memory: str | None = None, share: str | None = None
    ) -> ToolOutput:
        """Args:
        agent: Who is to do it.
        task: What to do, complete in itself.
        memory: Whose memory it uses: yours (shared), yours as it is now (snapshot), its own (isolated).
        share: What of your own record to hand on: your newest summary, or the trail of all that you did.
        """
        delegated = await self._begin(agent, task, context, memory, share)
        self._by_call[context.call_id] = delegated.run_id
        return ToolOutput(f"{agent} has begun as run {delegated.run_id}", facts={"run": delegated.run_id})

    async def _collect(
        self, context: ToolContext, runs: list[str] | None = None, wait: Literal["all", "any"] = "all"
    ) -> ToolOutput:
        """Args:
        runs: The ids of their runs; by default of all that you have not collected.
        wait: Whether to wait for all of them, or until any one has ended.
        """
        if not runs:
            runs = [run_id for run_id in self._started() if run_id not in self._collected]
            if not runs:
                why = "you have every report" if self._by_call else "you have started nobody"
                lost = "; ".join(map(self._why_lost, self._lost))
                return ToolOutput(f"there is nothing to collect: {lost or why}")
        chosen = [await self._named(run_id) for run_id in dict.fromkeys(runs)]
        new = [delegated for delegated in chosen if delegated.run_id not in self._collected] or chosen
        enough = any if wait == "any" else all
        await self._wait(lambda: self._live.inbox.has_unread or enough(delegated.settled.is_set() for delegated in new))
        if any(delegated.is_unfinished for delegated in chosen):
            raise Unfinished
        told: list[str] = []
        collected: list[str] = []
        for delegated in chosen:
            told.append(f"run {delegated.name}: {delegated.standing}")
            if not delegated.settled.is_set():
                continue
            collected.append(delegated.run_id)
            end = delegated.live.end
            if end is not None and end.state == "done":
                bring_back(context.payload, delegated.live.run_id, delegated.live.payload)
                # Indented, so that no report can be mistaken for another one, or for the text around it.
                lines = (end.result or "").splitlines(keepends=True)
                told[-1] += "\n" * bool(lines) + "".join(f" {line}" for line in lines)
        if not enough(delegated.settled.is_set() for delegated in new):
            told.append("You were spoken to while you waited. Collect again when you have read that.")
        self._collected.update(collected)
        return ToolOutput("\n\n".join(told), source_type="agent", format="markdown", facts={"collected": collected})

    async def _message(self, run: str, message: str, context: ToolContext) -> ToolOutput:
        """Args:
        run: The id of its run.
        message: What to say.
        """
        delegated = await self._named(run)
        live, message_id = delegated.live, f"lead-{context.idempotency_key}"
        if message_id not in live.inbox and (live.ending or live.ended.is_set()):
            await delegated.settled.wait()
            raise ToolFailed(f"{delegated.name} does not hear it: {delegated.standing}")
        said = Said(live.shared.journal.redact(message), sender=self._live.run_id)
        try:
            await self._runs.tell(live, message_id, said)
        except RunError as error:
            raise ToolFailed(f"{delegated.name}: {error}") from error
        return ToolOutput(f"{delegated.name} reads it before its next step")

    async def _cancel(self, run: str, context: ToolContext) -> ToolOutput:
        """Args:
        run: The id of its run.
        """
        delegated = await self._named(run)
        if delegated.settled.is_set():
            return ToolOutput(f"{delegated.name} has ended already: {delegated.standing}")
        self._kill(delegated, "by you")
        await self._wait(delegated.settled.is_set)
        return ToolOutput(f"{delegated.name} {delegated.standing}")

    # --- one delegation -----------------------------------------------------------------------------------

    async def _begin(
        self, agent: str, task: object, context: ToolContext, memory: str | None, share: str | None
    ) -> Delegated:
        """Start the run of a delegation, or continue the one that the same call began.

        Raises:
            ToolFailed: There is no room for it, or another delegation of the same turn has failed.
        """
        async with self._beginning:
            if self._failed_in == context.iteration:
                raise ToolFailed(f"{agent} was not started: another delegation of this turn has failed")
            run_id = await self._runs.id_below(self._live, self._members[agent], context.idempotency_key)
            try:
                text = read_task(self._members[agent], task)
            except ConfigurationError as error:
                raise ToolRetry(str(error)) from error
            choices = {"memory": memory, "share": share}
            options = {name: value for name, value in choices.items() if value is not None}
            try:
                live = await self._runs.spawn_below(
                    self._live, self._members[agent], text, run_id=run_id, call_id=context.call_id, options=options
                )
            except (LimitExceeded, PayloadInvalid, ConfigurationError) as error:
                raise ToolFailed(f"{agent} was not started: {error}") from error
        found = await self._find(run_id) if live.ended.is_set() else None  # the task may have been retried
        return found or self._follow(Delegated(run_id, live))

    async def _named(self, run_id: str) -> Delegated:
        """The delegation that was started with an id.

        Raises:
            ToolRetry: There is none.
            ToolFailed: There will be no report of it.
        """
        started = self._started()
        if run_id not in started:
            ids = ", ".join(self._known[run].name if run in self._known else run for run in started) or "none"
            raise ToolRetry(f"you started no sub-agent {run_id!r}; you started {ids}")
        found = self._known.get(run_id) or await self._find(run_id)
        if found is None:
            raise ToolFailed(self._why_lost(run_id))
        return found

    def _why_lost(self, run_id: str) -> str:
        is_ours = is_below(run_id, self._live.run_id)
        why = "its agent is no longer in your team" if is_ours else "it belongs to the run that yours was forked from"
        return f"run {run_id} does not go on: {why}"

    async def _find(self, run_id: str) -> Delegated | None:
        """Continue what an earlier process or incarnation began; None if there is no such run."""
        found: Delegated | None = None
        attempt = 1
        while (live := await self._runs.find_below(self._live, _attempt_id(run_id, attempt))) is not None:
            found = Delegated(run_id, live, attempt)
            attempt += 1
        return None if found is None else self._follow(found)

    def _follow(self, delegated: Delegated) -> Delegated:
        self._known[delegated.run_id] = delegated
        if delegated.live.ended.is_set() and not self._is_to_be_retried(delegated):
            delegated.settled.set()  # long ago: it cancels nobody any more
        else:
            self._actor.start_soon(self._supervise, delegated)
        return delegated

    def _is_to_be_retried(self, delegated: Delegated) -> bool:
        end = delegated.live.end
        failed = end is not None and end.state == "failed" and not delegated.why
        return failed and self._policy.on_failure == "retry" and delegated.attempt <= self._policy.retries

    async def _supervise(self, delegated: Delegated) -> None:
        """Wait for a delegation's end, and handle its failure as ``Delegation.on_failure`` says."""
        await delegated.live.ended.wait()
        while self._is_to_be_retried(delegated):
            async with self._beginning:
                delegated.postponed = self._ending or self._live.desired_state in ("stop", "close")
                if delegated.postponed or not await self._retry(delegated):
                    break
            await delegated.live.ended.wait()
        end = delegated.live.end
        if end is not None and end.state == "failed" and self._policy.on_failure == "fail_fast" and not delegated.why:
            self._failed_in = self._live.iteration
            others = [other for other in self._known.values() if not (other is delegated or other.settled.is_set())]
            for other in others:
                self._kill(other, f"{delegated.name} failed")
            for other in others:
                await other.live.ended.wait()  # so that its end is on record before the lead learns of the failure
        delegated.settled.set()
        self._live.wake()

    async def _retry(self, delegated: Delegated) -> bool:
        """Give the task to another run, and tell it what went wrong; returns whether there was room for one."""
        before, end = delegated.live, delegated.live.end
        assert end is not None
        attempt = delegated.attempt + 1
        try:
            live = await self._runs.spawn_below(
                self._live,
                before.agent,
                before.started.task,
                run_id=_attempt_id(delegated.run_id, attempt),
                call_id=before.started.parent_call_id or "",
                options={**before.started.options, "failed": end.error or ""},
            )
        except (LimitExceeded, PayloadInvalid, ConfigurationError):
            return False
        delegated.live, delegated.attempt = live, attempt
        if delegated.why:  # meanwhile
            live.kill()
        return True

    def _kill(self, delegated: Delegated, why: str) -> None:
        delegated.why = why
        if not delegated.live.ended.is_set():
            delegated.live.kill()

    async def _wait(self, ready: Callable[[], bool]) -> None:
        self._live.waiting += 1
        try:
            while not ready():
                await self._live.wait_for_change()
        finally:
            self._live.waiting -= 1


def _attempt_id(run_id: str, attempt: int) -> str:
    return run_id if attempt == 1 else f"{run_id}-{attempt}"
