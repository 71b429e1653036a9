"""What the tests of the service share."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose name is short enough for a unix socket."""
    with tempfile.TemporaryDirectory(prefix="rp", ignore_cleanup_errors=True) as folder:
        yield Path(folder).resolve()
