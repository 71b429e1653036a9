"""Whatever a tool does becomes an outcome: bounded, safe to store, and told to whom it concerns."""

from __future__ import annotations

import argparse
import asyncio
from array import array
from collections import ChainMap, deque
from datetime import datetime
from typing import Any, ClassVar

import anyio
import msgspec
import pydantic
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

import repertory as rp
from repertory.errors import ConfigurationError, ToolAbort, ToolFailed, ToolRetry
from repertory.llm.messages import Image, RawBlock, Text, text_of
from repertory.record.records import EventLogged
from repertory.testing import ScriptedModel, call
from repertory.tools import Tool, ToolContext, ToolOutput, call_tool, tool
from repertory.tools.execution import Unfinished, execute, unknown_tool
from repertory.tools.output import one_line, redact, to_output


def returning(value: object, **options: Any) -> Tool:
    """A tool that returns this value."""

    async def give() -> object:
        """Give."""
        return value

    return tool(give, **options)


def raising(error: BaseException, **options: Any) -> Tool:
    """A tool that raises this error."""

    async def fail() -> None:
        """Fail."""
        raise error

    return tool(fail, **options)


PICTURE = Image({"type": "base64", "media_type": "image/png", "data": "aGk="})


class Pair(msgspec.Struct):
    """Two."""

    b: int
    a: list[str]


class Measured(float):
    """A number of a class of its own, as those of numpy."""


class Moment(datetime):
    """A time of a class of its own, as that of pandas."""


@pytest.mark.parametrize(
    ("value", "content", "kind"),
    [
        ("words", "words", "text"),
        ("", "(no output)", "text"),
        (None, "(no output)", "text"),
        (b"words", "words", "text"),
        (bytearray(b"words"), "words", "text"),
        (memoryview(b"words"), "words", "text"),
        (0, "0", "json"),
        (False, "false", "json"),
        ([], "[]", "json"),
        ({"b": 1, "a": None}, '{"a":null,"b":1}', "json"),
        ({3, 1, 2}, "[1,2,3]", "json"),
        (Pair(1, ["x"]), '{"b":1,"a":["x"]}', "json"),
        (Measured(1.5), "1.5", "json"),
        ({"n": Measured(2), "at": Moment(2026, 11, 26)}, '{"at":"2026-11-26T00:00:00","n":2.0}', "json"),
        ([range(2), {"a": 1}.keys(), {"a": 1}.values(), deque([0])], '[[0,1],["a"],[1],[0]]', "json"),
        ({"b": ChainMap({"c": 1}), "a": array("i", [1])}, '{"a":[1],"b":{"c":1}}', "json"),
        (Text("words"), (Text("words"),), "text"),
        ([PICTURE, "words", {"a": 1}], (PICTURE, Text("words"), Text('{"a":1}')), "text"),
        ((Text(""),), "(no output)", "text"),
        ((RawBlock({"type": "document"}),), (RawBlock({"type": "document"}),), "text"),
    ],
)
async def test_every_kind_of_result_is_shown(value: object, content: object, kind: str) -> None:
    """Text, bytes, blocks, nothing, and anything that JSON can say, always in the same order."""
    output = await call_tool(returning(value))
    assert (output.content, output.format, output.status, output.error) == (content, kind, "ok", None)


async def test_a_tool_may_say_more_than_its_words() -> None:
    """A ``ToolOutput`` passes with all it says."""
    said = ToolOutput("page", source_type="web", url="https://example.org", format="markdown", metadata={"n": 1})
    output = await call_tool(returning(said))
    assert msgspec.structs.replace(output, duration=0.0) == said
    refusal = await call_tool(returning(ToolOutput("no", status="error")))
    assert (refusal.is_error, refusal.text) == (True, "no")


