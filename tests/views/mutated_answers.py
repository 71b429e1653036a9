"""Answers that no model should give, made from a seed, and runs that must survive them.

``mutated_answer`` makes one. ``play_answers`` plays many in runs over a journal file that are cut off and resumed in
between: whatever the answers were, every later request must be legal, no incomplete call may run, and each run must
end. ``unread_answers`` is the control: the answers that would poison a run if they were kept unchecked.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Final, cast

import anyio
import anyio.lowlevel
import msgspec

from repertory.agents import Agent, Limits
from repertory.context import ContextPolicy, project
from repertory.errors import LimitExceeded, ModelRefused, RepertoryError, ResultInvalid, RunFailed, RunNotFound
from repertory.llm.messages import (
    Block,
    Image,
    Json,
    RawBlock,
    RedactedThinking,
    Role,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    decode_block,
    encode_block,
    tool_uses,
)
from repertory.llm.model import ModelRequest, ModelResponse, StreamEvent, ToolSchema, Usage, encode_request
from repertory.llm.profiles import OFFLINE, ModelProfile, profile_for
from repertory.llm.validation import validate
from repertory.record import Entry
from repertory.record.rows import decode_json, encode_json
from repertory.supervisor import Supervisor, open_supervisor
from repertory.testing.refusal import Refusal
from repertory.testing.rules import check_body
from repertory.tools import ToolContext, tool
from repertory.views.answers import MAX_DEPTH, Answer

TOOLS: Final = ("look", "put", "fire")  # pure, idempotent, unsafe
_REASONS: Final = (
    "tool_use",
    "end_turn",
    "pause_turn",
    "max_tokens",
    "stop_sequence",
    "refusal",
    "length",
    "banana",
    "",
)
_WHOLE: Final = ("tool_use", "end_turn", "pause_turn")
_LENGTH: Final = 24  # answers per journal file, so that a poisoned record is sent again many times
_LONG: Final = 200_000  # characters, more than an answer of 8,192 tokens can have


class Mutated(msgspec.Struct, frozen=True):
    """An answer, and the marks of its calls that may run. A mark is an argument that no other call has.

    A call without arguments has mark -1.
    """

    response: ModelResponse
    may_run: frozenset[int]


def mutated_answer(rng: random.Random) -> Mutated:
    """Make an answer of blocks of all types, some of them broken, duplicated or misplaced."""
    sound: set[int] = set()
    content: list[Any] = [rng.choice(_MAKERS)(rng, sound) for _ in range(rng.choice((0, 1, 1, 2, 3, 5)))]
    if content and rng.random() < 0.15:
        content.insert(rng.randint(0, len(content)), rng.choice(content))
    reason = rng.choice(_REASONS[:3]) if rng.random() < 0.5 else rng.choice(_REASONS)
    usage = Usage(input_tokens=rng.randint(1, 100), output_tokens=rng.randint(1, 100))
    response = ModelResponse(content=tuple(content), stop_reason=reason, usage=usage)
    return Mutated(response, frozenset(_may_run(response, sound)))


def _may_run(response: ModelResponse, sound: set[int]) -> set[int]:
    """Marks of the valid calls that are not affected by a refusal or a limit."""
    if response.stop_reason == "refusal":
        return set()
    speaking = [place for place, block in enumerate(response.content) if not _says_nothing(block)]
    marks: set[int] = set()
    for place, block in enumerate(response.content):
        arguments: Any = block.input if isinstance(block, ToolUse) and block.name in TOOLS else ""
        if arguments is None or (isinstance(arguments, str) and arguments.startswith("{")):
            arguments = decode_json(arguments) if arguments else {}
        if isinstance(arguments, dict):
            mark: int = arguments.get("mark", -1)
            whole = response.stop_reason in _WHOLE or (place != speaking[-1] and bool(arguments))
            if whole and (mark in sound or not arguments):
                marks.add(mark)
    return marks


def _says_nothing(block: Any) -> bool:
    if isinstance(block, Text):
        text: Any = block.text
        return not isinstance(text, str) or not text.strip()
    return not isinstance(block, Thinking | RedactedThinking | ToolUse | RawBlock) or (
        isinstance(block, RawBlock) and block.raw in ({}, {"type": "text"})
    )


# --- the grammar --------------------------------------------------------------------------------------------------


def _deep(levels: int) -> Json:
    value: Json = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


def _value(rng: random.Random) -> Any:
    """An argument that JSON can hold."""
    return rng.choice(
        (None, True, -1, 2**63, 0.5, "", "words", "a\ud800b", "\0", [1, [2]], {"b": {}}, _deep(MAX_DEPTH - 1))
    )


def _broken_value(rng: random.Random) -> Any:
    """An argument that cannot be kept, sent or read again."""
    return rng.choice((
        *(_deep(600), _deep(MAX_DEPTH), 2**64, -(2**70), 10**5000, math.nan, -math.inf, b"bytes", {1: 2}, {None: 1}),
        *(object, {"deep": [math.inf]}, "x" * _LONG),
    ))  # fmt: skip


def _id(rng: random.Random) -> Any:
    if rng.random() < 0.5:
        return f"toolu_{rng.getrandbits(48):012x}"
    return rng.choice(
        ("call_0", "call_0", "t1", "", "functions.look:0", "i" * 300, 7, None, "ü", "a b", "call_1\n", "_a_")
    )


_NO_NAMES: Final[tuple[Any, ...]] = ("look ", "lo ok", 'fire(mark="1")', "", "n" * 200, 5, None, [], "fire\n")


def _call(rng: random.Random, sound: set[int]) -> ToolUse:
    mark = rng.getrandbits(40)
    name: Any = rng.choice(TOOLS)
    arguments: Any = {"mark": mark, "data": _value(rng)}
    match rng.randrange(8):
        case 0:
            name = rng.choice((*_NO_NAMES, "ghost", "delegate", "final_result", "final_result"))
        case 1:
            arguments["data"] = _broken_value(rng)
        case 2:
            arguments = rng.choice(([], [arguments], "fire", '["mark", 1]', 5, {1: 2}, _deep(900)))
        case 3:
            arguments = rng.choice(({}, None))
        case 4:
            arguments = f'{{"mark": {mark}}}'
            sound.add(mark)
        case _:
            sound.add(mark)
    extra: Json | None = rng.choice(
        (None, None, None, {"cache_control": {"type": "ephemeral"}}, {"caller": _deep(600)})
    )
    return ToolUse(_id(rng), name, arguments, extra)


def _text(rng: random.Random, _sound: set[int]) -> Text:
    text: Any = rng.choice(("Words.", "Words.", "", " \n", "\ud83d half", "\0", "w" * _LONG, None, 5))
    extra: Json | None = rng.choice(
        (None, None, {"citations": []}, {"citations": _deep(600)}, {"cache_control": {"type": "x"}})
    )
    return Text(text, extra)


def _thinking(rng: random.Random, _sound: set[int]) -> Block:
    words: Any = rng.choice(("Hm.", "", "\udfff", None))
    if rng.random() < 0.3:
        return RedactedThinking(rng.choice(("data", "", cast("Any", None))))
    return Thinking(words, rng.choice(("", "signed", cast("Any", 5))))


_RAW: Final[Sequence[Json]] = (
    {},
    {"type": 5},
    {"type": []},
    {"type": "banana", "b": [1]},
    {"type": "banana", "b": math.nan},
    {"type": "banana", "b": "\ud800"},
    {"type": "banana", "b": _deep(600)},
    {"type": "text"},
    {"type": "text", "text": "", "cache_control": {"type": "ephemeral"}},
    {"type": "thinking"},
    {"type": "image"},
    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}},
    {"type": "compaction", "content": "x"},
    {"type": "tool_use"},
    {"type": "tool_use", "id": "t1", "name": "fire"},
    {"type": "tool_use", "id": "t1", "name": "fire", "input": '{"mark": 1'},
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
    {"type": "server_tool_use", "id": [], "name": "web_search", "input": {}},
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
)


def _raw(rng: random.Random, _sound: set[int]) -> RawBlock:
    return RawBlock(rng.choice(_RAW))


def _misplaced(rng: random.Random, _sound: set[int]) -> Any:
    return rng.choice((ToolResult("t1", "done"), Image({"type": "url", "url": "x"}), "text", None, 5, {"type": "text"}))


_MAKERS: Final[Sequence[Callable[[random.Random, set[int]], Any]]] = (
    *(_call, _call, _call, _call, _text, _text),
    *(_thinking, _raw, _misplaced),
)


# --- the control --------------------------------------------------------------------------------------------------


def unread_answers(seed: int, count: int) -> list[str]:
    """What is wrong with those of ``count`` answers that could not be kept and sent again unchanged."""
    rng = random.Random(seed)
    wrong = (kept_and_sent(_as_it_came(mutated_answer(rng).response)) for _ in range(count))
    return [words for words in wrong if words]


def _as_it_came(response: ModelResponse) -> Answer:
    return Answer(content=response.content, stop_reason=response.stop_reason, rejected={})


def kept_and_sent(answer: Answer) -> str:
    """Store an answer, read it back, and make the next request from it; returns what went wrong, "" for nothing."""
    results = [ToolResult(use.id, "done") for use in tool_uses(answer.content)]
    said: tuple[tuple[Role, tuple[Block, ...]], ...] = (
        ("user", (Text("task"),)),
        ("assistant", answer.content),
        ("user", (*results, Text("Go on."))),
    )
    try:
        kept = [tuple(map(decode_block, decode_json(encode_json([*map(encode_block, turn)])))) for _, turn in said]
        if kept[1] != answer.content:
            return "what was written down is read as something else"
        entries = [
            Entry(role=role, kind="assistant", content=content, position=at, created_at=0.0, tokens=1)
            for at, ((role, _), content) in enumerate(zip(said, kept, strict=True))
        ]
        request = project(entries, profile=OFFLINE, tools=_SCHEMAS)
        validate(request)
        check_body(decode_json(encode_json(encode_request(request))), profile=OFFLINE, betas=frozenset())
    except (RepertoryError, Refusal, ValueError, TypeError, RecursionError, AttributeError, KeyError) as error:
        return f"{type(error).__name__}: {error}"[:500]
    return ""


_SCHEMAS: Final = tuple(ToolSchema(name, name, {"type": "object", "properties": {}}) for name in TOOLS)


# --- real runs ----------------------------------------------------------------------------------------------------


async def play_answers(seed: int, count: int, folder: str | PathLike[str]) -> list[str]:
    """Play mutated answers in real runs over a real journal, each cut off and resumed now and then.

    Args:
        seed: The same seed plays the same answers.
        count: How many answers.
        folder: The folder for the journal.

    Returns:
        What went wrong, each with the seed that reproduces it; empty if nothing did.
    """
    failures: list[str] = []
    for number in range(-(-count // _LENGTH)):
        length = min(_LENGTH, count - number * _LENGTH)
        rng = random.Random(f"{seed}/{number}")
        found = await _play_run(rng, length, Path(folder) / f"answers-{seed}-{number}.db")
        failures.extend(f"seed {seed}, run {number}: {words}" for words in found)
    return failures


async def _play_run(rng: random.Random, length: int, path: Path) -> list[str]:
    stage = _Stage(rng, length)
    while True:
        with anyio.CancelScope() as stage.scope:
            async with open_supervisor(path, durability="process", drain_timeout=0.0) as supervisor:
                return await _play_on(stage, supervisor)


async def _play_on(stage: _Stage, supervisor: Supervisor) -> list[str]:
    """Continue the interrupted run, until all answers were played."""
    while True:
        try:
            run = await supervisor.resume(stage.run_id, agent=stage.agent)
        except RunNotFound:
            run = await supervisor.spawn(stage.agent, "Live through this.", run_id=stage.run_id)
        try:
            await run.wait_result()
        except RunFailed as failed:
            if not isinstance(failed.__cause__, ModelRefused | LimitExceeded | ResultInvalid):
                return [*stage.failures, f"the run failed: {failed}; after {stage.last}"[:2_000]]
        else:
            if stage.over:
                return stage.failures
            stage.runs += 1  # one of the answers ended the run


# Without edits; the default; and with an edit of the past at every step.
_CONTEXTS: Final = (None, ContextPolicy(), ContextPolicy(rhythm="strict", window=1, keep_recent=1, summarize_every=2))


class _Marked(msgspec.Struct):
    """A typed result."""

    mark: int


class _Stage:
    """The model and the tools of one run, and what was observed of them."""

    def __init__(self, rng: random.Random, length: int) -> None:
        self.failures: list[str] = []
        self.last = Mutated(ModelResponse(content=()), frozenset())
        self.scope = anyio.CancelScope()
        self.profile: ModelProfile = rng.choice((OFFLINE, profile_for("claude-opus-4-8")))
        self.name = self.profile.name
        self.agent = Agent[Any](
            "clerk",
            tools=self._tools(),
            model=self,
            context=rng.choice(_CONTEXTS),
            output=rng.choice((None, _Marked)),
            limits=Limits(iterations=20 * length),
        )
        self.runs = 1
        self._rng = rng
        self._left = length
        self._fired: set[int] = set()
        self._keys: dict[str, int] = {}

    @property
    def run_id(self) -> str:
        """The run that is under way."""
        return f"run-{self.runs}"

    @property
    def over(self) -> bool:
        """Whether all answers were played."""
        return self._left <= 0

    async def complete(
        self, request: ModelRequest, *, on_event: Callable[[StreamEvent], Any] | None = None
    ) -> ModelResponse:
        """Check the request as a strict server would, and answer with the next mutation."""
        await anyio.lowlevel.checkpoint()
        body = encode_request(request)
        try:
            msgspec.json.encode(body)
            check_body(body, profile=self.profile, betas=frozenset())
        except (Refusal, ValueError, RecursionError) as error:
            self.failures.append(f"a request that no server takes: {error}; after {self.last}"[:2_000])
        await self._perhaps_cut_off()
        if self.over:
            return ModelResponse(content=(Text('{"mark": 1}'),), usage=Usage(1, 1))  # also valid as a typed result
        self._left -= 1
        self.last = mutated_answer(self._rng)
        return self.last.response

    async def aclose(self) -> None:
        """Nothing to release."""

    async def _perhaps_cut_off(self) -> None:
        if self._rng.random() < 0.06:
            self.scope.cancel()
            await anyio.lowlevel.checkpoint()

    async def _ran(self, mark: int, context: ToolContext) -> str:
        if mark not in self.last.may_run:
            self.failures.append(f"call {context.call_id} ran with mark {mark}; after {self.last}"[:2_000])
        if self._keys.setdefault(context.idempotency_key, mark) != mark:
            self.failures.append(f"two calls ran under the key {context.idempotency_key}")
        await self._perhaps_cut_off()
        return "done"

    def _tools(self) -> list[Any]:
        @tool(effect="pure", repeatable=False)
        async def look(context: ToolContext, mark: int = -1, data: Any = None) -> str:
            """Only look."""
            return await self._ran(mark, context)

        @tool(effect="idempotent")
        async def put(context: ToolContext, mark: int = -1, data: Any = None) -> str:
            """Do what may be done twice under one key."""
            return await self._ran(mark, context)

        @tool(effect="unsafe")
        async def fire(context: ToolContext, mark: int = -1, data: Any = None) -> str:
            """Do what must not be done twice."""
            if mark in self._fired:
                self.failures.append(f"fire ran twice with mark {mark}; after {self.last}"[:2_000])
            self._fired |= {mark} - {-1}
            return await self._ran(mark, context)

        return [look, put, fire]
