"""Shaping on arrival: caps, citations, readable cuts; and what stands for a result later."""

from __future__ import annotations

import re
import unicodedata

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from context_histories import PICTURE, Story
from repertory._cutting import Cut, clip, cut, first_chars, kind_of_text, safe_cut
from repertory.llm.messages import Text
from repertory.record.entries import Retrieved
from repertory.shortening.lines import source_lines
from repertory.shortening.rules import ResultRules
from repertory.shortening.shaping import (
    lines_stub,
    removal_of,
    requested_text,
    shape_result,
    stub_of,
    superseded_stub,
    tool_text,
    viewed_stub,
)
from repertory.shortening.trail import Trail

CODE = "".join(f"def name_{n}(x):\n    return x + {n}\n\n\n" for n in range(200))
ROWS = msgspec.json.encode([{"id": n, "name": f"row {n}", "url": None} for n in range(300)]).decode()
LOG = "".join(f"2026-11-21 10:00:{n % 60:02d} INFO step {n} done\n" for n in range(300))
TABLE = "id,name,price\n" + "".join(f"{n},thing {n},{n * 3}\n" for n in range(300))
PROSE = "The moon pulls the sea. It does so twice a day, and nobody minds. " * 200


def test_a_short_result_is_shown_whole_and_stored_nowhere() -> None:
    """Below the citation threshold nothing is done."""
    shaped = shape_result("fine", rules=ResultRules(), content_id="c-1")
    assert (shaped.content, shaped.content_id, shaped.original_length) == ("fine", None, 0)


def test_a_medium_result_is_shown_whole_and_stored() -> None:
    """The model reads it whole once; the store has it for later."""
    shaped = shape_result(PROSE, rules=ResultRules(), content_id="c-1", tool="fetch", url="https://sea.example")
    assert (shaped.content, shaped.content_id, shaped.original_length) == (PROSE, "c-1", 0)


@pytest.mark.parametrize("text", [CODE, ROWS, LOG, TABLE, PROSE], ids=["code", "json", "log", "table", "prose"])
def test_a_long_result_keeps_head_and_tail_and_says_how_to_get_the_rest(text: str) -> None:
    """Both ends are whole records; the note has the numbers, the lines and the call."""
    shaped = shape_result(text, rules=ResultRules(cap_chars=2_000), content_id="c-9")
    assert isinstance(shaped.content, str)
    assert len(shaped.content) < 2_400
    head, tail = text[:200], text[-200:]
    assert shaped.content.startswith(head)
    assert tail in shaped.content
    assert 'retrieve_content(content_id="c-9")' in shaped.content.splitlines()[-1]
    assert f"of {len(text):,} characters" in shaped.content
    assert shaped.original_length == len(text)


@pytest.mark.parametrize(
    ("text", "kind", "head_end", "tail_begin"),
    [
        (CODE, "code", "\n\n", "def "),
        (ROWS, "json", "},", '{"id"'),
        (LOG, "log", "\n", "2026-"),
        (TABLE, "table", "\n", ""),
        (PROSE, "prose", ". ", ""),
    ],
)
def test_each_kind_of_text_is_cut_where_it_stays_readable(text: str, kind: str, head_end: str, tail_begin: str) -> None:
    """A definition, a record, a line, a sentence: nothing is cut in its middle."""
    assert kind_of_text(text) == kind
    found = cut(text, 1_500)
    assert isinstance(found, Cut)
    assert found.head.endswith(head_end)
    assert found.tail.lstrip("\n").startswith(tail_begin)
    assert found.omitted == len(text) - len(found.head) - len(found.tail)
    assert len(found.head) + len(found.tail) <= 1_500


def test_the_missing_lines_are_named_exactly() -> None:
    """Asking for the named lines gives precisely what was left out."""
    found = cut(LOG, 1_000)
    assert found is not None
    lines = LOG.splitlines(keepends=True)
    named = re.search(r"characters left out, lines (\d+)–(\d+) of 300 ", found.gap)
    assert named is not None
    missing = "".join(lines[int(named[1]) - 1 : int(named[2])])
    assert missing == LOG[len(found.head) : len(LOG) - len(found.tail)]
    assert len(missing) == found.omitted


