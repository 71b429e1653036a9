"""The figures of played runs: of each, of all, of the long ones, as JSON for ``repertory replay``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from repertory.llm.messages import Json
from repertory.replay.meaning import KINDS, MEASURES, OLD, UNION, Meaning
from repertory.replay.needs import AGES
from repertory.replay.playing import Played
from repertory.service.reports import percentile

GROUPS = {"total": 0, "runs_from_40": 40, "long_runs": 90}
"""The groups of runs over which figures are added up, each with the fewest iterations of its runs."""

_EQUAL = 1.0005  # a smaller ratio is only rounding


def report(
    played: Sequence[Mapping[str, Played]], *, policy: str, problems: Iterable[str] = (), seconds: float = 0.0
) -> Json:
    """Report everything that is known about played runs.

    Args:
        played: For each run, its results by the name of the model.
        policy: The policy, as the user named it.
        problems: What could not be read.
        seconds: The time that all of it took.

    Returns:
        ``policy``, ``models``, ``runs``, those of ``GROUPS``, ``problems`` and ``seconds``. Shares are from 0 to 1,
        None if there is nothing to take a share of.
    """
    names = list(played[0]) if played else []
    return {
        "policy": policy,
        "models": names,
        "runs": [_run(models) for models in played],
        **{
            group: _group([models for models in played if _length(models) >= least], names)
            for group, least in GROUPS.items()
        },
        "problems": list(problems),
        "seconds": round(seconds, 3),
    }


def _length(models: Mapping[str, Played]) -> int:
    return max(len(played.run.turns) for played in models.values())


def _run(models: Mapping[str, Played]) -> Json:
    run = next(iter(models.values())).run
    recorded = [turn.usage for turn in run.turns if turn.usage is not None]
    return {
        "id": run.id,
        "file": run.file,
        "recorded_model": run.model or None,
        "iterations": len(run.turns),
        "recorded_tokens": sum(usage.prompt_tokens for usage in recorded) if recorded else None,
        "models": {
            name: {**figures([played]), "error": played.error or None, "context": played.view, "plain": played.plain}
            for name, played in models.items()
        },
    }


def _group(runs: Sequence[Mapping[str, Played]], names: Sequence[str]) -> Json:
    return {
        "runs": len(runs),
        "iterations": sum(_length(models) for models in runs),
        "models": {name: figures([models[name] for models in runs]) for name in names},
    }


def figures(runs: Sequence[Played]) -> Json:
    """Add up the results of runs under one model's prices."""
    cost = sum(sum(played.costs) for played in runs)
    plain = sum(sum(played.plain_costs) for played in runs)
    tokens_seen = sum(played.usage.prompt_tokens for played in runs)
    plain_tokens = sum(played.plain_usage.prompt_tokens for played in runs)
    meaning = Meaning()
    for played in runs:
        meaning.add(played.meaning)
    build = [seconds * 1_000 for played in runs for seconds in played.build_seconds]
    priced = [played for played in runs if any(played.plain_costs)]
    ratios = [sum(played.costs) / sum(played.plain_costs) for played in priced]
    return {
        "cost": round(cost, 6),
        "cost_plain": round(plain, 6),
        "cost_ratio": _ratio(cost, plain),
        "worst_run_ratio": round(max(ratios), 6) if ratios else None,
        "worst_prefix_ratio": max(map(_worst_prefix, priced), default=None),
        "dearer_runs": sum(ratio > _EQUAL for ratio in ratios),
        "tokens_seen": tokens_seen,
        "tokens_plain": plain_tokens,
        "tokens_ratio": _ratio(tokens_seen, plain_tokens),
        "peak_context": max((max(played.view, default=0) for played in runs), default=0),
        "peak_plain": max((max(played.plain, default=0) for played in runs), default=0),
        "identifiers": meaning.needed(UNION),
        "recall": {kind: _rounded(meaning.share(kind)) for kind in KINDS},
        "recall_over_10": {kind: _rounded(meaning.share(kind, ages=OLD)) for kind in KINDS},
        "recall_by_age": {age: _rounded(meaning.share(UNION, ages=(age,))) for age in AGES},
        **{measure: _measured(meaning, measure) for measure in MEASURES},
        "bare_names": _ratio(meaning.bare_chars, meaning.standing_chars),
        "retrievals_needed": meaning.blind,
        "reread_cost_ratio": _ratio(sum(sum(played.rereads) for played in runs), plain),
        "whole_on_arrival": _ratio(meaning.whole_tokens, meaning.result_tokens),
        "requests_without_task": meaning.without_task,
        "invalid_requests": sum(played.invalid for played in runs),
        "refused_requests": sum(played.refused for played in runs),
        "decisions": dict(sorted(sum((played.decisions for played in runs), Counter[str]()).items())),
        "cleared_tokens": sum(played.cleared_tokens for played in runs),
        "summaries": sum(played.summaries for played in runs),
        "build_ms_p50": _rounded(percentile(build, 0.5), 3),
        "build_ms_p99": _rounded(percentile(build, 0.99), 3),
        "failed_runs": sum(bool(played.error) for played in runs),
    }


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 6) if whole else None


def _measured(meaning: Meaning, measure: str) -> Json:
    return {
        "needed": meaning.needed(measure),
        "all": _rounded(meaning.share(measure)),
        "over_10": _rounded(meaning.share(measure, ages=OLD)),
        "left": _rounded(meaning.share(measure, left=True)),
        "left_over_10": _rounded(meaning.share(measure, ages=OLD, left=True)),
    }


def _rounded(value: float | None, digits: int = 6) -> float | None:
    return None if value is None else round(value, digits)


def _worst_prefix(played: Played) -> float:
    """Return the highest ratio of the run's cost to the plain loop's, had it ended at any one request."""
    worst = spent = plain = 0.0
    for cost, other in zip(played.costs, played.plain_costs, strict=True):
        spent, plain = spent + cost, plain + other
        worst = max(worst, spent / plain)
    return round(worst, 6)
