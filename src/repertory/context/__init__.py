"""What the model is shown: policies, the plan, its projection, and the planner that edits the plan when it pays.

Everything here is pure: no I/O, no clock. Results are shaped on arrival. Before each model call ``Planner.next``
examines the record and ``Projector.project`` makes the request. A loop of your own can use these two alone: then
``encode_request`` writes the request as the Messages API takes it, ``decode_content`` reads the answer, and a
``Calibration`` learns from what was billed; ``examples/own_loop.py`` is one.
"""

from __future__ import annotations

from repertory.context.decisions import Arithmetic, Decision, apply, decode_decision, encode_decision, replay
from repertory.context.lifecycle import MessageEvent
from repertory.context.plan import EMPTY, Plan
from repertory.context.planner import Outcome, Planner
from repertory.context.policy import ContextPolicy
from repertory.context.projector import Projector, project
from repertory.llm.estimate import Calibration
from repertory.llm.messages import decode_content
from repertory.llm.model import encode_request

__all__ = [
    "EMPTY",
    "Arithmetic",
    "Calibration",
    "ContextPolicy",
    "Decision",
    "MessageEvent",
    "Outcome",
    "Plan",
    "Planner",
    "Projector",
    "apply",
    "decode_content",
    "decode_decision",
    "encode_decision",
    "encode_request",
    "project",
    "replay",
]
