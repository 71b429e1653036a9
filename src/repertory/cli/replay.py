"""``repertory replay``: what recorded runs would have cost and shown under a context policy."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from repertory.cli import output
from repertory.cli.commands import Answer, command
from repertory.cli.options import argument, option
from repertory.cli.running import import_from_here
from repertory.cli.status import count_up
from repertory.errors import ConfigurationError, RecordingError

if TYPE_CHECKING:
    from repertory.context import ContextPolicy
    from repertory.llm import Model
    from repertory.replay import Played, RecordedRun, Sample

_LEAST, _MOST = 16, 44  # columns of a run's id: if it would get fewer, its figures are on lines below it

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
    from repertory.replay import PRESETS, play_all, policy_named, profile_named, read_recordings, report, write_chart
    from repertory.replay.chart import check_target

    import_from_here()  # a user's policy may be in the current folder
    chosen = policy_named(policy)
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
    with count_up(len(profiles) * sum(len(run.turns) for run in runs), "requests") as count:
        played = play_all(runs, policy=policy, profiles=profiles, jobs=jobs or os.cpu_count() or 1, on_request=count)
    result = report(played, policy=policy, problems=problems, seconds=time.perf_counter() - begun)
    if plot is not None and played:
        write_chart(plot, _longest(played))
    failed = problems or any(figures["failed_runs"] for figures in result["total"]["models"].values())
    return Answer(result, partial(_print_replay, result=result, played=played), _failed_if(failed))


def _failed_if(failed: object) -> BaseException | None:
    """The exit code if something failed; the messages were printed before."""
    return typer.Exit(output.FAILED) if failed else None


def _model_to_ask(names: Sequence[str] | None) -> Model:
    from repertory.runs import open_model

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
    from repertory.replay import agree, price_at_most, sample_requests

    with count_up(sum(len(run.turns) for run in runs), "requests played") as played:
        samples = sample_requests(runs, policy=policy, model=model, count=count, seed=seed, on_request=played)
    if not samples:
        raise ConfigurationError("no turn was shown anything but the full record, or none fits the model")
    _confirm(samples, price_at_most(samples, model.profile), model, yes=yes)
    with count_up(3 * len(samples), "answers") as answered:
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
    elif not typer.confirm(f"{what}. Send them?", err=True):
        raise typer.Exit(output.OK)


# --- output for a person: runs, the sums over them, the longest run's context ------------------------------


def _longest(played: Sequence[dict[str, Played]]) -> dict[str, Played]:
    """The run with the most turns."""
    return max(played, key=lambda models: len(next(iter(models.values())).run.turns))


def _print_replay(screen: Console, result: dict[str, Any], played: Sequence[dict[str, Played]]) -> None:
    """Write the report for a terminal of any width.

    Args:
        screen: The terminal.
        result: The result of ``repertory.replay.report``.
        played: The played runs behind it.
    """
    from repertory.replay.chart import bars
    from repertory.replay.reporting import GROUPS

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
            _print_figures(screen, group["models"], names)
    first = next(iter(_longest(played).values()))
    output.show(
        screen,
        Text(f"Context of {output.one_line(first.run.id, 60)}: █ shown, ░ more in a plain loop", style="dim"),
        *(Text(line) for line in bars(first.plain, first.view, width=min(100, screen.width))),
    )


def _print_agreement(screen: Console, result: dict[str, Any]) -> None:
    """Write how often the answers agreed.

    Args:
        screen: The terminal.
        result: The value that ``repertory replay --agree --json`` prints.
    """
    rows = [
        [label, _share(result[f"{part}_view"]), _share(result[f"{part}_record"])]
        for label, part in (("the same tools", "tools"), ("the same key arguments", "arguments"))
    ]
    output.show(screen, f"{result['samples']} turns, {output.one_line(result['model'])}, seed {result['seed']}:")
    output.print_table(
        screen, ["THE NEXT STEP HAS", "VIEW, RECORD", "RECORD, RECORD"], rows, "VIEW, RECORD|RECORD, RECORD"
    )


# --- runs -------------------------------------------------------------------------------------------------


def _print_runs(screen: Console, runs: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    headers, *rows = _beside(runs, names, screen.width) or _below(runs, names, screen.width)
    output.show(screen, output.table(headers, rows, width=screen.width, right="|".join(headers[1:])))
    whose = "each model" if "COST" in headers else names[0]
    output.show(screen, Text(f"costs relative to append-only; recall and peak of {whose}", style="dim"), Text())
    failed = [(run, name) for run in runs for name in names if run["models"][name]["error"]]
    for run, name in failed:
        error = output.one_line(run["models"][name]["error"])
        output.show(screen, Text(f"{output.one_line(run['id'])}, {name}: {error}", style="red"))
    if failed:
        output.show(screen, Text())


def _beside(runs: Sequence[dict[str, Any]], names: Sequence[str], width: int) -> list[list[str]] | None:
    """A line for each run, with the costs of all models side by side; None if there is no room for that."""
    wanted = max(len("RUN"), *(len(output.one_line(run["id"])) for run in runs))
    for prefix, least in (("COST ", _MOST), ("", _LEAST)):
        lines = [["ITER", *(f"{prefix}{name}" for name in names), "RECALL", "PEAK", "PLAIN"]]
        for run in runs:
            costs = (_times(run["models"][name]["cost_ratio"]) for name in names)
            lines.append([str(run["iterations"]), *costs, *_of(run["models"][names[0]])[1:]])
        room = width - _width(lines)
        if room >= min(wanted, least):
            ids = ["RUN", *(_cut(run["id"], min(room, _MOST)) for run in runs)]
            return [[run_id, *line] for run_id, line in zip(ids, lines, strict=True)]
    return None


def _below(runs: Sequence[dict[str, Any]], names: Sequence[str], width: int) -> list[list[str]]:
    """A line for each run, and one below it for each model."""
    lines = [["RUN", "ITER", "COST", "RECALL", "PEAK", "PLAIN"]]
    for run in runs:
        lines.append([run["id"], str(run["iterations"]), "", "", "", ""])
        lines.extend([f"  {name}", "", *_of(run["models"][name])] for name in names)
    room = width - _width([line[1:] for line in lines])
    return [[_cut(first, room), *others] for first, *others in lines]


def _of(figures: dict[str, Any]) -> list[str]:
    return [
        _times(figures["cost_ratio"]),
        _share(figures["recall"]["union"]),
        output.tokens(figures["peak_context"]),
        output.tokens(figures["peak_plain"]),
    ]


def _width(lines: Iterable[Sequence[str]]) -> int:
    """The width of columns that follow another one."""
    return sum(2 + max(map(len, column)) for column in zip(*lines, strict=True))


def _cut(text: str, width: int) -> str:
    """One line, cut in the middle, because the ids of one session's agents differ at the end."""
    indent = text[: len(text) - len(text.lstrip(" "))]
    line = indent + output.one_line(text)
    kept = line
    for length in range(width, 3, -1):
        if cell_len(kept) <= width:
            break
        tail = length // 3
        kept = f"{line[: length - tail - 1]}…{line[-tail:]}"
    return kept


