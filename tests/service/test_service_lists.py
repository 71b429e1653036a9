"""The list of runs: what fits, page by page, while others begin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
from service_parts import Client, open_client

from repertory.llm.messages import text_of
from repertory.llm.model import ModelRequest
from repertory.testing import FunctionModel


async def ids(client: Client, query: str) -> list[str]:
    """The ids that a list has."""
    return [run["id"] for run in (await client.get(f"/runs?{query}"))["runs"]]


def test_a_list_has_what_fits(short: Path, run_async: Any) -> None:
    """By state, agent, words and time; what is no filter is refused."""

    async def main() -> None:
        async with open_client(short, FunctionModel(lambda request: "Done.")) as client:
            for number, agent in enumerate(("clerk", "scribe", "clerk", "clerk")):
                body = {
                    "agent": agent,
                    "task": f"Zähle {number} 🐙",
                    "run_id": f"r{number}",
                    "client": f"c{number % 2}",
                }
                await client.post("/runs", body, 201)
                await client.get(f"/runs/r{number}/result?wait=20")
            assert await ids(client, "agent=clerk") == ["r0", "r2", "r3"]
            assert await ids(client, "agent=clerk&client=c0") == ["r0", "r2"]
            assert await ids(client, "text=z%C3%84hle%202") == ["r2"]
            assert await ids(client, "state=failed,stopped") == []
            assert await ids(client, "state=done,running&limit=2") == ["r2", "r3"]
            assert await ids(client, "sort=oldest&limit=2") == ["r0", "r1"]
            started = (await client.get("/runs/r1"))["run"]["started_at"]
            assert await ids(client, f"since={int(started) + 1000}") == []
            assert await ids(client, f"until={int(started) - 1000}") == []
            assert len(await ids(client, f"since={int(started) - 1000}")) == 4
            for wrong, words in (
                ("state=finished", "state is 'finished'; expected one or more of queued,running,"),
                ("state=done,", "state is ''; expected"),
                ("state=done%0a", r"state is 'done\n'; expected"),
                ("sort=best", "sort is 'best'; expected 'newest' or 'oldest'"),
                ("since=x", "since is 'x'; expected `int`"),
                ("limit=9999", "limit is '9999'; expected `int` <= 1000"),
                ("colour=red", "unknown parameter 'colour'"),
                ("agent=a&agent=b", "more than once"),
            ):
                assert words in (await client.get(f"/runs?{wrong}", 400))["error"]
            assert "r9" in (await client.get("/runs?before=r9", 404))["error"]

    run_async(main)


async def test_what_has_not_ended_is_listed_however_old_it_is(short: Path) -> None:
    """If that is asked for: within the filters, as many again at most, and not where states are named."""

    async def answer(request: ModelRequest) -> str:
        if text_of(request.messages[0].content) == "Wait.":
            await anyio.sleep_forever()
        return "Done."

    async with open_client(short, FunctionModel(answer)) as client:
        for number, (agent, task) in enumerate(
            (("clerk", "Wait."), ("scribe", "Wait."), ("clerk", "x"), ("clerk", "y"))
        ):
            await client.post("/runs", {"agent": agent, "task": task, "run_id": f"r{number}"}, 201)
        for number in (2, 3):
            await client.get(f"/runs/r{number}/result?wait=20")
        for query, names, more in (
            ("limit=2", ["r0", "r1", "r2", "r3"], 0),
            ("limit=1", ["r1", "r3"], 2),
            ("limit=1&agent=clerk", ["r0", "r3"], 1),
            ("limit=1&state=done", ["r3"], 1),
        ):
            page = await client.get(f"/runs?unfinished=yes&{query}")
            assert ([run["id"] for run in page["runs"]], page["more"]) == (names, more)


async def test_pages_stay_as_they_are_while_others_begin(short: Path) -> None:
    """Each run is there once, in both directions, whatever began meanwhile."""
    async with open_client(short, FunctionModel(lambda request: "Done.")) as client:
        for number in range(7):
            await client.post("/runs", {"agent": "clerk", "task": "x", "run_id": f"r{number}"}, 201)
        for first, bound in (("sort=newest", "before"), ("sort=oldest", "after")):
            found: list[str] = []
            page = await client.get(f"/runs?limit=3&{first}")
            while True:
                names = [run["id"] for run in page["runs"]]
                found = [*names, *found] if bound == "before" else [*found, *names]
                if page["next"] is None:
                    break
                if bound == "before":
                    await client.post("/runs", {"agent": "clerk", "task": "x", "run_id": f"n{len(found)}"}, 201)
                page = await client.get(f"/runs?limit=3&{bound}={page['next']}")
            assert [name for name in found if name.startswith("r")] == [f"r{number}" for number in range(7)]
            assert len(found) == len({*found})
