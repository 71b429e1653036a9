"""Questions that an MCP server asks a person during a call: the call waits for the answer and then continues.

Since protocol 2026-07-28 such a call ends with the question and a state for the client to keep, and is made again with
the answer. So it can wait for days, and across restarts. Older servers ask within the open request, on a connection
that all calls share, so only a function can answer, and at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from repertory.errors import ToolFailed
from repertory.llm.messages import Json
from repertory.tools.context import GivenAnswer
from repertory.tools.output import ResultLater, clean_text, one_line

if TYPE_CHECKING:
    import mcp_types as types
    from mcp.client.session import ElicitationFnT

OnInput: TypeAlias = Callable[[str, Json], Awaitable[Json | None]]

# The keywords that the protocol allows in a form. A person's answer is not checked by anything else that a server
# writes there, such as a pattern that takes for ever to match.
_WORDS = (
    *("type", "title", "description", "default", "enum", "enumNames", "const", "format"),
    *("minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems"),
)
_NESTED = ("items", "anyOf", "oneOf")
_MOST_SHOWN = 10_000  # characters of a server's question that a person is shown


def result_later(asked: types.InputRequiredResult, *, server: str, timeout: float | None) -> ResultLater:
    """The result of a call that waits because its server asks a person something.

    Raises:
        ToolFailed: The server asks for something else: for a model's answer, or for folders.
    """
    import mcp_types as types

    messages: list[str] = []
    schemas: dict[str, Json] = {}
    for key, request in (asked.input_requests or {}).items():
        if not isinstance(request, types.ElicitRequest):
            raise ToolFailed(f"server {server} asks for {request.method}, which it cannot be given here")
        message, schemas[key] = _read(request.params)
        messages.append(message)
    schema: Json = {"type": "object", "properties": schemas, "required": list(schemas), "additionalProperties": False}
    if len(schemas) == 1:
        (schema,) = schemas.values()
    return ResultLater(
        f"server {server} asks: " + "; ".join(messages),
        timeout=timeout,
        schema=schema,
        state={"asked": schemas, "request_state": asked.request_state},
    )


def responses(answer: GivenAnswer) -> types.InputResponses:
    """The responses to the server's questions: declined if a person refused, cancelled if nobody answered in time."""
    import mcp_types as types

    asked: dict[str, Json] = answer.state["asked"]
    if answer.is_error:
        refusal = types.ElicitResult(action="cancel" if answer.expired else "decline")
        return dict.fromkeys(asked, refusal)
    contents = dict.fromkeys(asked, answer.value) if len(asked) == 1 else answer.value
    return {key: types.ElicitResult(action="accept", content=contents[key]) for key in asked}


def legacy_handler(function: OnInput | None, *, server: str) -> ElicitationFnT:
    """A callback that answers a server of an older protocol, which asks within an open call."""

    async def answer(context: object, params: types.ElicitRequestParams) -> types.ElicitResult | types.ErrorData:
        import mcp_types as types

        if function is None:
            told = (
                "this client cannot keep a call open until a person answers: ask by an input_required result, which "
                "protocol 2026-07-28 has, or give the McpServer on_input"
            )
            return types.ErrorData(code=types.INVALID_REQUEST, message=told)
        try:
            content = await function(*_read(params))
        except Exception as error:  # noqa: BLE001 - foreign code; the server is told that there is no answer
            return types.ErrorData(code=types.INTERNAL_ERROR, message=f"on_input of {server}: {one_line(error)}")
        return types.ElicitResult(action="decline" if content is None else "accept", content=content)

    return answer


def _read(params: types.ElicitRequestParams) -> tuple[str, Json]:
    """The text that a person is shown, and the schema of the answer."""
    message = clean_text(params.message)[0][:_MOST_SHOWN]
    if params.mode == "url":
        return f"{message} (open {params.url[:_MOST_SHOWN]} yourself, then answer null)", {"type": "null"}
    form: Mapping[str, Any] = params.requested_schema
    fields = form.get("properties")
    fields = fields if isinstance(fields, dict) else {}
    required = [name for name in form.get("required") or () if name in fields]
    properties = {str(name): _field(field) for name, field in fields.items()}
    return message, {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _field(schema: Any) -> Any:
    """The schema of a field, reduced to the keywords that the protocol allows."""
    if not isinstance(schema, dict):
        return {}
    kept = {name: value for name, value in schema.items() if name in _WORDS}
    for name in _NESTED:
        inner = schema.get(name)
        if isinstance(inner, list):
            kept[name] = [_field(each) for each in inner]
        elif inner is not None:
            kept[name] = _field(inner)
    return kept
