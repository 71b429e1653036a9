"""Memory items: what they hold, and the shapes in which it is given out."""

from __future__ import annotations

import math
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import journal_kit as kit
import repertory as rp
from repertory.actors import open_system
from repertory.errors import ConfigurationError, RecordRefused
from repertory.memory import Memory, MemoryActor, Transform
from repertory.memory.items import decode_content, encode_content, item_info, shape_item, shape_text

PAGE = """A first sentence. And a second one.

The next paragraph begins. It goes on.
keep: this line about Cafés

A last one!"""


@pytest.mark.parametrize(
    ("transform", "left"),
    [
        (Transform(), PAGE),
        (Transform(kind="first_n", n=10), "A first"),
        (Transform(kind="last_n", n=4), "one!"),
        (Transform(kind="last_n", n=10_000), PAGE),
        (Transform(kind="summary"), "A first sentence. The next paragraph begins. A last one!"),
        (Transform(kind="summary", n=20), "A first sentence."),
        (Transform(kind="summary", n=9), "A first"),
        (Transform(kind="filtered", words="cafe"), "keep: this line about Cafés"),
        (Transform(kind="filtered", words="last keep"), "keep: this line about Cafés\nA last one!"),
        (Transform(kind="filtered"), ""),
        (Transform(kind="excerpt", n=12), "A first sent"),
        (Transform(kind="first_n", n=0), ""),
        (Transform(kind="first_n", n=-5), ""),
        (Transform(kind="last_n", n=0), ""),
    ],
)
def test_a_transform_leaves_what_it_says(transform: Transform, left: str) -> None:
    """Each kind, and nothing beyond its limit."""
    assert shape_text(PAGE, transform).rstrip() == left


@given(st.integers(6, 700), st.integers(0, 200), st.integers(0, 200))
def test_an_excerpt_holds_the_words_that_were_asked_for(n: int, before: int, after: int) -> None:
    """However short it is to be, and wherever they stand; all of them where there is room for all."""
    text = "padding words " * before + "the needle in the haystack is here " + "more words " * after
    for words in ("needle", "haystack needle"):
        excerpt = shape_text(text, Transform(kind="excerpt", n=n, words=words))
        assert len(excerpt) <= n
        assert "needle" in excerpt or "haystack" in excerpt
        assert n < 50 or all(word in excerpt for word in words.split())


def test_an_excerpt_holds_another_form_of_the_word_where_that_is_all_there_is() -> None:
    """As full-text search does, which may have found the item by it."""
    text = "padding words " * 60 + "a heron stands here " + "more words " * 60
    assert "heron stands" in shape_text(text, Transform(kind="excerpt", n=60, words="herons"))


async def test_a_word_that_there_is_none_of_is_refused_with_the_choices() -> None:
    """Where it is written; not by a result of None, nor by a scope that nobody asked for."""
    with pytest.raises(ConfigurationError, match="kind is 'gist'; expected 'full' or 'excerpt' or"):
        Transform(kind="gist")  # type: ignore[arg-type]
    memory = Memory(None, "s")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="mode is 'root'; expected 'shared' or 'shared-read-only'"):
        await memory.fork("b", mode="root")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="prefer is 'me'; expected 'neither' or 'child' or 'parent' or 'both'"):
        await memory.merge(prefer="me")  # type: ignore[arg-type]


def test_an_excerpt_without_the_words_is_the_beginning() -> None:
    """Nothing else would be nearer to what was asked for."""
    assert shape_text("one two three", Transform(kind="excerpt", n=8, words="four")) == "one two"


def test_an_item_given_out_keeps_its_facts() -> None:
    """The size is that of the whole, whatever was cut."""
    version = kit.item(3, "s", "i", PAGE, source="me", tags=("t",), related_to=("j",), metadata={"k": 1})
    item = shape_item(version, Transform(kind="last_n", n=4))
    assert (item.content, item.size, item.position, item.tags) == ("one!", len(PAGE.encode()), 3, ("t",))
    info = item_info(version)
    assert (info.source, info.related_to, info.metadata, info.scope_id) == ("me", ("j",), {"k": 1}, "s")


@given(st.binary(max_size=20) | kit.json_values)
def test_any_content_comes_back_as_it_was(content: Any) -> None:
    """Text, bytes and values, with the bytes that they take."""
    kind, text = encode_content(content)
    version = kit.item(1, text=text, format=kind, media_type="image/png")
    assert decode_content(version) == content
    assert version.size == (len(content) if isinstance(content, bytes) else len(text.encode("utf-8", "surrogatepass")))


@pytest.mark.parametrize("content", [bytearray(b"\x00\xff"), memoryview(b"\x00\xff")])
async def test_bytes_of_any_kind_are_kept_as_bytes(content: Any) -> None:
    """Not as the text that JSON would make of them."""
    async with rp.open_journal() as journal, open_system() as system:
        memory = await rp.Memory.open(system.spawn(lambda: MemoryActor(journal), "memory"), "run-1")
        item = await memory.store(content)
        assert (item.format, item.size) == ("bytes", 2)
        assert (await memory.retrieve(item.item_id)).content == b"\x00\xff"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": [b"x"]}, r"a JSON value, got b'x' - at `\$.a\[0\]`"),
        ({"a": {1}}, r"a JSON value, got frozenset\(\{1\}\) - at `\$.a`"),
        ({"a": {1: 2}}, r"a text as key, got 1 - at `\$.a`"),
        ({"a": date(2026, 1, 2)}, r"a JSON value, got datetime.date\(2026, 1, 2\) - at `\$.a`"),
        ({"a": ["\ud800", -math.inf]}, r"a JSON value, got -inf - at `\$.a\[1\]`"),
    ],
)
async def test_what_json_would_change_is_refused(value: Any, said: str) -> None:
    """As content and as metadata, and nothing is written."""
    async with rp.open_journal() as journal, open_system() as system:
        memory = await rp.Memory.open(system.spawn(lambda: MemoryActor(journal), "memory"), "run-1")
        with pytest.raises(RecordRefused, match=f"content must be .*{said}"):
            await memory.store(value)
        with pytest.raises(RecordRefused, match=f"metadata must be .*{said}"):
            await memory.store("text", metadata=value)
        assert await memory.query() == []


def test_a_value_is_shaped_as_its_json_and_bytes_are_not() -> None:
    """A line for each part; of bytes there is only all, and what they are."""
    kind, text = encode_content({"claim": "tides", "lines": (3, 9)})
    value = kit.item(1, text=text, format=kind)
    assert shape_item(value).content == {"claim": "tides", "lines": [3, 9]}
    assert shape_item(value).text == '{\n  "claim": "tides",\n  "lines": [\n    3,\n    9\n  ]\n}'
    assert shape_item(value, Transform(kind="filtered", words="claim")).content == '  "claim": "tides",'
    kind, text = encode_content({"half": "\ud800"})
    assert shape_item(kit.item(1, text=text, format=kind)).text == '{\n  "half": "\\ud800"\n}'
    kind, text = encode_content(b"12")
    data = kit.item(1, text=text, format=kind)
    assert (shape_item(data).content, shape_item(data).text) == (b"12", "[bytes of an unknown type, 2 bytes]")
    with pytest.raises(ConfigurationError, match=r"item 'i' is no text .*only transform 'full' applies"):
        shape_item(data, Transform(kind="first_n"))
