"""A folder cannot be left, whatever the path says and whatever the disk does meanwhile."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import unicodedata
from collections import Counter
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from repertory.errors import ConfigurationError, ToolFailed, ToolRetry
from repertory.record import open_journal
from repertory.tools import call_tool, file_tools
from repertory.tools.confined import Folder, read_all
from repertory.tools.threads import run_in_thread

SECRET = "the secret outside"


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A root with everything that could lead out of it, and a secret beside it."""
    root = tmp_path / "root"
    (root / "src" / "deep").mkdir(parents=True)
    (root / "src" / "a.py").write_text("inside\n")
    (root / "src" / "deep" / "b.py").write_text("deeper\n")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text(SECRET)
    (tmp_path / "rootling").mkdir()
    (tmp_path / "rootling" / "secret.txt").write_text(SECRET)
    (root / "link.txt").symlink_to(outside / "secret.txt")
    (root / "links").symlink_to(outside)
    (root / "inner").symlink_to(root / "src")
    (root / "loop").symlink_to(root / "loop")
    (root / "dangling").symlink_to(root / "nothing")
    (root / "fd").symlink_to("/proc/self/fd")
    os.mkfifo(root / "fifo")
    return root


def read(folder: Folder, path: str) -> str:
    """What a file holds."""
    with folder.open_file(folder.parts_of(path)) as fd:
        return read_all(fd, 1_000)[0].decode()


@pytest.mark.parametrize(
    "path", ["src/a.py", "./src/a.py", "src//a.py", "src/deep/../a.py", "src/a.py/", "x/../src/a.py"]
)
def test_every_spelling_of_a_path_inside_is_taken(world: Path, path: str) -> None:
    """A path that stays inside is read, however it is written."""
    assert read(Folder(world), path) == "inside\n"


@pytest.mark.parametrize(
    ("path", "fact"),
    [
        ("..", "leads out of the folder"),
        ("../outside/secret.txt", "leads out of the folder"),
        ("../rootling/secret.txt", "leads out of the folder"),
        ("src/../../outside/secret.txt", "leads out of the folder"),
        ("src/./.././../outside", "leads out of the folder"),
        ("links/../../outside/secret.txt", "leads out of the folder"),
        ("/etc/passwd", "is absolute"),
        ("//etc/passwd", "is absolute"),
        ("/", "is absolute"),
        ("link.txt", "is a symbolic link"),
        ("links/secret.txt", "'links' is a symbolic link"),
        ("inner/a.py", "'inner' is a symbolic link"),
        ("loop", "is a symbolic link"),
        ("loop/a", "'loop' is a symbolic link"),
        ("dangling", "is a symbolic link"),
        ("fd/0", "'fd' is a symbolic link"),
        ("fifo", "is not a regular file"),
        ("fifo/x", "is not a folder"),
        ("src", "is a folder"),
        ("", "is a folder"),
        (".", "is a folder"),
        ("src/..", "is a folder"),
        ("src/a.py/b", "is not a folder"),
        ("nothing.py", "there is no 'nothing.py'"),
        ("nothing/at/all", "there is no 'nothing'"),
        ("src/a.py\0.txt", "is not a path"),
        ("\0", "is not a path"),
        ("\ud800", "is not a path"),
        ("x" * 300, "name in it is too long"),
        ("x/" * 3000, "is not a path"),
        ("%2e%2e/outside/secret.txt", "there is no"),
        ("..\\outside\\secret.txt", "there is no"),
        ("~/secret", "there is no"),
        ("src\uff0f..\uff0f..", "there is no"),
        ("\u2025/outside", "there is no"),
    ],
)
def test_no_path_leads_out(world: Path, path: str, fact: str) -> None:
    """Each attempt is refused, with the reason."""
    with pytest.raises((ToolRetry, ToolFailed)) as caught:
        read(Folder(world), path)
    assert fact in str(caught.value)


