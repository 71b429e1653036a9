"""What is shown of machines, whose names anybody may choose who can reach the database."""

from __future__ import annotations

import io
import re

from cli_support import EVIL, EVIL_SHOWN
from rich.console import Console

from repertory.cli import output
from repertory.cli.operating import machines_table
from repertory.machines import Machine


def test_the_name_of_a_machine_steers_no_terminal() -> None:
    """Nor do its labels; other programs than ours may have written them."""
    machine = Machine(
        machine_id="id",
        name=EVIL,
        labels=(EVIL,),
        host="host",
        pid=1,
        version=EVIL,
        lease=30.0,
        started_at=1.0,
        left=20.0,
        draining=False,
        lost_at=None,
        runs=2,
    )
    shown = io.StringIO()
    output.show(Console(file=shown, width=1000), machines_table([machine]))
    assert re.split(" {2,}", shown.getvalue().splitlines()[1]) == [
        EVIL_SHOWN,
        "up",
        EVIL_SHOWN,
        "2",
        "20 of 30 s",
        EVIL_SHOWN,
        "id",
    ]
