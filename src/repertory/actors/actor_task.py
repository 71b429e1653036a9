"""The task of one actor: its incarnations, and in each the loop that handles messages one by one."""

from __future__ import annotations

import inspect
import logging
from time import perf_counter
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from repertory._cancelling import crash_of
from repertory.actors.context import ActorContext
from repertory.actors.handlers import Blueprint, blueprint_of
from repertory.actors.mailbox import BEGUN, NEVER, NOTHING, WAITING, Ask
from repertory.actors.observation import StopReason, log
from repertory.actors.references import asking_mailbox
from repertory.actors.runtime import QUOTA
from repertory.actors.supervision import RestartPlan
from repertory.actors.tree import ActorNode
from repertory.errors import ActorStopped, UnhandledMessage

SLICE = 0.001
"""Seconds after which a busy actor lets others run, however few messages it has handled."""


async def run_actor(node: ActorNode) -> None:
    """Run an actor until it has stopped for good."""
    asking_mailbox.set(node.mailbox)
    reason = StopReason("killed")
    try:
        while not node.killed:
            if node.halted is None:  # else a sibling crashed before this task ran for the first time
                try:
                    await _run_incarnation(node)
                except BaseException as error:  # noqa: BLE001 - only a crash and a cancellation are not raised again
                    # Cancelled from above (or KeyboardInterrupt): no decision, but the hook is called.
                    crash, others = _split_errors(error)
                    if crash is not None:
                        _note_crash(node, crash)
                    await _call_last_hook(node, "stopped")
                    if others is not None:
                        raise others from None
                    break  # a cancellation handed up would be one more group inside of groups at each level of the tree
            decision = _decide_restart(node)
            if isinstance(decision, StopReason):
                reason = decision
                await _call_last_hook(node, "stopped")
                break
            node.state = "restarting"
            await _call_last_hook(node, "restarting", decision.error)
            await _wait_for_restart(node, decision)
            if node.closing:
                reason = StopReason("killed" if node.killed else "stopped")
                break
            node.restarts += 1
            node.mailbox.runtime.restarts += 1
    finally:
        node.finish(reason)


async def _run_incarnation(node: ActorNode) -> None:
    """Run one incarnation: from the factory until the last child and task are gone."""
    box = node.mailbox
    node.context = ActorContext(node)
    node.cancelled = False
    try:
        async with box.runtime.scheduler.open_nursery() as nursery:
            node.nursery = nursery
            try:
                if node.closing:
                    nursery.cancel_scope.deadline = node.stop_deadline
                node.actor = node.factory()
                kind: type = type(node.actor)
                blueprint = node.blueprint = blueprint_of(kind)
                if "started" in blueprint.hooks:
                    await _call_hook(node, "started")
                node.change_state("stopping" if node.closing else "running")
                if box.settings.attempts == 1:  # with more, an asker may have to wait for the next attempt
                    box.handlers = blueprint.handlers
                await _serve(node, blueprint)
                await _stop_gracefully(node)
            except Exception as error:  # noqa: BLE001 - the supervisor decides
                node.failure = node.failure or error
            finally:
                box.interrupt(node.failure or (node.halted.error if node.halted else None))
                node.close_nursery()
    except Exception as error:  # noqa: BLE001 - trio groups what was raised while this was cancelled with Cancelled
        node.failure = node.failure or error
    finally:
        node.end_incarnation()


async def _serve(node: ActorNode, blueprint: Blueprint) -> None:
    """Handle messages until a graceful stop has emptied the mailbox."""
    actor, context, table = node.actor, node.context, blueprint.handlers
    box = node.mailbox
    await _handle_signals(node)  # an actor that was paused before a restart still is
    park, is_parked = box.runtime.scheduler.park, box.runtime.scheduler.is_parked
    queue = box.queue
    # One by one, never the whole queue at once: messages not begun must stay in the mailbox if the actor crashes.
    popleft = queue.popleft
    quota, slice_end = QUOTA, perf_counter() + SLICE
    while True:
        if node.control or node.cancelled:
            await _handle_signals(node)
            continue
        if not queue:
            if node.closing:
                return
            box.idle = True
            try:
                await park(box)
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
        ask: Ask | None = None
        if type(item) is Ask:
            if item.state != WAITING or not is_parked(item):
                box.withdrawn += 1
                continue
            item.state = BEGUN
            ask = item
            message = item.message
        kind: type[Any] = type(message)  # pyright: ignore[reportUnknownVariableType]
        found = table.get(kind) or blueprint.find(kind)
        if found is None:
            answer = UnhandledMessage(f"{box.path} has no handler for {kind.__qualname__}")
            box.reject(item, answer, "unhandled")
            continue
        function, is_async, wants_context, expected = found
        box.current = item
        try:
            value = function(actor, message, context) if wants_context else function(actor, message)
            if is_async:
                value = await value
        except expected as error:
            box.reject(item, error, "refused", error)
        except BaseException as raised:  # noqa: BLE001 - raised again
            crash = crash_of(raised)
            box.crashed(crash)
            raise crash  # noqa: B904 - it is what was raised, or has that as its cause
        else:
            if ask is not None:
                ask.answer(value)
        box.current = NOTHING
        box.handled += 1


