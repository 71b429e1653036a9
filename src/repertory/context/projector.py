"""The incremental projector: the same requests as ``project``, at a cost that follows what changed."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from repertory.context.plan import EMPTY, Plan
from repertory.context.projection import View
from repertory.llm.messages import Block, Json, Message, canonical_json, encode_block
from repertory.llm.model import Breakpoint, ModelRequest, ToolSchema, encode_request
from repertory.llm.profiles import ModelProfile
from repertory.record.entries import Entry
from repertory.record.records import ModelCalled
from repertory.record.requests import EntryBlocks

BREAKPOINTS = "prompt_cache"  # sorts after "messages": what changes at every call stays behind the hashed prefix


class Projector:
    """Projects one run, call after call. Not for several tasks at once; one per run.

    As long as the plan is the same object, only the entries that are new since the last call are looked at.
    A changed plan rebuilds the view, which costs what the view is long, never what the record is.
    """

    def __init__(
        self,
        *,
        profile: ModelProfile,
        system: Sequence[Block] = (),
        tools: Sequence[ToolSchema] = (),
        max_tokens: int = 8192,
        options: Json | None = None,
        betas: Sequence[str] = (),
    ) -> None:
        self._profile = profile
        self._head = bool(system or tools)
        self._frame = ModelRequest(
            model=profile.name,
            messages=(),
            system=tuple(system),
            tools=tuple(tools),
            max_tokens=max_tokens,
            options=options or {},
            betas=tuple(betas),
        )
        self._view: View | None = None
        self._blocks = EntryBlocks()
        self._known = 0  # entries whose blocks are in there
        self._recorder = _Recorder(self._frame, self._blocks)

    def project(self, snapshot: Sequence[Entry], plan: Plan = EMPTY) -> ModelRequest:
        """Make the request that the plan shows of the snapshot; equal to ``project``'s, byte for byte.

        Args:
            snapshot: The ledger; not shorter than at the last call with the same plan.
            plan: How its entries are shown.
        """
        view = self._view
        if view is None or view.plan is not plan or view.position > len(snapshot):
            earlier, view = view, View(plan, profile=self._profile)
            view.add_covered(snapshot, like=earlier)
            self._view = view
        if view.position < len(snapshot):
            view.add(snapshot, view.position)
        if self._known < len(snapshot):
            self._blocks.add(snapshot[self._known :])
            self._known = len(snapshot)
        messages = view.messages()
        points = view.breakpoints(messages, self._profile, head=self._head)
        return msgspec.structs.replace(self._frame, messages=messages, breakpoints=points)

    def record(
        self,
        request: ModelRequest,
        *,
        run_id: str,
        call: int,
        iteration: int,
        position: int,
        at: float,
        prompt_estimate: int = 0,
        expected_tokens: int = 0,
        server: str = "",
    ) -> ModelCalled:
        """Write a request that is about to be sent as a record, without repeating what the last one said.

        The record's body names the blocks that the ledger holds. It has no cache markers in it; where they stood is
        listed under ``prompt_cache``. ``sent_body`` puts them back.

        Args:
            request: One of this projector's requests.
            run_id: The run.
            call: Number of the model call within the run, from 1; the next record refers to it.
            iteration: The iteration.
            position: Length of the ledger that the request was projected from.
            at: Seconds since 1970.
            prompt_estimate: Tokens that the prompt is estimated to have, by its characters.
            expected_tokens: The same, corrected by what earlier prompts were billed for.
            server: The address of the model's server; "" where it has none.
        """
        shared, digest, body = self._recorder.record(request, call)
        return ModelCalled(
            run_id=run_id,
            call=call,
            iteration=iteration,
            model=request.model,
            position=position,
            digest=digest,
            body=body,
            at=at,
            base_call=shared.base_call,
            shared_messages=shared.messages,
            shared_blocks=shared.blocks,
            prompt_estimate=prompt_estimate,
            expected_tokens=expected_tokens,
            server=server,
        )


class _Recorder:
    """Keeps the last recorded request, and a running hash after each of its blocks: an edit goes back to the last block
    that it left alone, in the record as in the hash."""

    def __init__(self, frame: ModelRequest, blocks: EntryBlocks) -> None:
        self._blocks = blocks
        outer: Json = {**encode_request(frame), "messages": [], BREAKPOINTS: []}
        if frame.betas:
            outer["betas"] = list(frame.betas)
        self._outer: Json = {name: value for name, value in outer.items() if name not in ("messages", BREAKPOINTS)}
        before: Json = {name: value for name, value in self._outer.items() if name < "messages"}
        opening = canonical_json(before)[:-1] + (b"," if before else b"") + b'"messages":['
        self._opening = blake2b(opening, digest_size=16)
        self._base: int | None = None
        self._messages: tuple[Message, ...] = ()
        self._hashes: list[list[blake2b]] = []  # of each message: after its opening and so many of its blocks

    def record(self, request: ModelRequest, call: int) -> tuple[_Shared, str, Json]:
        messages = request.messages
        shared, blocks = _shared(self._messages, messages)
        del self._hashes[shared + 1 :]
        if not blocks:
            del self._hashes[shared:]
        else:
            del self._hashes[shared][blocks + 1 :]
            self._hash_blocks(messages[shared], blocks)
        for at in range(len(self._hashes), len(messages)):
            opened = self._closed(messages, at)
            opened.update(b',{"content":[' if at else b'{"content":[')
            self._hashes.append([opened])
            self._hash_blocks(messages[at], 0)
        points = [_encode_point(point) for point in request.breakpoints]
        after: Json = {name: value for name, value in self._outer.items() if name > "messages"}
        whole = self._closed(messages, len(messages))
        whole.update(b"]," + canonical_json({**after, BREAKPOINTS: points})[1:])
        tail: list[Json] = []
        for message in messages[shared:]:
            content = message.content if tail else message.content[blocks:]
            tail.append({"role": message.role, "content": self._blocks.encode(content)})
        body = {**self._outer, "messages": tail, BREAKPOINTS: points}
        found = _Shared(self._base if shared or blocks else None, shared, blocks)
        self._base, self._messages = call, messages
        return found, whole.hexdigest(), body

    def _hash_blocks(self, message: Message, known: int) -> None:
        hashes = self._hashes[-1]
        for block in message.content[known:]:
            found = hashes[-1].copy()
            found.update((b"," if len(hashes) > 1 else b"") + canonical_json(encode_block(block)))
            hashes.append(found)

    def _closed(self, messages: Sequence[Message], count: int) -> blake2b:
        """The hash after so many messages."""
        if not count:
            return self._opening.copy()
        found = self._hashes[count - 1][-1].copy()
        found.update(b'],"role":"' + messages[count - 1].role.encode() + b'"}')
        return found


class _Shared(msgspec.Struct, frozen=True):
    """What a request has in common with one before it; see ``ModelCalled``."""

    base_call: int | None
    messages: int
    blocks: int


def _shared(old: tuple[Message, ...], new: tuple[Message, ...]) -> tuple[int, int]:
    """How many leading messages are equal, and of the next one how many leading blocks."""
    count = _equal(old, new)
    if count < min(len(old), len(new)) and old[count].role == new[count].role:
        return count, _equal(old[count].content, new[count].content)
    return count, 0


def _equal(old: Sequence[object], new: Sequence[object]) -> int:
    """How many leading values are equal; identical objects cost nothing to compare."""
    count = 0
    for one, other in zip(old, new, strict=False):
        if one is not other and one != other:
            break
        count += 1
    return count


def _encode_point(point: Breakpoint) -> Json:
    return {"message": point.message, "ttl": point.ttl}


def sent_body(recorded: Json) -> Json:
    """Make the body of ``POST /v1/messages`` out of a recorded request, its cache markers put back.

    Args:
        recorded: The whole request, as ``Journal.read_request`` gives it.
    """
    body = {name: value for name, value in recorded.items() if name not in (BREAKPOINTS, "betas")}
    body["messages"] = [{**message, "content": list(message["content"])} for message in body["messages"]]
    blocks: list[Json]
    for point in recorded.get(BREAKPOINTS, ()):
        index = point["message"]
        marker = {"type": "ephemeral"} if point["ttl"] == "5m" else {"type": "ephemeral", "ttl": point["ttl"]}
        if index is None:
            place = "system" if body.get("system") else "tools"
            blocks = body[place] = list(body[place])
        else:
            blocks = body["messages"][index]["content"]
        for at in range(len(blocks) - 1, -1, -1):
            if blocks[at].get("type") not in ("thinking", "redacted_thinking"):
                blocks[at] = {**blocks[at], "cache_control": marker}
                break
    return body
