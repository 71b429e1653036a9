"""What the holder of a run asks of it while it goes on: to hear something, to show something, to stop or to wait."""

from __future__ import annotations

import anyio.lowlevel

from repertory._choices import check_fields
from repertory.agents.actor import ExpandShown, PauseRun, PinShown, ResumeRun, StopRun
from repertory.agents.live import SAID, LiveRun, Said
from repertory.errors import ActorStopped, RunError
from repertory.record.journal import Journal
from repertory.record.records import FINAL_STATES, EventLogged


async def deliver(journal: Journal, live: LiveRun, text: str, *, message_id: str, at: float) -> None:
    """Make a message to a run durable, and put it where the loop looks next.

    Both in one step without a wait, so that a caller who is cancelled leaves both or neither. Whatever the loop
    makes of it is submitted later, and becomes durable later.

    Args:
        journal: Where it is written.
        live: The run.
        text: What is said.
        message_id: Under which it is heard once.
        at: Seconds since 1970.

    Raises:
        RunError: The run has ended, or something else was said under this id.
    """
    text = journal.redact(text)  # as it will be read back, to tell whether it was said before
    await anyio.lowlevel.checkpoint()
    known = live.said.get(message_id)
    if known is not None and known != text:
        raise RunError(f"message {message_id!r} was sent to run {live.run_id} before, with another text")
    if known is None:
        if live.ending:
            await live.ended.wait()
            raise RunError(_deaf(live))
        body = {"message_id": message_id, "text": text}
        journal.submit([EventLogged(run_id=live.run_id, type=SAID, body=body, at=at, iteration=live.iteration)])
        live.say(Said(message_id, text))
    await journal.write(())


async def edit_plan(live: LiveRun, message: ExpandShown | PinShown) -> None:
    """Ask a run to change what its model is shown.

    Raises:
        ContextError: There is no such entry, or nothing to expand.
        RunError: The run has ended.
        ConfigurationError: What is asked for has another type than it is declared with.
    """
    check_fields("Run", message)
    if live.ref is None or live.ending:
        raise RunError(f"run {live.run_id} has ended ({live.state}); nothing more is shown to its model")
    try:
        await live.ref.ask(message)
    except ActorStopped as error:
        raise RunError(f"run {live.run_id} ended before it could change what its model is shown") from error


def stop_run(live: LiveRun) -> None:
    """End a run and those below it at their next boundary."""
    live.stop_asked = True
    for run in live.tree():
        if run.ref is not None:
            run.ref.tell(StopRun())


def pause_run(live: LiveRun) -> None:
    """Hold a run and those below it at their next boundary."""
    for run in live.tree():
        if run.ref is not None:
            run.ref.tell(PauseRun())


def unpause_run(live: LiveRun) -> None:
    """Let a paused run and those below it go on."""
    for run in live.tree():
        if run.ref is not None:
            run.ref.tell(ResumeRun())


def kill_run(live: LiveRun) -> None:
    """Cancel a run and those below it."""
    for run in live.tree():
        run.killed = run.ending = True
    if live.ref is not None:
        live.ref.kill()


def _deaf(live: LiveRun) -> str:
    """Why a run hears nothing more, and what to do instead."""
    if live.state == "done":
        advice = "spawn another run, and say in its task what it needs to know of this one"
    elif live.state in FINAL_STATES:
        advice = "supervisor.resume(run_id) lets it go on, and gives the run to send it to"
    else:
        advice = "its supervisor is closed; resume it in another one, and send it there"
    state = live.state if live.state in FINAL_STATES else "interrupted"
    return f"run {live.run_id} has ended ({state}) and did not read the message: {advice}"
