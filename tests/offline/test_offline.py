"""The offline model: deterministic, stateless, and useful with real tools over real files."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends import RunAsync
from repertory._json_text import canonical_json
from repertory._json_types import JsonType
from repertory.actors import open_system
from repertory.errors import ConfigurationError
from repertory.llm import (
    Message,
    Model,
    ModelRequest,
    ModelResponse,
    StreamEvent,
    Text,
    ToolResult,
    ToolUse,
    profile_for,
    text_of,
)
from repertory.llm.messages import encode_block, tool_uses
from repertory.llm.model import TextDelta, ToolSchema, ToolUseStarted, encode_request
from repertory.memory import Memory
from repertory.memory.actor import MemoryActor
from repertory.offline import OfflineModel
from repertory.offline.filling import fill
from repertory.offline.model import respond
from repertory.offline.parts import split
from repertory.offline.quoting import fit, keywords, sentences, shorten, stem
from repertory.record import MemoryJournal
from repertory.testing.rules import check_body
from repertory.tools import Tool, ToolContext, call_tool, file_tools, memory_tools, tool

STDLIB = Path(sysconfig.get_path("stdlib"))
QUESTION = "How does asyncio wake up a task that waits for a lock?"
Shaper: TypeAlias = Callable[[list[Message]], list[Message]]
CITATION = re.compile(r"\(([\w./-]+\.py):(\d+)\)")


def whole(messages: list[Message]) -> list[Message]:
    """The context as it is."""
    return messages


async def converse(
    task: str,
    tools: Sequence[Tool],
    *,
    shape: Shaper = whole,
    memory: Memory | None = None,
    extra: Sequence[ToolSchema] = (),
    answers: Callable[[ToolUse], str] | None = None,
    steps: int = 10,
) -> tuple[list[ModelResponse], list[Message]]:
    """Let the model work on a task until it answers; every request must be one that the strict server accepts."""
    by_name = {tool.name: tool for tool in tools}
    schemas = (*(tool.schema for tool in tools), *extra)
    messages = [Message("user", (Text(task),))]
    responses: list[ModelResponse] = []
    while len(responses) < 30:
        request = ModelRequest(model="offline", messages=tuple(shape(messages)), tools=schemas, max_tokens=4096)
        check_body(encode_request(request), profile=profile_for("offline"), betas=frozenset())
        response = respond(request, steps=steps)
        assert canonical_json([encode_block(b) for b in response.content]) == canonical_json(
            [encode_block(b) for b in respond(msgspec.structs.replace(request), steps=steps).content]
        )
        responses.append(response)
        messages.append(Message("assistant", response.content))
        calls = tool_uses(response.content)
        if not calls:
            return responses, messages
        results = []
        for number, use in enumerate(calls):
            if use.name in by_name:
                context = ToolContext(memory=memory, idempotency_key=f"{len(responses):08}{number:08}" * 2)
                output = await call_tool(by_name[use.name], use.input, context=context)
                results.append(ToolResult(use.id, output.content, is_error=output.status != "ok"))
            else:
                assert answers is not None
                results.append(ToolResult(use.id, answers(use)))
        messages.append(Message("user", tuple(results)))
    raise AssertionError(f"no answer after {len(responses)} turns")


def shortened(keep: int) -> Shaper:
    """A context in which all but the newest messages have stubs instead of results."""

    def shape(messages: list[Message]) -> list[Message]:
        edge = len(messages) - keep
        return [
            Message(
                message.role,
                tuple(
                    msgspec.structs.replace(block, content="[shortened: see elsewhere]")
                    if isinstance(block, ToolResult)
                    else block
                    for block in message.content
                ),
            )
            if index < edge
            else message
            for index, message in enumerate(messages)
        ]

    return shape


def windowed(messages: list[Message]) -> list[Message]:
    """A context from which everything but the task and the newest turn is gone."""
    return [messages[0], *messages[-2:]] if len(messages) > 3 else messages


def told(messages: list[Message]) -> list[Message]:
    """A context in which all turns but the newest are told in one text behind the task, notes and results too."""
    if len(messages) <= 3:
        return messages
    earlier = "\n".join(text_of(message.content) for message in messages[1:-2])
    return [Message("user", (*messages[0].content, Text(f"What was done so far:\n{earlier}"))), *messages[-2:]]


def sources(answer: str) -> list[tuple[str, int]]:
    """What an answer cites."""
    return [(path, int(line)) for path, line in CITATION.findall(answer)]


@pytest.mark.parametrize("shape", [whole, shortened(2), told], ids=["whole", "stubs", "told"])
async def test_a_question_about_real_code_is_answered_with_real_sources(shape: Shaper) -> None:
    """Over the standard library's asyncio: right file, right places, every line cited exists, whatever is shortened."""
    responses, _ = await converse(QUESTION, file_tools(STDLIB / "asyncio"), shape=shape)
    answer = text_of(responses[-1].content)
    cited = sources(answer)
    assert 2 <= len(cited) <= 7
    assert "locks.py" in {path for path, _ in cited}
    assert "wake" in answer.lower()
    for path, line in cited:
        lines = (STDLIB / "asyncio" / path).read_text().splitlines()
        quoted = answer[: answer.index(f"({path}:{line})")].rsplit("\n", 1)[-1]
        window = stem_set(" ".join(lines[line - 1 : line + 8]))
        assert len(stem_set(quoted) & window) >= 0.6 * len(stem_set(quoted)), (quoted, path, line)
    assert 5 <= len(responses) <= 16
    assert "Notes:" not in answer


