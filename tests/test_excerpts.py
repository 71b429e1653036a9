"""Excerpts: readable pieces out of a text, and where they stand."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import journal_kit as kit
from repertory._cutting import first_chars
from repertory._excerpts import (
    EXCERPT,
    Lines,
    cut_at,
    excerpts_around,
    find_words,
    fold,
    words_of,
)

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"  # one character to a reader, five to Python


@given(kit.texts | st.text(st.sampled_from("ab .\n"), max_size=60), st.integers(0, 60))
@example(FAMILY * 3, 7)
def test_a_cut_is_within_its_limit_and_a_beginning(text: str, limit: int) -> None:
    """Never longer than allowed; the whole where it fits; never nothing where there is room."""
    cut = first_chars(text, limit)
    assert text.startswith(cut)
    assert len(cut) <= limit
    assert cut == text or len(text) > limit
    assert cut or not text or limit == 0


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
    assert first_chars(text, limit).rstrip() == left


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
    assert find_words("call read_cache now", "read_cache")[0].relevance == 1.0
    assert find_words(text, "missing") == find_words(text, "?!") == find_words(text, "cache", limit=0) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("漢字かな交じり文を検索する方法", "検索"),
        ("このAPIを使う", "api"),
        ("그는 한국에서 왔다", "한국"),
        ("ฉันเรียนภาษาไทยทุกวัน", "ไทย"),
    ],
)
def test_words_are_found_where_no_space_stands_between_them(text: str, words: str) -> None:
    """In scripts that have none."""
    far = "。\n" * 400
    (found,) = find_words(f"{far}{text}{far}", words, size=40)
    assert words in found.text.lower()


def test_a_syllable_is_not_found_by_its_first_letter() -> None:
    """Hangul is decomposed like letters with accents, and has none."""
    assert find_words("하기 쉽다", "한국") == []


def test_pattern_matches_are_shown_in_order() -> None:
    """Those with most matches if there are too many, still in the order of the text."""
    text = "x" + " " * 1000 + "yyy" + " " * 1000 + "z"
    excerpts = excerpts_around(text, [0, 1001, 1002, 1003, 2004], limit=2)
    assert [(each.matches, each.relevance) for each in excerpts] == [(1, 0.2), (3, 0.6)]
    assert excerpts[0].start < excerpts[1].start
    assert excerpts_around(text, []) == []


def test_of_a_word_the_first_hundred_characters_count() -> None:
    """A search is prepared in proportion to its words: without a bound it took seconds for one word of a megabyte."""
    endless = "x" * 1_000_000
    assert words_of(endless) == ["x" * 100]
    (found,) = find_words(f"so {endless[:200]} it is", endless, size=10)
    assert found.text == "x" * 10
