"""``repertory chat``: a conversation with one run, at the keyboard or through a pipe."""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any

import anyio
from rich.text import Text

from repertory.agents.loading import lasting_reference
from repertory.cli import output
from repertory.cli.commands import command
from repertory.cli.conversing import Lines, Screen, decide_at_terminal, terminal_kept
from repertory.cli.databases import db_option, read_row, runs_database
from repertory.cli.options import AGENT, CONTEXT, OWN_DATABASE, WHICH, How, argument, option
from repertory.cli.running import find_agent, find_object, options_with, print_answer, reference_for, told
from repertory.cli.stopping import Stop, stopped_by_signals
from repertory.errors import RepertoryError, RunError
from repertory.llm.messages import text_of
from repertory.record import FINAL_STATES, RunRow
from repertory.service.offers import RESEARCH_REF
from repertory.supervisor import Run, Supervisor, open_supervisor

_PROMPT = "> "


@command
def chat(
    run_id: str | None = argument("RUN", f"{WHICH} Default: a new one."),
    *,
    agent: str | None = AGENT,
    context: str | None = CONTEXT,
    root: Path | None = option("--root DIR", "The folder to read. Default: the current one."),
    db: str | None = OWN_DATABASE,
    how: How,
    as_json: bool = option("--json", "Write one JSON object to standard output for each answer.", False),
) -> Coroutine[Any, Any, None]:
    """Chat with an agent.

    The agent is the research team on a folder, or your own. Ctrl-C stops the current answer; a second one, or Ctrl-D,
    ends the chat, and `repertory chat RUN` continues it. If the input is piped, each line is a question.
    """
    path, row = (runs_database(db), None) if run_id is None else read_row(run_id, db)
    saved = {} if row is None else row.started.options
    options = options_with(saved, root or (None if "root" in saved else Path()), how)
    if row is None:
        reference = lasting_reference(RESEARCH_REF if agent is None else agent)
    else:
        reference = reference_for(row.started, agent)
    found, handed = find_agent(reference, options), find_object(context, "context")

    async def start(supervisor: Supervisor, task: str) -> Run[Any]:
        if row is None:
            return await supervisor.spawn(found, task, context=handed, agent_ref=reference, options=options)
        return await supervisor.spawn(found, task, context=handed, run_id=row.started.run_id)

    opened = open_supervisor(path, model=options.get("model"), summaries=how.summaries)
    return _Talk(start, row, as_json=as_json, where=db_option(path)).main(opened)


class _Talk:
    """The questions and answers of one run.

    Args:
        start: Starts the run with its first question, or continues an earlier one.
        row: The earlier run; None for a new one.
        as_json: Write answers as JSON.
        where: The ``--db`` option of commands to continue with.
    """

    def __init__(
        self,
        start: Callable[[Supervisor, str], Awaitable[Run[Any]]],
        row: RunRow | None,
        *,
        as_json: bool,
        where: str,
    ) -> None:
        self._start = start
        self._row = row
        self._as_json = as_json
        self._where = where
        self._run: Run[Any] | None = None
        self._failed = self._answers = self._stopped = False
        self._ended_by = 0  # the signal that ended the chat; 0 for none
        self._typed_at = sys.stdin.isatty()
        self._shown_on = sys.stdout.isatty() and not as_json
        self._lines = Lines(_PROMPT if self._typed_at and self._shown_on else "")

    async def main(self, opened: AbstractAsyncContextManager[Supervisor]) -> None:
        """Ask until there are no more questions, or a signal ends it; then say how to continue, or raise an error."""
        self._everything = anyio.CancelScope()
        with terminal_kept():
            async with stopped_by_signals(self._hear) as self._stop, opened as supervisor:
                with self._everything:
                    await self._talk(supervisor)
        go_on = "" if self._run is None else f"continue with: repertory chat {self._run.id}{self._where}"
        if self._ended_by:
            if self._typed_at:
                output.remark("")  # what is said next does not stand behind the prompt, or half an answer
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
        if self._row is not None:
            # An interrupted run continues; a run that has ended stays so until it gets a message.
            run = self._run = await self._start(supervisor, self._row.started.task)
            entries = await supervisor.journal.read_entries(run.id)
            asked = (text_of(entry.content) for entry in entries if entry.kind in ("task", "user-input"))
            question = [self._row.started.task, *asked][-1]
            if self._shown_on:
                _dim(f"{_PROMPT}{output.clean(question)}")
                if self._row.state == "done" and self._row.result is not None:
                    print_answer(self._row.result)
            if run.state not in FINAL_STATES:
                await self._answer(run, question)
        while (line := await self._lines.read()) is not None:
            self._stop.heard.clear()  # the next Ctrl-C is a first one again
            question = line.strip()
            if not question:
                continue
            try:
                if self._run is None:
                    self._run = await self._start(supervisor, question)
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
        self._answers, self._stopped = True, False
        screen = Screen()
        async with anyio.create_task_group() as tasks:
            aside = screen.aside if self._shown_on else nullcontext
            tasks.start_soon(decide_at_terminal, run, self._where, output.say, aside, self._everything.cancel)
            if self._shown_on:
                tasks.start_soon(_show_calls, screen, run)
                await screen.show_text(run.stream(from_start=True))
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
        if self._as_json:
            self._print_json(question, answer=text, result=result)
        elif not self._shown_on:
            output.write(text.rstrip("\n"))
        elif not screen.has_shown(text):
            print_answer(text)

    def _say_failed(self, question: str, words: str) -> None:
        self._failed = True
        if self._as_json:
            self._print_json(question, error=words)
        if self._shown_on and words == "stopped":
            _dim("[stopped]")
        else:
            output.say(words)

    def _print_json(self, question: str, **fields: Any) -> None:
        said = {"run_id": self._run and self._run.id, "question": question}
        output.print_json({**said, "answer": None, "result": None, "error": None, **fields}, on_one_line=True)


def _dim(text: str) -> None:
    output.console().print(Text(text, style="dim"))


async def _show_calls(screen: Screen, run: Run[Any]) -> None:
    async for event in run.events(tree=True):
        await screen.show_call(event, run.id)
