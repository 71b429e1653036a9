"""What runs can be started with: agents by name, each with where it is defined and how its runs begin."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from repertory.agents import Agent, load_agent
from repertory.agents.loading import lasting_reference
from repertory.errors import ConfigurationError
from repertory.llm.messages import Json

RESEARCH: Final = "research"


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that runs can be started with.

    Attributes:
        agent: As it was when it was offered: runs that begin have this one until another takes its place.
        reference: By which another process finds it.
        options: Kept with each run and handed to ``load_agent``: ``limits``, ``root``.
        priority: Of runs for which none is asked.
        labels: Of its runs.
    """

    agent: Agent[Any]
    reference: str
    options: Json = msgspec.field(default_factory=dict[str, Any])
    priority: int = 0
    labels: tuple[str, ...] = ()


def make_offer(
    reference: str,
    *,
    limits: Mapping[str, Any] = MappingProxyType({}),
    root: str | None = None,
    priority: int = 0,
    labels: Iterable[str] = (),
) -> Offer:
    """Load an agent to offer it.

    Raises:
        ConfigurationError: It cannot be found, or a limit is none.
    """
    options: Json = {"limits": dict(limits)} if limits else {}
    if root is not None:
        options["root"] = root
    agent = load_agent(reference, **options)
    return Offer(
        agent=agent, reference=lasting_reference(reference), options=options, priority=priority, labels=tuple(labels)
    )


def offers_of(references: Iterable[str], *, limits: Mapping[str, Any]) -> dict[str, Offer]:
    """Offers by name for agents that are given by reference. The current folder is looked into, too.

    Raises:
        ConfigurationError: One cannot be found, or two have one name.
    """
    found: dict[str, Offer] = {}
    for reference in references:
        look_into("")
        offer = make_offer(reference, limits=limits)
        if offer.agent.name in found or offer.agent.name == RESEARCH:
            raise ConfigurationError(f"--agent {reference}: there is an agent {offer.agent.name!r} already")
        found[offer.agent.name] = offer
    return found


def look_into(folder: str) -> None:
    """Find modules in a folder, too; "" is the current one."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
