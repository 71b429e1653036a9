"""The models of a supervisor: those that agents bring with them, and those that it opens by name."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio

from repertory._choices import check_type, show
from repertory.agents.agent import Agent
from repertory.errors import ConfigurationError
from repertory.llm.model import Model, NeedsKey, SharedServer
from repertory.llm.profiles import CATALOG, ModelProfile, canonical_name
from repertory.runs.log import log

DEFAULT_MODEL = "claude-sonnet-5-5"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@\[\]-]{0,199}")
_KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL")
_POSSIBLE = (
    "possible are 'offline' (no key, no network), the name of a Claude model such as "
    f"{DEFAULT_MODEL!r} (set ANTHROPIC_API_KEY), or any model of a server that speaks the Messages API "
    "(set ANTHROPIC_BASE_URL; Ollama, llama.cpp and vLLM do)"
)
_FAMILIES = ("haiku", "sonnet", "opus", "fable")  # of Claude models; each name means the newest model of the family
_CLOSING = 5.0  # seconds to close one model; whatever it still holds then ends with the process


def open_model(name: str | None = None, *, environment: Mapping[str, str] | None = None) -> Model:
    """Make a model from its name. Nothing is sent yet, and no SDK is imported.

    Args:
        name: ``offline``, or a model's name, optionally as ``anthropic:NAME``. None uses ``REPERTORY_MODEL``. If that
            is not set, it uses ``claude-sonnet-5-5`` if ``ANTHROPIC_API_KEY``, ``ANTHROPIC_AUTH_TOKEN`` or
            ``ANTHROPIC_BASE_URL`` is set, and otherwise ``offline``.
        environment: The variables to use; None for the process's environment.

    Raises:
        ConfigurationError: The name is malformed, belongs to another provider, or needs a server that is not set.
    """
    variables = os.environ if environment is None else environment
    otherwise = DEFAULT_MODEL if any(variables.get(key) for key in _KEYS) else "offline"
    chosen = (variables.get("REPERTORY_MODEL") or otherwise) if name is None else name
    check_type("a model's name", chosen, str, "a text or None")
    bare = chosen.removeprefix("anthropic:").removeprefix("anthropic/")
    if not _NAME.fullmatch(bare):
        raise ConfigurationError(f"malformed model name {show(chosen)}; {_POSSIBLE}")
    if bare == "offline":
        from repertory.offline import OfflineModel

        return OfflineModel()
    # With a base URL any name may be right: a local server or a gateway names its models as it likes.
    if "claude" not in bare.lower() and not variables.get("ANTHROPIC_BASE_URL"):
        raise ConfigurationError(f"unknown model {chosen!r}; {_POSSIBLE}")
    from repertory.llm.anthropic import AnthropicModel

    key = variables.get("ANTHROPIC_API_KEY") or None  # takes precedence over the token, as in the SDK
    token = None if key else variables.get("ANTHROPIC_AUTH_TOKEN")
    return AnthropicModel(bare, api_key=key, auth_token=token, base_url=variables.get("ANTHROPIC_BASE_URL") or None)


def newest_of(family: str, profile: ModelProfile) -> str:
    """The newest model of a family at the provider of a given model; "" if the given name is not the provider's own.

    How a cloud or a gateway spells the names of its other models is unknown.
    """
    named = re.sub(r"-20\d{6}$", "", profile.name)
    known = [name for name in CATALOG if name.startswith(f"claude-{family}-")]
    if not named.startswith("claude-") or named != canonical_name(profile.name) or not known:
        return ""
    return max(known, key=lambda name: [int(number) for number in re.findall(r"\d+", name)])


class OpenModels:
    """The models of a supervisor; each named model is opened once."""

    def __init__(self, default: Model | str | None, summaries: Sequence[Model | str] | None) -> None:
        self._default = default
        self.opened: dict[str | None, Model] = {}
        self._summaries = None if summaries is None else tuple(self.get(each) for each in summaries)

    def get(self, wanted: Model | str | None) -> Model:
        """The model for a name, a model object itself, or the default for None.

        The name of a family of Claude models, such as ``haiku``, means the newest of them if the default is a Claude
        model too, and otherwise the default: offline, or on a server of one's own, there is no other.

        Raises:
            ConfigurationError: The name is not a model's.
        """
        if isinstance(wanted, str) and wanted in _FAMILIES:
            default = self.get(None)
            newest = newest_of(wanted, default.profile)
            if not newest:
                return default
            if isinstance(default, SharedServer):
                return default.sibling(newest)
            wanted = newest
        wanted = self._default if wanted is None else wanted
        if wanted is not None and not isinstance(wanted, str):
            return wanted
        if wanted not in self.opened:
            self.opened[wanted] = open_model(wanted)
        return self.opened[wanted]

    def of(self, lineage: Iterable[Agent[Any]]) -> Model:
        """The model that the first of these agents calls: its own, or that of the nearest above it, or the default."""
        return self.get(next((agent.model for agent in lineage if agent.model is not None), None))

    def for_summaries(self, model: Model) -> tuple[Model, ...]:
        """The models to try, in this order, for the summaries of runs that use ``model``.

        Unless others were named, this is the small model of the same provider, if there is one and it can be reached.
        """
        if self._summaries is not None:
            return self._summaries
        small = model.profile.summary_model
        return (model.sibling(small),) if small and isinstance(model, SharedServer) else ()


@asynccontextmanager
async def open_models(
    default: Model | str | None, summaries: Sequence[Model | str] | None = None
) -> AsyncGenerator[OpenModels]:
    """Hold the models of a supervisor, and on leaving close those that were opened here. See ``open_supervisor``."""
    models = OpenModels(default, summaries)
    try:
        yield models
    finally:
        for model in models.opened.values():
            with anyio.CancelScope(shield=True, deadline=anyio.current_time() + _CLOSING):
                try:
                    await model.aclose()
                except Exception as failure:  # noqa: BLE001 - the next one must still be closed
                    log(logging.WARNING, "model.close.failed", model=model.name, exc_info=failure)


def _lineages(agent: Agent[Any], above: tuple[Agent[Any], ...] = ()) -> Iterator[tuple[Agent[Any], ...]]:
    """An agent and each agent below it, each with those above it, the nearest first."""
    lineage = (agent, *above)
    yield lineage
    for member in agent.team:
        yield from _lineages(member, lineage)


async def check_keys(agent: Agent[Any], models: OpenModels) -> None:
    """Raise ``ModelAuthenticationError`` if a model of an agent or of its team lacks the key that it needs."""
    for lineage in _lineages(agent):
        model = models.of(lineage)
        if isinstance(model, NeedsKey):
            await model.check_key()


def check_prices(agent: Agent[Any], models: OpenModels) -> None:
    """Raise ``ConfigurationError`` if a cost limit cannot be kept, as nobody knows the price of a model below it."""
    for lineage in _lineages(agent):
        model = models.of(lineage)
        of = [(model.profile, f"the model of {lineage[0].name}")]
        if lineage[0].context is not None:
            of += [(writer.profile, "a model that writes summaries") for writer in models.for_summaries(model)]
        bounded = next((each.name for each in reversed(lineage) if each.limits.cost is not None), "")
        for profile, whose in of if bounded else ():
            if not profile.known:
                raise ConfigurationError(
                    f"limits.cost of agent {bounded} cannot be kept: nobody knows what {profile.name!r} costs, "
                    f"{whose}. Give it a profile with prices, as with_prices(profile_for(name), input=0.0, output=0.0) "
                    "for one that is free, or leave limits.cost out"
                )