@given(st.text(alphabet="ae\u0301\u0308👩\u200d👧\ufe0f🏽x ", min_size=1, max_size=60), st.integers(0, 60))
def test_no_cut_is_inside_a_character(text: str, at: int) -> None:
    """Not between a letter and its accent, nor inside a joined emoji."""
    place = safe_cut(text, min(at, len(text)))
    if 0 < place < len(text):
        assert not unicodedata.combining(text[place])
        assert text[place] not in "\u200d\ufe0f🏽"
        assert text[place - 1] != "\u200d"


def test_a_cut_at_a_fixed_place_does_split_characters() -> None:
    """Negative control: without care the same text is split."""
    assert safe_cut("ne\u0301", 2) == 1
    assert unicodedata.combining("ne\u0301"[2])


@pytest.mark.parametrize("mark", ["\u0301", "\u200d", "\ufe0f", "\udc00", "🏽"])
def test_a_text_of_nothing_but_marks_is_cut_like_any_other(mark: str) -> None:
    """No character has that many; so it keeps to its cap, and is split into lines that end."""
    text = "a" + mark * 5_000
    found = cut(text, 1_000)
    assert found is not None
    assert len(found.head) + len(found.tail) <= 1_000
    assert max(map(len, source_lines(text))) <= 400


def test_the_end_of_the_last_line_begins_no_other() -> None:
    """A citation has as many lines as retrieval finds."""
    shaped = shape_result(LOG, rules=ResultRules(cite_on_arrival=True), content_id="c-1")
    assert isinstance(shaped.content, str)
    assert ", 300 lines]" in shaped.content
    assert " of 300;" in shaped.content


def test_pictures_and_unknown_blocks_stay_when_text_is_cut() -> None:
    """Only words are shortened."""
    shaped = shape_result((Text(PROSE), PICTURE), rules=ResultRules(cap_chars=300), content_id="c-1")
    assert isinstance(shaped.content, tuple)
    assert shaped.content[1] == PICTURE
    assert len(shaped.content) == 2


def test_a_result_can_be_shown_as_its_citation_only() -> None:
    """Id, source, address, sizes, small facts, excerpt, location, and how to get the whole."""
    rules = ResultRules(cite_on_arrival=True, excerpt_chars=100)
    shaped = shape_result(
        PROSE, rules=rules, content_id="c-5", tool="fetch", url="https://sea.example", facts={"status": 200}
    )
    assert isinstance(shaped.content, str)
    for part in (
        "citation c-5",
        "fetch",
        "https://sea.example",
        f"{len(PROSE):,} characters",
        "status: 200",
        "The moon",
        "line 1–1 of 1",
        "retrieve_content",
    ):
        assert part in shaped.content
    assert len(shaped.content) < 600


@pytest.mark.parametrize("cited", [False, True], ids=["capped", "cited"])
def test_where_a_result_came_from_stays_visible_when_it_is_not_shown_whole(cited: bool) -> None:
    """Its address first, then what its tool says about it, in one line."""
    rules = ResultRules(cap_chars=300, cite_on_arrival=cited)
    facts = {"status": 200, "title": "Tides\nof the sea", "pages": [1, 2]}
    shaped = shape_result(PROSE, rules=rules, content_id="c-5", tool="fetch", url="https://sea.example", facts=facts)
    assert "https://sea.example; status: 200; title: Tides of the sea; pages: [1,2]" in str(shaped.content)
    assert "deduplicated" not in str(shaped.content)
    long = shape_result(PROSE, rules=rules, content_id="c-5", facts={"note": "word " * 500})
    assert len(str(long.content)) < 1_000


