"""What is no longer in view comes back whole, in pages, and not for ever."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from threading import get_ident
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory._json_text import canonical_json
from repertory.errors import ToolRetry
from repertory.llm.messages import Image, Json, RawBlock, Text, Thinking, ToolResult, ToolUse
from repertory.record import Draft, Ledger, MemoryJournal, RunStarted
from repertory.record.entries import Retrieved
from repertory.record.ledger import Snapshot
from repertory.record.records import ContentStored
from repertory.record.search import SearchHit
from repertory.tools import ToolContext, ToolOutput, call_tool, context_tools
from repertory.tools.execution import execute
from repertory.tools.pages import PAGE, page_bounds, page_note, take_page
from repertory.tools.repeats import arguments_digest

RETRIEVE, CONTENT = context_tools()


class Run:
    """A run's record on a real journal, with the calls that a model makes of it."""

    def __init__(self) -> None:
        self.journal = MemoryJournal()
        self.ledger = Ledger(self.journal, "r")
        self.iteration = 0

    def snapshot(self) -> Snapshot:
        """The ledger as it stands."""
        return self.ledger.snapshot()

    async def search(self, query: str, *, limit: int = 20) -> list[SearchHit]:
        """Full-text search."""
        return await self.journal.search_entries("r", query, limit=limit)

    async def of_run(self, run_id: str) -> None:
        """There is no other run."""

    def others(self) -> list[str]:
        """There is no other run."""
        return []

    async def begin(self) -> None:
        """Start with a task."""
        await self.journal.write([RunStarted(run_id="r", agent="a", task="t", at=0.0)])
        await self.ledger.append(Draft(role="user", kind="task", content=(Text("Find the birds."),)))

    async def turn(self, tool: str, arguments: Json, result: str, *, cite: bool = False, said: str = "") -> str:
        """One iteration: the model's turn and the result of its call; a cited result is stored whole, shown short."""
        self.iteration += 1
        use = ToolUse(f"call-{self.iteration}", tool, arguments)
        content = (Thinking("hm"), *([Text(said)] if said else []), use)
        await self.ledger.append(Draft(role="assistant", kind="assistant", content=content, iteration=self.iteration))
        name = f"content-{self.iteration}"
        stored = ContentStored(content_id=name, run_id="r", source_type="tool", source=tool, body=result, at=0.0)
        await self.ledger.append(
            Draft(
                role="user",
                kind="action-result",
                content=(ToolResult(use.id, result[:500] if cite else result),),
                iteration=self.iteration,
                tool=tool,
                tool_call_id=use.id,
                content_id=name if cite else None,
                original_length=len(result) if cite else 0,
            ),
            also=[stored] if cite else [],
        )
        return name

    async def call(self, tool: Any, **arguments: Any) -> ToolOutput:
        """The model retrieves something: its turn is in the record before the tool runs, the result after it."""
        self.iteration += 1
        use = ToolUse(f"call-{self.iteration}", tool.name, arguments)
        await self.ledger.append(Draft(role="assistant", kind="assistant", content=(use,), iteration=self.iteration))
        context = ToolContext(
            run_id="r",
            iteration=self.iteration,
            call_id=use.id,
            arguments_digest=arguments_digest(use.name, use.input),
            record=self,
            contents=self.journal,
        )
        output = await execute(tool, arguments, context)
        await self.ledger.append(
            Draft(
                role="user",
                kind="action-result",
                content=(ToolResult(use.id, output.text, is_error=output.is_error),),
                iteration=self.iteration,
                tool=tool.name,
                tool_call_id=use.id,
                retrieved=output.retrieved,
            )
        )
        return output


@pytest.fixture
async def run() -> AsyncIterator[Run]:
    """A run of three iterations, the second one cited."""
    made = Run()
    await made.begin()
    await made.turn("search", {"q": "birds"}, "two birds: heron and kestrel", said="I look.")
    await made.turn("fetch", {"url": "x"}, "The heron stands.\n" * 100 + "The kestrel hovers.\n", cite=True)
    await made.turn("search", {"q": "fish"}, "no fish")
    yield made
    await made.journal.aclose()