@pytest.mark.parametrize("name", ["facts", "metadata"])
async def test_facts_and_metadata_are_small_plain_json(name: str) -> None:
    """They go into the record, so what cannot be kept is told as a result that cannot be shown."""

    async def made(value: dict[str, Any]) -> ToolOutput:
        return await call_tool(returning(ToolOutput("x", url="a\0", **{name: value})))  # type: ignore[arg-type]

    output = await made({"at": (1, Pair(1, [])), "no": float("nan")})
    assert getattr(output, name) == {"at": [1, {"b": 1, "a": []}], "no": None}
    assert output.url == "a\N{REPLACEMENT CHARACTER}"
    large = await made({"all": "y" * 20_000})
    assert getattr(large, name) == {"left_out": f"20,010 characters of {name}, at most 10,000 are kept"}
    assert getattr(await made({"x": "\udc80", "y": "🦉"}), name) == {"x": "\N{REPLACEMENT CHARACTER}", "y": "🦉"}
    output = await made({"x": object()})
    assert output.error is not None
    assert output.error.cause == "result"


@pytest.mark.parametrize(
    ("value", "content"),
    [
        (b"a\xff\xfeb", "a��b\n[2 bytes or characters that are no valid text replaced by �]"),
        ("a\udc80", "a�\n[1 byte or character that is no valid text replaced by �]"),
        ("a\0b", "a�b\n[1 byte or character that is no valid text replaced by �]"),
        ({"a": "\ud800"}, '{"a":"\\ud800"}'),
        ({"a": "\ud800", "b": float("nan")}, '{"a":"\\ud800","b":null}'),
        ([Text("\udc80x")], (Text("�x\n[1 byte or character that is no valid text replaced by �]"),)),
    ],
)
async def test_what_is_no_text_is_replaced_and_the_model_is_told(value: object, content: object) -> None:
    """Invalid UTF-8, lone surrogates and NULs can be neither sent nor stored; JSON escapes them instead."""
    output = await call_tool(returning(value))
    assert output.content == content


def test_megabytes_keep_their_head_and_tail() -> None:
    """A flood is cut to the cap before it reaches the record, with what is missing and what to do."""
    text = "".join(f"line {number}\n" for number in range(400_000))
    output = to_output(text, name="flood", cap=1_000)
    assert isinstance(output.content, str)
    assert output.content.startswith("line 0\nline 1\n")
    assert output.content.endswith("line 399999\n")
    assert (
        f"{len(text) - 1_000:,} of {len(text):,} characters are missing here: flood may return 1,000" in output.content
    )
    assert output.truncated_from == len(text)
    assert to_output(text, name="flood", cap=None).content == text


async def test_the_default_cap_takes_megabytes() -> None:
    """What a tool returns is kept whole up to two million characters."""
    whole, cut = await call_tool(returning("é" * 2_000_000)), await call_tool(returning("é" * 2_000_001))
    assert (len(whole.text), whole.truncated_from) == (2_000_000, None)
    assert cut.truncated_from == 2_000_001


def test_blocks_share_one_cap() -> None:
    """A block that does not fit is named instead of kept; those after it are counted, as notes need room as well."""
    big = RawBlock({"type": "search_result", "content": "x" * 5_000})
    output = to_output([Text("a" * 600), big, *[Text("b" * 600)] * 3_000, PICTURE], name="shoot", cap=1_000)
    assert not isinstance(output.content, str)
    first, second, third, fourth = output.content
    assert first == Text("a" * 600)
    assert isinstance(second, Text)
    assert "is left out: shoot may return 1,000" in second.text
    assert third == PICTURE
    assert fourth == Text("[3,000 more blocks left out: shoot may return 1,000 characters in all]")
    assert output.truncated_from is not None


@given(st.text() | st.binary(), st.integers(1, 50))
def test_any_text_becomes_storable_and_bounded(value: str | bytes, cap: int) -> None:
    """Whatever comes back, the content encodes as UTF-8, holds no NUL and is at most the cap and two notes long."""
    content = to_output(value, name="any", cap=cap).content
    assert isinstance(content, str)
    assert "\0" not in content.encode().decode()
    assert 0 < len(content) <= cap + 300


async def test_a_model_that_may_try_again_is_told_so() -> None:
    """``ToolRetry`` is for the model."""
    output = await call_tool(raising(ToolRetry("the page number must be below 9")))
    assert output.text == "the page number must be below 9\nYou may call it again, changed."
    assert output.error is not None
    assert (output.status, output.error.cause, output.error.type) == ("error", "retry", "ToolRetry")
    assert (await call_tool(raising(ToolRetry()))).text.startswith("fail did not work")


