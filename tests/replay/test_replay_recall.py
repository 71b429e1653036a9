"""What a turn needs of what it was shown, by hand."""

from __future__ import annotations

from collections import Counter

import pytest
from replay_stories import MESSAGES, read, write

from repertory.llm.messages import Text, Thinking, ToolResult, ToolUse
from repertory.replay import Need, RecordedRun, Turn, needs_of
from repertory.replay.identifiers import TOKENIZERS, leaves
from repertory.replay.recall import Recall, spoken


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


def test_a_turn_needs_what_a_result_said_first(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """The listing brought a path and a number; the task's own path and the model's own words are not needed."""
    [run] = read(write(tmp_path / "r.json", MESSAGES))
    first, second, third = ({need.name: need for need in needs} for needs in needs_of(run))
    assert first == {}
    assert set(second) == {"src/cli/session_store.py", "session_store.py"}
    assert second["src/cli/session_store.py"] == Need("src/cli/session_store.py", ("union", "paths", "runs"), 1)
    assert set(third) == {"parse_header", "40417"}
    assert third["40417"].age == 2
    assert third["parse_header"].age == 1  # a newer result holds it too


def aged(age: int) -> RecordedRun:
    """A run whose last turn uses what a result brought ``age`` iterations before."""
    turns = [Turn(content=(ToolUse("c", "t", {}),), results={"c": ToolResult("c", "found needle_one")})]
    turns += [Turn(content=(ToolUse(f"d{n}", "t", {}),), results={}) for n in range(age - 1)]
    turns.append(Turn(content=(Text("use needle_one"),), results={}))
    return RecordedRun(id="r", file="", task="Find it.", turns=tuple(turns))


@pytest.mark.parametrize(
    ("age", "bucket"), [(1, "1"), (2, "2-3"), (3, "2-3"), (4, "4-10"), (10, "4-10"), (11, "over_10"), (80, "over_10")]
)
def test_an_identifier_is_as_old_as_the_newest_result_that_holds_it(age: int, bucket: str) -> None:
    """The bucket of those older than ten iterations begins with eleven."""
    *_, last = needs_of(aged(age))
    assert [(need.name, need.age, need.bucket) for need in last] == [("needle_one", age, bucket)]


def test_what_the_user_or_the_model_said_first_is_not_needed() -> None:
    """Each of the three ways in which a name comes into a run without a result."""
    by_result = Turn(content=(ToolUse("c", "t", {}),), results={"c": ToolResult("c", "needle_one")})
    use = Turn(content=(Text("needle_one"),), results={})
    run = RecordedRun(id="r", file="", task="?", turns=(by_result, use))
    assert [len(needs) for needs in needs_of(run)] == [0, 1]  # control
    told = RecordedRun(id="r", file="", task="needle_one", turns=(by_result, use))
    system = RecordedRun(id="r", file="", task="?", system="needle_one", turns=(by_result, use))
    said = RecordedRun(
        id="r", file="", task="?", turns=(Turn(content=(Text("x"),), results={}, said=("needle_one",)), by_result, use)
    )
    model = RecordedRun(id="r", file="", task="?", turns=(use, by_result, use))
    assert [sum(map(len, needs_of(each))) for each in (told, system, said, model)] == [0, 0, 0, 0]


def test_recall_counts_what_stands_literally_in_the_request() -> None:
    """By tokenizer, age, and whether it was in view; a request that lacks anything lacks it once."""
    recall = Recall()
    needs = (Need("a_b", ("union", "symbols"), 1), Need("404", ("union", "numbers"), 20), Need("501", ("union",), 20))
    recall.look(needs, "… x/a_b.py …")
    recall.look((), "")
    recall.look(needs[:1], "a_b")
    assert recall.counts == Counter(
        {
            ("union", "1", True): 2,
            ("symbols", "1", True): 2,
            ("union", "over_10", False): 2,
            ("numbers", "over_10", False): 1,
        }
    )
    assert recall.blind == 1
