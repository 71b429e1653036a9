"""A recorded run: the turns that a model took, and what its tools and its user answered."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import msgspec

from repertory.context.projector import FRAME
from repertory.llm.messages import (
    Block,
    Image,
    Message,
    RawBlock,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    encode_block,
    tool_uses,
)
from repertory.llm.model import Usage
from repertory.replay.words import words_of
from repertory.tools.output import NO_OUTPUT, clean_text

NO_RESULT = "[no result was recorded]"
_NO_TASK = "[no task was recorded]"
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One iteration as it was recorded.

    Attributes:
        content: What the model said and called. Its reasoning is left out: it is bound to another history.
        results: The result of each of its calls, by call id.
        said: What the user said after the results, before the next turn.
        usage: What the provider billed for the turn; None if it was not recorded.
        at: When the model answered, in seconds since 1970; None if it was not recorded.
    """

    content: tuple[Block, ...]
    results: dict[str, ToolResult]
    said: tuple[str, ...] = ()
    usage: Usage | None = None
    at: float | None = None


class RecordedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run, from its task to the last turn of the model.

    Attributes:
        id: Its name in the recording, otherwise the file's name and a number.
        file: The file that it is from.
        model: The recorded model; "" if it was not recorded.
        system: The instructions; "" if they were not recorded.
        task: The user's first words.
    """

    id: str
    file: str
    task: str
    turns: tuple[Turn, ...]
    model: str = ""
    system: str = ""

    @property
    def tools(self) -> list[str]:
        """The names of all tools that were called, sorted."""
        return sorted({use.name for turn in self.turns for use in tool_uses(turn.content)})


class RecordedMessage(msgspec.Struct, frozen=True):
    """A message of a recording, with what was recorded beside it."""

    message: Message
    usage: Usage | None = None
    at: float | None = None


def record_run(
    messages: Iterable[RecordedMessage], *, run_id: str, file: str, model: str = "", system: str = ""
) -> RecordedRun | None:
    """Turn a conversation into a run, in the order in which a loop would have had it.

    Neighbouring messages of one role become one. Ids and names become legal for the Messages API, and ids unique. A
    call without a result gets one that says so; a result without a call becomes something that the user said.

    Returns:
        The run; None if no model ever answered.
    """
    task: list[str] = []
    turns: list[Turn] = []
    ids = _Ids()
    for role, group in _group_by_role(messages):
        content = [block for part in group for block in part.message.content]
        if role == "assistant":
            ids.unanswered.clear()
            turns.append(
                Turn(
                    content=tuple(_legal_blocks(content, ids)),
                    results={},
                    usage=_sum(part.usage for part in group),
                    at=next((part.at for part in group if part.at is not None), None),
                )
            )
        elif not turns:
            task.extend(_words(content))
        else:
            turns[-1] = _with_answers(turns[-1], content, ids)
    if not turns:
        return None
    complete = [_complete(turn) for turn in turns[:-1]]
    return RecordedRun(
        id=run_id,
        file=file,
        model=model,
        system=clean_text(system)[0].strip(),
        task="\n\n".join(task) or _NO_TASK,
        turns=(*complete, turns[-1]),
    )


def _group_by_role(messages: Iterable[RecordedMessage]) -> Iterator[tuple[str, list[RecordedMessage]]]:
    """Group neighbouring messages of one role; empty messages are left out."""
    telling = (each for each in messages if any(map(_has_words, each.message.content)))
    for role, group in groupby(telling, key=lambda each: each.message.role):
        yield role, list(group)


def _has_words(block: Block) -> bool:
    return not isinstance(block, Thinking | RedactedThinking) and not (
        isinstance(block, Text) and not block.text.strip()
    )


class _Ids:
    """Makes call ids legal and unique.

    Attributes:
        unanswered: The ids of the last turn's calls that have no result yet, oldest first, by the recorded id, which
            parallel calls may share.
    """

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._numbers = Counter[str]()
        self.unanswered: dict[str, deque[str]] = {}

    def new(self, recorded: str) -> str:
        call_id = base = _ILLEGAL.sub("_", recorded) or "call"
        while call_id in self._used:
            self._numbers[base] += 1
            call_id = f"{base}_{self._numbers[base] + 1}"
        self._used.add(call_id)
        self.unanswered.setdefault(recorded, deque()).append(call_id)
        return call_id


def _legal_blocks(content: Sequence[Block], ids: _Ids) -> Iterator[Block]:
    for block in content:
        if isinstance(block, ToolUse):
            yield ToolUse(ids.new(block.id), _legal_name(block.name), block.input)
        elif isinstance(block, Text):
            if block.text.strip():
                yield Text(clean_text(block.text)[0])
        elif isinstance(block, RawBlock):
            yield block


def _legal_name(recorded: str) -> str:
    name = _ILLEGAL.sub("_", recorded)[:128] or "tool"
    return f"{name}_" if name == FRAME else name  # a run of repertory's own: the loop that plays it makes such calls


def _with_answers(turn: Turn, content: Sequence[Block], ids: _Ids) -> Turn:
    results, said = dict(turn.results), list(turn.said)
    for block in content:
        if isinstance(block, ToolResult) and (calls := ids.unanswered.get(block.tool_use_id)):
            call = calls.popleft()
            results[call] = ToolResult(call, _as_returned(block.content), is_error=block.is_error)
        else:
            said.extend(_words([block]))
    return msgspec.structs.replace(turn, results=results, said=tuple(said))


def _as_returned(content: str | tuple[Block, ...]) -> str | tuple[Text | Image | RawBlock, ...]:
    """Return a result as a tool returns it."""
    if isinstance(content, str):
        return clean_text(content)[0] or NO_OUTPUT
    parts: list[Text | Image | RawBlock] = []
    for part in content:
        if isinstance(part, Text):
            if part.text.strip():
                parts.append(Text(clean_text(part.text)[0]))
        elif isinstance(part, Image | RawBlock):
            parts.append(part)
    return tuple(parts) or NO_OUTPUT


def _words(content: Iterable[Block]) -> Iterator[str]:
    for block in content:
        text = clean_text(words_of(block))[0]
        if not text.strip() and not isinstance(block, Text):
            text = f"[{clean_text(str(encode_block(block)['type']))[0]}]"
        if text.strip():
            yield text


def _complete(turn: Turn) -> Turn:
    missing = {
        use.id: ToolResult(use.id, NO_RESULT, is_error=True)
        for use in tool_uses(turn.content)
        if use.id not in turn.results
    }
    return msgspec.structs.replace(turn, results={**turn.results, **missing}) if missing else turn


def _sum(usages: Iterable[Usage | None]) -> Usage | None:
    known = [usage for usage in usages if usage is not None]
    return sum(known[1:], known[0]) if known else None
