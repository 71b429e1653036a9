"""Compactors: each kind of result is recognized and said in a few lines."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import copy_context
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory._cutting import kind_of_text
from repertory.shortening import register_compactor
from repertory.shortening.compactors import COMPACTORS, close_json, compact, describe, on_compactor_failure


def js(value: object) -> str:
    """Compact JSON."""
    return msgspec.json.encode(value).decode()


SEARCH = js(
    {"results": [{"title": f"Tides {n}", "url": f"https://sea.example/{n}", "snippet": "w " * 300} for n in range(9)]}
)
SCHEMA = js(
    {
        "name": "customer",
        "primary_key": "id",
        "fields": [{"name": f"field_{n}"} for n in range(12)],
        "relations": [{"target": "order"}, "region"],
    }
)
ROWS = js([{"id": n, "city": f"Town {n}", "meta": {"a": 1}} for n in range(40)])
JSON = js(
    {"server": {"host": "db-7.example", "ports": [5432, 5433]}, "ok": True, "deep": {"a": {"b": {"c": 1}}}, "none": []}
)
PAGE = "<html><head><title>Tide tables</title></head><body><h1>North</h1><p>High at noon. <a href='https://sea.example/x'>x</a>"
# As documentation is generated: links in headings, entities, and a script that was cut off.
BOOK = """<html><head><title>Tides &amp; winds</title><style>h1 > a {}</style></head><body>
<h1 id="tables"><a class="header" href="#tables">Tide tables</a></h1><!-- a > b --><h2><code>North</code> sea</h2>
<p>High &lt;noon&gt;</p><SCRIPT>if (a > b) {"""
MARKDOWN = "# Tide tables\n\nHigh at noon.\n\n## North\n\ntext\n\n## South\n\nmore https://sea.example/y\n"
FILE = "import os\n\nclass Harbour:\n    def depth(self):\n        return 7\n\ndef main():\n    pass\n"
LISTING = "src/app.py\nsrc/lib/util.py\nREADME.md\ntests/test_app.py\nsetup.cfg\n"
LOG = (
    "".join(f"2026-11-21 10:0{n}:00 INFO ok {n}\n" for n in range(9))
    + "2026-11-21 10:10:00 ERROR disk full on /dev/sda1\n"
)
CSV = "id,city,price\n1,Kiel,3\n2,Brest,4\n3,Genua,5\n"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("search", SEARCH, ["9 search results", "Tides 0 https://sea.example/0", "more"]),
        ("schema", SCHEMA, ["customer: 12 fields; key id; relations order, region", "\n- field_0\n", "\n- field_11"]),
        ("rows", ROWS, ["40 rows; columns id, city, meta", "city=Town 0"]),
        ("rows", js([{"name": "buoy", "url": None}, {"name": "pier", "url": "/p"}]), ["2 rows; columns name, url"]),
        ("rows", CSV, ["table of 3 rows", "id,city,price", "2,Brest,4"]),
        ("json", JSON, ["server.host: db-7.example", "server.ports: 2 items, first 5432", "none: 0 items"]),
        ("page", PAGE, ["page: Tide tables", "High at noon", "North", "https://sea.example/x"]),
        ("page", MARKDOWN + "\n## A bay\n" * 99, ["sections: Tide tables; North; South; A bay"]),
        ("page", "".join(f"## Part {n}\n" for n in range(99)), ["sections: Part 0; Part 1; ", "…"]),
        ("page", "<p>no heading, no title</p>", ["page\nno heading, no title"]),
        ("page", BOOK, ["page: Tides & winds\n", " North sea High <noon>\nsections: Tide tables; North sea"]),
        ("page", MARKDOWN, ["page: Tide tables", "North; South", "1 links: https://sea.example/y"]),
        ("file", FILE, ["9 lines; begins: import os", "3: class Harbour", "7: def main"]),
        ("file", f"# The harbour.\n{FILE}# Its end.\n", ["4: class", "begins: # The harbour."]),
        ("listing", LISTING, ["5 entries: 3 .py", "src/lib/util.py"]),
        ("listing", js(["a/b.txt", "c.md"]), ["2 entries", "c.md"]),
        ("log", LOG, ["log of 10 lines", "ERROR disk full on /dev/sda1"]),
    ],
)
def test_each_kind_is_recognized_and_said_briefly(name: str, text: str, expected: list[str]) -> None:
    """The right plug-in speaks, within its room, and says what matters of that kind."""
    data = msgspec.json.decode(text) if text[0] in "{[" else None
    found = next(c.name for c in COMPACTORS.values() if c.matches(text, data))
    assert found == name
    said = compact(text, 500)
    assert len(said) <= 500
    for part in expected:
        assert part in said


@pytest.mark.parametrize("part", ["<h1", "<h1>", "<title", "<script>", "<!--", "<p ", "[1,", "1\t", "\t"])
def test_a_hostile_text_is_read_once(part: str) -> None:
    """Not once again from each place in it, which took up to half an hour."""
    many = part * (90_000 // len(part))
    for text in (many, f"<p>{many}", FILE * 9 + many):
        assert len(describe(text, 4_000) or "") <= 4_000
        assert kind_of_text(text)
        for compactor in COMPACTORS.values():
            if compactor.name in ("page", "file", "listing", "log"):  # the others read JSON
                compactor.compact(text, None, 4_000)


def test_a_schema_keeps_what_its_fields_are() -> None:
    """Types and descriptions stay, whichever way a schema is written; of several schemas those of the first fields."""
    listed = {
        "name": "ship",
        "columns": [{"name": "imo", "data_type": "int", "comment": "her number"}, {"name": "flag"}],
    }
    keyed = {"title": "ship", "properties": {"imo": {"type": "integer", "description": "her number"}, "flag": "text"}}
    assert compact(js(listed), 400) == "ship: 2 fields\n- imo int: her number\n- flag"
    assert compact(js(keyed), 400) == "ship: 2 fields\n- imo integer: her number\n- flag text"
    many = {"name": "log", "fields": [{"name": f"column_{n}", "type": "text"} for n in range(9)]}
    both = compact(js([many, many]), 4_000)
    assert both.count("log: 9 fields") == 2
    assert both.count("- column_4 text") == 2
    assert "column_5" not in both


def test_a_snippet_of_a_search_result_is_short() -> None:
    """At most 200 characters of each snippet, whatever room there is."""
    said = compact(SEARCH, 100_000)
    assert max(len(line) for line in said.splitlines()) < 350


def test_what_no_compactor_knows_keeps_its_beginning() -> None:
    """Plain words are shown as far as half of the room goes, so that names find place too."""
    assert compact("The sea is calm. " * 100, 100).startswith("The sea is calm.")
    assert compact("{not json", 100) == "{not json"


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"   Compiling crane_{n} v1.{n}.0\n" for n in range(40)),
        "".join(f"epoch {n} loss {n}.25\n" for n in range(40)),
        "# Where it listens.\nport = 8\n# Who may call.\nhosts = []\n",
    ],
    ids=["versions are no files", "nor are numbers", "comments are no headings"],
)
def test_what_is_like_no_kind_is_told_by_its_first_words(text: str) -> None:
    """Rather than as something that it is not."""
    assert describe(text, 200) is None


def test_what_a_terminal_shows_is_described() -> None:
    """A log with colours is a log; of a progress bar the last state counts."""
    coloured = LOG.replace("INFO", "\x1b[32mINFO\x1b[0m").replace("2026", "\x1b[2m2026")
    assert describe(coloured, 300) == describe(LOG, 300)
    bar = "Loading\n" + "".join(f"\r{part} of 100" for part in range(101)) + "\nnear the end of it\n" * 9
    assert compact(bar, 60).startswith("Loading 100 of 100 near")


def test_what_no_compactor_knows_says_how_it_ended() -> None:
    """The tests of no matter which runner, in one line: whether they passed is what one wants of them."""
    dots = "".join(f"tests/test_{number}.py .....\n" for number in range(99))
    said = compact(f"{dots}2 failed, 493 passed in 3 s\nbye", 100)
    assert said.startswith("tests/test_0.py ..... tests/test_1.py")
    assert said.endswith("\n2 failed, 493 passed in 3 s")
    assert len(said) <= 100


def test_the_policy_or_the_tool_names_the_compactor() -> None:
    """Of several that match, the one that is named speaks: by the policy first, then by the tool."""
    assert "40 rows" in compact(ROWS, 300)
    assert compact(ROWS, 300, tool="json").startswith("list: 40 items")
    assert "40 rows" in compact(ROWS, 300, tool="json", name="rows")


@pytest.mark.parametrize("by", ["name", "tool"])
@pytest.mark.parametrize("name", list(COMPACTORS))
def test_a_compactor_that_is_named_but_does_not_match_says_nothing(name: str, by: str) -> None:
    """A tool called ``search`` may answer in prose: nothing raises, and nothing false is said of it."""
    for text in (SEARCH, SCHEMA, ROWS, JSON, PAGE, FILE, LISTING, LOG, CSV, "The sea is calm."):
        data = msgspec.json.decode(text) if text[0] in "{[" else None
        if not COMPACTORS[name].matches(text, data):
            assert compact(text, 300, **{by: name}) == compact(text, 300)


def test_what_is_asked_for_is_what_the_policy_names() -> None:
    """Not a built-in one that only fits, nor one that happens to be called like the tool."""
    assert describe(ROWS, 300, requested_only=True) is None
    assert describe(ROWS, 300, tool="rows", requested_only=True) is None
    assert (describe(ROWS, 300, name="rows", requested_only=True) or "").startswith("40 rows")
    assert describe("The sea is calm.", 300, name="rows", requested_only=True) is None


@pytest.fixture
def restored() -> Iterator[None]:
    """Leaves the registry as it was."""
    before = dict(COMPACTORS)
    yield
    COMPACTORS.clear()
    COMPACTORS.update(before)


@pytest.mark.usefixtures("restored")
def test_an_application_adds_its_own() -> None:
    """It is asked first, and one of the same name replaces the built-in."""

    class Tide:
        """Knows tide tables."""

        name = "tide"

        def matches(self, text: str, data: Any) -> bool:
            """Tides are mentioned."""
            return "tide" in text

        def compact(self, text: str, data: Any, length: int) -> str:
            """Far too long, to be cut by the caller."""
            return "a tide table " * 100

    register_compactor(Tide())
    assert compact('{"tide": 3}', 40).startswith("a tide table")
    assert len(compact('{"tide": 3}', 40)) <= 40
    register_compactor(Tide())
    assert next(iter(COMPACTORS)) == "tide"
    assert describe('{"tide": 3}', 40, requested_only=True) is None
    assert describe('{"tide": 3}', 40, tool="tide", requested_only=True) == compact('{"tide": 3}', 40)


class Panic(BaseException):
    """What an extension in Rust raises."""


class Broken:
    """Raises where it is told to."""

    def __init__(self, at: str) -> None:
        self.name = "broken"
        self._at = at

    def matches(self, text: str, data: Any) -> bool:
        """Whatever it is."""
        if self._at == "matches":
            raise KeyError("no such field")
        return True

    def compact(self, text: str, data: Any, length: int) -> Any:
        """A bug."""
        if self._at == "compact":
            raise KeyError("no such field")
        if self._at == "extension":
            raise Panic("no such column")
        return None


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("at", ["matches", "compact", "nothing", "extension"])
@pytest.mark.parametrize("name", ["broken", ""])
def test_a_compactor_that_fails_is_told_and_the_next_one_speaks(at: str, name: str) -> None:
    """Also one that returns no text; whoever wants to know is told which and why."""
    expected = compact(SEARCH, 300)
    register_compactor(Broken(at))
    told: list[tuple[str, type[BaseException]]] = []

    def inside() -> str:
        on_compactor_failure(lambda compactor, error: told.append((compactor, type(error))))
        return compact(SEARCH, 300, name=name)

    assert copy_context().run(inside) == expected
    assert told == [("broken", {"nothing": TypeError, "extension": Panic}.get(at, KeyError))]
    assert compact("Calm.", 300, tool="broken") == "Calm."  # nobody listens here


@given(
    st.one_of(
        st.text(max_size=400),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=10),
            lambda inner: (
                st.lists(inner, max_size=4)
                | st.dictionaries(
                    st.sampled_from(["url", "fields", "name", "key", "a", "relations"]), inner, max_size=4
                )
            ),
            max_leaves=12,
        ).map(js),
    ),
    st.integers(1, 300),
)
def test_any_text_is_compacted_within_its_room(text: str, length: int) -> None:
    """No result, however odd, makes a compactor fail or go over its room."""
    assert len(compact(text, length)) <= length


def test_json_that_is_too_deep_is_text() -> None:
    """No compactor takes it, and nothing breaks."""
    assert compact("[" * 100_000, 40) == "[" * 20


# --- results of many megabytes ----------------------------------------------------------------------------

WORDS = "the tide comes in at noon and goes out at six. " * 40


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LOG * 1_000 + "FATAL the end", ["of its first 64,000 and last 32,000 characters:\nlog of ", "FATAL the end"]),
        (js([{"id": n, "city": f"Town {n}"} for n in range(50_000)]), ["rows; columns id, city\nid=0, city=Town 0"]),
        (js({"a": [1, {"b": [WORDS] * 9_000}], "z": 1}), ["of its first", "a: 2 items, first 1"]),
        (LISTING * 9_000, [" .py", "src/app.py\nsrc/lib/util.py"]),
        ("# Tides\n\n## North\n" + WORDS * 100, ["page: Tides", "sections: Tides; North"]),
        (FILE + "def tide():\n    return 1\n\n" * 9_000, ["lines; begins: import os", "3: class Harbour"]),
        (CSV * 9_000, ["table of", "id,city,price"]),
    ],
)
def test_of_a_very_long_result_the_beginning_and_the_end_are_looked_at(text: str, expected: list[str]) -> None:
    """And it is said how much that was, so that no count passes for one of the whole."""
    said = compact(text, 500)
    assert said.startswith("of its first ")
    assert len(said) <= 500
    for part in expected:
        assert part in said


@pytest.mark.parametrize(
    "text", ["[" * 200_000, '["' + "x" * 200_000, "{" + "not json " * 20_000, "[1" + ", 2" * 90_000 + "x"]
)
def test_what_only_begins_like_json_is_looked_at_as_text_or_as_far_as_it_goes(text: str) -> None:
    """Whatever it is, something is said of it."""
    assert 0 < len(compact(text, 500)) <= 500


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_the_beginning_of_json_is_closed_into_json(value: object) -> None:
    """Wherever it is cut, what is left can be read, or is nothing."""
    text = js([value])
    for end in range(0, len(text), 1 + len(text) // 50):
        if closed := close_json(text[:end]):
            msgspec.json.decode(closed)


def test_an_application_s_compactor_is_given_all_of_a_long_result() -> None:
    """The text and its values, whatever the built-in ones look at."""
    seen: list[tuple[int, int]] = []

    class Whole:
        name = "whole"

        def matches(self, text: str, data: Any) -> bool:
            seen.append((len(text), len(data)))
            return False

        def compact(self, text: str, data: Any, length: int) -> str:
            raise AssertionError("it never matches")

    before = dict(COMPACTORS)
    try:
        register_compactor(Whole())
        compact(text := js(list(range(50_000))), 500)
    finally:
        COMPACTORS.clear()
        COMPACTORS.update(before)
    assert seen == [(len(text), 50_000)]
