"""An agent with the tools of an MCP server, which is started, reconnected if needed and closed with the supervisor.

It needs ``pip install "repertory[mcp]"``."""

import sys
from pathlib import Path

import repertory as rp
from repertory.mcp import McpServer

canteen = McpServer(
    "canteen", [sys.executable, str(Path(__file__).with_name("mcp_server.py"))], include=["search_menu"]
)
guest = rp.Agent("guest", instructions="Say what there is to eat, with its price.", tools=[canteen])

if __name__ == "__main__":
    print(rp.run_sync(guest, "What does the dal cost?"))