def test_both_only_read_and_are_never_answered_from_before() -> None:
    """They count their own repeats, so the cache must let them through."""
    for tool in (RETRIEVE, CONTENT):
        assert (tool.effect, tool.repeatable) == ("pure", False)


async def test_a_result_comes_back_whole_by_its_call(run: Run) -> None:
    """The content store has all of what the record shows only the beginning of, and the call that asked for it."""
    output = await run.call(RETRIEVE, tool_call_id="call-2")
    assert output.text.startswith("2 messages found\n\n--- position 3 · iteration 2 · assistant · ")
    assert '[call call-2] fetch {"url":"x"}' in output.text
    assert " · action-result · fetch · call-2 · content-" in output.text
    assert output.text.count("The heron stands.\n") == 100
    assert output.text.endswith("The kestrel hovers.\n")
    assert output.facts == {"found": 2, "page": 1, "pages": 1}
    assert output.retrieved is not None
    assert (output.retrieved.positions, output.retrieved.hint) == ((3, 4), False)
    asked, shown = output.retrieved.parts
    assert (asked[1:3], shown.source[:8], shown[1:3]) == ((0, 31), "content-", (0, 1_820))
    for part in output.retrieved.parts:  # and where in the answer each of them stands
        assert output.text[part.at - 1] == "\n"
        assert output.text[part.at : part.at + part.end - part.start][-1] in "}\n."
    assert output.source_type == "retrieval"


@pytest.mark.parametrize(
    ("arguments", "positions"),
    [
        ({"iteration": 1}, [1, 2]),
        ({"iteration": 0}, [0]),
        ({"position": 4}, [4]),
        ({"position": 0}, [0]),
        ({"position": 4, "iteration": 1}, None),
        ({"tool_name": "search"}, [2, 6]),
        ({"tool_name": "search", "limit": 1}, [6]),
        ({"tool_name": "search", "iteration": 1}, [2]),
        ({"topic": "kestrel"}, [2]),
        ({"topic": "heron", "tool_name": "fetch"}, [4]),
        ({"topic": "fish", "limit": 1}, [6]),
    ],
)
async def test_filters_narrow_each_other_down(run: Run, arguments: dict[str, Any], positions: list[int] | None) -> None:
    """By iteration, position, call, tool and topic; always in the order of the record."""
    output = await run.call(RETRIEVE, **arguments)
    found = output.retrieved.positions if output.retrieved is not None else ()
    assert list(found) == (positions or [])


@pytest.mark.parametrize("one", [{"tool_call_id": "call-2"}, {"position": 4}, {"iteration": 2}, {"tool_name": "fetch"}])
async def test_some_lines_of_one_message(run: Run, one: dict[str, Any]) -> None:
    """Counted in the whole, of which the record has only the beginning; of a call's two messages, its result."""
    output = await run.call(RETRIEVE, **one, start_line=100, end_line=101)
    assert output.text.startswith("1 message found\n\n--- position 4 · iteration 2 · action-result · fetch · call-2 · ")
    assert output.text.endswith("lines 100-101 of 101\nThe heron stands.\nThe kestrel hovers.")
    assert output.retrieved is not None
    assert output.retrieved.positions == (4,)
    end = await run.call(RETRIEVE, **one, start_line=101)
    assert end.text.endswith("lines 101-101 of 101\nThe kestrel hovers.")
    begin = await run.call(RETRIEVE, **one, end_line=1)
    assert begin.text.endswith("lines 1-1 of 101\nThe heron stands.")


async def test_a_call_with_half_a_character_comes_back(run: Run) -> None:
    """A model's JSON may hold half of an emoji, which UTF-8 cannot."""
    await run.turn("search", {"q": "\ud83d"}, "nothing")
    output = await run.call(RETRIEVE, tool_call_id="call-4")
    assert '[call call-4] search {"q":"\\ud83d"}' in output.text


