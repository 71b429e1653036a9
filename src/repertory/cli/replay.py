"""``repertory replay``: what a context policy would have made of recorded runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repertory.cli import output
from repertory.cli.signals import cursor_hidden_at

if TYPE_CHECKING:
    from repertory.context import ContextPolicy
    from repertory.llm.profiles import ModelProfile
    from repertory.replay import Played, RecordedRun


def replay(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Recorded runs: JSON or JSONL, maybe gzipped.")
    ],
    *,
    policy: Annotated[
        str,
        typer.Option("--policy", metavar="NAME", help="thrifty, strict, plain, or a policy of yours as module:name."),
    ] = "thrifty",
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="Whose prices and rules hold: a Claude model, or r=N for a cache read at N times the input price. "
            "May be repeated. Default: r=0.1, r=0.05 and r=0.025.",
        ),
    ] = None,
    binding: Annotated[
        bool, typer.Option("--binding", help="Have every model bind its thinking to the history, as the newest do.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Draw the longest run's context into this .svg, or .png with repertory[plot].",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write one JSON object to standard output, and nothing else.")
    ] = False,
) -> None:
    """Play recorded runs through the agent loop, and say what they would have cost and shown.

    Sessions of Claude Code, conversations of the Messages API or of OpenAI's chat API, and collections of these are
    read. Nothing is sent anywhere: the model says what it said then, and every tool answers what it answered then.
    """
    import sys

    from repertory.cli.replayed import print_replay
    from repertory.errors import RecordingError
    from repertory.replay import PRESETS, policy_named, profile_named, read_recordings, report
    from repertory.replay.chart import check_target

    if "" not in sys.path:
        sys.path.insert(0, "")  # a policy of yours may be in the current folder
    chosen = policy_named(policy)
    profiles = [profile_named(name, binding=binding) for name in model or PRESETS]
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
    played = _play_all(runs, chosen, profiles)
    result = report(played, policy=policy, problems=problems, seconds=time.perf_counter() - begun)
    if as_json:
        output.print_json(result)
    elif played:
        print_replay(result, played)
    if plot is not None and played:
        _draw(plot, played)
    if problems or any(figures["failed_runs"] for figures in result["total"]["models"].values()):
        raise typer.Exit(output.FAILED)


def _play_all(
    runs: Sequence[RecordedRun], policy: ContextPolicy | None, profiles: Sequence[ModelProfile]
) -> list[dict[str, Played]]:
    screen = output.console(stderr=True)
    if not screen.is_terminal or screen.is_dumb_terminal:
        return [_play(recorded, policy, profiles, lambda: None) for recorded in runs]
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with cursor_hidden_at(screen.file.fileno()), Progress(*columns, console=screen, transient=True) as progress:
        # Each turn is searched once and played once for each model.
        bar = progress.add_task("", total=(1 + len(profiles)) * sum(len(recorded.turns) for recorded in runs))
        return [_play(recorded, policy, profiles, lambda: progress.advance(bar)) for recorded in runs]


def _play(
    recorded: RecordedRun,
    policy: ContextPolicy | None,
    profiles: Sequence[ModelProfile],
    advance: Callable[[], None],
) -> dict[str, Played]:
    from repertory.agents import run as run_async
    from repertory.replay import needs_of, play

    # Outside of the event loop, which would keep Ctrl-C waiting for the next time that anything is awaited.
    needs = needs_of(recorded, on_turn=advance)

    async def main() -> dict[str, Played]:
        return {
            profile.name: await play(recorded, policy=policy, profile=profile, needs=needs, on_request=advance)
            for profile in profiles
        }

    # asyncio starts tasks in the order in which they were made: the same recording always gives the same figures.
    return run_async(main, backend="asyncio")


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
