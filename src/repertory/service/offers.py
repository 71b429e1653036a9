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
_RESEARCH_REF: Final = "repertory.agents:research_team"


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
    limits: Mapping[str, Any] = MappingProxyType({}),
    root: str | None = None,
    priority: int = 0,
    labels: Iterable[str] = (),
) -> Offer:
    """Load an agent to offer it.

    Raises:
        ConfigurationError: It cannot be found, or a limit is invalid.
    """
    options: Json = {"limits": dict(limits)} if limits else {}
    if root is not None:
        options["root"] = root
    agent = load_agent(reference, **options)
    return Offer(
        agent=agent, reference=lasting_reference(reference), options=options, priority=priority, labels=tuple(labels)
    )


class Offers:
    """The agents that runs can be started with, by name; and the research team, if there is a folder for it.

    Args:
        references: The agents, each as ``module:name``. The current folder is searched, too. See also ``replace``.
        root: The folder that the research team may read; a run may be confined to one below it. None offers no
            research team.
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
        self._limits = limits
        self._root = None if root is None else _existing_folder(root)
        self._offers: dict[str, Offer] = {}
        for reference in references:
            look_into("")
            offer = make_offer(reference, limits=limits)
            if offer.agent.name in self._offers or offer.agent.name == RESEARCH:
                raise ConfigurationError(f"--agent {reference}: there is an agent {offer.agent.name!r} already")
            self._offers[offer.agent.name] = offer

    def replace(self, offers: Mapping[str, Offer]) -> None:
        """Replace the offered agents. Runs under way continue."""
        self._offers = dict(offers)

    def list(self) -> list[AgentView]:
        """The agents that a run can be started with."""
        views = [AgentView(name=name, description=offer.agent.summary) for name, offer in self._offers.items()]
        if self._root is not None:
            line = "Answers a question about a folder of files, with sources."
            views.append(AgentView(name=RESEARCH, description=line, root=str(self._root)))
        return views

    def find(self, agent: str, root: str | None) -> Offer:
        """Find an agent by name; ``root`` confines a run of the research team to a folder, None to the whole one.

        Raises:
            ConfigurationError: There is no such agent, or the folder is not allowed.
        """
        if agent == RESEARCH and self._root is not None:
            return make_offer(_RESEARCH_REF, limits=self._limits, root=str(_confined(self._root, root)))
        if agent not in self._offers:
            names = ", ".join(view.name for view in self.list())
            raise ConfigurationError(
                f"no agent {agent[:100]!r}; this service has {names or 'none: start it with --root DIR or --agent'}"
            )
        if root is not None:
            raise ConfigurationError(f"agent {agent} reads no folder; leave root out")
        return self._offers[agent]


def _confined(root: Path, asked: str | None) -> Path:
    folder = root if asked is None else _existing_folder(root / asked)
    if not folder.is_relative_to(root):
        raise ConfigurationError(f"root must be a folder in {root}, got {asked!r:.500}")
    return folder


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
