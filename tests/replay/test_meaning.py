"""What views say of what the next turn uses: from the full record down to bare names."""

from __future__ import annotations

from typing import Any

import pytest

from repertory.llm.messages import Block, Message, RawBlock, Text, ToolResult, ToolUse
from repertory.llm.model import ModelRequest
from repertory.replay import Meaning, RecordedRun, Turn
from repertory.replay.bare_names import BareNames
from repertory.replay.meaning import Meter

TASK = "Make the parser strict."
SHOWN = """\
     1→package parser
     2→func parseHeader(raw []byte) (Header, error) {
     3→    return nil, errors.New("bad magic number")
     4→}
see docs/wire_format.md for the layout of every field
docs/limits.md"""
PLAN = "I will reject headers of version_zero first.\nThen unknown flags follow."
STEP = (
    "Use parseHeader by docs/wire_format.md and docs/limits.md, version_zero.\n"
    'return nil, errors.New("bad magic number")\nThen unknown flags follow.'
)
READ = ToolUse("c1", "read", {"path": "parser.go"})


def record() -> RecordedRun:
    """A run that reads, plans, waits and then uses what it read and what it planned."""
    idle = [
        Turn(content=(ToolUse(f"i{n}", "wait", {}),), results={f"i{n}": ToolResult(f"i{n}", "ok")}) for n in range(11)
    ]
    return RecordedRun(
        id="r",
        file="",
        task=TASK,
        turns=(
            Turn(content=(Text(PLAN), READ), results={"c1": ToolResult("c1", SHOWN)}),
            *idle,
            Turn(content=(Text(STEP),), results={}),
        ),
    )


FULL: tuple[Block, ...] = (Text(PLAN), READ)


def measured(*old: Block, messages: tuple[Message, ...] = ()) -> tuple[Meaning, int]:
    """Measure the last request, where these blocks stand for the first iteration; and what has to be read again."""
    run = record()
    meter = Meter(run)
    messages = messages or (Message("user", (Text(TASK), *old)),)
    again = meter.see(len(run.turns), ModelRequest(model="m", messages=messages))
    return meter.found, again


def shares(meaning: Meaning, **more: Any) -> dict[str, float | None]:
    """The four measures and identifiers."""
    return {name: meaning.share(name, **more) for name in ("union", "facts", "lines", "own_facts", "own_lines")}


def test_the_full_record_says_everything() -> None:
    """1.00 on every measure, nothing has left, nothing stands for anything else, nothing has to be read again."""
    whole = (
        Message("user", (Text(TASK),)),
        Message("assistant", FULL),
        Message("user", (ToolResult("c1", SHOWN),)),
    )
    meaning, again = measured(messages=whole)
    assert shares(meaning, ages=("over_10",)) == dict.fromkeys(("union", "facts", "lines", "own_facts", "own_lines"), 1)
    assert set(shares(meaning, left=True).values()) == {None}
    assert (meaning.standing_chars, meaning.blind, meaning.without_task, again) == (0, 0, 0, 0)


