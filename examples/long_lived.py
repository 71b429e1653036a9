"""A long-lived process: it resumes the work that a crash interrupted, then handles new orders concurrently."""

import anyio

import repertory as rp
from repertory.testing import FunctionModel


async def work(supervisor: rp.Supervisor, agent: rp.Agent, orders: list[str]) -> None:
    """Resume the runs of an earlier process, then start the new ones; its run id makes an order safe to repeat."""
    for row in await supervisor.runs(states=["running", "waiting"]):
        await supervisor.resume(row.started.run_id, agent=agent)
    async with anyio.create_task_group() as tasks:
        for number, order in enumerate(orders):
            run = await supervisor.spawn(agent, order, run_id=f"order-{number}")
            tasks.start_soon(tell, run)


async def tell(run: rp.Run) -> None:
    """Print how an order ended."""
    print(f"{run.id}: {await run.wait_result()}")


async def main() -> None:
    """Send the same orders twice, as after a restart: each is done once."""
    model = FunctionModel(lambda request: f"done at call {len(model.requests)}")
    for _ in range(2):
        async with rp.open_supervisor("orders.db", model=model) as supervisor:
            await work(supervisor, rp.Agent("baker", instructions="Bake."), ["rye", "oat"])


if __name__ == "__main__":
    rp.run(main)
