"""A process is killed in the middle of two tool calls; the next one continues from the journal.

``book`` runs again, under the same key. ``announce`` does not: its effect is unknown, and the model is told so."""

import signal
import subprocess
import sys
from pathlib import Path

import repertory as rp
from repertory.llm import text_of
from repertory.testing import ScriptedModel, call

WORLD, FIRST = Path("effects.log"), "first" in sys.argv


def act(effect: str) -> None:
    """Have an outside effect. The first process is killed after two of them, before the results are recorded."""
    with WORLD.open("a", encoding="utf-8") as log:
        log.write(effect + "\n")
    while FIRST:
        if len(WORLD.read_text(encoding="utf-8").splitlines()) == 2:
            signal.raise_signal(signal.SIGKILL)


@rp.tool(effect="idempotent")
def book(room: str, context: rp.ToolContext) -> str:
    """Book a room."""
    act(f"book {room} under the key {context.idempotency_key[:8]}")
    return f"{room} is booked"


@rp.tool(effect="unsafe")
def announce(text: str) -> str:
    """Send a message to everybody."""
    act(f"announce {text}")
    return "sent"


async def main() -> None:
    """Start the run in the first process; finish it in the second."""
    agent = rp.Agent("organiser", tools=[book, announce])
    calls = [call("book", room="R2"), call("announce", text="we meet in R2")]
    model = ScriptedModel([calls] if FIRST else ["R2 is booked. Whether the message went out is not known."])
    async with rp.open_supervisor("rooms.db", model=model) as supervisor:
        if FIRST:
            run = await supervisor.spawn(agent, "Book a room and tell everybody.", run_id="run-1")
        else:
            run = await supervisor.resume("run-1", agent=agent)
        print(await run.wait_result())
        entries = await supervisor.journal.read_entries(run.id)
        print(*[f"{entry.tool}: {text_of(entry.content)[:80]}" for entry in entries if entry.tool], sep="\n")


if __name__ == "__main__":
    if not FIRST:
        died = subprocess.run([sys.executable, __file__, "first"], check=False)  # noqa: S603
        print("the first process ended with", died.returncode)
    rp.run(main)
    print(WORLD.read_text(encoding="utf-8"), end="")
