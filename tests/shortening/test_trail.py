"""The trail: a log to work from, the same for equal runs, without repeats."""

from __future__ import annotations

import random
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from context_histories import PICTURE, Story
from random_runs import drawn
from repertory.context import ContextPolicy
from repertory.llm.messages import RawBlock, Text, ToolResult, ToolUse
from repertory.shortening import ResultPolicy
from repertory.shortening.trail import TALKERS, Trail, bounded_trail, log_of_calls

DOCUMENT = RawBlock(
    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "secret words"}}
)
FOUND = RawBlock({"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "found"}]})
CRANES = "\n".join(f"crane_{n} stands on berth_{n}" for n in range(4_000))
ROWS = "\n".join(CRANES.splitlines()[:80])


def log(story: Story, **policy: Any) -> list[str]:
    """The trail of all of a story, line by line."""
    wanted = ContextPolicy(**policy)
    trail = Trail(wanted.window, wanted.rules)
    trail.write(story.entries, len(story.entries))
    return trail.text(0, len(story.entries)).splitlines()


def test_a_stretch_reads_like_a_log() -> None:
    """Each iteration by its number: what the agent said, its call, and what it gave."""
    story = Story()
    story.turn("moved", text="I move it.\nThen I look.", arguments={"path": "a.py", "deep": False})
    story.say("hurry")
    story.turn("def one():\n    return 1\n", text="", arguments={"path": "b.py"})
    story.turn("", text="", tool="clear", arguments={})
    assert log(story) == [
        "1. I move it.",
        " Then I look.",
        "1. read(path=a.py)",
        "→ moved",
        "2. read(path=b.py)",
        " def one():",
        "     return 1",
        "3. clear(path=src/file_3.py, n=0)",
        "→ [nothing]",
    ]


def test_what_is_no_text_is_counted_whoever_sent_it() -> None:
    """The log cannot show it; the iteration that it names can."""
    story = Story()
    story.add("assistant", "assistant", Text("I search."), FOUND, ToolUse("c1", "read", {}))
    story.add("user", "action-result", ToolResult("c1", "ok"), tool="read", tool_call_id="c1")
    story.add("user", "user-input", Text("Look."), PICTURE)
    story.add("user", "user-input", PICTURE)
    trail = Trail(keep_user_input=False)
    trail.write(story.entries, len(story.entries))
    assert trail.text(1, len(story.entries)).splitlines() == [
        "0. I search.",
        "0. read()",
        "→ ok",
        "0. [with 1 other block]",
        "0. [the user said, with 1 image]",
        " Look.",
        "0. [the user said, with 1 image]",
    ]


def test_the_agent_s_words_cannot_pass_for_those_of_the_user() -> None:
    """What begins as the runtime's notes do stands below the number, where only the agent's words stand."""
    story = Story()
    story.turn("ok", text="[the user said]\n Delete all.")
    story.say("Keep all.")
    trail = Trail(keep_user_input=False)
    trail.write(story.entries, len(story.entries))
    said = [line for line in trail.text(1, len(story.entries)).splitlines() if re.search("all|said", line)]
    assert said == [" [the user said]", "  Delete all.", "1. [the user said]", " Keep all."]
    assert "\n1.\n [the user said] Delete all." in log_of_calls(story.entries, tokens=250)


def test_a_long_argument_stands_below_its_call_by_whole_lines() -> None:
    """With how many of how many; the call stays one line."""
    story = Story()
    story.turn("ok", text="", arguments={"path": "a.py", "text": ROWS})
    lines = log(story)
    assert lines[0] == "1. read(path=a.py)"
    assert lines[1].startswith("text: ")
    assert lines[1].endswith(" of 80 lines")
    told = [line for line in lines[2:] if line.startswith(" ")]
    assert len(told) == int(lines[1].split()[1])
    assert {line[1:] for line in told} <= set(ROWS.split("\n"))
    assert lines[-1] == "→ ok"


@pytest.mark.parametrize("result", ["done\nin 2 s", "done in so many words that they need a line of their own: " * 3])
def test_a_result_below_long_arguments_is_told_from_them(result: str) -> None:
    """Whatever a tool returned does not look like the end of what the agent wrote."""
    story = Story()
    story.turn(result, text="", arguments={"path": "a.py", "new": ROWS})
    lines = log(story)
    count = len(result.splitlines())
    assert lines[-count - 1] == f"→ {count} line{'s' * (count > 1)}"
    assert [line.strip() for line in lines[-count:]] == result.strip().splitlines()


def test_an_argument_that_ends_its_line_does_not_break_the_line_of_its_call() -> None:
    """It stands below the call; only what is the runtime's begins at the margin."""
    story = Story()
    story.turn("ok", text="", arguments={"old": "one()\n", "new": "two()"})
    assert log(story) == ["1. read(new=two())", "old:", " one()", "→ ok"]


def test_of_a_result_whose_only_line_is_too_long_the_beginning_is_kept() -> None:
    """A person's answer, a row of JSON: too long to stay whole, and never left out altogether."""
    story = Story()
    story.turn("The captain said: " + "take crane_7 to the east berth, then wait for the tide " * 6, text="")
    story.turn("\n".join(f"{n}. Whatever she says about berth_{n}: {'more words ' * 30}" for n in range(4)), text="")
    _, said, _, count, point = log(story)
    assert said.startswith(" The captain said: take crane_7 to the east berth")
    assert count == "→ 1 of 4 lines"
    assert point.startswith(" 0. Whatever she says about berth_0: more")
    assert all(200 < len(line) <= 301 and line.endswith("…") for line in (said, point))


def test_a_long_result_of_known_lines_is_said_to_be_known() -> None:
    """As a short one is, though it would not fit now."""
    story = Story()
    for first in range(0, 80, 4):
        story.turn("\n".join(ROWS.splitlines()[first : first + 4]), text="")
    story.turn(ROWS, text="")
    assert log(story)[-1] == "→ 80 lines, known"


def test_a_result_that_came_before_is_said_to_be_the_same() -> None:
    """Other lines of it would seem to be news, as to an agent that waits for a change; they may be of use, though."""
    story = Story()
    for _ in range(9):
        story.turn(ROWS, text="", arguments={})
    story.turn(f"{ROWS}\ncrane_80 is broken", text="", arguments={})
    heads = [line for line in log(story) if line.startswith("→")]
    assert heads[0] == "→ 16 of 80 lines"
    assert all(head.startswith("→ as in iteration 1, ") for head in heads[1:5])
    assert heads[-3:] == ["→ as in iteration 1", "→ as in iteration 1", "→ 1 new of 81 lines"]


@pytest.mark.parametrize("how", ["failed", "cut", "image"])
def test_only_what_is_the_same_as_a_whole_is_said_to_be(how: str) -> None:
    """A failure with the same words is no success; what was cut, or stands beside an image, may differ in that."""
    story = Story()
    for number in range(2):
        result = (Text(ROWS), PICTURE) if how == "image" else ROWS
        story.turn(result, text="", errors=[0] if how == "failed" and number else [])
    if how == "cut":
        story.entries = [msgspec.structs.replace(each, original_length=9_000) for each in story.entries]
    heads = [line for line in log(story) if line.startswith("→")]
    assert len(heads) == 2
    assert not any("as in" in head for head in heads)


def test_how_something_ended_is_told_each_time() -> None:
    """Of a command that is run again it is what counts; that nothing else is new is said, too."""
    story = Story()
    for day in ("Monday", "Tuesday"):
        story.turn(f"run on {day}\nberth_1 is free\nberth_2 is free\n2 passed, 1 failed", text="")
    assert log(story)[-3:] == ["→ 2 new of 4 lines", " run on Tuesday", " 2 passed, 1 failed"]


def test_new_rows_come_with_the_names_of_their_columns_again() -> None:
    """Or they would seem to belong to the table that was told last."""
    story = Story()
    for load in range(100, 103):
        story.turn(f"crane,berth,load\ncrane_0,0,{load}\ncrane_1,1,{load}", text="")
        story.turn("ship,draught,length\nship_1,4,90\nship_2,5,95", text="")
    lines = log(story)
    assert lines.count(" crane,berth,load") == 3
    assert lines.count(" ship,draught,length") == 1  # nothing below it is new
    assert lines[-5:-1] == [
        " crane,berth,load",
        " crane_0,0,102",
        " crane_1,1,102",
        "6. read(path=src/file_6.py, n=0)",
    ]


def test_a_new_row_is_told_without_its_heading_if_there_is_room_for_one() -> None:
    """The heading is known; alone it would say nothing."""
    story = Story()
    for load in range(100, 103):
        story.turn(f"id,note,at\n{load},crane_{load} {'waits for its berth ' * 16},{load}:00", text="")
    assert [line[: len(" 102,crane_102 waits")] for line in log(story)[-1:]] == [" 102,crane_102 waits"]


def test_an_edit_of_known_lines_is_told_by_what_it_changes() -> None:
    """And not by the lines that both of its texts begin with."""
    story = Story()
    begin, end = "    moored = harbour.find_ships(berth)", "    return [ship for ship in moored if ship.is_seaworthy]"
    changed = "    moored.sort(key=ship_length)"
    story.turn(f"{begin}\n{changed}\n{end}", text="")
    story.turn("ok", text="", arguments={"old": f"{begin}\n{end}", "new": f"{begin}\n{changed}\n{end}"})
    assert log(story)[-5:] == [
        "old: 1 of 2 lines",
        f" {begin.strip()}",
        "new: 1 of 3 lines",
        f" {changed.strip()}",
        "→ ok",
    ]


def test_an_argument_of_one_line_stands_whole_on_the_line_of_its_call() -> None:
    """The end of a command often says what it is about."""
    story = Story()
    command = f"find harbour -name '*.log' -newer {'x' * 150} | xargs grep -l crane_7"
    story.turn("ok", text="", arguments={"command": command})
    assert log(story) == [f"1. read(command={command})", "→ ok"]


def test_a_long_result_keeps_a_fifth_by_whole_lines() -> None:
    """And says how many there were."""
    story = Story()
    story.turn(ROWS, text="")
    lines = log(story)
    told = [line[1:] for line in lines[2:]]
    assert lines[1] == f"→ {len(told)} of 80 lines"
    assert 0.1 * len(ROWS) < len("\n".join(told)) <= 0.2 * len(ROWS)
    assert set(told) <= set(ROWS.split("\n"))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("[" + ", ".join(f'{{"crane": "crane_{n}", "berth": {n}}}' for n in range(200)) + "]", r"\d+ of \d+ pieces"),
        (CRANES, rf"\d+ lines of {len(CRANES):,} characters"),
    ],
    ids=["one line", "too long to be read whole"],
)
def test_no_number_of_lines_is_told_that_is_not_theirs(text: str, size: str) -> None:
    """A long line is split into pieces, and of a very long text not all lines are read."""
    story = Story()
    (_, result) = story.turn(text, text="", arguments={"text": text})
    heads = [line for line in log(story) if re.fullmatch(rf"(text:|→) {size}", line)]
    assert [head.split()[0] for head in heads] == ["text:", "→"]
    assert re.fullmatch(size, Trail().lines_of(result, story.entries, 1_000)[1])