def stem_set(text: str) -> set[str]:
    """The stems of a text's longer words."""
    return {stem(word) for word in re.findall(r"[A-Za-z]{4,}", text)}


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
async def test_it_searches_and_reads_no_longer_than_it_may(steps: int) -> None:
    """A few turns are as binding as many; what was found by then is the answer."""
    responses, _ = await converse(QUESTION, file_tools(STDLIB), steps=steps)
    names = [{use.name for use in tool_uses(response.content)} for response in responses]
    turns = [{"list_files"}, {"search_files"}, {"view_file"}, {"view_file"}]
    assert names == [*turns[:steps], set()]


@pytest.mark.parametrize("steps", [0, 1.5, "12"])
def test_steps_are_a_number(steps: Any) -> None:
    """None at all would leave nothing to answer from."""
    with pytest.raises(ConfigurationError, match="OfflineModel: steps must be a whole number of at least 1, got"):
        OfflineModel(steps=steps)


async def test_findings_are_stored_in_memory_and_gathered_from_there() -> None:
    """With memory tools every finding is stored with its source, and the answer is made of what memory gives back."""
    journal = MemoryJournal()
    async with open_system() as system:
        ref = system.spawn(lambda: MemoryActor(journal), "memory")
        memory = await Memory.open(ref, "r")
        tools = [*file_tools(STDLIB / "asyncio"), *memory_tools()]
        responses, messages = await converse(QUESTION, tools, shape=windowed, memory=memory)
        names = [use.name for response in responses for use in tool_uses(response.content)]
        stored = await memory.query()
    await journal.aclose()
    assert names.count("memory_store") == len(stored) >= 3
    results = [block for message in messages for block in message.content if isinstance(block, ToolResult)]
    assert not any(result.is_error for result in results)
    assert all("finding" in item.tags and item.source for item in stored)
    assert {f"{path}:{line}" for path, line in sources(text_of(responses[-1].content))} <= {
        item.source for item in stored
    }


async def test_nothing_found_is_said_so(tmp_path: Path) -> None:
    """An empty folder gives an honest answer, soon."""
    responses, _ = await converse("How does the zeppelin land?", file_tools(tmp_path))
    assert len(responses) <= 6
    assert "nothing about" in text_of(responses[-1].content)


