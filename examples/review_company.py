"""A code review company: three reviewers who do not see each other's work, typed findings, and a merge with a conflict.

Each reviewer has a snapshot of the lead's memory and writes its rating there as a file. Findings come back as typed
results. Ratings are merged; if they disagree, both are kept and printed. Run it as it is, played from a script, or
with ANTHROPIC_API_KEY set.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

import repertory as rp
from repertory.llm import Block, ModelRequest, text_of
from repertory.testing import FunctionModel, call

CODE = {
    "accounts.py": '''\
def withdraw(accounts, name, amount):
    """Take money from an account."""
    balance = accounts[name]
    accounts[name] = balance - amount
    log(f"{name} took {amount}")
    return eval(f"accounts['{name}']")
'''
}


class Finding(msgspec.Struct):
    """One thing that is wrong, and where."""

    path: str
    line: int
    severity: Literal["high", "medium", "low"]
    claim: str


class Review(msgspec.Struct):
    """What one reviewer found."""

    findings: list[Finding]


class Verdict(msgspec.Struct):
    """What the company says of the change."""

    approved: bool
    findings: list[Finding]


@rp.tool(effect="pure")
def read_code(path: str) -> str:
    """Read a file of the change, with line numbers."""
    if path not in CODE:
        raise rp.ToolRetry(f"there is no {path!r}; the change has {', '.join(CODE)}")
    return "\n".join(f"{number}\t{line}" for number, line in enumerate(CODE[path].splitlines(), 1))


def reviewer(name: str, subject: str) -> rp.Agent[Review]:
    """Define one of the three reviewers; it works on its own snapshot of the lead's memory."""
    return rp.Agent(
        name,
        description=f"Reviews a change for {subject}.",
        instructions=(
            f"You review code for {subject} and nothing else. Read each file of the change, write the file "
            "/memories/rating.md with one line, approve or reject and why, and give your findings."
        ),
        tools=[read_code, rp.memory_files_tool()],
        memory="snapshot",
        output=Review,
    )


lead = rp.Agent(
    "lead",
    instructions=(
        "You lead a code review. Delegate the change to every reviewer in one turn, naming its files. Approve it only "
        "if no finding is of high severity, and give all findings, each once."
    ),
    team=[reviewer("bugs", "bugs"), reviewer("security", "security"), reviewer("style", "style")],
    output=Verdict,
    delegation=rp.Delegation(parallel=3, on_failure="retry", retries=1),
)

FOUND = {
    "bugs": Finding("accounts.py", 4, "high", "the balance may fall below zero"),
    "security": Finding("accounts.py", 6, "high", "eval runs what stands in a name"),
    "style": Finding("accounts.py", 1, "low", "the types of the parameters are missing"),
}


def play(request: ModelRequest) -> str | Block | Sequence[Block]:
    """Play the models if there is no key: the lead delegates, and each reviewer reads, rates and reports."""
    turn = sum(message.role == "assistant" for message in request.messages)
    instructions = text_of(request.system)
    name = next((name for name in FOUND if f"for {name}" in instructions), "lead")
    if name == "lead":
        parts = [call("delegate", agent=member, task="Review accounts.py.") for member in FOUND]
        return (parts, call("final_result", approved=False, findings=msgspec.to_builtins([*FOUND.values()])))[turn]
    rating = f"{'approve' if name == 'style' else 'reject'}: {FOUND[name].claim}\n"
    write = call("memory", command="create", path="/memories/rating.md", file_text=rating)
    report = call("final_result", findings=[msgspec.to_builtins(FOUND[name])])
    return (call("read_code", path="accounts.py"), write, report)[turn]


async def main() -> None:
    """Print the verdict, and the ratings that the reviewers disagree on."""
    model = rp.open_model()
    async with rp.open_supervisor(model=FunctionModel(play) if model.name == "offline" else model) as supervisor:
        run = await supervisor.spawn(lead, "Review the change of accounts.py.")
        verdict = await run.wait_result()
        print("approved" if verdict.approved else "not approved")
        for finding in verdict.findings:
            print(f"{finding.path}:{finding.line}: {finding.severity}: {finding.claim}")
        for child in sorted(run.children, key=lambda child: child.agent.name):
            report = await child.memory.merge(prefer="both")
            print(f"{child.agent.name}: {len(report.written)} taken, {len(report.conflicts)} in conflict")
            for side in (side for conflict in report.conflicts for side in (conflict.child, conflict.parent) if side):
                print("  both are kept:", side.text.strip())
        print(len(await run.memory.query()), "ratings in the lead's memory")
    await model.aclose()


if __name__ == "__main__":
    rp.run(main)