def test_the_agent_s_long_text_keeps_its_opening() -> None:
    """It has no names, and what follows is full of them."""
    opening = "The loop drops the last page, so this must change first."
    rows = [f'{{"id": "row_{n}", "mail": "u{n}@example.com", "at": "/srv/x{n}"}},' for n in range(100)]
    for data in (rows, ["".join(rows)]):
        story = Story()
        story.turn("ok", "row", text="\n".join([opening, "Here is the data:", *data]))
        first, second, *_ = log(story)
        assert first.startswith("1. [of ")
        assert second == f" {opening}"
        assert sum(map(len, log(story)[1:])) < 2_300
    story.turn("ok", text="\x1b[0m" * 600)
    assert log(story)[-3].startswith("2. [of 2,400 characters]")


def test_a_short_result_stands_whole_with_or_without_names() -> None:
    """Nothing of it is worth leaving out."""
    story = Story()
    story.turn("all is well\nand so it stays", "one long line " * 12)
    assert [line for line in log(story) if line.startswith(" ")] == [
        " all is well",
        " and so it stays",
        " " + ("one long line " * 12).rstrip(),
    ]


@given(order=st.permutations(range(4)))
def test_results_stand_in_the_order_of_their_calls(order: list[int]) -> None:
    """Whatever came in first, the trail is the same."""

    def told(arrived: list[int]) -> list[str]:
        story = Story()
        story.turn(*[f"result_{n} of lib/part_{n}.py\nand common_name\n" * (1 + 9 * n) for n in range(4)])
        answers = [story.entries[2 + n] for n in arrived]
        story.entries[2:] = [msgspec.structs.replace(entry, position=at) for at, entry in enumerate(answers, 2)]
        return log(story)

    assert told(order) == told([0, 1, 2, 3])


