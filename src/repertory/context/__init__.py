"""What the model is shown: policies, the plan, its projection, and the planner that edits the plan when it pays.

Everything here is pure: no I/O, no clock. Results are shaped on arrival. Before each model call ``Planner.next``
examines the record and ``Projector.project`` makes the request.
"""

from __future__ import annotations

from repertory.context.decisions import Arithmetic, Decision, apply, decode_decision, encode_decision, replay
from repertory.context.lifecycle import MessageEvent
from repertory.context.plan import EMPTY, Plan
from repertory.context.planner import Outcome, Planner
from repertory.context.policy import ContextPolicy
from repertory.context.projector import Projector, project

__all__ = [
    "EMPTY",
    "Arithmetic",
    "ContextPolicy",
    "Decision",
    "MessageEvent",
    "Outcome",
    "Plan",
    "Planner",
    "Projector",
    "apply",
    "decode_decision",
    "encode_decision",
    "project",
    "replay",
]