@pytest.mark.parametrize(
    ("tool", "compactor", "text", "said"),
    [
        ("list", "", "\n".join(f"docs/page_{n}.txt" for n in range(300)), "300 entries: 300 .txt"),
        ("query", "", ROWS, "300 rows; columns id, name, url"),
        ("query", "json", ROWS, "list: 300 items"),
        ("json", "", PROSE, "The moon pulls the sea."),
    ],
)
@pytest.mark.parametrize("rules", [{"cap_chars": 500}, {"cite_on_arrival": True}], ids=["capped", "cited"])
def test_a_stub_of_a_result_that_was_cut_says_what_the_whole_was(
    rules: dict[str, int], tool: str, compactor: str, text: str, said: str
) -> None:
    """The words are made on arrival, when the whole is at hand; a smaller stub has whole lines of them."""
    made = ResultRules(**rules, compactor=compactor)  # type: ignore[arg-type]
    shaped = shape_result(text, rules=made, content_id="c-77aa77aa77", tool=tool)
    entry = Story().turn(str(shaped.content), tool=tool)[1]
    entry = msgspec.structs.replace(
        entry,
        content_id="c-77aa77aa77",
        original_length=shaped.original_length,
        gist=shaped.gist,
        spans=shaped.spans,
    )
    for length in (400, 120):
        line = viewed_stub(entry, msgspec.structs.replace(made, compact_length=length))
        head, _, words = line.partition("] ")
        assert head.startswith(f'[previously viewed: {tool}, iteration 1; retrieve_content(content_id="c-77aa77aa77")')
        assert words.startswith(said)
        assert "\n" not in line
    assert f"{len(text):,} characters" in stub_of(entry, made, "shortened", "").split("\n")[0]
    first = requested_text(entry, msgspec.structs.replace(made, compact_mode="first_chars", compact_length=200), "")
    assert text.startswith(first)
    assert len(first) > 100


@pytest.mark.parametrize("rules", [{"cap_chars": 600}, {"cite_on_arrival": True}], ids=["capped", "cited"])
def test_the_words_of_a_cut_result_are_its_tools_own(rules: dict[str, int]) -> None:
    """Not those of the note around it: the tool, its parameter, the citation."""
    text = "the depth_gauge reads nothing of note here today. " * 100
    shaped = shape_result(text, rules=ResultRules(**rules), content_id="c-77aa77aa77", tool="fetch_page")  # type: ignore[arg-type]
    entry = Story().turn(str(shaped.content), tool="fetch_page")[1]
    entry = msgspec.structs.replace(entry, original_length=shaped.original_length, spans=shaped.spans)
    own = tool_text(entry)
    assert all(part in text for part in own.split("\n"))
    assert "depth_gauge" in own


def test_a_stub_says_where_the_result_came_from_in_one_line() -> None:
    """Under its head: the address first, then the facts; a retrieval names its source itself."""
    entry = Story().turn(PROSE)[1]
    entry = msgspec.structs.replace(entry, url="https://sea.example", facts={"status": 200, "kind": "tide"})
    stub = stub_of(entry, ResultRules(), "shown once", "Calm.")
    assert stub.split("\n")[1:] == ["https://sea.example; status: 200; kind: tide", "Calm."]
    entry = msgspec.structs.replace(entry, retrieved=Retrieved(positions=(1, 2, 3)))
    assert stub_of(entry, ResultRules(), "shortened", "Calm.").split("\n")[1:] == ["Calm."]


def test_what_remains_is_what_the_application_asks_for() -> None:
    """The plug-in that it names where that fits, else what a model wrote; or the beginning; else nothing is asked."""
    entry = Story().turn(ROWS, tool="rows")[1]
    named = ResultRules(compactor="json", compact_length=60, compact_mode="summary")
    assert requested_text(entry, named, "Written by a model.").startswith("list: 300 items")
    misnamed = msgspec.structs.replace(named, compactor="log")
    assert requested_text(entry, misnamed, "Written by a model.") == "Written by a model."
    assert requested_text(entry, misnamed, "") == ""
    assert ROWS.startswith(requested_text(entry, ResultRules(compact_length=60, compact_mode="first_chars"), ""))
    assert requested_text(entry, ResultRules(), "") == ""


