"""The figures of a run: sums over its journalled records, and the one way in which anything is counted.

A run under way keeps them up record by record, a journal adds them up where the records are, and everybody who shows
figures shows these.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from repertory.record.records import (
    DecisionMade,
    EventLogged,
    ModelCalled,
    ModelReplied,
    Record,
    RunStarted,
    ToolFinished,
)

SUMMARY_TAKEN: Final = "SummaryTaken"
SUMMARY_REFUSED: Final = "SummaryRefused"


class RunStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one run, or the sum over a tree of runs.

    A plain loop sends the whole record at every call, nothing shortened, with a cache breakpoint at the end.

    Attributes:
        runs: How many runs the figures are about.
        iterations: Model calls of the loop that were answered.
        model_calls: All model calls, the summarizer's and those without an answer included.
        tokens_seen: Prompt tokens that the model was shown, over all iterations, as billed; cached ones included.
        tokens_plain: Prompt tokens that a plain loop would have sent for the same iterations.
        cache_read_tokens: Those of ``tokens_seen`` that were read from the prompt cache.
        cache_write_tokens: Those that were written to it, whatever their time to live.
        output_tokens: Tokens of the answers, over all iterations.
        cost_seen: US dollars of all model calls, the summarizer's included.
        cost_plain: US dollars of the plain loop, cache reads and writes priced as the provider would.
        view_tokens: The newest prompt; in a sum, those of all runs together.
        record_tokens: The prompt that a plain loop would send now; in a sum, those of all runs together.
        largest_prompt: Tokens of the largest prompt.
        summaries: Summaries swapped in.
        summaries_written: Summaries that were written and offered to the planner.
        summaries_refused: Summaries, of single results too, that failed or were of no use.
        summaries_fallback: Those of ``summaries_written`` that were extracted because the strategy that was asked
            first gave nothing usable.
        tool_calls: All tool calls.
        tool_errors: Those of them whose result is an error.
        retrievals: Calls of the tools that look something up again.
        retrievals_covered: Those of them that brought back what trail or a summary stood for: what it lacked.
        dedup_hits: Tool calls answered from an earlier, identical one.
        replied_at: When the latest model call ended, in seconds since 1970; 0.0 where none has.
    """

    runs: int = 1
    iterations: int = 0
    model_calls: int = 0
    tokens_seen: int = 0
    tokens_plain: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    cost_seen: float = 0.0
    cost_plain: float = 0.0
    view_tokens: int = 0
    record_tokens: int = 0
    largest_prompt: int = 0
    summaries: int = 0
    summaries_written: int = 0
    summaries_refused: int = 0
    summaries_fallback: int = 0
    tool_calls: int = 0
    tool_errors: int = 0
    retrievals: int = 0
    retrievals_covered: int = 0
    dedup_hits: int = 0
    replied_at: float = 0.0

    @property
    def summaries_failed(self) -> int:
        """Summaries that were refused, or that an extractive one took the place of."""
        return self.summaries_refused + self.summaries_fallback

    @property
    def retrieval_rate(self) -> float:
        """Retrievals of what a summary stood for, for each summary in use: near 0 they say what was needed."""
        return self.retrievals_covered / self.summaries if self.summaries else 0.0

    def __add__(self, other: RunStatistics) -> RunStatistics:
        mine, theirs = msgspec.structs.asdict(self), msgspec.structs.asdict(other)
        return RunStatistics(
            **{name: max(mine[name], theirs[name]) if name in _LARGEST else mine[name] + theirs[name] for name in mine}
        )

    def count(self, record: Record) -> RunStatistics:
        """The figures with one more record of the run; most records change none."""
        match record:
            case ModelReplied():
                return self._with_reply(record)
            case ModelCalled():
                return self._with(model_calls=1)
            case ToolFinished():
                return self._with(
                    tool_calls=1,
                    tool_errors=record.status == "error",
                    retrievals=record.retrieval,
                    retrievals_covered=record.covered,
                    dedup_hits=record.deduplicated_from is not None,
                )
            case DecisionMade(covers=covers) if covers:
                return self._with(summaries=covers)
            case EventLogged() if record.type == SUMMARY_TAKEN:
                return self._with(summaries_written=1, summaries_fallback=bool(record.body.get("failure")))
            case EventLogged() if record.type == SUMMARY_REFUSED:
                return self._with(summaries_refused=1)
            case _:
                return self

    def _with(self, **more: float) -> RunStatistics:
        return msgspec.structs.replace(self, **{name: getattr(self, name) + value for name, value in more.items()})

    def _with_reply(self, reply: ModelReplied) -> RunStatistics:
        usage = reply.usage
        paid = msgspec.structs.replace(
            self, cost_seen=self.cost_seen + reply.cost, replied_at=max(self.replied_at, reply.at)
        )
        if reply.purpose != "agent" or reply.error is not None:
            return paid
        return msgspec.structs.replace(
            paid._with(
                iterations=1,
                tokens_seen=usage.prompt_tokens,
                tokens_plain=reply.plain_tokens,
                cache_read_tokens=usage.cache_read_tokens,
                cache_write_tokens=usage.cache_write_tokens + usage.cache_write_1h_tokens,
                output_tokens=usage.output_tokens,
                cost_plain=reply.plain_cost,
            ),
            view_tokens=usage.prompt_tokens,
            record_tokens=reply.plain_tokens,
            largest_prompt=max(self.largest_prompt, usage.prompt_tokens),
        )