async def test_a_model_that_should_go_on_is_told_so() -> None:
    """``ToolFailed`` says that repeating will not help."""
    output = await call_tool(raising(ToolFailed("the archive is closed")))
    assert output.text == "the archive is closed\nDo not call it again for this; go on without."
    assert output.error is not None
    assert output.error.cause == "failed"
    assert (await call_tool(raising(ToolFailed()))).text.startswith("fail failed")


async def test_an_abort_reaches_the_caller() -> None:
    """``ToolAbort`` is the one error that gets out."""
    with pytest.raises(ToolAbort, match="the licence has ended"):
        await call_tool(raising(ToolAbort("the licence has ended")))


async def test_any_other_error_is_one_line_without_traceback_or_secrets() -> None:
    """The model sees type and message; the log gets the traceback."""
    output = await call_tool(raising(RuntimeError("cannot reach\npostgres://bob:hunter2@db/x")))
    assert output.text == "RuntimeError: cannot reach postgres://bob:[redacted]@db/x"
    assert output.error is not None
    assert (output.error.cause, output.error.type) == ("crash", "RuntimeError")
    assert "raise error\nRuntimeError: cannot reach" in output.error.traceback


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("https://bob:hunter2@example.org/x", "https://bob:[redacted]@example.org/x"),
        ("Authorization: Bearer abcdefgh.12345678", "Authorization: Bearer [redacted]"),
        ("key sk-ant-api03-AbCdEfGhIjKlMnOp refused", "key [redacted] refused"),
        ("https://glpat-AbCdEfGhIjKlMnOp_123@git.example/x", "https://[redacted]@git.example/x"),
        ("ghs_AbCdEfGhIjKlMnOpQr github_pat_AbCdEfGhIjKlMnOpQr", "[redacted] [redacted]"),
        ("DB_PASSWORD='hunter2', user=bob", "DB_PASSWORD=[redacted]', user=bob"),
        ('{"api_key": "abc123"}', '{"api_key": [redacted]"}'),
        ("https://example.org:8080/path?x=1", "https://example.org:8080/path?x=1"),
        ("the token was refused", "the token was refused"),
    ],
)
def test_credentials_in_foreign_errors_are_blanked_out(text: str, kept: str) -> None:
    """Library errors quote URLs and headers; what looks like a credential does not reach the model."""
    assert redact(text) == kept


PIECES = ["a-", "a_", "a.", "sk-", "token", "token-", "api_key ", "Bearer ", "db://", "://a:", ":", "@", "=", "'", " "]


@pytest.mark.parametrize("piece", PIECES)
def test_no_text_keeps_the_blanking_out_busy(piece: str) -> None:
    """Each pattern passes over a text about once: to search it again from each piece would not end within the test."""
    for start in ("", "token", "token=", "://", "://bob:"):
        assert "hunter2" not in redact(f"{start}{piece * 100_000} token=hunter2")


@pytest.mark.parametrize("between", [" ", ",", ";", "'", '"'])
def test_of_a_long_error_the_beginning_is_looked_through(between: str) -> None:
    """What is not shown costs nothing, and a credential that is cut off at the end is not shown by half."""
    credentials = [f"token={'x' * 990}"] * 4
    error = RuntimeError(between.join([*credentials, f"https://bob:hunter2{'2' * 1_000}@db/x"]))
    assert one_line(error) == f"RuntimeError: {between.join(['token=[redacted]'] * 4)}"


def test_a_long_error_of_a_single_word_is_shown() -> None:
    """There is no place to cut it at."""
    assert one_line(RuntimeError("a-" * 10_000_000)) == f"RuntimeError: {'a-' * 243}"


