"""The ``@tool`` decorator, how tools are run, and the built-in tools."""

from repertory.tools.approvals import Approvals, CallRule, ProposedCall
from repertory.tools.context import ContentReader, RunRecord, ToolContext
from repertory.tools.decorator import Tool, tool
from repertory.tools.execution import call_tool
from repertory.tools.files import file_tools
from repertory.tools.media import media_block
from repertory.tools.memory_files import memory_files_tool
from repertory.tools.output import ErrorDetail, ResultLater, ToolOutput
from repertory.tools.over_memory import memory_tools
from repertory.tools.retrieval import context_tools
from repertory.tools.skills import skill_tool
from repertory.tools.threads import is_left_behind
from repertory.tools.tool_sets import ToolSet

__all__ = [
    "Approvals",
    "CallRule",
    "ContentReader",
    "ErrorDetail",
    "ProposedCall",
    "ResultLater",
    "RunRecord",
    "Tool",
    "ToolContext",
    "ToolOutput",
    "ToolSet",
    "call_tool",
    "context_tools",
    "file_tools",
    "is_left_behind",
    "media_block",
    "memory_files_tool",
    "memory_tools",
    "skill_tool",
    "tool",
]
