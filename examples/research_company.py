"""A research company: a lead, three researchers who share what they find, and a fact checker who only reads it.

They read the source of Python's standard library: documents of up to 100,000 characters. No document is shown whole:
it becomes a citation in the conversation and an entry in the payload's list of sources, and agents retrieve passages
of it. Run it as it is, or with ANTHROPIC_API_KEY set.
"""

import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

import repertory as rp

LIBRARY = Path(sysconfig.get_paths()["stdlib"])
QUESTION = (
    "How does asyncio wake tasks that wait for a lock, how does a selector tell it that a socket is ready, "
    "and how does a thread hand its result to a future?"
)


@dataclass
class Research:
    """The payload: data that the company shares besides its conversations."""

    topic: str
    sources: list[rp.SourceRecord] = field(default_factory=list)


@rp.tool(effect="pure")
def search_library(query: str) -> str:
    """Search the library; the documents that speak of the words most, one path a line."""
    words = query.lower().split()
    counts = {
        path: sum(text.count(word) for word in words)
        for path in sorted([*LIBRARY.glob("*.py"), *LIBRARY.glob("asyncio/*.py"), *LIBRARY.glob("concurrent/*/*.py")])
        if (text := path.read_text("utf-8", "replace").lower())
    }
    best = sorted((path for path, count in counts.items() if count), key=lambda path: -counts[path])
    return "\n".join(str(path.relative_to(LIBRARY)) for path in best[:10])


@rp.tool(effect="pure")
def fetch_document(path: str) -> rp.ToolOutput:
    """Fetch a document of the library by its path."""
    place = (LIBRARY / path).resolve()
    if not place.is_relative_to(LIBRARY) or not place.is_file():
        raise rp.ToolRetry(f"the library has no document {path!r}; search_library lists those it has")
    return rp.ToolOutput(place.read_text("utf-8", "replace"), source_type="file", url=path, format="code")


# Every result of more than 1,000 characters arrives as a citation with an excerpt. Every request is kept to about
# 11,000 tokens, which is less than 50 kB.
CITED = rp.ContextPolicy(window=1, budget_tokens=11_000, results=rp.ResultPolicy(cite_on_arrival=True))
MEMORY = rp.memory_tools()
RETRIEVAL = rp.context_tools()


def researcher(name: str) -> rp.Agent:
    """Define one of the three researchers; they share the library and the memory."""
    return rp.Agent(
        name,
        description="Reads documents of the library, stores findings in memory, and reports with path:line sources.",
        instructions=(
            "You research one part of a question in a library. Search, fetch the documents that look best, several at "
            "once, and look up passages in them with retrieve_content: they are long. Store each finding in memory, "
            "one sentence that ends with its source as (path:line). Report your findings with their sources."
        ),
        tools=[search_library, fetch_document, *MEMORY, *RETRIEVAL],
        memory="shared",
        payload=Research,
        payload_scope=rp.PayloadScope(read=("topic",), write=("sources",)),
        context=CITED,
        limits=rp.Limits(iterations=30, depth=0),
    )


checker = rp.Agent(
    "fact_checker",
    description="Checks claims against the library and against what the team stored; changes nothing.",
    instructions=(
        "You check claims. Look each one up in memory and in the documents that it names, and say of each whether its "
        "source says so, with path:line."
    ),
    tools=[search_library, fetch_document, *rp.memory_tools(read_only=True), *RETRIEVAL],
    memory="snapshot-read-only",
    payload=Research,
    payload_scope=rp.PayloadScope(read=("topic", "sources")),
    context=CITED,
    limits=rp.Limits(iterations=30, depth=0),
)

lead = rp.Agent(
    "lead",
    instructions=(
        "You lead a research company on {payload.topic}. Split the question into three parts, delegate one to each "
        "researcher in one turn, then have the fact checker check the claims in their reports. Answer the question; "
        "every claim ends with its source as path:line, and none that the check refutes is in the answer."
    ),
    tools=MEMORY,
    team=[researcher("researcher_a"), researcher("researcher_b"), researcher("researcher_c"), checker],
    payload=Research,
    context=CITED,
    limits=rp.Limits(iterations=20, depth=1, runs=8),
    delegation=rp.Delegation(parallel=3, on_failure="collect"),
)


async def main() -> None:
    """Print the answer, who worked on it, and which sources were read."""
    async with rp.open_supervisor("research.db") as supervisor:
        run = await supervisor.spawn(lead, QUESTION, payload=Research(topic="waiting in Python's standard library"))
        print(await run.wait_result())
        for child in run.children:
            print(f"{child.agent.name}: {child.statistics().tool_calls} tool calls, {child.state}")
        sources = run.payload.sources
        read = sum(source.length for source in sources)
        figures = run.statistics(tree=True)
        print(f"{len(sources)} sources, {read:,} characters; {figures.tokens_seen:,} prompt tokens", end=" ")
        print(f"instead of {figures.tokens_plain:,}; the largest prompt had {figures.largest_prompt:,}")


if __name__ == "__main__":
    rp.run(main)