def test_devices_and_sockets_are_refused_before_they_are_opened(tmp_path: Path) -> None:
    """Opening a device can have effects, and reading one need not end."""
    for path in ("zero", "null", "tty"):
        with pytest.raises(ToolFailed, match="is not a regular file"):
            read(Folder("/dev"), path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        with pytest.raises(ToolFailed, match="is not a regular file"):
            read(Folder(tmp_path), "s")


def test_a_file_is_read_to_its_real_end(tmp_path: Path) -> None:
    """Sizes in ``/proc`` are 0, and the bound holds for what grows."""
    assert "VmRSS" in read_proc("self/status") or "VmRSS" in read_proc(f"{os.getpid()}/status")
    (tmp_path / "big").write_bytes(b"x" * 100)
    with Folder(tmp_path).open_file(("big",)) as fd:
        assert read_all(fd, 99) == (b"x" * 99, True)
    with Folder(tmp_path).open_file(("big",)) as fd:
        assert read_all(fd, 100) == (b"x" * 100, False)


def read_proc(path: str) -> str:
    """A file of ``/proc``; ``self`` is a link and refused."""
    folder = Folder("/proc")
    try:
        with folder.open_file(folder.parts_of(path)) as fd:
            return read_all(fd, 100_000)[0].decode()
    except ToolFailed:
        return ""


def test_a_hard_link_is_a_file_like_any_other(world: Path) -> None:
    """It cannot be told apart; who can make one inside could have copied the file."""
    (world / "hard").hardlink_to(world / "src" / "a.py")
    assert read(Folder(world), "hard") == "inside\n"


def test_what_may_not_be_read_by_the_system_is_said_so(world: Path) -> None:
    """A refusal of the system reaches the model as one, without a path of this machine."""
    with pytest.raises(ToolFailed) as caught, Folder("/proc").open_file((str(os.getpid()), "mem")) as fd:
        read_all(fd, 10)
    assert "cannot be read" in str(caught.value)
    assert "/proc" not in str(caught.value)


def test_the_root_must_be_a_folder(tmp_path: Path) -> None:
    """A wrong definition is found when the tools are made."""
    with pytest.raises(ConfigurationError, match="need a folder"):
        Folder(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="need a folder"):
        Folder(tmp_path / "file")


def test_the_root_may_be_reached_through_a_link_but_not_become_one(world: Path, tmp_path: Path) -> None:
    """The application's own link is resolved once; one that is put in its place later is not followed."""
    alias = tmp_path / "alias"
    alias.symlink_to(world)
    folder = Folder(alias)
    assert read(folder, "src/a.py") == "inside\n"
    world.rename(tmp_path / "moved")
    world.symlink_to(tmp_path / "outside")
    with pytest.raises(ToolFailed, match="the folder that this tool reads cannot be opened"):
        read(folder, "secret.txt")


@pytest.mark.parametrize(
    ("deny", "path"),
    [
        (".env", ".env"),
        (".env", "src/.env"),
        (".ENV", ".env"),
        (".env", ".ENV"),
        ("*.pem", "src/deep/Key.PEM"),
        ("src/deep", "src/deep/b.py"),
        ("src/deep/", "src/deep/b.py"),
        ("SRC/deep", "src/deep/b.py"),
        ("src/*/b.py", "src/deep/b.py"),
        ("**/b.*", "src/deep/b.py"),
        (unicodedata.normalize("NFC", "é.txt"), unicodedata.normalize("NFD", "é.txt")),
        ("ß.txt", "SS.txt"),
        (".env", "src/../.env"),
    ],
)
def test_what_is_denied_is_denied_under_every_spelling(world: Path, deny: str, path: str) -> None:
    """Case and Unicode form do not matter, because on some file systems they do not."""
    real = world / path
    real.parent.mkdir(parents=True, exist_ok=True)
    real.write_text(SECRET)
    with pytest.raises(ToolFailed, match="may not be read"):
        read(Folder(world, deny=[deny]), path)
    assert read(Folder(world, allow=[deny]), path) == SECRET
    listed = [found.parts for found in Folder(world, deny=[deny]).walk((), Counter())]
    assert real.relative_to(world).parts not in listed
    assert ("src", "a.py") in listed


@pytest.mark.parametrize("rule", ["", ".", "./", "..", "src/../src"])
def test_a_rule_that_names_nothing_is_refused(world: Path, rule: str) -> None:
    """A setting that is empty would allow every secret, and one with ".." would deny nothing."""
    for option in ("deny", "allow"):
        with pytest.raises(ConfigurationError, match=f"file tools: {option}: .* is neither a name nor a path"):
            Folder(world, **{option: [rule]})  # type: ignore[arg-type]


def test_an_absolute_path_cannot_be_allowed(world: Path) -> None:
    """It would have no effect: secrets are known by their names below the folder."""
    with pytest.raises(ConfigurationError, match="neither a name nor a path from the folder"):
        Folder(world, allow=[str(world / "src" / "key.pem")])


def test_an_absolute_denial_holds_under_every_name(world: Path) -> None:
    """The thing itself is recognised: a hard link to it and a folder renamed are the same thing."""
    (world / "state").mkdir()
    (world / "state" / "run.bin").write_text(SECRET)
    (world / "key").write_text(SECRET)
    folder = Folder(world, deny=[world / "state", world / "key", world / "not there"])
    (world / "copy").hardlink_to(world / "key")
    for path in ("state/run.bin", "key", "copy"):
        with pytest.raises(ToolFailed):
            read(folder, path)
    skipped: Counter[str] = Counter()
    assert ("state", "run.bin") not in [found.parts for found in folder.walk((), skipped)]
    assert skipped == {"unreadable folders": 1}


def test_a_database_is_never_opened(world: Path) -> None:
    """Closing any descriptor of a SQLite file drops the locks that this process holds on it."""
    for name in ("run.db", "run.db-wal", "RUN.SQLITE3", "x.sqlite-shm", "mine-wal", "mine-shm", "mine"):
        (world / name).write_text("SQLite format 3")
        with pytest.raises(ToolFailed, match="is a database"):
            read(Folder(world), name)


def test_a_file_with_a_lock_beside_it_is_no_database(world: Path) -> None:
    """Package managers name their locks after the file that they were made from."""
    for name in ("Pipfile", "Gemfile", "x" * 250):
        (world / name).write_text("packages")
        (world / f"{name}.lock").write_text("versions")
        assert read(Folder(world), name) == "packages"


async def test_the_journal_of_this_process_is_not_touched(tmp_path: Path) -> None:
    """A search over the folder that holds an open journal leaves SQLite's locks on it in place, whatever its name."""

    def locks() -> int:
        ours = f" {os.getpid()} ", f":{(tmp_path / 'record').stat().st_ino} "
        return sum(all(words in line for words in ours) for line in Path("/proc/locks").read_text().splitlines())

    async with open_journal(tmp_path / "record"):
        held = locks()
        assert held > 0
        for tool in file_tools(tmp_path)[1:]:
            await call_tool(tool, {"pattern": "SQLite"} if tool.name == "search_files" else {"path": "record"})
        assert locks() == held
        (tmp_path / "record").open().close()
        assert locks() < held, "negative control: one careless open does drop them"


def test_a_walk_is_sorted_and_leaves_out_links_caches_and_version_control(world: Path) -> None:
    """Only regular files, in the order of their paths, the same every time."""
    for name in (".git/config", "src/__pycache__/a.pyc", "node_modules/x.js", "src/A.py", "b/z", "b.txt", "z"):
        (world / name).parent.mkdir(exist_ok=True)
        (world / name).write_text("")
    found = [file.path for file in Folder(world).walk((), Counter())]
    assert found == ["b/z", "b.txt", "src/A.py", "src/a.py", "src/deep/b.py", "z"]
    assert [file.path for file in Folder(world).walk(("src", "deep"), Counter())] == ["src/deep/b.py"]
    assert [file.path for file in Folder(world).walk(("src", "a.py"), Counter())] == ["src/a.py"]


def test_a_folder_that_cannot_be_listed_does_not_end_a_walk() -> None:
    """Some folders may be opened and not be listed, such as those of another user's process in ``/proc``."""
    skipped: Counter[str] = Counter()
    assert ("status",) in [found.parts for found in Folder("/proc/1").walk((), skipped)]
    assert skipped["unreadable folders"] > 0


def test_a_bottomless_folder_is_walked_to_a_bound(tmp_path: Path) -> None:
    """What lies deeper than 64 folders is counted, not followed until the descriptors run out."""
    here = tmp_path
    for _ in range(70):
        here = here / "d"
    here.mkdir(parents=True)
    (here / "f").write_text("")
    skipped: Counter[str] = Counter()
    assert list(Folder(tmp_path).walk((), skipped)) == []
    assert skipped == {"unreadable folders": 1}


async def test_a_walk_that_nobody_waits_for_ends(world: Path) -> None:
    """A cancelled search stops at the next file instead of reading on for minutes."""
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    met: list[str] = []

    def work() -> None:
        for found in Folder(world).walk((), Counter()):
            met.append(found.path)
            begun.set()
            go_on.wait()
        ended.set()

    async with anyio.create_task_group() as group:
        group.start_soon(run_in_thread, work)
        await anyio.to_thread.run_sync(begun.wait)
        group.cancel_scope.cancel()
    go_on.set()
    assert await anyio.to_thread.run_sync(ended.wait, 5)
    assert met == ["src/a.py"]


def test_a_name_cannot_forge_a_line_of_output(tmp_path: Path) -> None:
    """Control characters and bytes that are no text are replaced where a path is printed."""
    (tmp_path / "a\nsrc\x1b[31m:1: x").write_text("")
    (tmp_path / os.fsdecode(b"b\xff")).write_text("")
    assert [file.path for file in Folder(tmp_path).walk((), Counter())] == ["a�src�[31m:1: x", "b�"]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("at 10.00\u202fAM.txt", "at 10.00\u202fAM.txt"),
        ("at 10.00\u202fAM.txt", "at 10.00 AM.txt"),
        ("報告\u3000一.txt", "報告\u3000一.txt"),
        (os.fsdecode(b"caf\xe9.txt"), "caf�.txt"),
        ("👩\u200d👧.txt", "👩�👧.txt"),
        ("a\nb", "a�b"),
        (unicodedata.normalize("NFD", "é.txt"), unicodedata.normalize("NFC", "é.txt")),
    ],
)
def test_a_file_is_found_by_the_name_that_is_shown(tmp_path: Path, name: str, shown: str) -> None:
    """Models copy names from a listing, and write a plain space for any space."""
    for path in (tmp_path / name / "inner", tmp_path / "outer" / name):
        path.parent.mkdir()
        path.write_text("here")
    folder = Folder(tmp_path)
    for written in (f"{shown}/inner", f"outer/{shown}"):
        assert read(folder, written) == "here"
        (found,) = folder.walk(folder.parts_of(written), Counter())
        assert name in found.parts


