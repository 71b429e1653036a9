"""How an agent works with its team: in the background or not, how many at once, and what a failure means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from repertory._choices import check_choice, check_number, check_type, show
from repertory._frozen import freeze_fields
from repertory.errors import ConfigurationError
from repertory.memory import MemoryMode

DELEGATE: Final = "delegate"
START: Final = "delegate_start"
COLLECT: Final = "delegate_collect"
MESSAGE: Final = "delegate_message"
CANCEL: Final = "delegate_cancel"
TEAM_TOOLS: Final = frozenset({DELEGATE, START, COLLECT, MESSAGE, CANCEL})
REPORTING: Final = frozenset({DELEGATE, COLLECT})  # their results are sub-agents' reports

OnFailure: TypeAlias = Literal["collect", "fail_fast", "retry"]
Share: TypeAlias = Literal["summary", "trail"]


class Delegation(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """How an agent works with its team.

    Attributes:
        background: Whether the agent may also start sub-agents and keep working. If so, it gets the tools
            ``delegate_start``, ``delegate_collect``, ``delegate_message`` and ``delegate_cancel``.
        parallel: How many of its sub-agents work at once; others wait for their turn, in order.
        on_failure: What happens if a sub-agent fails. ``collect``: the lead is told, and the others continue.
            ``fail_fast``: the others are cancelled. ``retry``: another run gets the task and is told what went wrong.
        retries: How often one delegation is retried, with ``retry``.
        warm_cache: Whether sub-agents whose prompts begin alike wait until the first of them is receiving its first
            answer, so that they read the shared beginning from the prompt cache. None means yes if the model's prices
            are known and the shared beginning is long enough to be cached.
        memory: The memory modes that the lead may choose from for one delegation; () always uses the member's own.
        share: Which parts of its own record the lead may choose to hand to a sub-agent: its newest ``summary``, and the
            ``trail`` of everything that it did; () for none. The sub-agent may then also look into that record.

    Raises:
        ConfigurationError: A value is not one of the choices, or is out of range.
    """

    background: bool = False
    parallel: int = 8
    on_failure: OnFailure = "collect"
    retries: int = 1
    warm_cache: bool | None = None
    memory: Sequence[MemoryMode] = ()
    share: Sequence[Share] = ()

    def __post_init__(self) -> None:
        check_type("delegation.background", self.background, bool, "True or False")
        check_type("delegation.warm_cache", self.warm_cache, bool | None, "True, False or None")
        check_number("delegation.parallel", self.parallel, int, least=1)
        check_number("delegation.retries", self.retries, int, least=0)
        check_choice("delegation.on_failure", self.on_failure, OnFailure)
        for name, choices in (("memory", MemoryMode), ("share", Share)):
            values = getattr(self, name)
            if isinstance(values, str) or not isinstance(values, Sequence):
                words = ", ".join(map(repr, get_args(choices)))
                raise ConfigurationError(f"delegation.{name} must be a list with some of {words}, got {show(values)}")
            for value in values:
                check_choice(f"delegation.{name}", value, choices)
        freeze_fields(self, sequences=("memory", "share"))
