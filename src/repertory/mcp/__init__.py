"""MCP: servers of the Model Context Protocol as tools of agents. Needs the extra ``repertory[mcp]``."""

from __future__ import annotations

from repertory.mcp.client import McpServer

__all__ = ["McpServer"]
