"""The task of one actor: its incarnations, and in each the loop that handles messages one by one."""

from __future__ import annotations

import inspect
import logging
from time import perf_counter
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from repertory.actors.calls import BEGUN, WAITING, Call, current_cell
from repertory.actors.cell import Cell, Death
from repertory.actors.lifecycle import StopReason
from repertory.actors.supervision import Comeback
from repertory.errors import ActorStopped

logger = logging.getLogger("repertory.actors")

QUOTA = 256
"""Messages between two checkpoints of an actor that has always more to do."""

SLICE = 0.001
"""Seconds after which such an actor lets others run, whatever it has handled."""


async def run(cell: Cell) -> None:
    """Be the actor until it is gone for good."""
    current_cell.set(cell)
    reason = StopReason("killed")
    try:
        while not cell.doomed:
            verdict = await _incarnate(cell)
            if isinstance(verdict, StopReason):
                reason = verdict
                break
            await _wait_for_comeback(cell, verdict)
            if cell.closing:
                reason = StopReason("killed" if cell.doomed else "stopped")
                break
            cell.restarts += 1
            cell.system.restarts += 1
    finally:
        cell.finish(reason)


async def _incarnate(cell: Cell) -> StopReason | Comeback:
    """Live once, and say what comes after."""
    try:
        await _live(cell)
    except BaseException:
        # Cancelled from above (or KeyboardInterrupt, or a bug of ours): no verdict, but a farewell.
        await _say_farewell(cell, "stopped")
        raise
    verdict = _judge(cell)
    if isinstance(verdict, StopReason):
        await _say_farewell(cell, "stopped")
    else:
        cell.state = "restarting"
        await _say_farewell(cell, "restarting", verdict.error)
    return verdict


async def _live(cell: Cell) -> None:
    """From the factory to the moment when the last child and task are gone."""
    try:
        async with cell.system.backend.open_nursery() as nursery:
            try:
                cell.begin(nursery)
                if cell.doomed or cell.halting:
                    nursery.cancel_scope.cancel()
                await _call_hook(cell, "started")
                if cell.state == "starting":
                    cell.become("running")
                await _serve(cell)
                await _part(cell)
            except Exception as error:  # noqa: BLE001 - the supervisor decides
                cell.failure = cell.failure or error
            finally:
                cell.interrupted()
            cell.mailbox.idle = False
            nursery.cancel_scope.cancel()
    finally:
        cell.end()


async def _serve(cell: Cell) -> None:
    """Handle messages until a graceful stop has emptied the mailbox."""
    actor, context, blueprint, table = cell.actor, cell.context, cell.blueprint, cell.table
    assert blueprint is not None
    park = cell.system.backend.park
    box = cell.mailbox
    queue = box.queue
    # One by one, never the whole queue at once: what is not begun must stay in the mailbox when this one crashes.
    popleft = queue.popleft
    quota, slice_end = QUOTA, perf_counter() + SLICE
    while True:
        if cell.control:
            await _obey(cell)
            continue
        if not queue:
            if cell.closing:
                return
            box.idle = True
            try:
                await park(cell)
            finally:
                box.idle = False
            quota, slice_end = QUOTA, perf_counter() + SLICE
            continue
        item = message = popleft()
        if box.senders:
            box.admit()
        call: Call | None = None
        if type(item) is Call:
            if item.state != WAITING:
                cell.withdrawn += 1
                continue
            item.state = BEGUN
            cell.call = call = item
            message = item.message
        entry = table.get(type(message)) or blueprint.find(type(message))
        if entry is None:
            cell.call = None
            cell.unhandled(message, call)
            continue
        function, is_async, wants_context, expected = entry
        cell.current = item
        try:
            value = function(actor, message, context) if wants_context else function(actor, message)
            if is_async:
                value = await value
        except expected as error:
            cell.refuse(message, call, error)
        except Exception as error:
            cell.crashed_on_current(error)
            raise
        else:
            if call is not None:
                call.answer(value)
        cell.current = cell.call = None
        cell.handled += 1
        quota -= 1
        if not quota or perf_counter() > slice_end:
            await checkpoint()
            quota, slice_end = QUOTA, perf_counter() + SLICE


