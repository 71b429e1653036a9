"""What a sub-agent is given to begin with: its task, what its lead shares, and why an earlier attempt failed."""

from __future__ import annotations

from typing import Final

from repertory.agents.tasks import show_task
from repertory.context.projection import document
from repertory.llm.messages import Block, Text, text_of
from repertory.llm.profiles import canonical_name
from repertory.record import Draft, Entry
from repertory.runs.live import LiveRun
from repertory.shortening.trail import bounded_trail
from repertory.views.policies import layered_policy

SHARED_TOKENS: Final = 4_000
"""Of a lead's record, what is handed on. It stays in view for the whole run: a 25th of a comfortable prompt."""
_MOST_BEFORE: Final = SHARED_TOKENS // 4  # of that, for what came before a summary


async def first_drafts(live: LiveRun) -> list[Draft]:
    """Make the first entries of a run, oldest first."""
    options, lead = live.started.options, live.parent
    drafts = [Draft(role="user", kind="task", content=(Text(show_task(live.agent, live.started.task)),))]
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
    """What a lead knows, up to the turn in which it delegates: its newest summary and the trail of the rest, or all
    as trail.
    """
    entries: list[Entry] = [*lead.ledger.snapshot()]
    while entries and entries.pop().role != "assistant":
        pass
    summaries = await lead.shared.journal.read_summaries(lead.run_id) if summarized else []
    # A summary that only its provider can read says nothing to anybody else.
    newest = max((each for each in summaries if text_of(each.content)), key=lambda each: each.last, default=None)
    if newest is None:
        return bounded_trail(entries, tokens=SHARED_TOKENS, retrieval=False)
    before, after = entries[: newest.first], entries[newest.last + 1 :]
    text = text_of(newest.content)
    if before:
        text = f"{bounded_trail(before, tokens=_MOST_BEFORE, retrieval=False)}\n{text}"
    return bounded_trail(after, tokens=SHARED_TOKENS, previous=text, retrieval=False)


def _as_document(live: LiveRun, lead: LiveRun, text: str) -> Block:
    """A digest as a sub-agent is shown it. There are words of tools in it, so it must not pass for somebody's words."""
    policy = layered_policy(live)
    can_ask = policy is not None and policy.retrieval
    how = f"; context_retrieve(run={lead.run_id!r}, …) shows any of it whole" if can_ask else ""
    title = f"what {lead.agent.name} knows, who gave you this task: from the record of its run {lead.run_id}{how}"
    if canonical_name(live.model.name).startswith("claude"):
        return document(title, text)
    lines = "".join(f"\n {line}" for line in text.splitlines())  # other servers may know no documents
    return Text(f"[{title}]{lines}")
