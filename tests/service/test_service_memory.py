"""What a run has kept, over HTTP: memory, payload and contents, read by whoever may ask and changed by nobody."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from service_parts import Client, open_client

from memory_team import HOSTILE, PAGE, PNG
from repertory.record import ContentStored
from repertory.testing import ScriptedModel


@asynccontextmanager
async def open_team(folder: Path, **options: Any) -> AsyncIterator[tuple[Client, str, dict[str, str]]]:
    """A service in which the team has worked: its client, the lead's run, and those below it by agent."""
    agents = ["memory_team:lead", "service_parts:scribe"]
    async with open_client(folder, ScriptedModel(["Written."]), agents=agents, **options) as client:
        run_id = await client.start(f"Find the tide. {HOSTILE}", agent="lead")
        detail = await client.wait_for(run_id, "done")
        below = {child["run"]["agent"]: child["run"]["id"] for child in detail["tree"]["children"]}
        yield client, run_id, below


def test_what_a_run_sees_of_memory_is_listed_with_its_scope(short: Path, run_async: Any) -> None:
    """The newest first, each with its beginning; the runs below see what their scopes say, and the tree says which."""

    async def main() -> None:
        async with open_team(short) as (client, run_id, below):
            seen = await client.get(f"/runs/{run_id}/memory")
            assert (seen["scope"]["scope_id"], seen["scope"]["mode"]) == (f"scope-{run_id}", "root")
            assert (seen["scope"]["items"], seen["more"]) == (5, False)
            items = {item["item_id"]: item for item in seen["items"]}
            assert seen["items"][0]["item_id"] == "plan"
            assert items["plan"]["preview"] == "The plan is yellow.\nIt was blue."
            assert items["chart"]["preview"] == "[image/png, 264 bytes]"
            assert len(items["tables"]["preview"]) <= 300
            assert items["tables"]["size"] == len(PAGE.encode())
            for agent, ids in (("checker", {"plan", "/memories/tides.json", "old", "tables", "check"}),
                               ("hermit", {"secret"})):  # fmt: skip
                theirs = await client.get(f"/runs/{below[agent]}/memory")
                assert {item["item_id"] for item in theirs["items"]} == ids
            tree = (await client.get(f"/runs/{run_id}"))["tree"]
            assert tree["memory"] == "root"
            assert sorted(child["memory"] for child in tree["children"]) == ["isolated", "snapshot"]

    run_async(main)


async def test_a_list_of_memory_is_read_in_parts_and_by_words(short: Path) -> None:
    """Every item comes once; words find the best, with an excerpt around them."""
    async with open_team(short) as (client, run_id, _):
        listed: list[str] = []
        more = True
        while more:
            part = await client.get(f"/runs/{run_id}/memory?limit=2&skip={len(listed)}")
            listed += [item["item_id"] for item in part["items"]]
            more = part["more"]
        assert len(listed) == len(set(listed)) == 5
        found = await client.get(f"/runs/{run_id}/memory?text={quote('Line 150')}")
        assert [item["item_id"] for item in found["items"]] == ["tables"]
        assert "Line 150 of" in found["items"][0]["preview"]
        for odd in ('"', "*", "NEAR(", "a AND", "\0", "^", "\udcff", "{}:", "x" * 2000):
            text = quote(odd, errors="surrogatepass")
            assert (await client.get(f"/runs/{run_id}/memory?text={text}"))["items"] == [], odd


async def test_one_item_is_read_whole_whatever_its_id_and_content(short: Path) -> None:
    """Text and data as they are, bytes in base 64."""
    async with open_team(short) as (client, run_id, below):
        path = f"/runs/{run_id}/memory/item?id="
        assert (await client.get(f"{path}tables"))["content"] == PAGE
        data = await client.get(path + quote("/memories/tides.json", safe=""))
        assert (data["format"], data["content"]) == ("json", {"high": "noon", "by": [HOSTILE, 1, None]})
        chart = await client.get(f"{path}chart")
        assert (chart["media_type"], base64.b64decode(chart["content"])) == ("image/png", PNG)
        assert chart["tags"] == [HOSTILE]
        for run, item_id in ((run_id, "secret"), (run_id, "../../agents"), (below["hermit"], "plan")):
            refused = await client.get(f"/runs/{run}/memory/item?id={quote(item_id, safe='')}", 404)
            assert f"has no item '{item_id}'" in refused["error"]
        assert "required field `id`" in (await client.get(f"/runs/{run_id}/memory/item", 400))["error"]


