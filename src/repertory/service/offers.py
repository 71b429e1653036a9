"""The agents that runs can be started with, by name, each with its definition's place and its runs' options."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from repertory.agents import Agent, load_agent
from repertory.agents.loading import check_limits, lasting_reference
from repertory.errors import ConfigurationError
from repertory.llm.messages import Json
from repertory.service.views import AgentView

RESEARCH: Final = "research"
RESEARCH_REF: Final = "repertory.agents:research_team"


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that runs can be started with.

    Attributes:
        agent: The agent as loaded for this offer; runs start with it until the offer is replaced.
        reference: The reference by which another process finds it.
        options: Options stored with each run and passed to ``load_agent``: ``limits``, ``root``.
        priority: The priority of runs that are started without one.
        labels: The labels of its runs.
    """

    agent: Agent[Any]
    reference: str
    options: Json = msgspec.field(default_factory=dict[str, Any])
    priority: int = 0
    labels: tuple[str, ...] = ()


def make_offer(
    reference: str,
    *,
    limits: Mapping[str, Any],
    root: str | None = None,
    priority: int = 0,
    labels: Iterable[str] = (),
) -> Offer:
    """Load an agent to offer it. Raises ``ConfigurationError`` if it cannot be found, or a limit is invalid."""
    options: Json = {"limits": dict(limits)} if limits else {}
    if root is not None:
        options["root"] = root
    agent = load_agent(reference, **options)
    return Offer(
        agent=agent, reference=lasting_reference(reference), options=options, priority=priority, labels=tuple(labels)
    )


def research_offer(root: Path, *, limits: Mapping[str, Any]) -> Offer:
    """Offer the research team for a folder. Raises ``ConfigurationError`` if there is no such folder."""
    return make_offer(RESEARCH_REF, limits=limits, root=str(_existing_folder(root)))


class Offers:
    """The agents that runs can be started with, by name.

    Args:
        references: The agents, each as ``module:name``. The current folder is searched, too. See also ``replace``.
        root: The folder that the research team may read; None offers no research team.
        limits: Fields of ``Limits`` to override for every run.

    Raises:
        ConfigurationError: An agent cannot be found, two have the same name, the folder does not exist, or a limit is
            invalid.
    """

    def __init__(
        self,
        references: Iterable[str] = (),
        *,
        root: Path | None = None,
        limits: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        check_limits(limits)
        self._offers: dict[str, Offer] = {}
        for reference in references:
            look_into("")
            offer = make_offer(reference, limits=limits)
            if offer.agent.name in self._offers or (root is not None and offer.agent.name == RESEARCH):
                raise ConfigurationError(f"--agent {reference}: there is an agent {offer.agent.name!r} already")
            self._offers[offer.agent.name] = offer
        if root is not None:
            self._offers[RESEARCH] = research_offer(root, limits=limits)

    def replace(self, offers: Mapping[str, Offer]) -> None:
        """Replace the offered agents. Runs under way continue."""
        self._offers = dict(offers)

    def list(self) -> list[AgentView]:
        """The agents that a run can be started with."""
        return [
            AgentView(
                name=name,
                description=offer.agent.summary,
                root=offer.options.get("root") if offer.reference == RESEARCH_REF else None,
            )
            for name, offer in self._offers.items()
        ]

    def find(self, agent: str, root: str | None) -> Offer:
        """Find an agent by name; ``root`` confines the research team to a folder in its own, None to the whole.

        Raises:
            ConfigurationError: There is no such agent, or the folder is not allowed.
        """
        if agent not in self._offers:
            names = ", ".join(self._offers)
            raise ConfigurationError(
                f"no agent {agent[:100]!r}; this service has {names or 'none: start it with --root DIR or --agent'}"
            )
        offer = self._offers[agent]
        if root is None:
            return offer
        if offer.reference != RESEARCH_REF:  # others may do with it as they like
            raise ConfigurationError(f"agent {agent} reads no folder; leave root out")
        folder = _existing_folder(Path(offer.options["root"]))
        inside = _existing_folder(folder / root)
        if not inside.is_relative_to(folder):
            raise ConfigurationError(f"root must be a folder in {folder}, got {root!r:.500}")
        options: Json = {**offer.options, "root": str(inside)}
        return msgspec.structs.replace(offer, agent=load_agent(offer.reference, **options), options=options)


def _existing_folder(path: Path) -> Path:
    try:
        folder = path.resolve(strict=True)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ConfigurationError(f"there is no folder {str(path)[:500]!r}") from error
    if not folder.is_dir():
        raise ConfigurationError(f"{str(path)[:500]!r} is no folder")
    return folder


def look_into(folder: str) -> None:
    """Also search a folder for modules; "" is the current one."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
