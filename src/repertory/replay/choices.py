"""The choices of a replay: a policy by name, and a model by name or by its price of a cache read."""

from __future__ import annotations

import re

import msgspec

from repertory.agents.loading import import_object, is_reference
from repertory.context import ContextPolicy
from repertory.errors import ConfigurationError
from repertory.llm.profiles import ModelProfile, Prices, profile_for

BINDING = "+binding"
PRESETS = ("r=0.1", "r=0.05", "r=0.025", f"r=0.05{BINDING}", f"r=0.025{BINDING}")
"""Price levels of cache reads, as multiples of the input price: of the older models, the 5.5 models and the Fables;
then the levels of models that bind their thinking to the history."""

_PRESET = re.compile(r"r=(\d*\.?\d+)")


def profile_named(name: str) -> ModelProfile:
    """Look up the profile of the model to play.

    Args:
        name: A model's name, or ``r=`` and the price of a cache read as a multiple of the input price: an imaginary
            model with a window of a million tokens whose other prices are the usual multiples (writes 1.25, answers
            5). With ``+binding`` appended, the model binds thinking to the history and writes signed summaries,
            whatever its profile says.

    Raises:
        ConfigurationError: There is no such model, or its prices are not known.
    """
    bare = name.removesuffix(BINDING)
    preset = _PRESET.fullmatch(bare)
    if preset is not None:
        read = float(preset[1])
        if not 0 < read <= 1:
            raise ConfigurationError(f"model {name!r}: a cache read costs more than 0 and at most 1 times the input")
        prices = Prices(input=2.0, output=10.0, cache_read=2.0 * read, cache_write=2.5, cache_write_1h=4.0)
        profile = ModelProfile(name=name, context_window=1_000_000, max_output=64_000, prices=(prices,))
    else:
        profile = profile_for(bare)
        if not profile.known:
            raise ConfigurationError(
                f"nobody knows the prices of model {name!r}; name a Claude model, or a price of cache reads such as "
                + ", ".join(PRESETS)
            )
    if name.endswith(BINDING):
        # Every model that binds thinking also writes the summaries that leave it valid.
        profile = msgspec.structs.replace(profile, name=name, target="binding", compacts=True)
    return profile


def policy_named(name: str) -> ContextPolicy | None:
    """Look up a policy: ``thrifty``, ``strict``, ``plain`` (None: a plain loop), or your own as ``module:name``.

    Raises:
        ConfigurationError: There is no such policy.
    """
    match name:
        case "thrifty":
            return ContextPolicy()
        case "strict":
            return ContextPolicy(rhythm="strict")
        case "plain":
            return None
    if not is_reference(name):
        raise ConfigurationError(f"expected a policy as thrifty, strict, plain or module:name, got {name!r}")
    found = import_object(name, "policy", {})
    if found is not None and not isinstance(found, ContextPolicy):
        raise ConfigurationError(f"policy {name!r} is of the type {type(found).__name__}, not a ContextPolicy")
    return found
