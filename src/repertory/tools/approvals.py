"""Rules for which tool calls are made at once, which wait for a person's approval, and which are never made."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, TypeAlias, cast, get_args

import msgspec

from repertory._choices import check_choice, check_number, check_text
from repertory._frozen import freeze_fields
from repertory._json_text import encode_other
from repertory.errors import ConfigurationError
from repertory.record.records import Effect

Verdict: TypeAlias = Literal["deny", "ask", "allow"]
"""The decision about a call, the strictest first."""
STRICTEST_FIRST: Final[tuple[Verdict, ...]] = get_args(Verdict)


class ProposedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that a model asks for, as it is passed to a tool's ``approval`` function.

    Attributes:
        run_id: The run's id.
        agent: The name of its agent.
        call_id: The id of the call.
        tool: The tool's name.
        effect: The tool's declared effect.
        arguments: The arguments that the tool would be given, by name: checked, converted to the annotated types, and
            with the tool's defaults filled in.
        context: The object that the application passed to ``spawn``; None if it passed none.
    """

    run_id: str
    agent: str
    call_id: str
    tool: str
    effect: Effect
    arguments: Mapping[str, Any]
    context: Any = None


class CallRule(msgspec.Struct, frozen=True):
    """Selects calls by their tool and their arguments.

    In a pattern ``*`` matches any number of characters, line ends included, ``?`` matches one and ``[abc]`` matches
    one of these. Patterns are case-sensitive.

    Attributes:
        tool: A pattern for the tool's name, as the model calls it.
        arguments: A pattern for each argument that matters, by name. It is compared with the text of the argument, or
            with its value as compact JSON if that is not text. All of them must match. A pattern sees the text alone:
            ``rm *`` does not limit what a shell does, and a path can be written in many ways. A tool's ``approval``
            function can judge better.
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
        """Whether the rule matches a call; ``arguments`` are those of ``ProposedCall``."""
        return fnmatchcase(tool, self.tool) and all(
            name in arguments and fnmatchcase(_text_of(arguments[name]), pattern)
            for name, pattern in self.arguments.items()
        )


class Approvals(msgspec.Struct, frozen=True, kw_only=True):
    """Rules for the tool calls of an agent and of its sub-agents, or of all runs of a supervisor.

    ``deny`` is checked first, then ``ask``, then ``allow``; how specific a rule is does not matter. The supervisor,
    each agent above, the agent itself and the tool each decide, and the strictest decision counts: none can allow
    what another forbids. A rule is a ``CallRule``, or just a pattern for the tool's name.

    Attributes:
        deny: Calls that are never made; the model is told so.
        ask: Calls that wait until somebody approves them.
        allow: Calls that are made although ``unsafe`` says ``ask``.
        unsafe: What happens to a call that no rule matches if its tool has the effect ``unsafe``: ``allow`` or ``ask``.
        approval_timeout: Seconds after which a waiting call is denied; None waits without limit. If several apply, the
            shortest counts.

    Raises:
        ConfigurationError: A value is not a rule, or not a valid option.
    """

    deny: Sequence[CallRule | str] = ()
    ask: Sequence[CallRule | str] = ()
    allow: Sequence[CallRule | str] = ()
    unsafe: Literal["allow", "ask"] = "allow"
    approval_timeout: float | None = None

    def __post_init__(self) -> None:
        for name in STRICTEST_FIRST:
            rules: Any = getattr(self, name)
            if isinstance(rules, str) or not isinstance(rules, Sequence):
                raise ConfigurationError(f"approvals: {name} must be a list of rules, got {rules!r:.200}")
            made = tuple(rule if isinstance(rule, CallRule) else CallRule(rule) for rule in rules)
            msgspec.structs.force_setattr(self, name, made)
        check_choice("approvals: unsafe", self.unsafe, Literal["allow", "ask"])
        check_number("approvals: approval_timeout", self.approval_timeout, int | float, least=0, none=True)

    def rules(self, verdict: Verdict) -> tuple[CallRule, ...]:
        """The rules with this verdict."""
        return cast("tuple[CallRule, ...]", getattr(self, verdict))

    def judge(self, tool: str, effect: Effect, arguments: Mapping[str, Any]) -> Verdict:
        """Decide about a call; ``arguments`` are those of ``ProposedCall``.

        A call that rules cannot be compared with must wait: the text of an argument may be made by code of its own.
        """
        try:
            for verdict in STRICTEST_FIRST:
                if any(rule.fits(tool, arguments) for rule in self.rules(verdict)):
                    return verdict
        except (Exception, SystemExit):  # noqa: BLE001 - foreign code, such as a computed field of pydantic
            return "ask"
        return "ask" if effect == "unsafe" and self.unsafe == "ask" else "allow"


def strictest(verdicts: Iterable[Verdict]) -> Verdict:
    """The strictest of several verdicts; ``allow`` if there are none."""
    given: list[Verdict] = [*verdicts, "allow"]
    return min(given, key=STRICTEST_FIRST.index)


def _text_of(value: object) -> str:
    """The text of a value that a pattern is compared with."""
    plain: Any = msgspec.to_builtins(value, enc_hook=_plain, order="deterministic", str_keys=True)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


def _plain(value: object) -> Any:
    try:
        return encode_other(value)
    except TypeError:  # a tool's default may be anything
        return str(value)
