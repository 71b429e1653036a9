"""Answers from outside for waiting tool calls: the decision whether a call may be made, or its result.

An answer is durable before it is used, and counts once: the same answer again changes nothing, and a different one is
refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any, Final, Literal, TypeVar

import anyio
import anyio.lowlevel

from repertory._choices import show
from repertory._counting import counted
from repertory._json_text import canonical_json, json_text
from repertory.errors import ConfigurationError, RunError
from repertory.llm.messages import Image, Json, RawBlock, Text
from repertory.loop.open_calls import open_calls
from repertory.record.journal import Journal
from repertory.record.records import ContentStored, Record
from repertory.record.rows import plain_text
from repertory.runs.attachments import attach
from repertory.runs.events import (
    AnyEvent,
    ApprovalDecided,
    ApprovalRequested,
    ResultAwaited,
    ResultGiven,
    from_record,
    to_record,
)
from repertory.runs.live import LiveRun
from repertory.runs.waiting_calls import answer_id, waiting_id
from repertory.tools.execution import Unfinished
from repertory.tools.media import too_large
from repertory.tools.output import blocks_of, to_output
from repertory.tools.repeats import arguments_digest
from repertory.tools.schema import check_by_schema

T = TypeVar("T")
AnswerT = TypeVar("AnswerT", ApprovalDecided, ResultGiven)

_NAMED: Final = 10  # waiting calls that an error names; a person reads no more


class EndedWaiting(Exception):
    """The run was stopped alone while one of its calls waited, so the call will never be finished."""


# --- the loop waits ---------------------------------------------------------------------------------------


async def wait_for_decision(live: LiveRun, request: ApprovalRequested) -> ApprovalDecided:
    """Wait until a call is allowed or denied, and the decision is durable. If nobody decides in time, it is denied.

    Raises:
        Unfinished: The supervisor closes, or the whole tree was stopped; the call waits again when the run continues.
        EndedWaiting: The run was stopped alone.
    """
    call_id, waits = request.call_id, live.waits
    known = call_id in waits.requested
    waits.requested[call_id] = request
    live.show(request)
    async with _waiting(live, [] if known else [request]):
        decided = await _wait(live, lambda: waits.decided.get(call_id), request.expires_at)
        if decided is None:
            reason = f"nobody decided within {_seconds(request)}"
            decided = _decide(live, request, allowed=False, arguments=None, reason=reason, by="")
        await waits.durable(decided)
    return decided


async def wait_for_result(live: LiveRun, awaited: ResultAwaited) -> ResultGiven:
    """Wait until the result of a call is given and durable. If none comes in time, the result says so.

    Raises:
        Unfinished: As ``wait_for_decision``.
        EndedWaiting: As ``wait_for_decision``.
    """
    key, waits = waiting_id(awaited), live.waits
    async with _waiting(live, []):
        given = await _wait(live, lambda: waits.given.get(key), awaited.expires_at)
        if given is None:
            said = f"no result came within {_seconds(awaited)}"
            given = _give(live, awaited.call_id, awaited, said, is_error=True, expired=True)
        await waits.durable(given)
    return given


async def _wait(live: LiveRun, find: Callable[[], T | None], expires_at: float | None) -> T | None:
    """Wait until ``find`` finds something, and return it; None if the time is over first."""
    while (found := find()) is None:
        if live.desired_state == "close" or (live.desired_state == "stop" and live.waits_for_tree):
            raise Unfinished
        if live.desired_state == "stop":
            raise EndedWaiting
        left = math.inf if expires_at is None else expires_at - live.shared.clock()
        if left <= 0:
            return None
        with anyio.move_on_after(left):
            await live.wait_for_change()
    return found


@asynccontextmanager
async def _waiting(live: LiveRun, news: list[AnyEvent]) -> AsyncGenerator[None]:
    """Show and record that the run waits, together with events that say why.

    If the block is cancelled or raises, the run stays recorded as waiting.
    """
    live.waits.held += 1
    try:
        if live.waits.held == 1:
            live.enter("waiting", also=list(map(to_record, news)))
        else:
            live.shared.journal.submit([to_record(event) for event in news])
        yield
    finally:
        live.waits.held -= 1
    if live.waits.held == 0:
        live.enter("running")


def _seconds(event: ApprovalRequested | ResultAwaited) -> str:
    assert event.expires_at is not None
    return counted(max(0, round(event.expires_at - event.at, 2)), "second")


# --- somebody outside answers -----------------------------------------------------------------------------


async def decide(live: LiveRun, call_id: str, *, allowed: bool, arguments: Json | None, reason: str, by: str) -> None:
    """Allow or deny a waiting call. Returns once that is durable; a cancelled call has either decided or done nothing.

    Raises:
        RunError: No such call waits, it was decided otherwise, or a rule forbids the changed arguments.
        ConfigurationError: The changed arguments do not fit the tool.
    """
    await anyio.lowlevel.checkpoint()
    await _wait_until_asked(live, call_id, checkable=arguments is not None)
    request, known = live.waits.requested.get(call_id), live.waits.decided.get(call_id)
    journal = live.shared.journal
    arguments, reason, by = journal.redact((arguments, plain_text(reason), plain_text(by)))
    try:
        canonical_json(arguments)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"the arguments of call {call_id} must be JSON: {error}") from error
    if known is not None:
        _check_same([known], allowed=allowed, arguments=arguments)
        await live.waits.durable(known)
        return
    if request is None:
        if await was_decided(journal, live.run_id, call_id, allowed=allowed, arguments=arguments):
            return
        raise _no_call(live, call_id, "approval")
    _check_still_waits(live, call_id)
    if arguments is not None and arguments_digest(request.tool, arguments) != request.digest:
        live.waits.permit_edit[call_id](arguments)
    decided = _decide(live, request, allowed=allowed, arguments=arguments, reason=reason, by=by)
    await live.waits.durable(decided)


async def was_answered(
    journal: Journal,
    run_id: str,
    verb: str,
    *,
    call_id: str = "",
    arguments: Json | None = None,
    result: object = None,
    is_error: bool = False,
    **_more: str,
) -> bool:
    """Whether the record has the same answer as ``approve``, ``deny`` or ``give_result``; False for other verbs.

    Raises:
        RunError: The call was answered otherwise.
        ConfigurationError: As ``give_result``.
    """
    if verb in ("approve", "deny"):
        return await was_decided(journal, run_id, call_id, allowed=verb == "approve", arguments=arguments)
    return verb == "give_result" and await was_given(journal, run_id, call_id, result, is_error=is_error)


async def was_decided(journal: Journal, run_id: str, call_id: str, *, allowed: bool, arguments: Json | None) -> bool:
    """Whether the record says that a call of a run, or of one below it, was decided in the same way.

    Raises:
        RunError: It was decided otherwise.
    """
    known = await _recorded(journal, run_id, ApprovalDecided, call_id)
    _check_same(known, allowed=allowed, arguments=journal.redact(arguments))
    return bool(known)


async def was_given(journal: Journal, run_id: str, call_id: str, result: object, *, is_error: bool) -> bool:
    """Whether the record says that a call of a run, or of one below it, was given the same result.

    Raises:
        RunError: It was given another.
        ConfigurationError: As ``give_result``.
    """
    known = await _recorded(journal, run_id, ResultGiven, call_id)
    for event in known:
        plain, stored = await _kept(journal, event.run_id, call_id, result, is_error=is_error, at=event.at)
        if _is_same(event, plain, stored, is_error=is_error):
            return True
    if known:
        raise RunError(f"call {call_id} of run {known[-1].run_id} was given another result already")
    return False


async def _recorded(journal: Journal, run_id: str, kind: type[AnswerT], call_id: str) -> list[AnswerT]:
    """The answers to a call of a run or of one below it: several if the server's ids differ only within a run."""
    found = list[AnswerT]()
    for row in await journal.read_runs(below=run_id):
        for _, record in await journal.read_events(row.started.run_id, types=[kind.__name__]):
            event = from_record(record)
            if isinstance(event, kind) and answer_id(event) == call_id:
                found.append(event)
    return found