async def test_lines_are_counted_in_one_way(run: Run) -> None:
    """By newlines, as a shortened result and its citation count them: a form feed or U+2028 ends no line."""
    content_id = await run.turn("fetch", {}, "a\fpage\nsome\u2028words\nthe last\r\n", cite=True)
    position = run.snapshot()[-1].position
    of_message = await run.call(RETRIEVE, position=position, start_line=2, end_line=2)
    of_content = await run.call(CONTENT, content_id=content_id, start_line=2, end_line=2)
    for output in (of_message, of_content):
        assert re.search("lines 2-2 of 3\n+some\u2028words$", output.text)
    assert " · 3 lines · " in (await run.call(RETRIEVE, position=position, hint=True)).text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"position": 4, "start_line": 102},
            "the message at position 4 has 101 lines, so there is nothing from line 102 on",
        ),
        (
            {"position": 4, "start_line": 9, "end_line": 3},
            "start_line 9 comes after end_line 3; the message at position 4",
        ),
        (
            {"tool_name": "search", "end_line": 3},
            "lines are those of one message, and 2 results fit; give its position",
        ),
        ({"position": 4, "start_line": 0}, "start_line"),
    ],
)
async def test_lines_that_cannot_be_shown_are_the_models_to_repair(
    run: Run, arguments: dict[str, Any], words: str
) -> None:
    """The answer says what there is."""
    output = await run.call(RETRIEVE, **arguments)
    assert output.is_error
    assert words in output.text


async def test_a_hint_says_what_is_there_and_shows_no_content(run: Run) -> None:
    """Position, lines, length and what it is about, for a few tokens; nothing counts as brought back."""
    output = await run.call(RETRIEVE, iteration=2, hint=True)
    assert output.retrieved is not None
    assert (output.retrieved.positions, output.retrieved.hint) == ((3, 4), True)
    head, call, result = output.text.split("\n\n")
    assert head == "2 messages found"
    assert call.startswith("--- position 3 · iteration 2 · assistant · 1 line · ")
    assert re.match(r"--- position 4 · .* · 101 lines · 1,820 characters\nThe heron stands\. The heron", result)
    assert len(output.text) < 500
    assert "kestrel hovers" not in output.text


def test_what_every_request_pays_for_the_tool_is_little() -> None:
    """Its description goes along with each of them."""
    assert len(canonical_json(RETRIEVE.schema)) < 1_700


async def test_a_limited_answer_says_how_many_there_are(run: Run) -> None:
    """The newest are kept, for a topic the best."""
    newest = await run.call(RETRIEVE, tool_name="search", limit=1)
    assert newest.text.startswith("2 messages found, the newest 1 here")
    best = await run.call(RETRIEVE, topic="heron", limit=1)
    assert best.text.startswith("2 messages found, the best 1 here")


async def test_what_finds_nothing_says_what_there_is(run: Run) -> None:
    """The model learns which iterations and tools it could ask for."""
    output = await run.call(RETRIEVE, tool_name="grep")
    assert output.text == (
        "no earlier message fits. There are iterations 0 to 3; results by tool: fetch (1), search (2)."
    )
    assert not output.is_error
    fresh = Run()
    context = ToolContext(record=fresh, contents=fresh.journal)
    assert "There is none yet." in (await execute(RETRIEVE, {"iteration": 1}, context)).text
    await fresh.journal.aclose()


async def test_without_any_filter_it_is_refused(run: Run) -> None:
    """The whole record is never meant."""
    output = await run.call(RETRIEVE, limit=5)
    assert output.error is not None
    assert output.error.cause == "retry"
    assert "give at least one of" in output.text


async def test_retrievals_do_not_bring_back_retrievals(run: Run) -> None:
    """What they brought back stands in the record where it came from; asked for by name they are found."""
    await run.call(RETRIEVE, tool_call_id="call-1")
    text = (await run.call(RETRIEVE, topic="kestrel")).text
    assert text.startswith("1 message found\n\n--- position 2 ")
    assert (await run.call(RETRIEVE, tool_name="context_retrieve")).facts["found"] == 2


async def test_a_cleaned_up_content_is_replaced_by_what_was_shown(run: Run) -> None:
    """The record is never empty-handed, and says what is missing."""
    stored = await run.journal.read_contents("r")
    gone = ToolContext(record=run, iteration=9, contents=Emptied())
    output = await execute(RETRIEVE, {"tool_call_id": "call-2"}, gone)
    assert f"characters, all that is left of {stored[0].length:,}\nThe heron stands." in output.text
    nowhere = ToolContext(record=run, iteration=9)
    assert "all that is left of" in (await execute(RETRIEVE, {"tool_call_id": "call-2"}, nowhere)).text


