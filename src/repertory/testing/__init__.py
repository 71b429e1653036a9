"""Fakes for tests: scripted models, and a strict local server that speaks the Messages API."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from repertory.testing.models import Answer, FunctionModel, ScriptedModel, Step, call

if TYPE_CHECKING:
    from repertory.testing.server import MessagesServer, open_messages_server
else:  # imported on first access, as it needs h11; with this, a type checker would accept any name

    def __getattr__(name):
        if name not in ("MessagesServer", "open_messages_server"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module("repertory.testing.server"), name)


__all__ = ["Answer", "FunctionModel", "MessagesServer", "ScriptedModel", "Step", "call", "open_messages_server"]
