"""The model of a disk that loses power keeps what it must, and loses what it may."""

from __future__ import annotations

import random

from repertory.torture.disk import MODES, SECTOR, Disk, Image
from repertory.torture.trace import Event, FolderMade, Opened, Removed, Renamed, Synced, Truncated, Written

FOLDER = Opened(9, "", True)
OLD, NEW = b"o" * SECTOR * 2, b"n" * SECTOR * 2
MADE = [Opened(1, "a", False), Written(1, 0, OLD), Synced(1), FOLDER, Synced(9)]


def images(*events: Event) -> list[Image]:
    """Many of the states that a cut could leave."""
    disk = Disk()
    disk.apply(*MADE, *events)
    chance = random.Random(1)
    return [disk.image(chance, mode) for mode in MODES for _ in range(60)]


def contents(*events: Event) -> set[bytes | None]:
    """What the file could hold; None where its name is gone."""
    return {image.files.get("a") for image in images(*events)}


def test_what_was_synced_with_its_folder_is_there() -> None:
    """Content and name are durable, so every image has both."""
    assert contents() == {OLD}
    assert contents(Written(1, 0, NEW), Synced(1)) == {NEW}


def test_any_sector_that_was_not_synced_may_be_there_or_not() -> None:
    """Old, new, and each half of it."""
    found = contents(Written(1, 0, NEW))
    assert found == {OLD, NEW, NEW[:SECTOR] + OLD[SECTOR:], OLD[:SECTOR] + NEW[SECTOR:]}
    beside = {content[:SECTOR] for content in contents(Written(1, SECTOR, NEW)) if content is not None}
    assert beside == {OLD[:SECTOR]}


def test_a_sector_that_is_new_to_the_file_may_hold_rubbish() -> None:
    """The size of the file was written, and what was on the disk at that place before."""
    found = contents(Written(1, len(OLD), NEW))
    assert {OLD, OLD + NEW, OLD + NEW[:SECTOR], OLD + bytes(SECTOR) + NEW[SECTOR:]} <= found
    assert len(found) > 6
    assert all(content.startswith(OLD) for content in found if content is not None)


def test_a_size_may_be_the_old_or_the_new_one() -> None:
    """Truncation is unsynced like everything else."""
    sizes = {len(content or b"") for content in contents(Truncated(1, SECTOR))}
    assert sizes == {SECTOR, 2 * SECTOR}
    assert contents(Truncated(1, SECTOR), Synced(1)) == {OLD[:SECTOR]}


def test_a_new_name_is_sure_once_its_folder_was_synced() -> None:
    """A sync of the file alone does not keep its name, nor that of the folder it is in."""
    new = [FolderMade("d"), Opened(2, "d/b", False), Written(2, 0, NEW), Synced(2), Opened(3, "d", True)]
    found = images(*new)
    assert {image.files.get("d/b") for image in found} == {None, NEW}
    assert any(image.folders == ("d",) and "d/b" not in image.files for image in found)
    assert any(not image.folders for image in images(*new, Synced(3)))
    assert {image.files.get("d/b") for image in images(*new, Synced(3), FOLDER, Synced(9))} == {NEW}


def test_a_removed_or_renamed_file_may_be_under_its_old_name() -> None:
    """Until the folder is synced."""
    assert contents(Removed("a")) == {OLD, None}
    assert contents(Removed("a"), Synced(9)) == {None}
    assert {frozenset(image.files) for image in images(Renamed("a", "b"))} == {frozenset("a"), frozenset("b")}


def test_what_a_failed_sync_left_is_not_saved_by_the_next_one() -> None:
    """The kernel calls the pages clean: only writing them again makes them durable."""
    failed = [Written(1, 0, NEW), Synced(1, lost=True)]
    assert {OLD, NEW, NEW[:SECTOR] + OLD[SECTOR:]} <= contents(*failed, Synced(1))
    assert contents(*failed, Written(1, 0, NEW), Synced(1)) == {NEW}
    half = contents(*failed, Written(1, 3, b"x"), Synced(1))
    assert {content[:SECTOR] for content in half if content} == {b"nnnx" + NEW[4:SECTOR]}
    assert len(half) == 2


def test_the_next_process_reads_what_the_last_one_wrote() -> None:
    """A death without a power cut loses nothing that was written, and makes nothing durable."""
    disk = Disk()
    disk.apply(*MADE, Written(1, 0, NEW))
    disk.start_process()
    disk.apply(Opened(7, "a", False), Synced(7))
    assert disk.image(random.Random(1), "nothing").files == {"a": NEW}


def test_after_a_cut_the_image_is_what_is_durable() -> None:
    """What the cut left is the beginning of all that follows."""
    disk = Disk()
    disk.apply(*MADE, Written(1, 0, NEW))
    disk.cut(Image({"a": b"left"}, ()))
    assert disk.image(random.Random(1), "nothing") == disk.image(random.Random(1), "everything")
    assert disk.image(random.Random(1), "nothing").files == {"a": b"left"}
