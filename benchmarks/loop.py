"""What an iteration of the loop costs, compared with other frameworks if they are installed.

    python benchmarks/loop.py [--iterations 150] [--rounds 3] [--json]

A model that costs nothing calls a tool that returns 2,000 characters, again and again. The figure is CPU time of the
process per iteration, including all threads: the difference between a long and a short run, divided by the difference
in iterations; the best round, with the rounds of all systems alternating. For durable systems: the growth of the
database, beside the bytes of what was said (texts of calls and results).

==================  ============================================================================================
system              what is kept
==================  ============================================================================================
repertory, file     every entry, intent, outcome, request and event, synced to the disk before the loop goes on
repertory, memory   the same in memory
langgraph, file     a checkpoint of the state after each step, by ``SqliteSaver`` with ``durability="sync"``
pydantic-ai         nothing; the messages are in memory
==================  ============================================================================================
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import repertory as rp
from repertory.testing import FunctionModel, call

RESULT = ("a line of a result that is not the same as the others, number %d\n" * 31)[:2_000]
SHORT = 10  # iterations
System: TypeAlias = Callable[[int, Path], None]


def ours(iterations: int, path: Path | None) -> None:
    """Run repertory."""
    made = 0

    @rp.tool(effect="pure", repeatable=False)
    async def read(number: int) -> str:
        """Read."""
        return f"{number} {RESULT}"

    def answer(_: Any) -> Any:
        nonlocal made
        made += 1
        return "done" if made >= iterations else call("read", number=made)

    agent = rp.Agent("reader", tools=[read], limits=rp.Limits(iterations=iterations + 1))
    rp.run_sync(agent, "Read.", path=path, model=FunctionModel(answer))


def repertory_file(iterations: int, folder: Path) -> None:
    """Run it with a journal on disk."""
    ours(iterations, folder / "runs.db")


def repertory_memory(iterations: int, _: Path) -> None:
    """Run it with a journal in memory."""
    ours(iterations, None)


def peer(module: str) -> Any:
    """A module of another framework, which is not installed with the tools that check this file."""
    return import_module(module)


def langgraph_file(iterations: int, folder: Path) -> None:
    """Run LangGraph with its SQLite saver."""
    message = peer("langchain_core.messages").AIMessage
    graphs, prebuilt = peer("langgraph.graph"), peer("langgraph.prebuilt")
    made = 0

    def read(number: int) -> str:
        """Read."""
        return f"{number} {RESULT}"

    def model(_: Any) -> Any:
        nonlocal made
        made += 1
        calls = [] if made >= iterations else [{"name": "read", "args": {"number": made}, "id": f"call-{made}"}]
        return {"messages": [message("done" if not calls else "", tool_calls=calls)]}

    graph = graphs.StateGraph(graphs.MessagesState)
    graph.add_node("model", model)
    graph.add_node("tools", prebuilt.ToolNode([peer("langchain_core.tools").tool(read)]))
    graph.add_edge(graphs.START, "model")
    graph.add_conditional_edges("model", prebuilt.tools_condition)
    graph.add_edge("tools", "model")
    with peer("langgraph.checkpoint.sqlite").SqliteSaver.from_conn_string(str(folder / "runs.db")) as saver:
        config = {"configurable": {"thread_id": "1"}, "recursion_limit": 3 * iterations}
        compiled = graph.compile(checkpointer=saver)
        compiled.invoke({"messages": [("user", "Read.")]}, config, durability="sync")


def pydantic_ai_memory(iterations: int, _: Path) -> None:
    """Run pydantic-ai."""
    theirs, parts = peer("pydantic_ai"), peer("pydantic_ai.messages")
    made = 0

    def answer(_messages: Any, _info: Any) -> Any:
        nonlocal made
        made += 1
        if made >= iterations:
            return parts.ModelResponse(parts=[parts.TextPart("done")])
        return parts.ModelResponse(parts=[parts.ToolCallPart("read", {"number": made})])

    def read(number: int) -> str:
        """Read."""
        return f"{number} {RESULT}"

    agent = theirs.Agent(peer("pydantic_ai.models.function").FunctionModel(answer), tools=[read])
    agent.run_sync("Read.", usage_limits=theirs.UsageLimits(request_limit=iterations + 1))


SYSTEMS: dict[str, tuple[System, str]] = {
    "repertory, file": (repertory_file, "repertory"),
    "repertory, memory": (repertory_memory, "repertory"),
    "langgraph, file": (langgraph_file, "langgraph.checkpoint.sqlite"),
    "pydantic-ai, memory": (pydantic_ai_memory, "pydantic_ai"),
}


def installed(module: str) -> bool:
    """Whether a module can be imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def measure(system: System, iterations: int) -> tuple[float, int]:
    """CPU seconds of a run, and the bytes that it left on disk."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.process_time()
        system(iterations, Path(folder))
        took = time.process_time() - begun
        return took, sum(file.stat().st_size for file in Path(folder).iterdir())


def main() -> None:
    """Measure what is installed, and print."""
    parser = argparse.ArgumentParser(description="What an iteration of the loop costs.")
    parser.add_argument("--iterations", type=int, default=150, help="of the long run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {name: system for name, (system, module) in SYSTEMS.items() if installed(module)}
    best: dict[str, float] = {}
    grown: dict[str, float] = {}
    between = options.iterations - SHORT
    for system in found.values():
        measure(system, SHORT)  # warm
    for _ in range(options.rounds):
        for name, system in found.items():
            short, long = measure(system, SHORT), measure(system, options.iterations)
            best[name] = min(best.get(name, float("inf")), (long[0] - short[0]) / between * 1e3)
            grown[name] = (long[1] - short[1]) / between
    said = len(RESULT) + len("read{number:123}")
    rows = {
        name: {
            "cpu_ms": round(best[name], 2),
            "bytes": round(grown[name]),
            "times_what_was_said": round(grown[name] / said, 1),
        }
        for name in found
    }
    if options.json:
        print(json.dumps({"iterations": options.iterations, "systems": rows}))
        return
    print(f"{'system':22}{'CPU ms':>8}{'bytes on disk':>15}{'times what was said':>21}   an iteration")
    for name, row in rows.items():
        print(f"{name:22}{row['cpu_ms']:8.2f}{row['bytes']:15,.0f}{row['times_what_was_said']:21.1f}")
    missing = [name for name in SYSTEMS if name not in found]
    if missing:
        print(f"not installed: {', '.join(missing)}")


if __name__ == "__main__":
    main()
