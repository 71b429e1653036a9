"""Stored contents go when their time is over, also in a process that lives for months."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio

from repertory.agents.log import log_failed_cleaning
from repertory.errors import JournalError
from repertory.record.journal import Journal

EVERY: Final = 300.0  # seconds; what is kept for an hour by default goes within five minutes of it


async def clean_for_ever(journal: Journal, clock: Callable[[], float]) -> None:
    """Clean up now and then until cancelled; ``clock`` gives seconds since 1970."""
    while True:
        await anyio.sleep(EVERY)
        try:
            await journal.delete_expired_contents(clock())
        except JournalError as error:  # runs that write will hear of it themselves; to clean up is not worth one
            log_failed_cleaning(error)
