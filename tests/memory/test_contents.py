"""Excerpts, patterns and the content store: whole results on disk, readable pieces out."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio.testing
from hypothesis import example, given
from hypothesis import strategies as st

import journal_kit as kit
from backends import RunAsync
from repertory.errors import ContentNotFound, PatternRefused
from repertory.memory import ContentStore
from repertory.memory.patterns import find_pattern
from repertory.record import Ledger, MemoryJournal, RunStateChanged
from repertory.record.excerpts import (
    EXCERPT,
    Lines,
    cut_at,
    cut_end,
    excerpts_around,
    find_words,
    fold,
    locate_beginning,
)

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"  # one character to a reader, five to Python


# --- pieces -----------------------------------------------------------------------------------------------


@given(kit.texts | st.text(st.sampled_from("ab .\n"), max_size=60), st.integers(0, 60))
@example(FAMILY * 3, 7)
def test_a_cut_is_within_its_limit_and_a_beginning(text: str, limit: int) -> None:
    """Never longer than allowed; the whole where it fits; never nothing where there is room."""
    end = cut_end(text, limit)
    assert end <= max(limit, 0)
    assert end == len(text) or len(text) > limit
    assert end > 0 or not text or limit == 0


@pytest.mark.parametrize(
    ("text", "limit", "left"),
    [
        ("one line\nand another one that is long", 10, "one line"),
        ("A sentence. Another", 14, "A sentence."),
        ("some words here", 12, "some words"),
        ("unbroken" * 5, 10, "unbrokenun"),
        ("ab cafe\u0301cafe", 7, "ab caf"),
        (f"ab{FAMILY}", 4, "ab"),
        (f"abcdefgh{FAMILY}", 9, "abcdefgh"),
    ],
)
def test_a_cut_leaves_whole_lines_sentences_words_and_characters(text: str, limit: int, left: str) -> None:
    """Whatever ends latest; an accent or a joined picture stays with its base."""
    assert text[: cut_end(text, limit)].rstrip() == left


@given(st.text(st.sampled_from("ab \n"), max_size=200), st.integers(0, 199), st.integers(20, 60))
def test_a_piece_holds_the_place_it_is_around(text: str, place: int, limit: int) -> None:
    """Wherever the place is."""
    place = min(place, max(0, len(text) - 1))
    start, end = cut_at(text, place, place + 1, limit)
    assert end - start <= limit
    if text and text[place] != " ":
        assert start <= place < end


@given(st.text(max_size=30))
@example("\u0130stanbul")  # its lower case is longer
def test_folding_keeps_every_place(text: str) -> None:
    """As many characters as before, so that what is found in it is found in the text."""
    assert len(fold(text)) == len(text)


def test_folding_drops_case_and_accents() -> None:
    """As the full-text index does."""
    assert fold("Crème BRÛLÉE \u0130") == "creme brulee i"


@given(st.text(st.sampled_from("ab\n"), max_size=30))
def test_lines_are_those_of_an_editor(text: str) -> None:
    """A newline at the end begins no further line."""
    lines = Lines(text)
    expected = text.removesuffix("\n").split("\n")
    assert lines.count == len(expected)
    assert [text[slice(*lines.slice(n, n))] for n in range(1, lines.count + 1)] == expected
    for end in range(len(text) + 1):
        assert locate_beginning(text, end) == lines.locate(0, end)


@pytest.mark.parametrize(
    ("text", "piece", "location"),
    [
        ("a\nb\nc\n", (0, 1), "lines 1-1 of 3"),
        ("a\nb\nc\n", (2, 5), "lines 2-3 of 3"),
        ("one line only", (4, 8), "characters 5-8 of 13"),
        ("one line only\n", (0, 8), "characters 1-8 of 14"),
    ],
)
def test_a_location_can_be_looked_up(text: str, piece: tuple[int, int], location: str) -> None:
    """By lines, or by characters where there is one line."""
    assert Lines(text).locate(*piece) == location


def test_words_are_found_where_most_of_them_stand_together() -> None:
    """Best first, with the share of the words, the number of matches, and the place."""
    far = "filler line\n" * 200
    text = f"about caches\n{far}Caches and WRITERS and a writer\n{far}writers only\n"
    best, *others = find_words(text, "cache writer", limit=3)
    assert "Caches and WRITERS" in best.text
    assert (best.relevance, best.matches) == (1.0, 3)
    assert best.location.startswith("lines ")
    assert [each.relevance for each in others] == [0.5, 0.5]
    assert all(len(each.text) <= EXCERPT for each in (best, *others))
    assert text[best.start :].startswith(best.text)
    assert len(find_words(text, "cache writer", limit=1)) == 1
    assert find_words(text, "missing") == find_words(text, "?!") == find_words(text, "cache", limit=0) == []


def test_pattern_matches_are_shown_in_order() -> None:
    """Those with most matches if there are too many, still in the order of the text."""
    text = "x" + " " * 1000 + "yyy" + " " * 1000 + "z"
    excerpts = excerpts_around(text, [0, 1001, 1002, 1003, 2004], limit=2)
    assert [(each.matches, each.relevance) for each in excerpts] == [(1, 0.2), (3, 0.6)]
    assert excerpts[0].start < excerpts[1].start
    assert excerpts_around(text, []) == []


# --- patterns ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "places"),
    [("b+", [1, 5]), ("^a", [0, 4]), (r"\d", []), ("", [0, 1, 2, 3, 4, 5, 6]), ("(?i)A", [0, 4]), ("\udc80", [])],
)
def test_a_pattern_gives_its_places(pattern: str, places: list[int]) -> None:
    """Line by line, as ``re`` with MULTILINE."""
    assert find_pattern("abb\nab", pattern) == places


def test_a_text_that_is_not_utf8_can_be_searched() -> None:
    """Lone surrogates travel to the searching process and back."""
    assert find_pattern("a\udc80b", "b") == [2]


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [("(", "no regular expression"), ("a{99999999999}", "no regular expression"), ("x" * 1001, "1001 characters")],
)
def test_a_wrong_pattern_is_refused(pattern: str, reason: str) -> None:
    """With the reason."""
    with pytest.raises(PatternRefused, match=reason):
        find_pattern("text", pattern)


def test_a_catastrophic_pattern_is_stopped() -> None:
    """One that would run for hours ends when its time is over, and this process could go on all the while."""
    with pytest.raises(PatternRefused, match=r"took more than 0\.3 s; write it without nested repetitions"):
        find_pattern("a" * 40 + "b", "(a+)+$", timeout=0.3)


# --- the store --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", kit.KINDS)
def test_a_citation_stands_for_a_whole(kind: str, tmp_path: Path, run_async: RunAsync) -> None:
    """It is made without waiting, becomes durable with the entry that cites it, and leads to everything."""
    body = "".join(f"line {number} of the page\n" for number in range(1, 341))

    async def main() -> None:
        async with kit.opened(kind, tmp_path) as journal:
            store = ContentStore(journal, clock=lambda: 7.0)
            citation, record = store.prepare(
                body, run_id="run-1", source="fetch", source_type="web", url="http://x", metadata={"k": 1}
            )
            with pytest.raises(ContentNotFound, match=citation.content_id):
                await store.read(citation.content_id)
            await Ledger(journal, "run-1").append(kit.draft(content_id=citation.content_id), also=[record])
            assert (await store.read(citation.content_id)) == record
            assert (record.at, record.retention, record.length) == (7.0, 3600.0, len(body))
            assert (citation.length, citation.url, citation.source) == (len(body), "http://x", "fetch")
            assert len(citation.excerpt) <= 500
            assert body.startswith(citation.excerpt)
            shown = citation.excerpt.count("\n") + 1
            assert citation.location == f"lines 1-{shown} of 340"
            assert [content.body for content in await store.sources("run-1")] == [""]

            passage = await store.read_lines(citation.content_id, 3, 4)
            assert (passage.text, passage.location) == ("line 3 of the page\nline 4 of the page", "lines 3-4 of 340")
            everything = await store.read_lines(citation.content_id)
            assert everything.text + "\n" == body
            assert (await store.read_lines(citation.content_id, 339, 999)).last == 340
            assert (await store.read_lines(citation.content_id, 999)).text == "line 340 of the page"
            assert (await store.read_lines(citation.content_id, -5, -9)).text == "line 1 of the page"
            (best,) = await store.search(citation.content_id, "340 page", limit=1)
            assert "line 340" in best.text
            (found,) = await store.search_pattern(citation.content_id, r"^line 17\d", limit=9)
            assert (found.matches, found.relevance) == (10, 1.0)

    run_async(main)


def test_storing_by_itself_waits_for_the_disk(run_async: RunAsync) -> None:
    """For applications that have no entry to store it with; kept until an hour after the run."""

    async def main() -> None:
        journal = MemoryJournal()
        store = ContentStore(journal)
        citation = await store.store("short", run_id="run-1", source="me", format="markdown")
        assert (citation.excerpt, citation.location) == ("short", "characters 1-5 of 5")
        await journal.write([kit.started("run-1"), RunStateChanged(run_id="run-1", state="stopped", at=100.0)])
        assert await journal.delete_expired_contents(3699.0) == 0
        assert await journal.delete_expired_contents(3700.0) == 1
        with pytest.raises(ContentNotFound, match=r"\(5 characters\) was cleaned up and is gone"):
            await store.search(citation.content_id, "short")

    run_async(main)


async def test_a_pattern_is_searched_on_virtual_time_too(autojump_clock: trio.testing.MockClock) -> None:
    """Where every deadline of the event loop passes at once, the search's own is real time."""
    store = ContentStore(MemoryJournal())
    citation = await store.store("needle", run_id="r", source="s")
    assert len(await store.search_pattern(citation.content_id, "e+d")) == 1
