"""The preloaded library sees what a real process does to its files, and breaks what it is told to."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from patience import PATIENCE
from repertory.torture import shim
from repertory.torture.children import start
from repertory.torture.disk import Disk
from repertory.torture.trace import Event, Faulted, Marked, Synced, Written, read_trace
from repertory.torture.workloads import Life, live

pytestmark = pytest.mark.skipif(shim.missing() is not None, reason=str(shim.missing()))


def play(folder: Path, *rules: shim.Rule) -> tuple[int, str, list[Event]]:
    """Let writers write; their exit code, their words and their trace."""
    (folder / "root").mkdir()
    life = Life(kind="writers", life=0, seed=1, rules=list(rules))
    with start(live, folder=str(folder / "root"), trace=str(folder / "trace"), life=life) as child:
        assert child.read(PATIENCE)
        return child.wait(), child.output, read_trace(folder / "trace")


def test_the_trace_leads_to_the_files_that_are_there(tmp_path: Path) -> None:
    """Nothing that the process wrote was overlooked: the model ends with the same bytes as the folder."""
    status, words, events = play(tmp_path)
    assert (status, words) == (0, "")
    disk = Disk()
    disk.apply(*events)
    image = disk.image(random.Random(1), "everything")
    there = {str(path.relative_to(tmp_path / "root")): path for path in (tmp_path / "root").rglob("*.db*")}
    assert image.files == {name: path.read_bytes() for name, path in there.items()}
    assert sum(isinstance(event, Synced) for event in events) > 5
    assert sum(isinstance(event, Marked) for event in events) > 5


def test_a_sync_that_fails_stops_the_journal(tmp_path: Path) -> None:
    """The fault arrives as a typed error, and as an event of its own."""
    status, words, events = play(tmp_path, shim.Rule(on="sync", first=12, last=12, action="fail"))
    assert status == 0
    assert words.startswith("FAILED ")
    (at,) = [at for at, event in enumerate(events) if isinstance(event, Synced) and event.lost]
    assert isinstance(events[at - 1], Faulted)


def test_a_death_comes_at_the_call_that_was_named(tmp_path: Path) -> None:
    """So that the same scenario dies at the same place again."""
    status, _, events = play(tmp_path, shim.Rule(on="write", first=20, last=20, action="die before"))
    assert status == -9
    assert sum(isinstance(event, Written) for event in events) == 19
    assert isinstance(events[-1], Faulted)


def test_a_machine_without_a_compiler_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The scenario is then left out, in words."""
    monkeypatch.setenv("PATH", str(tmp_path))
    shim.missing.cache_clear()
    assert shim.missing() == "needs a C compiler: cc, gcc or clang"
    shim.missing.cache_clear()


def test_a_home_that_cannot_be_written_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Here a file stands where the folder for the compiled library should be."""
    (tmp_path / "cache").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shim.missing.cache_clear()
    assert str(tmp_path / "cache") in str(shim.missing())
    shim.missing.cache_clear()
