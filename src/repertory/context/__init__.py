"""What the model is shown: policies, the plan, its projection, and the planner that edits the plan when it pays.

Everything here is pure: no I/O, no clock. Results are shaped on arrival (``shape``), ``plan_next`` looks at the
record before each call, ``project`` makes the request, ``validate`` proves it legal. ``Projector`` and ``Planner``
give the same answers at a cost that follows what changed.
"""

from __future__ import annotations

from repertory.context.compaction import Compaction
from repertory.context.compactors import Compactor, compact, register_compactor
from repertory.context.decisions import (
    Arithmetic,
    CoverRange,
    CutCall,
    Decision,
    DropThinking,
    Edit,
    ExpandEntry,
    HoldBack,
    PinEntry,
    RemoveResult,
    StubResult,
    UnpinEntry,
    decode_decision,
    encode_decision,
)
from repertory.context.events import LifecycleKind, MessageEvent, added, events_of, notify
from repertory.context.extractive import call_line, digest, names_used
from repertory.context.listing import ViewEntry, list_view
from repertory.context.plan import (
    EMPTY,
    Cover,
    Expanded,
    Plan,
    Removed,
    Representation,
    ShortCalls,
    Stub,
    apply,
    replay,
)
from repertory.context.planner import Outcome, Planner, plan_next
from repertory.context.policy import ContextPolicy, ResultPolicy, ResultRules, merge_policies
from repertory.context.pricing import Price, Prospect, price_of
from repertory.context.projection import project
from repertory.context.projector import Projector, sent_body
from repertory.context.requests import SummaryRange, due_summary, expand, pin, priced
from repertory.context.shaping import Citation, Shaped, cite, shape_result
from repertory.context.stubs import stub_of
from repertory.context.swapping import swap_in
from repertory.context.tokens import Calibration, measure, text_tokens
from repertory.context.validation import validate

__all__ = [
    "EMPTY",
    "Arithmetic",
    "Calibration",
    "Citation",
    "Compaction",
    "Compactor",
    "ContextPolicy",
    "Cover",
    "CoverRange",
    "CutCall",
    "Decision",
    "DropThinking",
    "Edit",
    "ExpandEntry",
    "Expanded",
    "HoldBack",
    "LifecycleKind",
    "MessageEvent",
    "Outcome",
    "PinEntry",
    "Plan",
    "Planner",
    "Price",
    "Projector",
    "Prospect",
    "RemoveResult",
    "Removed",
    "Representation",
    "ResultPolicy",
    "ResultRules",
    "Shaped",
    "ShortCalls",
    "Stub",
    "StubResult",
    "SummaryRange",
    "UnpinEntry",
    "ViewEntry",
    "added",
    "apply",
    "call_line",
    "cite",
    "compact",
    "decode_decision",
    "digest",
    "due_summary",
    "encode_decision",
    "events_of",
    "expand",
    "list_view",
    "measure",
    "merge_policies",
    "names_used",
    "notify",
    "pin",
    "plan_next",
    "price_of",
    "priced",
    "project",
    "register_compactor",
    "replay",
    "sent_body",
    "shape_result",
    "stub_of",
    "swap_in",
    "text_tokens",
    "validate",
]
