"""Snapshots: lists that end where they were taken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import journal_kit as kit
from repertory.record import Snapshot

INDEX = st.integers(-12, 12) | st.none()


@given(st.integers(0, 8), st.integers(0, 3), INDEX, INDEX, st.sampled_from([None, 1, 2, -1, -2]))
def test_a_snapshot_is_sliced_like_a_list_that_ends_there(
    length: int, beyond: int, start: int | None, stop: int | None, step: int | None
) -> None:
    """Whatever follows in the shared list is never reached, from either end and in either direction."""
    entries = [kit.entry(position) for position in range(length + beyond)]
    snapshot = Snapshot("r", entries, length)
    own = entries[:length]
    assert snapshot[start:stop:step] == own[start:stop:step]
    assert list(snapshot) == own
    assert list(reversed(snapshot)) == own[::-1]
    assert len(snapshot) == snapshot.position == length
    for index in range(-length - 1, length + beyond + 1):
        if -length <= index < length:
            assert snapshot[index] is own[index]
        else:
            with pytest.raises(IndexError, match="not within"):
                snapshot[index]


def test_a_later_append_is_not_in_an_earlier_snapshot() -> None:
    """The list grows under the snapshot, and under an iteration that is half-way."""
    entries = [kit.entry(0), kit.entry(1)]
    snapshot = Snapshot("r", entries, 2)
    steps = iter(snapshot)
    next(steps)
    entries.append(kit.entry(2))
    assert [entry.position for entry in steps] == [1]
    assert kit.entry(2) not in snapshot
    assert snapshot[1:] == [kit.entry(1)]


def test_snapshots_are_equal_when_they_say_the_same() -> None:
    """By value: the run, the length and the entries."""
    one = Snapshot("r", [kit.entry(0)])
    assert one == Snapshot("r", [kit.entry(0)]) == Snapshot("r", [kit.entry(0), kit.entry(1)], 1)
    assert hash(one) == hash(Snapshot("r", [kit.entry(0)]))
    assert one != Snapshot("q", [kit.entry(0)])
    assert one != Snapshot("r", [kit.entry(0, "other")])
    assert one != Snapshot("r")
    assert one != [kit.entry(0)]
    assert repr(one) == "<Snapshot of r at position 1>"
