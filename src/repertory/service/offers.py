"""What runs can be started with: agents by name, each with where it is defined and how its runs begin."""

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


class Offers:
    """The agents that runs can be started with, by name; and where there is a folder for it, the research team.

    Args:
        references: The agents, each as ``module:name``. The current folder is looked into, too.
        root: The folder that the research team may read; None offers none.
        limits: Fields of ``Limits`` that are to be others for every run.

    Raises:
        ConfigurationError: An agent cannot be found, two have one name, the folder is not there, or a limit is none.
    """

    def __init__(self, references: Iterable[str], *, root: Path | None, limits: Mapping[str, Any]) -> None:
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
        """Offer other agents, by name, in place of those of before. What is under way goes on."""
        self._offers = dict(offers)

    def list(self) -> list[AgentView]:
        """What a run can be started with."""
        views = [AgentView(name=name, description=offer.agent.summary) for name, offer in self._offers.items()]
        if self._root is not None:
            line = "Answers a question about a folder of files, with sources."
            views.append(AgentView(name=RESEARCH, description=line, root=str(self._root)))
        return views

    def find(self, agent: str, root: str | None) -> Offer:
        """The agent of a name; ``root`` is the folder that a run of the research team may read, None for the whole one.

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
    """Find modules in a folder, too; "" is the current one."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