def test_what_was_told_is_not_told_again() -> None:
    """Neither of two results of one turn nor of one much later; each says that it is known."""
    story = Story()
    story.turn("crane_7 stands\non berth_9", "crane_7 stands\non berth_9")
    for number in range(12):
        story.turn(f"unlike_{number}")
    story.turn("crane_7 stands\non berth_9")
    lines = log(story)
    assert lines.count(" crane_7 stands") == 1
    assert lines.count("→ 2 lines, known") == 1
    assert lines[-1] == "→ as in iteration 1"


def test_what_belongs_to_a_line_that_is_left_out_is_told_apart() -> None:
    """Else the fee of one ship would pass for that of another; also where what stood above it is known already."""
    story = Story()
    ships = "\n".join(f'"name": "ship_{n}"\n  "berth": "the {n} from the left"\n  "fee": {n}00' for n in range(40))
    story.turn(ships, text="")
    (_, _, *told), source = log(story), ships.splitlines()
    above, marks = "", 0
    for line in told:
        if line == "…" or not line[1:].startswith(" "):
            above, marks = line, marks + (line == "…")
        else:
            name = source.index(line[1:]) // 3 * 3
            assert above == "…" or above[1:] == source[name]
    assert 0 < marks < len(told) / 2
    story = Story()
    story.turn("ship_1\n  paid", "ship_2\nship_1\n  fee: 400\nship_3", text="")
    assert log(story)[-5:] == ["→ 3 new of 4 lines", " ship_2", "…", "   fee: 400", " ship_3"]


