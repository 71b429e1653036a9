"""The arguments and options that several commands have."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer


class Backend(StrEnum):
    """The event loops."""

    trio = "trio"
    asyncio = "asyncio"


def database(default: str) -> Any:
    """The option ``--db``; ``default`` says which one is meant without it."""
    return typer.Option("--db", metavar="FILE", help=f"The database. Default: {default}.")


Database = Annotated[Path | None, database("$REPERTORY_DB, else the newest kept")]
OwnDatabase = Annotated[Path | None, database("$REPERTORY_DB, else runs.db of the data folder")]
AsJson = Annotated[bool, typer.Option("--json", help="Write one JSON object to standard output, and nothing else.")]
Plain = Annotated[bool, typer.Option("--plain", help="Write plain lines instead of a live picture.")]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="The model. Default: $REPERTORY_MODEL, else Claude if a key or server is set, else offline.",
    ),
]
SummaryModel = Annotated[
    str | None,
    typer.Option(
        "--summary-model",
        metavar="NAME",
        help="The model that writes summaries, such as a small one. Default: none, they are extracted.",
    ),
]
Loop = Annotated[Backend, typer.Option("--backend", metavar="trio|asyncio", help="The event loop.")]
AgentRef = Annotated[
    str | None,
    typer.Option("--agent", metavar="MODULE:NAME", help="An agent of yours, or a function that makes one."),
]


def run_id(default: str) -> Any:
    """The argument ``RUN``; ``default`` says which one is meant without it."""
    return typer.Argument(
        metavar="RUN", help=f"A run's id, or any part of it that fits one run only. Default: {default}."
    )


RunId = Annotated[str | None, run_id("the newest")]
UnfinishedRunId = Annotated[str | None, run_id("the newest that did not finish")]
