"""A coding agent: it reads and tests by itself, and a person is asked about each edit and each other command.

``repertory run TASK --agent coding_agent:coder`` asks as well, at any terminal."""

import subprocess
import sys
from pathlib import Path

import anyio

import repertory as rp
from repertory.runs.events import ApprovalRequested
from repertory.testing import ScriptedModel, call

FOLDER, TEST = Path("prices").resolve(), f"{sys.executable} -c 'from prices import gross; assert gross(4) == 5'"
if not FOLDER.exists():  # yours is there already
    FOLDER.mkdir()
    (FOLDER / "prices.py").write_text("def gross(net):\n    return net - net * 0.25\n", "utf-8")


@rp.tool(effect="idempotent", approval="always")
def edit_file(path: str, old: str, new: str) -> str:
    """Replace a text that occurs exactly once in a file."""
    place = (FOLDER / path).resolve()
    if not (place.is_relative_to(FOLDER) and place.is_file() and place.read_text("utf-8").count(old) == 1):
        raise rp.ToolRetry(f"no file {path!r} in the folder has this text exactly once")
    place.write_text(place.read_text("utf-8").replace(old, new), "utf-8")
    return f"edited {path}"


# The whole command is compared: one that only begins like the test may go on with "; rm -r .".
@rp.tool(approval=lambda proposed: proposed.arguments["command"] != TEST, deadline=60)
async def shell(command: str) -> str:
    """Run a command in the folder."""
    ended = await anyio.run_process(command, cwd=FOLDER, stderr=subprocess.STDOUT, check=False)
    return f"{ended.stdout.decode(errors='replace')}\nexit code {ended.returncode}"


fix = call("edit_file", path="prices.py", old="net - net", new="net + net")
model = ScriptedModel([call("view_file", path="prices.py"), fix, call("shell", command=TEST), "It adds the tax now."])
tools = [*rp.file_tools(FOLDER), edit_file, shell, *rp.context_tools()]
coder = rp.Agent("coder", f"Mend bugs. The test: {TEST}", tools, model=model)  # leave model out for Claude


async def main() -> None:
    """Ask about each call that waits."""
    async with rp.open_supervisor("coder.db") as supervisor:
        run = await supervisor.spawn(coder, "The test fails. Mend it.")
        async for event in run.events():
            if isinstance(event, ApprovalRequested):
                print(f"{event.tool} {dict(event.arguments)}: y allows it, and anything else says why not")
                said = (await anyio.to_thread.run_sync(sys.stdin.readline)).strip()
                await (run.approve(event.call_id) if said == "y" else run.deny(event.call_id, said or "no"))
        print(await run.wait_result())


if __name__ == "__main__":
    rp.run(main)
