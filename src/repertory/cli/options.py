"""Declares arguments and options, and those that several commands share."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import typer

from repertory.errors import ConfigurationError

Backend: TypeAlias = Literal["trio", "asyncio"]


def argument(name: str, text: str, default: Any = None) -> Any:
    """Declare an argument; the default ``...`` makes it required."""
    return typer.Argument(default, metavar=name, help=text)


def option(spelled: str, text: str, default: Any = None, **bounds: Any) -> Any:
    """Declare an option, spelled as in the help: ``--all``, ``--root DIR``, ``-i, --iteration N``."""
    *names, last = spelled.replace(",", "").split()
    if last.startswith("-"):
        return typer.Option(default, *names, last, help=text, **bounds)
    return typer.Option(default, *names, metavar=last, help=text, **bounds)


DATABASE = option(
    "--db FILE",
    "A file, or postgresql://…. Default: $REPERTORY_DB, else that of company.toml here, else a service's, else runs.db "
    "in the data folder.",
)
OWN_DATABASE = option(
    "--db FILE", "The database: a file, or postgresql://…. Default: $REPERTORY_DB, else runs.db in the data folder."
)
SOCKET = option("--socket PATH", "The service's unix socket. Default: that of the service that has the database.")
PORT = option("--port N", "The service's port on 127.0.0.1, instead of a socket.", min=1, max=65535)
AS_JSON = option("--json", "Write one JSON object to standard output, and nothing else.", False)
PLAIN = option("--plain", "Write plain lines instead of a live display.", False)
QUIET = option("--quiet", "Show no progress, only the answer and errors.", False)
FULL = option("--full", "Show everything whole.", False)
MODEL = option(
    "--model NAME", "The model. Default: $REPERTORY_MODEL, else Claude if a key or server is set, else offline."
)
SUMMARY_MODEL = option(
    "--summary-model NAME",
    "The model that writes summaries, or none. Default: the small one of the same provider.",
)
LIMIT = option(
    "--limit NAME=VALUE",
    "A limit on the whole run, such as cost=2, tokens=500000, seconds=600 or runs=5; none removes it. May be repeated.",
    (),
)
BACKEND = option("--backend trio|asyncio", "The event loop.", "trio")
AGENT = option(
    "--agent AGENT", "Your own agent: module:name of an Agent or of a function that makes one, or a file or folder."
)
OFFERED = option("--agent AGENT", "An agent to offer: module:name, or a file. May be repeated.", ())
REDACT = option("--redact NAME", "An environment variable whose value is never recorded. May be repeated.", ())
CONTEXT = option(
    "--context MODULE:NAME", "What your tools find in ToolContext.context: an object, or a function that makes one."
)
WHICH = "A run's id, or any part of it that fits one run only."
RUN = argument("RUN", f"{WHICH} Default: the newest.")
UNFINISHED_RUN = argument("RUN", f"{WHICH} Default: the newest that did not finish.")
ONE_RUN = argument("RUN", WHICH, ...)


# --- groups, which ``commands.command`` expands -----------------------------------------------------------


@dataclass(frozen=True)
class At:
    """Where runs are: in a database, or in a service."""

    db: Annotated[str | None, DATABASE] = None
    socket: Annotated[Path | None, SOCKET] = None
    port: Annotated[int | None, PORT] = None

    @property
    def is_service_named(self) -> bool:
        """Whether a service was named, by its socket or port."""
        return self.socket is not None or self.port is not None


@dataclass(frozen=True)
class How:
    """The settings of a run in this process."""

    model: Annotated[str | None, MODEL] = None
    limit: Annotated[list[str], LIMIT] = field(default_factory=list)
    summary_model: Annotated[str | None, SUMMARY_MODEL] = None
    backend: Annotated[Backend, BACKEND] = "trio"

    @property
    def limits(self) -> dict[str, float | None]:
        """The limits given with ``--limit``."""
        limits: dict[str, float | None] = {}
        for each in self.limit:
            name, _, value = each.partition("=")
            try:
                limits[name.strip()] = None if value == "none" else int(value) if value.isdecimal() else float(value)
            except ValueError:
                raise ConfigurationError(f"--limit must look like cost=2 or cost=none, got {each[:100]!r}") from None
        return limits

    @property
    def summaries(self) -> tuple[str, ...] | None:
        """The ``summaries`` argument of a supervisor for ``--summary-model``."""
        return None if self.summary_model is None else () if self.summary_model == "none" else (self.summary_model,)


@dataclass(frozen=True)
class HowServed(How):
    """The settings of runs of several agents in this process."""

    model: Annotated[str | None, option("--model NAME", "The model of agents that name none.")] = None


@dataclass(frozen=True)
class Offered:
    """The agents that runs can be started with in this process, and what is kept out of their record."""

    agent: Annotated[list[str], OFFERED] = field(default_factory=list)
    root: Annotated[Path | None, option("--root DIR", "Offer the research team, for this folder.")] = None
    redact: Annotated[list[str], REDACT] = field(default_factory=list)


@dataclass(frozen=True)
class Shown:
    """What to show of a run in this process."""

    as_json: Annotated[bool, AS_JSON] = False
    plain: Annotated[bool, PLAIN] = False
    quiet: Annotated[bool, QUIET] = False
