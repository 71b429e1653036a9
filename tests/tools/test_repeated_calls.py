"""When a call need not be made again."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from repertory.tools import tool
from repertory.tools.repeats import EarlierCall, ToolCallCache, arguments_digest


def _read(key: str) -> str:
    """Read."""
    return key


READ = tool(_read, name="read", effect="pure")
CLOCK = tool(_read, name="clock", effect="pure", repeatable=False)
WRITE = tool(_read, name="write")
NOTE = tool(_read, name="note", effect="transactional")

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def _reordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _reordered(value[key]) for key in reversed(value)}
    return [_reordered(item) for item in value] if isinstance(value, list) else value


@given(st.text(), st.dictionaries(st.text(), _json))
def test_the_digest_does_not_depend_on_the_order_of_keys(name: str, arguments: dict[str, Any]) -> None:
    """At any depth; and it is of fixed length."""
    digest = arguments_digest(name, arguments)
    assert arguments_digest(name, _reordered(arguments)) == digest
    assert len(digest) == 32


@given(st.dictionaries(st.text(), _json), st.dictionaries(st.text(), _json))
def test_different_arguments_have_different_digests(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Numbers, texts and booleans that print alike are not the same."""
    assert (arguments_digest("t", one) == arguments_digest("t", other)) == (repr(_sorted(one)) == repr(_sorted(other)))


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def test_the_tool_is_part_of_the_digest() -> None:
    """The same arguments to another tool are another call; lone surrogates are no obstacle."""
    assert arguments_digest("a", {"x": 1}) != arguments_digest("b", {"x": 1})
    assert arguments_digest("a", {"x": "\ud800", "y": 1}) == arguments_digest("a", {"y": 1, "x": "\ud800"})


def _call(cache: ToolCallCache, made: Any, key: str, number: int, *, ok: bool = True) -> None:
    digest = arguments_digest(made.name, key)
    mark = cache.begin(made)
    cache.finish(made, digest, mark, call_id=f"c{number}", iteration=number, ok=ok)


def test_an_identical_call_is_answered_by_the_earlier_one() -> None:
    """Another key, a failed call, or a tool that said no, is not."""
    cache = ToolCallCache()
    _call(cache, READ, "a", 1)
    _call(cache, READ, "b", 2, ok=False)
    _call(cache, CLOCK, "a", 3)
    assert cache.find(READ, arguments_digest("read", "a")) == EarlierCall("c1", 1)
    assert cache.find(READ, arguments_digest("read", "b")) is None
    assert cache.find(CLOCK, arguments_digest("clock", "a")) is None
    assert EarlierCall("c1", 1).note == "[already called in iteration 1 with the same arguments; this is that result]"


def test_whatever_is_not_pure_makes_all_earlier_results_doubtful() -> None:
    """A write may have changed what a read saw; also while it was under way."""
    digest = arguments_digest("read", "a")
    cache = ToolCallCache()
    _call(cache, READ, "a", 1)
    mark = cache.begin(NOTE)
    assert cache.find(READ, digest) is None

    during = cache.begin(READ)  # begun while the note was being written, ended after it
    cache.finish(NOTE, "n", mark, call_id="c2", iteration=2, ok=True)
    cache.finish(READ, digest, during, call_id="c3", iteration=2, ok=True)
    assert cache.find(READ, digest) is None

    _call(cache, READ, "a", 4)
    assert cache.find(READ, digest) == EarlierCall("c4", 4)


def test_the_cache_is_bounded_and_the_longest_unused_goes_first() -> None:
    """A find counts as a use; 0 remembers nothing."""
    cache = ToolCallCache(max_calls=2)
    _call(cache, READ, "a", 1)
    _call(cache, READ, "b", 2)
    assert cache.find(READ, arguments_digest("read", "a")) is not None
    _call(cache, READ, "c", 3)
    assert [cache.find(READ, arguments_digest("read", key)) is not None for key in "abc"] == [True, False, True]
    off = ToolCallCache(max_calls=0)
    _call(off, READ, "a", 1)
    assert len(off) == 0


def test_clearing_forgets_calls_under_way_too() -> None:
    """For a caller who knows that the world has changed, such as by a message from the user."""
    cache = ToolCallCache()
    _call(cache, READ, "a", 1)
    mark = cache.begin(READ)
    cache.clear()
    cache.finish(READ, "b", mark, call_id="c", iteration=1, ok=True)
    assert len(cache) == 0


class CacheAgainstHistory(RuleBasedStateMachine):
    """The cache agrees with what the whole history of begins and ends says."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = ToolCallCache()
        self.open: list[tuple[Any, str, int, int]] = []
        self.history: list[tuple[str, int]] = []  # (what, number of the call)
        self.number = 0

    @rule(made=st.sampled_from([READ, WRITE]), key=st.sampled_from("ab"))
    def begin(self, made: Any, key: str) -> None:
        """A call starts."""
        self.number += 1
        self.open.append((made, key, self.cache.begin(made), self.number))
        self.history.append((f"{made.name}-begin", self.number))

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """One of the calls under way ends."""
        if not self.open:
            return
        made, key, mark, number = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        digest = arguments_digest(made.name, key)
        self.cache.finish(made, digest, mark, call_id=str(number), iteration=number, ok=True)
        self.history.append((f"{made.name}-{key}", number))

    @invariant()
    def never_stale(self) -> None:
        """A found call began after the last begin or end of a write, and is the newest that ended."""
        writes = [index for index, (what, _) in enumerate(self.history) if what.startswith("write")]
        last_write = writes[-1] if writes else -1
        for key in "ab":
            begun = {number: i for i, (what, number) in enumerate(self.history) if what == "read-begin"}
            fresh = [n for what, n in self.history if what == f"read-{key}" and begun[n] > last_write]
            found = self.cache.find(READ, arguments_digest("read", key))
            assert (found.iteration if found else None) == (fresh[-1] if fresh else None)


TestCacheAgainstHistory = CacheAgainstHistory.TestCase
