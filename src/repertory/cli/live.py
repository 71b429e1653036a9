"""The picture of a running tree of agents on a terminal, and its plain counterpart."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from repertory.cli import output
from repertory.cli.progress import AgentLine, Progress
from repertory.cli.runs import coloured_state
from repertory.cli.signals import cursor_hidden_at
from repertory.cli.tree import in_tree

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_REFRESH = 8  # times a second


def show_progress(*, as_json: bool, plain: bool, stderr: bool) -> AbstractContextManager[Progress]:
    """Show what goes on until the block is left.

    Args:
        as_json: Standard output is kept for the one object; only a terminal at standard error gets a picture.
        plain: Lines instead of a picture.
        stderr: Lines go to standard error, because standard output is for the answer alone.
    """
    screen = output.console(stderr=as_json or stderr)
    if screen.is_terminal and not screen.is_dumb_terminal and not plain:
        return _picture(screen)
    return _lines(None if as_json else _write if not stderr else output.remark)


@contextmanager
def _lines(write: Callable[[str], None] | None) -> Generator[Progress]:
    yield Progress(write)


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@contextmanager
def _picture(screen: Console) -> Generator[Progress]:
    from rich.live import Live

    progress = Progress()
    progress.announce = progress.notes.append
    # Rich draws from a thread of its own, so the event loop never waits for the terminal.
    with (
        cursor_hidden_at(screen.file.fileno()),
        Live(
            console=screen,
            get_renderable=lambda: draw(progress, screen.width, screen.height),
            refresh_per_second=_REFRESH,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="ellipsis",
        ),
    ):
        yield progress
        progress.end()


def draw(progress: Progress, width: int, height: int) -> RenderableType:
    """Draw the tree as it stands.

    Args:
        progress: What is known.
        width: Columns of the terminal.
        height: Its lines.
    """
    from rich.console import Group
    from rich.text import Text

    agents = list(progress.agents.values())
    fitting = max(3, height - 11)
    rows: list[tuple[str | Text, ...]] = [
        (
            f"{branch}{agent.name}".ljust(15),  # so that the columns stay where they are as agents come
            coloured_state(agent.state.ljust(8)),
            f"{agent.iteration:4}",
            f"{output.tokens(agent.view_tokens)} / {output.tokens(agent.record_tokens)}".rjust(15),
            output.dollars(agent.cost),
            Text(_now(agent), style="dim"),
        )
        for branch, agent in list(in_tree(agents))[:fitting]
    ]
    headers = ("AGENT", "STATE", "ITER", "VIEW / RECORD", "COST", "NOW")
    parts: list[RenderableType] = [output.table(headers, rows, width=width, right="ITER|VIEW / RECORD|COST")]
    if len(agents) > fitting:
        parts.append(Text(f"… {len(agents) - fitting} more", style="dim"))
    seconds = time.monotonic() - progress.started_at
    parts.append(
        Text(
            f"\n{seconds:.0f} s   {len(agents)} agents   {progress.tool_calls} tool calls   "
            f"{progress.summaries} summaries   {progress.edits} edits of the view   {progress.cost}",
            style="bold",
            no_wrap=True,
            overflow="ellipsis",
        )
    )
    parts.extend(Text(note, style="dim", no_wrap=True, overflow="ellipsis") for note in list(progress.notes))
    return Group(*parts)


def _now(agent: AgentLine) -> str:
    calls = list(agent.calls.values())
    if not calls:
        return agent.now
    return calls[0] if len(calls) == 1 else f"{len(calls)} calls: {calls[0]}"
