"""What the tests of the command line share: a home folder, a made database, and one run of the demo."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from cli_support import Result, invoke, make_database


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder for the whole session; nothing in it."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a run that failed, one below it, and one that was interrupted; see ``cli_support``."""
    path = tmp_path_factory.mktemp("made") / "made.db"
    anyio.run(make_database, path)
    return path


@pytest.fixture(scope="session")
def demo_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home folder that the demo ran in."""
    return tmp_path_factory.mktemp("demo-home")


@pytest.fixture(scope="session")
def demo(demo_home: Path) -> Result:
    """One run of the demo, for everybody to look at."""
    return invoke("demo", "--json", home=demo_home)
