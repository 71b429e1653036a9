"""``repertory webhooks`` for a person."""

from __future__ import annotations

from pathlib import Path

from cli_support import invoke

import repertory as rp
from repertory.record.records import WebhookTried


def test_a_narrow_terminal_shows_why_a_delivery_failed(tmp_path: Path) -> None:
    """The reason stands before the address, and both have room beside a whole id on 80 columns."""
    path = tmp_path / "runs.db"
    tried = WebhookTried(
        url="https://hooks.example/runs",
        run_id="run-01m84kzxcd-39se41",
        change=32,
        outcome="delivered",
        at=0.0,
        attempt=1,
        error="refused",
    )

    async def main() -> None:
        async with rp.open_journal(path) as journal:
            await journal.submit([tried]).wait()

    rp.run(main)
    listed = invoke("webhooks", "ls", "--db", path, home=tmp_path, env={"COLUMNS": "80"})
    assert "run-01m84kzxcd-39se41" in listed.out
    assert "refused " in listed.out
    assert max(map(len, listed.out.splitlines())) <= 80
