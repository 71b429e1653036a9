"""The application's log, and the redaction of secrets in it; ``repertory._log`` defines the format."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final

from repertory._log import Log, LogEvent

log: Final = Log("repertory")
_ROOMS: Final = ("actors", "journal", "machines", "mcp", "otel", "service", "tools")  # with loggers of their own


def compactor_log(run_id: str) -> Callable[[str, BaseException], None]:
    """Make a function that logs a compactor's error, once per compactor, as each is called for every result."""
    logged: set[str] = set()

    def log_once(compactor: str, error: BaseException) -> None:
        if compactor not in logged:
            logged.add(compactor)
            log(logging.WARNING, "compactor.failed", run=run_id, compactor=compactor, exc_info=error)

    return log_once


@contextmanager
def redacted_log(redact: Callable[[Any], Any]) -> Generator[None]:
    """Keep out of the log, tracebacks included, what ``Journal.redact`` keeps out of the record."""

    def redact_record(record: logging.LogRecord) -> bool:
        if record.exc_info is not None:
            trace = "".join(traceback.format_exception(*record.exc_info))
            if (shown := redact(trace)) is not trace:
                record.exc_info, record.exc_text = None, shown
        vars(record).update({name: redact(value) for name, value in vars(record).items()})
        if isinstance(record.msg, dict):
            record.msg = LogEvent(record.msg)  # redacting may have made a plain dict of it
        return True

    # A filter sees what is logged with its own logger, not what propagates from loggers below it.
    loggers = [logging.getLogger(name) for name in ("repertory", *(f"repertory.{room}" for room in _ROOMS))]
    for logger in loggers:
        logger.addFilter(redact_record)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(redact_record)
