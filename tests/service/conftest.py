"""What the tests of the service share."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from browser import Browser
from service_commands import at_terminal  # noqa: F401 - a fixture


@pytest.fixture(scope="session")
def opened() -> Iterator[Browser]:
    """One headless browser for all tests: it takes a second to start."""
    opened = Browser()
    yield opened
    opened.close()


@pytest.fixture
def browser(opened: Browser) -> Browser:
    """The browser at its usual size, without what the test before left in it."""
    opened.call("Network.clearBrowserCookies")
    opened.open("about:blank")
    opened.resize(1280)
    opened.problems.clear()
    return opened


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose name is short enough for a unix socket."""
    with tempfile.TemporaryDirectory(prefix="rp", ignore_cleanup_errors=True) as folder:
        yield Path(folder).resolve()
