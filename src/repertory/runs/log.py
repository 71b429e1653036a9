"""What happens to runs, in the log of the application; ``repertory._log`` says in what form."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from repertory._log import Log, LogEvent
from repertory.runs.events import AnyEvent

log: Final = Log("repertory")
_ROOMS: Final = ("actors", "journal", "mcp", "service", "tools")  # with loggers of their own
_LEVELS = {
    "RunSpawned": logging.INFO,
    "RunResumed": logging.INFO,
    "StateChanged": logging.INFO,
    "IterationStarted": logging.INFO,  # the size of the context, iteration by iteration
    "ContextEdited": logging.INFO,
    "Alert": logging.WARNING,
    "ModelRetrying": logging.WARNING,
    "SummaryRefused": logging.WARNING,
}
_WORD = re.compile(r"(?<!^)(?=[A-Z])")


def log_event(event: AnyEvent) -> None:
    """Log an event of a run under its dotted name: ``ToolEnded`` is ``tool.ended``."""
    kind = type(event).__name__
    level = _LEVELS.get(kind, logging.DEBUG)
    if log.is_on(level):
        facts = msgspec.to_builtins(event)
        del facts["event"], facts["at"]
        log(level, _WORD.sub(".", kind).lower(), run=facts.pop("run_id"), **facts)


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