async def test_prose_is_searched_as_code_is(tmp_path: Path) -> None:
    """Notes in Markdown are read and quoted with their line."""
    (tmp_path / "tides.md").write_text(
        "# Tides\n\nThe sea rises twice a day.\nThe moon pulls the water, and so makes the tides.\n"
    )
    (tmp_path / "bread.md").write_text("# Bread\n\nThe dough rises because yeast makes gas.\n")
    responses, _ = await converse("Why are there tides?", file_tools(tmp_path))
    answer = text_of(responses[-1].content)
    assert "The moon pulls the water, and so makes the tides. (tides.md:3)" in answer
    assert "yeast" not in answer


async def test_where_no_file_is_called_like_the_question_every_line_is_searched(tmp_path: Path) -> None:
    """The first question about a small folder of one's own finds what stands there."""
    (tmp_path / "notes.txt").write_text("The canteen opens at half past eleven on weekdays.\n")
    responses, _ = await converse("When does the canteen open?", file_tools(tmp_path))
    assert "at half past eleven on weekdays. (notes.txt:1)" in text_of(responses[-1].content)


async def test_a_folder_that_is_called_like_the_question_is_where_it_looks(tmp_path: Path) -> None:
    """Other people's code and unrelated files lose against the folder that the question names."""
    code = (
        'class Gate:\n    """A gate lets one ship through."""\n\n'
        '    def open(self):\n        """Open the gate for the ship that waits longest."""\n'
    )
    for place in ("harbour/gates.py", "site-packages/ports/gates.py", "zoo/gates.py"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(code)
    (tmp_path / "harbour" / "ships.py").write_text("# Ships wait in a queue before the gate.\nSHIPS = []\n")
    task = "In which order do the gates of the harbour let waiting ships through?"
    responses, _ = await converse(task, file_tools(tmp_path))
    assert "harbour" in [use.input["path"] for use in tool_uses(responses[1].content)]
    answer = text_of(responses[-1].content)
    assert "(harbour/gates.py:5)" in answer
    assert "site-packages" not in answer


SEARCH = ToolSchema(
    "web_search",
    "Search the web.",
    {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
)
PAY = ToolSchema(
    "pay", "Pay money.", {"type": "object", "properties": {"sum": {"type": "number"}}, "required": ["sum"]}
)
DELEGATE = ToolSchema(
    "delegate",
    "Hand over.",
    {
        "type": "object",
        "properties": {"agent": {"enum": ["scout", "clerk"]}, "task": {"type": "string"}},
        "required": ["agent", "task"],
    },
)


async def test_tools_of_the_user_are_used_where_their_meaning_is_plain() -> None:
    """A search without files; what it does not understand it leaves alone."""
    said = "Bees dance to tell where flowers are. Bread is baked."
    responses, _ = await converse("Why do bees dance?", (), extra=[SEARCH, PAY], answers=lambda _: said)
    assert {use.name for response in responses for use in tool_uses(response.content)} == {"web_search"}
    assert text_of(responses[-1].content) == "- Bees dance to tell where flowers are."
    responses, _ = await converse("Pay 10.", (), extra=[PAY])
    assert len(responses) == 1


async def test_a_lead_delegates_and_composes() -> None:
    """One turn of parallel calls to the whole team, then one answer with every part, its sources and no doubles."""
    reports = {
        "coroutine": "A task steps its coroutine. (tasks.py:10)\n\n- The loop runs callbacks. (events.py:5)",
        "locks": "A released lock wakes its first waiter. (locks.py:142)\n- A task steps its coroutine. (tasks.py:10)",
        "queues": "A put wakes a getter of the queue. (queues.py:99)",
    }

    def report(use: ToolUse) -> str:
        part = use.input["task"].partition("\n")[0]
        return next(text for word, text in reports.items() if word in part)

    task = "How does asyncio run a coroutine, how do its locks wake who waits, and how do its queues hand over an item?"
    responses, _ = await converse(task, (), extra=[DELEGATE], answers=report)
    calls = tool_uses(responses[0].content)
    assert [use.input["agent"] for use in calls] == ["scout", "clerk", "scout"]
    assert all(task in use.input["task"] for use in calls)
    assert text_of(responses[0].content).startswith("Plan: ")
    assert len({use.id for use in calls}) == 3
    answer = text_of(responses[-1].content)
    for source in ("tasks.py:10", "events.py:5", "locks.py:142", "queues.py:99"):
        assert answer.count(f"({source})") in (1, 2)  # once in its part, once more if it leads the answer
    assert answer.count("**") == 6
    assert len(responses) == 2


async def test_a_lead_reads_its_teams_findings_and_outlives_shortened_reports() -> None:
    """With memory it looks the findings up; what the reports said is in its own words before they are shortened."""
    journal = MemoryJournal()
    async with open_system() as system:
        ref = system.spawn(lambda: MemoryActor(journal), "memory")
        memory = await Memory.open(ref, "r")
        await memory.store("The getter is woken by put_nowait (queues.py:99)", tags=("finding",))
        responses, _ = await converse(
            "How do locks wake waiters, and how do queues wake getters?",
            memory_tools(),
            memory=memory,
            shape=shortened(2),
            extra=[DELEGATE],
            answers=lambda use: (
                "A released lock wakes its first waiter. (locks.py:142)"
                if "locks" in use.input["task"][:30]
                else "Nothing."
            ),
        )
    await journal.aclose()
    assert [tuple({use.name for use in tool_uses(response.content)}) for response in responses] == [
        ("delegate",),
        ("memory_query",),
        ("memory_retrieve",),
        (),
    ]
    answer = text_of(responses[-1].content)
    assert "(locks.py:142)" in answer
    assert "(queues.py:99)" in answer
    assert "[shortened" not in answer


async def test_a_lead_that_nobody_can_help_works_alone() -> None:
    """Where every delegation fails and there are files to read, it reads them itself."""
    by_name = {tool.name: tool for tool in file_tools(STDLIB / "asyncio")}
    messages = [Message("user", (Text(QUESTION),))]
    schemas = (*(tool.schema for tool in by_name.values()), DELEGATE)
    used: list[str] = []
    for _ in range(30):
        response = respond(ModelRequest(model="offline", messages=tuple(messages), tools=schemas))
        calls = tool_uses(response.content)
        used.extend(use.name for use in calls)
        if not calls:
            break
        results = [
            ToolResult(use.id, "not started: too deep", is_error=True)
            if use.name == "delegate"
            else ToolResult(use.id, (await call_tool(by_name[use.name], use.input)).content)
            for use in calls
        ]
        messages += [Message("assistant", response.content), Message("user", tuple(results))]
    assert used.count("delegate") == 3
    assert "view_file" in used
    assert "locks.py" in text_of(response.content)


def test_a_part_that_failed_is_reported_as_failed() -> None:
    """Where nobody could help and there is nothing to read, the answer says which part failed and why."""
    first = respond(ModelRequest(model="offline", messages=(Message("user", (Text(QUESTION),)),), tools=(DELEGATE,)))
    results = tuple(ToolResult(use.id, "the clerk is ill", is_error=True) for use in tool_uses(first.content))
    messages = (Message("user", (Text(QUESTION),)), Message("assistant", first.content), Message("user", results))
    answer = text_of(respond(ModelRequest(model="offline", messages=messages, tools=(DELEGATE,))).content)
    assert answer.count("This part failed: the clerk is ill") == 3


async def test_a_lead_whose_team_fails_says_so() -> None:
    """A report without sources is quoted; nothing is invented for a part that is missing."""
    responses, _ = await converse("Is it safe?", (), extra=[DELEGATE], answers=lambda use: "I do not know.")
    assert "I do not know." in text_of(responses[-1].content)
    assert "nothing that can be quoted" in text_of(responses[-1].content)


@pytest.mark.parametrize(
    "question",
    [
        "How does Python's asyncio run a coroutine, and how do its locks and queues hand over to waiting tasks?",
        "What is heapq?",
        "Compare SQLite's WAL modes",
        "How do the parser, the lexer and the printer share tokens?",
        "Explain the journal; what does it promise after a crash? And how is it tested?",
    ],
)
def test_a_question_has_at_least_three_parts(question: str) -> None:
    """Clauses, things named side by side, or angles on one thing; all different, all questions."""
    parts = split(question)
    assert 3 <= len(parts) <= 5
    assert len(set(parts)) == len(parts)
    assert all(part.endswith("?") and part[0].isupper() for part in parts)
    assert all(keywords(part) for part in parts)


def test_a_later_clause_says_what_its_pronoun_means() -> None:
    """A part is read by somebody who sees no other part."""
    parts = split("How does Python's asyncio run a coroutine, and how do its locks hand over to waiting tasks?")
    assert parts[:2] == [
        "How does Python's asyncio run a coroutine?",
        "How do its locks hand over to waiting tasks (in asyncio)?",
    ]
    assert split("of the and to") == []


def ask(*messages: Message, **more: Any) -> str:
    """The offline model's words on a conversation without tools."""
    return text_of(respond(ModelRequest(model="offline", messages=messages, **more)).content)


def test_without_tools_it_quotes_the_context() -> None:
    """The sentences that fit the last question, from anywhere in view, and no others."""
    facts = Message("user", (Text("The harbour opens at six. Cats sleep a lot. The lighthouse was built in 1872."),))
    seen = Message("assistant", (Text("Noted."),))
    assert ask(facts, seen, Message("user", (Text("When does the harbour open?"),))) == "The harbour opens at six."
    assert ask(
        Message("user", (Text("When was the lighthouse built?"),)), system=(Text("The lighthouse was built in 1872."),)
    ) == ("The lighthouse was built in 1872.")
    assert "nothing in the conversation tells about volcano" in ask(Message("user", (Text("And the volcano?"),)))
    assert ask(Message("user", (Text("?!"),)))


def test_it_streams_what_it_says(run_async: RunAsync) -> None:
    """As a model it has a name, a profile, events and nothing to close; usage follows from the sizes alone."""

    async def main() -> None:
        model = OfflineModel()
        assert isinstance(model, Model)
        assert (model.name, repr(model)) == ("offline", "OfflineModel('offline')")
        assert model.profile == profile_for("offline")
        events: list[StreamEvent] = []
        request = ModelRequest(
            model="offline", messages=(Message("user", (Text(QUESTION),)),), tools=(file_tools(STDLIB)[1].schema,)
        )
        response = await model.complete(request, on_event=events.append)
        assert {type(event) for event in events} == {TextDelta, ToolUseStarted}
        shown = "".join(event.text for event in events if isinstance(event, TextDelta))
        assert "Notes: {" in text_of(response.content)  # for itself, and not for who reads along
        assert text_of(response.content).startswith(shown)
        assert "Notes" not in shown
        assert response.stop_reason == "tool_use"
        assert response == await OfflineModel().complete(request)
        await model.aclose()

    run_async(main)


def test_different_requests_have_different_call_ids() -> None:
    """Ids follow from the request, so two turns of one run never share one."""
    tools = (file_tools(STDLIB)[1].schema,)
    one, two = (
        respond(ModelRequest(model="offline", messages=(Message("user", (Text(text),)),), tools=tools))
        for text in ("How do locks wait?", "How do queues wait?")
    )
    assert {use.id for use in tool_uses(one.content)}.isdisjoint(use.id for use in tool_uses(two.content))


async def test_it_looks_back_once_at_what_has_left_the_view() -> None:
    """Where turns of its own are missing and there is a tool for them, and never where all of them are in view."""
    properties = {"topic": {"type": "string"}, "limit": {"type": "integer"}}
    look = ToolSchema("context_retrieve", "Earlier messages.", {"type": "object", "properties": properties})
    asked: list[Any] = []

    def earlier(use: ToolUse) -> str:
        asked.append(use.input)
        return "A lock wakes the task that waits longest, in asyncio as in a bakery. (handover.py:126)"

    tools = file_tools(STDLIB / "asyncio")
    responses, _ = await converse(QUESTION, tools, shape=windowed, extra=[look], answers=earlier)
    assert len(asked) == 1
    assert set(asked[0]) == {"topic", "limit"}
    assert "(handover.py:126)" in text_of(responses[-1].content)
    await converse(QUESTION, tools, extra=[look], answers=earlier)
    assert len(asked) == 1


@pytest.mark.parametrize("note", ['{"step": "x"}', "", "[1]", '{"pages": ["a", "b:c"], "step": 3}'])
def test_notes_that_make_no_sense_do_no_harm(note: str) -> None:
    """They are left aside, or taken as far as they go."""
    call = ToolUse("t1", "search_files", {"pattern": "lock"})
    messages = (
        Message("user", (Text(QUESTION),)),
        Message("assistant", (Text(f"Notes: {note}"), call)),
        Message("user", (ToolResult("t1", "nothing found"),)),
    )
    tools = tuple(tool.schema for tool in file_tools(STDLIB))
    assert respond(ModelRequest(model="offline", messages=messages, tools=tools)).content


@given(st.lists(st.text(max_size=200), min_size=1, max_size=5), st.booleans())
def test_any_conversation_gets_an_answer(texts: list[str], tools: bool) -> None:
    """It never fails, whatever is in the text and whichever tools are offered."""
    messages = tuple(Message("assistant" if n % 2 else "user", (Text(text),)) for n, text in enumerate(texts))
    offered = (*(tool.schema for tool in file_tools(STDLIB)), SEARCH, DELEGATE) if tools else ()
    response = respond(ModelRequest(model="offline", messages=messages, tools=offered))
    assert response.content
    assert text_of(response.content)


@pytest.mark.parametrize(
    ("one", "other"),
    [("queue", "queues"), ("wait", "waiting"), ("run", "running"), ("lock", "locked"), ("schedule", "scheduler")],
)
def test_forms_of_a_word_share_a_stem(one: str, other: str) -> None:
    """Question and code use different forms of the same word."""
    assert stem(one) == stem(other)


def test_unrelated_words_do_not() -> None:
    """Negative control of the stemmer."""
    assert len({stem(word) for word in ("lock", "queue", "task", "loop", "future", "event")}) == 6


def test_keywords_are_what_a_question_is_about() -> None:
    """Names before words, words before general words, no stop words; each form once."""
    found = keywords("How does the `Lock` class in asyncio.locks use locks to run a module?")
    words = [keyword.word for keyword in found]
    assert words[0] == "Lock"
    assert {"How", "the", "use", "to", "in"}.isdisjoint(words)
    assert fit("a lock", found) > fit("a module", found) > fit("nothing", found) == 0


def test_text_is_cut_at_words() -> None:
    """Sentences and shortened texts stay readable."""
    assert sentences("One is here. Two is there!\n\n- Three.") == ["One is here.", "Two is there!", "- Three."]
    assert shorten("one two three", 100) == "one two three"
    assert shorten("one two, three", 10) == "one two…"


class Claim(msgspec.Struct):
    """One thing that was said, and where."""

    text: str
    path: str
    line: int


class Summary(msgspec.Struct):
    """A result of a type."""

    first: str
    claims: list[Claim]
    risk: Literal["low", "high"]
    holds: bool
    count: Annotated[int, msgspec.Meta(ge=1, le=9)]
    numbers: tuple[float, ...] = ()
    note: str | None = None


def test_an_answer_fills_a_schema_in() -> None:
    """Lines become texts and items, citations become places, and what may be left out is."""
    answer = "- The tide is high at 12. (sea.md:3)\n- It is low at 18. (sea.md:9)"
    ready = JsonType(Summary, "it")
    value = ready.read(fill(ready.schema, answer))
    assert value == Summary(
        first="The tide is high at 12. (sea.md:3)\nIt is low at 18. (sea.md:9)",
        claims=[
            Claim("The tide is high at 12. (sea.md:3)", "sea.md", 3),
            Claim("It is low at 18. (sea.md:9)", "sea.md", 9),
        ],
        risk="high",
        holds=False,
        count=9,
        numbers=(12.0, 18.0),
    )
    assert fill(ready.schema, answer) == fill(ready.schema, answer)


async def test_a_result_is_given_in_the_form_that_is_asked_for() -> None:
    """As JSON where a format is asked for, by a final call where that is offered."""
    schema = JsonType(Claim, "it").schema
    material = "Where is the tide? The tide is in the sea (sea.md:3)."
    asked = ModelRequest(model="offline", messages=(Message("user", (Text(material),)),))
    formatted = msgspec.structs.replace(asked, options={"output_config": {"format": {"schema": schema}}})
    offered = msgspec.structs.replace(asked, tools=(ToolSchema("final_result", "Give it.", schema),))
    (said,) = (await OfflineModel().complete(formatted)).content
    (called,) = (await OfflineModel().complete(offered)).content
    assert isinstance(called, ToolUse)
    assert called.input["line"] == 3
    assert msgspec.json.decode(text_of(said)) == called.input


# --- documents that are fetched, and members who check ------------------------------------------------------


async def test_what_a_search_names_is_fetched_and_quoted() -> None:
    """Addresses and paths, several in one turn; what arrives whole is quoted with its address and line."""
    pages = {
        "https://mills.org/hours": "# Mills\n\nThe mill is closed on Wednesdays, as the miller rests.",
        "notes.md": "A mill that is closed grinds nothing.",
    }

    @tool(effect="pure")
    def search_web(query: str) -> str:
        """Search."""
        return "First: https://mills.org/hours (2 hits)\nnotes.md"

    @tool(effect="pure")
    def fetch_page(address: str) -> str:
        """Fetch a page."""
        return pages[address]

    responses, _ = await converse("When is the mill closed?", [search_web, fetch_page])
    fetched = [[use.input.get("address") for use in tool_uses(response.content)] for response in responses]
    assert ["https://mills.org/hours", "notes.md"] in fetched
    answer = text_of(responses[-1].content)
    assert "The mill is closed on Wednesdays, as the miller rests. (https://mills.org/hours:3)" in answer


async def test_a_member_who_checks_is_asked_last() -> None:
    """The parts go to the others; what they found goes to the one who checks, and what that says into the answer."""
    schema = {
        "type": "object",
        "properties": {"agent": {"enum": ["reader", "fact_checker"]}, "task": {"type": "string"}},
        "required": ["agent", "task"],
    }

    def report(use: ToolUse) -> str:
        if use.input["agent"] == "fact_checker":
            assert "Check these claims:\nThe mill is closed on Wednesdays. (mill.txt:1)" in use.input["task"]
            return "It is so. (mill.txt:1)"
        return "The mill is closed on Wednesdays. (mill.txt:1)"

    responses, _ = await converse(
        "When is the mill closed?", [], extra=[ToolSchema("delegate", "Delegate.", schema)], answers=report
    )
    asked = [[use.input["agent"] for use in tool_uses(response.content)] for response in responses]
    assert asked == [["reader"] * 3, ["fact_checker"], []]
    assert text_of(responses[-1].content).endswith("**What the check says**\nIt is so. (mill.txt:1)")
