"""The ``@tool`` decorator and the ``Tool`` it makes."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, TypeAlias, overload

import msgspec

from repertory._choices import check_choice, check_number, check_type, show
from repertory.errors import ConfigurationError
from repertory.llm.messages import Json
from repertory.llm.model import ToolSchema
from repertory.record.records import Effect
from repertory.shortening import ResultPolicy
from repertory.tools.approvals import ProposedCall
from repertory.tools.schema import Definition, read_definition, with_schema

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, TypeVar

    P = ParamSpec("P", default=...)
    R = TypeVar("R", default=Any)
else:
    from typing import ParamSpec, TypeVar

    P, R = ParamSpec("P"), TypeVar("R")  # before Python 3.13 they have no defaults, which only type checkers need

Approval: TypeAlias = Literal["always", "never"] | Callable[[ProposedCall], bool]
DEFAULT_DEADLINE: Final = 120.0
DEFAULT_OUTPUT_CAP: Final = 2_000_000


class Tool(msgspec.Struct, Generic[P, R], frozen=True, kw_only=True, eq=False):
    """A function that a model may call. ``tool`` makes it; calling it calls the function.

    A ``Tool[P, R]`` has the parameters ``P`` and the return type ``R`` of its function; a bare ``Tool`` has any.

    Attributes:
        name: The name that the model calls it by.
        function: The function to run: a plain one runs in a thread, an async one in the caller's task.
        definition: What the function's signature and docstring say.
        effect: What running it again would do: ``pure`` (nothing: it only reads), ``idempotent`` (nothing more,
            under the same idempotency key), ``transactional`` (its records commit with its outcome, or not at
            all) or ``unsafe`` (never run again unless the model asks).
        deadline: Seconds for one call; None for no limit.
        output_cap: Maximum number of characters of a result that are kept; None keeps everything. The context policy
            decides how much of that the model is shown.
        repeatable: Whether a repeated call may be answered from its earlier result.
        computes: Whether it keeps a core busy. Only about as many such calls run at once as there are cores.
        policy: How its results are shaped and how long they stay, unless the agent or the run says otherwise.
        approval: Whether a person must approve each call before it is made: ``always``, ``never``, or a function that
            decides for one call.
        provider_type: The type under which a model's provider knows a tool with these arguments; see ``ToolSchema``.
        own_names: Other names that rules for approvals know it by: the one at its server, if that is none for a model,
            and the one in its tool set, if ``name`` has the name of the set in front of it.
        guidance: What the model is told in the system text as long as it has this tool, once for all tools with the
            same guidance; "" for nothing.
    """

    name: str
    function: Callable[P, R]
    definition: Definition
    effect: Effect = "unsafe"
    deadline: float | None = DEFAULT_DEADLINE
    output_cap: int | None = DEFAULT_OUTPUT_CAP
    repeatable: bool = False
    computes: bool = False
    policy: ResultPolicy | None = None
    approval: Approval = "never"
    provider_type: str = ""
    own_names: tuple[str, ...] = ()
    guidance: str = ""

    @property
    def description(self) -> str:
        """The description that the model is given."""
        return self.definition.description

    @property
    def input_schema(self) -> Json:
        """JSON schema of its arguments."""
        return self.definition.input_schema

    @property
    def schema(self) -> ToolSchema:
        """The tool as a model request carries it."""
        return ToolSchema(self.name, self.description, self.input_schema, self.provider_type)

    def __repr__(self) -> str:
        return f"<Tool {self.name}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, without checks, deadline or bounds."""
        return self.function(*args, **kwargs)


class ToolMaker(Protocol):
    """The decorator that ``tool`` returns when it is called with options. It keeps the function's signature."""

    def __call__(self, function: Callable[P, R], /) -> Tool[P, R]:
        """Turn the function into a tool."""
        ...


