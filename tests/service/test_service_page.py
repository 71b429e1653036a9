"""The page in a real browser: what it shows, what it never runs, that no click is lost, and how it comes back."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from browser import Browser, needs_browser, open_page
from company_kit import COMPANY, Company
from hostile_agents import ALL, WORDS
from page_company import LONG, make_company
from test_service_process import Served

from memory_team import HOSTILE, LEAD, make_team
from patience import PATIENCE
from repertory.service.page import CONTENT_SECURITY_POLICY, PAGE, STATIC_FILES

pytestmark = needs_browser
NO_MARKUP = (
    "document.querySelectorAll('img:not(.picture), svg:not(.chart), iframe, base, object, style, main script').length"
)

UNSEEN = "[\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ufeff\\ufff9-\\ufffb\\u{e0000}-\\u{e0fff}]"


@contextmanager
def serving(folder: Path, browser: Browser, *options: str) -> Iterator[Served]:
    """A service whose page is open; at the end nothing of the page's was forbidden, and nothing of others' ran."""
    served = Served(folder, "--port", "0", *options)
    try:
        open_page(served, browser)
        yield served
        assert browser.run("typeof window.evil") == "undefined"
        assert browser.problems == []
    finally:
        served.process.terminate()
        served.end()


def post(browser: Browser, path: str, body: Any) -> Any:
    """POST as the page would."""
    said = json.dumps({"path": path, "body": body})
    return browser.run(
        f"(({{ path, body }}) => fetch(path, {{ method: 'POST', headers: {{ 'content-type': 'application/json' }}, "
        f"body: JSON.stringify(body) }}).then((answer) => answer.json()))({said})"
    )


def go(browser: Browser, run_id: str, tab: str = "") -> None:
    """Go to a run, and wait until it is shown."""
    browser.run(f"location.hash = '#run={run_id}' + ({tab!r} && '&tab={tab}')")
    browser.wait_for(f"document.querySelector('#id').textContent === {run_id!r}")
    if tab:
        browser.wait_for(f"!document.querySelector('#panel-{tab}').hidden")


def state_is(browser: Browser, state: str) -> None:
    """Wait until the run that is shown is in a state."""
    browser.wait_for(f"document.querySelector('#state').textContent === {state!r}")


def unfold(browser: Browser, within: str) -> None:
    """Open every fold, also those in folds."""
    for _ in range(3):
        browser.run(f"document.querySelectorAll('{within} details').forEach((fold) => {{ fold.open = true }})")
        browser.run("new Promise((done) => setTimeout(done, 60))")
    browser.run(f"document.querySelectorAll('{within} button.more').forEach((more) => more.click())")


AT_END = (
    "(({ scrollHeight, scrollTop, clientHeight }) => scrollTop > 0 && scrollHeight - scrollTop - clientHeight < 2)"
    "(matchMedia('(max-width: 50rem)').matches ? document.scrollingElement : document.querySelector('main'))"
)


# --- what is never run --------------------------------------------------------------------------------------


def test_no_word_of_an_agent_a_tool_or_a_user_runs(short: Path, browser: Browser) -> None:
    """Tasks, words, thoughts, calls, results, errors, pictures, reasons, memory, payload: text in every panel."""
    agents = ("--agent", "hostile_agents:hostile", "--agent", "hostile_agents:broken")
    with serving(short, browser, *agents):
        run_id = post(browser, "/runs", {"agent": "hostile", "task": WORDS})["id"]
        failed = post(browser, "/runs", {"agent": "broken", "task": ALL})["id"]
        post(browser, f"/runs/{run_id}/messages", {"text": WORDS})
        browser.wait_for("document.querySelectorAll('#waiting-calls .card').length === 2")
        browser.wait_for("document.querySelectorAll('#broken .card').length === 1")
        assert browser.run("document.querySelector('#waiting-calls textarea').value.includes('window.evil = 4')")
        boxes = "[...document.querySelectorAll('textarea, input')].map((each) => each.value).join()"
        numbers = r"\\u202etxt.yap\\u2066\\udb40\\udc41\\udb40\\udd41\\u3164\\u009d"
        assert browser.run(f"{boxes}.includes('{numbers}')"), "as its number in JSON"
        assert not browser.run(f"/{UNSEEN}/u.test({boxes})")
        assert not browser.run(f"/{UNSEEN}/u.test(document.documentElement.outerHTML)")
        assert browser.run("document.title") == "(2) repertory"
        assert browser.run(NO_MARKUP) == 0
        go(browser, failed)
        browser.wait_for("document.querySelector('#answer').textContent.includes('window.evil = 1')")
        go(browser, run_id)
        post(browser, f"/runs/{run_id}/calls/c4/deny", {"reason": WORDS, "by": ALL})
        post(browser, f"/runs/{run_id}/calls/c5/result", {"result": {ALL: WORDS}})
        state_is(browser, "done")
        panels = {"conversation": "#entries", "saw": "#saw", "memory": "#items", "payload": "#panel-payload"}
        for tab, place in (panels | {"contents": "#contents", "log": "#log"}).items():
            go(browser, run_id, tab)
            browser.wait_for(f"document.querySelector('{place}').textContent.length > 100")
            unfold(browser, place)
            browser.wait_for(f"document.querySelector('{place}').textContent.includes('window.evil = 3')")
            assert browser.run(NO_MARKUP) == 0, tab
        browser.run("document.querySelectorAll('#record .record-row').forEach((row) => row.click())")
        links = browser.run("[...document.querySelectorAll('main a')].map((link) => [link.protocol, link.rel])")
        assert links
        assert {tuple(link) for link in links} == {("https:", links[0][1]), ("http:", links[0][1])}
        assert "noreferrer" in links[0][1]
        assert browser.run(
            "document.querySelector('#entries').textContent.includes('picture not shown: image/svg+xml')"
        )
        assert not browser.run(f"/{UNSEEN}/u.test(document.documentElement.outerHTML)")
        assert browser.run("document.documentElement.textContent.includes('⟨U+202E⟩')")
        browser.run("location.hash = '#run=run-nothing'")
        browser.wait_for("document.querySelector('#note').textContent.includes('run-nothing')")
        assert browser.run("document.querySelector('#run').hidden"), "another run's name and buttons stand there"
        go(browser, run_id)


def test_the_checker_sees_what_the_policy_forbids(short: Path, browser: Browser) -> None:
    """Negative control: markup is refused, and a picture from elsewhere is a problem that is noticed."""
    with serving(short, browser):
        browser.run("document.querySelector('#task').innerHTML = '<b>x</b>'".join(["try { ", " } catch (e) {}"]))
        assert browser.run("document.querySelector('#task b')") is None
        browser.run(
            "document.body.append(Object.assign(document.createElement('img'), { src: 'http://127.0.0.1:9/' }))"
        )
        browser.run("new Promise((done) => setTimeout(done, 100))")
        assert browser.problems
        browser.problems.clear()


def test_what_agents_have_kept_is_shown_and_never_run(short: Path, browser: Browser) -> None:
    """Memory, payload and contents, each read where it is looked at; a page of a long one after the other."""
    anyio.run(make_team, short / "a.db", backend="trio")
    with serving(short, browser, "--agent", "memory_team:lead"):
        for tab, rows in (("memory", "#items li"), ("payload", "#versions li"), ("contents", "#contents li")):
            go(browser, LEAD, tab)
            browser.wait_for(f"document.querySelectorAll('{rows}').length > 0")
            browser.run(f"document.querySelectorAll('{rows} details').forEach((d) => {{ d.open = true }})")
            hostile = json.dumps(HOSTILE[:70])
            browser.wait_for(
                f"[...document.querySelectorAll('{rows} pre')].every((pre) => pre.textContent) && "
                f"document.querySelector('#panel-{tab}').textContent.includes({hostile})"
            )
        assert browser.run("document.querySelector('#payload').textContent").startswith('{\n  "topic": "tides"')
        assert browser.run("document.querySelector('#items pre').textContent") == "The plan is yellow.\nIt was blue."
        browser.run("document.querySelector('#contents button').click()")
        browser.wait_for("document.querySelector('#contents pre').textContent.includes('Line 200 of')")
        assert browser.run("document.querySelector('#contents button')") is None
        go(browser, LEAD, "memory")
        browser.run(
            "document.querySelector('#search').elements.text.value = 'yellow';"
            "document.querySelector('#search').requestSubmit()"
        )
        browser.wait_for("document.querySelectorAll('#items li').length === 1")
        browser.run(
            "[...document.querySelectorAll('#family button')].find((b) => b.textContent.includes('hermit')).click()"
        )
        browser.wait_for("document.querySelector('#items .name').textContent === 'secret'")
        assert browser.run("document.querySelector('#tab-payload').hidden")
        assert browser.run(NO_MARKUP) == 0


def test_a_question_of_a_known_shape_is_a_form(short: Path, browser: Browser) -> None:
    """On the overview and on the run's page: what is wrong is said at its field, and what is given fits the schema."""
    fill = """((values) => {
        const fields = [...document.querySelectorAll('#waiting-calls .fields input, #waiting-calls .fields select')];
        for (const [at, value] of values) {
            const field = fields[at];
            if (field.type === 'checkbox') field.checked = value;
            else if (field.multiple) for (const option of field.options) option.selected = value.includes(option.text);
            else if (field.type === 'select-one')
                field.selectedIndex = [...field.options].findIndex((option) => option.text === value);
            else field.value = value;
        }
    })"""
    give = "document.querySelector('#waiting-calls button.act').click()"
    wrong = "[...document.querySelectorAll('#waiting-calls .fields .wrong')].map((each) => each.textContent !== '')"
    with serving(short, browser, "--agent", "page_company:captain"):
        run_id = post(browser, "/runs", {"agent": "captain", "task": "Get a berth."})["id"]
        browser.wait_for("document.querySelectorAll('#waiting-calls .fields label').length === 6")
        assert browser.run("document.querySelector('#waiting-calls textarea').hidden")
        browser.run(fill + "([[1, '40'], [5, 'nobody']])")
        browser.run(give)
        assert browser.run(wrong) == [True, True, True, False, False, True]
        assert browser.run("document.activeElement.getAttribute('aria-label')") == "Your name for berth of captain"
        browser.run(fill + "([[0, 'Ann'], [1, '3'], [2, 'South quay'], [3, ['Monday', 'Friday']], [5, '']])")
        browser.run(give)
        go(browser, run_id)
        state_is(browser, "done")
        given = '{"name":"Ann","crew":3,"berth":"s","days":["Monday","Friday"],"pilot":true}'
        answer = browser.run("document.querySelector('#answer').textContent")
        assert json.loads(answer.removeprefix("I was told ")) == json.loads(given)


