"""HTTP operations that change something: start runs, send them messages, end them and decide waiting calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import Response

from repertory.errors import ConfigurationError
from repertory.llm.messages import Text
from repertory.record.sqlite_journal import SqliteJournal
from repertory.service.control import Control
from repertory.service.requests import (
    MAX_LISTED,
    Approval,
    Denial,
    GivenMedia,
    GivenResult,
    GivenText,
    NewFork,
    NewMessage,
    NewRewind,
    NewRun,
    Redelivery,
    StartHeaders,
)
from repertory.service.routes import MAX_BODY, Operation, as_json, delete, post
from repertory.service.views import Reloaded, Space, Started, WebhookAttempt, attempt_view
from repertory.tools.media import Media, media_block
from repertory.tools.threads import compute

MAX_GIVEN: Final = 32 * 2**20  # bytes of a body with images or documents; a request to a model may have no more
_GIVEN_BACK: Final = 2048  # pages given back to the disk at once


class WriteOperations:
    """The handlers."""

    def __init__(self, control: Control) -> None:
        self._control = control

    async def start_run(self, *, headers: StartHeaders, body: NewRun) -> Annotated[Response, Started]:
        """Start a run; it is durable when the answer comes.

        With a ``run_id`` or an ``Idempotency-Key`` it is safe to repeat: only one run starts, and all answers have its
        id.
        """
        if headers.idempotency_key and body.run_id is not None:
            raise HTTPException(422, "either run_id or Idempotency-Key can make it safe to repeat, got both")
        run_id = await self._control.start(
            body.agent,
            body.task,
            attachments=await _convert_attached(body.task, body.attachments),
            root=body.root,
            payload=body.payload,
            run_id=body.run_id,
            key=headers.idempotency_key,
            priority=body.priority,
            client=body.client,
        )
        return as_json(Started(id=run_id), 201, {"location": f"/runs/{run_id}"})

    async def send(self, run_id: str, *, body: NewMessage) -> None:
        """Send a message to a run; it is durable when the answer comes."""
        attachments = await _convert_attached(body.text, body.attachments)
        await self._control.send(run_id, body.text, attachments=attachments, message_id=body.message_id)

    async def stop(self, run_id: str) -> None:
        """End a run at its next boundary."""
        await self._control.tell(run_id, "stop")

    async def kill(self, run_id: str) -> None:
        """End a run at once."""
        await self._control.tell(run_id, "kill")

    async def pause(self, run_id: str) -> None:
        """Pause a run at its next boundary."""
        await self._control.tell(run_id, "pause")

    async def resume(self, run_id: str) -> None:
        """Continue a run that is paused, stopped or failed, or was begun by an earlier process."""
        await self._control.resume(run_id)

    async def fork(self, run_id: str, *, body: NewFork) -> Annotated[Response, Started]:
        """Start a second run that shares this one's history up to an iteration; 200 if it existed already."""
        return await self._fork(run_id, body, rewind=False)

    async def rewind(self, run_id: str, *, body: NewRewind) -> Annotated[Response, Started]:
        """End a run, and start one in its place with its history up to an iteration; 200 as for a fork."""
        return await self._fork(run_id, body, rewind=True)

    async def _fork(self, run_id: str, body: NewFork | NewRewind, *, rewind: bool) -> Response:
        iteration, text, new_id = body.iteration, body.text, body.run_id
        run_id, is_new = await self._control.fork(run_id, iteration, text=text, new_id=new_id, rewind=rewind)
        return as_json(Started(id=run_id), 201 if is_new else 200, {"location": f"/runs/{run_id}"})

    async def remove(self, run_id: str) -> Response:
        """Remove a run that no process runs, and all below it, from the journal for good; needs its full id."""
        await self._control.remove(run_id)
        return Response(status_code=204)

    async def approve(self, run_id: str, call_id: str, *, body: Approval) -> None:
        """Approve a waiting call; it is durable when the answer comes. Safe to repeat, as ``deny`` and ``result``."""
        await self._control.tell(run_id, "approve", call_id=call_id, arguments=body.arguments, by=body.by)

    async def deny(self, run_id: str, call_id: str, *, body: Denial) -> None:
        """Deny a waiting call; it is durable when the answer comes."""
        await self._control.tell(run_id, "deny", call_id=call_id, reason=body.reason, by=body.by)

    async def give_result(self, run_id: str, call_id: str, *, body: GivenResult) -> None:
        """Give the result of a call that waits for it; it is durable when the answer comes."""
        result = body.result
        if body.content is not None:
            if result is not None:
                raise HTTPException(422, "either result or content can be given, got both")
            result = await _convert(body.content, "the content")
        await self._control.tell(run_id, "give_result", call_id=call_id, result=result, is_error=body.is_error)

    async def redeliver(self, *, body: Redelivery) -> WebhookAttempt:
        """Send a change of state to a webhook again, now, whatever the outcome was before."""
        tried = await self._control.deliveries.redeliver(body.change, body.url)
        newest = await self._control.journal.read_webhooks(limit=MAX_LISTED)  # others may have been told meanwhile
        return attempt_view(next((seq for seq, each in newest if each == tried), 0), tried)

    async def reload(self) -> Reloaded:
        """Read the company file again. If it is wrong, nothing changes, and the error says what is wrong and where."""
        try:
            return Reloaded(notes=self._control.reload())
        except ConfigurationError as error:  # the file is wrong, not the request
            raise HTTPException(422, str(error)) from error

    async def vacuum(self) -> Space:
        """Give some space of removed runs back to the disk: 8 MiB, so that nobody waits long for it."""
        journal = self._control.journal
        if not isinstance(journal, SqliteJournal):
            raise HTTPException(409, "only a database in a file has space to give back")
        size, free = await journal.give_back(_GIVEN_BACK)
        return Space(size=size, free=free)


