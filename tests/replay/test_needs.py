"""What a turn needs of what it was shown, by hand."""

from __future__ import annotations

import pytest
from replay_stories import MESSAGES, read, write

from repertory.llm.messages import Text, Thinking, ToolResult, ToolUse
from repertory.replay import RecordedRun, Turn
from repertory.replay.needs import Need, needs_of
from repertory.replay.words import TOKENIZERS, leaves, spoken


@pytest.mark.parametrize(
    ("kind", "text", "found"),
    [
        ("paths", "see src/cli/main.py, /etc/hosts. and/or a/b", {"src/cli/main.py", "/etc/hosts", "and/or"}),
        ("paths", "<https://example.org/a?b=1>, 1/2/3", {"https://example.org/a?b=1"}),
        (
            "symbols",
            "def parse_header(rawBytes): os.path.join plain words x1y2",
            {"parse_header", "rawBytes", "os.path.join", "x1y2"},
        ),
        ("numbers", "42 404 v100 1.500 line 40417", {"404", "40417"}),
        (
            "hex",
            "commit 1a2b3c4d and deadbeef, id 123e4567-e89b-12d3-a456-426614174000",
            {"1a2b3c4d", "123e4567-e89b-12d3-a456-426614174000"},
        ),
        ("keys", '{"user_id": \'abcd\', `x.y-z`, "no"}', {"user_id", "abcd", "x.y-z"}),
        ("runs", "a well-known src/a_b.py:12 thing", {"well-known", "src/a_b.py:12"}),
    ],
)
def test_a_tokenizer_finds_what_has_its_shape(kind: str, text: str, found: set[str]) -> None:
    """And nothing else."""
    assert TOKENIZERS[kind](text) == found


def test_the_leaves_of_arguments_are_their_keys_and_values() -> None:
    """Unescaped, so that what a program was told stands there as it was."""
    assert leaves({"a": ["x\ny", 7, None], "b": {"c": True}}) == "a\nx\ny\n7\nNone\nb\nc\nTrue"
    assert spoken((Thinking("no"), Text("yes"), ToolUse("1", "n", {"k": "v"}))) == "yes\nk\nv"


def identifiers(run: RecordedRun) -> list[dict[str, Need]]:
    """What each turn takes of the identifiers that results brought."""
    return [{need.text: need for need in needs if need.kinds and not need.own} for needs in needs_of(run).turns]


def lines(run: RecordedRun) -> list[list[tuple[str, bool, int]]]:
    """The lines that each turn takes, whether they are the agent's own, and their age."""
    return [[(need.text, need.own, need.age) for need in needs if not need.kinds] for needs in needs_of(run).turns]


def made(*turns: Turn, task: str = "?", system: str = "") -> RecordedRun:
    """A run of these turns."""
    return RecordedRun(id="r", file="", task=task, system=system, turns=turns)


def test_a_turn_needs_what_a_result_said_first(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """The listing brought a path and a number; the task's own path and the model's own words are not needed."""
    [run] = read(write(tmp_path / "r.json", MESSAGES))
    first, second, third = identifiers(run)
    assert first == {}
    assert set(second) == {"src/cli/session_store.py", "session_store.py"}
    path = second["src/cli/session_store.py"]
    assert (path.kinds, path.age) == (("paths", "runs"), 1)
    assert set(third) == {"parse_header", "40417"}
    assert third["40417"].age == 2
    assert third["parse_header"].age == 1  # a newer result holds it too
    assert len(third["parse_header"].sources) == 2


def aged(age: int) -> RecordedRun:
    """A run whose last turn uses what a result brought ``age`` iterations before."""
    turns = [Turn(content=(ToolUse("c", "t", {}),), results={"c": ToolResult("c", "found needle_one")})]
    turns += [Turn(content=(ToolUse(f"d{n}", "t", {}),), results={}) for n in range(age - 1)]
    return made(*turns, Turn(content=(Text("use needle_one"),), results={}))


@pytest.mark.parametrize(
    ("age", "bucket"), [(1, "1"), (2, "2-3"), (3, "2-3"), (4, "4-10"), (10, "4-10"), (11, "over_10"), (80, "over_10")]
)
def test_an_identifier_is_as_old_as_the_newest_result_that_holds_it(age: int, bucket: str) -> None:
    """The bucket of those older than ten iterations begins with eleven."""
    *_, last = needs_of(aged(age)).turns
    assert [(need.text, need.age, need.bucket) for need in last] == [("needle_one", age, bucket)]


BY_RESULT = Turn(content=(ToolUse("c", "t", {}),), results={"c": ToolResult("c", "needle_one")})
USE = Turn(content=(Text("needle_one"),), results={})


def test_what_the_user_said_first_is_not_needed() -> None:
    """Each of the ways in which a name comes into a run without a result; what the agent said first is its own."""
    assert [len(names) for names in identifiers(made(BY_RESULT, USE))] == [0, 1]  # control
    said = Turn(content=(Text("x"),), results={}, said=("needle_one",))
    for run in (
        made(BY_RESULT, USE, task="needle_one"),
        made(BY_RESULT, USE, system="needle_one"),
        made(said, BY_RESULT, USE),
        made(USE, BY_RESULT, USE),
    ):
        assert [len(names) for names in identifiers(run)] == [0] * len(run.turns)
    [need] = needs_of(made(USE, BY_RESULT, USE)).turns[2]
    assert (need.own, need.age) == (True, 2)


def test_a_line_belongs_to_who_said_it_last() -> None:
    """Without the numbers of a viewer or a search; short lines, single words and the user's lines are none."""
    wrote = Turn(
        content=(ToolUse("w", "write", {"text": "def start(x):\n    return x + 1\n}\nonly_one_long_word"}),),
        results={"w": ToolResult("w", "ok")},
    )
    shown = Turn(
        content=(ToolUse("s", "read", {}),),
        results={
            "s": ToolResult("s", "     1→def start(x):\nsrc/a.py:7:    if not ready: stop\n12-    leave it alone")
        },
    )
    use = Turn(
        content=(Text("def start(x):\nreturn x + 1\n}\nonly_one_long_word\nif not ready: stop\nleave it alone"),),
        results={},
    )
    assert lines(made(wrote, shown, use))[2] == [
        ("def start(x):", False, 1),
        ("if not ready: stop", False, 1),
        ("leave it alone", False, 1),
        ("return x + 1", True, 2),
    ]
    assert lines(made(wrote, shown, use, task="Say:\nreturn x + 1"))[2][-1] == ("leave it alone", False, 1)
