"""Which tool calls are made at once, which wait until a person allows them, and which are never made."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, TypeAlias, cast, get_args

import msgspec

from repertory._choices import check_choice, check_number, check_text
from repertory._frozen import freeze_fields
from repertory.errors import ConfigurationError
from repertory.record.records import Effect

Verdict: TypeAlias = Literal["deny", "ask", "allow"]
"""What is to become of a call; of several the first of these counts."""


class ProposedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that a model asks for, as a tool's ``approval`` function is shown it.

    Attributes:
        run_id: The run.
        agent: The name of its agent.
        call_id: The id of the call.
        tool: The tool's name.
        effect: What the tool is declared to do.
        arguments: What the tool would be given, by name: checked, as the types that it names, its defaults included.
        context: What the application handed to ``spawn``; None where it handed in nothing.
    """

    run_id: str
    agent: str
    call_id: str
    tool: str
    effect: Effect
    arguments: Mapping[str, Any]
    context: Any = None


class CallRule(msgspec.Struct, frozen=True):
    """Calls that a rule is about, by their tool and their arguments.

    In a pattern ``*`` stands for any characters, also none, also line ends, ``?`` for one and ``[abc]`` for one of
    these; capitals count.

    Attributes:
        tool: A pattern of the tool's name, as the model calls it.
        arguments: A pattern for each argument that matters, by name: of the text itself, or of the value as compact
            JSON where it is none. All of them must fit. They look at the text alone: ``rm *`` is no bound on what a
            shell does, and a path can be written in many ways. A tool's ``approval`` function can judge better.
    """

    tool: str
    arguments: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        check_text("a rule's tool", self.tool)
        given: Any = self.arguments
        if not (isinstance(given, Mapping) and all(isinstance(each, str) for pair in given.items() for each in pair)):
            raise ConfigurationError(f"a rule's arguments must be patterns by name, got {given!r:.200}")
        freeze_fields(self, "arguments")

    def fits(self, tool: str, arguments: Mapping[str, Any]) -> bool:
        """Whether a call is one of them; ``arguments`` as ``ProposedCall`` has them."""
        return fnmatchcase(tool, self.tool) and all(
            name in arguments and fnmatchcase(_text_of(arguments[name]), pattern)
            for name, pattern in self.arguments.items()
        )


class Approvals(msgspec.Struct, frozen=True, kw_only=True):
    """Rules for the tool calls of an agent and of those below it, or of all runs of a supervisor.

    ``deny`` is looked at first, then ``ask``, then ``allow``; how precise a rule is does not matter. Of what the
    supervisor says, each agent above, the agent itself and the tool, the strictest counts: nobody can allow what
    another one forbids. A rule is a ``CallRule``, or the pattern of a tool's name alone.

    Attributes:
        deny: Calls that are never made; the model is told so.
        ask: Calls that wait until somebody allows them.
        allow: Calls that are made although ``unsafe`` says ``ask``.
        unsafe: What becomes of calls of tools with the effect ``unsafe`` that no rule is about: ``allow`` or ``ask``.
        approval_timeout: Seconds after which a call that waits is denied; None waits for good. Of several the
            shortest counts.

    Raises:
        ConfigurationError: Something is no rule.
    """

    deny: Sequence[CallRule | str] = ()
    ask: Sequence[CallRule | str] = ()
    allow: Sequence[CallRule | str] = ()
    unsafe: Literal["allow", "ask"] = "allow"
    approval_timeout: float | None = None

    def __post_init__(self) -> None:
        for name in get_args(Verdict):
            rules: Any = getattr(self, name)
            if isinstance(rules, str) or not isinstance(rules, Sequence):
                raise ConfigurationError(f"approvals: {name} must be a list of rules, got {rules!r:.200}")
            made = tuple(rule if isinstance(rule, CallRule) else CallRule(rule) for rule in rules)
            msgspec.structs.force_setattr(self, name, made)
        check_choice("approvals: unsafe", self.unsafe, Literal["allow", "ask"])
        check_number("approvals: approval_timeout", self.approval_timeout, int | float, least=0, none=True)

    def rules(self, verdict: Verdict) -> tuple[CallRule, ...]:
        """Its rules of one kind."""
        return cast("tuple[CallRule, ...]", getattr(self, verdict))

    def judge(self, tool: str, effect: Effect, arguments: Mapping[str, Any]) -> Verdict:
        """What is to become of a call; ``arguments`` as ``ProposedCall`` has them."""
        for verdict in STRICTEST_FIRST:
            if any(rule.fits(tool, arguments) for rule in self.rules(verdict)):
                return verdict
        return "ask" if effect == "unsafe" and self.unsafe == "ask" else "allow"


STRICTEST_FIRST: Final[tuple[Verdict, ...]] = get_args(Verdict)


def strictest(verdicts: Iterable[Verdict]) -> Verdict:
    """The one of several that counts; ``allow`` where there are none."""
    given = set(verdicts)
    for verdict in STRICTEST_FIRST:
        if verdict in given:
            return verdict
    return "allow"


def _text_of(value: object) -> str:
    """What a pattern is compared with."""
    plain: Any = msgspec.to_builtins(value, enc_hook=str)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
