"""Quotas: how much agents, and the clients that ask for runs, may use at once and per day."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from repertory._choices import check_number, check_pattern, check_type
from repertory._counting import counted
from repertory._frozen import freeze_fields
from repertory.llm.profiles import Amount

ANY_CLIENT: Final = "*"
_CLIENT = re.compile(r"[!-~]{0,100}")


class Quota(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much an agent or a client may use. A run that would exceed it waits in the queue.

    A quota decides when runs begin. Runs that are under way continue to their end, bounded by their own ``Limits``. A
    run and all runs below it count for the agent at the top.

    Attributes:
        runs: How many runs at once, including those that are paused or wait for an approval; None for no bound.
        tokens_per_day: Tokens of all prompts and answers per UTC day, counted as in ``Limits.tokens``; None for no
            bound.
        cost_per_day: US dollars per UTC day, counted as in ``Limits.cost``; None for no bound.
        queued: How many runs may wait in the queue; one more raises ``QueueFull``. None for no bound. 1,000 waiting
            runs take 15 MB of memory.

    Raises:
        ConfigurationError: A value is not a number, or is out of range.
    """

    runs: int | None = None
    tokens_per_day: int | None = None
    cost_per_day: float | None = None
    queued: int | None = 1_000

    def __post_init__(self) -> None:
        for name in ("runs", "tokens_per_day"):
            check_number(f"quota.{name}", getattr(self, name), int, least=1, none=True)
        check_number("quota.queued", self.queued, int, least=0, none=True)
        check_number("quota.cost_per_day", self.cost_per_day, int | float, above=0, none=True)

    @property
    def is_daily(self) -> bool:
        """Whether it bounds daily use."""
        return self.tokens_per_day is not None or self.cost_per_day is not None

    def reached(self, whose: str, *, runs: int, used: Amount) -> str:
        """Why no further run may begin now; "" if one may.

        Args:
            whose: The agent or client, as named in the reason.
            runs: How many runs are under way.
            used: What was used today.
        """
        if self.runs is not None and runs >= self.runs:
            return f"{whose} has {counted(runs, 'run')} under way, as many as its quota allows (runs)"
        if self.tokens_per_day is not None and used.tokens >= self.tokens_per_day:
            return (
                f"{whose} has used {used.tokens:,} of {self.tokens_per_day:,} tokens today, calls under way included "
                "(tokens_per_day); the day ends at midnight UTC"
            )
        if self.cost_per_day is not None and used.cost >= self.cost_per_day:
            return (
                f"{whose} has spent ${used.cost:.4f} of ${self.cost_per_day:.4f} today, calls under way included "
                "(cost_per_day); the day ends at midnight UTC"
            )
        return ""


_NO_QUOTA: Final = Quota()


class Quotas(msgspec.Struct, frozen=True, kw_only=True):
    """The quotas of a supervisor. An agent or client without one has no bound but the default of ``Quota.queued``.

    Attributes:
        agents: Quotas by the name of the agent at the top of a tree of runs.
        clients: Quotas by the name given as ``spawn(client=…)``; ``*`` applies to each client that is not listed.

    Raises:
        ConfigurationError: One of these is not a mapping of names to quotas.
    """

    agents: Mapping[str, Quota] = msgspec.field(default_factory=dict[str, Quota])
    clients: Mapping[str, Quota] = msgspec.field(default_factory=dict[str, Quota])

    def __post_init__(self) -> None:
        for where in ("agents", "clients"):
            check_type(f"quotas.{where}", getattr(self, where), Mapping, "a mapping of names to Quota(…)")
            for name, quota in getattr(self, where).items():
                check_type(f"quotas.{where}[{name!r:.100}]", quota, Quota, "a Quota(…)")
        freeze_fields(self, "agents", "clients")

    def of_agent(self, name: str) -> Quota:
        """The quota of an agent."""
        return self.agents.get(name, _NO_QUOTA)

    def of_client(self, name: str) -> Quota:
        """The quota of a client."""
        return self.clients.get(name) or self.clients.get(ANY_CLIENT, _NO_QUOTA)

    def runs_of(self, agent: str, client: str) -> dict[Literal["agent", "client"], int]:
        """How many runs of an agent, and of a client, may be under way; only those that are bounded."""
        bounds: dict[Literal["agent", "client"], int | None] = {
            "agent": self.of_agent(agent).runs,
            "client": self.of_client(client).runs,
        }
        return {column: most for column, most in bounds.items() if most is not None}

    @property
    def bounds_runs(self) -> bool:
        """Whether any quota bounds how many runs are under way."""
        return any(quota.runs is not None for quota in (*self.agents.values(), *self.clients.values()))

    @property
    def is_daily(self) -> bool:
        """Whether any quota bounds daily use."""
        return any(quota.is_daily for quota in (*self.agents.values(), *self.clients.values()))


def check_bounds(max_runs: object, quotas: object) -> None:
    """Raise ``ConfigurationError`` unless these are valid ``max_runs`` and ``quotas``."""
    check_number("max_runs", max_runs, int, least=1, none=True)
    check_type("quotas", quotas, Quotas | None, "Quotas(…), or None for none")


def check_client(client: object) -> None:
    """Raise ``ConfigurationError`` for an invalid client name."""
    check_pattern("client", client, _CLIENT, "have at most 100 printable ASCII characters without spaces")


def midnight(now: float) -> float:
    """The UTC midnight at or before ``now``; both in seconds since 1970."""
    return datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
