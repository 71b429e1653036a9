"""The actor runtime: typed mailboxes, references, supervision, systems. It knows nothing of models.

An actor is a plain object whose methods are marked with ``@handler``. ``open_system`` opens a place for actors to
live in, ``spawn`` starts one and returns its ``ActorRef``, ``tell`` sends without an answer, ``ask`` with one.
What is promised, and what is not, is in ``docs/semantics.md``.
"""

from __future__ import annotations

from repertory.actors.context import ActorContext
from repertory.actors.deadletters import DeadLetter, DeadLetters, DeadReason
from repertory.actors.dispatch import handler
from repertory.actors.lifecycle import (
    Accepts,
    Actor,
    HasRestarting,
    HasStarted,
    HasStopped,
    HasStopping,
    HasTerminated,
    StopReason,
)
from repertory.actors.mailbox import Overflow
from repertory.actors.messages import Askable, Request
from repertory.actors.options import SpawnOptions
from repertory.actors.refs import ActorRef
from repertory.actors.statistics import ActorState, ActorStatistics, ActorTree, SystemStatistics
from repertory.actors.supervision import Restart, Strategy, Supervision
from repertory.actors.system import ActorSystem, open_system

__all__ = [
    "Accepts",
    "Actor",
    "ActorContext",
    "ActorRef",
    "ActorState",
    "ActorStatistics",
    "ActorSystem",
    "ActorTree",
    "Askable",
    "DeadLetter",
    "DeadLetters",
    "DeadReason",
    "HasRestarting",
    "HasStarted",
    "HasStopped",
    "HasStopping",
    "HasTerminated",
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
