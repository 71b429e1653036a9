"""The plan of one run: every change of it is made and recorded here, including what callers ask to be shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from repertory.context import EMPTY, ContextPolicy, Decision, Plan, apply, encode_decision
from repertory.context.decisions import entry_at, expansion
from repertory.context.lifecycle import events_of, retrieved
from repertory.context.plan import TRAIL, CoverRange, DropThinking, Edit, PinEntry, StubResult, UnpinEntry
from repertory.errors import ContextError
from repertory.record import Entry, Snapshot
from repertory.record.records import DecisionMade, Record
from repertory.runs.events import ContextEdited, to_record
from repertory.runs.live import LiveRun

_PIN_ITERATIONS = 3  # that expanded or retrieved entries stay, so that they are not shortened again at once


class PlanEdits:
    """Applies decisions to a run's plan, tells those who watch, and keeps the records for the journal.

    What callers ask for changes the plan at once, and so the next request; a request in progress stays as it is.
    """

    def __init__(
        self, live: LiveRun, policy: ContextPolicy | None, *, binding: bool, price: Callable[[Decision], Decision]
    ) -> None:
        """Prepare for a run.

        Args:
            live: The run.
            policy: Its policy; None for a plain loop, whose plan cannot be edited.
            binding: Whether the model binds its reasoning to the history before it.
            price: Adds its cost to a decision.
        """
        self._live = live
        self._policy = policy
        self._binding = binding
        self._price = price
        self._records: list[Record] = []
        self._ending_pins: dict[int, int] = {}  # pins that end by themselves: position to last iteration
        self._checked = 0  # entries that have been checked for what to pin
        self._past_changed = False  # whether a caller changed it after the reasoning in view was made

    def open(self, decisions: Sequence[Decision], *, answered_in: int, shown: int) -> None:
        """Restore the plan from the recorded decisions.

        Args:
            decisions: The decisions, in order.
            answered_in: The iteration of the last answered call.
            shown: For how many entries requests have been made.
        """
        plan = EMPTY
        for decision in decisions:
            before, plan = plan, apply(plan, decision)
            if decision.kind in ("expand", "pin") and decision.iteration > answered_in:
                self._past_changed = self._past_changed or plan.epoch != before.epoch
            for edit in decision.edits:
                if isinstance(edit, PinEntry) and edit.until:
                    self._ending_pins[edit.position] = edit.until
                elif isinstance(edit, PinEntry | UnpinEntry):
                    self._ending_pins.pop(edit.position, None)
        self._live.plan = plan
        self._checked = shown

    def adopt(self, decision: Decision, plan: Plan, *, notify: bool = True) -> None:
        """Adopt the plan that a decision made. Our own pins change hardly anything, so they use ``notify=False``."""
        live, arithmetic = self._live, decision.arithmetic
        live.plan = plan
        covers = sum(isinstance(edit, CoverRange) and edit.strategy != TRAIL for edit in decision.edits)
        self._records.append(
            DecisionMade(
                run_id=live.run_id,
                iteration=decision.iteration,
                kind=decision.kind,
                covers=covers,
                body=encode_decision(decision),
                at=live.shared.clock(),
            )
        )
        if not notify:
            return
        event = live.event(
            ContextEdited,
            kind=decision.kind,
            reason=decision.sentence,
            tokens_saved=arithmetic.cleared_tokens,
            cost=arithmetic.cost_now,
            saves_per_call=arithmetic.saving_per_call,
            summaries=covers,
            tokens_before=arithmetic.prompt_before,
            tokens_after=arithmetic.prompt_after,
            entries=tuple(edit.position for edit in decision.edits if not isinstance(edit, CoverRange)),
        )
        self._records.append(to_record(event))
        live.show(event)
        live.listeners.tell(events_of(decision, live.ledger.snapshot()))

    def records(self) -> list[Record]:
        """Return the records since the last call, for the journal."""
        records, self._records = self._records, []
        return records

    def decide(self, kind: str, reason: str, iteration: int, *edits: Edit, notify: bool = False) -> None:
        """Make a decision that is not the planner's and has no price."""
        plan, decision = self._live.plan, self._decision(kind, reason, iteration, edits)
        after = apply(plan, decision)
        self._past_changed = self._past_changed or after.epoch != plan.epoch
        self.adopt(decision, after, notify=notify)

    def leave_out(self, kind: str, reason: str, stubs: Sequence[StubResult], *, turn: int) -> None:
        """Show stubs of results that cannot be sent, also of pinned ones; the model's last turn is at ``turn``."""
        pinned = [stub.position for stub in stubs if stub.position in self._live.plan.pins]
        for position in pinned:
            self._ending_pins.pop(position, None)
        edits: tuple[Edit, ...] = (*(UnpinEntry(position=position) for position in pinned), *stubs)
        # No reasoning is bound to results that the model has not answered.
        self._past_changed = self._past_changed or any(stub.position < turn for stub in stubs)
        decision = self._decision(kind, reason, self._live.iteration, edits)
        self.adopt(decision, apply(self._live.plan, decision))

    def _decision(self, kind: str, reason: str, iteration: int, edits: tuple[Edit, ...]) -> Decision:
        end = len(self._live.ledger.snapshot())
        return Decision(kind=kind, reason=reason, iteration=iteration, position=end, edits=edits)

    # --- what callers ask for -----------------------------------------------------------------------------

    async def expand(self, position: int, items: tuple[int, int] | None, reason: str) -> None:
        """See ``Run.expand``."""
        snapshot, until = self._editable(), self._live.iteration + 1 + _PIN_ITERATIONS
        whole = await self._read_whole(entry_at(snapshot, position))
        edits: list[Edit] = [expansion(snapshot, self._live.plan, position, whole=whole, items=items)]
        if position not in self._live.plan.pins:  # it is old, so it would be shortened again first
            self._ending_pins[position] = until
            edits.insert(0, PinEntry(position=position, until=until))
        await self._adopt_asked("expand", reason or "asked for", *edits)

    async def pin(self, position: int, *, on: bool) -> None:
        """See ``Run.pin`` and ``Run.unpin``."""
        entry_at(self._editable(), position)
        self._ending_pins.pop(position, None)
        edit = PinEntry(position=position) if on else UnpinEntry(position=position)
        await self._adopt_asked("pin", "asked for", edit)

    async def _adopt_asked(self, kind: str, reason: str, *edits: Edit) -> None:
        decision = self._decision(kind, reason, self._live.iteration + 1, edits)
        before, after = self._live.plan, apply(self._live.plan, decision)
        if after.epoch != before.epoch:  # else nothing is shown differently, and it costs nothing
            self._past_changed = True
            decision = self._price(decision)
        self.adopt(decision, after)
        await self._live.shared.journal.write(self.records())

    def _editable(self) -> Snapshot:
        if self._policy is None:
            raise ContextError(
                f"agent {self._live.agent.name} is a plain loop (context=None), which shows everything; there is "
                "nothing to expand or pin"
            )
        return self._live.ledger.snapshot()

    async def _read_whole(self, entry: Entry) -> str | None:
        """Read the whole of an entry that was cut on arrival from the content store; None if the ledger has it."""
        if entry.content_id is None or not entry.original_length:
            return None
        stored = await self._live.shared.journal.read_content(entry.content_id, root=self._live.run_id)
        if stored is None or not stored.body:
            raise ContextError(f"the whole of entry {entry.position} ({entry.content_id}) was cleaned up and is gone")
        return stored.body

    # --- before a request ---------------------------------------------------------------------------------

    def pin_new(self, snapshot: Sequence[Entry], iteration: int) -> None:
        """Pin new entries: for good if their tool says so, for a while if the agent retrieved them."""
        live, until = self._live, iteration + _PIN_ITERATIONS
        requested, fetched = list[Entry](), list[Entry]()
        for entry in snapshot[self._checked :]:
            if entry.pinned and entry.position not in live.plan.pins:
                requested.append(entry)
            if entry.retrieved is not None and not entry.retrieved.hint:
                fetched.append(entry)
        self._checked = len(snapshot)
        if requested:
            pins = (PinEntry(position=entry.position) for entry in requested)
            self.decide("pin", "its tool asked for it", iteration, *pins)
        if fetched:
            live.listeners.tell(retrieved(_not_whole(fetched, snapshot, live.plan), iteration))
            fetched = [entry for entry in fetched if entry.position not in live.plan.pins]
        if fetched:
            self._ending_pins.update((entry.position, until) for entry in fetched)
            pins = (PinEntry(position=entry.position, until=until) for entry in fetched)
            self.decide("pin", "it was just retrieved", iteration, *pins)
        self._end_pins([position for position, last in self._ending_pins.items() if last < iteration], iteration)

    def end_temporary_pins(self, iteration: int) -> None:
        """End all temporary pins, because the prompt does not fit."""
        self._end_pins(list(self._ending_pins), iteration)

    def _end_pins(self, positions: Sequence[int], iteration: int) -> None:
        """End pins, and drop reasoning after a past that a caller has changed: a server would refuse it."""
        for position in positions:
            del self._ending_pins[position]
        if positions:
            edits = (UnpinEntry(position=position) for position in positions)
            self.decide("pin", "the hold is over", iteration, *edits)
        if self._past_changed and self._binding:
            reason = "what was asked for, or held, changed the past that the reasoning is bound to"
            drop = DropThinking(position=len(self._live.ledger.snapshot()))
            self.decide("expand", reason, iteration, drop, notify=True)
        self._past_changed = False


def _not_whole(fetched: Sequence[Entry], snapshot: Sequence[Entry], plan: Plan) -> list[Entry]:
    """Return the entries that the agent retrieved of which something was missing in view."""
    found_by = [entry.retrieved for entry in fetched if entry.retrieved is not None]
    positions = {at for each in found_by for at in each.positions}
    contents = {each.content_id for each in found_by} - {""}
    found = [entry for entry in snapshot if entry.position in positions or entry.content_id in contents]
    return [entry for entry in found if plan.representation(entry) not in ("verbatim", "expanded")]
