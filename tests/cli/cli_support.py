"""A made database to look at, and ways to run the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from typer.testing import CliRunner

from patience import PATIENCE
from repertory.cli.app import app
from repertory.context import EMPTY, Arithmetic, Decision, Projector, apply, encode_decision
from repertory.context.plan import CoverRange, StubResult
from repertory.llm import profile_for
from repertory.llm.messages import Text, ToolResult, ToolUse
from repertory.llm.model import ToolSchema, Usage
from repertory.record import ContentStored, Draft, Ledger, RunStarted, open_journal
from repertory.record.records import DecisionMade, ModelReplied, RunStateChanged
from repertory.record.requests import RequestRecorder
from terminal import Terminal

RUN = "run-01kb3v8x2c-aaaaaa"
CHILD = f"{RUN}.0badc0de"
OTHER = "run-01kb3v8x2c-bbbbbb"
EVIL = "\x1b]52;c;ZXZpbA==\x07\x1b[2Jred\x9b31m \u202egnp.exe\u2066 \x00end"
EVIL_SHOWN = "\\x1b]52;c;ZXZpbA==\\x07\\x1b[2Jred\\x9b31m \\u202egnp.exe\\u2066 \\x00end"
WHOLE = "first line\n" + "x" * 3000 + "\nlast line"


class Result(msgspec.Struct, frozen=True):
    """What a command line left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one object on standard output."""
        return json.loads(self.out)


def in_a_process(*words: str, home: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Result:
    """Run the real entry point in a process of its own, with nothing of this machine's settings."""
    done = subprocess.run(
        [sys.executable, "-m", "repertory", *words],
        capture_output=True,
        env=settings(home, env),
        cwd=cwd or home,
        timeout=PATIENCE,
        check=False,
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


def settings(home: Path, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a person who has set nothing."""
    kept = {name: value for name, value in os.environ.items() if name == "PATH" or name.startswith("COVERAGE_")}
    return {**kept, "HOME": str(home), "XDG_DATA_HOME": str(home / "data"), "LANG": "C.UTF-8", **(env or {})}


def at_a_terminal(*words: str, home: Path, columns: int = 80, **env: str) -> Terminal:
    """A command at a terminal, with what lies in the home folder at hand."""
    return Terminal(*words, folder=home, columns=columns, env={**settings(home), "PYTHONPATH": str(home), **env})


def invoke(*words: str | Path, home: Path, env: Mapping[str, str] | None = None) -> Result:
    """Run a command in this process, as the entry point does."""
    done = CliRunner().invoke(app, [str(word) for word in words], env=settings(home, env))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Result(done.exit_code, done.stdout, done.stderr)


async def make_database(path: Path) -> None:
    """Write a database with a run in it, by hand."""
    times = iter(range(1_700_000_000, 1_700_100_000))
    profile = profile_for("claude-sonnet-4-5")
    async with open_journal(path) as journal:
        ledger = Ledger(journal, RUN, clock=lambda: float(next(times)))
        started = RunStarted(run_id=RUN, agent="lead", task=f"Find {EVIL}", at=1.7e9, model=profile.name)
        await ledger.append(Draft(role="user", kind="task", content=(Text(started.task),)), also=[started])
        recorder = RequestRecorder()
        projector = Projector(
            profile=profile,
            system=(Text("You lead."),),
            tools=(ToolSchema("search", "Search.", {"type": "object"}),),
        )
        plan = EMPTY
        for iteration in range(1, 4):
            edits: tuple[Any, ...] = ()
            if iteration == 2:
                edits = (StubResult(position=2, text="[stub of call-1]", tokens=5, was_tokens=800),)
            if iteration == 3:
                words = (Text("[summary of the beginning]"),)
                edits = (CoverRange(first=0, last=2, content=words, tokens=7, was_tokens=900, kept=(0,)),)
            if edits:
                decision = Decision(
                    kind="pays",
                    reason="an old result",
                    iteration=iteration,
                    position=ledger.position,
                    edits=edits,
                    arithmetic=Arithmetic(cleared_tokens=795, cost_now=0.0123, saving_per_call=0.0021),
                )
                plan = apply(plan, decision)
                body = encode_decision(decision)
                await journal.write([DecisionMade(run_id=RUN, iteration=iteration, kind="pays", body=body, at=1.7e9)])
            request = projector.project(ledger.snapshot(), plan)
            called = recorder.record(
                request,
                ledger.snapshot(),
                run_id=RUN,
                call=iteration,
                iteration=iteration,
                position=ledger.position,
                at=1.7e9,
            )
            await journal.write([called])
            use = ToolUse(f"call-{iteration}", "search", {"query": f"tides {EVIL}"})
            replied = ModelReplied(
                run_id=RUN,
                call=iteration,
                at=1.7e9 + iteration,
                content=(use,),
                usage=Usage(input_tokens=100 * iteration, output_tokens=10, cache_read_tokens=50),
                cost=0.001,
                stop_reason="tool_use",
                duration=1.5,
            )
            await ledger.append(
                Draft(role="assistant", kind="assistant", content=(use,), iteration=iteration), also=[replied]
            )
            await ledger.append(
                Draft(
                    role="user",
                    kind="action-result",
                    content=(ToolResult(f"call-{iteration}", f"result {iteration} {EVIL}"),),
                    iteration=iteration,
                    tool="search",
                    tool_call_id=f"call-{iteration}",
                    content_id=f"cite-{iteration}",
                    original_length=len(WHOLE),
                ),
                also=[
                    ContentStored(
                        content_id=f"cite-{iteration}",
                        run_id=RUN,
                        source_type="search",
                        source="search",
                        body=WHOLE + EVIL,
                        length=len(WHOLE + EVIL),
                        at=1.7e9,
                    )
                ],
            )
        child = RunStarted(
            run_id=CHILD, agent="researcher", task="A part", at=1.7e9 + 1, parent_id=RUN, depth=1, model=profile.name
        )
        other = RunStarted(
            run_id=OTHER, agent="lead", task="Another", at=1.7e9 + 5, agent_ref="nowhere_to_be_found:agent"
        )
        await journal.write(
            [
                child,
                RunStateChanged(run_id=CHILD, state="done", at=1.7e9 + 2, iteration=1, result="part found"),
                RunStateChanged(run_id=RUN, state="failed", at=1.7e9 + 9, iteration=3, error="ModelUnavailable: gone"),
                other,
            ]
        )
        await Ledger(journal, OTHER).append(Draft(role="user", kind="task", content=(Text("Another"),)))