async def _obey(cell: Cell) -> None:
    """Work off the control lane, and stay here while paused."""
    while cell.control or (cell.paused and not cell.closing):
        if not cell.control:
            await cell.system.backend.park(cell)
            continue
        signal = cell.control.pop(0)
        if isinstance(signal, Death):
            if cell.watching is not None and signal.cell in cell.watching:
                cell.watching.discard(signal.cell)
                await _call_hook(cell, "terminated", signal.cell.ref, signal.reason)
        else:
            cell.paused = signal == "pause"


async def _part(cell: Cell) -> None:
    """The orderly end of a graceful stop; bounded by the deadline of the incarnation's scope."""
    cell.state = "stopping"
    try:
        await _call_hook(cell, "stopping")
    except Exception:
        logger.exception("actors.hook_failed", extra={"actor": cell.path, "hook": "stopping"})
    while cell.tasks:
        for scope in cell.tasks:
            scope.cancel()
        await cell.system.backend.park(cell)
    if cell.children is not None:
        await cell.children.stop_all(cell.stop_deadline)


def _judge(cell: Cell) -> StopReason | Comeback:
    """What comes after an incarnation."""
    error, cell.failure = cell.failure, None
    if error is not None:
        cell.crashes += 1
        cell.system.crashes += 1
        logger.error("actors.crashed", exc_info=error, extra={"actor": cell.path, "crashes": cell.crashes})
    if cell.doomed:
        return StopReason("killed")
    if cell.halting:
        return Comeback(cell.halt_error, grouped=True)
    if error is not None:
        return StopReason("failed", error) if cell.closing else cell.family.decide(cell, error)
    if cell.by_itself and cell.settings.restart == "permanent":
        cell.closing = cell.by_itself = False
        cell.stop_deadline = float("inf")
        cell.mailbox.reopen()
        return cell.family.decide(cell, ActorStopped(f"{cell.path} stopped itself, but is permanent"))
    return StopReason("stopped")


async def _wait_for_comeback(cell: Cell, comeback: Comeback) -> None:
    """Wait out the back-off, or the restart of the group; a stop or kill ends the wait."""
    backend = cell.system.backend
    if comeback.grouped:
        cell.holding = True
        cell.notify()
        if not cell.halting:
            cell.family.restart_group(cell, comeback)
        while cell.holding and not cell.closing and not cell.doomed:
            await backend.park(cell)
        cell.holding = False
    elif comeback.delay:
        with anyio.move_on_after(comeback.delay):
            while not cell.closing and not cell.doomed:
                await backend.park(cell)
    cell.state = "starting"


async def _call_hook(cell: Cell, name: str, *args: Any) -> None:
    assert cell.blueprint is not None
    hook = cell.blueprint.hooks.get(name)
    if hook is not None:
        result = hook(cell.actor, cell.context, *args)
        if inspect.isawaitable(result):
            await result


async def _say_farewell(cell: Cell, hook: str, *args: Any) -> None:
    """Let the incarnation release what it holds: shielded, in bounded time, and whatever it raises."""
    if cell.actor is None:
        return  # the factory failed
    timeout = cell.system.cleanup_timeout
    with anyio.CancelScope(shield=True, deadline=anyio.current_time() + timeout) as scope:
        try:
            await _call_hook(cell, hook, *args)
        except Exception:
            logger.exception("actors.hook_failed", extra={"actor": cell.path, "hook": hook})
    if scope.cancelled_caught:
        logger.error("actors.hook_timed_out", extra={"actor": cell.path, "hook": hook, "seconds": timeout})
    cell.actor = None