class Emptied:
    """A content store whose bodies were cleaned up."""

    async def read_content(self, content_id: str) -> ContentStored | None:
        """The citation is still listed."""
        return ContentStored(
            content_id=content_id, run_id="r", source_type="web", source="fetch", body="", length=1_820, at=0.0
        )


async def test_pictures_and_unknown_blocks_are_named(run: Run) -> None:
    """They cannot be told in words."""
    blocks = (Image({"type": "base64"}), RawBlock({"type": "document"}), RawBlock({}), Text("see"))
    await run.ledger.append(Draft(role="user", kind="user-input", content=blocks, iteration=7))
    run.iteration = 8
    output = await run.call(RETRIEVE, iteration=7)
    assert output.text.endswith("[image]\n[document]\n[block]\nsee")


async def test_the_same_retrieval_again_is_counted_and_then_refused(run: Run) -> None:
    """The order of arguments does not matter; other arguments are another retrieval. The record itself is counted."""
    assert (await run.call(RETRIEVE, tool_name="search", limit=2)).text.startswith("2 messages found")
    again = await run.call(RETRIEVE, limit=2, tool_name="search")
    assert again.text.startswith("[retrieved 1 time before, in iteration 4: the same answer again]\n2 messages found")
    for _ in range(4):
        last = await run.call(RETRIEVE, limit=2, tool_name="search")
    assert last.text.startswith("[retrieved 5 times before, in iteration 4, 5, 6, 7, 8: the same answer again]")
    refused = await run.call(RETRIEVE, limit=2, tool_name="search")
    assert refused.error is not None
    assert refused.error.cause == "failed"
    assert "the very same was retrieved 6 times already (iterations 5, 6, 7, 8, 9)" in refused.text
    assert not (await run.call(RETRIEVE, iteration=2)).is_error
    strict = context_tools(max_repeats=0)[0]
    assert (await run.call(strict, iteration=2)).is_error


async def test_a_message_is_not_brought_back_for_ever_by_other_arguments(run: Run) -> None:
    """However it is asked for: a few times within twenty iterations, then no more; something else is let through."""
    ways: list[dict[str, Any]] = [
        {"position": 4},
        {"iteration": 2},
        {"tool_call_id": "call-2"},
        *({"tool_name": "fetch", "limit": limit} for limit in (1, 2, 3)),
    ]
    for way in ways:
        assert not (await run.call(RETRIEVE, **way)).is_error
    for way in ({"topic": "heron", "tool_name": "fetch"}, {"position": 4, "start_line": 2, "end_line": 90}):
        refused = await run.call(RETRIEVE, **way)
        assert refused.error is not None
        assert refused.error.cause == "failed"
        assert "this was brought back 6 times in the last 20 iterations (5, 6, 7, 8, 9), by these or" in refused.text
    stored = await run.journal.read_contents("r")
    assert (await run.call(CONTENT, content_id=stored[0].content_id)).is_error
    assert not (await run.call(RETRIEVE, position=2)).is_error
    assert not (await run.call(RETRIEVE, position=4, hint=True)).is_error
    run.iteration += 20
    assert not (await run.call(RETRIEVE, position=4, limit=7)).is_error


async def test_lines_that_move_on_by_one_are_the_same_lines(run: Run) -> None:
    """A loop that counts up its start line makes no progress worth the name."""
    body = "".join(f"line {number} of the long text\n" for number in range(4_000))
    content_id = await run.turn("fetch", {"url": "long"}, body, cite=True)
    errors = [(await run.call(CONTENT, content_id=content_id, start_line=line)).is_error for line in range(1, 12)]
    assert errors == [False] * 6 + [True] * 5


@pytest.mark.parametrize("repeats", [0, 5])
async def test_a_long_result_may_be_read_to_its_end_in_any_way(run: Run, repeats: int) -> None:
    """By pages, by lines, by searches for what stands in different places: none of it has come before."""
    retrieve, content = context_tools(max_repeats=repeats)
    bodies = ["".join(f"tide {name}{number}\n" for number in range(9_000)) for name in "abc"]
    ids = [await run.turn("fetch", {"url": body[:9]}, body, cite=True) for body in bodies]
    pages = (await run.call(content, content_id=ids[0])).facts["pages"]
    assert pages > 4
    for page in range(2, pages + 1):
        assert not (await run.call(content, content_id=ids[0], page=page)).is_error
    for line in range(1, 3_000, 100):
        assert not (await run.call(retrieve, tool_call_id="call-5", start_line=line, end_line=line + 99)).is_error
    for number in range(30):
        assert not (await run.call(content, content_id=ids[2], search=f"tide c{300 + 200 * number}")).is_error