_LARGEST: Final = frozenset({"largest_prompt", "replied_at"})


def count_in(figures: dict[str, RunStatistics], record: Any) -> None:
    """Count one record among the figures of its run; a run's first record is its ``RunStarted``."""
    if isinstance(record, RunStarted):
        figures.setdefault(record.run_id, RunStatistics())
    elif (now := figures.get(getattr(record, "run_id", ""))) is not None:
        figures[record.run_id] = now.count(record)


_PROMPT = "input_tokens + cache_read_tokens + cache_write_tokens + cache_write_1h_tokens"
_OF_LOOP = "purpose = 'agent' AND error IS NULL"


def statistics_sql(where: str = "") -> str:
    """The figures as SQL: one row for each run, ``run_id`` and then the fields of ``RunStatistics`` in their order.

    Args:
        where: A condition on ``run_id``, put wherever rows are read; "" means every run.
    """
    only, also = (f"WHERE {where}", f"AND {where}") if where else ("", "")
    return f"""
        SELECT r.run_id, 1 AS runs, coalesce(m.iterations, 0) AS iterations, coalesce(c.model_calls, 0) AS model_calls,
               coalesce(m.tokens_seen, 0) AS tokens_seen, coalesce(m.tokens_plain, 0) AS tokens_plain,
               coalesce(m.cache_read_tokens, 0) AS cache_read_tokens,
               coalesce(m.cache_write_tokens, 0) AS cache_write_tokens, coalesce(m.output_tokens, 0) AS output_tokens,
               coalesce(m.cost_seen, 0.0) AS cost_seen, coalesce(m.cost_plain, 0.0) AS cost_plain,
               coalesce(n.{_PROMPT.replace(" + ", " + n.")}, 0) AS view_tokens,
               coalesce(n.plain_tokens, 0) AS record_tokens, coalesce(m.largest_prompt, 0) AS largest_prompt,
               coalesce(d.summaries, 0) AS summaries, coalesce(e.written, 0) AS summaries_written,
               coalesce(e.refused, 0) AS summaries_refused, coalesce(e.fallback, 0) AS summaries_fallback,
               coalesce(t.tool_calls, 0) AS tool_calls, coalesce(t.tool_errors, 0) AS tool_errors,
               coalesce(t.retrievals, 0) AS retrievals, coalesce(t.retrievals_covered, 0) AS retrievals_covered,
               coalesce(t.dedup_hits, 0) AS dedup_hits, coalesce(m.replied_at, 0.0) AS replied_at
        FROM (SELECT run_id, min(seq) AS seq FROM runs {only} GROUP BY run_id) r
        LEFT JOIN (SELECT run_id, count(*) AS model_calls FROM model_calls {only} GROUP BY run_id) c
            ON c.run_id = r.run_id
        LEFT JOIN (SELECT run_id, sum({_OF_LOOP}) AS iterations, sum(iif({_OF_LOOP}, {_PROMPT}, 0)) AS tokens_seen,
                          sum(iif({_OF_LOOP}, plain_tokens, 0)) AS tokens_plain,
                          sum(iif({_OF_LOOP}, cache_read_tokens, 0)) AS cache_read_tokens,
                          sum(iif({_OF_LOOP}, cache_write_tokens + cache_write_1h_tokens, 0)) AS cache_write_tokens,
                          sum(iif({_OF_LOOP}, output_tokens, 0)) AS output_tokens, sum(cost) AS cost_seen,
                          sum(iif({_OF_LOOP}, plain_cost, 0.0)) AS cost_plain,
                          max(iif({_OF_LOOP}, {_PROMPT}, 0)) AS largest_prompt, max(at) AS replied_at,
                          max(iif({_OF_LOOP}, seq, 0)) AS newest
                   FROM model_replies {only} GROUP BY run_id) m ON m.run_id = r.run_id
        LEFT JOIN model_replies n ON n.seq = m.newest
        LEFT JOIN (SELECT run_id, sum(covers) AS summaries FROM decisions {only} GROUP BY run_id) d
            ON d.run_id = r.run_id
        LEFT JOIN (SELECT run_id, count(*) AS tool_calls, sum(status = 'error') AS tool_errors,
                          sum(retrieval) AS retrievals, sum(covered) AS retrievals_covered,
                          sum(deduplicated_from IS NOT NULL) AS dedup_hits
                   FROM tool_outcomes {only} GROUP BY run_id) t ON t.run_id = r.run_id
        LEFT JOIN (SELECT run_id, sum(type = '{SUMMARY_TAKEN}') AS written, sum(type = '{SUMMARY_REFUSED}') AS refused,
                          sum(type = '{SUMMARY_TAKEN}' AND coalesce(json_extract(body, '$.failure'), '') != '')
                              AS fallback
                   FROM events WHERE type IN ('{SUMMARY_TAKEN}', '{SUMMARY_REFUSED}') {also} GROUP BY run_id) e
            ON e.run_id = r.run_id
        ORDER BY r.seq"""