def test_an_error_whose_text_fails_is_still_told() -> None:
    """A broken ``__str__`` does not hide the error it belongs to."""

    class Broken(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    assert one_line(Broken()) == "Broken: <Broken without a readable text>"
    assert one_line(ValueError()) == "ValueError"
    assert len(one_line(ValueError("x" * 10_000))) == 500


async def test_endless_recursion_is_an_ordinary_crash() -> None:
    """The interpreter's own bound on recursion is told like any error."""

    async def dig(depth: int = 0) -> int:
        """Dig."""
        return await dig(depth + 1)

    output = await call_tool(tool(dig))
    assert output.text.startswith("RecursionError: maximum recursion depth exceeded")


async def test_a_result_that_contains_itself_or_cannot_be_written_is_told() -> None:
    """The model learns that the tool ran: its effect is there, only the result is not."""
    endless: list[Any] = []
    endless.append(endless)

    class Lazy(pydantic.BaseModel):
        @pydantic.computed_field  # type: ignore[prop-decorator]
        @property
        def rows(self) -> int:
            raise self.error

        error: ClassVar[BaseException] = LookupError("no session to load them from")

    class Ending(Lazy):
        error = SystemExit("usage: rows")

    for value in (endless, object(), {("a", 1): 2}, lambda: None, Lazy(), Ending()):
        output = await call_tool(returning(value))
        assert output.text.startswith("give ran, but its result cannot be shown: ")
        assert output.error is not None
        assert output.error.cause == "result"


@pytest.mark.parametrize(
    ("errors", "text"),
    [
        ([ValueError("one"), OSError("two")], "ValueError: one"),
        ([ValueError("one"), ToolRetry("again")], "again\nYou may call it again, changed."),
        ([ToolFailed("over"), ToolRetry("again")], "again\nYou may call it again, changed."),
        ([ExceptionGroup("inner", [ToolFailed("over")])], "over\nDo not call it again for this; go on without."),
    ],
)
async def test_of_errors_that_come_together_the_most_telling_one_speaks(errors: list[Exception], text: str) -> None:
    """Task groups raise groups; the model is not shown one, and the log keeps all of it."""
    output = await call_tool(raising(ExceptionGroup("tasks", errors)))
    assert output.text == text
    assert output.error is not None
    assert all(str(error) in output.error.traceback for error in errors)


async def test_an_abort_inside_a_group_reaches_the_caller() -> None:
    """Even when other tasks of the tool failed with it."""
    group = ExceptionGroup("tasks", [ValueError("one"), ExceptionGroup("inner", [ToolAbort("stop")])])
    with pytest.raises(ToolAbort, match="stop"):
        await call_tool(raising(group))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), GeneratorExit(), Unfinished()], ids=repr)
async def test_what_is_meant_for_the_program_passes_through(error: BaseException) -> None:
    """It is nobody's outcome, alone or in a group."""
    with pytest.raises(type(error)):
        await call_tool(raising(error))
    with pytest.raises(BaseExceptionGroup) as caught:
        await call_tool(raising(BaseExceptionGroup("tasks", [ValueError("one"), error])))
    assert caught.group_contains(type(error))
    assert not caught.group_contains(ValueError)


def test_a_tool_that_exits_or_panics_does_not_end_the_program(run_async: Any) -> None:
    """Whoever wraps a command line lets the model's words reach ``sys.exit``; a panic in Rust is no ``Exception``."""

    class Panic(BaseException):
        pass

    def leave(words: str) -> None:
        """Read a command line."""
        argparse.ArgumentParser().parse_args([words])

    def panic(words: str) -> None:
        """Call an extension."""
        raise Panic(words)

    async def main() -> None:
        for function, text in ((leave, "SystemExit: 2"), (panic, "Panic: --wrong")):
            output = await call_tool(tool(function), {"words": "--wrong"})
            assert (output.status, output.text) == ("error", text)
        for error in (SystemExit(2), Panic()):
            for raised in (error, BaseExceptionGroup("tasks", [error, ValueError("one")])):
                assert (await call_tool(raising(raised))).status == "error"

    run_async(main)


async def test_a_hung_tool_ends_at_its_deadline(autojump_clock: trio.testing.MockClock) -> None:
    """Not a moment later, and the model is told that the effect is unknown."""

    async def hang() -> None:
        """Hang."""
        await anyio.sleep_forever()

    for effect, status in (
        ("pure", "error"),
        ("transactional", "error"),
        ("unsafe", "interrupted"),
        ("idempotent", "interrupted"),
    ):
        begun = anyio.current_time()
        output = await call_tool(tool(hang, deadline=30, effect=effect))  # type: ignore[call-overload]
        assert anyio.current_time() - begun == 30
        assert (output.status, output.duration) == (status, 30)
        assert output.text.startswith("hang gave no result within 30 seconds")
        assert ("may have had its effect" in output.text) == (status == "interrupted")
        assert output.error is not None
        assert output.error.cause == "deadline"


