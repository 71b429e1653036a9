"""Log events: a dotted name with facts, which appear in the line for people and as fields for programs.

::

    logging.basicConfig(level=logging.INFO)

shows ``INFO:repertory:state.changed run=run-1 agent=clerk state=done``. Handlers that write fields, for instance as
JSON, find the facts on the log record, with the name as ``event``. structlog's ``ProcessorFormatter`` treats such a
record as one of its own: an ``event`` with key-values. The facts include what the application has bound with
``structlog.contextvars``.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import MutableMapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

_LONGEST: Final = 200  # characters of a fact in a line; its field has the whole value
_BARE: Final = re.compile(r"[^\s\"'=\\\x00-\x1f\x7f]+")
_TAKEN: Final = {*vars(logging.makeLogRecord({})), "message", "asctime"}  # logging refuses fields with these names
# Stack frames from logging up to the caller: three of structlog, and ``Log.__call__``.
_FRAMES: Final = 5

logging.getLogger("repertory").addHandler(logging.NullHandler())  # otherwise Python writes warnings to standard error


class LogEvent(dict[str, Any]):
    """The facts of a log event, with its name as ``event``; its text is one line."""

    def __str__(self) -> str:
        facts = (f"{name}={_show(value)}" for name, value in self.items() if value is not None and name != "event")
        return " ".join([str(self["event"]), *facts])


class Log:
    """Logs events under one logger, and costs next to nothing if its level is off.

    Args:
        name: The logger's name, "repertory" or one below it.
    """

    def __init__(self, name: str) -> None:
        self._standard = logging.getLogger(name)

    def __call__(self, level: int, event: str, /, *, exc_info: BaseException | None = None, **facts: Any) -> None:
        """Log an event under its dotted name; an error with its traceback."""
        if self._standard.isEnabledFor(level):
            self._structured.bind(exc_info=exc_info, **facts).log(level, event)

    def is_on(self, level: int) -> bool:
        """Whether the level is enabled."""
        return self._standard.isEnabledFor(level)

    @cached_property
    def _structured(self) -> BoundLogger:
        import structlog  # takes a tenth of a second, so only when something is logged

        logger: BoundLogger = structlog.wrap_logger(
            self._standard,
            processors=[structlog.contextvars.merge_contextvars, _to_record],
            wrapper_class=structlog.stdlib.BoundLogger,
        )
        return logger


def _to_record(logger: Any, method: str, facts: MutableMapping[str, Any]) -> dict[str, Any]:
    """The arguments for ``logging``; the last of structlog's processors."""
    exc_info = facts.pop("exc_info")
    fields = {f"{name}_" if name in _TAKEN else name: value for name, value in facts.items()}
    # By these two, structlog's formatter recognizes its own records.
    fields |= {"_logger": logger, "_name": method}
    return {"msg": LogEvent(facts), "exc_info": exc_info, "extra": fields, "stacklevel": _FRAMES}


def _show(value: Any) -> str:
    text = value if isinstance(value, str) else f"{value:.4g}" if isinstance(value, float) else str(value)
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST - 1]}…"
    return text if _BARE.fullmatch(text) else json.dumps(text, ensure_ascii=not text.isprintable())