# --- sums -------------------------------------------------------------------------------------------------


def _print_figures(screen: Console, models: dict[str, Any], names: Sequence[str]) -> None:
    """Print one table, or several if not all models fit side by side."""
    rows = [[label, *(show(models[name]) for name in names)] for label, show in _LINES]
    labels, *columns = zip(["", *names], *rows, strict=True)
    while columns:
        count = len(columns)
        while count > 1 and _width(zip(*columns[:count], strict=True)) > screen.width - max(map(len, labels)):
            count -= 1
        headers, *lines = zip(labels, *columns[:count], strict=True)
        output.show(screen, output.table(headers, lines, width=screen.width, right="|".join(headers)), "")
        del columns[:count]


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _milliseconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} ms"


def _in_view(label: str, name: str) -> tuple[_Line, _Line]:
    return (
        (f"{label}, over 10 iterations old", lambda f: _share(f[name]["over_10"])),
        ("  no longer verbatim", lambda f: _share(f[name]["left_over_10"])),
    )


_LINES: tuple[_Line, ...] = (
    ("cost relative to append-only", lambda f: _times(f["cost_ratio"])),
    ("  in dollars", lambda f: output.dollars(f["cost"])),
    ("  append-only", lambda f: output.dollars(f["cost_plain"])),
    ("  worst run", lambda f: _times(f["worst_run_ratio"])),
    ("  to read again what is missing", lambda f: _times(f["reread_cost_ratio"])),
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
    ("planning time, p99", lambda f: _milliseconds(f["build_ms_p99"])),
)
