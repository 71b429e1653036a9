"""What happens to runs, as log events: dotted names and key-values, through structlog into ``logging``.

The logger is ``repertory``. It says nothing until the application turns it on, as libraries should::

    logging.basicConfig(level=logging.INFO)
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from repertory.agents.events import AnyEvent

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

_STANDARD = logging.getLogger("repertory")
_STANDARD.addHandler(logging.NullHandler())  # else Python itself writes warnings to standard error
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


@cache
def _logger() -> BoundLogger:
    import structlog  # takes a tenth of a second, so only once somebody listens

    logger: BoundLogger = structlog.wrap_logger(
        _STANDARD,
        processors=[structlog.stdlib.render_to_log_kwargs],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return logger


def log(level: int, name: str, /, **facts: Any) -> None:
    """Log something under its dotted name; an error as ``exc_info``."""
    if _STANDARD.isEnabledFor(level):
        _logger().log(level, name, **facts)


def log_event(event: AnyEvent) -> None:
    """Log an event of a run under its dotted name: ``ToolEnded`` is ``tool.ended``."""
    kind = type(event).__name__
    level = _LEVELS.get(kind, logging.DEBUG)
    if _STANDARD.isEnabledFor(level):
        facts = msgspec.structs.asdict(event)
        del facts["at"]
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
        return True

    # A filter sees what is logged with its own logger, not what comes up from those below it.
    loggers = [_STANDARD, *(_STANDARD.getChild(room) for room in ("actors", "journal", "service", "tools"))]
    for logger in loggers:
        logger.addFilter(look)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(look)
