"""The resources of an MCP server: a tool of our own lists and reads them, as the protocol has no tool for that."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import anyio

from repertory.tools.output import ToolOutput

if TYPE_CHECKING:
    import mcp_types as types

    from mcp import Client

READ_RESOURCE: Final = "read_resource"
_MOST_PAGES = 100  # of one list
_PROBE = 5.0  # seconds for a first look at the lists; a server may walk through a whole drive to make one


async def read_list(fetch: Callable[..., Awaitable[Any]], field: str, *, pages: int = _MOST_PAGES) -> list[Any]:
    """Read a list of a server's, page by page; one that it does not know is empty.

    Args:
        fetch: The client's method for it.
        field: The field of its answer that holds the members.
        pages: The most pages to read.

    Raises:
        MCPError: The server refuses to give it.
        ValidationError: Its answer cannot be read.
    """
    from mcp.shared.exceptions import MCPError
    from mcp_types import METHOD_NOT_FOUND

    members: list[Any] = []
    cursor: str | None = None
    for _ in range(pages):
        try:
            page = await fetch(cursor=cursor, cache_mode="bypass")
        except MCPError as error:
            if error.code == METHOD_NOT_FOUND:
                break
            raise
        members += getattr(page, field)
        cursor = page.next_cursor
        if not cursor:
            break
    return members


async def has_resources(client: Client) -> bool:
    """Whether a server has resources. Many have none and say that they can: their SDK says it for them."""
    from mcp.shared.exceptions import MCPError
    from pydantic import ValidationError

    if client.server_capabilities.resources is None:
        return False
    try:
        with anyio.move_on_after(_PROBE):
            return bool(
                await read_list(client.list_resources, "resources", pages=1)
                or await read_list(client.list_resource_templates, "resource_templates", pages=1)
            )
    except (MCPError, ValidationError):
        return False
    return True


def reader(server: str) -> types.Tool:
    """The tool that lists and reads a server's resources, described as if the server offered it."""
    import mcp_types as types

    uri = {"type": "string", "description": "Leave it out to list the resources."}
    return types.Tool(
        name=READ_RESOURCE,
        description=f"Read a resource of the MCP server {server} by its URI, such as one that a result of it names.",
        input_schema={"type": "object", "properties": {"uri": uri}},
        annotations=types.ToolAnnotations(read_only_hint=True),
    )


async def list_resources(client: Client, *, server: str) -> ToolOutput:
    """A server's resources and templates for URIs, one a line.

    Raises:
        MCPError: The server refuses to list them.
        ValidationError: Its answer cannot be read.
    """
    lines = [_line(each.uri, each) for each in await read_list(client.list_resources, "resources")]
    lines += [
        _line(f"{each.uri_template} (put in what is in braces)", each)
        for each in await read_list(client.list_resource_templates, "resource_templates")
    ]
    return ToolOutput("\n".join(lines), source_type="mcp", facts={"server": server})


def _line(uri: str, named: types.Resource | types.ResourceTemplate) -> str:
    words = " ".join(word for word in (named.name, named.description and f"– {named.description}") if word)
    return f"{uri}: {' '.join(words.split())}"