async def give_result(live: LiveRun, call_id: str, result: object, *, is_error: bool) -> None:
    """Give the result of a waiting call. Returns once it is durable.

    Raises:
        RunError: No such call waits, or another result was already given.
        ConfigurationError: The result is not text, JSON or blocks that can be shown, is too long to be kept, or does
            not fit the schema asked for.
    """
    await anyio.lowlevel.checkpoint()
    waits = live.waits
    awaited, known = waits.awaited.get(call_id), waits.given.get(call_id)
    if awaited is None and known is None and call_id not in waits.making:
        raise _no_call(live, call_id, "result")
    journal, at = live.shared.journal, live.shared.clock()
    result, stored = await _kept(journal, live.run_id, call_id, result, is_error=is_error, at=at)
    awaited, known = waits.awaited.get(call_id), waits.given.get(call_id)  # it may have been given another meanwhile
    if known is not None:
        if not _is_same(known, result, stored, is_error=is_error):
            raise RunError(f"call {call_id} of run {live.run_id} was given another result already")
    else:
        _check_still_waits(live, call_id if awaited is None else awaited.call_id)
        if awaited is not None and awaited.schema is not None and not is_error:
            if stored is not None:
                raise ConfigurationError(f"the result of call {call_id} must be JSON, as it is asked for by a schema")
            check_by_schema(result, awaited.schema, where=f"the result of call {call_id}")
        known = _give(live, call_id, awaited, result, is_error=is_error, stored=stored)
    await waits.durable(known)


