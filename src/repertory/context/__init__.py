"""What the model is shown: policies, the plan, its projection, and the planner that edits the plan when it pays.

Everything here is pure: no I/O, no clock. Results are shaped on arrival (``shape``), ``plan_next`` looks at the
record before each call, ``project`` makes the request, ``validate`` proves it legal. ``Projector`` and ``Planner``
give the same answers at a cost that follows what changed.
"""

from __future__ import annotations

from repertory.context.plan import (
    EMPTY,
    Arithmetic,
    Cover,
    CoverRange,
    Decision,
    Edit,
    Expanded,
    ExpandEntry,
    PinEntry,
    Plan,
    Removed,
    RemoveResult,
    Representation,
    Stub,
    StubResult,
    UnpinEntry,
    apply,
    decode_decision,
    encode_decision,
    replay,
)
from repertory.context.policy import ContextPolicy, ResultPolicy, ResultRules, merge_policies
from repertory.context.projection import project
from repertory.context.projector import Projector, sent_body

__all__ = [
    "EMPTY",
    "Arithmetic",
    "ContextPolicy",
    "Cover",
    "CoverRange",
    "Decision",
    "Edit",
    "ExpandEntry",
    "Expanded",
    "PinEntry",
    "Plan",
    "Projector",
    "RemoveResult",
    "Removed",
    "Representation",
    "ResultPolicy",
    "ResultRules",
    "Stub",
    "StubResult",
    "UnpinEntry",
    "apply",
    "decode_decision",
    "encode_decision",
    "merge_policies",
    "project",
    "replay",
    "sent_body",
]
