"""Look for words of tools outside their frames in a request, and for anything else that nobody said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from repertory.context.projector import FRAME
from repertory.llm.messages import Block, RawBlock, Text, ToolResult, ToolUse, text_of
from repertory.llm.model import ModelRequest
from repertory.record import Entry

OURS = ("[expired: ", "[Still in force, word for word")
"""How the runtime's own text blocks begin: of a removed result, and of what is said again behind a signed summary."""


def strangers(request: ModelRequest, record: Sequence[Entry]) -> list[str]:
    """What stands in a request as if the user, the agent or the runtime had said it, though none of them has."""
    said = {
        role: Counter(b.text for e in record if e.role == role for b in e.content if isinstance(b, Text))
        for role in ("user", "assistant")
    }
    calls = {use.id: use for entry in record for use in entry.content if isinstance(use, ToolUse)}
    found: list[str] = []
    trails = set[str]()
    for message in request.messages:
        for block in message.content:
            match block:
                case Text(text=text) if said[message.role][text]:
                    said[message.role][text] -= 1
                case Text(text=text) if message.role == "user" and text.startswith(OURS) and "\n" not in text:
                    pass
                case Text(text=text):
                    found.append(f"{message.role} says {text!r}")
                case ToolUse(id=call_id, name=name) if name == FRAME:
                    trails.add(call_id)
                    if set(block.input) != {"iterations"}:
                        found.append(f"the frame has arguments {block.input}")
                case ToolUse(id=call_id):
                    if block != calls.get(call_id):
                        found.append(f"call {block} is not the agent's")
                case ToolResult(tool_use_id=call_id) if call_id in trails:
                    found += at_the_margin(text_of(block), record)
                case RawBlock(raw={"type": "document", "title": title, "source": {"data": log}}) if title == FRAME:
                    found += at_the_margin(log, record)
                case _:
                    pass
    return found


def at_the_margin(trail: str, record: Sequence[Entry]) -> list[str]:
    """Lines of a trail that begin at the margin, though they are not the runtime's."""
    names = {use.name for entry in record for use in entry.content if isinstance(use, ToolUse)}
    arguments = {name for e in record for use in e.content if isinstance(use, ToolUse) for name in use.input}
    found: list[str] = []
    for number, line in enumerate(trail.splitlines()):
        if line.startswith((" ", "→ ")) or not line:
            continue
        if number == 0 and line.startswith(("[log of iteration", "FACTS: ")):
            continue
        if line in ("…", "(older lines are left out)"):
            continue
        turn, _, rest = line.partition(". ")
        if turn.isdigit() and (rest in own_lines(record, int(turn)) or _is_call(rest, names) or "[the " in rest[:5]):
            continue
        if line.partition(":")[0] in arguments or _is_count(line, names):
            continue
        found.append(f"in the trail: {line!r}")
    return found


def own_lines(record: Sequence[Entry], iteration: int) -> set[str]:
    """The first lines of what the agent said in an iteration, whole and clipped."""
    said = [b.text for e in record if e.iteration == iteration and e.role == "assistant" for b in _texts(e.content)]
    return {text.strip().splitlines()[0] for text in said} | {" ".join(text.split()) for text in said}


def _texts(blocks: Sequence[Block]) -> Iterator[Text]:
    return (block for block in blocks if isinstance(block, Text) and block.text.strip())


def _is_call(rest: str, names: set[str]) -> bool:
    return any(rest.startswith(f"{name}(") for name in names)


def _is_count(line: str, names: set[str]) -> bool:
    return all(part.split(" ")[0] in names and part.split(" ")[-1] in ("time", "times") for part in line.split(", "))


def documents(request: ModelRequest) -> list[RawBlock]:
    """The document blocks of a request."""
    return [block for m in request.messages for block in m.content if isinstance(block, RawBlock)]


def unsaid(request: ModelRequest, record: Sequence[Entry], *, users: bool) -> list[str]:
    """What users said that does not stand in the request word for word, in its order; ``users`` false: the task."""
    words = iter([b.text for m in request.messages if m.role == "user" for b in m.content if isinstance(b, Text)])
    wanted = [
        block.text
        for entry in record
        if entry.kind == "task" or (users and entry.kind == "user-input")
        for block in _texts(entry.content)
    ]
    return [text for text in wanted if text not in words]
