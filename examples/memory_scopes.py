"""The memory of a sub-agent: shared with its parent, a snapshot of its parent's, or its own."""

from collections.abc import Sequence

import repertory as rp
from repertory.llm import Block, ModelRequest, text_of
from repertory.testing import FunctionModel, call

MEMBERS = [
    rp.Agent("shared", tools=rp.memory_tools(), memory="shared"),
    rp.Agent("snapshot", tools=rp.memory_tools(), memory="snapshot"),
    rp.Agent("isolated", tools=rp.memory_tools(), memory="isolated"),
]
LEAD = rp.Agent("lead", instructions="You lead.", tools=rp.memory_tools(), team=MEMBERS)


def play(request: ModelRequest) -> str | Block | Sequence[Block]:
    """Play the models of all four runs, depending on how many turns they have had."""
    turn = sum(message.role == "assistant" for message in request.messages)
    newest = text_of(request.messages[-1].content)
    look = call("memory_query")
    if request.system:  # the lead stores a fact, delegates, and queries its memory at the end
        delegate = [call("delegate", agent=member.name, task="Look, then store.") for member in MEMBERS]
        return (call("memory_store", content="the plan is green"), delegate, look, newest)[turn]
    return (look, call("memory_store", content="a note of my own"), newest)[turn]


async def main() -> None:
    """Show what each run found in its memory."""
    async with rp.open_supervisor(model=FunctionModel(play)) as supervisor:
        run = await supervisor.spawn(LEAD, "Show the scopes.")
        answer = await run.wait_result()
        for child in sorted(run.children, key=lambda child: child.agent.name):
            entries = await supervisor.journal.read_entries(child.id)
            found = next(text_of(entry.content) for entry in entries if entry.tool == "memory_query")
            print(f"{child.agent.name} begins with {found.splitlines()[0]}")
        print(f"the lead ends with {answer.splitlines()[0]}: its own, and that of the one that shares")


if __name__ == "__main__":
    rp.run(main)
