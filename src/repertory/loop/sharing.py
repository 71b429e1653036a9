"""Which records a run may see: what a sub-agent is given at its start, and what a run's tools may read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from repertory._ids import is_below, root_of
from repertory.agents.tasks import show_task
from repertory.context.projection import document
from repertory.llm.messages import Block, Text, text_of
from repertory.llm.profiles import canonical_name
from repertory.record import Draft, Entry, Journal, Snapshot
from repertory.record.records import ContentStored
from repertory.record.search import SearchHit
from repertory.runs.live import LiveRun
from repertory.shortening.trail import bounded_trail
from repertory.tools import RunRecord
from repertory.tools.media import Media, showable
from repertory.views.policies import layered_policy

SHARED_TOKENS: Final = 4_000
"""How much of a lead's record is handed on. It stays in view for the whole run: a 25th of a comfortable prompt."""
_MOST_BEFORE: Final = SHARED_TOKENS // 4  # of these, for what came before a summary


# --- at the start -----------------------------------------------------------------------------------------


async def first_drafts(live: LiveRun, attachments: Sequence[Media]) -> list[Draft]:
    """Make the first entries of a run, oldest first; the ``attachments`` are shown with its task."""
    options, lead = live.started.options, live.parent
    shown = showable(attachments, documents=live.model.profile.documents)
    content = (*shown, Text(show_task(live.agent, live.started.task)))
    drafts = [Draft(role="user", kind="task", content=content)]
    if lead is not None and (share := options.get("share")):
        block = _as_document(live, lead, await _digest(lead, summarized=share == "summary"))
        drafts.append(Draft(role="user", kind="system", content=(block,), facts={"run": lead.run_id}, pinned=True))
    if failed := options.get("failed"):
        text = f"[An earlier attempt at this task failed: {failed}]"
        drafts.append(Draft(role="user", kind="retry-context", content=(Text(text),)))
    return drafts


def shared_with(live: LiveRun) -> list[str]:
    """The runs whose record was shared with a run when it began."""
    first = live.ledger.snapshot()[:3]  # what ``first_drafts`` made
    return [entry.facts["run"] for entry in first if entry.kind == "system" and "run" in entry.facts]


async def _digest(lead: LiveRun, *, summarized: bool) -> str:
    """What a lead knows before the turn in which it delegates: its newest summary and a trail of the rest, or a trail
    of everything.
    """
    entries: list[Entry] = [*lead.ledger.snapshot()]
    while entries and entries.pop().role != "assistant":
        pass
    summaries = await lead.shared.journal.read_summaries(lead.run_id) if summarized else []
    # A summary that only its provider can read is of no use to others.
    newest = max((each for each in summaries if text_of(each.content)), key=lambda each: each.last, default=None)
    if newest is None:
        return bounded_trail(entries, tokens=SHARED_TOKENS, retrieval=False)
    before, after = entries[: newest.first], entries[newest.last + 1 :]
    text = text_of(newest.content)
    if before:
        text = f"{bounded_trail(before, tokens=_MOST_BEFORE, retrieval=False)}\n{text}"
    return bounded_trail(after, tokens=SHARED_TOKENS, previous=text, retrieval=False)


def _as_document(live: LiveRun, lead: LiveRun, text: str) -> Block:
    """A digest as shown to a sub-agent. It contains text from tools, so it must not look like somebody's message."""
    policy = layered_policy(live)
    can_ask = policy is not None and policy.retrieval
    how = f"; context_retrieve(run={lead.run_id!r}, …) shows any of it whole" if can_ask else ""
    title = f"what {lead.agent.name} knows, who gave you this task: from the record of its run {lead.run_id}{how}"
    if canonical_name(live.model.name).startswith("claude"):
        return document(title, text)
    lines = "".join(f"\n {line}" for line in text.splitlines())  # other servers may know no documents
    return Text(f"[{title}]{lines}")


# --- for its tools ----------------------------------------------------------------------------------------


class _Record:
    """The record of one run, for reading."""

    def __init__(self, journal: Journal, run_id: str, entries: Sequence[Entry]) -> None:
        self._journal = journal
        self._run_id = run_id
        self._entries = entries

    def snapshot(self) -> Sequence[Entry]:
        return self._entries

    async def search(self, query: str, *, limit: int = 20) -> Sequence[SearchHit]:
        return await self._journal.search_entries(self._run_id, query, limit=limit)

    async def of_run(self, run_id: str) -> None:
        """None: the run that reads decides what else it may read."""

    def others(self) -> Sequence[str]:
        return ()


class Reading:
    """What the tools of a run may read: its own record, those below it and shared with it, and its tree's contents.

    A citation id is not a secret: it appears in answers, logs and URLs. So knowing one must not give access to another
    tree's contents.
    """

    def __init__(self, live: LiveRun) -> None:
        self._live = live
        self._journal = live.shared.journal

    def snapshot(self) -> Snapshot:
        """The run's own ledger."""
        return self._live.ledger.snapshot()

    async def search(self, query: str, *, limit: int = 20) -> Sequence[SearchHit]:
        """Search the run's own ledger."""
        return await self._journal.search_entries(self._live.run_id, query, limit=limit)

    async def of_run(self, run_id: str) -> RunRecord | None:
        """The record of a run, if this run may read it."""
        if run_id == self._live.run_id:
            return self
        if not (is_below(run_id, self._live.run_id) or run_id in shared_with(self._live)):
            return None
        entries = await self._journal.read_entries(run_id)
        return _Record(self._journal, run_id, entries) if entries else None

    def others(self) -> Sequence[str]:
        """The other runs whose records it may read."""
        below = sorted(run_id for run_id in self._live.root.members if is_below(run_id, self._live.run_id))
        return [*shared_with(self._live), *below]

    async def read_content(self, content_id: str) -> ContentStored | None:
        """A stored content of its tree."""
        return await self._journal.read_content(content_id, root=root_of(self._live.run_id))
