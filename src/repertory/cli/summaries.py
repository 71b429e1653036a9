"""Who writes the summaries of runs that a command starts."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from repertory.summarizer import Strategy


@asynccontextmanager
async def summaries_by(name: str | None) -> AsyncGenerator[Strategy | None]:
    """Open the model that writes summaries, for as long as the block lasts.

    Args:
        name: The model's; None for none: summaries are extracted without one.

    Raises:
        ConfigurationError: There is no such model.
    """
    if name is None:
        yield None
        return
    import anyio

    from repertory.llm import open_model
    from repertory.summarizer import ModelStrategy

    model = open_model(name)
    try:
        yield ModelStrategy(model)
    finally:
        with anyio.CancelScope(shield=True):
            await model.aclose()
