"""Use a server with the Messages API: here a strict local one that also bills prompt caching."""

import repertory as rp
from repertory.testing import open_messages_server

LINES = [f"day {day}: {day * 7 % 31} ships" for day in range(400)]


@rp.tool(effect="pure")
def search_log(query: str) -> str:
    """Search the harbour's log."""
    return "\n".join(line for line in LINES if query.lower() in line)


async def main() -> None:
    """Run an agent against it; any other base_url works the same way: Ollama, llama.cpp, vLLM, or Anthropic's own."""
    async with open_messages_server(rp.OfflineModel(), api_key="a-key") as server:
        model = rp.AnthropicModel("claude-sonnet-5-5", api_key="a-key", base_url=server.url)
        agent = rp.Agent("clerk", instructions="Answer from the log.", tools=[search_log])
        async with rp.open_supervisor(model=model) as supervisor:
            run = await supervisor.spawn(agent, "How many ships came on day 399?")
            print(await run.wait_result())
            print(f"{len(server.exchanges)} requests: {server.usage}, ${run.statistics().cost_seen:.6f}")
        await model.aclose()


if __name__ == "__main__":
    rp.run(main)
