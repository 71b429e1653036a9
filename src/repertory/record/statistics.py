"""The figures of a run: sums over its journalled records. All figures that are shown anywhere are these.

An active run updates them record by record. A journal computes them with SQL over its records.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from repertory.record.records import (
    DecisionMade,
    EventLogged,
    ModelCalled,
    ModelReplied,
    Record,
    RunStarted,
    RunState,
    ToolFinished,
)

SUMMARY_TAKEN: Final = "SummaryTaken"
SUMMARY_REFUSED: Final = "SummaryRefused"
PROMPT: Final = "input_tokens + cache_read_tokens + cache_write_tokens + cache_write_1h_tokens"
"""SQL for the tokens of the prompt of a ``ModelReplied``, as billed."""
RESULT_SUMMARIZED: Final = "ResultSummarized"
"""The type of the event that holds a result's summary: ``position``, ``text``, and ``key``, as in ``SummaryStored``."""


class RunStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one run, or the sum over a tree of runs.

    A plain loop sends the whole record in every call, with nothing shortened and a cache breakpoint at the end.

    Attributes:
        runs: The number of runs that the figures cover.
        iterations: Model calls of the loop that were answered.
        model_calls: All model calls, including the summarizer's and those without an answer.
        tokens_seen: Prompt tokens that the model was shown, over all iterations, as billed; cached ones included.
        tokens_plain: Prompt tokens that a plain loop would have sent for the same iterations.
        cache_read_tokens: Those of ``tokens_seen`` that were read from the prompt cache.
        cache_write_tokens: Those that were written to it, whatever their time to live.
        output_tokens: Tokens of the answers, over all iterations.
        tokens_billed: Tokens of all model calls, including the summarizer's: prompts, cached or not, and answers.
        cost_seen: US dollars of all model calls, including the summarizer's.
        cost_lost: The most, in US dollars, that attempts can have cost which broke off before their answer was
            complete. Such attempts are usually billed, but the amount is not reported.
        tokens_lost: The most tokens that those attempts can have taken.
        cost_plain: US dollars of the plain loop, with cache reads and writes at the provider's prices.
        view_tokens: Tokens of the newest prompt; in a sum, those of all runs together.
        record_tokens: Tokens of the prompt that a plain loop would send now; in a sum, those of all runs together.
        largest_prompt: Tokens of the largest prompt.
        summaries: Summaries swapped in.
        summaries_written: Summaries that were written and offered to the planner.
        summaries_refused: Summaries, including those of single results, that failed or were of no use.
        summaries_fallback: Those of ``summaries_written`` that were extracted because the strategy that was tried
            first gave nothing usable.
        tool_calls: All tool calls.
        tool_errors: Those of them whose result is an error.
        retrievals: Calls of the tools that look something up again.
        retrievals_covered: Those of them that brought back something covered by a trail or a summary, which lacked it.
        dedup_hits: Tool calls that were answered from an earlier, identical call.
        replied_at: When the latest model call ended, in seconds since 1970; 0.0 if none has ended.
    """

    runs: int = 1
    iterations: int = 0
    model_calls: int = 0
    tokens_seen: int = 0
    tokens_plain: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    tokens_billed: int = 0
    cost_seen: float = 0.0
    cost_lost: float = 0.0
    tokens_lost: int = 0
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
        """Summaries that were refused or replaced by an extractive one."""
        return self.summaries_refused + self.summaries_fallback

    def __add__(self, other: RunStatistics) -> RunStatistics:
        return self._with(**msgspec.structs.asdict(other))

    def _with(self, **more: float) -> RunStatistics:
        for name, new in more.items():
            now = getattr(self, name)
            more[name] = max(now, new) if name in _LARGEST else now + new
        return msgspec.structs.replace(self, **more)

    def count(self, record: Record) -> RunStatistics:
        """The figures after one more record of the run; most records change nothing."""
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

    def _with_reply(self, reply: ModelReplied) -> RunStatistics:
        usage, prompt = reply.usage, reply.usage.prompt_tokens
        paid = self._with(
            tokens_billed=prompt + usage.output_tokens,
            cost_seen=reply.cost,
            cost_lost=reply.cost_lost,
            tokens_lost=reply.tokens_lost,
            replied_at=reply.at,
        )
        if reply.purpose != "agent" or reply.error is not None:
            return paid
        more = paid._with(
            iterations=1,
            tokens_seen=prompt,
            tokens_plain=reply.plain_tokens,
            cache_read_tokens=usage.cache_read_tokens,
            cache_write_tokens=usage.cache_write_tokens + usage.cache_write_1h_tokens,
            output_tokens=usage.output_tokens,
            cost_plain=reply.plain_cost,
            largest_prompt=prompt,
        )
        return msgspec.structs.replace(more, view_tokens=prompt, record_tokens=reply.plain_tokens)


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """What a range of the journal's records adds to the figures of all runs.

    Attributes:
        upto: The number of its last record; the next range begins after it.
        removals: How many trees have been removed until now. Earlier ranges may have counted their records.
        figures: The figures that are sums, by the name of the agent.
        states: The change in the number of runs, by agent and state.
    """

    upto: int
    removals: int
    figures: Mapping[str, RunStatistics]
    states: Mapping[tuple[str, RunState], int]


_LARGEST: Final = frozenset({"largest_prompt", "replied_at"})
COUNTED: Final = frozenset[object](
    {RunStarted, ModelCalled, ModelReplied, ToolFinished, DecisionMade, SUMMARY_TAKEN, SUMMARY_REFUSED}
)
"""The types of records that change a figure; for events, which are most of the records, the types of events."""


def count_in(figures: dict[str, RunStatistics], record: Any) -> None:
    """Add one record to the figures of its run; a run's first record is its ``RunStarted``."""
    if isinstance(record, RunStarted):
        figures.setdefault(record.run_id, RunStatistics())
    elif (now := figures.get(getattr(record, "run_id", ""))) is not None:
        figures[record.run_id] = now.count(record)


