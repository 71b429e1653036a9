"""Makes commands of functions: expands groups of options, runs coroutines and prints answers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from repertory.cli import output
from repertory.cli.options import AS_JSON

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Answer:
    """The answer of a command.

    Attributes:
        fields: What ``--json`` writes.
        show: Writes the answer for a person.
        error: Raised after the answer was written; None if the command succeeded.
    """

    fields: Any
    show: Callable[[Console], None]
    error: BaseException | None = None


def command(function: Callable[..., Any], *, backend: str = "asyncio") -> Callable[..., None]:
    """Make a command for typer from a function.

    A parameter whose type is a dataclass stands for one option per field, declared in the field's ``Annotated`` type.
    A function that returns an ``Answer`` gets ``--json``, unless it has that option already.

    Args:
        function: The function. A coroutine that it makes is run on an event loop; one that loads code of the user does
            so before, because that code may run an event loop of its own.
        backend: The event loop if ``--backend`` does not name one: asyncio starts faster, and trio prints nothing
            when a stream is ended in its middle.
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
        result = made = function(**given)
        if inspect.iscoroutine(made):
            import anyio

            result = anyio.run(lambda: made, backend=loop)
        if result is not None:
            write_answer(result, as_json=as_json)

    run.__name__, run.__doc__ = function.__name__, function.__doc__
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    vars(run)["__signature__"] = inspect.Signature(parameters)
    return run


def write_answer(answer: Answer, *, as_json: bool) -> None:
    """Write the answer of a command, as JSON or for a person; raises the error of the answer, if any."""
    if as_json:
        output.print_json(answer.fields)
    else:
        answer.show(output.console())
    if answer.error is not None:
        raise answer.error


def _spread(group: Any) -> Iterator[inspect.Parameter]:
    """The parameters for the fields of a group of options."""
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        kind, option = get_args(hints[field.name])
        option = copy(option)
        option.default = () if field.default is MISSING else field.default
        yield _parameter(field.name, kind, option)


def _parameter(name: str, kind: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