async def _handle_signals(node: ActorNode) -> None:
    """Process the signals, and wait here while paused."""
    while node.control or node.cancelled or (node.paused and not node.closing):
        if node.cancelled or not node.control:
            # asyncio delivers a cancellation one pass late, and no message is begun in between.
            await node.mailbox.runtime.scheduler.park(node.mailbox)
            continue
        signal = node.control.popleft()
        if isinstance(signal, str):
            node.paused = signal == "pause"
        elif node.watching is not None and signal in node.watching:
            node.watching.discard(signal)
            await _call_hook(node, "terminated", signal.ref, signal.mailbox.reason)


async def _stop_gracefully(node: ActorNode) -> None:
    """Finish a graceful stop: the ``stopping`` hook, tasks, children; bounded by the incarnation's deadline."""
    node.state = "stopping"
    if node.has_hook("stopping"):
        try:
            await _call_hook(node, "stopping")
        except Exception as error:  # noqa: BLE001 - whatever it raises, the stop continues
            log(logging.ERROR, "actors.hook_failed", exc_info=error, actor=node.mailbox.path, hook="stopping")
    while node.tasks:
        for scope in node.tasks:
            scope.cancel()
        await node.mailbox.runtime.scheduler.park(node.mailbox)
    if node.children is not None:
        await node.children.stop_all(node.stop_deadline)


def _decide_restart(node: ActorNode) -> StopReason | RestartPlan:
    """Decide what follows an incarnation: the end, or a restart."""
    box, settings = node.mailbox, node.mailbox.settings
    error, node.failure = node.failure, None
    if error is not None:
        _note_crash(node, error)
    if node.killed:
        return StopReason("killed")
    if node.halted is not None:
        return node.halted
    if error is not None:
        return StopReason("failed", error) if node.closing else node.siblings.decide(node, error)
    if node.stopped_itself and settings.restart == "permanent":
        node.closing = node.stopped_itself = False
        node.stop_deadline = NEVER
        box.room = settings.capacity  # it accepts messages again
        return node.siblings.decide(node, ActorStopped(f"{box.path} stopped itself, but is permanent"))
    return StopReason("stopped")


def _note_crash(node: ActorNode, error: BaseException) -> None:
    node.crashes += 1
    node.mailbox.runtime.crashes += 1
    log(logging.ERROR, "actors.crashed", exc_info=error, actor=node.mailbox.path, crashes=node.crashes)


def _split_errors(error: BaseException) -> tuple[BaseException | None, BaseException | None]:
    """What an actor's code raised while it was cancelled from above, and what is neither that nor the cancellation."""
    crash, others = BaseExceptionGroup("", [error]).split(Exception)
    return crash, others and others.split(anyio.get_cancelled_exc_class())[1]


async def _wait_for_restart(node: ActorNode, plan: RestartPlan) -> None:
    """Wait for the back-off, or for the restart of the group; a stop or kill ends the wait."""
    scheduler = node.mailbox.runtime.scheduler
    if plan.grouped:
        node.awaits_group = True
        node.change_state("restarting")
        if node.halted is None:
            group = node.siblings
            group.nursery.start_soon(group.restart, node, plan, name=f"{node.mailbox.path} restart group")
        while node.awaits_group and not node.closing:
            await scheduler.park(node.mailbox)
        node.awaits_group = False
    elif plan.delay:
        with anyio.move_on_after(plan.delay):
            while not node.closing:
                await scheduler.park(node.mailbox)
    node.state = "starting"


async def _call_last_hook(node: ActorNode, hook: str, *args: Any) -> None:
    """Call the last hook of an incarnation, so that it can release resources: shielded, and in bounded time."""
    path, timeout = node.mailbox.path, node.mailbox.runtime.cleanup_timeout
    try:
        if not node.has_hook(hook):
            return  # no such hook, or the factory failed
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + timeout) as scope:
            await _call_hook(node, hook, *args)
        if scope.cancelled_caught:
            log(logging.ERROR, "actors.hook_timed_out", actor=path, hook=hook, seconds=timeout)
    except Exception as error:  # noqa: BLE001 - whatever it raises, also when its time was over, the actor has ended
        log(logging.ERROR, "actors.hook_failed", exc_info=error, actor=path, hook=hook)
    finally:
        node.actor = node.context = node.blueprint = None


async def _call_hook(node: ActorNode, name: str, *args: Any) -> None:
    """Call one of the actor's hooks, which must exist."""
    assert node.blueprint is not None
    try:
        result = node.blueprint.hooks[name](node.actor, node.context, *args)
        if inspect.isawaitable(result):
            await result
    except BaseException as raised:  # noqa: BLE001 - the supervisor decides
        raise crash_of(raised)  # noqa: B904 - as above
