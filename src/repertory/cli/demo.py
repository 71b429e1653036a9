"""``repertory demo``: a team answers a question from source code, and what that took is put beside a plain loop."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from repertory.cli import output
from repertory.cli.databases import named_database, new_database
from repertory.cli.live import show_progress
from repertory.cli.running import (
    RESEARCH,
    Outcome,
    execute,
    existing_folder,
    find_agent,
    print_answer,
    raise_for,
)

if TYPE_CHECKING:
    from repertory.agents import Run, Supervisor
    from repertory.agents.start import Backend
    from repertory.llm.messages import Json

QUESTION = (
    "How does the standard library wait for a lock with a timeout: in threading, in multiprocessing and in asyncio?"
)


def run_demo(
    question: str | None,
    *,
    root: Path | None,
    db: Path | None,
    model: str | None,
    backend: Backend,
    as_json: bool,
    plain: bool,
) -> None:
    """See ``repertory demo``."""
    folder = existing_folder(root or Path(sysconfig.get_paths()["stdlib"]))
    options: Json = {"root": str(folder)} | ({"model": model} if model is not None else {})
    agent = find_agent(RESEARCH, options, model)
    task = question or QUESTION
    path = db or new_database()

    async def start(supervisor: Supervisor) -> Run:
        return await supervisor.spawn(agent, task, agent_ref=RESEARCH, options=options)

    if not as_json:
        _print_opening(task, folder, path)
    with show_progress(as_json=as_json, plain=plain, stderr=False) as progress:
        outcome = execute(start, path=path, root=folder, model=model, backend=backend, progress=progress)
    if as_json:
        output.print_json(outcome.to_json())
    else:
        _print_closing(outcome, named=named_database(db) is not None)
    raise_for(outcome)


def _print_opening(task: str, folder: Path, path: Path) -> None:
    from rich.text import Text

    screen = output.console()
    screen.print(Text(output.clean(task), style="bold"))
    screen.print(Text(output.clean(f"from {folder}, recorded in {path}\n"), style="dim"), soft_wrap=True)


def _print_closing(outcome: Outcome, *, named: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    screen = output.console()
    screen.print()
    if outcome.answer is not None:
        print_answer(outcome.answer)
        screen.print()
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("")
    for name in ("THE MODELS SAW", "A PLAIN LOOP", ""):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for row in _figures(outcome):
        table.add_row(*row)
    output.show(screen, table, "")
    for citation in outcome.citations:
        if not citation.resolved:
            screen.print(
                Text(output.clean(f"{citation.path}:{citation.first} does not hold: {citation.problem}"), style="red")
            )
    screen.print(Text("Look at what happened:", style="bold"))
    where = f" --db {outcome.database}" if named else ""
    for command, what in (
        (f"repertory ps -a{where}", "the tree of runs"),
        (f"repertory inspect {outcome.run_id}{where}", "what the model saw last, beside the record"),
        (f"repertory ledger {outcome.run_id}{where}", "the whole record"),
    ):
        screen.print(Text.assemble(f"  {output.clean(command)}", (f"   {what}", "dim")), soft_wrap=True)


def _figures(outcome: Outcome) -> Iterator[tuple[str, str, str, str]]:
    figures = outcome.statistics
    yield (
        "prompt tokens",
        output.tokens(figures.tokens_seen),
        output.tokens(figures.tokens_plain),
        output.ratio(figures.tokens_seen, figures.tokens_plain),
    )
    yield (
        "cost, prompt cache priced in",
        output.dollars(figures.cost_seen),
        output.dollars(figures.cost_plain),
        output.ratio(figures.cost_seen, figures.cost_plain),
    )
    yield "newest prompts", output.tokens(figures.view_tokens), output.tokens(figures.record_tokens), ""
    yield "iterations", str(figures.iterations), "", f"{figures.runs} agents in {outcome.seconds:.1f} s"
    yield "tool calls", str(figures.tool_calls), "", f"{figures.dedup_hits} answered from an earlier, identical one"
    yield "summaries", str(figures.summaries), "", "taken in the background, swapped in"
    yield "retrievals", str(figures.retrievals), "", "of what had left the view"
    resolved = sum(citation.resolved for citation in outcome.citations)
    yield "citations that hold", str(resolved), "", f"of {len(outcome.citations)}, each looked up in its file"
