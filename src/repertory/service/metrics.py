"""The figures of all runs as Prometheus reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, get_args

import anyio
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from repertory.record.journal import Journal
from repertory.record.records import RunState
from repertory.record.statistics import RunStatistics

if TYPE_CHECKING:
    from repertory.machines import Machine

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# Name, what it counts, and the fields of the figures by their labels.
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

_OF_MACHINES: Final[tuple[tuple[str, str, Callable[[Machine], float]], ...]] = (
    ("runs", "Trees of runs that a machine owns.", lambda each: each.runs),
    ("lease_age_seconds", "Seconds since a machine renewed its lease.", lambda each: max(0.0, each.lease - each.left)),
    ("lease_left_seconds", "Seconds until its lease runs out; below 0 it has.", lambda each: each.left),
    ("draining", "1 where a machine lets its runs go and takes no more.", lambda each: each.draining),
)

_NOTHING: Final = RunStatistics(runs=0)


class Metrics:
    """How many runs of a journal are in each state, and what has been added to their figures since the first read, by
    agent.

    Counters begin at 0 in each process and never fall, also if runs are removed: Prometheus takes a fall for a restart,
    and counts all that is left once more. What was read once is kept, so another read costs only what is new.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._turn = anyio.Lock()
        self._upto: int | None = None
        self._removals = 0
        self._figures: dict[str, RunStatistics] = {}
        self._states = Counter[tuple[str, RunState]]()
        self._machines: Sequence[Machine] = ()

    async def read(self, machines: Sequence[Machine] = (), *, agents: Iterable[str] = ()) -> bytes:
        """The text that Prometheus reads.

        Args:
            machines: Those that share the journal; lost ones are left out.
            agents: Those that may run. They are there with 0, so that the first run of one is a rise.
        """
        async with self._turn:
            self._figures |= dict.fromkeys(agents, _NOTHING) | self._figures
            new = await self._journal.read_totals(after=self._upto or 0)
            for agent, figures in new.figures.items() if self._upto is not None else ():
                self._figures[agent] = self._figures.get(agent, _NOTHING) + figures
            if new.removals == self._removals or self._upto is None:
                self._states.update(new.states)
            else:  # removed runs are in no state
                self._states = Counter((await self._journal.read_totals(upto=new.upto)).states)
            self._upto, self._removals = new.upto, new.removals
            self._machines = [each for each in machines if each.lost_at is None]
            registry = CollectorRegistry(auto_describe=False)
            registry.register(self)
            return generate_latest(registry)

    def collect(self) -> Iterable[Metric]:
        """Each metric, with its values by agent or by machine; for prometheus-client."""
        runs = GaugeMetricFamily("repertory_runs", "Runs on record, by their state.", labels=["agent", "state"])
        agents = sorted({agent for (agent, _), count in self._states.items() if count} | self._figures.keys())
        for agent in agents:
            for state in get_args(RunState):  # also where it is 0: a series that begins with 1 has not risen
                runs.add_metric([agent, state], self._states[agent, state])
        yield runs
        for name, about, fields in _COUNTERS:
            kinds = [] if "" in fields else ["kind"]
            family = CounterMetricFamily(f"repertory_{name}", about, labels=["agent", *kinds])
            for agent in agents:
                own = self._figures.get(agent, _NOTHING)
                for kind, field in fields.items():
                    family.add_metric([agent, *([kind] if kinds else [])], getattr(own, field))
            yield family
        for name, about, value in _OF_MACHINES if self._machines else ():
            # With the id, as names may repeat.
            gauge = GaugeMetricFamily(f"repertory_machine_{name}", about, labels=["machine", "machine_id", "labels"])
            for each in self._machines:
                gauge.add_metric([each.name, each.machine_id, ",".join(each.labels)], value(each))
            yield gauge
