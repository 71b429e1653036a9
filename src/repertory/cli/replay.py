"""``repertory replay``: what recorded runs would have cost and shown under a context policy."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import typer
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from repertory.cli import output
from repertory.cli.commands import Answer, command
from repertory.cli.options import argument, option
from repertory.context import ContextPolicy
from repertory.errors import ConfigurationError, RecordingError
from repertory.llm import Model
from repertory.replay import (
    PRESETS,
    Played,
    RecordedRun,
    Sample,
    agree,
    play_all,
    policy_named,
    price_at_most,
    profile_named,
    read_recordings,
    report,
    sample_requests,
    write_chart,
)
from repertory.replay.chart import bars, check_target
from repertory.replay.reporting import GROUPS
from repertory.runs import open_model
from repertory.service.offers import look_into

_MOST = 44  # columns of a run's id

_Line = tuple[str, Callable[[dict[str, Any]], str]]


@command
def replay(
    files: list[Path] = argument("FILE", "Recorded runs: JSON or JSONL, also gzipped.", ...),
    *,
    policy: str = option("--policy NAME", "thrifty, strict, plain, or a policy of yours as module:name.", "thrifty"),
    model: list[str] | None = option(
        "--model NAME",
        "The model whose prices and rules apply: a Claude model, or r=N for a cache read at N times the input price; "
        "NAME+binding binds its thinking to the history, as the newest do. May be repeated. Default: r=0.1, "
        "r=0.05, r=0.025, r=0.05+binding and r=0.025+binding.",
    ),
    plot: Path | None = option(
        "--plot FILE", "Draw the longest run's context into this .svg, or .png with repertory[plot]."
    ),
    agree: int | None = option(
        "--agree N",
        "Ask the one --model for its next step at N turns, from the view and twice from the full record, and report "
        "how often the answers agree. This costs money; it says how much first.",
        min=1,
    ),
    seed: int = option("--seed N", "The seed for the turns that --agree picks.", 0),
    yes: bool = option("--yes", "Let --agree spend that without asking.", False),
    jobs: int | None = option(
        "--jobs N", "How many runs to play at once, each in its own process. Default: one per CPU.", min=1
    ),
) -> Answer:
    """Work out what recorded runs would have cost and shown here.

    Reads sessions of Claude Code, conversations of the Messages API or of OpenAI's chat API, and collections of these,
    and plays them through the agent loop. Without --agree nothing is sent anywhere: the model and the tools answer as
    they did then.
    """
    look_into("")  # a user's policy may be in the current folder
    chosen = policy_named(policy)
    if agree is not None and plot is not None:
        raise ConfigurationError("--agree draws no chart: leave out one of --agree and --plot")
    asked = _model_to_ask(model) if agree is not None else None
    profiles = [] if asked else [profile_named(name) for name in model or PRESETS]
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
        return _agree(runs, chosen, asked, count=agree, seed=seed, yes=yes, is_whole=not problems)
    with output.count_up(len(profiles) * sum(len(run.turns) for run in runs), "requests") as count:
        played = play_all(runs, policy=policy, profiles=profiles, jobs=jobs or os.cpu_count() or 1, on_request=count)
    result = report(played, policy=policy, problems=problems, seconds=time.perf_counter() - begun)
    error = _failed_if(problems or any(figures["failed_runs"] for figures in result["total"]["models"].values()))
    if plot is not None and played:
        try:
            write_chart(plot, _longest(played))
        except ConfigurationError as unwritten:  # after the figures, which took so much longer
            error = unwritten
    return Answer(result, partial(_print_replay, result=result, played=played), error)


def _failed_if(failed: object) -> BaseException | None:
    """The exit code if something failed; the messages were printed before."""
    return typer.Exit(output.FAILED) if failed else None


def _model_to_ask(names: Sequence[str] | None) -> Model:
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
    is_whole: bool,
) -> Answer:
    """Ask the model how often it agrees, after the user has agreed to the cost."""
    with output.count_up(sum(len(run.turns) for run in runs), "requests played") as played:
        samples = sample_requests(runs, policy=policy, model=model, count=count, seed=seed, on_request=played)
    if not samples:
        raise ConfigurationError("no turn was shown anything but the full record, or none fits the model")
    _confirm(samples, price_at_most(samples, model.profile), model, yes=yes)
    with output.count_up(3 * len(samples), "answers") as answered:
        found = agree(samples, model, on_answer=answered)
    for problem in found.failed:
        output.say(problem)
    result = {"model": model.name, "seed": seed, **msgspec.to_builtins(found)}
    return Answer(result, partial(_print_agreement, result=result), _failed_if(found.failed or not is_whole))


def _confirm(samples: Sequence[Sample], price: float, model: Model, *, yes: bool) -> None:
    """Say what asking costs, and continue only if the user agrees."""
    cost = f"at most {output.dollars(price)}" if model.profile.known else "an unknown amount"
    what = f"{3 * len(samples)} requests to {output.one_line(model.name)} cost {cost}"
    if yes:
        output.say(what)
    elif not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigurationError(f"{what}; there is no terminal to ask at, so pass --yes")
    else:
        try:
            agreed = typer.confirm(f"{what}. Send them?", err=True)
        except typer.Abort:  # Ctrl-D
            agreed = False
        if not agreed:
            raise typer.Exit(output.OK)


# --- output for a person: runs, the sums over them, the longest run's context ------------------------------


def _longest(played: Sequence[dict[str, Played]]) -> dict[str, Played]:
    """The run with the most turns."""
    return max(played, key=lambda models: len(next(iter(models.values())).run.turns))


def _print_replay(screen: Console, result: dict[str, Any], played: Sequence[dict[str, Played]]) -> None:
    """Write a ``repertory.replay.report`` of runs for a terminal of any width."""
    if not played:
        return
    names: list[str] = result["models"]
    _print_runs(screen, result["runs"], names)
    shown = 0
    for name, least in GROUPS.items():
        group = result[name]
        if group["runs"] not in (0, shown):  # unless the group is the same as the one just shown
            shown = group["runs"]
            title = f"Runs of {least} iterations and more" if least else "All runs"
            what = f"{title}: {group['runs']}, {group['iterations']:,} iterations, policy "
            output.show(screen, Text(what + output.one_line(result["policy"]), style="bold"))
            figures = [group["models"][name] for name in names]
            _print_columns(screen, [["", *names], *([label, *map(show, figures)] for label, show in _LINES)])
    first = next(iter(_longest(played).values()))
    output.show(
        screen,
        Text(f"Context of {output.one_line(first.run.id, 60)}: █ shown, ░ more in a plain loop", style="dim"),
        *(Text(line) for line in bars(first.plain, first.view, width=min(100, screen.width))),
    )


def _print_agreement(screen: Console, result: dict[str, Any]) -> None:
    """Write how often the answers agreed."""
    rows = [
        [label, _share(result[f"{part}_view"]), _share(result[f"{part}_record"])]
        for label, part in (("the same tools", "tools"), ("the same key arguments", "arguments"))
    ]
    name, cost = output.one_line(result["model"]), output.cost(result["cost"], result["samples"])
    output.show(screen, f"{result['samples']} turns, {name}, seed {result['seed']}, cost {cost}:")
    headers = ["THE NEXT STEP HAS", ">VIEW, RECORD", ">RECORD, RECORD"]
    output.print_table(screen, output.Columns(headers, rows))


# --- runs and sums ----------------------------------------------------------------------------------------


def _print_runs(screen: Console, runs: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    room = min(_MOST, screen.width // 2)
    lines = [["RUN", "ITER", *names, "RECALL", "PEAK", "PLAIN"]]
    for run in runs:
        costs = (_or_dash(run["models"][name]["cost_ratio"]) for name in names)
        first = run["models"][names[0]]
        sizes = (output.tokens(first[name]) for name in ("peak_context", "peak_plain"))
        recall = _share(first["recall"]["union"])
        run_id = output.one_line(run["id"])
        run_id = run_id if len(run_id) <= room else f"…{run_id[1 - room :]}"  # at its end those of one session differ
        lines.append([run_id, str(run["iterations"]), *costs, recall, *sizes])
    _print_columns(screen, lines)
    caption = f"by model: cost relative to append-only; recall and peak of {names[0]}"
    output.show(screen, Text(caption, style="dim"), "")
    failed = [(run, name) for run in runs for name in names if run["models"][name]["error"]]
    for run, name in failed:
        error = output.one_line(run["models"][name]["error"])
        output.show(screen, Text(f"{output.one_line(run['id'])}, {name}: {error}", style="red"))
    if failed:
        output.show(screen, "")


def _print_columns(screen: Console, lines: Sequence[Sequence[str]]) -> None:
    """Print a table whose first line has the headers; as several, if not all columns fit side by side."""
    labels, *columns = zip(*lines, strict=True)
    widths = [2 + max(map(len, column)) for column in columns]
    while columns:
        count = len(columns)
        while count > 1 and sum(widths[:count]) > screen.width - max(map(cell_len, labels)):
            count -= 1
        (first, *headers), *rows = zip(labels, *columns[:count], strict=True)
        output.print_table(screen, output.Columns([first, *(f">{header}" for header in headers)], rows))
        del columns[:count], widths[:count]


def _share(value: float | None) -> str:
    return _or_dash(value, "{:.1%}")


def _or_dash(value: float | None, form: str = "{:.3f}") -> str:
    return "–" if value is None else form.format(value)


def _in_view(label: str, name: str) -> tuple[_Line, _Line]:
    return (
        (f"{label}, over 10 iterations old", lambda f: _share(f[name]["over_10"])),
        ("  no longer verbatim", lambda f: _share(f[name]["left_over_10"])),
    )


_LINES: tuple[_Line, ...] = (
    ("cost relative to append-only", lambda f: _or_dash(f["cost_ratio"])),
    ("  in dollars", lambda f: output.dollars(f["cost"])),
    ("  append-only", lambda f: output.dollars(f["cost_plain"])),
    ("  worst run", lambda f: _or_dash(f["worst_run_ratio"])),
    ("  to read again what is missing", lambda f: _or_dash(f["reread_cost_ratio"])),
    ("identifiers in view", lambda f: _share(f["recall"]["union"])),
    *_in_view("facts", "facts"),
    *_in_view("lines", "lines"),
    *_in_view("own lines", "own_lines"),
    ("bare names in stubs and summaries", lambda f: _share(f["bare_names"])),
    ("results whole on arrival", lambda f: _share(f["whole_on_arrival"])),
    ("requests without the task", lambda f: str(f["requests_without_task"])),
    ("invalid requests", lambda f: str(f["invalid_requests"])),
    ("peak context", lambda f: output.tokens(f["peak_context"])),
    ("  plain", lambda f: output.tokens(f["peak_plain"])),
    ("decisions", lambda f: str(sum(f["decisions"].values()))),
    ("planning time, p99", lambda f: _or_dash(f["build_ms_p99"], "{:.2f} ms")),
)
