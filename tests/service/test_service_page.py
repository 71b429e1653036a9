"""The page in a real browser: what it shows, what it never runs, and how it comes back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from browser import CHROMIUM, Browser
from test_service_process import Served

from memory_team import HOSTILE, LEAD, make_team
from repertory.service.page import CONTENT_SECURITY_POLICY, PAGE

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")

PAYLOADS = [
    "<script>window.evil = 1</script>",
    "<img src=x onerror='window.evil = 2'>",
    "<svg onload='window.evil = 3'>",
    "</textarea></pre></script><script>window.evil = 4</script>",
    "javascript:window.evil=5",
    "<iframe srcdoc='<script>parent.evil = 6</script>'></iframe>",
    "<a href='javascript:window.evil=7' autofocus onfocus='window.evil=8'>x</a>",
    "{{constructor.constructor('window.evil=9')()}}",
    "<style>@import 'http://evil.example/'</style><base href='http://evil.example/'>",
    "\u202e\u0000\u001b[31m&lt;b&gt;<b>bold</b>",
]


@pytest.fixture(scope="module")
def opened() -> Iterator[Browser]:
    """One headless browser for all tests here: it takes a second to start."""
    opened = Browser()
    yield opened
    opened.close()


@pytest.fixture
def browser(opened: Browser) -> Browser:
    """The browser, without what the test before left in it."""
    opened.call("Network.clearBrowserCookies")
    opened.open("about:blank")
    opened.problems.clear()
    return opened


def open_page(served: Served, browser: Browser) -> None:
    """Go to the link that the service printed."""
    found = re.search(r"http://\S+", served.hear("serving"))
    assert found is not None
    browser.open(found[0])
    browser.wait_for("document.querySelector('#link').textContent === 'live'")


@needs_browser
def test_text_from_agents_is_shown_and_never_run(short: Path, browser: Browser) -> None:
    """Task, answer, events: markup stays text everywhere, and the page breaks none of its own rules."""
    (short / "docs").mkdir()
    (short / "docs" / "evil.md").write_text("\n".join(f"The payload is {text}" for text in PAYLOADS))
    served = Served(short, "--port", "0", "--root", str(short / "docs"), "--model", "offline")
    try:
        open_page(served, browser)
        assert browser.run("location.hash") == ""
        for payload in (" ".join(PAYLOADS[:5]), " ".join(PAYLOADS[5:])):
            browser.call("Runtime.evaluate", expression=f"window.task = {payload!r} + ' What is the payload?'")
            browser.run(
                "document.querySelector('#new').open = true;"
                "document.querySelector('#start').elements.task.value = window.task;"
                "document.querySelector('#start').requestSubmit()"
            )
            browser.wait_for(
                "document.querySelector('#task').textContent.trim() === plain(window.task.trim()) && "
                "document.querySelector('#agent').textContent.includes('done')"
            )
            browser.run("document.querySelectorAll('#timeline details').forEach((d) => { d.open = true })")
            shown = "[...document.querySelectorAll('#timeline pre')].map((pre) => pre.textContent).join('')"
            browser.wait_for(f"{shown}.includes(plain(JSON.stringify(window.task).slice(1, -1)))")
            assert "⟨U+202E⟩" in browser.run("plain('\\u202e')")
            assert not browser.run("/[\\u202a-\\u202e]/.test(document.documentElement.outerHTML)")
        assert browser.run("typeof window.evil") == "undefined"
        assert browser.run("document.querySelectorAll('img, svg, iframe, base, a, main script').length") == 0
        assert browser.problems == []
        browser.run("document.querySelector('#task').innerHTML = '<b>x</b>'".join(["try { ", " } catch (e) {}"]))
        assert browser.run("document.querySelector('#task b')") is None
        browser.run(
            "document.body.append(Object.assign(document.createElement('img'), { src: 'http://127.0.0.1:9/' }))"
        )
        browser.wait_for("true")
        browser.run("new Promise((done) => setTimeout(done, 100))")
        assert browser.problems, "the checker must see what the policy forbids"
    finally:
        served.process.terminate()
        served.end()


@needs_browser
def test_what_agents_have_kept_is_shown_and_never_run(short: Path, browser: Browser) -> None:
    """Memory, payload and contents, each read where it is looked at; a page of a long one after the other."""
    anyio.run(make_team, short / "a.db", backend="trio")
    served = Served(short, "--port", "0", "--agent", "memory_team:lead")
    try:
        open_page(served, browser)
        browser.run(f"window.hostile = {HOSTILE!r}; choose({LEAD!r})")
        for tab, rows in (("memory", "#items li"), ("payload", "#versions li"), ("contents", "#contents li")):
            browser.wait_for(f"!document.querySelector('#tab-{tab}').hidden")
            browser.run(f"document.querySelector('#tab-{tab}').click()")
            browser.wait_for(f"document.querySelectorAll('{rows}').length > 0")
            browser.run(f"document.querySelectorAll('{rows} details').forEach((d) => {{ d.open = true }})")
            browser.wait_for(
                f"[...document.querySelectorAll('{rows} pre')].every((pre) => pre.textContent) && "
                f"document.querySelector('#panel-{tab}').textContent.includes(plain(hostile.slice(0, 70)))"
            )
        assert browser.run("document.querySelector('#payload').textContent").startswith('{\n  "topic": "tides"')
        assert browser.run("document.querySelector('#items pre').textContent") == "The plan is yellow.\nIt was blue."
        browser.run("document.querySelector('#contents button').click()")
        browser.wait_for("document.querySelector('#contents pre').textContent.includes('Line 200 of')")
        assert browser.run("document.querySelector('#contents button')") is None
        browser.run(
            "document.querySelector('#tab-memory').click();"
            "document.querySelector('#search').elements.text.value = 'yellow';"
            "document.querySelector('#search').requestSubmit()"
        )
        browser.wait_for("document.querySelectorAll('#items li').length === 1")
        browser.run("choose([...runs.values()].find((run) => run.agent === 'hermit').id)")
        browser.wait_for("document.querySelector('#items .name').textContent === 'secret'")
        assert browser.run("document.querySelector('#tab-payload').hidden")
        assert browser.run("typeof window.evil") == "undefined"
        assert not browser.run("/[\\u202a-\\u202e]/.test(document.documentElement.outerHTML)")
        assert browser.run("document.querySelectorAll('img, svg, iframe, base, a, main script').length") == 0
        assert browser.problems == []
    finally:
        served.process.terminate()
        served.end()


@needs_browser
def test_a_click_that_meets_an_update_counts(short: Path, browser: Browser) -> None:
    """The button goes down, the lists are read again, the button comes up: what was under it is still there."""
    anyio.run(make_team, short / "a.db", backend="trio")
    served = Served(short, "--port", "0", "--agent", "memory_team:lead")
    try:
        open_page(served, browser)
        browser.run(f"choose({LEAD!r})")
        browser.run("document.querySelector('#tab-memory').click()")
        browser.wait_for("document.querySelectorAll('#items li').length === 5")
        new_run = (
            "ask('/runs', { agent: 'lead', task: 'Again.' }).then((made) => new Promise((done) => {"
            " const look = setInterval(() => { if ((runs.get(made.id) || {}).state === 'done') {"
            " clearInterval(look); done(true) } }, 20) }))"
        )
        for selector, came in (
            ("#items li:nth-child(3) summary", "document.querySelector('#items li:nth-child(3) details').open"),
            (f"[data-run^='{LEAD}.']", "chosen.includes('.')"),
        ):
            place = (
                f"(() => {{ const at = document.querySelector({selector!r}); at.scrollIntoView({{ block: 'center' }});"
                " const box = at.getBoundingClientRect(); return [box.x + 20, box.y + 5] })()"
            )
            x, y = browser.run(place)
            mouse = {"button": "left", "clickCount": 1}
            browser.run(f"window.pressed = document.querySelector({selector!r})")
            browser.call("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, **mouse)
            assert browser.run(new_run)
            assert browser.run("window.pressed.isConnected"), "else the click would be lost"
            x, y = browser.run(place)  # it may have moved; it is the same one
            browser.call("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y, **mouse)
            browser.wait_for(came)
        assert browser.problems == []
    finally:
        served.process.terminate()
        served.end()


@needs_browser
def test_the_page_comes_back_with_the_service(short: Path, browser: Browser) -> None:
    """After a restart it goes on by itself: the cookie still counts, and the timeline has no event twice."""
    (short / "docs").mkdir()
    (short / "docs" / "a.md").write_text("The tide turns twice a day.\n")
    options = ("--root", str(short / "docs"), "--model", "offline")
    served = Served(short, "--port", "0", *options)
    open_page(served, browser)
    port = browser.run("location.port")
    start = (
        "document.querySelector('#start').elements.task.value = 'When does the tide turn?';"
        "document.querySelector('#start').requestSubmit()"
    )
    browser.run(start)
    browser.wait_for("document.querySelector('#agent').textContent.includes('done')")
    events = browser.run("document.querySelectorAll('#timeline li').length")
    served.process.kill()
    served.end()
    browser.wait_for("document.querySelector('#link').classList.contains('broken')")
    served = Served(short, "--port", port, *options)
    try:
        served.hear("serving")
        browser.wait_for("document.querySelector('#link').textContent === 'live'")
        assert browser.run("document.querySelectorAll('#timeline li').length") == events
        browser.run(start)
        browser.wait_for("[...document.querySelectorAll('#tree > li')].length === 2")
        browser.wait_for("document.querySelector('#agent').textContent.includes('done')")
        assert browser.problems == []
    finally:
        served.process.terminate()
        served.end()


@needs_browser
def test_ten_tabs_share_one_stream(short: Path, browser: Browser) -> None:
    """A browser has six connections for one address: all tabs stay live on one, and when its tab goes on another's."""
    (short / "docs").mkdir()
    (short / "docs" / "a.md").write_text("The tide turns twice a day.\n")
    served = Served(short, "--port", "0", "--root", str(short / "docs"), "--model", "offline")
    live = "document.querySelector('#link').textContent === 'live'"
    start = (
        "document.querySelector('#start').elements.task.value = 'When does the tide turn?';"
        "document.querySelector('#start').requestSubmit()"
    )

    def readers() -> list[str]:
        found = []
        for tab in tabs:
            browser.tab = tab
            if browser.run("source !== null"):
                found.append(tab)
        return found

    try:
        first = browser.tab
        open_page(served, browser)
        address = browser.run("location.origin") + "/"
        tabs = [first]
        for _ in range(9):
            browser.new_tab()
            browser.open(address)
            browser.wait_for(live)
            tabs.append(browser.tab)
        browser.run(start)
        for tab in tabs:
            browser.tab = tab
            browser.wait_for("document.querySelector('#tree .done') !== null")
        assert readers() == [first]
        for tab in (tabs[5], first):
            tabs.remove(tab)
            browser.tab = tab
            browser.close_tab()
        browser.tab = tabs[0]
        browser.wait_for(live)
        browser.run(start)
        for tab in tabs:
            browser.tab = tab
            browser.wait_for("document.querySelectorAll('#tree .done').length >= 2")
        browser.run("choose([...runs.keys()].at(-1))")
        browser.wait_for("document.querySelector('#agent').textContent.includes('done')")
        browser.wait_for("document.querySelectorAll('#timeline li').length > 5")
        assert len(readers()) == 1
        assert browser.problems == []
    finally:
        for tab in tabs[1:]:
            browser.tab = tab
            browser.close_tab()
        browser.tab = tabs[0]
        served.process.terminate()
        served.end()


