"""What an agent is: a definition, and nothing that runs."""

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
from repertory._json_types import JsonType, json_type
from repertory._json_values import ValueType
from repertory.agents.delegation import Delegation
from repertory.context import ContextPolicy, MessageEvent
from repertory.errors import ConfigurationError
from repertory.llm.json_outputs import FINAL_RESULT
from repertory.llm.messages import Json, canonical_json
from repertory.llm.model import Model
from repertory.memory import MemoryMode, PayloadScope
from repertory.record.rows import encode_json
from repertory.tools import Approvals, Tool, tool
from repertory.tools.decorator import how_to_list, is_plain_function
from repertory.tools.tool_sets import ToolSet

if sys.version_info >= (3, 13):
    from typing import TypeVar
else:
    from typing_extensions import TypeVar
if TYPE_CHECKING:
    from typing_extensions import TypeForm

ResultT = TypeVar("ResultT", default=str)

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


class Limits(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """Bounds on one run and on the runs below it. A run that reaches one ends with ``LimitExceeded``.

    They count what is on record, in whichever process it happened, and are reserved before anything begins. A run below
    others is bound by its own limits and by theirs: the smaller counts.

    Attributes:
        iterations: Iterations of one run from its task, or from what its user said to it last, each of which is a model
            call that was answered: it keeps a run from going in circles with nobody there. All other limits count on
            over everything that the run is asked.
        depth: How many levels of sub-agents may stand below the root; 0 forbids delegation.
        runs: How many runs the whole tree may hold, the root included; also those that have ended.
        cost: US dollars that the run and those below it may spend, by their models' prices, the summarizer's calls
            included; None for no bound. The call with which the bound is reached is still paid; where calls side by
            side could go further beyond it, they are made one after the other. A call that was cut off, or an attempt
            that broke off, counts with the most that it can have cost.
        tokens: The same in tokens, of all prompts, whether read from the cache or not, and of all answers; None for no
            bound.
        seconds: How long the run and those below it may work, from its first model call on. Counted in all processes by
            the clock of the tree, which stands still while the root is paused and while nobody runs the tree. Then what
            is under way is cancelled, as by ``Run.kill``. After a crash, time since the last event is not known. None
            for no bound.
        tool_calls: How many tool calls the run and those below it may make; one that is answered from an earlier one's
            result is none. A call beyond it is not made, and the model is told; one that goes on calling ends its run.
            None for no bound.
        parallel_tools: How many tool calls of one message run at once.

    Raises:
        ConfigurationError: A value is no number, or out of its bounds.
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
            check_number(f"limits.{name}", getattr(self, name), int | float, least=0, none=True)
            if getattr(self, name) == 0:
                raise ConfigurationError(f"limits.{name} must be above 0, or None for no bound, got 0")


class Agent(msgspec.Struct, Generic[ResultT], frozen=True, repr_omit_defaults=True):
    """A definition: instructions, tools, team and policies. Spawn it with a supervisor, any number of times.

    An ``Agent[Report]`` gives a ``Report``, and one without ``output`` is an ``Agent[str]``.

    Attributes:
        name: What it is called; a letter, then letters, digits, ``_`` and ``-``, at most 64.
        instructions: The system text that the model reads first.
        tools: What it may call: tools, and tool sets that are opened with the run, such as an ``McpServer``. Of a plain
            function, a method or a ``functools.partial`` among them a tool is made, as by ``tool`` without options.
        disabled_tools: Names of tools that it is not to have, whoever would give them: ``tools``, a tool set, its team
            or its context policy.
        team: Agents that it may delegate to. The model gets a ``delegate`` tool that names them.
        model: A model, or the name of one; None means its parent's, and for a root the supervisor's.
        memory: Whose memory it uses as a sub-agent: its parent's (``shared``), its parent's as it stands at the
            delegation plus what it writes itself (``snapshot``), or its own, empty at first (``isolated``). In
            ``shared-read-only`` and ``snapshot-read-only`` it writes nothing.
        context: How much of the record the model sees. None means a plain loop: everything, always.
        limits: How far one run may go. A sub-agent is bound by the limits of the runs above it as well.
        max_tokens: Tokens of one answer; never more than the model can give.
        options: Further top-level fields of the Messages API, such as ``thinking`` or ``temperature``; not those that
            a request has by itself, such as ``model``.
        description: One line for those who may delegate to it; "" shows the beginning of the instructions.
        delegation: How it works with its team; see ``Delegation``.
        payload: The type of its payload: a ``msgspec.Struct``, a dataclass, a ``TypedDict``, a mapping or a pydantic
            model; None for none. ``{payload.topic}`` in its instructions shows a part of it, as the run begins with it.
        payload_scope: Which places of its lead's payload it gets as a sub-agent, and which it may change.
        on_lifecycle: Called with what becomes of each message of its runs: added, expired, compacted, removed,
            covered, expanded. A plain function, called in the loop, so it must be quick. What it raises is logged
            and counted (``Run.listener_errors``) and never breaks the run.
        output: The type of its results: a ``msgspec.Struct``, a dataclass, a ``TypedDict``, a model of pydantic's,
            ``list[…]``, a union, …; None and ``str`` mean text.
        output_retries: How many results in a row may not fit that type, of which the model is told why, before the run
            fails with ``ResultInvalid``.
        approvals: Which calls of it and of those below it wait until a person allows them, or are never made; None for
            no rules.
        input: The type of its tasks, likewise; ``spawn`` takes a value of it, and so does ``delegate``.
        placement: Labels that a machine must offer for its runs to work there, where several share a journal: those of
            a sub-agent work wherever that is, not beside its lead; see ``docs/scale.md``. () for anywhere, and as a
            sub-agent beside its lead. With one machine everything works there.
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
        check_pattern("agent name", self.name, _NAME, "be a letter, then letters, digits, _ and -, at most 64 in all")
        where = f"agent {self.name}"
        # msgspec does not look at what is passed in code.
        check_types(f"{where}: ", self, _FIELDS)
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
        if self.output_type is not None:
            self._check_output(where)
        json_type(self.input, f"{where}: input")

    def _make_tools(self) -> None:
        """Make tools of the functions among them."""
        given: Any = self.tools
        if isinstance(given, tuple) and any(map(is_plain_function, given)):
            made = tuple(tool(each) if is_plain_function(each) else each for each in given)
            msgspec.structs.force_setattr(self, "tools", made)

    def _check_options(self, where: str) -> None:
        """See that they can be sent, and put nothing in place of what is budgeted, planned and recorded."""
        for name, value in self.options.items():
            given: Any = name
            if given in _NO_OPTIONS:
                raise ConfigurationError(f"{where}: options cannot have {given!r}: {_NO_OPTIONS[given]}")
            try:
                check_type(f"{where}: the name of an option", given, str, "a text")
                encode_json(thaw({name: value}))
            except (TypeError, ValueError) as error:
                raise ConfigurationError(f"{where}: options[{given!r}] cannot be sent as JSON: {error}") from error

    def _check_output(self, where: str) -> None:
        """See that nothing else stands where the result is to come."""
        if any(tool.name == FINAL_RESULT for tool in self.own_tools):
            raise ConfigurationError(f"{where}: a tool is named {FINAL_RESULT}, by which the model gives its output")
        if (self.options.get("output_config") or {}).get("format") is not None:
            raise ConfigurationError(f"{where} has output and options['output_config']['format']; leave the latter out")

    @property
    def summary(self) -> str:
        """One line that says what it is for."""
        return self.description or self.instructions.strip().split("\n", 1)[0][:200] or self.name

    @property
    def own_tools(self) -> tuple[Tool, ...]:
        """Those of its tools that need not be opened."""
        return tuple(each for each in self.tools if isinstance(each, Tool))

    @property
    def tool_sets(self) -> tuple[ToolSet, ...]:
        """Those of its tools that are opened with a run."""
        return tuple(each for each in self.tools if isinstance(each, ToolSet))

    @property
    def output_type(self) -> JsonType | None:
        """What its results must fit; None for text."""
        return json_type(self.output, f"agent {self.name}: output")

    @property
    def input_type(self) -> JsonType | None:
        """What its tasks must fit; None for text."""
        return json_type(self.input, f"agent {self.name}: input")

    def member(self, name: str) -> Agent[Any] | None:
        """The team member of that name; None if there is none."""
        return next((member for member in self.team if member.name == name), None)

    @property
    def digest(self) -> str:
        """Hash of everything that shapes what the agent does, its team included.

        A run that is resumed under another digest goes on, but says so.
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
    """Raise ``ConfigurationError`` for what is no ``Agent``."""
    if not isinstance(agent, Agent):
        raise ConfigurationError(f"expected an Agent, got {agent!r:.100}")


def check_listener(listener: object) -> None:
    """Raise ``ConfigurationError`` for what cannot be called, or would never be awaited."""
    if listener is None or (callable(listener) and not inspect.iscoroutinefunction(listener)):
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
_A_MODEL: Final = (Model | str | None, "a Model, the name of one or None")
_FIELDS: Final[tuple[tuple[str, Any, str], ...]] = (
    ("instructions", str, "a text"),
    ("description", str, "a text"),
    ("limits", Limits, f"Limits(…), which has {', '.join(Limits.__struct_fields__)}"),
    ("delegation", Delegation, f"Delegation(…), which has {', '.join(Delegation.__struct_fields__)}"),
    ("options", Mapping, "a dict of fields of the Messages API"),
    ("context", ContextPolicy | None, "a ContextPolicy, or None for a plain loop"),
    ("payload_scope", PayloadScope | None, "PayloadScope(read=(…), write=(…)), or None"),
    ("approvals", Approvals | None, "Approvals(…), or None for no rules"),
    ("model", *_A_MODEL),
)


def check_model(model: object, where: str) -> None:
    """Raise ``ConfigurationError`` for what is neither a model nor the name of one."""
    check_type(where, model, *_A_MODEL)


def _check_members(where: str, members: Any, kind: Any, advice: str) -> None:
    if not isinstance(members, Sequence) or isinstance(members, str):
        raise ConfigurationError(f"{where} must be a list, got {repr(members)[:200]}")
    for index, member in enumerate(members):
        if not isinstance(member, kind):
            how = how_to_list(member, advice)
            raise ConfigurationError(f"{where}[{index}] is {repr(member)[:200]}; {how}")
    names = [member.name for member in members]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ConfigurationError(f"{where} must have different names, got {', '.join(repeated)} more than once")