async def test_a_tool_without_deadline_may_take_its_time(autojump_clock: trio.testing.MockClock) -> None:
    """None is no limit."""

    async def ponder(context: ToolContext) -> str:
        """Ponder."""
        await anyio.sleep(1_000_000)
        return str(context.remaining())

    assert (await call_tool(tool(ponder, deadline=None))).content == "None"


async def test_a_tool_knows_how_long_it_may_take(autojump_clock: trio.testing.MockClock) -> None:
    """``remaining`` counts down to the deadline."""

    async def look(context: ToolContext) -> list[float | None]:
        """Look at the clock."""
        first = context.remaining()
        await anyio.sleep(4)
        return [first, context.remaining()]

    assert (await call_tool(tool(look, deadline=10))).content == "[10.0,6.0]"


async def test_a_crash_while_being_stopped_is_a_timeout_with_its_cause(autojump_clock: trio.testing.MockClock) -> None:
    """The model is told of the deadline, the log of the crash behind it."""

    async def stumble() -> None:
        """Stumble."""
        try:
            await anyio.sleep_forever()
        finally:
            raise ValueError("while closing")

    output = await call_tool(tool(stumble, deadline=5))
    assert output.text.startswith("stumble gave no result within 5 seconds")
    assert output.error is not None
    assert (output.error.cause, output.error.message) == ("deadline", "while closing")


async def test_a_result_in_spite_of_the_deadline_is_the_result(autojump_clock: trio.testing.MockClock) -> None:
    """A tool that finishes its work under a shield has finished it."""

    async def finish() -> str:
        """Finish."""
        with anyio.CancelScope(shield=True):
            await anyio.sleep(10)
        return "done"

    assert (await call_tool(tool(finish, deadline=5))).content == "done"


async def test_a_timeout_inside_the_tool_is_its_own_error() -> None:
    """The tool's deadline did not pass, so nobody is told that it did."""
    output = await call_tool(raising(TimeoutError("connecting took 3 s")))
    assert output.text == "TimeoutError: connecting took 3 s"
    assert output.error is not None
    assert output.error.cause == "crash"


def test_cancellation_wins_over_a_crash_in_cleanup(run_async: Any) -> None:
    """On both backends a cancelled call raises cancellation, even if the tool's tasks fail while they are stopped."""

    async def main() -> None:
        started, returned = anyio.Event(), False

        async def child() -> None:
            started.set()
            try:
                await anyio.sleep_forever()
            finally:
                raise ValueError("while closing")

        async def gather() -> None:
            """Gather."""
            async with anyio.create_task_group() as group:
                group.start_soon(child)

        async def call() -> None:
            nonlocal returned
            await call_tool(tool(gather))
            returned = True

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await started.wait()
            group.cancel_scope.cancel()
        assert not returned

    run_async(main)


def test_a_cancelled_task_of_the_tool_is_a_crash_of_the_call(run_async: Any) -> None:
    """asyncio's error for that is no ``Exception``. Whoever cancels the call itself still cancels it."""

    def plain() -> None:
        """Plain."""

        async def main() -> None:
            raise asyncio.CancelledError

        asyncio.run(main())

    async def waiting() -> None:
        """Wait."""
        task = asyncio.ensure_future(asyncio.sleep(1))
        task.cancel()
        await task

    async def several() -> None:
        """Wait for several."""
        raise BaseExceptionGroup("two tasks", [asyncio.CancelledError(), ValueError("no")])

    async def slow() -> None:
        """Slow."""
        await anyio.sleep_forever()

    async def main() -> None:
        agent = rp.Agent("clerk", tools=[plain])
        model = ScriptedModel([call("plain"), lambda request: text_of(request.messages[-1].content)])
        async with rp.open_supervisor(model=model) as supervisor:
            assert await (await supervisor.spawn(agent, "Go.")).wait_result() == "CancelledError"
        if run_async.backend == "asyncio":
            assert (await call_tool(tool(waiting))).text == "CancelledError"
            assert (await call_tool(tool(several))).text == "ValueError: no"
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(call_tool(tool(slow)), 0.01)
        with anyio.move_on_after(0.01) as scope:
            await call_tool(tool(slow))
        assert scope.cancelled_caught

    run_async(main)