async def test_a_topic_is_not_what_was_looked_up(run: Run) -> None:
    """The turns that only ask for it are no messages about it; those that say something of it are."""
    for _ in range(3):
        await run.call(RETRIEVE, topic="kestrel")
    found = await run.call(RETRIEVE, topic="kestrel", limit=9)
    assert found.retrieved == Retrieved(positions=(2,), parts=found.retrieved.parts)
    await run.turn("context_retrieve", {"topic": "kestrel"}, "1 message found", said="The kestrels hover at noon.")
    said = await run.call(RETRIEVE, topic="kestrel", limit=8)
    assert said.retrieved.positions == (2, 15)


async def test_calls_side_by_side_are_not_each_others_repeats(run: Run) -> None:
    """Two equal calls of one turn: the first one is the first, the second one knows of it."""
    uses = tuple(ToolUse(f"twin-{n}", "context_retrieve", {"iteration": 1}) for n in (1, 2))
    await run.ledger.append(Draft(role="assistant", kind="assistant", content=uses, iteration=4))
    for use, before in zip(uses, ("", "[retrieved 1 time before, in iteration 4"), strict=True):
        context = ToolContext(iteration=4, call_id=use.id, record=run, contents=run.journal)
        output = await execute(RETRIEVE, use.input, context)
        assert output.text.startswith(before or "2 messages found")


async def test_a_long_answer_comes_in_pages_that_lose_nothing(run: Run) -> None:
    """Each page is small enough never to be cut, says how to get the next, and together they are the whole."""
    whole = "".join(f"line {number} of the long text\n" for number in range(4_000))
    content_id = await run.turn("fetch", {"url": "long"}, whole, cite=True)
    pages: list[str] = []
    for page in range(1, 100):
        output = await run.call(CONTENT, content_id=content_id, page=page)
        assert len(output.text) < PAGE + 500
        head, _, rest = output.text.partition("\n\n")
        assert head.startswith(f"{content_id} (tool, fetch; {len(whole):,} characters): lines ")
        pages.append(re.sub(r"\n\[page [^\]]*\]$", "", rest))
        if page == output.facts["pages"]:
            assert output.text.endswith(f"[page {page} of {page}, the last]")
            break
        assert output.text.endswith(f"make the same call with page={page + 1}]")
    assert "".join(pages) == whole.removesuffix("\n")
    assert len(pages) > 3
    beyond = await run.call(CONTENT, content_id=content_id, page=99)
    assert f"there is no page 99: the answer has {len(pages)}" in beyond.text


async def test_lines_of_a_content(run: Run) -> None:
    """A range, with its place in the whole."""
    content_id = await run.turn("fetch", {}, "one\ntwo\nthree\nfour\n", cite=True)
    output = await run.call(CONTENT, content_id=content_id, start_line=2, end_line=3)
    assert output.text == f"{content_id} (tool, fetch; 19 characters): lines 2-3 of 4\n\ntwo\nthree"
    assert output.retrieved.content_id == content_id
    tail = await run.call(CONTENT, content_id=content_id, start_line=3, end_line=99)
    assert tail.text.endswith("lines 3-4 of 4\n\nthree\nfour")
    beyond = await run.call(CONTENT, content_id=content_id, start_line=9)
    assert f"content '{content_id}' has 4 lines, so there is nothing from line 9 on" in beyond.text
    backwards = await run.call(CONTENT, content_id=content_id, start_line=4, end_line=2)
    assert "start_line 4 comes after end_line 2; content" in backwards.text


