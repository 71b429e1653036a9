"""A ready team that answers questions about the files of a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repertory.agents.agent import Agent, Limits
from repertory.context import ContextPolicy
from repertory.llm.model import Model
from repertory.tools import context_tools, file_tools, memory_tools

RESEARCH_CONTEXT = ContextPolicy(window=1, summarize_every=5)
"""Researchers store a finding as soon as they have it, so what they read need not stay in view for long."""

_LEAD = """\
You lead a small research team. The question is about the files of one folder, which your researchers can read
and you cannot. Split the question into at least three parts that can be looked into side by side, and delegate
each to a researcher in one turn; say in each task exactly what to find out and what to leave to the others.
When their reports are in, look through the findings they stored in memory, and delegate again if something
decisive is missing. Then answer the question: first the answer in two or three sentences, then what supports
it. Every claim ends with its source as path:line, copied from a report or a stored finding; a claim without
one is left out.
"""

_RESEARCHER = """\
You look into one part of a question about a folder of files. Search first, then read the passages around the
best hits; do not read whole files without need. Store each finding in memory as soon as you have it: one
sentence, with its source as path:line, tagged with its subject. Earlier results may be shown shortened: fetch
what you need again by its citation instead of searching anew. When you can answer your part, report: the
findings in order, each with its path:line, and what you could not find.
"""


def research_team(
    root: str | Path,
    *,
    model: Model | str | None = None,
    deny: Sequence[str] = (),
    allow: Sequence[str] = (),
    runs: int = 20,
    context: ContextPolicy | None = RESEARCH_CONTEXT,
) -> Agent:
    """Make a lead agent with a researcher that it can delegate to, confined to one folder.

    Args:
        root: The folder; nothing outside it can be read.
        model: The model for both; None leaves the choice to the supervisor.
        deny: Paths below the root that cannot be read either.
        allow: Files that may be read although their names look like those of secrets; see ``file_tools``.
        runs: How many runs the whole tree may have.
        context: How much of the record the models see; None shows everything, always.
    """
    researcher = Agent(
        "researcher",
        instructions=_RESEARCHER,
        description="Searches and reads the files, stores findings in memory, and reports with path:line sources.",
        tools=[*file_tools(root, deny=deny, allow=allow), *memory_tools(), *context_tools()],
        model=model,
        context=context,
        limits=Limits(iterations=40, depth=0),
    )
    return Agent(
        "lead",
        instructions=_LEAD,
        description="Splits a question about a folder, delegates the parts, and answers with sources.",
        tools=[*memory_tools(), *context_tools()],
        team=[researcher],
        model=model,
        context=context,
        limits=Limits(iterations=30, depth=1, runs=runs),
    )
