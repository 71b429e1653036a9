"""The OpenAPI 3.1 document of the service, made from the table of operations and their structs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from repertory._version import __version__
from repertory.llm.messages import Json
from repertory.service.access import OPEN
from repertory.service.routes import PARTS, Operation
from repertory.service.views import AgentView
from repertory.tools.docstrings import read_docstring

_REFERENCE: Final = "#/components/schemas/{name}"
_JSON: Final = "application/json"


class Problem(msgspec.Struct, frozen=True):
    """The body of every error: the fact, then what to do instead."""

    error: str


ANY_ERRORS: Final[tuple[int, ...]] = (400, 401, 403, 421, 500, 503)  # any request may get these
BODY_ERRORS: Final[tuple[int, ...]] = (408, 413, 415)  # a request with a body may get these, too
_MEANS: Final[dict[int, str]] = {
    400: "The request is not what was expected.",
    401: "No valid token came with it.",
    403: "It comes from the page of another site.",
    404: "There is no such thing.",
    408: "The body did not come in time.",
    409: "Not in the state that things are in.",
    413: "The body is too large.",
    415: "The body is no application/json.",
    421: "The host is not this machine's.",
    422: "It was understood, and contradicts what is on record or what the agent takes.",
    429: "Too many runs of this client wait already; Retry-After says when to ask again.",
    500: "The service is at fault.",
    503: "The journal does not answer, a model has no key, or too much is open; try again later.",
}


def document(operations: Sequence[Operation], agents: Sequence[AgentView]) -> Json:
    """Make the document of all operations, narrowed to the agents that a run can be started with."""
    parts: list[Any] = [part for each in operations for part in (*map(each.takes, PARTS), each.gives)]
    kinds = [Problem, *(kind for kind in parts if kind is not None)]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    by_type = dict(zip(map(str, kinds), schemas, strict=True))
    _, given = msgspec.json.schema_components([Problem, *(each.gives for each in operations if each.gives is not None)])
    for name, schema in components.items():
        components[name] = _described(schema)
        if name in given:
            components[name]["required"] = [*schema["properties"]]  # an answer has all its fields, also with defaults
    _narrow(components, agents)
    paths: dict[str, Json] = {}
    for operation in operations:
        path = re.sub(r"\{(\w+):\w+\}", r"{\1}", operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _operation(operation, by_type, components)
    for kind in {kind.__name__ for each in operations for kind in (each.takes("query"), each.takes("headers")) if kind}:
        del components[kind]  # they are written as parameters
    problem = {_JSON: {"schema": {"$ref": _REFERENCE.format(name=Problem.__name__)}}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "repertory",
            "version": __version__,
            "description": "Starts, watches and steers runs of agents. See docs/service.md.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "On a port. On the unix socket the file's mode decides who may ask.",
                }
            },
            "responses": {str(status): {"description": means, "content": problem} for status, means in _MEANS.items()},
        },
        "security": [{"token": []}],
    }


def _narrow(components: dict[str, Json], agents: Sequence[AgentView]) -> None:
    """Narrow the schemas to what this particular service accepts."""
    fields = components["NewRun"]["properties"]
    if agents:
        fields["agent"]["enum"] = [agent.name for agent in agents]
    if not any(agent.root for agent in agents):
        del fields["root"]


def _operation(operation: Operation, by_type: dict[str, Json], components: dict[str, Json]) -> Json:
    body = operation.takes("body")
    errors = sorted({*ANY_ERRORS, *operation.errors, *(BODY_ERRORS if body is not None else ())})
    summary, _, more = inspect.cleandoc(operation.handle.__doc__ or "").partition("\n\n")
    described: Json = {
        "operationId": operation.handle.__name__,
        "summary": " ".join(summary.split()),
        "parameters": [*_parameters(operation, components)],
        "responses": {
            **{str(status): {"$ref": f"#/components/responses/{status}"} for status in errors},
            **{str(status): _answer(operation, status, by_type) for status in (operation.status, *operation.also)},
        },
    }
    if more:
        described["description"] = more
    if (operation.method, operation.path) in OPEN:
        described["security"] = []
    if body is not None:
        described["requestBody"] = {"required": True, "content": {_JSON: {"schema": by_type[str(body)]}}}
    return described


def _answer(operation: Operation, status: int, by_type: dict[str, Json]) -> Json:
    if status == 204:
        return {"description": "Done."}
    as_json = {} if operation.gives is None else by_type[str(operation.gives)]
    content = {media: {"schema": as_json if media == _JSON else {"type": "string"}} for media in operation.media}
    return {"description": "The answer.", "content": content}


def _parameters(operation: Operation, components: dict[str, Json]) -> Iterator[Json]:
    for name in re.findall(r"\{(\w+)(?::\w+)?\}", operation.path):
        schema = {"type": "string"} | ({"pattern": "^([0-9]{1,18}|newest)$"} if name == "call" else {"minLength": 1})
        yield {"name": name, "in": "path", "required": True, "schema": schema, "description": _PATH_PARTS[name]}
    for kind, where in ((operation.takes("query"), "query"), (operation.takes("headers"), "header")):
        if kind is None:
            continue
        component = components[kind.__name__]
        for name, schema in component["properties"].items():
            wanted = name in component.get("required", ())
            # An absent header differs from an empty one, so it has no default.
            shown = {key: value for key, value in schema.items() if (where, key) != ("header", "default")}
            yield {"name": name, "in": where, "required": wanted, "schema": shown}


_PATH_PARTS: Final = {
    "run_id": "The run's id; of one that the service made, an unambiguous beginning will do.",
    "call_id": "The tool call, as GET /approvals lists it.",
    "call": "The number of the model call in its run, or `newest`.",
    "content_id": "The citation, as GET /runs/{run_id}/contents lists it.",
}


def _described(schema: Json) -> Json:
    """A schema with the descriptions of its fields taken from the docstring of its struct."""
    # Python 3.13 takes the indentation out of docstrings itself.
    text, said = read_docstring(inspect.cleandoc(schema.get("description", "")))
    if not said:
        return schema
    fields = {
        field: {**kept, "description": said[field]} if field in said and "$ref" not in kept else kept
        for field, kept in schema.get("properties", {}).items()
    }
    return {**schema, "description": text, "properties": fields}
