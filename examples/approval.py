"""A refund that a person approves, for less than the model asked; the waiting call would survive a crash, too."""

import repertory as rp
from repertory.runs.events import ApprovalRequested
from repertory.testing import ScriptedModel, call


@rp.tool(approval=lambda proposed: proposed.arguments["euros"] > 20)
def refund(order: str, euros: int) -> str:
    """Pay a customer back."""
    return f"{euros} euros for order {order} are on their way"


model = ScriptedModel([call("refund", order="A7", euros=90), "They get 40 euros back."])  # leave it out for Claude


async def main() -> None:
    """Decide each waiting call as it arrives."""
    async with rp.open_supervisor("refunds.db", model=model) as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk", tools=[refund]), "The shoes of order A7 are worn out.")
        async for event in run.events():
            if isinstance(event, ApprovalRequested):
                print(f"may it? {event.tool} {dict(event.arguments)}")
                await run.approve(event.call_id, arguments={"order": "A7", "euros": 40}, by="Eve")
        print(await run.wait_result())


if __name__ == "__main__":
    rp.run(main)
