"""Payloads as documents: paths, differences, conflicts; and a model of many writers that commit in any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import repertory as rp
from repertory._choices import show
from repertory._json_values import ValueType
from repertory.errors import ConfigurationError, PayloadInvalid
from repertory.memory.documents import changed, changes_between, collide, document_of, is_same, parts_of, resolve
from repertory.memory.payload import Payload, PayloadState
from repertory.record.memory_records import PayloadChange, PayloadChanged
from repertory.record.records import ContentStored

NAMES = st.sampled_from("abc")
LEAVES = st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["", "x"])
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3))
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=3)


@given(DOCUMENTS, DOCUMENTS)
def test_the_changes_between_two_documents_make_one_of_the_other(old: Any, new: Any) -> None:
    """Made one after the other, whatever differs; none where nothing does; and the old one stays as it was."""
    before = msgspec.json.encode(old)
    changes = [*changes_between(old, new)]
    assert is_same(reduce(changed, changes, old), new)
    assert is_same(changed(old, *changes), new)
    assert (changes == []) == is_same(old, new)
    assert msgspec.json.encode(old) == before


@given(DOCUMENTS, DOCUMENTS, DOCUMENTS)
def test_changes_that_do_not_collide_can_be_made_in_either_order(base: Any, one: Any, other: Any) -> None:
    """What two made of the same version then says the same, but for the order of what both appended."""
    first, second = [*changes_between(base, one)], [*changes_between(base, other)]
    if any(collide(a, b) for a in first for b in second):
        return

    def sort_lists(value: Any) -> Any:
        if isinstance(value, list):
            return sorted((sort_lists(each) for each in value), key=repr)
        return {name: sort_lists(each) for name, each in value.items()} if isinstance(value, dict) else value

    this = reduce(changed, [*first, *second], base)
    that = reduce(changed, [*second, *first], base)
    assert is_same(sort_lists(dict(sorted(this.items()))), sort_lists(dict(sorted(that.items()))))


@given(st.lists(st.tuples(st.integers(0, 5), DOCUMENTS), min_size=1, max_size=6))
def test_what_writers_commit_is_in_the_document_or_in_a_conflict(writes: list[tuple[int, Any]]) -> None:
    """Drafts of any age commit in any order: nothing is lost, and the record alone makes the same document."""
    state = PayloadState(ValueType(dict[str, Any], "test"))
    records: list[PayloadChanged] = [state.begin({}, run_id="r", at=0.0)]
    state.adopt(records[0])
    drafts = [Payload.draft(state)]
    for age, wanted in writes:
        draft = drafts[age % len(drafts)]
        draft.replace(wanted)
        asked = [change for lot in draft.staged("tool") for change in lot.changes]
        made = state.commit(draft.staged("tool"), run_id="r", at=1.0)
        for record in made:
            state.adopt(record)
            records.append(record)
        kept = [change for record in made for change in record.changes]
        lost = [conflict.change for record in made for conflict in record.conflicts]
        assert all(change in kept or change in lost or state_has(state, change) for change in asked)
        draft.discard()
        drafts.append(Payload.draft(state))
    assert is_same(document_of(records), state.document)
    assert [record.version for record in records] == list(range(1, len(records) + 1))


def test_a_text_is_not_taken_for_a_list_of_its_characters() -> None:
    """Who wanted "z" to be the first item of a list that has become the text "zed" is in conflict, and not content."""
    state = PayloadState(ValueType(dict[str, Any], "test"))
    state.adopt(state.begin({"found": ["a", "b"]}, run_id="r", at=0.0))
    first, second = Payload.draft(state), Payload.draft(state)
    first.set("found", "zed")
    second.set("found.0", "z")
    for draft in (first, second):
        (made,) = state.commit(draft.staged("tool"), run_id="r", at=1.0)
        state.adopt(made)
    assert state.document == {"found": "zed"}
    assert [conflict.change.path for conflict in made.conflicts] == [("found", 0)]


def state_has(state: PayloadState, change: PayloadChange) -> bool:
    """Whether what a change wanted is so, as somebody else had done the same before."""
    draft = Payload.draft(state)
    try:
        found = draft.get(change.path)
    except PayloadInvalid:
        return change.op == "remove"
    return is_same(found, change.value)


@pytest.mark.parametrize("path", ["a..b", ".", ("a", ""), 3, None, ("a", 1.5), {"a"}, ("a", 10**5_000)], ids=show)
def test_what_is_no_path_is_refused(path: Any) -> None:
    """With what one looks like."""
    with pytest.raises(PayloadInvalid, match=r"a path in a payload is 'author\.name'"):
        parts_of(path)


def test_a_path_leads_through_fields_mappings_and_lists() -> None:
    """Numbers are items of lists and names of mappings; a name with a dot is given in parts."""
    document = {"a": [{"b": 1}], "m": {"0": "zero", "x.y": 2}}
    assert resolve(document, "a.0.b") == ("a", 0, "b")
    assert resolve(document, ("m", 0)) == ("m", "0")
    assert resolve(document, ("m", "x.y")) == ("m", "x.y")
    assert resolve(document, "") == ()


class Strict(msgspec.Struct, omit_defaults=True, rename="camel"):
    """Fields that JSON calls otherwise, and may leave out."""

    first_name: str = "ann"
    marks: list[int] = msgspec.field(default_factory=list[int])


@pytest.mark.parametrize("path", ["x" * 100_000, ("a", "x" * 100_000), ("l", "0" * 100_000), ("n", "x" * 100_000)])
def test_an_endless_path_is_refused_in_few_words(path: Any) -> None:
    """What a tool got wrong is told to its model."""
    payload = Payload({"a": {}, "l": [], "n": 1}, dict[str, Any])
    refused: list[Callable[[], object]] = [
        lambda: payload.get(path),
        lambda: payload.remove(path),
        lambda: payload.append(path, object()),
        lambda: payload.set(path, object()),
    ]
    for refuse in refused:
        with pytest.raises(PayloadInvalid) as caught:
            refuse()
        assert len(str(caught.value)) < 1_000


def test_fields_have_the_names_that_json_has_also_where_it_leaves_them_out() -> None:
    """A default is there to be read and set; another name is refused with those there are."""
    payload = Payload(Strict())
    assert payload.get("firstName") == "ann"
    payload.append("marks", 1, 2)
    payload.set("firstName", "ann")
    assert payload.value == Strict(marks=[1, 2])
    with pytest.raises(PayloadInvalid, match=r"Strict has no 'first_name' at \$; there is firstName, marks"):
        payload.set("first_name", "bob")


@pytest.mark.parametrize("value", [float("nan"), object(), {1: object()}, b"\xff" * 3])
def test_what_json_cannot_say_is_refused_when_it_is_said(value: Any) -> None:
    """Not when it is written, with the outcome of a call that has done its work; bytes are base 64."""
    payload = Payload({"a": 1}, dict[str, Any])
    if isinstance(value, bytes):
        payload.set("a", value)
        assert payload.get("a") == "////"
        return
    with pytest.raises(PayloadInvalid):
        payload.set("a", value)
    assert payload.value == {"a": 1}


def test_only_lists_grow_and_only_names_are_removed() -> None:
    """The message says what is there; a field that the type has not is no list that begins."""
    with pytest.raises(PayloadInvalid, match=r"Strict has no 'notes' at \$; there is firstName, marks"):
        Payload(Strict()).append("notes", 1)
    payload = Payload({"a": 1, "b": [1]}, dict[str, Any])
    with pytest.raises(PayloadInvalid, match=r"has 1 at \$\.a, and only a list grows"):
        payload.append("a", 2)
    with pytest.raises(PayloadInvalid, match=r"\$\.b\[0\] of the payload cannot be removed; set the list without it"):
        payload.remove("b.0")
    payload.remove("a")
    assert payload.value == {"b": [1]}


def test_a_field_of_the_type_is_set_and_not_removed() -> None:
    """It would come back as its default, which is not what was said."""
    payload = Payload(Strict())
    with pytest.raises(PayloadInvalid, match=r"\$\.firstName is a field of Strict, which cannot be removed; set it"):
        payload.remove("firstName")


def test_what_is_nested_too_deep_is_refused_when_it_is_said() -> None:
    """Wherever it comes from: a stack that is nearly full must not decide what becomes of a tool's outcome."""
    deep: Any = "bottom"
    for _ in range(101):
        deep = [deep]
    payload = Payload({"a": 1}, dict[str, Any])
    with pytest.raises(PayloadInvalid, match=r"nested more than 100 levels deep - at `\$\.a`"):
        payload.set("a", deep)
    payload.set("a", deep[0][0][0])
    with pytest.raises(PayloadInvalid, match="nested more than 100 levels deep"):
        payload.replace({"a": deep})


