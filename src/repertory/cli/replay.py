"""``repertory replay``: what a context policy would have made of recorded runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from repertory.cli import output
from repertory.cli.options import AS_JSON, argument, option

if TYPE_CHECKING:
    from repertory.context import ContextPolicy
    from repertory.llm import Model
    from repertory.replay import Played, RecordedRun, Sample


def replay(
    files: list[Path] = argument("FILE...", "Recorded runs: JSON or JSONL, maybe gzipped.", ...),
    *,
    policy: str = option("--policy NAME", "thrifty, strict, plain, or a policy of yours as module:name.", "thrifty"),
    model: list[str] | None = option(
        "--model NAME",
        "Whose prices and rules hold: a Claude model, or r=N for a cache read at N times the input price; "
        "NAME+binding binds its thinking to the history, as the newest do. May be repeated. Default: r=0.1, "
        "r=0.05, r=0.025, r=0.05+binding and r=0.025+binding.",
    ),
    binding: bool = option("--binding", "Have every model bind its thinking to the history.", False),
    plot: Path | None = option(
        "--plot FILE", "Draw the longest run's context into this .svg, or .png with repertory[plot]."
    ),
    agree: int | None = option(
        "--agree N",
        "Ask the one --model for its next step at N turns, from the view and twice from the full record, and "
        "say how often the answers agree. It costs money, and says how much first.",
        min=1,
    ),
    seed: int = option("--seed N", "Decides which turns --agree draws.", 0),
    yes: bool = option("--yes", "Let --agree spend what it says without being asked.", False),
    jobs: int | None = option(
        "--jobs N", "Processes that play, each a run at a time. Default: one for each CPU.", min=1
    ),
    as_json: bool = AS_JSON,
) -> None:
    """Play recorded runs through the agent loop, and say what they would have cost and shown.

    Sessions of Claude Code, conversations of the Messages API or of OpenAI's chat API, and collections of these are
    read. Without --agree nothing is sent anywhere: the model says what it said then, and every tool answers what it
    answered then.
    """
    import os
    import sys

    from repertory.cli.live import count_up
    from repertory.cli.replayed import print_replay
    from repertory.errors import RecordingError
    from repertory.replay import PRESETS, play_all, policy_named, profile_named, read_recordings, report
    from repertory.replay.chart import check_target
    from repertory.replay.choices import BINDING_PRESETS

    if "" not in sys.path:
        sys.path.insert(0, "")  # a policy of yours may be in the current folder
    chosen = policy_named(policy)
    asked = _model_to_ask(model) if agree is not None else None
    names = model or (PRESETS if binding else (*PRESETS, *BINDING_PRESETS))
    profiles = [] if asked else [profile_named(name, binding=binding) for name in names]
    if plot is not None:
        check_target(plot)
    begun = time.perf_counter()
    problems: list[str] = []
    runs: list[RecordedRun] = []
    for path in files:
        for found in read_recordings(path):
            if isinstance(found, RecordingError):
                problems.append(str(found))
                output.say(str(found))
            else:
                runs.append(found)
    if asked is not None and agree is not None:
        failed = _agree(runs, chosen, asked, count=agree, seed=seed, yes=yes, as_json=as_json)
        if problems or failed:
            raise typer.Exit(output.FAILED)
        return
    with count_up(len(profiles) * sum(len(run.turns) for run in runs), "requests") as count:
        jobs = jobs or os.cpu_count() or 1
        played = play_all(runs, policy=policy, profiles=profiles, jobs=jobs, on_request=count)
    result = report(played, policy=policy, problems=problems, seconds=time.perf_counter() - begun)
    if as_json:
        output.print_json(result)
    elif played:
        print_replay(result, played)
    if plot is not None and played:
        _draw(plot, played)
    if problems or any(figures["failed_runs"] for figures in result["total"]["models"].values()):
        raise typer.Exit(output.FAILED)


def _model_to_ask(names: Sequence[str] | None) -> Model:
    from repertory.errors import ConfigurationError
    from repertory.llm import open_model

    if names is None or len(names) != 1:
        raise ConfigurationError("--agree asks one real model: name it with --model NAME")
    return open_model(names[0])


def _agree(
    runs: Sequence[RecordedRun],
    policy: ContextPolicy | None,
    model: Model,
    *,
    count: int,
    seed: int,
    yes: bool,
    as_json: bool,
) -> bool:
    """Ask the model, once the user knows what that costs, and say how often it agreed; whether a turn was left out."""
    import msgspec

    from repertory.cli.live import count_up
    from repertory.cli.replayed import print_agreement
    from repertory.errors import ConfigurationError
    from repertory.replay import agree, price_at_most, sample_requests

    with count_up(sum(len(run.turns) for run in runs), "requests played") as played:
        samples = sample_requests(runs, policy=policy, model=model, count=count, seed=seed, on_request=played)
    if not samples:
        raise ConfigurationError("no turn was shown anything else than the full record, or none fits the model")
    _confirm(samples, price_at_most(samples, model.profile), model, yes=yes)
    with count_up(3 * len(samples), "answers") as answered:
        found = agree(samples, model, on_answer=answered)
    for problem in found.failed:
        output.say(problem)
    result = {"model": model.name, "seed": seed, **msgspec.to_builtins(found)}
    if as_json:
        output.print_json(result)
    else:
        print_agreement(result)
    return bool(found.failed)


def _confirm(samples: Sequence[Sample], price: float, model: Model, *, yes: bool) -> None:
    """Say what asking costs, and go on only where somebody wants that."""
    import sys

    from repertory.errors import ConfigurationError

    cost = f"at most {output.dollars(price)}" if model.profile.known else "what nobody knows the price of"
    what = f"{3 * len(samples)} requests to {output.one_line(model.name)} cost {cost}"
    if yes:
        output.say(what)
    elif not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigurationError(f"{what}; nobody is there to be asked, so say --yes")
    elif not typer.confirm(f"{what}. Ask?", err=True):
        raise typer.Exit(output.OK)


def _draw(path: Path, played: Sequence[dict[str, Played]]) -> None:
    from repertory.cli.replayed import longest
    from repertory.replay import write_chart

    models = longest(played)
    first = next(iter(models.values()))
    write_chart(
        path,
        title=f"Context of {output.one_line(first.run.id, 60)}, tokens",
        plain=max((each.plain for each in models.values()), key=len),
        views={name: each.view for name, each in models.items()},
    )
