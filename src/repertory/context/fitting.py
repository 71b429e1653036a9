"""Make a prompt fit that would not: step by step, what is lost last standing last."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from repertory.context.cutting import cut
from repertory.context.decisions import Decision, Edit, StubResult
from repertory.context.edits import CanEdit, compose, supersede
from repertory.context.live import Live
from repertory.context.plan import apply
from repertory.context.stubs import whole_of
from repertory.context.tokens import Calibration, text_tokens
from repertory.errors import ContextOverflow
from repertory.llm.messages import text_of
from repertory.record.entries import Entry
from repertory.record.records import SummaryStored

_HEADROOM = 0.8  # of the limit, so that the next prompts fit too
_FEW = 3  # results that a recovery keeps
_CUT_CHARS = 1_000  # what remains of a result that nobody has read yet, when nothing else helps


def make_fit(
    live: Live,
    snapshot: Sequence[Entry],
    summaries: Sequence[SummaryStored],
    *,
    head: int,
    calibration: Calibration,
    limit: int,
    bound: str = "",
) -> list[Edit]:
    """Find the gentlest edits after which the prompt fits, with headroom where that can be had.

    Args:
        live: The view.
        snapshot: The ledger.
        summaries: Those that may be swapped in.
        head: Estimate of system text and tools.
        calibration: Makes tokens of estimates.
        limit: Tokens that the prompt may have.
        bound: What sets that limit, for the error.

    Raises:
        ContextOverflow: Even at its smallest it does not fit.
    """
    iteration = max((entry.iteration for entry in snapshot[live.last_turn :]), default=0) + 1

    def able(keep_recent: int | None, *, fold: bool) -> CanEdit:
        return CanEdit(live, iteration, summaries, keep_recent=keep_recent, fold=fold)

    steps: list[Callable[[], list[Edit]]] = [
        lambda: list(supersede(live, snapshot, live.plan.start)),
        lambda: compose(able(None, fold=False), snapshot),
        lambda: compose(able(None, fold=True), snapshot),
        lambda: compose(able(_FEW, fold=True), snapshot),
        lambda: compose(able(0, fold=True), snapshot),
        lambda: compose(able(0, fold=True), snapshot, users=False),
        lambda: [*compose(able(0, fold=True), snapshot, users=False), *_shorten(live)],
    ]
    fitting: list[Edit] | None = None
    smallest, least = calibration.real_tokens(head + live.tokens), live
    for step in steps:
        edits = step()
        if not edits:
            continue
        after = _after(live, snapshot, edits)
        size = calibration.real_tokens(head + after.tokens)
        if size < smallest:
            smallest, least = size, after
        if size <= limit * _HEADROOM:
            return edits
        if size <= limit and fitting is None:
            fitting = edits
    if fitting is None:
        raise ContextOverflow(
            f"the prompt has {smallest:,} tokens at its smallest, {limit:,} may be sent{bound and f' ({bound})'}; it "
            f"has {_parts(least, head, smallest)}; make the largest of these smaller, or raise the limit"
        )
    return fitting


def _after(live: Live, snapshot: Sequence[Entry], edits: list[Edit]) -> Live:
    decision = Decision(kind="", reason="", iteration=0, position=len(snapshot), edits=tuple(edits))
    return Live(apply(live.plan, decision), live.policy, snapshot, like=live)


def _parts(view: Live, head: int, tokens: int) -> str:
    """What a prompt of so many tokens consists of, for a person who has to make it smaller."""
    stays = view.restated(view.position)
    newest = view.tokens - view.before(view.last_turn)
    newest -= view.spoken_tokens(view.position) - view.spoken_tokens(view.last_turn)
    parts = {
        "of instructions and tools": head,
        "of the task, users' words and what is pinned": stays,
        "of the newest turn": newest,
        "of older turns and what stands for them": view.tokens - stays - newest,
    }
    share = tokens / max(1, head + view.tokens)
    return ", ".join(f"{round(part * share):,} {name}" for name, part in parts.items())


def _shorten(live: Live) -> list[Edit]:
    """Cut the results that came last, which no model has seen yet."""
    edits: list[Edit] = []
    for entry in live.results:
        if entry.position < live.last_turn:
            continue
        found = cut(text_of(entry.content), _CUT_CHARS)
        if found is None:
            continue
        text = f"{found.text}\n[shortened because the context is full{whole_of(entry, live.rules(entry.tool))}]"
        edits.append(
            StubResult(position=entry.position, text=text, tokens=text_tokens(text) + 15, was_tokens=entry.tokens)
        )
    return edits
