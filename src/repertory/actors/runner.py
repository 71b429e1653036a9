"""The task of one actor: its incarnations, and in each the loop that handles messages one by one."""

from __future__ import annotations

import logging
from time import perf_counter
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from repertory.actors.calls import BEGUN, NOTHING, WAITING, Call, current_cell
from repertory.actors.cell import Cell, Death
from repertory.actors.dispatch import Blueprint
from repertory.actors.life import Life
from repertory.actors.lifecycle import StopReason
from repertory.actors.outcomes import crashed_on_current, interrupted, refuse, unhandled
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
            cell.runtime.restarts += 1
    finally:
        cell.finish(reason)


async def _incarnate(cell: Cell) -> StopReason | Comeback:
    """Live once, and say what comes after."""
    if cell.halting:  # a sibling crashed before this task ran for the first time
        return Comeback(cell.halt_error, grouped=True)
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
    life = cell.life = Life(cell)
    cell.cut = False
    try:
        async with cell.runtime.backend.open_nursery() as nursery:
            life.nursery = nursery
            try:
                if cell.closing:
                    nursery.cancel_scope.deadline = cell.stop_deadline
                blueprint = life.begin()
                await life.call_hook("started")
                cell.become("stopping" if cell.closing else "running")
                cell.actor, cell.context, cell.table = life.actor, life.context, blueprint.table
                await _serve(cell, life, blueprint)
                await _part(cell, life)
            except Exception as error:  # noqa: BLE001 - the supervisor decides
                cell.failure = cell.failure or error
            finally:
                interrupted(cell)
            cell.mailbox.idle = False
            if life.has_company():
                nursery.cancel_scope.cancel()
    finally:
        cell.mailbox.idle = False
        cell.actor = cell.context = cell.asking = None
        cell.table = {}
        life.end()


async def _serve(cell: Cell, life: Life, blueprint: Blueprint) -> None:
    """Handle messages until a graceful stop has emptied the mailbox."""
    actor, context, table = life.actor, life.context, blueprint.table
    park, is_parked = cell.runtime.backend.park, cell.runtime.backend.is_parked
    box = cell.mailbox
    queue = box.queue
    # One by one, never the whole queue at once: what is not begun must stay in the mailbox when this one crashes.
    popleft = queue.popleft
    quota, slice_end = QUOTA, perf_counter() + SLICE
    while True:
        if cell.control or cell.cut:
            await _obey(cell, life)
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
        if not quota or perf_counter() > slice_end:
            await checkpoint()
            quota, slice_end = QUOTA, perf_counter() + SLICE
            continue
        quota -= 1
        item: Any = popleft()
        message: Any = item
        if box.senders:
            box.admit()
        call: Call | None = None
        if type(item) is Call:
            if item.state != WAITING or not is_parked(item):
                cell.withdrawn += 1
                continue
            item.state = BEGUN
            cell.call = call = item
            message = item.message
        kind: type[Any] = type(message)  # pyright: ignore[reportUnknownVariableType]
        entry = table.get(kind) or blueprint.find(kind)
        if entry is None:
            cell.call = None
            unhandled(cell, message, call)
            continue
        function, is_async, wants_context, expected = entry
        cell.current = item
        try:
            value = function(actor, message, context) if wants_context else function(actor, message)
            if is_async:
                value = await value
        except expected as error:
            refuse(cell, message, call, error)
        except Exception as error:
            crashed_on_current(cell, error)
            raise
        else:
            if call is not None:
                call.answer(value)
        cell.current, cell.call = NOTHING, None
        cell.handled += 1


async def _obey(cell: Cell, life: Life) -> None:
    """Work off the control lane, and stay here while paused."""
    while cell.control or cell.cut or (cell.paused and not cell.closing):
        if cell.cut or not cell.control:
            # Cut means cancelled. asyncio delivers that one pass late, and no message is begun in between.
            await cell.runtime.backend.park(cell)
            continue
        signal = cell.control.pop(0)
        if isinstance(signal, Death):
            if life.watching is not None and signal.cell in life.watching:
                life.watching.discard(signal.cell)
                await life.call_hook("terminated", signal.cell.ref, signal.reason)
        else:
            cell.paused = signal == "pause"


async def _part(cell: Cell, life: Life) -> None:
    """The orderly end of a graceful stop; bounded by the deadline of the incarnation's scope."""
    cell.state = "stopping"
    try:
        await life.call_hook("stopping")
    except Exception:
        logger.exception("actors.hook_failed", extra={"actor": cell.path, "hook": "stopping"})
    while life.tasks:
        for scope in life.tasks:
            scope.cancel()
        await cell.runtime.backend.park(cell)
    if life.children is not None:
        await life.children.stop_all(cell.stop_deadline)


def _judge(cell: Cell) -> StopReason | Comeback:
    """What comes after an incarnation."""
    error, cell.failure = cell.failure, None
    if error is not None:
        cell.crashes += 1
        cell.runtime.crashes += 1
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
    backend = cell.runtime.backend
    if comeback.grouped:
        cell.holding = True
        cell.become("restarting")
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


async def _say_farewell(cell: Cell, hook: str, *args: Any) -> None:
    """Let the incarnation release what it holds: shielded, in bounded time, and whatever it raises."""
    life, cell.life = cell.life, None
    if life is None or not life.has_hook(hook):
        return  # nothing to say, or the factory failed
    timeout = cell.runtime.cleanup_timeout
    with anyio.CancelScope(shield=True, deadline=anyio.current_time() + timeout) as scope:
        try:
            await life.call_hook(hook, *args)
        except Exception:
            logger.exception("actors.hook_failed", extra={"actor": cell.path, "hook": hook})
    if scope.cancelled_caught:
        logger.error("actors.hook_timed_out", extra={"actor": cell.path, "hook": hook, "seconds": timeout})
