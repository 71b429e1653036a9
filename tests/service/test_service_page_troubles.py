"""The page in a world that is busy, cut off or looked away from, in a real browser."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import anyio
from browser import Browser, needs_browser, open_page
from page_company import LONG, make_company
from test_service_page import go, post, serving, state_is
from test_service_process import Served

from patience import PATIENCE

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


def titles(browser: Browser) -> list[str]:
    """What the browser writes on its tabs."""
    targets = browser.call("Target.getTargets")["targetInfos"]
    return [target["title"] for target in targets if target["type"] == "page"]


def test_a_tab_that_nobody_looks_at_says_in_its_title_that_a_call_waits(short: Path, browser: Browser) -> None:
    """Its title is all that is seen of it then, and it stayed as it was."""
    with serving(short, browser, "--agent", "page_company:buyer"):
        first, address = browser.tab, browser.run("location.href")
        browser.new_tab()
        try:
            browser.open(address)
            browser.wait_for("document.querySelector('#link').textContent === 'live'")
            post(browser, "/runs", {"agent": "buyer", "task": "Buy."})
            deadline = time.monotonic() + PATIENCE
            while titles(browser) != ["(2) repertory"] * 2 and time.monotonic() < deadline:
                time.sleep(0.05)
            assert titles(browser) == ["(2) repertory"] * 2
        finally:
            browser.close_tab()
            browser.tab = first
        browser.wait_for("document.querySelector('#asks').textContent === '2 calls waiting for you'")


def test_a_part_of_the_record_that_could_not_be_read_is_read_once_it_can_be(short: Path, browser: Browser) -> None:
    """It was scrolled to while the service was away: it stayed blank, and so did all that was said there later."""
    anyio.run(partial(make_company, short / "a.db", runs=0, iterations=60), backend="trio")
    newest = "document.querySelector('#entries [data-position=\"121\"]') !== null"
    with serving(short, browser):
        go(browser, LONG)
        browser.wait_for("document.querySelectorAll('#entries .entry').length > 10")
        cut = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        browser.call("Network.emulateNetworkConditions", offline=True, **cut)
        browser.run("document.querySelector('#to-end').click()")
        browser.wait_for("document.querySelector('#note').textContent === 'the service does not answer'")
        assert not browser.run(newest)
        browser.call("Network.emulateNetworkConditions", offline=False, **cut)
        browser.wait_for(newest)


def test_what_a_model_said_stands_once_while_its_tool_works(short: Path, browser: Browser) -> None:
    """It stood in the record and below it, as if it were said again, until the next answer began."""
    spoken = "document.querySelector('#speaks')"
    for name in ("say", "go"):
        (short / name).touch()
    with serving(short, browser, "--agent", "page_company:digger"):
        go(browser, post(browser, "/runs", {"agent": "digger", "task": "Dig."})["id"])
        for entries in (2, 4):
            browser.wait_for(f"{spoken}.textContent.includes('Two.')")
            (short / "end").touch()
            browser.wait_for(f"document.querySelectorAll('#entries .entry').length === {entries} && {spoken}.hidden")
            (short / "end").unlink()
            (short / "dug").touch()
        state_is(browser, "done")


def test_live_words_come_back_after_their_stream_was_refused(short: Path, browser: Browser) -> None:
    """As by a service with too many readers, or one that begins again: the run was silent while it was looked at."""
    refuse = """const Source = window.EventSource;
    window.EventSource = class extends Source {
        constructor(path) {
            const refused = path.endsWith('/stream') && !window.refused;
            super(refused ? '/runs/nobody/stream' : path);
            if (refused) this.addEventListener('error', () => { window.refused = true; });
        }
    }"""
    script = browser.call("Page.addScriptToEvaluateOnNewDocument", source=refuse)
    try:
        with serving(short, browser, "--agent", "page_company:speaker"):
            run_id = post(browser, "/runs", {"agent": "speaker", "task": "Speak."})["id"]
            go(browser, run_id)
            browser.wait_for("window.refused")
            post(browser, f"/runs/{run_id}/messages", {"text": "Go on."})
            browser.wait_for("document.querySelector('#speaks em').textContent === 'thinking…'")
            for name in ("say", "go", "end"):
                (short / name).touch()
            state_is(browser, "done")
    finally:
        browser.call("Page.removeScriptToEvaluateOnNewDocument", **script)


def test_a_long_text_is_laid_out_in_pieces_and_copied_whole(short: Path, browser: Browser) -> None:
    """A browser takes seconds for a line of a million characters, and in some scripts a minute."""
    lay = """import('%s').then(({ make }) => {
        const lines = Array.from({ length: 2000 }, (_, at) => 'line ' + at + (at %% 7 ? '' : '\\n')).join('\\n');
        return [lines, '\\ud83d\\udc69x'.repeat(30000)].map((text) => {
            const made = make('pre', '', text), pieces = [...made.children].map((piece) => piece.textContent);
            document.querySelector('#overview').append(made);
            getSelection().selectAllChildren(made);
            const copied = getSelection().toString();
            made.remove();
            return [text === copied && text === made.textContent, pieces.every((piece) => [...piece].length <= 10000),
                    pieces.length > 1, pieces.slice(0, -1).every((piece) => piece.endsWith('\\n')),
                    pieces.every((piece) => piece.isWellFormed())];
        });
    })"""
    with serving(short, browser):
        lines, one_line = browser.run(lay % part_of(browser, "dom.js"))
        assert lines == [True, True, True, True, True]
        assert one_line == [True, True, True, False, True]


def test_no_long_word_makes_the_page_wider_than_the_screen(short: Path, browser: Browser) -> None:
    """As an address in the task of a run that failed, or a name: what stood beside it was out of sight."""
    name = "Donaudampfschifffahrtsgesellschaftskapitaen"
    main = "document.querySelector('main')"
    with serving(short, browser, "--agent", "page_company:captain_of_many"):
        run_id = post(browser, "/runs", {"agent": name, "task": "Read https://a.example/" + "x" * 300})["id"]
        for width in (360, 900):
            browser.resize(width)
            browser.run("location.hash = ''")
            browser.wait_for("document.querySelectorAll('#broken .card').length === 1")
            assert browser.run(f"{main}.scrollWidth - {main}.clientWidth") == 0
            go(browser, run_id)
            state_is(browser, "failed")
            assert browser.run(f"{main}.scrollWidth - {main}.clientWidth") == 0


def test_a_page_whose_token_counts_no_more_asks_for_the_new_one(short: Path, browser: Browser) -> None:
    """Beside the form it said that the service did not answer, and that it tried again: it waited for the token."""
    served = Served(short, "--port", "0")
    open_page(served, browser)
    port = browser.run("location.port")
    served.process.kill()
    served.end()
    browser.wait_for("document.querySelector('#link').classList.contains('broken')")
    browser.run("document.dispatchEvent(new Event('visibilitychange'))")  # as when somebody comes to look
    browser.wait_for("document.querySelector('#note').textContent === 'the service does not answer'")
    token = short / "state" / "repertory" / "service-token"
    token.unlink()
    served = Served(short, "--port", port)
    try:
        served.hear("serving")
        browser.wait_for("!document.querySelector('#login').hidden")
        browser.run("performance.clearResourceTimings()")
        browser.wait_for("performance.getEntriesByType('resource').length > 3")  # it tries to listen meanwhile
        assert browser.run("document.querySelector('#note').textContent") == ""
        assert browser.run("document.querySelector('#link').textContent") == ""
        enter = "document.querySelector('#login').elements.token.value = {!r}; login.requestSubmit()"
        browser.run(enter.format(token.read_text().strip()))
        browser.wait_for("document.querySelector('#link').textContent === 'live'")
    finally:
        served.process.terminate()
        served.end()


def test_a_tab_that_is_looked_at_reads_along_however_many_others_there_are(short: Path, browser: Browser) -> None:
    """Three tabs may, and those that had been left for others went on: in the fourth, the model was silent."""
    tabs = [browser.tab]
    thinks = "document.querySelector('#speaks em')?.textContent === 'thinking…'"
    look = "document.dispatchEvent(new Event('visibilitychange'))"
    try:
        with serving(short, browser, "--agent", "page_company:speaker"):
            run_id = post(browser, "/runs", {"agent": "speaker", "task": "Speak."})["id"]
            go(browser, run_id)
            browser.wait_for(thinks)
            address = browser.run("location.href")
            for _ in range(3):
                browser.new_tab()
                tabs.append(browser.tab)
                browser.open(address)
                browser.wait_for(f"{thinks} || ({look}, false)")
            browser.tab = tabs[0]
            browser.wait_for(thinks)
            for name in ("say", "go", "end"):
                (short / name).touch()
            state_is(browser, "done")
    finally:
        for tab in tabs[1:]:
            browser.tab = tab
            browser.close_tab()
        browser.tab = tabs[0]


def test_a_key_that_is_held_down_allows_nothing(short: Path, browser: Browser) -> None:
    """It went to the first call that waits, and allowed it, and the next: a finger that rests there means nothing."""
    with serving(short, browser, "--agent", "page_company:buyer"):
        for _ in range(3):
            post(browser, "/runs", {"agent": "buyer", "task": "Buy."})
        browser.wait_for("document.querySelectorAll('#waiting-calls .card').length === 6")
        browser.run("window.clicks = 0; document.addEventListener('click', () => { window.clicks++ }, true)")
        for key in ("a", "j"):
            for number in range(4):
                browser.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=key, autoRepeat=number > 0)
            browser.call("Input.dispatchKeyEvent", type="keyUp", key=key)
            if key == "a":
                assert browser.run("[document.activeElement.dataset.call, window.clicks]") == ["c1", 0]
        runs = "[...document.querySelectorAll('#tree .run')]"
        assert browser.run(f"{runs}.indexOf(document.activeElement)") == 2, "the list is walked through"


def test_the_log_says_on_which_day_something_happened(short: Path, browser: Browser) -> None:
    """Of a run that had worked for days it showed the time alone, also where it shows each event in full."""
    with serving(short, browser, "--agent", "page_company:brief"):
        run_id = post(browser, "/runs", {"agent": "brief", "task": "Read."})["id"]
        go(browser, run_id, "log")
        state_is(browser, "done")
        browser.wait_for("document.querySelector('#log .kind')?.textContent === 'done'")
        event = f"{{ seq: 1e6, run_id: '{run_id}', type: 'Alert', iteration: 7, at: 90000, body: {{}} }}"
        browser.run(f"import('{part_of(browser, 'log.js')}').then(({{ logEvent }}) => logEvent({event}))")
        browser.wait_for("document.querySelector('#log .time').textContent.includes('1970')")
        browser.run("document.querySelector('#log-filter').elements.raw.click()")
        browser.wait_for("document.querySelector('#log pre')?.textContent.includes('1970-01-02T01:00:00.000Z')")
        assert '"iteration": 7' in browser.run("document.querySelector('#log pre').textContent")


def test_what_went_wrong_by_itself_is_said_until_it_goes_well(short: Path, browser: Browser) -> None:
    """One reading of a busy service took too long: that it did not answer stood there for as long as nobody clicked."""
    said = "document.querySelector('#note').textContent === '{}'"
    with serving(short, browser, "--agent", "page_company:brief"):
        cut = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        browser.call("Network.emulateNetworkConditions", offline=True, **cut)
        browser.run("document.dispatchEvent(new Event('visibilitychange'))")
        browser.wait_for(said.format("the service does not answer"))
        browser.call("Network.emulateNetworkConditions", offline=False, **cut)
        post(browser, "/runs", {"agent": "brief", "task": "Read."})
        browser.wait_for(said.format(""))
        assert browser.run("document.querySelector('#link').textContent") == "live"
