"""Two tools, a budget, a typed result, and the model's text as it streams in."""

from dataclasses import dataclass

import repertory as rp
from repertory.llm import Text
from repertory.runs.streaming import TextStreamed
from repertory.testing import ScriptedModel, call


@dataclass
class Trip:
    """Where to, and for how much."""

    town: str
    euros: float


@rp.tool(effect="pure")
def fares(town: str) -> dict[str, float]:
    """What a ticket costs, by train."""
    return {"morning": 29.0, "evening": 19.0}


@rp.tool(effect="idempotent")
def hold(town: str, train: str, context: rp.ToolContext) -> str:
    """Hold a seat for an hour."""
    return f"a seat in the {train} train to {town}, number {context.idempotency_key[:4]}"


limits = rp.Limits(iterations=10, tokens=50_000, seconds=60)
clerk = rp.Agent("clerk", tools=[fares, hold], output=Trip, limits=limits)
held = (Text("I hold the cheap one."), call("hold", town="Lund", train="evening"))
final = call("final_result", town="Lund", euros=19.0)
model = ScriptedModel([call("fares", town="Lund"), held, final])  # leave it out for Claude


async def main() -> None:
    """Print the stream, then the result."""
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(clerk, "A cheap seat to Lund, please.")
        async for piece in run.stream():
            if isinstance(piece, TextStreamed):
                print(piece.text, end="", flush=True)
        trip = await run.wait_result()
        print(f"\n{trip.town}: {trip.euros:.2f} euros, {run.statistics().tokens_billed} tokens")


if __name__ == "__main__":
    rp.run(main)
