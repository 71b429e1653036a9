"""Recording the results of tool calls: shaped on arrival, and written in one transaction with their records."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import anyio
import msgspec

from repertory.agents.delegation import REPORTING
from repertory.context import ContextPolicy
from repertory.errors import RepertoryError
from repertory.llm.messages import Text, ToolResult, ToolUse, text_of
from repertory.memory.documents import show_path
from repertory.memory.payload import Payload
from repertory.record import Draft
from repertory.record.entries import Retrieved
from repertory.record.memory_records import ItemInfo, PayloadChanged
from repertory.record.records import ContentStored, OutcomeStatus, Record, ToolFinished
from repertory.record.waiting import Ticket
from repertory.runs.events import AnyEvent, ToolEnded, to_record
from repertory.runs.live import LiveRun
from repertory.runs.log import log
from repertory.runs.payloads import changes_of
from repertory.shortening.shaping import Shaped, shape_result
from repertory.tools import ToolOutput
from repertory.tools.media import showable
from repertory.tools.threads import MAX_ON_LOOP, compute

_TRACEBACK = 16_000  # characters of one that are kept, from its end, which says what was raised and where
_EVENT_FIELDS = ("call_id", "tool", "status", "characters", "shown", "duration", "retrieval")  # copied to the event


class Results:
    """Records the results of one run's calls."""

    def __init__(self, live: LiveRun, policy: ContextPolicy | None) -> None:
        """Prepare for a run; ``policy`` says how results are shaped, None for a plain loop."""
        self._live = live
        self._journal = live.shared.journal
        self._policy = policy
        self._model = live.model

    async def append(
        self, use: ToolUse, output: ToolOutput, iteration: int, payload: Payload | None = None, *, note: str = ""
    ) -> None:
        """Shape a result and record it, with the call's payload changes; ``note`` is appended to it.

        If the model is shown less than the whole, the content store keeps the whole. If the policy says so, memory
        keeps it too.
        """
        output, shaped = await compute(partial(self._redact_and_shape, use, output), size=len(output.text))
        stored = None if shaped.content_id is None else self._stored(use, output, shaped)
        staged = [] if payload is None or output.is_error else payload.staged("tool", use.name)
        # No other change of the payload may come between here and the submission.
        async with nullcontext() if self._live.payload is None else self._live.changing_payload():
            changes, conflicts = changes_of(self._live, staged, call_id=use.id, stored=stored)
            notes = [note, _note_on(changes)] if conflicts else [note]
            draft = self._draft_of(use, output, shaped, iteration, note="\n".join(filter(None, notes)))
            records = [*([] if stored is None else [stored]), *output.records, *changes, *map(to_record, conflicts)]
            bug = output.error if output.error is not None and output.error.cause in ("crash", "result") else None
            trace = "" if bug is None else bug.traceback[-_TRACEBACK:]
            finished, ended = self.end_of(draft, output.status, duration=output.duration, error=trace)
            records = [finished, to_record(ended), *records]
            ticket = await self._remember(use, output, draft, records) if self._is_remembered(use, output) else None
            if ticket is None:
                submit = partial(self._live.ledger.submit, draft, also=records)
                ticket = await compute(submit, size=finished.characters)
            self._live.adopt_payload(changes)
        await ticket.wait()
        for event in (ended, *conflicts):
            self._live.show(event)

    def _is_remembered(self, use: ToolUse, output: ToolOutput) -> bool:
        """Whether a result becomes an item of memory; results from memory or from the record do not."""
        if self._policy is None or not self._policy.rules(use.name).remember:
            return False
        known = output.retrieved is not None or output.source_type == "memory"
        return not (known or output.is_error) and bool(output.text)

    async def _remember(
        self, use: ToolUse, output: ToolOutput, draft: Draft, records: Sequence[Record]
    ) -> Ticket | None:
        """Write a result together with an item of memory that holds it; None if memory does not accept it."""
        live, tickets = self._live, list[Ticket]()

        def write(_info: ItemInfo, items: Sequence[Record]) -> Ticket:
            tickets.append(live.ledger.submit(draft, also=[*records, *items]))
            return tickets[0]

        # A very long result is not copied: the item holds what was shown of it, which names the citation.
        text = output.text if len(output.text) <= MAX_ON_LOOP else text_of(draft.content)
        metadata = {"run": live.run_id, "agent": live.agent.name, "iteration": draft.iteration}
        try:
            with anyio.CancelScope(shield=True):  # the tool has done its work, and that must be on record
                await live.memory.store(
                    text,
                    type="action_result",
                    item_id=self._citation(use),
                    source=output.url or use.name,
                    tags=(use.name,),
                    related_to=(use.id,),
                    metadata={**metadata, "size": len(output.text)},
                    write=write,
                )
        except RepertoryError as error:
            if not tickets:  # otherwise whoever waits for the ticket gets the error
                log(logging.WARNING, "result.not.remembered", run=live.run_id, tool=use.name, reason=str(error))
        return tickets[0] if tickets else None

    def _citation(self, use: ToolUse) -> str:
        """The id of a call's result in the content store and in memory."""
        return "c-" + hashlib.blake2b(f"{self._live.run_id}\0{use.id}".encode(), digest_size=5).hexdigest()

    def _draft_of(self, use: ToolUse, output: ToolOutput, shaped: Shaped, iteration: int, *, note: str) -> Draft:
        """The entry of a result, with ``note`` appended for the model."""
        content = shaped.content
        if note:
            content = f"{content}\n{note}" if isinstance(content, str) else (*content, Text(note))
        return Draft(
            role="user",
            kind="sub-agent-result" if use.name in REPORTING else "action-result",
            content=(ToolResult(use.id, content, is_error=output.is_error),),
            iteration=iteration,
            tool=use.name,
            tool_call_id=use.id,
            content_id=shaped.content_id,
            original_length=shaped.original_length,
            gist=shaped.gist,
            spans=shaped.spans,
            url=output.url,
            facts=output.facts,
            retrieved=output.retrieved,
            covered=self._brings_back_covered(output.retrieved),
            pinned=output.pin,
            metadata=output.metadata,
        )

    def _stored(self, use: ToolUse, output: ToolOutput, shaped: Shaped) -> ContentStored:
        """The stored content of a cited result."""
        return ContentStored(
            content_id=shaped.content_id or "",
            run_id=self._live.run_id,
            source_type=output.source_type,
            source=use.name,
            # A text that the ledger holds whole is read from there.
            body="" if text_of(shaped.content) == output.text else output.text,
            length=len(output.text),
            at=self._live.shared.clock(),
            url=output.url,
            format=output.format,
            retention=self._policy.rules(use.name).retention if self._policy is not None else None,
            metadata=output.metadata,
        )

    def _redact_and_shape(self, use: ToolUse, output: ToolOutput) -> tuple[ToolOutput, Shaped]:
        """The redacted result, and what the model first sees of it; callable from any thread."""
        output = self._journal.redact(output)
        if not isinstance(output.content, str):
            content = showable(output.content, documents=self._model.profile.documents)
            output = msgspec.structs.replace(output, content=content)
        if self._policy is None or output.as_is or output.retrieved is not None:
            # What the agent fetched again comes page by page already, and should not be shortened at once.
            return output, Shaped(content=output.content)
        return output, shape_result(
            output.content,
            rules=self._policy.rules(use.name),
            content_id=self._citation(use),
            tool=use.name,
            url=output.url,
            facts=output.facts,
        )

    async def keep(self, draft: Draft, status: OutcomeStatus) -> None:
        """Write a result together with its outcome."""
        finished, ended = self.end_of(draft, status)
        await self._live.ledger.append(draft, also=[finished, to_record(ended)])
        self._live.show(ended)

    def end_of(self, draft: Draft, status: OutcomeStatus, **more: Any) -> tuple[ToolFinished, AnyEvent]:
        """The record of how a call ended, and the event for it."""
        shown = len(text_of(draft.content))
        finished = ToolFinished(
            run_id=self._live.run_id,
            call_id=draft.tool_call_id or "",
            tool=draft.tool or "",
            status=status,
            at=self._live.shared.clock(),
            deduplicated_from=draft.deduplicated_from or None,
            retrieval=draft.retrieved is not None,
            covered=draft.covered,
            characters=draft.original_length or shown,
            shown=shown,
            **more,
        )
        fields = {name: getattr(finished, name) for name in _EVENT_FIELDS}
        return finished, self._live.event(ToolEnded, **fields, deduplicated=finished.deduplicated_from is not None)

    def _brings_back_covered(self, retrieved: Retrieved | None) -> bool:
        """Whether a retrieval brought back entries that a summary covers."""
        if retrieved is None or retrieved.hint:
            return False
        wanted, cited, plan = retrieved.positions, retrieved.content_id or None, self._live.plan
        return any(
            plan.representation(entry) == "covered"
            for entry in self._live.ledger.snapshot()
            if entry.position in wanted or (cited and entry.content_id == cited)
        )


def _note_on(changes: Sequence[PayloadChanged]) -> str:
    """What the model is told about payload changes that were not made; "" if all were made."""
    lines = [
        f"{show_path(conflict.change.path)}: "
        + (f"changed in version {conflict.version} already" if conflict.version else conflict.reason)
        + f"; this value is kept in the record of version {record.version} alone"
        for record in changes
        for conflict in record.conflicts
    ]
    said = "[payload: not everything could be changed, as others changed it meanwhile."
    return "\n".join([said, *lines]) + "]" if lines else ""
