"""Which model to use when a name, or nothing, is all that was said."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from repertory.errors import ConfigurationError
from repertory.llm.model import Model

DEFAULT_MODEL = "claude-sonnet-5-5"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@\[\]-]{0,199}")
_KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL")
_POSSIBLE = (
    "possible are 'offline' (no key, no network), the name of a Claude model such as "
    f"{DEFAULT_MODEL!r} (set ANTHROPIC_API_KEY), or any model of a server that speaks the Messages API "
    "(set ANTHROPIC_BASE_URL; Ollama, llama.cpp and vLLM do)"
)


def open_model(name: str | None = None, *, environment: Mapping[str, str] | None = None) -> Model:
    """Make the model that a name stands for. Nothing is sent yet, and no SDK is imported.

    Args:
        name: ``offline``, or a model's name, optionally as ``anthropic:NAME``. None takes ``REPERTORY_MODEL``; where
            that is not set, ``claude-sonnet-5-5`` if ``ANTHROPIC_API_KEY``, ``ANTHROPIC_AUTH_TOKEN`` or
            ``ANTHROPIC_BASE_URL`` is set, else ``offline``.
        environment: Where to look these up; None for the process's environment.

    Raises:
        ConfigurationError: The name is malformed, belongs to another provider, or needs a server that is not set.
    """
    variables = os.environ if environment is None else environment
    otherwise = DEFAULT_MODEL if any(variables.get(key) for key in _KEYS) else "offline"
    chosen = (variables.get("REPERTORY_MODEL") or otherwise) if name is None else name
    bare = chosen.removeprefix("anthropic:").removeprefix("anthropic/")
    if not _NAME.fullmatch(bare):
        raise ConfigurationError(f"malformed model name {chosen!r}; {_POSSIBLE}")
    if bare == "offline":
        from repertory.llm.offline import OfflineModel

        return OfflineModel()
    # With a base URL any name may be right: a local server or a gateway names its models as it likes.
    if "claude" not in bare.lower() and not variables.get("ANTHROPIC_BASE_URL"):
        raise ConfigurationError(f"unknown model {chosen!r}; {_POSSIBLE}")
    from repertory.llm.anthropic import AnthropicModel

    key = variables.get("ANTHROPIC_API_KEY") or None  # wins over the token, as it does in the SDK
    token = None if key else variables.get("ANTHROPIC_AUTH_TOKEN")
    return AnthropicModel(bare, api_key=key, auth_token=token, base_url=variables.get("ANTHROPIC_BASE_URL") or None)