async def test_passages_of_a_content(run: Run) -> None:
    """The places where most of the words stand together, at most 500 characters each, with place and relevance."""
    text = "\n".join(["nothing here"] * 200 + ["the heron and the kestrel"] + ["nothing here"] * 200 + ["a heron"])
    content_id = await run.turn("fetch", {}, text, cite=True)
    output = await run.call(CONTENT, content_id=content_id, search="heron kestrel")
    head, first, second = output.text.split("\n\n")
    assert head.endswith(": 2 passages for 'heron kestrel'")
    assert re.match(r"--- lines \d+-\d+ of 402 · relevance 1\.00, matches 2\n", first)
    assert "the heron and the kestrel" in first
    assert re.match(r"--- lines \d+-402 of 402 · relevance 0\.50, matches 1\n", second)
    one = await run.call(CONTENT, content_id=content_id, search="heron kestrel", limit=1)
    assert one.facts["shown"] == 1
    none = await run.call(CONTENT, content_id=content_id, search="walrus")
    assert none.text.endswith("no passages for 'walrus'")
    long = await run.call(CONTENT, content_id=content_id, search="walrus " * 5_000)
    assert len(long.text) < 400


async def test_words_are_searched_beside_the_event_loop(run: Run) -> None:
    """A long content would hold up everything else in the process for half a second."""
    threads: list[int] = []

    class Body(str):
        def lower(self) -> str:
            threads.append(get_ident())
            return super().lower()

    class Contents:
        async def read_content(self, content_id: str) -> ContentStored:
            body = Body("A heron.")
            return ContentStored(content_id=content_id, run_id="r", source_type="tool", source="", body=body, at=0.0)

    output = await call_tool(CONTENT, {"content_id": "c", "search": "heron"}, context=ToolContext(contents=Contents()))
    assert "A heron." in output.text
    assert threads
    assert get_ident() not in threads


async def test_a_pattern_in_a_content(run: Run) -> None:
    """A regular expression is searched where it can be stopped, and a wrong one explained."""
    content_id = await run.turn("fetch", {}, "id=17\nid=x\nid=42\n", cite=True)
    output = await run.call(CONTENT, content_id=content_id, search=r"^id=\d+$", regex=True)
    assert output.facts["shown"] == 1
    assert "--- lines 1-3 of 3 · matches 2 of 2\n" in output.text
    assert "relevance" not in output.text
    for nothing in ({}, {"search": ""}):
        refused = await run.call(CONTENT, content_id=content_id, regex=True, **nothing)
        assert refused.error is not None
        assert (refused.error.cause, "search is empty" in refused.text) == ("retry", True)
    wrong = await run.call(CONTENT, content_id=content_id, search="(", regex=True)
    assert "the pattern '(' is wrong: missing )" in wrong.text
    assert wrong.is_error
    long = await run.call(CONTENT, content_id=content_id, search="x" * 1_001, regex=True)
    assert "the pattern has 1,001 characters, at most 1,000 are taken" in long.text


async def test_a_content_that_is_not_there(run: Run) -> None:
    """A wrong id is the model's to repair, a cleaned-up content is not."""
    wrong = await run.call(CONTENT, content_id="content-0")
    assert wrong.error is not None
    assert (wrong.error.cause, "there is no content 'content-0'" in wrong.text) == ("retry", True)
    assert len((await run.call(CONTENT, content_id="c" * 50_000)).text) < 400
    gone = await execute(CONTENT, {"content_id": "c"}, ToolContext(contents=Emptied()))
    assert gone.error is not None
    assert (gone.error.cause, "was cleaned up and is gone" in gone.text) == ("failed", True)


@given(st.text(alphabet="ab\n", max_size=300), st.integers(1, 40))
def test_pages_partition_any_text(text: str, size: int) -> None:
    """Nothing is lost, doubled or longer than a page, and lines are kept whole where they fit."""
    bounds = page_bounds(text, size)
    assert "".join(text[start:end] for start, end in bounds) == text
    assert all(end - start <= size for start, end in bounds)
    for start, end in bounds[:-1]:
        assert end > start
        assert text[end - 1] == "\n" or "\n" not in text[start + size // 2 : end]


def test_a_single_page_says_nothing_about_pages() -> None:
    """And there is no second one."""
    assert take_page("short", 1) == (0, 5, 1)
    assert page_note(1, 1) == ""
    with pytest.raises(ToolRetry, match="there is no page 2: the answer has 1"):
        take_page("short", 2)