async def _kept(
    journal: Journal, run_id: str, call_id: str, result: object, *, is_error: bool, at: float
) -> tuple[object, ContentStored | None]:
    """A result as it is recorded: text or JSON; or None, and what is stored.

    Raises:
        ConfigurationError: As ``give_result``.
    """
    blocks = blocks_of(result)
    if blocks is not None:
        return None, await _stored(journal, run_id, call_id, blocks, is_error=is_error, at=at)
    try:
        plain = journal.redact(json.loads(json_text(result)))
        to_output(plain, name="the result", cap=None)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"a result must be text, JSON or blocks: {error}") from error
    return plain, None


def _is_same(known: ResultGiven, result: object, stored: ContentStored | None, *, is_error: bool) -> bool:
    content_id = "" if stored is None else stored.content_id
    return (known.result, known.content_id, known.is_error) == (result, content_id, is_error)


async def _stored(
    journal: Journal, run_id: str, call_id: str, blocks: Sequence[Text | Image | RawBlock], *, is_error: bool, at: float
) -> ContentStored:
    """Images and documents as stored content, so that no event has to contain them.

    Raises:
        ConfigurationError: The Messages API would refuse them.
    """
    refusals = [refusal for block in blocks if not isinstance(block, Text) and (refusal := too_large(block))]
    if refusals:
        raise ConfigurationError(f"the result of call {call_id} cannot be shown to a model: {refusals[0]}")
    if is_error and not all(isinstance(block, Text) for block in blocks):
        raise ConfigurationError(f"the result of call {call_id} says why it failed, which takes text alone")
    return await attach(journal, run_id, "given", call_id, blocks, at=at)


