"""The environment of a child process that must reach no model but the offline one."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def offline_environment(home: Path, **more: str) -> dict[str, str]:
    """This process's environment without keys and settings, with a home folder of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    bin_folder = str(Path(sys.executable).parent)
    return {
        **kept,
        "HOME": str(home),
        "PATH": os.pathsep.join([bin_folder, kept.get("PATH", os.defpath)]),
        "NO_COLOR": "1",
        "COLUMNS": "100",
        **more,
    }
