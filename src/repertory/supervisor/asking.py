"""Sending a message to a run, whether it is still under way or has ended."""

from __future__ import annotations

from repertory.errors import RunError
from repertory.runs.inbox import Said
from repertory.runs.live import LiveRun
from repertory.supervisor.runtime import Runtime
from repertory.views.policies import results_of


async def say(runtime: Runtime, live: LiveRun, message_id: str, said: Said, *, again: bool = False) -> None:
    """Send a message to a run. A run that has ended continues with it; message and continuation are one transaction.

    Args:
        runtime: The runtime in which the run lives.
        live: The run.
        message_id: Makes the call safe to repeat: a message that the run has already read does not continue it.
        said: The message.
        again: Continue the run even for a message that it has read, if it has failed or was stopped.

    Raises:
        RunError: Another message has this id; or the run has ended, and is below another run or its supervisor is
            closed.
        ConfigurationError, ContextMissing, PayloadInvalid: As ``Runtime.check`` and ``Runtime.continue_run``.
    """
    live = live.newest
    live.check_here()
    if not runtime.runs.closing:
        live.shared.home.check()
    if not live.is_ending:
        live.deliver(message_id, said)
        return
    async with runtime.runs.lock(live.run_id):
        if live.newest.is_ending:
            await live.newest.ended.wait()
        live = live.newest
        if live.lost is not None:
            raise live.lost
        if not live.is_ending:  # somebody else has continued it
            live.deliver(message_id, said)
            return
        known = not live.inbox.is_new(message_id, said) and not live.inbox.is_unread(message_id)
        if known and (not again or live.state == "done"):
            return
        if runtime.runs.closing or live.end is None or live.parent is not None:
            raise RunError(_why_unheard(live))
        row = await live.shared.journal.read_run(live.run_id)
        runtime.check(live.agent, results_of(row.started))
        with runtime.runs.beginning():
            going = await runtime.continue_run(row, live.agent, ended=(), context=live.context, said=(message_id, said))
        if going.begun is not None:
            await going.begun.wait()


def _why_unheard(live: LiveRun) -> str:
    """Why a run reads no more messages, and what to do instead."""
    advice = "as it stands below another run; say it to that one"
    if live.end is None or live.parent is None:
        advice = "its supervisor is closed; resume it in another one, and send it there"
    return f"run {live.run_id} has ended ({live.how_ended}) and did not read the message: {advice}"
