"""How a run ended."""

from __future__ import annotations

from typing import Any

import msgspec

from repertory._error_texts import decode_error, name_error
from repertory.record.records import RunRow, RunState


class RunEnd(msgspec.Struct, frozen=True):
    """How a run ended; ``cause`` is the error itself, or as it was recorded by another process."""

    state: RunState
    result: str | None = None
    error: str | None = None
    cause: BaseException | None = None

    @property
    def told(self) -> dict[str, Any]:
        """What a record and an event tell of it."""
        return {"state": self.state, "result": self.result, "error": self.error}

    @classmethod
    def failed(cls, cause: BaseException | None) -> RunEnd:
        """The end of a run that failed with an error."""
        return cls("failed", error=None if cause is None else name_error(cause), cause=cause)

    @classmethod
    def recorded(cls, row: RunRow) -> RunEnd:
        """The end of a run that another process has recorded."""
        return cls(row.state, row.result, row.error, decode_error(row.cause) if row.cause else None)