_OF_LOOP: Final = "purpose = 'agent' AND error IS NULL"
_AND_WHERE: Final = "/* and where */"  # replaced by the caller's condition
# The sources of a run's figures: a table, the condition on its rows, and the SQL of each figure over these rows.
_SOURCES: Final = (
    ("model_calls", "", "count(*) AS model_calls"),
    (
        "model_replies",
        "",
        f"""sum({PROMPT} + output_tokens) AS tokens_billed, sum(cost) AS cost_seen, sum(cost_lost) AS cost_lost,
            sum(tokens_lost) AS tokens_lost, max(at) AS replied_at""",
    ),
    (
        "model_replies",
        _OF_LOOP,
        f"""count(*) AS iterations, sum({PROMPT}) AS tokens_seen, sum(plain_tokens) AS tokens_plain,
            sum(cache_read_tokens) AS cache_read_tokens,
            sum(cache_write_tokens + cache_write_1h_tokens) AS cache_write_tokens, sum(output_tokens) AS output_tokens,
            sum(plain_cost) AS cost_plain, max({PROMPT}) AS largest_prompt""",
    ),
    # Only the newest, which is one row for each run.
    (
        "model_replies",
        f"seq IN (SELECT max(seq) FROM model_replies WHERE {_OF_LOOP} {_AND_WHERE} GROUP BY run_id)",
        f"max({PROMPT}) AS view_tokens, max(plain_tokens) AS record_tokens",
    ),
    ("decisions", "", "sum(covers) AS summaries"),
    (
        "tool_outcomes",
        "",
        """count(*) AS tool_calls, count(*) FILTER (WHERE status = 'error') AS tool_errors,
            sum(retrieval) AS retrievals, sum(covered) AS retrievals_covered, count(deduplicated_from) AS dedup_hits""",
    ),
    (
        "events",
        f"type IN ('{SUMMARY_TAKEN}', '{SUMMARY_REFUSED}')",
        f"""count(*) FILTER (WHERE type = '{SUMMARY_TAKEN}') AS summaries_written,
            count(*) FILTER (WHERE type = '{SUMMARY_REFUSED}') AS summaries_refused,
            count(*) FILTER (WHERE type = '{SUMMARY_TAKEN}' AND coalesce(json_extract(body, '$.failure'), '') != '')
                AS summaries_fallback""",
    ),
)


def statistics_sql(where: str = "") -> str:
    """SQL for the figures: one row for each run, ``run_id`` and then the fields of ``RunStatistics`` in their order.

    Args:
        where: A condition on ``run_id``, used wherever rows are read; "" means every run.
    """

    def rows(name: str, table: str, which: str, figures: str) -> str:
        which = which.replace(_AND_WHERE, where and f"AND {where}")
        conditions = " AND ".join(filter(None, (where, which)))
        of_runs = f"SELECT run_id, {figures} FROM {table} {conditions and f'WHERE {conditions}'} GROUP BY run_id"
        return f"({of_runs}) {name}"

    sources = " LEFT JOIN ".join(f"{rows(f's{n}', *source)} USING (run_id)" for n, source in enumerate(_SOURCES))
    zeros = msgspec.structs.asdict(RunStatistics(runs=0))
    figures = ", ".join(f"coalesce({name}, {zero}) AS {name}" for name, zero in zeros.items())
    runs = rows("s", "runs", "", "min(seq) AS first, 1 AS runs")
    return f"SELECT run_id, {figures} FROM {runs} LEFT JOIN {sources} ORDER BY first"


_STRETCH: Final = "seq > ? AND seq <= ?"


def totals_sql() -> str:
    """SQL for the figures of a range: one row for each agent, its name and then the fields of ``RunStatistics``.

    Fields that are not sums are 0. Each ``?`` takes a bound of the range.
    """
    names, parts = RunStatistics.__struct_fields__, list[str]()
    for table, which, figures in _SOURCES:
        if _AND_WHERE not in which:
            given = set(re.findall(r" AS (\w+)", figures)) - _LARGEST
            columns = ", ".join(name if name in given else f"0 AS {name}" for name in names)
            conditions = " AND ".join(filter(None, (_STRETCH, which)))
            source = f"SELECT run_id, {figures} FROM {table} WHERE {conditions} GROUP BY run_id"
            parts.append(f"SELECT run_id, {columns} FROM ({source}) s{len(parts)}")
    sums = ", ".join(f"coalesce(sum({name}), 0) AS {name}" for name in names)
    return f"SELECT agent, {sums} FROM ({' UNION ALL '.join(parts)}) f JOIN runs USING (run_id) GROUP BY agent"


STATES_SQL: Final = f"""SELECT agent, state, was, count(*) FROM (
        SELECT agent, 'running' AS state, NULL AS was FROM runs WHERE {_STRETCH}
        UNION ALL
        SELECT r.agent, s.state, coalesce((SELECT state FROM run_states WHERE run_id = s.run_id AND seq < s.seq
            ORDER BY seq DESC LIMIT 1), 'running')
        FROM run_states s JOIN runs r USING (run_id)
        WHERE s.seq > ? AND s.seq <= ?
    ) changes GROUP BY agent, state, was"""
"""SQL for the state changes in a range: the agent, the state, the one before it (NULL if a run began), and how many."""