def test_a_name_that_only_looks_the_same_is_no_way_around_a_rule(tmp_path: Path) -> None:
    """What is denied, secret or one of two is not read under another spelling either."""
    for name in ("top\u202fsecret", ".env", "one\u00a0file", "one\u202ffile"):
        (tmp_path / name).write_text(SECRET)
    folder = Folder(tmp_path, deny=["top\u202fsecret"])
    for written in ("top secret", "\uff0eenv", "one file"):
        with pytest.raises((ToolRetry, ToolFailed)):
            read(folder, written)
    assert read(Folder(tmp_path), "top secret") == SECRET


SWAPPER = """
import os, sys
from pathlib import Path
top = Path(sys.argv[1])
world, spare, link = top / "root", top / "spare", top / "link"
swapped = world / "swapped"
print("ready", flush=True)
while True:
    link.symlink_to(top / "outside")
    os.rename(world / "src", spare)
    os.rename(link, world / "src")
    os.unlink(world / "src")
    os.rename(spare, world / "src")
    link.symlink_to(top / "outside" / "secret.txt")
    os.rename(link, swapped)
    os.unlink(swapped)
    os.mkfifo(swapped)
    os.unlink(swapped)
    swapped.write_text("inside\\n")
"""


def test_a_link_swapped_in_is_never_followed(world: Path, tmp_path: Path) -> None:
    """Another process turns a folder and a file into links and back while both are read: no read leaves the root.

    The control reads the same paths without confinement, until the very same swaps have led it out five times.
    """
    folder = Folder(world)
    (tmp_path / "outside" / "a.py").write_text(SECRET)
    confined: Counter[str] = Counter()
    naive: Counter[str] = Counter()
    with subprocess.Popen([sys.executable, "-c", SWAPPER, tmp_path], stdout=subprocess.PIPE) as swapper:
        assert swapper.stdout is not None
        swapper.stdout.readline()
        try:
            turn = 0
            while turn < 10_000 or (naive[SECRET] < 5 and turn < 1_000_000):
                turn += 1
                try:
                    confined[read(folder, "src/a.py" if turn % 2 else "swapped")] += 1
                except (ToolRetry, ToolFailed) as error:
                    confined[type(error).__name__] += 1
                with contextlib.suppress(OSError):
                    naive[(world / "src" / "a.py").read_text()] += 1
                if turn % 100 == 0:
                    assert "secret.txt" not in [found.parts[-1] for found in folder.walk((), Counter())]
        finally:
            swapper.kill()
    assert set(confined) <= {"inside\n", "", "ToolRetry", "ToolFailed"}  # which of them came up is chance
    assert confined["inside\n"]
    assert naive[SECRET] >= 5


def test_a_naive_reader_would_have_been_led_out(world: Path) -> None:
    """Negative control: the same paths do lead out without the confinement."""
    assert (world / "links" / "secret.txt").read_text() == SECRET
    assert (world / "../outside/secret.txt").read_text() == SECRET


_pieces = st.sampled_from(
    ["..", ".", "", "src", "deep", "links", "link.txt", "a.py", "fd", "fifo", "loop", "inner", "~", "\0"]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(_pieces | st.text(max_size=4), max_size=8), st.sampled_from(["", "/", "./"]))
def test_no_combination_of_names_leads_out(world: Path, pieces: list[str], before: str) -> None:
    """Whatever is put together, the answer is a file of the root or a refusal."""
    try:
        text = read(Folder(world), before + "/".join(pieces))
    except (ToolRetry, ToolFailed):
        return
    assert text in ("inside\n", "deeper\n")
