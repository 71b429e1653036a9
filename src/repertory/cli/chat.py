"""``repertory chat``: a conversation with one run, at the keyboard or through a pipe."""

from __future__ import annotations

import signal
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from rich.text import Text

from repertory.cli import output
from repertory.cli.commands import command
from repertory.cli.conversing import Lines, Screen, decide_at_terminal, terminal_kept
from repertory.cli.databases import Database, db_option, read_row, runs_database
from repertory.cli.options import AGENT, CONTEXT, OWN_DATABASE, How, argument, option
from repertory.cli.running import RESEARCH, find_agent, find_object, options_with, print_answer, told
from repertory.cli.stopping import Stop, stopped_by_signals
from repertory.errors import RepertoryError, RunError
from repertory.llm.messages import text_of
from repertory.record import FINAL_STATES

if TYPE_CHECKING:
    from repertory.agents import Agent
    from repertory.llm.messages import Json
    from repertory.record import Journal, RunRow
    from repertory.supervisor import Run, Supervisor

_PROMPT = "> "


@command
def chat(
    run_id: str | None = argument("RUN", "A run's id, or any part of it that fits one run only. Default: a new one."),
    *,
    agent: str | None = AGENT,
    context: str | None = CONTEXT,
    root: Path | None = option("--root DIR", "The folder to read. Default: the current one."),
    db: str | None = OWN_DATABASE,
    how: How,
    as_json: bool = option("--json", "Write one JSON object to standard output for each answer.", False),
) -> None:
    """Chat with an agent.

    The agent is the research team on a folder, or your own. Ctrl-C stops the current answer; a second one, or Ctrl-D,
    ends the chat, and `repertory chat RUN` continues it. If the input is piped, each line is a question.
    """
    from repertory.agents.loading import lasting_reference

    path, row = (None, None) if run_id is None else read_row(run_id, db)
    saved = {} if row is None else row.started.options
    options = options_with(saved, root or (None if "root" in saved else Path()), how)
    begun_with = RESEARCH if row is None else row.started.agent_ref or RESEARCH
    reference = lasting_reference(begun_with if agent is None else agent)
    talk = _Talk(
        agent=find_agent(reference, options),
        reference=reference,
        options=options,
        context=find_object(context, "context"),
        row=row,
        path=path or runs_database(db),
        how=how,
        as_json=as_json,
    )
    with terminal_kept():
        anyio.run(talk.main, backend=how.backend)
    talk.close()