async def test_a_payload_is_read_as_it_is_and_as_it_came_to_be(short: Path) -> None:
    """Any version of it, and who changed what."""
    async with open_team(short) as (client, run_id, _):
        held = await client.get(f"/runs/{run_id}/payload")
        assert (held["version"], held["payload"]) == (2, {"topic": "tides", "notes": [HOSTILE]})
        first = await client.get(f"/runs/{run_id}/payload?version=1")
        assert (first["version"], first["payload"]) == (1, {"topic": "tides", "notes": []})
        versions = (await client.get(f"/runs/{run_id}/payload/history"))["versions"]
        assert [(version["author"], version["source"]) for version in versions] == [("spawn", ""), ("tool", "note")]
        assert versions[1]["changes"] == [{"path": "$.notes", "op": "append", "value": [HOSTILE]}]
        assert (
            "has no version 3; it has 1 to 2" in (await client.get(f"/runs/{run_id}/payload?version=3", 404))["error"]
        )


async def test_contents_are_listed_and_read_page_by_page(short: Path) -> None:
    """The pages together are the whole; another tree's content is not found, and one that is gone is said to be."""
    async with open_team(short) as (client, run_id, _):
        listed = await client.get(f"/runs/{run_id}/contents")
        (content,) = listed["contents"]
        assert (content["source"], content["url"]) == ("fetch", "https://sea.example/tables")
        assert (content["length"], listed["more"]) == (len(PAGE), False)
        path = f"/runs/{run_id}/contents/{content['content_id']}"
        first = await client.get(path)
        assert (first["page"], first["pages"]) == (1, 2)
        assert first["text"] + (await client.get(f"{path}?page=2"))["text"] == PAGE
        assert "has no page 3; it has 2" in (await client.get(f"{path}?page=3", 404))["error"]
        assert "has no page 0" in (await client.get(f"{path}?page=0", 404))["error"]
        assert await client.get(f"/runs/{run_id}/contents?limit=0") == {"run_id": run_id, "contents": [], "more": True}
        other = await client.start("Write.", agent="scribe")
        await client.wait_for(other, "done")
        refused = await client.get(f"/runs/{other}/contents/{content['content_id']}", 404)
        assert "have stored no content" in refused["error"]
        gone = ContentStored(
            content_id="a/../b", run_id=other, source_type="web", source="x", body="", length=9, at=1.7e9
        )
        await client.control.journal.write([gone])
        refused = await client.get(f"/runs/{other}/contents/{quote('a/../b', safe='')}", 404)
        assert "(9 characters) was cleaned up and is gone" in refused["error"]


@pytest.mark.parametrize(
    "path", ["memory", "memory/item?id=plan", "payload", "payload/history", "contents", "contents/c-1"]
)
async def test_who_may_not_ask_learns_nothing_and_nobody_changes_anything(short: Path, path: str) -> None:
    """Without the token every answer is the same, whether the run exists or not; a POST is refused."""
    async with open_team(short, tcp=True) as (client, run_id, _):
        answers = []
        for run in (run_id, "run-nobody-has"):
            answer = await client.http.get(f"/runs/{run}/{path}", headers={"authorization": "Bearer x"})
            assert answer.status_code == 401
            answers.append(answer.text)
        assert answers[0] == answers[1]
        posted = await client.http.post(f"/runs/{run_id}/{path}", json={})
        assert posted.status_code == 405
        assert (await client.http.get(f"/runs/run-nobody-has/{path}")).status_code == 404


@pytest.mark.parametrize(
    "wrong",
    ["memory?limit=-1", "memory?skip=x", "payload?version=1.5", "contents?skip=" + "9" * 19, "contents/c?page="],
)
async def test_a_part_that_is_no_number_is_refused(short: Path, wrong: str) -> None:
    """With the name of it."""
    async with open_team(short) as (client, run_id, _):
        refused = await client.get(f"/runs/{run_id}/{wrong}", 400)
        assert refused["error"].startswith(wrong.partition("?")[2].partition("=")[0] + " is ")
