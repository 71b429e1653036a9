"""Fakes for tests: scripted models, and a strict local server that speaks the Messages API."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from repertory.testing.models import Answer, FunctionModel, ScriptedModel, Step, call
    from repertory.testing.server import MessagesServer, open_messages_server

__all__ = ["Answer", "FunctionModel", "MessagesServer", "ScriptedModel", "Step", "call", "open_messages_server"]

# The module of each public name; imported on first access, so that a test loads only what it uses.
_HOMES = {
    "Answer": "repertory.testing.models",
    "FunctionModel": "repertory.testing.models",
    "MessagesServer": "repertory.testing.server",
    "ScriptedModel": "repertory.testing.models",
    "Step": "repertory.testing.models",
    "call": "repertory.testing.models",
    "open_messages_server": "repertory.testing.server",
}


if not TYPE_CHECKING:  # with it, a type checker would accept any name

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)
