"""``Agent`` and its ``Limits``: definitions, nothing that runs."""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic

import msgspec

from repertory._choices import check_choice, check_labels, check_number, check_pattern, check_type, check_types, show
from repertory._frozen import EMPTY_DICT, freeze_fields, thaw
from repertory._json_text import canonical_json
from repertory._json_types import JsonType, json_type
from repertory._json_values import ValueType
from repertory.agents.delegation import DELEGATE, TEAM_TOOLS, Delegation
from repertory.context import ContextPolicy, MessageEvent
from repertory.context.projector import FRAME
from repertory.errors import ConfigurationError
from repertory.llm.json_outputs import FINAL_RESULT
from repertory.llm.messages import Json
from repertory.llm.model import Model
from repertory.llm.profiles import ModelProfile
from repertory.memory import MemoryMode, PayloadScope
from repertory.record.rows import encode_json, plain_text
from repertory.tools import Approvals, Tool, tool
from repertory.tools.decorator import how_to_list, is_plain_function
from repertory.tools.tool_sets import ToolSet

if sys.version_info >= (3, 13):
    from typing import TypeVar
else:
    from typing_extensions import TypeVar
if TYPE_CHECKING:
    from typing_extensions import TypeForm
else:
    TypeForm = type  # help() and editors evaluate the annotations

ResultT = TypeVar("ResultT", default=str, covariant=True)  # noqa: PLC0105 - help texts show the name
AnyResultT = TypeVar("AnyResultT", default=Any)  # of an agent that may be left out

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


