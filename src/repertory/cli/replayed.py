"""What a person sees of a replay: its runs, the sums over them, and how the longest run's context went."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from repertory.cli import output

if TYPE_CHECKING:
    from rich.console import Console

    from repertory.replay import Played

_LEAST, _MOST = 16, 44  # columns of a run's id: where it would get fewer, its figures stand below it


_Line = tuple[str, Callable[[dict[str, Any]], str]]


def longest(played: Sequence[dict[str, Played]]) -> dict[str, Played]:
    """The run with the most turns."""
    return max(played, key=lambda models: len(next(iter(models.values())).run.turns))


def print_replay(result: dict[str, Any], played: Sequence[dict[str, Played]]) -> None:
    """Write everything that fits a terminal of any width.

    Args:
        result: What ``repertory.replay.report`` says.
        played: The same, run by run; at least one.
    """
    from rich.text import Text

    from repertory.replay.chart import bars
    from repertory.replay.reporting import GROUPS

    screen = output.console()
    names: list[str] = result["models"]
    _print_runs(screen, result["runs"], names)
    shown = 0
    for name, least in GROUPS.items():
        group = result[name]
        if group["runs"] not in (0, shown):  # what was just shown says the same of fewer
            shown = group["runs"]
            title = f"Runs of {least} iterations and more" if least else "All runs"
            what = f"{title}: {group['runs']}, {group['iterations']:,} iterations, policy "
            output.show(screen, Text(what + output.one_line(result["policy"]), style="bold"))
            _print_figures(screen, group["models"], names)
    first = next(iter(longest(played).values()))
    output.show(
        screen,
        Text(f"Context of {output.one_line(first.run.id, 60)}: █ shown, ░ more in a plain loop", style="dim"),
        *(Text(line) for line in bars(first.plain, first.view, width=min(100, screen.width))),
    )


def print_agreement(result: dict[str, Any]) -> None:
    """Write how often answers agreed.

    Args:
        result: What ``repertory replay --agree --json`` prints.
    """
    rows = [
        [label, _share(result[f"{part}_view"]), _share(result[f"{part}_record"])]
        for label, part in (("the same tools", "tools"), ("the same key arguments", "arguments"))
    ]
    screen = output.console()
    output.show(screen, f"{result['samples']} turns, {output.one_line(result['model'])}, seed {result['seed']}:")
    output.print_table(
        screen, ["THE NEXT STEP HAS", "VIEW, RECORD", "RECORD, RECORD"], rows, "VIEW, RECORD|RECORD, RECORD"
    )


# --- runs -------------------------------------------------------------------------------------------------


def _print_runs(screen: Console, runs: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    from rich.text import Text

    headers, *rows = _beside(runs, names, screen.width) or _below(runs, names, screen.width)
    output.show(screen, output.table(headers, rows, width=screen.width, right="|".join(headers[1:])))
    output.show(screen, Text(f"costs to append-only; recall and peak {_whose(headers, names)}", style="dim"), Text())
    failed = [(run, name) for run in runs for name in names if run["models"][name]["error"]]
    for run, name in failed:
        error = output.one_line(run["models"][name]["error"])
        output.show(screen, Text(f"{output.one_line(run['id'])}, {name}: {error}", style="red"))
    if failed:
        output.show(screen, Text())


def _whose(headers: Sequence[str], names: Sequence[str]) -> str:
    return "of each model" if "COST" in headers else f"of {names[0]}"


def _beside(runs: Sequence[dict[str, Any]], names: Sequence[str], width: int) -> list[list[str]] | None:
    """A line for each run, with the costs of all models beside one another; None where there is no room for that."""
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


def _width(lines: Sequence[Sequence[str]]) -> int:
    """What columns take that stand behind another."""
    return sum(2 + max(map(len, column)) for column in zip(*lines, strict=True))


def _cut(text: str, width: int) -> str:
    """One line, cut in the middle: ids of one session's agents differ at the end."""
    from rich.cells import cell_len

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
    """One table, or several where not all models fit beside one another."""
    left = list(names)
    while left:
        count = len(left)
        while count > 1 and _figures_width(models, left[:count]) > screen.width:
            count -= 1
        shown, left = left[:count], left[count:]
        rows = [[label, *(show(models[name]) for name in shown)] for label, show in _LINES]
        output.show(screen, output.table(["", *shown], rows, width=screen.width, right="|".join(shown)), "")


def _figures_width(models: dict[str, Any], names: Sequence[str]) -> int:
    rows = [[show(models[name]) for name in names] for _, show in _LINES]
    return max(len(label) for label, _ in _LINES) + _width([names, *rows])


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
    ("cost, to append-only", lambda f: _times(f["cost_ratio"])),
    ("  worst run", lambda f: _times(f["worst_run_ratio"])),
    ("  reading again what is missing", lambda f: _times(f["reread_cost_ratio"])),
    ("identifiers in view", lambda f: _share(f["recall"]["union"])),
    *_in_view("facts", "facts"),
    *_in_view("lines", "lines"),
    *_in_view("own lines", "own_lines"),
    ("bare names in what stands for them", lambda f: _share(f["bare_names"])),
    ("results whole on arrival", lambda f: _share(f["whole_on_arrival"])),
    ("requests without the task", lambda f: str(f["requests_without_task"])),
    ("invalid requests", lambda f: str(f["invalid_requests"])),
    ("peak context", lambda f: output.tokens(f["peak_context"])),
    ("  plain", lambda f: output.tokens(f["peak_plain"])),
    ("decisions", lambda f: str(sum(f["decisions"].values()))),
    ("planning, 99 of 100", lambda f: _milliseconds(f["build_ms_p99"])),
)