def test_a_schema_that_makes_no_sense_hides_no_call(short: Path, browser: Browser) -> None:
    """A server may write anything there: the page broke off at it, and showed none of the calls that waited."""
    with serving(short, browser, "--agent", "page_company:lost"):
        post(browser, "/runs", {"agent": "lost", "task": "Get lost."})
        boxes = "[...document.querySelectorAll('#waiting-calls textarea')].filter((box) => box.checkVisibility())"
        browser.wait_for(f"{boxes}.length === 3")
        assert browser.run("document.querySelector('#note').textContent") == ""


# --- what is shown is what is on record -----------------------------------------------------------------------


def told(folder: Path, *words: str) -> Any:
    """What the command line says about the database, through its service, as JSON."""
    known = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}  # where the service keeps its token
    command = [sys.executable, "-m", "repertory", *words, "--db", str(folder / "a.db"), "--json"]
    return json.loads(
        subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True, env=known).stdout
    )


def test_every_number_is_that_of_the_command_line(short: Path, browser: Browser) -> None:
    """The figures of a run, of its tree, of the list and of today equal ``repertory stats``."""
    figures = (
        "Object.fromEntries([...document.querySelectorAll('{} data')].map((d) => [d.dataset.figure, Number(d.value)]))"
    )
    with serving(short, browser, "--agent", "page_company:lead", "--agent", "page_company:brief"):
        ids = [post(browser, "/runs", {"agent": agent, "task": f"Read {agent}."})["id"] for agent in ("lead", "brief")]
        for run_id in ids:
            go(browser, run_id)
            state_is(browser, "done")
        stats = {run_id: told(short, "stats", run_id, "--tree") for run_id in ids}
        for run_id in ids:
            go(browser, run_id)
            own, tree = stats[run_id]["runs"][0]["statistics"], stats[run_id]["total"]
            shown = browser.wait_for(figures.format("#figures"))
            for name in ("iterations", "tool_calls", "tokens_seen", "output_tokens", "cost_seen"):
                assert shown[name] == pytest.approx(own[name]), name
            if tree["runs"] > 1:
                for name in ("runs", "tokens_seen", "cost_seen"):
                    assert shown[f"tree-{name}"] == pytest.approx(tree[name]), name
        browser.run("document.querySelector('#home').click()")
        tokens = sum(each["total"]["tokens_billed"] for each in stats.values())
        counted = f"((it) => it['today-tokens'] === {tokens} && it['today-done'] === 2 && it)({{}})"
        today = browser.wait_for(counted.format(figures.format("#totals")))  # they come after the end of a run
        assert today["today-cost"] == pytest.approx(sum(each["total"]["cost_seen"] for each in stats.values()))
        assert (today["today-working"], today["today-needs"]) == (0, 0)
        served = json.loads(browser.run(f"fetch('/stats?run={ids[0]}&tree=1').then((answer) => answer.text())"))
        assert served == {name: value for name, value in stats[ids[0]].items() if name != "database"}


