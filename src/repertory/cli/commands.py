"""How a function becomes a command: groups of options are spread, coroutines run, and what it answers is written."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from repertory.cli import output
from repertory.cli.options import AS_JSON

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Answer:
    """What a command found out.

    Attributes:
        fields: What ``--json`` writes.
        show: Writes it for a person.
        error: What the command ends with behind it; None where all is well.
    """

    fields: Any
    show: Callable[[Console], None]
    error: BaseException | None = None


def command(function: Callable[..., Any], *, backend: str = "asyncio") -> Callable[..., None]:
    """Make of a function what typer takes for a command.

    A parameter whose type is a dataclass stands for the options that its fields are, each with its option in
    ``Annotated``. What returns an ``Answer`` gets ``--json``, unless it has one of its own.

    Args:
        function: The function; a coroutine function is run.
        backend: The event loop where ``--backend`` does not name it: asyncio starts sooner, and trio ends a stream
            without a word in its middle.
    """
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for each in inspect.signature(function).parameters.values():
        if is_dataclass(hints[each.name]):
            groups[each.name] = hints[each.name]
            parameters += _spread(hints[each.name])
        else:
            parameters.append(_parameter(each.name, hints[each.name], each.default))
    is_added = hints.get("return") is Answer and all(each.name != "as_json" for each in parameters)
    if is_added:
        parameters.append(_parameter("as_json", bool, AS_JSON))

    def run(**given: Any) -> None:
        as_json = given.pop("as_json") if is_added else given.get("as_json", False)
        loop = given.get("backend", backend)
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        if inspect.iscoroutinefunction(function):
            import anyio

            result = anyio.run(partial(function, **given), backend=loop)
        else:
            result = function(**given)
        if result is not None:
            write_answer(result, as_json=as_json)

    run.__name__, run.__doc__ = function.__name__, function.__doc__
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    vars(run)["__signature__"] = inspect.Signature(parameters)
    return run


def write_answer(answer: Answer, *, as_json: bool) -> None:
    """Write what a command found out, as JSON or for a person; raises what the command ends with."""
    if as_json:
        output.print_json(answer.fields)
    else:
        answer.show(output.console())
    if answer.error is not None:
        raise answer.error


def _spread(group: Any) -> Iterator[inspect.Parameter]:
    """The options that the fields of a group are."""
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        kind, option = get_args(hints[field.name])
        option = copy(option)
        option.default = () if field.default is MISSING else field.default
        yield _parameter(field.name, kind, option)


def _parameter(name: str, kind: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