class Limits(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """Bounds on one run and on the runs below it. A run that reaches one ends with ``LimitExceeded``.

    Limits count what is on record, whichever process it happened in, and are reserved before work begins. A sub-agent's
    run is bound by its own limits and by those of every run above it; the strictest applies.

    Attributes:
        iterations: Answered model calls of one run since its task or its user's last message. It keeps an unattended
            run from going in circles. All other limits keep counting over everything that the run is asked.
        depth: How many levels of sub-agents may be below the root; 0 forbids delegation.
        runs: How many runs the whole tree may have, including the root and runs that have ended.
        cost: US dollars that the run and those below it may spend, at their models' prices, including the summarizer's
            calls; None for no bound. The call that reaches the bound is still paid for. While the calls under way could
            use up what is left, further calls wait. A call or an attempt that was cut off counts as the most that it
            can have cost.
        tokens: The same in tokens: those of all prompts, whether read from the cache or not, and of all answers; None
            for no bound.
        seconds: How long the run and those below it may work, from the run's first model call. Measured across
            processes by the tree's clock, which stops while the root is paused and while no process runs the tree.
            When the time is up, everything under way is cancelled, as by ``Run.kill``. The time between the last
            recorded event and a crash is not counted. None for no bound.
        tool_calls: How many tool calls the run and those below it may make; a call answered from an earlier call's
            result does not count. A call beyond the limit is not made and the model is told so; if the model keeps
            calling tools, its run ends. None for no bound.
        parallel_tools: How many tool calls of one message run at once. They begin in its order.

    Raises:
        ConfigurationError: A value is not a number, or is out of range.
    """

    iterations: int = 50
    depth: int = 3
    runs: int = 20
    cost: float | None = None
    tokens: int | None = None
    seconds: float | None = None
    tool_calls: int | None = None
    parallel_tools: int = 8

    def __post_init__(self) -> None:
        for name, least in (("iterations", 1), ("depth", 0), ("runs", 1), ("parallel_tools", 1)):
            check_number(f"limits.{name}", getattr(self, name), int, least=least)
        for name in ("tokens", "tool_calls"):
            check_number(f"limits.{name}", getattr(self, name), int, least=1, none=True)
        for name in ("cost", "seconds"):
            check_number(f"limits.{name}", getattr(self, name), int | float, above=0, none=True)


class Agent(msgspec.Struct, Generic[ResultT], frozen=True, repr_omit_defaults=True):
    """An agent's definition: instructions, tools, team and policies. A supervisor can spawn it any number of times.

    A run of an ``Agent[Report]`` returns a ``Report``; an agent without ``output`` is an ``Agent[str]``.
    ``msgspec.structs.replace(agent, limits=…)`` makes a copy with another field, for one run.

    Attributes:
        name: The agent's name: a letter, then letters, digits, ``_`` and ``-``, at most 64 characters.
        instructions: The system text that the model reads first.
        tools: What it may call: tools, and tool sets that are opened with the run, such as an ``McpServer``. A plain
            function, a method or a ``functools.partial`` becomes a tool, as by ``tool`` without options.
        disabled_tools: Names of tools that it must not have, whether they come from ``tools``, a tool set, its team or
            its context policy.
        team: Agents that it may delegate to. The model gets a ``delegate`` tool that names them.
        model: A model, or the name of one; None means its parent's, or the supervisor's for a root.
        memory: Whose memory it uses as a sub-agent: its parent's (``shared``), its parent's as of the delegation plus
            what it writes itself (``snapshot``), or its own, empty at first (``isolated``). In ``shared-read-only`` and
            ``snapshot-read-only`` it writes nothing.
        context: How much of the record the model sees. None means a plain loop: everything, always.
        limits: How far one run may go. A sub-agent is also bound by the limits of the runs above it.
        max_tokens: The most tokens of one answer; never more than the model supports.
        options: Further top-level fields of the Messages API, such as ``thinking`` or ``output_config``; not fields
            that repertory sets itself, such as ``model``.
        description: One line for agents that may delegate to it; "" uses the beginning of the instructions.
        delegation: How it works with its team; see ``Delegation``.
        payload: The type of its payload: a ``msgspec.Struct``, a dataclass, a ``TypedDict``, a mapping or a pydantic
            model; None for none. ``{payload.topic}`` in the instructions shows that part of it as of the run's start.
        payload_scope: Which parts of its lead's payload it gets as a sub-agent, and which it may change.
        on_lifecycle: Called when a message of its runs is added, expired, compacted, removed, covered or expanded. It
            must be a plain function, and quick, as it is called in the loop. What it raises is logged and counted
            (``Run.listener_errors``) and never breaks the run.
        output: The type of its results: a ``msgspec.Struct``, a dataclass, a ``TypedDict``, a pydantic model,
            ``list[…]``, a union, …; None and ``str`` mean text.
        output_retries: How many results in a row may fail to fit that type before the run fails with
            ``ResultInvalid``. The model is told each time why the result does not fit.
        approvals: Which tool calls, its own and those of agents below it, wait until a person allows them or are never
            made; None for no rules.
        input: The type of its tasks, as for ``output``; ``spawn`` and ``delegate`` take a value of it.
        placement: Labels that a machine must offer to run this agent, if several machines share a journal. A sub-agent
            with labels runs on such a machine instead of beside its lead; see ``docs/scale.md``. () means anywhere, and
            for a sub-agent beside its lead. With a single machine everything runs there.
    """

    name: str
    instructions: str = ""
    tools: Sequence[Tool | ToolSet | Callable[..., Any]] = ()
    team: Sequence[Agent[Any]] = ()
    model: Model | str | None = None
    memory: MemoryMode = "shared"
    context: ContextPolicy | None = ContextPolicy()
    limits: Limits = Limits()
    max_tokens: int = 8192
    options: Json = EMPTY_DICT
    description: str = ""
    on_lifecycle: Callable[[MessageEvent], object] | None = None
    delegation: Delegation = Delegation()
    output: TypeForm[ResultT] | None = None
    output_retries: int = 2
    input: TypeForm[Any] | None = None
    payload: Any = None
    payload_scope: PayloadScope | None = None
    disabled_tools: Sequence[str] = ()
    approvals: Approvals | None = None
    placement: Sequence[str] = ()

    def __post_init__(self) -> None:
        words = "be a letter, then letters, digits, _ and -, at most 64 in all"
        msgspec.structs.force_setattr(self, "name", check_pattern("agent name", self.name, _NAME, words))
        where = f"agent {self.name}"
        # msgspec does not look at what is passed in code.
        check_types(f"{where}: ", self, _FIELDS)
        check_model(self.model, f"{where}: model")
        for name in ("instructions", "description", "model"):
            if isinstance(text := getattr(self, name), str):
                msgspec.structs.force_setattr(self, name, plain_text(text))
        freeze_fields(self, "options", sequences=("tools", "team", "disabled_tools", "placement"))
        self._check_options(where)
        self._make_tools()
        check_listener(self.on_lifecycle)
        check_choice(f"{where}: memory", self.memory, MemoryMode)
        check_number(f"{where}: max_tokens", self.max_tokens, int, least=1)
        if self.payload is not None:
            ValueType(self.payload, f"{where}: payload")
        _check_members(f"{where}: tools", self.tools, Tool | ToolSet, "name a function or a Tool")
        _check_members(f"{where}: team", self.team, Agent, "name an Agent")
        names: Any = self.disabled_tools
        if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
            raise ConfigurationError(f"{where}: disabled_tools must be a list of names, got {names!r:.200}")
        check_labels(f"{where}: placement", self.placement)
        check_number(f"{where}: output_retries", self.output_retries, int, least=0)
        typed = self.output_type is not None
        if typed and (self.options.get("output_config") or {}).get("format") is not None:
            raise ConfigurationError(f"{where} has output and options['output_config']['format']; leave the latter out")
        self._check_names(where, typed=typed)
        json_type(self.input, f"{where}: input")

    def _make_tools(self) -> None:
        """Turn the plain functions among ``tools`` into tools."""
        given: Any = self.tools
        if isinstance(given, tuple) and any(map(is_plain_function, given)):
            made = tuple(tool(each) if is_plain_function(each) else each for each in given)
            msgspec.structs.force_setattr(self, "tools", made)

    def _check_options(self, where: str) -> None:
        """Check that the options can be sent and override nothing that is budgeted, planned and recorded."""
        for name, value in self.options.items():
            given: Any = name
            if given in _NO_OPTIONS:
                raise ConfigurationError(f"{where}: options cannot have {given!r}: {_NO_OPTIONS[given]}")
            try:
                check_type(f"{where}: the name of an option", given, str, "a text")
                encode_json(thaw({name: value}))
            except (TypeError, ValueError) as error:
                raise ConfigurationError(f"{where}: options[{given!r}] cannot be sent as JSON: {error}") from error
            if given in _OBJECTS:
                check_type(f"{where}: options[{given!r}]", value, Mapping | None, "a dict")

    def _check_names(self, where: str, *, typed: bool) -> None:
        """Check that no tool has the name of one that its runs bring along."""
        ours = {FRAME: "as what stands for older iterations"} if self.context is not None else {}
        if typed:
            ours[FINAL_RESULT] = "by which the model gives its output"
        if self.team:
            names = TEAM_TOOLS if self.delegation.background else {DELEGATE}
            ours |= dict.fromkeys(names, "by which the model works with its team")
        for each in self.own_tools:
            if each.name in ours:
                raise ConfigurationError(f"{where}: a tool is named {each.name}, {ours[each.name]}; rename it")

    @property
    def summary(self) -> str:
        """One line that says what it is for."""
        return self.description or self.instructions.strip().split("\n", 1)[0][:200] or self.name

    @property
    def own_tools(self) -> tuple[Tool, ...]:
        """Its tools, without the tool sets."""
        return tuple(each for each in self.tools if isinstance(each, Tool))

    @property
    def tool_sets(self) -> tuple[ToolSet, ...]:
        """Its tool sets, which are opened with a run."""
        return tuple(each for each in self.tools if isinstance(each, ToolSet))

    @property
    def output_type(self) -> JsonType | None:
        """The type of its results; None for text."""
        return json_type(self.output, f"agent {self.name}: output")

    @property
    def input_type(self) -> JsonType | None:
        """The type of its tasks; None for text."""
        return json_type(self.input, f"agent {self.name}: input")

    def member(self, name: str) -> Agent[Any] | None:
        """The team member with that name; None if there is none."""
        return next((member for member in self.team if member.name == name), None)

    @property
    def digest(self) -> str:
        """Hash of everything that shapes what the agent does, including its team.

        A run that is resumed under another digest continues; ``RunResumed.agent_changed`` reports it.
        """
        return hashlib.blake2b(canonical_json(self._definition()), digest_size=16).hexdigest()

    def _definition(self) -> Json:
        model = self.model if isinstance(self.model, str) or self.model is None else self.model.name
        return {
            "name": self.name,
            "instructions": self.instructions,
            "tools": [[tool.name, tool.description, tool.input_schema, tool.effect] for tool in self.own_tools],
            "tool_sets": [each.name for each in self.tool_sets],
            "disabled_tools": sorted(self.disabled_tools),
            "team": [member._definition() for member in self.team],
            "model": model,
            "memory": self.memory,
            "delegation": msgspec.to_builtins(self.delegation),
            "payload": None if self.payload is None else getattr(self.payload, "__name__", str(self.payload)),
            "payload_scope": msgspec.to_builtins(self.payload_scope),
            "context": msgspec.to_builtins(self.context),
            "options": self.options,
            "approvals": msgspec.to_builtins(self.approvals),
            "output": None if self.output_type is None else self.output_type.schema,
            "input": None if self.input_type is None else self.input_type.schema,
            "placement": self.placement,
        }

    def walk(self) -> Iterator[Agent[Any]]:
        """This agent and all below it."""
        yield self
        for member in self.team:
            yield from member.walk()


def check_agent(agent: object) -> None:
    """Raise ``ConfigurationError`` if this is not an ``Agent``."""
    if not isinstance(agent, Agent):
        raise ConfigurationError(f"expected an Agent, got {agent!r:.100}")


def check_listener(listener: object) -> None:
    """Raise ``ConfigurationError`` unless this is None or a plain function; a coroutine would never be awaited."""
    plain = callable(listener) and not any(map(inspect.iscoroutinefunction, (listener, type(listener).__call__)))
    if listener is None or plain:
        return
    raise ConfigurationError(f"on_lifecycle must be a plain function of one MessageEvent, got {show(listener)}")


_NO_OPTIONS: Final = {
    "model": "say Agent(model=…)",
    "max_tokens": "say Agent(max_tokens=…)",
    "system": "say Agent(instructions=…)",
    "tools": "say Agent(tools=…)",
    "messages": "they are the conversation",
    "stream": "how answers are sent is not for an agent to say",
}
_OBJECTS: Final = ("thinking", "output_config", "tool_choice")  # of the API, which repertory reads too
_FIELDS: Final[tuple[tuple[str, Any, str], ...]] = (
    ("instructions", str, "a text"),
    ("description", str, "a text"),
    ("limits", Limits, f"Limits(…), which has {', '.join(Limits.__struct_fields__)}"),
    ("delegation", Delegation, f"Delegation(…), which has {', '.join(Delegation.__struct_fields__)}"),
    ("options", Mapping, "a dict of fields of the Messages API"),
    ("context", ContextPolicy | None, "a ContextPolicy, or None for a plain loop"),
    ("payload_scope", PayloadScope | None, "PayloadScope(read=(…), write=(…)), or None"),
    ("approvals", Approvals | None, "Approvals(…), or None for no rules"),
)


def check_model(model: object, where: str) -> None:
    """Raise ``ConfigurationError`` unless this is a model, the name of one or None."""
    words = "a Model, which has name, profile, complete and aclose, the name of one, or None"
    check_type(where, model, Model | str | None, words)
    if isinstance(model, Model):
        check_type(f"{where}.profile", model.profile, ModelProfile, "a ModelProfile, such as profile_for(NAME)")


def _check_members(where: str, members: Any, kind: Any, advice: str) -> None:
    if not isinstance(members, Sequence) or isinstance(members, str):
        raise ConfigurationError(f"{where} must be a list, got {repr(members)[:200]}")
    for index, member in enumerate(members):
        if isinstance(member, type) or not isinstance(member, kind):
            if isinstance(member, Agent):
                how = "list agents in team"
            elif isinstance(member, type) and isinstance(member, kind):  # a protocol's members are there in a class too
                how = f"make one of it, {member.__name__}(…)"
            else:
                how = how_to_list(member, advice)
            raise ConfigurationError(f"{where}[{index}] is {repr(member)[:200]}; {how}")
    names = [member.name for member in members]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ConfigurationError(f"{where} must have different names, got {', '.join(repeated)} more than once")
