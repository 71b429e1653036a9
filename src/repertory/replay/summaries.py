"""A substitute for the provider's signed summary, which no recording contains."""

from __future__ import annotations

from collections.abc import Iterator

from repertory.llm.features import is_compaction
from repertory.llm.messages import Message, RawBlock, ToolResult, tool_uses
from repertory.llm.model import ModelRequest
from repertory.record import Entry
from repertory.replay.billing import Position, seal
from repertory.replay.words import words_of
from repertory.shortening.trail import TALKERS, Trail

_ROOM = 6_000  # characters, about 1,500 tokens: what the planner expects of a summary


def write_summary(request: ModelRequest, last: Position) -> RawBlock:
    """Write the block that may replace all messages of a request from then on.

    It repeats an earlier summary, as a model is told to, and adds the trail of everything since: of each as much of the
    end as fits. Its words are selected, not written by a model, which would say more.
    """
    earlier = [words_of(block) for block in request.messages[0].content if is_compaction(block)]
    entries = list(_entries(request.messages))
    trail = Trail()
    trail.write(entries, len(entries))
    since = _newest(trail.text(0, len(entries), talk=TALKERS), _ROOM // 2 if earlier else _ROOM)
    text = "\n".join(
        ["[what came before, in short]", *(_newest(words, _ROOM - len(since)) for words in earlier), since]
    )
    return RawBlock({"type": "compaction", "content": text, "signature": seal(last)})


def _newest(text: str, room: int) -> str:
    """Return the last lines of a text that fit."""
    if len(text) <= room:
        return text
    return text[len(text) - room :].partition("\n")[2]


def _entries(messages: tuple[Message, ...]) -> Iterator[Entry]:
    """Yield the agent's turns and the results of its calls, as the record has them; users' words stay in view."""
    tools: dict[str, str] = {}
    position = iteration = 0
    for message in messages:
        if message.role == "assistant":
            iteration += 1
            tools.update((use.id, use.name) for use in tool_uses(message.content))
            parts = [message.content]
        else:
            parts = [(block,) for block in message.content if isinstance(block, ToolResult)]
        for content in parts:
            call = content[0].tool_use_id if message.role == "user" and isinstance(content[0], ToolResult) else None
            yield Entry(
                position=position,
                iteration=iteration,
                created_at=0.0,
                role=message.role,
                kind="assistant" if call is None else "action-result",
                content=content,
                tool=None if call is None else tools.get(call),
                tool_call_id=call,
                tokens=0,
            )
            position += 1
