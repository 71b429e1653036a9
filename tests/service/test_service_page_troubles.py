"""The page in a world that is busy, cut off or looked away from, in a real browser."""

from __future__ import annotations

from pathlib import Path

from browser import Browser, needs_browser
from test_service_page import go, post, serving, state_is

pytestmark = needs_browser


def part_of(browser: Browser, name: str) -> str:
    """The address of one of the page's scripts."""
    address: str = browser.run("document.querySelector('script[type=module]').src")
    return address.replace("main.js", name)


def test_a_burst_of_events_is_drawn_once_and_leaves_what_was_asked_for(short: Path, browser: Browser) -> None:
    """Each of thousands drew the whole log, for seconds; and each pushed out of it the older ones that were read."""
    with serving(short, browser, "--agent", "page_company:brief"):
        run_id = post(browser, "/runs", {"agent": "brief", "task": "Read."})["id"]
        go(browser, run_id, "log")
        state_is(browser, "done")
        there = "[...document.querySelectorAll('#log .kind')].map((kind) => kind.textContent)"
        browser.wait_for(f"{there}[0] === 'done'")
        log = part_of(browser, "log.js")
        burst = """import('%s').then(({ logEvent }) => {
            for (let seq = %d; seq < %d; seq++)
                logEvent({ seq, run_id: '%s', type: 'Alert', iteration: 0, at: 0, body: { reason: 'no. ' + seq } });
            return document.querySelectorAll('#log li').length;
        })"""
        before = browser.run(f"{there}.length")
        assert browser.run(burst % (log, 10**6, 10**6 + 2000, run_id)) == before
        browser.wait_for(f"{there}.length === 2000 && !document.querySelector('#older').hidden")
        browser.run("document.querySelector('#older').click()")
        browser.wait_for(f"{there}.length === {2000 + before} && {there}.at(-1) === 'started'")
        browser.run(burst % (log, 2 * 10**6, 2 * 10**6 + 10, run_id))
        browser.wait_for(f"{there}.length === {2010 + before} && {there}.at(-1) === 'started'")