@overload
def tool(
    function: Callable[P, R],
    /,
    *,
    name: str | None = ...,
    description: str | None = ...,
    schema: Json | None = ...,
    effect: Effect = ...,
    deadline: float | None = ...,
    output_cap: int | None = ...,
    repeatable: bool | None = ...,
    computes: bool = ...,
    policy: ResultPolicy | None = ...,
    approval: Approval = ...,
) -> Tool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = ...,
    description: str | None = ...,
    schema: Json | None = ...,
    effect: Effect = ...,
    deadline: float | None = ...,
    output_cap: int | None = ...,
    repeatable: bool | None = ...,
    computes: bool = ...,
    policy: ResultPolicy | None = ...,
    approval: Approval = ...,
) -> ToolMaker: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    schema: Json | None = None,
    effect: Effect = "unsafe",
    deadline: float | None = DEFAULT_DEADLINE,
    output_cap: int | None = DEFAULT_OUTPUT_CAP,
    repeatable: bool | None = None,
    computes: bool = False,
    policy: ResultPolicy | None = None,
    approval: Approval = "never",
) -> Any:
    """Turn a plain function, an async function, a bound method or a ``functools.partial`` into a tool.

    The model is given the docstring and a JSON schema of the annotated parameters. The ``Args`` section of a
    Google-style docstring and ``Annotated[…, msgspec.Meta(…)]`` describe the parameters. A parameter annotated
    ``ToolContext`` is filled in at each call, and the model does not see it. ::

        @tool(effect="pure", deadline=20)
        async def fetch(url: str) -> str:
            \"""Fetch a page as Markdown.\"""

    Args:
        function: The function, if the decorator is used without parentheses.
        name: The name that the model calls it by; the function's name by default.
        description: The description that the model is given; the docstring by default.
        schema: JSON schema of the arguments, if somebody else wrote one, such as an HTTP API. They are checked by it,
            and the function takes them all as one dict, beside a ``ToolContext``. Needs ``repertory[mcp]``.
        effect: What running it again would do, see ``Tool``. It decides what happens after a crash.
        deadline: Seconds for one call; None for no limit.
        output_cap: Maximum number of characters of a result that are kept, from its head and its tail; None keeps
            everything.
        repeatable: Whether a repeated call may be answered from its earlier result, as long as only pure tools ran in
            between. None means True for a pure tool and False for any other. Pass False for a pure tool that reads
            something that changes by itself, such as a clock or a queue.
        computes: Whether it keeps a core busy, rather than waiting for a disk, a network or a process. Only about as
            many such calls run at once as there are cores, so that everything else in the process stays responsive.
            The others wait for their turn, and that wait does not count towards the deadline.
        policy: How its results are shaped and how long they stay, unless the agent or the run says otherwise.
        approval: Whether a person must approve each call before it is made: ``always``, ``never``, or a plain, quick
            function that is given the ``ProposedCall`` and returns whether that call has to wait. If the function
            raises, the call waits. Agents and supervisors may be stricter, see ``Approvals``.

    Raises:
        ConfigurationError: The function cannot become a tool; the message names it and the parameter.
    """
    # The scope in which the function is decorated, so that annotations may use its local names.
    scope = sys._getframe(1).f_locals  # pyright: ignore[reportPrivateUsage] - documented, only spelled like a private

    def make(function: Callable[P, R]) -> Tool[P, R]:
        named: Any = function.func if isinstance(function, functools.partial) else function
        title = name if name is not None else getattr(named, "__name__", None)
        if title is None:
            raise ConfigurationError(f"{function!r} has no name of its own: give one, tool(function, name=…)")
        definition = read_definition(function, title, scope)
        where = f"tool {title!r}"
        check_type(f"{where}: description", description, str | None, "a text, or None for the docstring")
        check_type(f"{where}: schema", schema, dict | None, "a JSON schema as a dict, or None")
        check_choice(f"{where}: effect", effect, Effect)
        check_number(f"{where}: deadline", deadline, int | float, above=0, none=True)
        check_number(f"{where}: output_cap", output_cap, int, least=1, none=True)
        check_type(f"{where}: repeatable", repeatable, bool | None, "True, False or None")
        check_type(f"{where}: computes", computes, bool, "True or False")
        check_type(f"{where}: policy", policy, ResultPolicy | None, "a ResultPolicy(…), or None")
        if repeatable and effect != "pure":
            raise ConfigurationError(f"{where}: only a pure tool can be repeatable, its effect is {effect!r}")
        if approval not in ("always", "never") and (not callable(approval) or inspect.iscoroutinefunction(approval)):
            words = "'always', 'never' or a plain function of one ProposedCall"
            raise ConfigurationError(f"{where}: approval must be {words}, got {show(approval)}")
        if description is not None:
            definition = msgspec.structs.replace(definition, description=inspect.cleandoc(description))
        if not definition.description:
            stripped = " (python -OO and PYTHONOPTIMIZE=2 leave them out; use -O)" if sys.flags.optimize > 1 else ""
            raise ConfigurationError(f"{where} has no docstring{stripped}; the model must be told what it is for")
        return Tool(
            name=title,
            function=function,
            definition=definition if schema is None else with_schema(definition, title, schema),
            effect=effect,
            deadline=deadline,
            output_cap=output_cap,
            repeatable=effect == "pure" if repeatable is None else repeatable,
            computes=computes,
            policy=policy,
            approval=approval,
        )

    return make if function is None else make(function)


def made_tools(given: Iterable[Any], where: str) -> tuple[Tool, ...]:
    """Turn each plain function in a list into a tool, and keep the tools as they are.

    Raises:
        ConfigurationError: A member is neither. The message names ``where`` and its index.
    """
    made = tuple(tool(each) if is_plain_function(each) else each for each in given)
    for index, each in enumerate(made):
        if not isinstance(each, Tool):
            how = how_to_list(each, "name a function or a Tool")
            raise ConfigurationError(f"{where}[{index}] is {each!r:.200}; {how}")
    return made


def how_to_list(member: object, otherwise: str) -> str:
    """What to write instead of a list member that does not belong there."""
    if isinstance(member, list | tuple):
        return "unpack it with *"
    return "call it, and list what it gives" if inspect.isroutine(member) else otherwise


def is_plain_function(value: object) -> bool:
    """Whether a value is a function, a method or a ``functools.partial`` of one, which ``tool`` can make into a tool.

    The functions of this room, such as ``memory_tools``, do not count: whoever lists one forgot to call it.
    """
    routine = value.func if isinstance(value, functools.partial) else value
    home = getattr(routine, "__module__", None) or ""
    return inspect.isroutine(routine) and not home.startswith("repertory.tools.")
