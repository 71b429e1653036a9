"""Tools from servers of the Model Context Protocol (MCP). Needs the extra ``repertory[mcp]``."""

from __future__ import annotations

from repertory.mcp.client import McpServer

__all__ = ["McpServer"]
