"""The same question under three context policies: none, edits when they pay off, and strict."""

import sysconfig

import repertory as rp

FOLDER = sysconfig.get_paths()["stdlib"] + "/asyncio"
QUESTION = "How do Lock, Condition, Semaphore, Event and Barrier wake those who wait, and what if one is cancelled?"
POLICIES = {
    "plain loop": None,
    "thrifty": rp.ContextPolicy(keep_recent=2, summarize_every=5),
    "strict": rp.ContextPolicy(rhythm="strict", window=5, summarize_every=5),
}


async def main() -> None:
    """Print a line for each policy; the offline model has no cache and is priced like a small one."""
    print("policy       calls  prompt tokens    cost  newest prompt")
    async with rp.open_supervisor(model=rp.OfflineModel(steps=22)) as supervisor:
        for name, policy in POLICIES.items():
            tools = [*rp.file_tools(FOLDER), *rp.memory_tools(), *rp.context_tools()]
            reader = rp.Agent("reader", instructions="Answer from the files.", tools=tools, context=policy)
            run = await supervisor.spawn(reader, QUESTION)
            await run.wait_result()
            seen = run.statistics()
            print(f"{name:12} {seen.iterations:5} {seen.tokens_seen:14,} {seen.cost_seen:7.4f} {seen.view_tokens:14,}")


if __name__ == "__main__":
    rp.run(main)