def test_a_head_line_is_short() -> None:
    """It stands over every stub, and names the way to the whole where the agent has a tool for it."""
    entry = msgspec.structs.replace(Story().turn(PROSE)[1], content_id="c-77aa77aa77", tool="read_log")
    head = stub_of(entry, ResultRules(), "shortened", "").split("\n")[0]
    expected = 'retrieve_content(content_id="c-77aa77aa77") shows the whole]'
    assert head == f"[shortened: read_log, iteration 1, {len(PROSE):,} characters; {expected}"
    bare = stub_of(entry, ResultRules(retrieval=False), "shortened", "")
    assert bare == head.partition(";")[0] + "]"
    entry = msgspec.structs.replace(entry, content_id=None)
    assert "; context_retrieve(iteration=1) shows the whole]" in stub_of(entry, ResultRules(), "cut", "")
    assert removal_of(entry, ResultRules(retrieval=False)) == "[expired: read_log, iteration 1]"
    told = superseded_stub(entry, msgspec.structs.replace(entry, iteration=9))
    assert told == "[superseded: read_log, iteration 1; called again for this or more in iteration 9]"


def test_a_stub_of_lines_says_how_many_they_are() -> None:
    """Not where it has them all."""
    entry = Story().turn(LOG)[1]
    assert lines_stub(entry, ResultRules(), "shown once", ["b", "d"], "2 of 9 lines").endswith("]\n2 of 9 lines:\nb\nd")
    assert lines_stub(entry, ResultRules(), "shown once", ["b", "d"], "").endswith("]\nb\nd")


def test_what_is_pinned_is_never_cut() -> None:
    """A pinned result is verbatim on arrival too; its whole is stored all the same."""
    shaped = shape_result(PROSE, rules=ResultRules(cap_chars=100, pin=True, cite_on_arrival=True), content_id="c-1")
    assert (shaped.content, shaped.content_id) == (PROSE, "c-1")


def test_a_citation_of_a_short_text_holds_all_of_it() -> None:
    """Nothing is announced as missing that is there."""
    shaped = shape_result("short " * 5, rules=ResultRules(cite_over=5, cite_on_arrival=True), content_id="c-1")
    assert "[this is all of it; retrieve_content" in str(shaped.content)


def test_a_stub_keeps_what_is_likely_to_be_needed_again() -> None:
    """Its size and origin, the way to the whole, errors of a failed call, and the names that matter."""
    story = Story()
    words = "Traceback in src/app/billing.py: KeyError: 'customer_id_42'\n" + "filler text of no use\n" * 400
    entry = story.turn(words, tool="run", errors=[0])[1]
    stub = lines_stub(entry, ResultRules(), "shortened", *Trail().lines_of(entry, story.entries, 80))
    for part in (
        "run, iteration 1",
        f"{len(words):,} characters",
        "context_retrieve(iteration=1)",
        "1 of 2 lines:\n",
        "KeyError: 'customer_id_42'",
    ):
        assert part in stub


def test_a_stub_can_be_the_first_characters() -> None:
    """The literal mode: the beginning, cut where it reads well, with the citation."""
    story = Story()
    entry = story.turn(PROSE)[1]
    entry = msgspec.structs.replace(entry, content_id="c-3")
    rules = ResultRules(compact_mode="first_chars", compact_length=100)
    stub = stub_of(entry, rules, "expired", requested_text(entry, rules, ""))
    assert "c-3" in stub.splitlines()[0]
    assert stub.splitlines()[1].startswith("The moon pulls")
    assert "c-3" in removal_of(entry, ResultRules())


def test_a_stub_counts_the_pictures_it_hides() -> None:
    """A picture that is no longer shown is at least mentioned."""
    entry = Story().turn((Text("a chart " * 400), PICTURE))[1]
    assert "1 image;" in stub_of(entry, ResultRules(), "shortened", "")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (" " * 900 + "here", "here"),
        ("a" + " " * 900 + "b", "a…"),
        ("a  b\n" + " " * 900, "a b"),
        ("word " * 30, "word word w…"),
    ],
)
def test_a_clipped_line_says_what_is_missing(text: str, line: str) -> None:
    """However much of the text is white space."""
    assert clip(text, 12) == line


def test_first_chars_of_a_short_text_is_the_text() -> None:
    """Nothing is cut that fits."""
    assert first_chars("abc", 3) == "abc"
    assert cut("abc", 3) is None
    assert cut("a" * 50, 10) is not None