def test_outcomes_are_the_same_on_both_backends(run_async: Any) -> None:
    """Results, errors, deadlines and groups, with plain and async functions."""

    def plain(number: int) -> int:
        """Plain."""
        return 100 // number

    async def slow() -> None:
        """Slow."""
        await anyio.sleep_forever()

    async def tasks() -> None:
        """Tasks."""
        async with anyio.create_task_group() as group:
            group.start_soon(slow)
            raise ToolRetry("not now")

    async def main() -> None:
        assert (await call_tool(tool(plain), {"number": "4"})).content == "25"
        assert (await call_tool(tool(plain), {"number": 0})).text.startswith("ZeroDivisionError: ")
        assert (await call_tool(tool(slow, deadline=0.01))).status == "interrupted"
        assert (await call_tool(tool(tasks))).text == "not now\nYou may call it again, changed."

    run_async(main)


async def test_records_commit_with_the_outcome_or_not_at_all() -> None:
    """Those of the tool's output and those it staged, in one transaction; an error drops them."""

    def event(name: str) -> EventLogged:
        return EventLogged(run_id="r", type=name, body={}, at=0.0)

    async def note(fail: bool, context: ToolContext) -> ToolOutput:
        """Note."""
        context.commit([event("staged")])
        if fail:
            raise ToolRetry("no")
        return ToolOutput("noted", records=(event("returned"),))

    async def refuse(context: ToolContext) -> ToolOutput:
        """Refuse."""
        context.commit([event("staged")])
        return ToolOutput("no", status="error", records=(event("returned"),))

    shared = ToolContext()
    made = tool(note, effect="transactional")
    good = await execute(made, {"fail": False}, shared)
    assert good.records == (event("returned"), event("staged"))
    assert (await execute(made, {"fail": True}, shared)).records == ()
    assert (await call_tool(tool(refuse))).records == ()
    assert shared.staged == []


async def test_a_tool_gets_what_its_caller_knows() -> None:
    """The context's fields arrive, the digest is filled in, and progress is passed on."""
    said: list[str] = []

    async def report(topic: str, context: ToolContext) -> list[str]:
        """Report."""
        context.progress(f"half of {topic}")
        return [context.run_id, context.agent, context.call_id, context.idempotency_key, context.arguments_digest[:4]]

    context = ToolContext(run_id="r", agent="a", call_id="c", idempotency_key="k", progress=said.append)
    output = await call_tool(tool(report), {"topic": "x"}, context=context)
    assert msgspec.json.decode(output.text)[:4] == ["r", "a", "c", "k"]
    assert len(msgspec.json.decode(output.text)[4]) == 4
    assert said == ["half of x"]


def test_a_context_without_services_says_what_is_missing() -> None:
    """A tool that needs a service is told which field to set."""
    context = ToolContext()
    context.progress("nobody listens")
    with pytest.raises(ConfigurationError, match=r"ToolContext\.record"):
        context.need_record()
    with pytest.raises(ConfigurationError, match=r"ToolContext\.contents"):
        context.need_contents()


def test_an_unknown_tool_is_answered_with_names_close_to_it() -> None:
    """The model can repair a misspelt name in one step."""
    output = unknown_tool("serch_files", ["view_file", "search_files", "list_files"])
    assert "there is no tool named 'serch_files'. Did you mean search_files" in output.text
    assert "Available: list_files, search_files, view_file." in output.text
    assert output.error is not None
    assert (output.status, output.error.cause) == ("error", "unknown-tool")
    assert unknown_tool("x", []).text == "there is no tool named 'x'. Available: none."


def test_of_an_unknown_name_only_what_a_name_can_have_is_compared() -> None:
    """A model that wrote on and on after the name is still told which it may have meant, and costs nothing more."""
    name = "search_files_in_the_archive_of_all_departments_by_their_contents"
    text = unknown_tool(f"{name}{'_' * 1_000_000}", [name]).text
    assert text == f"there is no tool named '{name:_<128}'. Did you mean {name}? Available: {name}."
