"""Summaries of single results: asked for when the result is there, used when it is compacted, never waited for."""

from __future__ import annotations

from typing import Any

from repertory.actors import ActorRef
from repertory.agents.live import LiveRun
from repertory.context import ContextPolicy
from repertory.llm.messages import text_of, tool_uses
from repertory.summarizer import SummarizeResult


class Gists:
    """The summaries of one run's results whose policy says ``compact_mode="summary"``."""

    def __init__(self, live: LiveRun, policy: ContextPolicy | None, ref: ActorRef[Any]) -> None:
        self._live = live
        self._policy = policy
        self._ref = ref
        self._looked = len(live.ledger.snapshot())

    def request(self, iteration: int) -> None:
        """Ask for summaries of the results that are new."""
        if self._policy is None:
            return
        snapshot = self._live.ledger.snapshot()
        new, self._looked = snapshot[self._looked :], len(snapshot)
        arguments = {use.id: use.input for entry in new for use in tool_uses(entry.content)}
        for entry in new:
            rules = self._policy.rules(entry.tool)
            if entry.tool is None or rules.compact_mode != "summary" or entry.retrieved is not None:
                continue
            text = text_of(entry.content)
            if (entry.original_length or len(text)) <= 2 * rules.compact_length:
                continue  # hardly longer than its summary
            self._live.ask_summarizer(
                SummarizeResult(
                    run_id=self._live.run_id,
                    position=entry.position,
                    text=text,
                    content_id=entry.content_id if entry.original_length else None,
                    tool=entry.tool,
                    arguments=arguments.get(entry.tool_call_id or "", {}),
                    kind=entry.kind,
                    turn=entry.iteration,
                    goal=self._live.started.task,
                    prompt=rules.compact_prompt,
                    length=rules.compact_length,
                    iteration=iteration,
                    reply_to=self._ref,
                ),
            )