async def _wait_until_asked(live: LiveRun, call_id: str, *, checkable: bool) -> None:
    """Wait until the loop of a resumed run has reached an open call again.

    It asks then, if the request that somebody saw was lost with its process before it was durable; and from then on its
    tool checks changed arguments (``checkable``).

    Raises:
        RunError: The run is queued or paused, or ended first.
    """
    waits = live.waits

    def is_ahead() -> bool:
        if call_id in waits.requested:
            return checkable and call_id not in waits.decided and call_id not in waits.permit_edit
        is_asked = waits.knows(call_id) or call_id in waits.decided or not waits.is_open(call_id)
        return not is_asked and any(call.use.id == call_id for call in open_calls(live.ledger.snapshot(), ()))

    while is_ahead():
        _check_still_waits(live, call_id)
        if live.state == "queued" or live.desired_state != "go":
            state = "queued" if live.state == "queued" else "paused"
            what = "the arguments of its calls can be changed" if call_id in waits.requested else "its calls wait"
            raise RunError(f"run {live.run_id} is {state}; {what} once it continues")
        await live.wait_for_change()


def _check_same(known: Sequence[ApprovalDecided], *, allowed: bool, arguments: Json | None) -> None:
    """Raise ``RunError`` if there are decisions, and all of them are others than this one."""

    def is_same(decided: ApprovalDecided) -> bool:
        if arguments is None:
            return decided.allowed == allowed and decided.arguments is None
        return decided.allowed == allowed and decided.digest == arguments_digest(decided.tool, arguments)

    if known and not any(map(is_same, known)):
        last = known[-1]
        how = f"allowed{' with other arguments' if allowed else ''}" if last.allowed else f"denied: {last.reason}"
        who = f" by {last.by}" if last.by else ""
        raise RunError(f"call {last.call_id} of run {last.run_id} was decided already{who}: {how}")


def _no_call(live: LiveRun, call_id: str, kind: Literal["approval", "result"]) -> RunError:
    """The error that no such call waits, with the calls of the run and of those below it that do."""
    calls = (call.call_id for run in live.tree() for call in run.waits.list() if call.kind == kind)
    what = "an approval" if kind == "approval" else "a result"
    waiting = ", ".join(islice(calls, _NAMED)) or "none"
    return RunError(f"no call {show(call_id)} of run {live.run_id} waits for {what}; waiting: {waiting}")


def _check_still_waits(live: LiveRun, call_id: str) -> None:
    if live.is_ending:
        raise RunError(
            f"run {live.run_id} has ended ({live.how_ended}); if it can be resumed, its calls wait again then"
        )
    if not live.waits.is_open(call_id):
        raise RunError(f"call {call_id} of run {live.run_id} does not wait any more; it has its result")


def _decide(
    live: LiveRun, request: ApprovalRequested, *, allowed: bool, arguments: Json | None, reason: str, by: str
) -> ApprovalDecided:
    digest = request.digest if arguments is None else arguments_digest(request.tool, arguments)
    event = live.event(
        ApprovalDecided,
        call_id=request.call_id,
        tool=request.tool,
        allowed=allowed,
        by=by,
        reason=reason,
        digest=digest,
        arguments=None if digest == request.digest else arguments,
    )
    _record_answer(live, event)
    return event


def _give(
    live: LiveRun,
    call_id: str,
    awaited: ResultAwaited | None,
    result: object,
    *,
    is_error: bool,
    expired: bool = False,
    stored: ContentStored | None = None,
) -> ResultGiven:
    more: dict[str, Any] = {"call_id": call_id, "tool": ""}  # it came before the tool had returned
    if awaited is not None:
        more = {"call_id": awaited.call_id, "tool": awaited.tool, "round": awaited.round}
    if stored is not None:
        more["content_id"] = stored.content_id
    event = live.event(ResultGiven, result=result, is_error=is_error, expired=expired, **more)
    _record_answer(live, event, also=[] if stored is None else [stored])
    return event


def _record_answer(live: LiveRun, event: ApprovalDecided | ResultGiven, also: Sequence[Record] = ()) -> None:
    """Write an answer and give it to the loop in one step: a cancelled caller has done both or neither."""
    ticket = live.shared.journal.submit([*also, to_record(event)])
    live.waits.take(event, ticket)
    live.show(event)
    live.wake()
