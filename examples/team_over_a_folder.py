"""A lead splits a question and delegates the parts to researchers, who read the source of asyncio."""

import sysconfig

import repertory as rp

FOLDER = sysconfig.get_paths()["stdlib"] + "/asyncio"

researcher = rp.Agent(
    "researcher",
    instructions="Search, read around the best hits, store findings in memory, and report them with path:line.",
    description="Reads the source of asyncio.",
    tools=[*rp.file_tools(FOLDER), *rp.memory_tools(), *rp.context_tools()],
    limits=rp.Limits(iterations=40, depth=0),
)
lead = rp.Agent(
    "lead",
    instructions="Split the question, delegate the parts side by side, and answer with the sources of the reports.",
    tools=rp.memory_tools(),
    team=[researcher],
)


async def main() -> None:
    """Print the tree of runs, the answer and its cost in calls and tokens."""
    async with rp.open_supervisor() as supervisor:
        run = await supervisor.spawn(lead, "How do Lock, Semaphore and Queue wake those who wait?")
        answer = await run.wait_result()
        for child in run.children:
            print(f"{child.agent.name}: {child.task.splitlines()[0]} ({child.state})")
        print(answer)
        figures = run.statistics(tree=True)
        print(f"{figures.runs} runs, {figures.tool_calls} tool calls, {figures.tokens_seen} prompt tokens")


if __name__ == "__main__":
    rp.run(main)
