"""The figures of all runs as Prometheus reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from repertory.record.journal import Journal
from repertory.record.records import RunRow
from repertory.record.statistics import RunStatistics

if TYPE_CHECKING:
    from repertory.machines import Machine

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# Name, what it counts, and the fields of the figures by the labels that they are told apart by.
_COUNTERS: Final[tuple[tuple[str, str, dict[str, str]], ...]] = (
    ("iterations", "Model calls of the loops that were answered.", {"": "iterations"}),
    ("model_calls", "All model calls, the summarizer's included.", {"": "model_calls"}),
    (
        "tokens",
        "Tokens of the loops' model calls; the prompt's include cached ones.",
        {
            "prompt": "tokens_seen",
            "cache_read": "cache_read_tokens",
            "cache_write": "cache_write_tokens",
            "output": "output_tokens",
        },
    ),
    ("plain_tokens", "Prompt tokens that plain loops would have sent.", {"": "tokens_plain"}),
    ("cost_dollars", "US dollars of all model calls, by the profiles' prices.", {"": "cost_seen"}),
    ("plain_cost_dollars", "US dollars that plain loops would have cost.", {"": "cost_plain"}),
    ("tool_calls", "All tool calls.", {"": "tool_calls"}),
    ("tool_errors", "Tool calls whose result is an error.", {"": "tool_errors"}),
    ("retrievals", "Calls of the tools that look something up again.", {"": "retrievals"}),
    ("summaries", "Summaries.", {"written": "summaries_written", "used": "summaries", "refused": "summaries_refused"}),
)


async def read_metrics(journal: Journal, machines: Sequence[Machine] = ()) -> bytes:
    """Read the figures of every run in a journal, added up by agent. They count on over restarts.

    Args:
        journal: The database.
        machines: The supervisors that share it; those that were lost are left out.
    """
    rows, figures = await journal.read_runs(), await journal.read_statistics()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(rows, figures))
    if machines:
        registry.register(_Machines([each for each in machines if each.lost_at is None]))
    return generate_latest(registry)


class _Figures:
    def __init__(self, rows: Iterable[RunRow], figures: dict[str, RunStatistics]) -> None:
        self._rows = rows
        self._figures = figures

    def collect(self) -> Iterable[Metric]:
        """Each metric with its values by agent."""
        states = Counter((row.started.agent, row.state) for row in self._rows)
        runs = GaugeMetricFamily("repertory_runs", "Runs on record, by their state.", labels=["agent", "state"])
        for (agent, state), count in states.items():
            runs.add_metric([agent, state], count)
        yield runs
        by_agent: dict[str, RunStatistics] = {}
        for row in self._rows:
            agent, own = row.started.agent, self._figures.get(row.started.run_id)
            if own is not None:
                by_agent[agent] = by_agent[agent] + own if agent in by_agent else own
        for name, about, fields in _COUNTERS:
            kinds = [] if "" in fields else ["kind"]
            family = CounterMetricFamily(f"repertory_{name}", about, labels=["agent", *kinds])
            for agent, own in by_agent.items():
                for kind, field in fields.items():
                    family.add_metric([agent, *([kind] if kinds else [])], getattr(own, field))
            yield family


class _Machines:
    """The supervisors that share a journal, each by its name, its id, as two may have one name, and its labels."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        self._machines = machines

    def collect(self) -> Iterable[Metric]:
        """Each metric with its values by machine."""
        names = ["machine", "machine_id", "labels"]
        runs = GaugeMetricFamily("repertory_machine_runs", "Trees of runs that a machine owns.", labels=names)
        age = GaugeMetricFamily(
            "repertory_machine_lease_age_seconds", "Seconds since a machine renewed its lease.", labels=names
        )
        left = GaugeMetricFamily(
            "repertory_machine_lease_left_seconds", "Seconds until its lease runs out; below 0 it has.", labels=names
        )
        draining = GaugeMetricFamily(
            "repertory_machine_draining", "1 where a machine lets its runs go and takes no more.", labels=names
        )
        for each in self._machines:
            values = [each.name, each.machine_id, ",".join(each.labels)]
            runs.add_metric(values, each.runs)
            age.add_metric(values, max(0.0, each.lease - each.left))
            left.add_metric(values, each.left)
            draining.add_metric(values, each.draining)
        yield from (runs, age, left, draining)
