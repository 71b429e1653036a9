"""How an actor is spawned."""

from __future__ import annotations

from typing import TypedDict

import msgspec

from repertory.actors.mailbox import Overflow
from repertory.actors.supervision import Restart, Supervision
from repertory.errors import ConfigurationError


class SpawnOptions(TypedDict, total=False):
    """What ``spawn`` takes by keyword.

    Attributes:
        restart: When the actor comes back: ``"transient"`` (default) after a crash, ``"permanent"`` also after it
            has stopped itself, ``"temporary"`` never.
        supervision: How it treats its own children; None for the defaults of ``Supervision``.
        capacity: How many messages may wait in its mailbox, at least 1. Default 10,000.
        overflow: What happens beyond that. Default ``"wait"``.
        attempts: How often a message may crash the actor before it is parked in dead letters, at least 1. With 1,
            the default, a message is handled at most once. With more it is retried first thing after the restart,
            also when its handler was interrupted: at least once, so the handler must bear repetition.
        lazy: Make the actor on its first message; until then it is an object of about a kilobyte and no task.
    """

    restart: Restart
    supervision: Supervision | None
    capacity: int
    overflow: Overflow
    attempts: int
    lazy: bool


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Spawn options with their defaults; one object is shared by all actors spawned without options."""

    restart: Restart = "transient"
    supervision: Supervision | None = None
    capacity: int = 10_000
    overflow: Overflow = "wait"
    attempts: int = 1
    lazy: bool = False


_DEFAULT = Settings()


def settings_of(options: SpawnOptions) -> Settings:
    """Check spawn options and fill in the defaults.

    Raises:
        ConfigurationError: One of them is unknown or has an impossible value.
    """
    if not options:
        return _DEFAULT
    try:
        settings = msgspec.convert(dict(options), Settings, from_attributes=True)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"cannot spawn: {error}") from error
    for name in ("capacity", "attempts"):
        if getattr(settings, name) < 1:
            raise ConfigurationError(f"cannot spawn: {name} must be at least 1, not {getattr(settings, name)}")
    return settings