def test_how_long_a_run_has_been_going_is_told_by_the_clock_of_the_service(short: Path, browser: Browser) -> None:
    """In the list and at the run alike, while nothing else happens; the browser's clock may be wrong."""
    late = "const now = Date.now; Date.now = () => now() + 3600000 + (window.later ?? 0)"
    script = browser.call("Page.addScriptToEvaluateOnNewDocument", source=late)
    shown = "document.querySelector('{}').textContent.includes('{}')"
    try:
        with serving(short, browser, "--agent", "page_company:buyer"):
            run_id = post(browser, "/runs", {"agent": "buyer", "task": "Buy."})["id"]
            browser.wait_for("document.querySelectorAll('#waiting-calls .card').length === 2")
            assert not browser.run(shown.format("#tree", "1 h"))
            go(browser, run_id)
            browser.run("window.later = 600000")
            browser.wait_for(shown.format("#tree .figures", "10 min"))
            browser.wait_for(shown.format("#facts", "for 10 min"))
    finally:
        browser.call("Page.removeScriptToEvaluateOnNewDocument", **script)


def test_what_the_model_saw_is_what_was_sent(short: Path, browser: Browser) -> None:
    """Each block of the request is there, word for word; each entry of the record has its mark, and says why."""
    anyio.run(partial(make_company, short / "a.db", runs=0, iterations=30), backend="trio")
    with serving(short, browser):
        go(browser, LONG, "saw")
        browser.wait_for("document.querySelectorAll('#view .sent').length > 3")
        title = browser.run("document.querySelector('#saw-title').textContent")
        assert title == "Iteration 31 of 31"
        for _ in range(10):
            browser.run("document.querySelector('#saw-back').click()")
            browser.wait_for(f"document.querySelector('#saw-title').textContent !== {title!r}")
            title = browser.run("document.querySelector('#saw-title').textContent")
        assert title == "Iteration 21 of 31"
        shown = told(short, "inspect", LONG, "--iteration", "21")
        unfold(browser, "#saw")
        texts = browser.run("[...document.querySelectorAll('#view .sent')].map((block) => block.textContent)")
        blocks = [block for message in shown["request"]["messages"] for block in message["content"]]
        assert len(texts) == len(blocks)
        for text, block in zip(texts, blocks, strict=True):
            words = (
                block.get("text") or block.get("content") or json.dumps(block["input"], indent=2, ensure_ascii=False)
            )
            for part in [words] if isinstance(words, str) else [each["text"] for each in words]:
                assert part in text
        rows = "[...document.querySelectorAll('#record .record-row')]"
        browser.run(f"{rows}.find((row) => /summarized/.test(row.textContent)).click()")
        why = browser.run("document.querySelector('#why').textContent")
        assert "replaced by a summary" in why
        assert "Decided for iteration" in why
        assert any(decision["sentence"] in why for decision in shown["decisions"])
        assert browser.run("document.querySelector('svg.chart polyline.view') !== null")
        facts = browser.run("document.querySelector('#saw-facts').textContent")
        assert f"{shown['prompt_tokens'] / 1000:.1f}k tokens seen" in facts


# --- what is done on it ------------------------------------------------------------------------------------------


def click(browser: Browser, x: float, y: float, *, pause: float = 0.0) -> None:
    """Press the mouse somewhere, and let it go."""
    mouse = {"x": x, "y": y, "button": "left", "clickCount": 1}
    browser.call("Input.dispatchMouseEvent", type="mousePressed", **mouse)
    time.sleep(pause)
    browser.call("Input.dispatchMouseEvent", type="mouseReleased", **mouse)


WATCH = """
document.addEventListener("pointermove", (event) => { window.moved = event.timeStamp }, true);
document.addEventListener("pointerdown", (event) => {
  window.pressed = event.target.closest("[data-run]")?.dataset.run ?? null;
  window.after = event.timeStamp - window.moved;
}, true);
"""
"""Keeps which run the mouse was pressed on, and how many milliseconds after it was moved there."""


