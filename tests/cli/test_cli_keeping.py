"""``backup``, ``restore`` and ``vacuum`` from the shell, with and without a service."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_support import invoke, settings

import repertory as rp
from patience import PATIENCE, hear


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database with one run."""
    path = tmp_path / "runs.db"

    async def main() -> None:
        async with rp.open_supervisor(path, model="offline") as supervisor:
            run = await supervisor.spawn(rp.Agent("clerk"), "Say something about tides.")
            await run.wait_result()

    rp.run(main)
    return path


def test_a_backup_is_made_and_restored(database: Path, tmp_path: Path) -> None:
    """Into a folder under a name of its own, or under one that was said; what is restored lists the same runs."""
    folder = tmp_path / "backups"
    made = invoke("backup", f"{folder}/", "--db", str(database), "--json", home=tmp_path)
    assert made.code == 0, made.err
    assert Path(made.json["file"]).parent == folder
    assert made.json["records"] == made.json["seq"] > 5
    assert set(made.json) == {"database", "file", "size", "records", "seq"}
    again = invoke("backup", made.json["file"], "--db", str(database), home=tmp_path)
    assert again.code == 2
    assert "nothing is written over" in again.err
    copy = tmp_path / "copy.db"
    restored = invoke("restore", made.json["file"], "--db", str(copy), home=tmp_path)
    assert restored.code == 0, restored.err
    assert "is restored" in restored.err
    listed = [invoke("ps", "-a", "--json", "--db", str(path), home=tmp_path).json for path in (database, copy)]
    assert [run["id"] for run in listed[0]["runs"]] == [run["id"] for run in listed[1]["runs"]]
    assert invoke("restore", made.json["file"], "--db", str(copy), home=tmp_path).code == 2
    nothing = invoke("restore", str(tmp_path / "none.db"), "--db", str(tmp_path / "new.db"), home=tmp_path)
    assert (nothing.code, "there is no backup at" in nothing.err) == (4, True)


def test_a_service_is_backed_up_and_vacuumed_while_it_runs(database: Path, tmp_path: Path) -> None:
    """Neither needs its end; without one the file is written anew."""
    command = [sys.executable, "-m", "repertory", "serve", "--db", str(database), "--socket", str(tmp_path / "s")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as service:
        try:
            hear(service.stderr, "serving")
            made = invoke("backup", str(tmp_path / "b.db"), "--db", str(database), home=tmp_path)
            assert made.code == 0, made.err
            assert "read back and checked" in made.err
            done = invoke("vacuum", "--db", str(database), "--json", home=tmp_path)
            assert done.code == 0, done.err
            assert done.json["after"] <= done.json["before"]
        finally:
            service.terminate()
            service.communicate(timeout=PATIENCE)
    alone = invoke("vacuum", "--db", str(database), home=tmp_path)
    assert alone.code == 0, alone.err
    assert "MiB before" in alone.err


SIGNALLED = """
import os, signal, sys

def hear(event, values):
    if event == "sqlite3.connect" and str(values[0]).endswith(".part"):
        os.kill(os.getpid(), signal.SIGTERM)

sys.addaudithook(hear)
from repertory.cli import main
main()
"""


def test_a_backup_that_a_signal_ends_leaves_nothing_behind(database: Path, tmp_path: Path) -> None:
    """Not the half of a copy either, which takes as much room as the database."""
    words = [sys.executable, "-c", SIGNALLED, "backup", "copy.db", "--db", str(database)]
    done = subprocess.run(
        words, cwd=tmp_path, env=settings(tmp_path), capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "repertory: interrupted before it was done\n")
    assert not [name for name in os.listdir(tmp_path) if "copy.db" in name]
