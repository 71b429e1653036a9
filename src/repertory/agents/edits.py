"""Edits of a run's plan that somebody asks for: expand, pin, unpin; and what stays for a while once it was fetched."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from repertory.agents.events import ContextEdited
from repertory.agents.live import LiveRun
from repertory.context import (
    EMPTY,
    ContextPolicy,
    CoverRange,
    Decision,
    DropThinking,
    Expanded,
    ExpandEntry,
    PinEntry,
    Plan,
    UnpinEntry,
    apply,
    encode_decision,
    events_of,
    expand,
    pin,
)
from repertory.context.ageing import OWN
from repertory.context.events import retrieved
from repertory.errors import ContextError
from repertory.llm.messages import RedactedThinking, Thinking
from repertory.record.entries import Entry
from repertory.record.records import DecisionMade

HOLD = 3  # iterations for which what was expanded or retrieved is left alone, so that it is not taken away at once
_HOLDS = "held for a while"


class PlanEdits:
    """Applies decisions to a run's plan: journalled, published, told to listeners.

    The requests of callers change the plan at once and so show in the next request to the model; the one that is
    under way stays as it is.
    """

    def __init__(
        self,
        live: LiveRun,
        policy: ContextPolicy | None,
        *,
        binding: bool,
        price: Callable[[Decision], Decision],
    ) -> None:
        """Prepare for a run.

        Args:
            live: The run.
            policy: Its policy; None for a plain loop, which nobody can edit.
            binding: Whether the model binds its reasoning to the history before it.
            price: Writes into a decision what it costs.
        """
        self._price = price
        self._live = live
        self._policy = policy
        self._binding = binding
        self._held: dict[int, int] = {}  # position: the last iteration for which it is held
        self._looked = 0  # entries that were looked at for retrievals
        self._changed_from: int | None = None  # the first entry shown otherwise than in the last request; None for none

    def open(self, decisions: Sequence[Decision], *, called_in: int) -> None:
        """Take up the holds where the record left them; ``called_in`` is the iteration of the last model call."""
        self._held.clear()
        self._looked = len(self._live.ledger.snapshot())
        self._changed_from = None
        for decision in decisions:
            temporary = decision.kind == "expand" or decision.reason.startswith(_HOLDS)
            for edit in decision.edits:
                if isinstance(edit, PinEntry) and temporary:
                    self._held[edit.position] = decision.iteration + HOLD
                elif isinstance(edit, PinEntry | UnpinEntry):
                    self._held.pop(edit.position, None)
        if not any(_is_unsent(decision, called_in) for decision in decisions):
            return
        plan = EMPTY
        for decision in decisions:
            before, plan = plan, apply(plan, decision)
            if _is_unsent(decision, called_in):
                self._note_change(before, plan, decision)

    def take(self, decision: Decision) -> DecisionMade:
        """Put a decision into the plan; the record that comes back must go into the journal."""
        live = self._live
        live.plan = apply(live.plan, decision)
        covers = swapped_in(decision)
        live.publish(
            ContextEdited,
            kind=decision.kind,
            reason=decision.sentence,
            tokens_saved=decision.arithmetic.cleared_tokens,
            cost=decision.arithmetic.cost_now,
            saves_per_call=decision.arithmetic.saving_per_call,
            summaries=covers,
            tokens_before=decision.arithmetic.prompt_before,
            tokens_after=decision.arithmetic.prompt_after,
            entries=tuple(edit.position for edit in decision.edits if not isinstance(edit, CoverRange)),
        )
        live.tell(events_of(decision, live.ledger.snapshot(), self._policy))
        return self._record(decision)

    def _record(self, decision: Decision) -> DecisionMade:
        return DecisionMade(
            run_id=self._live.run_id,
            iteration=decision.iteration,
            kind=decision.kind,
            covers=swapped_in(decision),
            body=encode_decision(decision),
            at=self._live.shared.clock(),
        )

    # --- what callers ask for -----------------------------------------------------------------------------

    async def expand(self, position: int, items: tuple[int, int] | None, reason: str) -> None:
        """See ``Run.expand``."""
        live = self._live
        self._need_policy()
        snapshot = live.ledger.snapshot()
        whole = await self._whole(snapshot[position]) if 0 <= position < len(snapshot) else None
        decision = expand(
            snapshot,
            live.plan,
            position,
            iteration=live.iteration + 1,
            whole=whole,
            items=items,
            reason=reason or "asked for",
        )
        if position not in live.plan.pins:
            # Pinned for a while: an old result would be the first to be shortened again.
            decision = msgspec.structs.replace(decision, edits=(PinEntry(position=position), *decision.edits))
            self._held[position] = live.iteration + 1 + HOLD
        await self._live.shared.journal.write([self._take_asked(decision)])

    async def pin(self, position: int, *, on: bool) -> None:
        """See ``Run.pin`` and ``Run.unpin``."""
        live = self._live
        self._need_policy()
        snapshot = live.ledger.snapshot()
        decision = pin(snapshot, position, iteration=live.iteration + 1, on=on)
        self._held.pop(position, None)
        await self._live.shared.journal.write([self._take_asked(decision)])

    def _take_asked(self, decision: Decision) -> DecisionMade:
        before = self._live.plan
        changed = self._note_change(before, apply(before, decision), decision)
        return self.take(self._price(decision) if changed else decision)

    def _note_change(self, before: Plan, after: Plan, decision: Decision) -> bool:
        """Remember from which entry on a decision shows the past otherwise; whether it does."""
        positions = {edit.position for edit in decision.edits if isinstance(edit, ExpandEntry | PinEntry | UnpinEntry)}
        changed = [at for at in positions if _shown_as(before, at) != _shown_as(after, at)]
        if changed:
            self._changed_from = min([*changed, *([] if self._changed_from is None else [self._changed_from])])
        return bool(changed)

    def _need_policy(self) -> None:
        if self._policy is None:
            raise ContextError(
                f"agent {self._live.agent.name} is a plain loop (context=None), which shows everything; there is "
                "nothing to expand or pin"
            )

    async def _whole(self, entry: Entry) -> str | None:
        """What the content store has of an entry that was cut on arrival; None where the ledger has all of it."""
        if entry.content_id is None or not entry.original_length:
            return None
        stored = await self._live.shared.journal.read_content(entry.content_id)
        if stored is None or not stored.body:
            raise ContextError(f"the whole of entry {entry.position} ({entry.content_id}) was cleaned up and is gone")
        return stored.body

    # --- at the boundary ----------------------------------------------------------------------------------

    def at_boundary(self, snapshot: Sequence[Entry], iteration: int) -> list[DecisionMade]:
        """Begin and end holds before a request is planned."""
        if self._policy is None:
            return []
        live, made = self._live, list[DecisionMade]()
        brought = [entry for entry in snapshot[self._looked :] if _brings_back(entry)]
        asked = [e.position for e in snapshot[self._looked :] if e.pinned and e.position not in live.plan.pins]
        self._looked = len(snapshot)
        if brought:
            live.tell(retrieved(self._were_short(brought, snapshot), iteration))
        if asked:
            made.append(self._quietly("its tool asked for it", asked, iteration, on=True))
        fetched = [entry.position for entry in brought if entry.position not in live.plan.pins]
        if fetched:
            self._held.update((position, iteration + HOLD) for position in fetched)
            made.append(self._quietly(f"{_HOLDS}: it was just retrieved", fetched, iteration, on=True))
        over = [position for position, last in self._held.items() if last < iteration]
        if over:
            made.append(self._release(over, iteration))
        made.extend(self._unbind(snapshot, iteration))
        return made

    def _were_short(self, brought: Sequence[Entry], snapshot: Sequence[Entry]) -> list[Entry]:
        """The entries that were brought back although more or less of them was missing in view."""
        told = [entry.retrieved for entry in brought if entry.retrieved is not None]
        positions = {at for each in told for at in each.positions}
        contents = {each.content_id for each in told if each.content_id}
        return [
            entry
            for entry in snapshot
            if (entry.position in positions or entry.content_id in contents)
            and self._live.plan.representation(entry) not in ("verbatim", "expanded")
        ]

    def release(self, iteration: int) -> list[DecisionMade]:
        """Hold nothing any longer, because the prompt does not fit; empty where nothing was held."""
        if not self._held:
            return []
        made = [self._release(list(self._held), iteration)]
        return [*made, *self._unbind(self._live.ledger.snapshot(), iteration)]

    def _unbind(self, snapshot: Sequence[Entry], iteration: int) -> list[DecisionMade]:
        """Drop the reasoning behind a place where the past has changed: the server would refuse it."""
        changed, self._changed_from = self._changed_from, None
        if changed is None or not self._binding or not _has_thinking(snapshot, self._live.plan, behind=changed):
            return []
        end = len(snapshot)
        reason = "what was asked for, or held, changed the past that the reasoning is bound to"
        edits = (DropThinking(position=end),)
        return [self.take(Decision(kind="expand", reason=reason, iteration=iteration, position=end, edits=edits))]

    def _release(self, positions: Sequence[int], iteration: int) -> DecisionMade:
        for position in positions:
            del self._held[position]
        return self._quietly("the hold is over", positions, iteration, on=False)

    def _quietly(self, reason: str, positions: Sequence[int], iteration: int, *, on: bool) -> DecisionMade:
        """A hold changes hardly anything that is shown, so it is journalled and nobody is told."""
        edits = tuple(PinEntry(position=p) if on else UnpinEntry(position=p) for p in positions)
        length = len(self._live.ledger.snapshot())
        decision = Decision(kind="pin", reason=reason, iteration=iteration, position=length, edits=edits)
        before, self._live.plan = self._live.plan, apply(self._live.plan, decision)
        self._note_change(before, self._live.plan, decision)
        return self._record(decision)


def _is_unsent(decision: Decision, called_in: int) -> bool:
    """Whether a decision was asked for after the last model call, so that no request has shown it."""
    return decision.kind in ("expand", "pin") and decision.iteration > called_in


def _brings_back(entry: Entry) -> bool:
    """Whether an entry is what the agent retrieved; a hint at it brings nothing back."""
    return entry.retrieved is not None and not entry.retrieved.hint


def _shown_as(plan: Plan, position: int) -> object:
    """How an entry is shown, in a form that can be compared between two plans."""
    cover = plan.cover_of(position)
    if cover is not None and position not in plan.kept(cover):
        return "covered"
    shown = plan.shown.get(position)
    verbatim = shown is None or (isinstance(shown, Expanded) and shown.content is None)
    return "verbatim" if verbatim else shown


def _has_thinking(snapshot: Sequence[Entry], plan: Plan, *, behind: int) -> bool:
    return any(
        isinstance(block, Thinking | RedactedThinking)
        for entry in snapshot[max(plan.start, plan.thinking_from, behind + 1) :]
        for block in entry.content
    )


def swapped_in(decision: Decision) -> int:
    """How many of the summarizer's summaries a decision shows; the planner's own digests do not count."""
    return sum(isinstance(edit, CoverRange) and edit.strategy not in OWN for edit in decision.edits)
