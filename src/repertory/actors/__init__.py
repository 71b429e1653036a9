"""The actor runtime: typed mailboxes, references, supervision, systems. It knows nothing of models.

An actor is a plain object whose methods are marked with ``@handler``. ``open_system`` opens a place for actors to
live in, ``spawn`` starts one and returns its ``ActorRef``, ``tell`` sends without an answer, ``ask`` with one.
What is promised, and what is not, is in ``docs/semantics.md``.
"""

from __future__ import annotations

from repertory.actors.context import ActorContext
from repertory.actors.handlers import Accepts, Actor, handler
from repertory.actors.observation import (
    ActorStatistics,
    DeadLetter,
    DeadLetters,
    StopReason,
    SystemStatistics,
)
from repertory.actors.references import ActorRef, Request
from repertory.actors.supervision import Overflow, Restart, SpawnOptions, Strategy, Supervision
from repertory.actors.system import ActorSystem, open_system

__all__ = [
    "Accepts",
    "Actor",
    "ActorContext",
    "ActorRef",
    "ActorStatistics",
    "ActorSystem",
    "DeadLetter",
    "DeadLetters",
    "Overflow",
    "Request",
    "Restart",
    "SpawnOptions",
    "StopReason",
    "Strategy",
    "Supervision",
    "SystemStatistics",
    "handler",
    "open_system",
]