@needs_browser
def test_a_stranger_sees_nothing(short: Path, browser: Browser) -> None:
    """Without the link there is a door; the token opens it, a wrong one does not."""
    served = Served(short, "--port", "0")
    try:
        found = re.search(r"(http://\S+/)#", served.hear("serving"))
        assert found is not None
        browser.open(found[1])
        browser.wait_for("!document.querySelector('#login').hidden")
        enter = (
            "document.querySelector('#login').elements.token.value = {!r};"
            "document.querySelector('#login').requestSubmit()"
        )
        browser.run(enter.format("x" * 43))
        browser.wait_for("document.querySelector('#note').textContent.includes('wrong')")
        browser.run(enter.format((short / "state" / "repertory" / "service-token").read_text().strip()))
        browser.wait_for("document.querySelector('#link').textContent === 'live'")
        assert browser.run("document.cookie") == ""
    finally:
        served.process.terminate()
        served.end()


def test_the_page_is_one_file_that_asks_nobody_else() -> None:
    """No build, no other address, and no way for text to become markup."""
    assert not re.findall(r"(?:https?:)?//[a-z]", re.sub(r"//.*", lambda m: m[0].replace("//", "", 1), PAGE))
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function|srcdoc", PAGE)
    assert not re.search(r"<[^>]*\son[a-z]+=", PAGE)
    assert "style=" not in PAGE
    assert CONTENT_SECURITY_POLICY.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in CONTENT_SECURITY_POLICY