@dataclass(kw_only=True)
class _Talk:
    """The questions and answers of one run."""

    agent: Agent[Any]
    reference: str
    options: Json
    context: Any
    row: RunRow | None
    path: Database
    how: How
    as_json: bool

    async def main(self) -> None:
        """Ask until there are no more questions, or a signal ends it."""
        from repertory.supervisor import open_supervisor

        self._run: Run[Any] | None = None
        self._failed = self._answers = self._stopped = False
        self._ended_by = 0  # the signal that ended the chat; 0 for none
        self._typed_at = sys.stdin.isatty()
        self._shown_on = sys.stdout.isatty() and not self.as_json
        self._lines = Lines(_PROMPT if self._typed_at and self._shown_on else "")
        self._everything = anyio.CancelScope()
        async with (
            stopped_by_signals(self._hear) as self._stop,
            open_supervisor(self.path, model=self.options.get("model"), summaries=self.how.summaries) as supervisor,
        ):
            with self._everything:
                await self._talk(supervisor)

    def close(self) -> None:
        """Say how to continue the chat, and raise the error that it ended with."""
        go_on = "" if self._run is None else f"continue with: repertory chat {self._run.id}{db_option(self.path)}"
        if self._ended_by:
            raise output.Interrupted(f"ended; {go_on}" if go_on else "ended", 128 + self._ended_by)
        if self._typed_at and go_on:
            output.remark(go_on)
        if self._failed and not self._typed_at:
            raise RunError("not every question was answered")

    def _hear(self, stop: Stop) -> None:
        """Take in a signal: Ctrl-C stops the current answer, a second one or SIGTERM ends the chat."""
        if stop.heard != [signal.SIGINT] or not self._typed_at:
            self._ended_by = stop.heard[-1]
            self._everything.cancel()
        elif self._answers and self._run is not None:
            self._stopped = True
            self._run.kill()
        else:
            output.remark("\n(Ctrl-C again or Ctrl-D ends the chat)")

    async def _talk(self, supervisor: Supervisor) -> None:
        if self.row is not None:
            started = self.row.started
            # Spawn continues an interrupted run; a run that has ended stays so until it gets a message.
            run = self._run = await supervisor.spawn(
                self.agent, started.task, context=self.context, run_id=started.run_id
            )
            question, result = await _last_exchange(supervisor.journal, self.row)
            if self._shown_on:
                self._dim(f"{_PROMPT}{output.clean(question)}")
                if result is not None:
                    print_answer(result)
            if run.state not in FINAL_STATES:
                await self._answer(run, question)
        while (line := await self._lines.read()) is not None:
            self._stop.heard.clear()  # the next Ctrl-C is a first one again
            question = line.strip()
            if not question:
                continue
            try:
                if self._run is None:
                    options: Json = {"agent_ref": self.reference, "options": self.options, "context": self.context}
                    self._run = await supervisor.spawn(self.agent, question, **options)
                else:
                    await self._run.send(question)
            except RepertoryError as error:
                if self._run is None:
                    raise
                self._say_failed(question, str(error))
                continue
            await self._answer(self._run, question)
        if self._typed_at and self._shown_on:
            output.put("\n")

    async def _answer(self, run: Run[Any], question: str) -> None:
        """Show an answer while it is streamed, to its end."""
        shown = ""
        self._answers, self._stopped = True, False
        async with anyio.create_task_group() as tasks:
            screen = Screen()
            tasks.start_soon(decide_at_terminal, run, output.say, screen.aside if self._shown_on else nullcontext)
            if self._shown_on:
                tasks.start_soon(_show_calls, screen, run)
                shown = await screen.show_text(run.stream(from_start=True))
                await screen.end_line()
            else:
                await run.wait_ended()
            tasks.cancel_scope.cancel()
        try:
            value = await run.wait_result()
        except RunError as error:
            self._say_failed(question, "stopped" if self._stopped else str(error))
            return
        finally:
            self._answers = False
        text, result = told(run, value)
        if self.as_json:
            self._print_json(question, answer=text, result=result)
        elif not self._shown_on:
            output.write(text.rstrip("\n"))
        elif not shown.strip().endswith(text.strip()):
            print_answer(text)

    def _say_failed(self, question: str, words: str) -> None:
        self._failed = True
        if self.as_json:
            self._print_json(question, error=words)
        if self._shown_on and words == "stopped":
            self._dim("[stopped]")
        else:
            output.say(words)

    def _print_json(self, question: str, **fields: Any) -> None:
        whole = {
            "run_id": self._run and self._run.id,
            "question": question,
            "answer": None,
            "result": None,
            "error": None,
            **fields,
        }
        output.print_json(whole, on_one_line=True)

    def _dim(self, text: str) -> None:
        output.console().print(Text(text, style="dim"))


async def _show_calls(screen: Screen, run: Run[Any]) -> None:
    async for event in run.events(tree=True):
        await screen.show_call(event, run.id)


async def _last_exchange(journal: Journal, row: RunRow) -> tuple[str, str | None]:
    """The last question, and the answer to it."""
    entries = await journal.read_entries(row.started.run_id)
    asked = [text_of(entry.content) for entry in entries if entry.kind in ("task", "user-input")]
    return (asked or [row.started.task])[-1], row.result if row.state == "done" else None
