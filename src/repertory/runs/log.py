"""The log of the application, and what is kept out of it; ``repertory._log`` says in what form it is written."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final

from repertory._log import Log, LogEvent

log: Final = Log("repertory")
_ROOMS: Final = ("actors", "journal", "mcp", "service", "tools")  # with loggers of their own


def compactor_log(run_id: str) -> Callable[[str, Exception], None]:
    """Make what logs that a compactor raised: once for each, as it is asked about every result."""
    told: set[str] = set()

    def tell(compactor: str, error: Exception) -> None:
        if compactor not in told:
            told.add(compactor)
            log(logging.WARNING, "compactor.failed", run=run_id, compactor=compactor, exc_info=error)

    return tell


@contextmanager
def redacted_log(redact: Callable[[Any], Any]) -> Generator[None]:
    """Keep out of the log, tracebacks included, what ``Journal.redact`` keeps out of the record."""

    def look(record: logging.LogRecord) -> bool:
        if record.exc_info is not None:
            trace = "".join(traceback.format_exception(*record.exc_info))
            if (shown := redact(trace)) is not trace:
                record.exc_info, record.exc_text = None, shown
        vars(record).update({name: redact(value) for name, value in vars(record).items()})
        if isinstance(record.msg, dict):
            record.msg = LogEvent(record.msg)  # also where something was replaced in it
        return True

    # A filter sees what is logged with its own logger, not what comes up from those below it.
    loggers = [logging.getLogger(name) for name in ("repertory", *(f"repertory.{room}" for room in _ROOMS))]
    for logger in loggers:
        logger.addFilter(look)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(look)