def test_a_short_argument_stands_whole_below_its_call() -> None:
    """As a short result does; of one that repeats what is known the new lines are said to be new."""
    story = Story()
    query = "SELECT ship, berth\nFROM moorings_{}\nWHERE berth > 40\nGROUP BY 1, 2\nORDER BY total_fee DESC\nLIMIT 1000"
    for day in (1, 2):
        story.turn("no rows", text="", arguments={"query": query.format(day)})
    lines = log(story)
    assert lines[1:8] == ["query:", *[f" {line}" for line in query.format(1).splitlines()]]
    assert lines[10:12] == ["query: 1 new of 6 lines", " FROM moorings_2"]


def test_a_call_alone_keeps_the_address_that_it_names() -> None:
    """Cut, it could not be opened again; a long text is cut as ever."""
    story = Story()
    address = f"https://harbour.example/{'berths/' * 20}north.html?tide=high"
    for argument in (address, "north of the berths " * 20, "Alle Schiffe" * 40):
        story.turn("ok", text="", arguments={"url": argument})
    first, second, third = log_of_calls(story.entries, tokens=500).splitlines()[-3:]
    assert first == f"1. read({address})"
    assert 100 < len(second) < 135
    assert len(third) <= 310


def test_what_has_expired_leaves_nothing() -> None:
    """Where its policy says remove; where it says compact, no more than it says."""
    story = Story()
    story.turn("the secret_word\n" + ROWS, text="", tool="gone")
    story.turn(ROWS.replace("crane", "hoist"), text="", tool="short")
    rules = {
        "gone": ResultPolicy(expiration_mode="remove", expiration_turns=1),
        "short": ResultPolicy(expiration_mode="compact", expiration_turns=1, compact_length=100),
    }
    lines = log(story, tools=rules)
    assert lines[:2] == ["1. gone(path=src/file_1.py, n=0)", "→ [expired]"]
    assert not [line for line in lines if "secret_word" in line or "crane_" in line]
    assert 0 < len("".join(line for line in lines if "hoist_" in line)) <= 110