def lost_clicks(short: Path, browser: Browser, clicks: int) -> int:
    """How many of so many clicks on the list, 120 ms apart while four agents work, do not show what was pointed at."""
    anyio.run(partial(make_company, short / "a.db", runs=12, iterations=3), backend="trio")
    lost = 0
    with serving(short, browser, "--agent", "page_company:worker", "--agent", "page_company:brief"):
        for number in range(4):
            post(browser, "/runs", {"agent": "worker", "task": f"Watch {number}."})
        browser.wait_for("document.querySelectorAll('#tree .run .running').length === 4")
        under = "(({x, y}) => document.elementFromPoint(x, y)?.closest('[data-run]')?.dataset.run)"
        chosen = "new URLSearchParams(location.hash.slice(1)).get('run')"
        browser.run(WATCH)
        for number in range(clicks):
            if number % 8 == 0:  # the list grows and changes its order meanwhile
                post(browser, "/runs", {"agent": "brief", "task": f"Look {number}."})
            place = {"x": 120 + number % 90, "y": 190 + (number * 53) % 520}
            browser.call("Input.dispatchMouseEvent", type="mouseMoved", **place)
            pointed = browser.run(f"{under}({json.dumps(place)})")
            click(browser, **place, pause=0.03 if number % 2 else 0.0)
            time.sleep(0.12)
            pressed, after, shown = browser.run(f"[window.pressed, window.after, {chosen}]")
            # What is pointed at stays for 900 ms, which may be over where the machine is busy.
            if pressed is not None and (shown != pressed or (pressed != pointed and after < 800)):
                lost += 1
        browser.wait_for(f"document.querySelector('#id').textContent === {chosen}")
    return lost


def test_no_click_is_lost_while_agents_work(short: Path, browser: Browser) -> None:
    """The run that was under the pointer is the one that is shown."""
    assert lost_clicks(short, browser, 40) == 0


@pytest.mark.nightly
def test_no_click_of_two_hundred_is_lost(short: Path, browser: Browser) -> None:
    """The same for longer."""
    assert lost_clicks(short, browser, 200) == 0