def test_an_empty_view_says_nothing() -> None:
    """Zero on every measure, all of it has left, and the smallest result that holds what is missing is read once."""
    meaning, again = measured()
    assert set(shares(meaning).values()) == set(shares(meaning, left=True).values()) == {0.0}
    assert meaning.blind == 1
    assert again == -(-len(SHOWN.encode()) // 4)
    meter, request = Meter(record()), ModelRequest(model="m", messages=(Message("user", (Text("no task"),)),))
    assert [meter.see(13, request), meter.see(13, request)] == [again, 0]  # it would still be there
    assert meter.found.without_task == 2


def test_bare_names_are_in_view_and_say_nothing() -> None:
    """The negative control: all identifiers, no facts but the line that is nothing but a name, no lines."""
    names = "parseHeader docs/wire_format.md docs/limits.md version_zero errors.New"
    meaning, _ = measured(Text(names))
    found = shares(meaning, left=True)
    assert (found["union"], found["lines"], found["own_facts"], found["own_lines"]) == (1, 0, 0, 0)
    facts = found["facts"]
    assert facts is not None
    assert facts < 0.5
    assert (meaning.bare_chars, meaning.standing_chars) == (len(names), len(names))


def test_whole_lines_are_facts_wherever_they_stand() -> None:
    """In a text, a result, a summary or a call's arguments, with a number before them or without."""
    kept = "\n".join(line.strip() for line in SHOWN.replace("→", ": ").splitlines())
    for block in (
        Text(kept),
        ToolResult("x", kept),
        RawBlock({"type": "compaction", "content": kept}),
        ToolUse("x", "recall", {"found": kept}),
    ):
        found = shares(measured(block)[0], ages=("over_10",), left=True)
        assert (found["union"], found["facts"], found["lines"], found["own_lines"]) == (1, 1, 1, 0)
    assert measured(Text(kept))[0].bare_chars == 0


@pytest.mark.parametrize(
    ("text", "stands"),
    [
        ("func parseHeader(raw []byte) (Header, error) {", True),
        ("parseHeader takes raw byte, returns Header or error", True),  # five of its six other words
        ("parseHeader takes raw, returns Header", False),  # two of six
        ("func raw byte Header error" + " ." * 130 + " parseHeader", False),  # too far away
        ("parseHeaders: func raw byte Header error", False),  # another name
    ],
)
def test_a_fact_is_an_identifier_with_most_of_its_line_around_it(text: str, stands: bool) -> None:
    """60% of the line's other words, within 240 characters."""
    run = RecordedRun(
        id="r",
        file="",
        task=TASK,
        turns=(record().turns[0], Turn(content=(Text("parseHeader"),), results={})),
    )
    meter = Meter(run)
    meter.see(2, ModelRequest(model="m", messages=(Message("user", (Text(TASK), Text(text))),)))
    assert meter.found.share("facts") == float(stands)


def test_a_long_line_stands_where_it_stands_whole() -> None:
    """Most of its words are further away than 240 characters."""
    line = " ".join(f"word{n} filler" for n in range(100)) + " needle_one " + "end of it " * 40
    turns = (
        Turn(content=(ToolUse("c", "t", {}),), results={"c": ToolResult("c", f"before\n{line}\nafter")}),
        Turn(content=(Text("needle_one"),), results={}),
    )
    for text, stands in ((line.strip(), 1), (line[:-60], 0)):
        meter = Meter(RecordedRun(id="r", file="", task=TASK, turns=turns))
        meter.see(2, ModelRequest(model="m", messages=(Message("user", (Text(text),)),)))
        assert meter.found.share("facts") == stands


def test_own_words_count_where_the_agent_said_them_first() -> None:
    """They left verbatim view when they stand in somebody else's block; what stands is in view all the same."""
    meaning, _ = measured(Text(PLAN))
    assert (meaning.share("own_lines", left=True), meaning.share("own_facts", left=True)) == (1, 1)
    own = (Message("user", (Text(TASK),)), Message("assistant", (Text(PLAN),)))
    meaning, _ = measured(messages=own)
    assert (meaning.share("own_lines"), meaning.share("own_lines", left=True)) == (1, None)


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("a_b c_d e_f", 11),
        ("> src/a.py 172 177 parse_header", 29),
        ("parse_header", 12),
        ("src/a.py, src/b.py; c_d", 23),
        ("I moved parse_header and read_body to src/a.py today.", 0),
        ("Key files: src/a.py, src/b.py, src/c.py", 28),
        ('12. read(src/a.py, 100, 50) / grep(a_b c_d e_f, "*.go")', 0),
        ('read {"path": "src/a.py", "limit": 20}', 0),
        ("   7→docs/limits.md", 0),  # the source is a list of names
        ("see docs/wire_format.md for the layout of every …", 0),
        ("see docs/wire_format.md a_b c_d e_f", 35 - 4),
        ("    → docs/limits.md", 0),
        ("    → 6 of 40 lines, error:", 0),
        ("", 0),
    ],
)
def test_names_are_bare_without_a_sentence_a_call_or_a_line_around_them(text: str, bare: int) -> None:
    """Three and more in a row, or nothing else on the line; numbers too."""
    assert BareNames([SHOWN, PLAN], ["read", "grep"]).count(text) == (bare, len(text.strip()))
