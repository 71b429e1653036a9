"""How an actor is spawned, and what its supervisor decides about a crash: options, strategies, limits, back-off."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, TypeAlias, TypedDict

import msgspec

from repertory._choices import Checked, Natural, NotNegative, Positive, check_seconds
from repertory.errors import ConfigurationError

Restart: TypeAlias = Literal["permanent", "transient", "temporary"]
"""Whether an actor is restarted: always unless stopped from outside; after a crash; or never."""

Strategy: TypeAlias = Literal["one-for-one", "one-for-all", "rest-for-one"]
"""Which siblings are restarted with a crashed child: none, all, or those started after it."""

Overflow: TypeAlias = Literal["fail", "drop-new", "drop-old", "wait"]
"""What happens when a mailbox is full.

============  ==================  =====================  ===================
policy        ``tell``            ``await ask``          ``await send``
============  ==================  =====================  ===================
``fail``      ``MailboxFull``     ``MailboxFull``        waits for room
``wait``      ``MailboxFull``     waits for room         waits for room
``drop-new``  to dead letters     ``MailboxFull``        waits for room
``drop-old``  the oldest message  the oldest message     waits for room
              to dead letters     to dead letters
============  ==================  =====================  ===================
"""


class Supervision(Checked, frozen=True, kw_only=True):
    """How an actor supervises its children. Modelled on https://www.erlang.org/doc/system/sup_princ.html.

    Attributes:
        strategy: Which siblings are restarted with a crashed child.
        max_restarts: How many restarts are allowed within ``period``. Under one-for-one every child has its own
            count, since its failures are assumed to be its own; under the group strategies the group has one.
            0 means that the first crash is too many.
        period: The window of that count, in seconds.
        when_exceeded: ``"escalate"``: the supervisor itself crashes; ``"stop"``: the child stops for good.
        backoff_first: Seconds to wait before the first restart; 0 restarts at once.
        backoff_factor: The factor by which each further wait is longer.
        backoff_max: The longest wait, in seconds.
        backoff_reset: After this many seconds without a crash, a child (or group) begins with ``backoff_first``
            again.

    Raises:
        ConfigurationError: A value is not one of the choices, has the wrong type, or is less than 0 (than 1 for
            ``backoff_factor``).
    """

    strategy: Strategy = "one-for-one"
    max_restarts: Natural = 3
    period: NotNegative = 5.0
    when_exceeded: Literal["escalate", "stop"] = "escalate"
    backoff_first: NotNegative = 0.0
    backoff_factor: Annotated[float, msgspec.Meta(ge=1)] = 2.0
    backoff_max: NotNegative = 30.0
    backoff_reset: NotNegative = 60.0

    def delay(self, restart: int) -> float:
        """Seconds to wait before the n-th restart in a row, counted from 1."""
        if not self.backoff_first:
            return 0.0
        try:
            return min(self.backoff_max, self.backoff_first * self.backoff_factor ** (restart - 1))
        except OverflowError:  # in a long loop of crashes
            return self.backoff_max


class SpawnOptions(TypedDict, total=False):
    """The keyword options of ``spawn``.

    Attributes:
        restart: When the actor is restarted: ``"transient"`` (default) after a crash, ``"permanent"`` also after it
            has stopped itself, ``"temporary"`` never.
        supervision: How it supervises its own children; None for the defaults of ``Supervision``.
        capacity: How many messages may wait in its mailbox, at least 1. Default 10,000.
        overflow: What happens when the mailbox is full. Default ``"wait"``.
        attempts: How often a message may crash the actor before it goes to dead letters, at least 1. With 1, the
            default, a message is handled at most once. With more it is retried right after the restart, also if its
            handler was interrupted: that is at least once, so the handler must be safe to repeat.
        lazy: Make the actor on its first message; until then it takes about a kilobyte and no task.
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
    capacity: Positive = 10_000
    overflow: Overflow = "wait"
    attempts: Positive = 1
    lazy: bool = False


_DEFAULT_SETTINGS = Settings()


def settings_of(options: SpawnOptions) -> Settings:
    """Check spawn options and fill in the defaults.

    Raises:
        ConfigurationError: An option is unknown or has an invalid value.
    """
    if not options:
        return _DEFAULT_SETTINGS
    try:
        return msgspec.convert(options, Settings, from_attributes=True)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"cannot spawn: {error}") from error


def check_timeout(name: str, seconds: Any) -> None:
    """Raise ``ConfigurationError`` unless this is None, or seconds; fewer than 0 are over at once."""
    if seconds is not None and not (isinstance(seconds, (float, int)) and seconds < math.inf):  # an ask has no time
        check_seconds(name, seconds)


class RestartPlan(msgspec.Struct, frozen=True):
    """The decision to restart."""

    error: BaseException | None  # what made it necessary
    delay: float = 0.0  # seconds to wait
    grouped: bool = False  # hold still until the restart of the group


class RestartHistory:
    """The restarts of one child, or of one group."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._in_a_row = 0

    def allow(self, policy: Supervision, now: float) -> float | None:
        """Count one more restart and return the seconds to wait before it; None if it is one too many."""
        if self._times and now - self._times[-1] > policy.backoff_reset:
            self._in_a_row = 0
        self._times = [time for time in self._times if now - time < policy.period]
        self._times.append(now)
        self._in_a_row += 1
        return None if len(self._times) > policy.max_restarts else policy.delay(self._in_a_row)