async def _convert(parts: Sequence[GivenText | GivenMedia], what: str) -> list[Any]:
    """Make the blocks that a model is shown of the parts of a body; 422 if the API would refuse one."""

    def blocks() -> list[Text | Media]:
        return [
            Text(part.text)
            if isinstance(part, GivenText)
            else media_block(part.data, part.media_type, title=part.title)
            for part in parts
        ]

    try:
        return await compute(blocks, size=sum(len(part.data) for part in parts if isinstance(part, GivenMedia)))
    except ValueError as error:
        raise HTTPException(422, f"{what} cannot be shown to a model: {error}") from None


async def _convert_attached(text: str, attachments: Sequence[GivenMedia]) -> list[Media]:
    """Make what a model is shown of attachments; 413 if it is the text that needs so large a body."""
    if len(text) > MAX_BODY:
        raise HTTPException(413, f"the text is larger than {MAX_BODY} characters")
    return await _convert(attachments, "the attachments")


_RUN: Final = "/runs/{run_id}"
_CALL: Final = "/runs/{run_id}/calls/{call_id}"

WRITE_OPERATIONS: Final[tuple[Operation, ...]] = (
    post("/runs", WriteOperations.start_run, status=201, errors=(409, 422, 429), max_body=MAX_GIVEN),
    post(f"{_RUN}/messages", WriteOperations.send, status=202, errors=(404, 409, 422), max_body=MAX_GIVEN),
    post(f"{_RUN}/stop", WriteOperations.stop, status=202, errors=(404, 409)),
    post(f"{_RUN}/kill", WriteOperations.kill, status=202, errors=(404, 409)),
    post(f"{_RUN}/pause", WriteOperations.pause, status=202, errors=(404, 409)),
    post(f"{_RUN}/resume", WriteOperations.resume, status=202, errors=(404, 409, 422, 429)),
    post(f"{_RUN}/fork", WriteOperations.fork, status=201, also=(200,), errors=(404, 409, 422, 429)),
    post(f"{_RUN}/rewind", WriteOperations.rewind, status=201, also=(200,), errors=(404, 409, 422, 429)),
    delete(_RUN, WriteOperations.remove, status=204, errors=(404, 409)),
    post(f"{_CALL}/approve", WriteOperations.approve, status=202, errors=(404, 409)),
    post(f"{_CALL}/deny", WriteOperations.deny, status=202, errors=(404, 409)),
    post(f"{_CALL}/result", WriteOperations.give_result, status=202, errors=(404, 409, 422), max_body=MAX_GIVEN),
    post("/webhooks/redeliver", WriteOperations.redeliver, errors=(404,)),
    post("/reload", WriteOperations.reload, errors=(422,)),
    post("/vacuum", WriteOperations.vacuum, errors=(409,)),
)