def cite(state: PayloadState, number: int) -> list[PayloadChanged]:
    """Store a content of one address."""
    stored = ContentStored(
        content_id=f"c{number}",
        run_id="r",
        source_type="web",
        source="t",
        body="x" * number,
        at=1.0,
        url="https://a",
    )
    made = state.commit([], run_id="r", at=1.0, stored=stored)
    for record in made:
        state.adopt(record)
    return made


class Loose(TypedDict, total=False):
    """A mapping that may do without sources."""

    sources: list[rp.SourceRecord]


@pytest.mark.parametrize(
    ("kind", "first"),
    [
        (Loose, {}),
        (msgspec.defstruct("Later", [("sources", list[rp.SourceRecord] | None, None)]), {}),
        (msgspec.defstruct("Optionally", [("sources", Sequence[rp.SourceRecord] | None, None)]), {}),
    ],
)
def test_sources_are_kept_where_there_are_none_yet(kind: Any, first: Any) -> None:
    """The first one makes the list; what a sub-agent reads comes back to it."""
    state = PayloadState(ValueType(kind, "test"), rp.PayloadScope(write=("sources",)))
    state.adopt(state.begin(first, run_id="r", at=0.0))
    assert state.brings_back() == []
    cite(state, 1)
    cite(state, 2)
    (source,) = state.document["sources"]
    assert (source["url"], source["content_id"], source["length"]) == ("https://a", "c2", 2)
    (change,) = state.brings_back()
    assert change.path == ("sources",)


def test_what_is_no_list_of_sources_is_left_alone() -> None:
    """A mapping of them is the application's own."""
    state = PayloadState(ValueType(msgspec.defstruct("Own", [("sources", dict[str, rp.SourceRecord], {})]), "test"))
    state.adopt(state.begin({}, run_id="r", at=0.0))
    assert cite(state, 1) == []


@pytest.mark.parametrize("paths", ["topic", ("",), (1,)])
def test_a_scope_of_what_are_no_paths_is_refused(paths: Any) -> None:
    """Above all a text that stands where several were meant."""
    with pytest.raises(ConfigurationError, match=r"payload_scope\.read must be paths, such as \('author\.name',\)"):
        rp.PayloadScope(read=paths)


def test_a_payload_that_has_no_fields_is_refused() -> None:
    """A list or a number has no places to name."""
    with pytest.raises(PayloadInvalid, match="a payload has fields"):
        Payload([1, 2])