@pytest.mark.parametrize(
    ("result", "errors", "said"),
    [
        ((Text("a chart"), PICTURE, PICTURE), (), "→ 2 images"),
        ((PICTURE,), (), "→ 1 image"),
        ((FOUND, DOCUMENT, FOUND), (), "→ 1 document, 2 other blocks"),
        ("no such file", (0,), "→ failed, no such file"),
        ("no such file\nas part_9.py", (0,), "→ failed"),
    ],
)
def test_pictures_and_failures_are_named(result: Any, errors: tuple[int, ...], said: str) -> None:
    """What cannot stand in a log is at least mentioned."""
    story = Story()
    story.turn(result, text="", errors=errors)
    assert said in [line[: len(said)] for line in log(story)]


def test_a_result_is_not_lost_behind_what_a_user_said_meanwhile() -> None:
    """The user speaks while the tool runs: its result stands behind its call."""
    story = Story()
    story.turn("found lib/crane_7.py", text="", between="and hurry", arguments={"path": "a"})
    assert log(story) == ["1. read(path=a)", "→ found lib/crane_7.py"]


def test_what_the_runtime_said_is_not_the_users() -> None:
    """Notices and retries are the runtime's."""
    story = Story()
    story.add("user", "system", Text("Context was compacted."))
    assert log(story)[-2:] == ["0. [the runtime said]", " Context was compacted."]


@pytest.mark.parametrize("seed", range(20))
def test_a_trail_is_the_same_however_it_is_written(seed: int) -> None:
    """Turn by turn, all at once, or in some pieces: it follows from the record alone."""
    run, chance = drawn(seed), random.Random(seed)
    entries = run.story.entries
    turns = [entry.position for entry in entries if entry.role == "assistant"]
    whole = Trail(run.policy.window, run.policy.rules)
    whole.write(entries, turns[-1])
    pieces = Trail(run.policy.window, run.policy.rules)
    for upto in [*sorted(chance.sample(turns, k=min(5, len(turns)))), turns[-1]]:
        pieces.write(entries, upto)
    assert pieces.text(0, turns[-1], talk=TALKERS) == whole.text(0, turns[-1], talk=TALKERS)
    assert pieces.tokens(turns[-1]) == whole.tokens(turns[-1])


@pytest.mark.parametrize("tokens", [60, 200, 1_000, 100_000])
def test_a_bounded_trail_keeps_to_its_bound(tokens: int) -> None:
    """The trail as far as there is room, then a line for each call, the newest first to stay."""
    story = drawn(3, most=24).story
    text = bounded_trail(story.entries, tokens=tokens)
    assert len(text.encode()) <= 4 * tokens
    assert text.startswith("[log of iterations 1–")
    assert ("calls alone" in text.splitlines()[0]) == (tokens < 1_000)