def test_a_row_that_is_pressed_stays(short: Path, browser: Browser) -> None:
    """The button goes down, the list is read again, the button comes up: what was under it is still there."""
    anyio.run(make_team, short / "a.db", backend="trio")
    with serving(short, browser, "--agent", "memory_team:lead"):
        go(browser, LEAD, "memory")
        browser.wait_for("document.querySelectorAll('#items li').length === 5")
        place = (
            "(async () => { const at = window.pressed; at.scrollIntoView({ block: 'center' });"
            # A row that comes into sight is drawn in the next frame, and nothing in it is hit before.
            " for (let frame = 0; frame < 2; frame++) await new Promise(requestAnimationFrame);"
            " const box = at.getBoundingClientRect(); return [box.x + 20, box.y + box.height / 2] })()"
        )
        browser.run("window.pressed = document.querySelector('#items li:nth-child(3) summary')")
        x, y = browser.run(place)
        mouse = {"button": "left", "clickCount": 1}
        browser.call("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, **mouse)
        made = post(browser, "/runs", {"agent": "lead", "task": "Again."})["id"]
        browser.wait_for(f"document.querySelector('[data-run=\"{made}\"] .done') !== null")
        assert browser.run("window.pressed.isConnected"), "else the click would be lost"
        x, y = browser.run(place)  # it may have moved, or stand lower in the list
        browser.call("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y, **mouse)
        browser.wait_for("window.pressed.closest('details').open")


def test_calls_that_wait_are_decided_with_other_arguments(short: Path, browser: Browser) -> None:
    """Arguments are changed in their box and checked before they are sent; a denial has its reason."""
    with serving(short, browser, "--agent", "serve_agents:payer"):
        run_id = post(browser, "/runs", {"agent": "payer", "task": "Pay."})["id"]
        cards = "document.querySelectorAll('#waiting-calls .card')"
        browser.wait_for(f"{cards}.length === 3")
        find = "const card = [...%s].find((each) => each.querySelector('textarea').value.includes('%s'));"
        press = "card.querySelector('button.act%s').click()"
        change = "const box = card.querySelector('textarea'); box.value = %r; box.dispatchEvent(new Event('input'));"
        for wrong, said in (("{ to: 'ann' }", "not JSON"), ("[1]", "one JSON object")):
            browser.run(
                f"(() => {{ {find % (cards, 'ann')} window.card = card; {change % wrong} {press % '.allow'} }})()"
            )
            assert said in browser.run("window.card.querySelector('.wrong').textContent")
            assert browser.run("window.card.querySelector('textarea').getAttribute('aria-invalid')") == "true"
            browser.run(
                "(() => { const box = window.card.querySelector('textarea'); box.value = '{\"to\": \"ann\"}' })()"
            )
        assert browser.run(f"{cards}.length") == 3
        changed = json.dumps({"to": "ann", "amount": 50})
        command = "window.card.querySelector('.command code').textContent"
        browser.run(f"(() => {{ {find % (cards, 'ann')} {change % changed} }})()")
        assert browser.run(command).startswith(f"repertory approve c0 --run {run_id} --arguments '{{")
        browser.run(f"(() => {{ {find % (cards, 'ann')} {press % '.allow'} }})()")
        browser.wait_for(f"{cards}.length === 2")
        deny = "card.querySelector('input').value = 'not him';" + press % ":not(.allow)"
        browser.run(f"(() => {{ {find % (cards, 'bob')} {deny} }})()")
        browser.wait_for(f"{cards}.length === 1")
        browser.run(f"(() => {{ {find % (cards, 'cyn')} {press % '.allow'} }})()")
        browser.wait_for("document.querySelector('#needs').hidden")
        go(browser, run_id)
        state_is(browser, "done")
        answer = browser.run("document.querySelector('#answer').textContent")
        assert "paid ann 50" in answer
        assert "not him | paid cyn 2" in answer


def test_a_number_of_nineteen_digits_is_shown_and_allowed_as_it_is(short: Path, browser: Browser) -> None:
    """JavaScript would round it: somebody would allow another number than is shown, or send back a changed one."""
    with serving(short, browser, "--agent", "serve_agents:exact_payer"):
        run_id = post(browser, "/runs", {"agent": "exact_payer", "task": "Pay."})["id"]
        browser.wait_for("document.querySelector('#waiting-calls .card textarea') !== null")
        box = "document.querySelector('#waiting-calls .card textarea')"
        assert '"amount": 1234567890123456789' in browser.run(f"{box}.value")
        change = f"{box}.value = {box}.value.replace('ann', 'bob'); {box}.dispatchEvent(new Event('input'));"
        browser.run(change + "document.querySelector('#waiting-calls .card button.allow').click()")
        browser.wait_for("document.querySelector('#needs').hidden")
        go(browser, run_id)
        state_is(browser, "done")
        assert "paid bob 1234567890123456789" in browser.run("document.querySelector('#answer').textContent")


def test_a_run_is_taken_out_of_the_queue(short: Path, browser: Browser) -> None:
    """It had no buttons: whoever had started one too many could only wait until it began."""
    company = Company(short, COMPANY.replace('socket = "s"', "port = 0"))
    company.variables["XDG_STATE_HOME"] = str(short / "state")
    said = company.run("up", "--detach")
    try:
        link = re.search(r"http://\S+", said.stdout + said.stderr)
        assert link is not None, said
        browser.open(link[0])
        browser.wait_for("document.querySelector('#link').textContent === 'live'")
        post(browser, "/runs", {"agent": "clerk", "task": "First."})
        go(browser, post(browser, "/runs", {"agent": "clerk", "task": "Second."})["id"])
        state_is(browser, "queued")
        assert not browser.run("document.querySelector('#say').hidden")
        for name, state in (("Pause", "paused"), ("Resume", "queued"), ("Stop", "stopped")):
            buttons = f"[...document.querySelectorAll('#actions button')].filter((it) => it.textContent === '{name}')"
            browser.wait_for(f"{buttons}.length")
            browser.run(f"{buttons}[0].click()")
            state_is(browser, state)
    finally:
        assert company.command("down", "--now")[0] == 0


def test_a_run_is_steered_and_spoken_to(short: Path, browser: Browser) -> None:
    """Pause, resume, a message, stop: what the page offers is what the run can do."""
    offered = "[...document.querySelectorAll('#actions button')].map((button) => button.textContent)"
    press = "[...document.querySelectorAll('#actions button')].find((button) => button.textContent === '%s').click()"
    with serving(short, browser, "--agent", "page_company:worker"):
        go(browser, post(browser, "/runs", {"agent": "worker", "task": "Work."})["id"])
        browser.wait_for(f"{offered}.includes('Pause')")
        browser.run(press % "Pause")
        state_is(browser, "paused")
        browser.wait_for(f"{offered}.includes('Resume') && !{offered}.includes('Pause')")
        browser.run(press % "Resume")
        state_is(browser, "running")
        browser.run(
            "document.querySelector('#say').elements.text.value = 'Look *north*.';"
            "document.querySelector('#say').requestSubmit()"
        )
        browser.wait_for("document.querySelector('#entries').textContent.includes('Look north.')")
        browser.wait_for(f"{offered}.includes('Stop')")
        browser.run(press % "Stop")
        state_is(browser, "stopped")
        browser.wait_for(f"!{offered}.includes('Stop')")


def test_what_a_model_says_is_read_along(short: Path, browser: Browser) -> None:
    """Whoever looks at its end stays there. It is not heard word by word; what is heard is how the run goes on."""
    said = "document.querySelector('#speaks').textContent.includes('{}')"
    with serving(short, browser, "--agent", "page_company:speaker"):
        go(browser, post(browser, "/runs", {"agent": "speaker", "task": "Speak."})["id"])
        browser.wait_for("document.querySelector('#speaks em').textContent === 'thinking…'")
        (short / "say").touch()
        browser.wait_for(f"{said.format('One.')} && !{said.format('thinking')}")
        browser.wait_for(f"{AT_END} || (document.querySelector('main').scrollTop = 1e6, false)")
        (short / "go").touch()
        browser.wait_for(f"{said.format('Two.')} && {AT_END}")
        assert browser.run("document.querySelector('#speaks').closest('[aria-live], [role=status]')") is None
        (short / "end").touch()
        browser.wait_for("document.querySelector('#state[role=status]').textContent === 'done'")
        browser.wait_for("document.querySelector('#speaks').hidden")


def test_what_is_written_to_a_run_stays_with_it(short: Path, browser: Browser) -> None:
    """Another run is looked at before it is sent: it stood in that one's box, and went there."""
    box = "document.querySelector('#say').elements.text"
    with serving(short, browser, "--agent", "page_company:brief"):
        first, second = [post(browser, "/runs", {"agent": "brief", "task": "Read."})["id"] for _ in range(2)]
        for run_id, there, written in ((first, "", "Look north."), (second, "", "South."), (first, "Look north.", "")):
            go(browser, run_id)
            state_is(browser, "done")
            assert browser.run(f"{box}.value") == there
            browser.run(f"{box}.value = {written!r}" if written else "document.querySelector('#say').requestSubmit()")
        browser.wait_for("document.querySelector('#entries').textContent.includes('Look north.')")
        assert browser.run(f"{box}.value") == ""
        cut = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        browser.run(f"{box}.value = 'Once more.'")
        browser.call("Network.emulateNetworkConditions", offline=True, **cut)
        browser.run(f"document.querySelector('#say').requestSubmit(); {box}.value = 'And again.'")
        browser.wait_for("document.querySelector('#note').textContent === 'the service does not answer'")
        browser.call("Network.emulateNetworkConditions", offline=False, **cut)
        assert browser.run(f"{box}.value") == "Once more.\nAnd again.", "it was not sent"


def test_a_run_is_forked_tried_again_and_removed(short: Path, browser: Browser) -> None:
    """A fork begins behind the iteration that is looked at, with what is said to it; a failed run is tried again."""
    anyio.run(partial(make_company, short / "a.db", runs=0, iterations=5), backend="trio")
    press = "[...document.querySelectorAll('#actions button')].find((button) => button.textContent === '%s').click()"
    sure = "document.querySelector('#sure')"
    with serving(short, browser, "--agent", "hostile_agents:broken", "--agent", "page_company:brief"):
        origin = post(browser, "/runs", {"agent": "brief", "task": "Read."})["id"]
        go(browser, origin)
        state_is(browser, "done")
        browser.run(f"location.hash = '#run={origin}&tab=saw&call=2'")
        browser.wait_for("document.querySelector('#saw-title').textContent === 'Iteration 2 of 3'")
        browser.run(press % "Fork")
        browser.wait_for(f"{sure}.open && {sure}.querySelector('input').value === '2'")
        browser.run(f"{sure}.querySelector('textarea').value = 'Look again.'; {sure}.querySelector('.main').click()")
        browser.wait_for(f"!['', {origin!r}].includes(document.querySelector('#id').textContent)")
        fork = browser.run("document.querySelector('#id').textContent")
        assert browser.run("document.querySelector('#family').textContent") == "⑂ forked from brief"
        state_is(browser, "done")
        go(browser, fork, "conversation")
        browser.wait_for("document.querySelector('#entries').textContent.includes('Look again.')")
        browser.run(press % "Remove")
        browser.run(f"{sure}.querySelector('[value=\"\"]').click()")
        browser.run(press % "Remove")
        browser.run(f"{sure}.querySelector('.main').click()")
        browser.wait_for("!document.querySelector('#overview').hidden")
        browser.wait_for(f"document.querySelector('[data-run=\"{fork}\"]') === null")
        assert browser.run(f"document.querySelector('[data-run=\"{origin}\"]') !== null")
        go(browser, post(browser, "/runs", {"agent": "broken", "task": "Fail."})["id"], "log")
        state_is(browser, "failed")
        kinds = "[...document.querySelectorAll('#log .kind')].map((kind) => kind.textContent)"
        begun = f"{kinds}.filter((kind) => kind === 'asks the model').length"
        browser.wait_for(f"{begun} === 1")
        browser.run(press % "Retry")
        browser.wait_for(f"{begun} === 2")
        state_is(browser, "failed")
        failed = browser.run("document.querySelector('#id').textContent")
        browser.run(press % "Fork")
        browser.wait_for(f"{sure}.open")
        browser.run(f"{sure}.querySelector('.main').click()")  # its first iteration is not complete
        browser.wait_for(f"!['', {failed!r}].includes(document.querySelector('#id').textContent)")


def test_a_run_that_is_too_old_for_the_list_is_forked(short: Path, browser: Browser) -> None:
    """What can be done with it does not depend on the list, which the page reads anew while it is looked at."""
    with serving(short, browser, "--agent", "page_company:brief"):
        old = post(browser, "/runs", {"agent": "brief", "task": "Read."})["id"]
        go(browser, old)
        state_is(browser, "done")
        post(browser, "/runs", {"agent": "brief", "task": "Read on."})
        module = browser.run("document.querySelector('script').src").replace("main.js", "state.js")
        browser.run(f"import({module!r}).then((page) => {{ page.state.limit = 1; return page.readState() }})")
        search = "document.querySelector('#filter').elements.text"
        browser.run(f"{search}.value = 'nothing'; {search}.dispatchEvent(new Event('input', {{ bubbles: true }}))")
        facts = browser.run("document.querySelector('#list-facts').textContent")
        assert facts == "No run matches. Not listed: 1 older run."
        browser.run("[...document.querySelectorAll('#actions button')].find((it) => it.textContent === 'Fork').click()")
        browser.wait_for("document.querySelector('#sure').open || document.querySelector('#note').textContent")
        assert browser.run("document.querySelector('#note').textContent") == ""
        browser.run("document.querySelector('#sure').close()")


def test_a_log_that_could_not_be_read_is_read_when_it_is_opened_again(short: Path, browser: Browser) -> None:
    """Its first question fails, as while a service is restarted; it was taken for a log without events."""
    with serving(short, browser, "--agent", "page_company:brief"):
        run_id = post(browser, "/runs", {"agent": "brief", "task": "Read."})["id"]
        go(browser, run_id)
        state_is(browser, "done")
        cut = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        browser.call("Network.emulateNetworkConditions", offline=True, **cut)
        browser.run("document.querySelector('#tab-log').click()")
        browser.wait_for("document.querySelector('#note').textContent")
        browser.call("Network.emulateNetworkConditions", offline=False, **cut)
        browser.run("document.querySelector('#tab-saw').click()")
        browser.wait_for("!document.querySelector('#panel-saw').hidden")
        browser.run("document.querySelector('#tab-log').click()")
        browser.wait_for("document.querySelector('#log').children.length > 2")


def test_looking_is_all_that_a_read_only_service_allows(short: Path, browser: Browser) -> None:
    """The page has no controls, and the service refuses what the page would not send."""
    anyio.run(partial(make_company, short / "a.db", runs=2, iterations=3), backend="trio")
    with serving(short, browser, "--read-only", "--agent", "page_company:brief"):
        go(browser, LONG)
        browser.wait_for("!document.querySelector('#read-only').hidden")
        assert browser.run("document.querySelectorAll('#actions button').length") == 0
        assert browser.run("document.querySelector('#say').hidden && document.querySelector('#new').hidden")
        for path in ("/runs", f"/runs/{LONG}/stop", f"/runs/{LONG}/messages", "/runs/x/calls/c/approve"):
            assert "is read-only" in post(browser, path, {})["error"]
        assert browser.run(f"fetch('/runs/{LONG}', {{ method: 'DELETE' }}).then((answer) => answer.status)") == 403


def test_the_keyboard_reaches_everything(short: Path, browser: Browser) -> None:
    """j and k walk the list, Enter opens, digits change panels, / searches, ? helps; letters in a box are letters."""
    anyio.run(partial(make_company, short / "a.db", runs=6, iterations=3), backend="trio")

    def press(key: str, *, text: str = "") -> None:
        browser.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text or (key if len(key) == 1 else ""))
        browser.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    focused = "document.activeElement.dataset.run"
    with serving(short, browser):
        press("j")
        first = browser.wait_for(focused)
        press("j")
        second = browser.wait_for(f"{focused} !== {first!r} && {focused}")
        press("k")
        browser.wait_for(f"{focused} === {first!r}")
        press("ArrowDown")
        browser.wait_for(f"{focused} === {second!r}")
        press("Enter")
        browser.wait_for(f"document.querySelector('#id').textContent === {second!r}")
        press("2")
        browser.wait_for("!document.querySelector('#panel-saw').hidden")
        press("/")
        browser.wait_for("document.activeElement.name === 'text'")
        press("j")
        assert browser.run("document.querySelector('#filter').elements.text.value") == "j"
        press("Escape")
        press("?")
        browser.wait_for("document.querySelector('#help').open")
        press("Escape")
        browser.run("document.querySelector('#help').close()")
        press("Escape")
        browser.wait_for("!document.querySelector('#overview').hidden")
        roles = browser.run(
            "[...document.querySelectorAll('button, input, select, textarea')].filter((each) => each.offsetParent &&"
            " !(each.textContent.trim() || each.ariaLabel || each.labels?.length)).map((each) => each.outerHTML)"
        )
        assert roles == [], "whatever can be used has a name"


def test_the_list_is_read_in_the_order_in_which_it_is_seen(short: Path, browser: Browser) -> None:
    """Rows that changed their place stood where they had been for a screen reader, which also heard wrong numbers."""
    with serving(short, browser, "--agent", "page_company:lead", "--agent", "page_company:buyer"):
        done = [post(browser, "/runs", {"agent": "lead", "task": f"Read {number}."})["id"] for number in range(2)]
        browser.wait_for("document.querySelectorAll('#tree .done').length === 2")
        waits = post(browser, "/runs", {"agent": "buyer", "task": "Buy."})["id"]
        browser.wait_for("document.querySelector('#tree .needs') !== null")
        browser.run(f"document.querySelector('[data-run=\"{done[0]}\"]').focus()")
        sort = "document.querySelector('#filter').elements.sort"
        browser.run(f"{sort}.value = 'oldest'; {sort}.dispatchEvent(new Event('input', {{ bubbles: true }}))")
        rows = "[...document.querySelectorAll('#tree .run')].map((row) => {})"
        browser.wait_for(f"{rows.format('row.dataset.run')}.join() === '{waits},{','.join(done)}'")
        assert browser.run("document.activeElement.dataset.run") == done[0]
        browser.run("document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight' }))")
        place = "['level', 'posinset', 'setsize'].map((each) => Number(row.getAttribute('aria-' + each)))"
        places = [[1, 1, 1], [1, 1, 2], [2, 1, 3], [2, 2, 3], [2, 3, 3], [1, 2, 2]]
        assert browser.run(rows.format(place)) == places
        assert browser.run(rows.format("parseInt(row.style.top)")) == sorted(
            browser.run(rows.format("parseInt(row.style.top)"))
        )


# --- many of everything -----------------------------------------------------------------------------------------


def is_fluent(short: Path, browser: Browser, *, runs: int, iterations: int) -> None:
    """Only what is seen is drawn, at both widths, and nothing is wider than the screen."""
    anyio.run(partial(make_company, short / "a.db", runs=runs, iterations=iterations), backend="trio")
    with serving(short, browser, "--agent", "page_company:brief"):
        for width in (390, 1280):
            browser.resize(width)
            browser.run("location.hash = ''")
            browser.wait_for(f"document.querySelector('#tree .number')?.textContent === '{runs + 1}'")
            drawn = browser.run("document.querySelectorAll('#tree .run').length")
            assert 3 < drawn < 60
            go(browser, LONG)
            browser.wait_for("document.querySelectorAll('#entries .entry').length > 10")
            assert browser.run("document.querySelectorAll('#entries .entry').length") <= 13 * 40
            browser.run("document.querySelector('#to-end').click()")
            newest = f"document.querySelector('#entries [data-position=\"{2 * iterations + 1}\"]')"
            browser.wait_for(f"{newest}.getBoundingClientRect().bottom < innerHeight && {AT_END}")
            assert browser.run("document.querySelectorAll('#entries .entry').length") <= 13 * 40
            for tab, some in (("saw", "#view .sent"), ("log", "#log li"), ("memory", "#panel-memory")):
                go(browser, LONG, tab)
                browser.wait_for(f"document.querySelector('{some}') !== null")
                assert browser.run("document.querySelectorAll('#record .record-row').length") < 80
                wide = "document.scrollingElement.scrollWidth - innerWidth"
                assert browser.run(wide) <= 0, tab


def test_many_runs_and_a_long_one_are_fluent(short: Path, browser: Browser) -> None:
    """60 runs and 60 iterations."""
    is_fluent(short, browser, runs=60, iterations=60)


@pytest.mark.nightly
def test_two_hundred_runs_and_two_thousand_iterations_are_fluent(short: Path, browser: Browser) -> None:
    """The same with more."""
    is_fluent(short, browser, runs=199, iterations=2000)  # with the long one they are as many as are listed


def share_one_stream(short: Path, browser: Browser, count: int) -> None:
    """All tabs stay live on one stream, and when its tab goes on another's."""
    first = browser.tab
    assert first is not None
    tabs = [first]

    def readers() -> list[str]:
        found = []
        for tab in tabs:
            browser.tab = tab
            if browser.run("document.querySelector('#link').dataset.reads === 'stream'"):
                found.append(tab)
        return found

    def done(number: int) -> str:
        return f"document.querySelectorAll('#tree .done').length >= {number}"

    try:
        with serving(short, browser, "--agent", "page_company:brief", "--agent", "page_company:worker"):
            address = browser.run("location.origin") + "/"
            working = post(browser, "/runs", {"agent": "worker", "task": "Work."})["id"]
            for _ in range(count - 1):
                browser.new_tab()
                browser.open(f"{address}#run={working}")  # each would read along
                browser.wait_for("document.querySelector('#link').textContent === 'live'")
                browser.wait_for("document.querySelectorAll('#entries .entry').length > 1")
                assert browser.tab is not None
                tabs.append(browser.tab)
            post(browser, "/runs", {"agent": "brief", "task": "First."})
            for tab in tabs:
                browser.tab = tab
                browser.wait_for(done(1))
            assert readers() == [first]
            for tab in (tabs[5], first):
                tabs.remove(tab)
                browser.tab = tab
                browser.close_tab()
            browser.tab = tabs[0]
            browser.wait_for("document.querySelector('#link').textContent === 'live'")
            post(browser, "/runs", {"agent": "brief", "task": "Second."})
            for tab in tabs:
                browser.tab = tab
                browser.wait_for(done(2))
                assert browser.run("fetch('/healthz').then((answer) => answer.ok)"), "a connection is left"
            assert len(readers()) == 1
    finally:
        for tab in tabs[1:]:
            browser.tab = tab
            browser.close_tab()
        browser.tab = tabs[0]


def test_eight_tabs_share_one_stream(short: Path, browser: Browser) -> None:
    """A browser has six connections for one address."""
    share_one_stream(short, browser, 8)


@pytest.mark.nightly
def test_ten_tabs_share_one_stream(short: Path, browser: Browser) -> None:
    """The same with two more."""
    share_one_stream(short, browser, 10)


def test_the_page_comes_back_with_the_service(short: Path, browser: Browser) -> None:
    """After a restart it goes on by itself: the cookie still counts, and the log has no event twice."""
    options = ("--agent", "page_company:brief")
    served = Served(short, "--port", "0", *options)
    open_page(served, browser)
    port = browser.run("location.port")
    first = post(browser, "/runs", {"agent": "brief", "task": "First."})["id"]
    go(browser, first, "log")
    state_is(browser, "done")
    numbers = "[...document.querySelectorAll('#log li')].length"
    ended = "[...document.querySelectorAll('#log .kind')].some((kind) => kind.textContent === 'done')"
    browser.wait_for(ended)
    events = browser.run(numbers)
    served.process.kill()
    served.end()
    browser.wait_for("document.querySelector('#link').classList.contains('broken')")
    served = Served(short, "--port", port, *options)
    try:
        served.hear("serving")
        browser.wait_for("document.querySelector('#link').textContent === 'live'")
        second = post(browser, "/runs", {"agent": "brief", "task": "Second."})["id"]
        browser.wait_for(f"document.querySelector('[data-run=\"{second}\"] .done') !== null")
        assert browser.run(numbers) == events
        go(browser, second, "log")
        browser.wait_for(ended)
        assert browser.run(numbers) == events
        assert browser.problems == []
    finally:
        served.process.terminate()
        served.end()


def test_a_service_that_hangs_is_noticed(short: Path, browser: Browser) -> None:
    """Its connections stay open, so nothing breaks off: the page said that it was live, and agents that they worked."""
    kept = "window.later = window.setTimeout; window.setTimeout = (act, after, ...more) =>"
    kept += " { if (after === 40000) window.unheard = act; return window.later(act, after, ...more) }"
    script = browser.call("Page.addScriptToEvaluateOnNewDocument", source=kept)
    try:
        with serving(short, browser, "--agent", "page_company:brief") as served:
            served.process.send_signal(signal.SIGSTOP)
            try:
                browser.run("window.unheard()")  # as after 40 s without a sign of life
                broken = "document.querySelector('#link').classList.contains('broken')"
                assert browser.run(broken)
            finally:
                served.process.send_signal(signal.SIGCONT)
            browser.wait_for("document.querySelector('#link').textContent === 'live'")
            made = post(browser, "/runs", {"agent": "brief", "task": "On."})["id"]
            browser.wait_for(f"document.querySelector('[data-run=\"{made}\"] .done') !== null")
    finally:
        browser.call("Page.removeScriptToEvaluateOnNewDocument", **script)


def test_a_page_begins_anew_with_an_older_database(short: Path, browser: Browser) -> None:
    """It stayed open while the database was replaced: numbers that it has seen come again, and mean something else."""
    options = ("--agent", "page_company:brief")
    served = Served(short, "--port", "0", *options)
    open_page(served, browser)
    port = browser.run("location.port")
    for task in ("First.", "Second.", "Third."):
        first = post(browser, "/runs", {"agent": "brief", "task": task})["id"]
        go(browser, first, "log")
        state_is(browser, "done")
    browser.wait_for("[...document.querySelectorAll('#log .kind')].some((kind) => kind.textContent === 'done')")
    served.process.kill()
    served.end()
    browser.wait_for("document.querySelector('#link').classList.contains('broken')")
    for each in short.glob("a.db*"):
        each.unlink()
    served = Served(short, "--port", port, *options)
    try:
        served.hear("serving")
        browser.wait_for("document.querySelector('#link').textContent === 'live'")
        browser.wait_for("document.querySelector('#list-facts').textContent === 'No runs yet.'")
        new = post(browser, "/runs", {"agent": "brief", "task": "New."})["id"]
        browser.wait_for(f"document.querySelector('[data-run=\"{new}\"] .done') !== null")
    finally:
        served.process.terminate()
        served.end()


# --- the door -----------------------------------------------------------------------------------------------------


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
        assert browser.run("document.querySelector('#login').elements.token.value") == "", "it stood there for the next"
    finally:
        served.process.terminate()
        served.end()


def test_the_page_asks_nobody_else() -> None:
    """No build, no other address, and no way for text to become markup."""
    parts = {path: body.decode() for path, (body, _) in STATIC_FILES.items()}
    for name, source in {"index.html": PAGE, **parts}.items():
        code = re.sub(r"(?<!:)//.*|/\*.*?\*/", "", source, flags=re.DOTALL if name.endswith("css") else 0)
        assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)[a-z]", code), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function|srcdoc", code), (
            name
        )
        assert not re.search(r"<[^>]*\son[a-z]+=", source), name
        assert not re.search(r"<[^>]*\sstyle=", source), name
    imported = {name for source in parts.values() for name in re.findall(r'from "\./([\w-]+\.js)"', source)}
    assert imported <= {path.rpartition("/")[2] for path in parts}
    assert CONTENT_SECURITY_POLICY.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in CONTENT_SECURITY_POLICY
