"""Reading along while a model speaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

import repertory as rp
from backends import RunAsync
from repertory.llm.messages import Text
from repertory.llm.model import ModelRequest, ModelResponse, Retrying, StreamEvent, TextDelta, ThinkingDelta
from repertory.llm.profiles import OFFLINE
from repertory.record import open_journal
from repertory.runs.streaming import (
    Piece,
    PiecesMissed,
    Stream,
    StreamReader,
    StreamRestarted,
    TextStreamed,
    ToolCallStreamed,
)
from repertory.testing import ScriptedModel, call


def unread(reader: StreamReader) -> list[Piece]:
    """All that a reader can have now."""
    pieces: list[Piece] = []
    while (piece := reader._next()) is not None:  # pyright: ignore[reportPrivateUsage] - what it would wait for otherwise
        pieces.append(piece)
    return pieces


class Heard:
    """What a reader makes of pieces: the text of each answer, begun anew where it is told so."""

    def __init__(self, reader: StreamReader) -> None:
        self.reader = reader
        self.texts: dict[int, str] = {}
        self.missed = False

    def listen(self) -> None:
        """Take what there is."""
        for piece in unread(self.reader):
            if isinstance(piece, TextStreamed):
                self.texts[piece.iteration] = self.texts.get(piece.iteration, "") + piece.text
            elif isinstance(piece, StreamRestarted):
                self.texts[piece.iteration] = ""
            elif isinstance(piece, PiecesMissed):
                self.missed = True


Step = tuple[str, Any]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("text"), st.text("ab", min_size=1, max_size=3)),
        st.tuples(st.just("retry"), st.none()),
        st.tuples(st.just("again"), st.none()),
        st.tuples(st.just("finish"), st.none()),
        st.tuples(st.just("reader"), st.none()),
        st.tuples(st.just("listen"), st.integers(0, 5)),
    ),
    max_size=60,
)


@given(steps=STEPS)
def test_whoever_reads_however_slowly_has_each_answer_whole_or_is_told(steps: list[Step]) -> None:
    """Whatever breaks off, and whenever a reader comes or looks."""
    stream = Stream(lambda text: text, 0)
    iteration, going, said = 1, False, ""
    whole: dict[int, str] = {}
    readers: list[tuple[Heard, int]] = []
    for step, value in steps:
        if step == "reader":
            readers.append((Heard(StreamReader(stream)), iteration))
        elif step == "listen" and readers:
            readers[value % len(readers)][0].listen()
        elif step == "finish" and going:
            stream.finish()
            whole[iteration] = said
            iteration, going, said = iteration + 1, False, ""
        elif step in ("text", "retry", "again"):
            if not going or step == "again":
                stream.begin(iteration)
                going, said = True, ""
            if step == "retry":
                stream.take(Retrying(attempt=2, delay=0.0, reason="it broke off"))
                said = ""
            elif step == "text":
                stream.take(TextDelta(value))
                said += value
    if going:
        whole[iteration] = said
    for heard, since in readers:
        heard.listen()
        expected = {number: text for number, text in whole.items() if number >= since}
        if heard.missed:
            assert len(expected) > 4
            for number in list(expected)[-4:]:
                assert heard.texts.get(number, "") == expected[number]
        else:
            assert {number: text for number, text in heard.texts.items() if text} == {
                number: text for number, text in expected.items() if text
            }


SECRET = "correct-horse-battery"


@given(
    before=st.text("x ", max_size=30),
    after=st.text("x ", max_size=30),
    cuts=st.lists(st.integers(0, 90), max_size=8),
    thinks=st.booleans(),
)
def test_a_secret_that_comes_in_pieces_is_not_streamed(before: str, after: str, cuts: list[int], thinks: bool) -> None:
    """However it is cut; and nothing else is lost."""
    text = f"{before}{SECRET}{after}"
    stream = Stream(lambda text: text.replace(SECRET, "[redacted: KEY]"), len(SECRET))
    stream.begin(1)
    ends = sorted({min(cut, len(text)) for cut in cuts} | {len(text)})
    for start, end in zip([0, *ends], ends, strict=False):
        stream.take(ThinkingDelta(text[start:end]) if thinks else TextDelta(text[start:end]))
    late = StreamReader(stream)
    stream.finish()
    streamed = "".join(getattr(piece, "text", "") for piece in unread(late))
    assert streamed == f"{before}[redacted: KEY]{after}"


def test_a_thought_is_streamed_whole_before_the_text_that_follows_it() -> None:
    """Its end was held back, as it might be the beginning of a secret, until the answer was complete."""
    stream = Stream(lambda text: text.replace(SECRET, "[redacted: KEY]"), len(SECRET))
    stream.begin(1)
    for thought, text in (("I think of it.", "This is the first half"), ("And again.", " and this the second.")):
        stream.take(ThinkingDelta(thought))
        stream.take(TextDelta(text))
    late = StreamReader(stream)
    stream.finish()
    said = [(type(piece).__name__, getattr(piece, "text", "")) for piece in unread(late)]
    assert said == [
        ("ThinkingStreamed", "I think of it."),
        ("TextStreamed", "This is the first half"),
        ("ThinkingStreamed", "And again."),
        ("TextStreamed", " and this the second."),
    ]


def test_a_secret_that_a_server_quotes_is_not_streamed() -> None:
    """The error that broke off an answer is shown to whoever has seen a part of that."""
    stream = Stream(lambda text: text.replace(SECRET, "[redacted: KEY]"), len(SECRET))
    stream.begin(1)
    stream.take(TextDelta("x" * 100))
    reader = StreamReader(stream)
    unread(reader)
    stream.take(Retrying(attempt=2, delay=0.0, reason=f"no access with {SECRET}"))
    assert unread(reader) == [StreamRestarted(iteration=1, reason="no access with [redacted: KEY]")]


class Talker:
    """A model that says what a test tells it, piece by piece; each answer waits until it may go on."""

    name = "talker"
    profile = OFFLINE

    def __init__(self, answers: list[list[StreamEvent]]) -> None:
        self.answers = answers
        self.go_on = anyio.Event()
        self.said = anyio.Event()

    async def complete(
        self, request: ModelRequest, *, on_event: Callable[[StreamEvent], Any] | None = None
    ) -> ModelResponse:
        """Say the next answer."""
        assert on_event is not None
        events, text = self.answers.pop(0), ""
        for event in events:
            on_event(event)
            text = "" if isinstance(event, Retrying) else text + getattr(event, "text", "")
        self.said.set()
        await self.go_on.wait()
        return ModelResponse(content=(Text(text),))

    async def aclose(self) -> None:
        """Nothing is open."""


def test_text_comes_before_the_answer_is_complete(run_async: RunAsync) -> None:
    """Of a reader that came late, too; where a call broke off the reader is told to begin anew."""

    async def main() -> list[Piece]:
        broke = Retrying(attempt=2, delay=0.0, reason="the connection was lost")
        model = Talker([[TextDelta("Twice "), TextDelta("a "), broke, TextDelta("Twice "), TextDelta("a day.")]])
        async with rp.open_supervisor(model=model) as supervisor:
            run = await supervisor.spawn(rp.Agent("tides"), "How often?")
            early = run.stream()
            first = await anext(early)
            assert first == TextStreamed(iteration=1, text="Twice a day."), "nothing was read of the broken one"
            assert await anext(run.stream()) == first
            assert run.state == "running"
            model.go_on.set()
            rest = [piece async for piece in early]
            assert await run.wait_result() == "Twice a day."
            return rest

    assert run_async(main) == []


def test_a_call_is_announced_and_the_stream_ends_with_the_run(run_async: RunAsync) -> None:
    """Answers follow one another; a stream of a run that has ended is empty."""

    @rp.tool(effect="pure")
    def look() -> str:
        """Look."""
        return "seen"

    async def main() -> tuple[list[Piece], list[Piece]]:
        model = ScriptedModel([[Text("I look. "), call("look")], "It is there."])
        async with rp.open_supervisor(model=model) as supervisor:
            run = await supervisor.spawn(rp.Agent("looker", tools=[look]), "Look")
            pieces = [piece async for piece in run.stream()]
            await run.wait_result()
            return pieces, [piece async for piece in run.stream()]

    pieces, after = run_async(main)
    assert [type(piece) for piece in pieces] == [TextStreamed, ToolCallStreamed, TextStreamed]
    assert [piece.iteration for piece in pieces] == [1, 1, 2]
    assert after == []


def test_what_is_to_be_redacted_is_not_streamed(run_async: RunAsync, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is not recorded."""
    monkeypatch.setenv("TEST_KEY", SECRET)

    async def main() -> str:
        said: list[StreamEvent] = [TextDelta(f"The key is {SECRET[:7]}"), TextDelta(f"{SECRET[7:]}, keep it.")]
        model = Talker([said])
        model.go_on.set()
        async with (
            open_journal(redact=["TEST_KEY"]) as journal,
            rp.open_supervisor(journal=journal, model=model) as supervisor,
        ):
            run = await supervisor.spawn(rp.Agent("keeper"), "Which key?")
            return "".join([getattr(piece, "text", "") async for piece in run.stream()])

    assert run_async(main) == "The key is [redacted: TEST_KEY], keep it."
