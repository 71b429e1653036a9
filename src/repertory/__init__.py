# The public surface of repertory. From the bottom up:
#
#   errors      the error tree
#   actors      mailboxes, references, supervision: knows nothing of models
#   llm         messages, the Model protocol, Anthropic's models, profiles and prices
#   offline     a stand-in for a model, by rules
#   record      ledger, journal, search over them: what happened
#   machines    what several processes on one journal agree on: who is alive, who runs what
#   memory      memory items and their scopes: what agents keep
#   shortening  how results and old stretches of a record are shortened (pure functions)
#   context     plan, projection, planner: what is shown (pure functions)
#   summarizer  the background actor that writes summaries
#   tools       the @tool decorator, the execution contract, built-in tools
#   agents      Agent: definitions of agents, and how they are loaded
#   runs        the state of a run that is under way, and its events
#   views       what a model is shown of a run, and how its answers are read
#   loop        the loop of a run, its tool calls, its team
#   supervisor  Supervisor, Run: how runs begin, wait, continue and end
#   mcp         servers of the Model Context Protocol as tools, and agents as such a server
#   service     a long-lived process with an HTTP interface, its page, companies from a file
#   otel        traces and metrics by the conventions of OpenTelemetry
#   testing     scripted models and a strict server, for tests of code that calls a model
#   replay      recorded runs replayed: what a policy shows and costs
#   torture     scenarios that try to make it lose something
#   cli         the command line
#
# Each layer imports only those above it in this list; tests/test_layers.py checks that.
# Names are imported on first use, so a program loads only the layers that it uses; the layers themselves, too, so that
# ``repertory.errors`` is there from the start, and not only once something else has imported it.
"""Hierarchies of LLM agents as supervised actors, with a full record on disk and a small, priced view for the model."""

from __future__ import annotations

from importlib import import_module

from repertory._version import __version__

TYPE_CHECKING = False  # importing typing for it would take longer than all other imports here
if TYPE_CHECKING:
    from repertory.agents import Agent, Delegation, Limits, load_agent, load_agents, research_team
    from repertory.context import ContextPolicy
    from repertory.errors import RepertoryError, ToolAbort, ToolFailed, ToolRetry
    from repertory.llm import AnthropicModel, Model, ModelProfile, profile_for
    from repertory.memory import Memory, Payload, PayloadScope, SourceRecord
    from repertory.offline import OfflineModel
    from repertory.record import RunStatistics, open_journal
    from repertory.runs import AlertThresholds, open_model
    from repertory.shortening import ResultPolicy
    from repertory.supervisor import Quota, Quotas, Run, Supervisor, open_supervisor, run, run_sync
    from repertory.tools import (
        Approvals,
        CallRule,
        ResultLater,
        Tool,
        ToolContext,
        ToolOutput,
        call_tool,
        context_tools,
        file_tools,
        media_block,
        memory_files_tool,
        memory_tools,
        skill_tool,
        tool,
    )

_HOMES = {
    "agents": "Agent Delegation Limits load_agent load_agents research_team",
    "context": "ContextPolicy",
    "errors": "RepertoryError ToolAbort ToolFailed ToolRetry",
    "llm": "AnthropicModel Model ModelProfile profile_for",
    "memory": "Memory Payload PayloadScope SourceRecord",
    "offline": "OfflineModel",
    "record": "RunStatistics open_journal",
    "runs": "AlertThresholds open_model",
    "shortening": "ResultPolicy",
    "supervisor": "Quota Quotas Run Supervisor open_supervisor run run_sync",
    "tools": "Approvals CallRule ResultLater Tool ToolContext ToolOutput call_tool context_tools file_tools "
    "media_block memory_files_tool memory_tools skill_tool tool",
}
_HOME_OF = {name: room for room, names in _HOMES.items() for name in names.split()}

if TYPE_CHECKING:
    from repertory import (  # isort: skip
        actors as actors,
        agents as agents,
        context as context,
        errors as errors,
        llm as llm,
        machines as machines,
        mcp as mcp,
        memory as memory,
        offline as offline,
        otel as otel,
        record as record,
        replay as replay,
        runs as runs,
        service as service,
        shortening as shortening,
        summarizer as summarizer,
        supervisor as supervisor,
        testing as testing,
        tools as tools,
    )
_ROOMS = {*_HOMES, "actors", "machines", "mcp", "otel", "replay", "service", "summarizer", "testing"}

__all__ = [
    "Agent",
    "AlertThresholds",
    "AnthropicModel",
    "Approvals",
    "CallRule",
    "ContextPolicy",
    "Delegation",
    "Limits",
    "Memory",
    "Model",
    "ModelProfile",
    "OfflineModel",
    "Payload",
    "PayloadScope",
    "Quota",
    "Quotas",
    "RepertoryError",
    "ResultLater",
    "ResultPolicy",
    "Run",
    "RunStatistics",
    "SourceRecord",
    "Supervisor",
    "Tool",
    "ToolAbort",
    "ToolContext",
    "ToolFailed",
    "ToolOutput",
    "ToolRetry",
    "__version__",
    "call_tool",
    "context_tools",
    "file_tools",
    "load_agent",
    "load_agents",
    "media_block",
    "memory_files_tool",
    "memory_tools",
    "open_journal",
    "open_model",
    "open_supervisor",
    "profile_for",
    "research_team",
    "run",
    "run_sync",
    "skill_tool",
    "tool",
]

if not TYPE_CHECKING:  # with it, a type checker would accept any name

    def __getattr__(name):
        if name in _ROOMS:
            return import_module(f"{__name__}.{name}")
        room = _HOME_OF.get(name)
        if room is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{room}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
