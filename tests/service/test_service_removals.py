"""A run that is removed while somebody watches it: each stream of it says so and ends, and those of all runs go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
from browser import Browser, needs_browser
from service_commands import AtTerminal
from service_parts import EventStream, open_client
from test_service_page import go, post, serving, state_is
from test_service_process import Served
from test_service_verbs import begin

from patience import PATIENCE
from repertory.cli import output
from repertory.service import client as clients
from repertory.service.places import Place
from repertory.testing import ScriptedModel


def remove(served: Served, run_id: str) -> None:
    """Remove a run."""
    with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(served.socket)), timeout=PATIENCE) as http:
        assert http.delete(f"http://localhost/runs/{run_id}").status_code == 204


async def removal(stream: EventStream) -> dict[str, Any]:
    """What a stream says of a removal, behind what it says before."""
    while (fields := await stream.block()) is not None:
        if fields.get("event") == "removed":
            return dict(json.loads(fields["data"]))
    raise EOFError


async def test_whoever_follows_a_removed_run_is_told(short: Path) -> None:
    """Its own stream ends; one of all runs goes on with the next run, also for a client in Python."""
    async with open_client(short, ScriptedModel(["One.", "Two."])) as client:
        run_id = await client.start()
        await client.wait_for(run_id, "done")
        async with (
            client.follow(f"/runs/{run_id}/events") as own,
            client.follow("/events") as every,
            clients.open_client(Place(socket=client.address)) as asking,
        ):
            for stream in (own, every):
                assert (await stream.event())["type"] == "RunSpawned"
            views = asking.follow()
            before = await anext(views)
            assert (await client.http.delete(f"/runs/{run_id}")).status_code == 204
            for stream in (own, every):
                told = await removal(stream)
                assert (told["run_id"], told["type"], told["body"]) == (run_id, "RunRemoved", {})
            assert await own.block() is None
            while (view := await anext(views)).type != "RunRemoved":
                assert view.seq > before.seq
            second = await client.start()
            assert (await every.event())["run_id"] == (await anext(views)).run_id == second
            await views.aclose()
        await client.get(f"/runs/{run_id}/events?follow=no", 404)


async def test_what_another_machine_removes_ends_its_streams_too(short: Path) -> None:
    """Nobody tells this process: it looks whenever a stream was silent for a while."""
    async with open_client(short, ScriptedModel(["One."]), ping=0.05) as client:
        run_id = await client.start()
        await client.wait_for(run_id, "done")
        async with client.follow(f"/runs/{run_id}/events") as stream:
            await stream.event()
            await client.control.journal.remove_run(run_id, at=0.0)
            assert (await removal(stream))["run_id"] == run_id
            assert await stream.block() is None


def test_whoever_is_attached_to_a_removed_run_is_told(short: Path, at_terminal: AtTerminal) -> None:
    """At a terminal, where one may go on with a run that has ended; with the exit code of what is not there."""
    served = Served(short, "--agent", "serve_agents:talker")
    served.hear("serving")
    try:
        run_id = begin(served, "talker")
        terminal = at_terminal(short, "attach", run_id)
        terminal.expect("[done]")
        remove(served, run_id)
        terminal.expect(f"run {run_id} was removed, with its whole record")
        assert terminal.end() == output.NOT_FOUND
        assert "Traceback" not in terminal.seen
    finally:
        served.process.terminate()
        served.end()


@needs_browser
def test_the_page_shows_that_a_run_was_removed(short: Path, browser: Browser) -> None:
    """It goes back to the overview, and says which run."""
    with serving(short, browser, "--agent", "serve_agents:talker"):
        run_id = post(browser, "/runs", {"agent": "talker", "task": "Go."})["id"]
        go(browser, run_id)
        state_is(browser, "done")
        browser.wait_for(f"fetch('/runs/{run_id}', {{ method: 'DELETE' }}).then((answer) => answer.status === 204)")
        browser.wait_for("document.querySelector('#note').textContent.includes('was removed, with its whole record')")
        browser.wait_for("!document.querySelector('#overview').hidden")
        browser.wait_for(f"!document.querySelector('[data-run={json.dumps(run_id)}]')")
