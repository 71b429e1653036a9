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

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

    from repertory.errors import JournalUnreadable

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


def log_event(kind: str, /, **facts: Any) -> None:
    """Log an event of a run under its dotted name: ``ToolEnded`` is ``tool.ended``."""
    level = _LEVELS.get(kind, logging.DEBUG)
    if _STANDARD.isEnabledFor(level):
        _logger().log(level, _WORD.sub(".", kind).lower(), **facts)


def log_crash(run_id: str, error: BaseException | None) -> None:
    """Log that a run's actor crashed for good."""
    _logger().error("run.crashed", run=run_id, exc_info=error)


def log_agent_changed(run_id: str, agent: str, *, was: str, now: str) -> None:
    """Log that a run goes on with another definition of its agent than the one it was begun with."""
    _logger().warning("agent.changed", run=run_id, agent=agent, was=was, now=now)


def log_failed_cleaning(error: Exception) -> None:
    """Log that stored contents whose time is over could not be cleaned up."""
    _logger().warning("contents.cleaning.failed", exc_info=error)


def log_unreadable(run_id: str, error: JournalUnreadable) -> None:
    """Log that a run's record is damaged, where nobody waits for that run."""
    _logger().error("run.unreadable", run=run_id, exc_info=error)


def log_close_failed(model: str, error: Exception) -> None:
    """Log that a model could not be closed."""
    _logger().warning("model.close.failed", model=model, exc_info=error)


def log_listener_error(run_id: str, kind: str, error: Exception) -> None:
    """Log that an application's lifecycle listener raised."""
    _logger().warning("listener.failed", run=run_id, kind=kind, exc_info=error)


def compactor_log(run_id: str) -> Callable[[str, Exception], None]:
    """Make what logs that a compactor raised: once for each, as it is asked about every result."""
    told: set[str] = set()

    def log(compactor: str, error: Exception) -> None:
        if compactor not in told:
            told.add(compactor)
            _logger().warning("compactor.failed", run=run_id, compactor=compactor, exc_info=error)

    return log


def log_dead_letter(letter: object) -> None:
    """Log a message that nobody handled."""
    if _STANDARD.isEnabledFor(logging.DEBUG):
        _logger().debug("actor.dead.letter", letter=repr(letter)[:500])


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
