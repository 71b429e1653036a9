"""The models of a supervisor: those that agents bring along, and those that it opens by their names."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import anyio

from repertory.agents.log import log_close_failed
from repertory.llm import open_model
from repertory.llm.model import Model

_CLOSING = 5.0  # seconds for one model; what it holds then ends with the process


class OpenModels:
    """Opens each named model once, and closes on leaving what it opened."""

    def __init__(self, default: Model | str | None) -> None:
        """Hold no model yet.

        Args:
            default: For agents that name none; None takes what the environment offers.
        """
        self._default = default
        self._opened: dict[str | None, Model] = {}

    def get(self, wanted: Model | str | None) -> Model:
        """A model by its name, itself, or the default.

        Raises:
            ConfigurationError: The name makes no sense.
        """
        wanted = self._default if wanted is None else wanted
        if wanted is not None and not isinstance(wanted, str):
            return wanted
        if wanted not in self._opened:
            self._opened[wanted] = open_model(wanted)
        return self._opened[wanted]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for model in self._opened.values():
            with anyio.CancelScope(shield=True, deadline=anyio.current_time() + _CLOSING):
                try:
                    await model.aclose()
                except Exception as failure:  # noqa: BLE001 - the next one is to be closed all the same
                    log_close_failed(model.name, failure)
