"""The actor runtime: typed mailboxes, references, supervision, systems. It knows nothing about models.

An actor is a plain object with methods marked with ``@handler``, and perhaps hooks. ``open_system`` opens a system for
actors, ``spawn`` starts an actor and returns its ``ActorRef``, ``tell`` sends a message without waiting for an answer,
and ``ask`` waits for one. ``docs/semantics.md`` has a program, the hooks, and what is promised and what is not.
"""

from __future__ import annotations

from repertory.actors.context import ActorContext, Spawner
from repertory.actors.handlers import Accepts, Actor, handler
from repertory.actors.observation import ActorStatistics, DeadLetter, DeadLetters, StopReason, SystemStatistics
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
    "Spawner",
    "StopReason",
    "Strategy",
    "Supervision",
    "SystemStatistics",
    "handler",
    "open_system",
]
