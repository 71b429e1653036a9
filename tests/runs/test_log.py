"""What is logged: dotted names with key-values, for those who listen, and nothing for those who do not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
import structlog
import trio.testing

import repertory as rp
from context_scenes import clerk
from repertory._log import Log
from repertory.shortening import register_compactor
from repertory.shortening.compactors import COMPACTORS
from repertory.testing import FunctionModel, ScriptedModel, call


async def test_a_run_is_logged_once_somebody_listens(caplog: pytest.LogCaptureFixture) -> None:
    """Events come under the logger ``repertory``, with the facts as fields of the record."""
    caplog.set_level(logging.INFO, logger="repertory")
    async with rp.open_supervisor(model=ScriptedModel(["Done."])) as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk"), "Go.")
        await run.wait_result()
    records = [record for record in caplog.records if record.name == "repertory"]
    assert [vars(record).get("event") for record in records] == ["run.spawned", "iteration.started", "state.changed"]
    assert (vars(records[0])["run"], vars(records[0])["agent"]) == (run.id, "clerk")
    assert vars(records[-1])["state"] == "done"


class Lines(logging.Handler):
    """Keeps what it would have written, formatted at once as any handler does."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.lines.append(self.format(record))


@contextmanager
def written(formatter: logging.Formatter) -> Iterator[list[str]]:
    """The lines that an application gets which configures the standard library's logging only."""
    handler, logger = Lines(formatter), logging.getLogger("repertory")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield handler.lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)


async def one_run() -> str:
    """Play a run; its id."""
    async with rp.open_supervisor(model=ScriptedModel(["Done."])) as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk"), 'Say "go"\nnow.')
        await run.wait_result()
        return run.id


async def test_a_plain_line_has_the_facts() -> None:
    """Whoever only calls ``basicConfig`` sees which run did what, each event in one line and from where it came."""
    with written(logging.Formatter("%(levelname)s %(filename)s %(message)s")) as lines:
        run_id = await one_run()
    assert lines[0].startswith(f"INFO event_hub.py run.spawned run={run_id} agent=clerk iteration=0 ")
    assert r'task="Say \"go\"\nnow."' in lines[0]
    assert "state=done" in lines[-1]
    assert not [line for line in lines if "\n" in line]


async def test_structlogs_formatter_takes_an_event_as_its_own() -> None:
    """The facts are key-values beside the name, once, together with what the application has bound to its context."""
    meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    formatter = structlog.stdlib.ProcessorFormatter(processors=[meta, structlog.processors.JSONRenderer()])
    with written(formatter) as lines, structlog.contextvars.bound_contextvars(request="r-17", name="web"):
        run_id = await one_run()
    events = [msgspec.json.decode(line) for line in lines]
    assert {(event["run"], event["request"], event["name"]) for event in events} == {(run_id, "r-17", "web")}
    answered = next(event for event in events if event["event"] == "model.answered")
    assert answered["text"] == "Done."
    assert answered["usage"]["output_tokens"] > 0


def test_a_fact_that_logging_has_a_field_of_the_same_name_for_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    """``logging`` raises where a field is called as one of its own, and the run would end of it."""
    Log("repertory.tools")(logging.WARNING, "tool.odd", name="saw", level=3, event="no", args=(1,), message="m" * 300)
    (record,) = caplog.records
    fields = vars(record)
    assert (record.name, fields["name_"], fields["level"], fields["args_"]) == ("repertory.tools", "saw", 3, (1,))
    assert (fields["event"], fields["message_"], record.filename) == ("tool.odd", "m" * 300, "test_log.py")
    assert record.getMessage() == f"tool.odd name=saw level=3 args=(1,) message={'m' * 199}…"


async def test_nothing_is_logged_by_default(caplog: pytest.LogCaptureFixture) -> None:
    """A library keeps quiet until the application asks."""
    async with rp.open_supervisor(model=ScriptedModel(["Done."])) as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk"), "Go.")
        await run.wait_result()
    assert caplog.records == []


async def test_a_crash_is_logged_with_its_error(
    caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    """Whoever runs agents for days finds the traceback, though the run only says that it failed."""

    def crash(request: object) -> str:
        raise RuntimeError("a bug")

    async with rp.open_supervisor(model=FunctionModel(crash)) as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk"), "Go.")
        with pytest.raises(rp.RepertoryError):
            await run.wait_result()
    crashes = [record for record in caplog.records if vars(record).get("event") == "run.crashed"]
    assert len(crashes) == 1
    assert crashes[0].exc_info
    assert "a bug" in str(crashes[0].exc_info[1])


class Unwritable:
    """A result that JSON does not have, such as a table of pandas."""


@pytest.mark.parametrize(
    ("bug", "told"),
    [
        (lambda: 1 // 0, "ZeroDivisionError: integer division or modulo by zero"),
        (Unwritable, "TypeError: a value of type Unwritable cannot be written as JSON"),
    ],
)
async def test_a_bug_in_a_tool_is_logged_and_journalled_with_its_traceback(
    bug: Callable[[], object], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The model is told in a line; whoever mends the tool finds the place in the log and in the journal."""

    @rp.tool(effect="pure")
    async def stumble() -> object:
        """Stumble over a bug."""
        return bug()

    @rp.tool(effect="pure")
    async def decline() -> str:
        """Say on purpose that it does not work."""
        raise rp.ToolFailed("not today")

    model = ScriptedModel([[call("stumble"), call("decline")], "Done."])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk", tools=[stumble, decline]), "Go.")
        await run.wait_result()
        outcomes = await supervisor.journal.read_outcomes(run.id)
    errors = {outcome.tool: outcome.error for outcome in outcomes}
    assert errors["stumble"].startswith("Traceback")
    assert errors["stumble"].endswith(f"{told}\n")
    assert errors["decline"] == ""
    (record,) = [record for record in caplog.records if vars(record).get("event") == "tool.crashed"]
    assert record.exc_info
    facts = {name: vars(record)[name] for name in ("tool", "run", "agent", "call_id")}
    (call_id,) = [outcome.call_id for outcome in outcomes if outcome.tool == "stumble"]
    assert record.name == "repertory.tools"
    assert facts == {"tool": "stumble", "run": run.id, "agent": "clerk", "call_id": call_id}


class Broken:
    """An application's compactor with a bug."""

    name = "broken"

    def matches(self, text: str, data: Any) -> bool:
        """Everything."""
        return True

    def compact(self, text: str, data: Any, length: int) -> str:
        """A bug."""
        raise KeyError("no such field")


@pytest.fixture
def broken() -> Iterator[None]:
    """Registers it for one test."""
    before = dict(COMPACTORS)
    register_compactor(Broken())
    yield
    COMPACTORS.clear()
    COMPACTORS.update(before)


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("strict_chars", [0, 1_000])
async def test_a_compactor_that_raises_is_logged_once_and_the_run_goes_on(
    caplog: pytest.LogCaptureFixture, strict_chars: int
) -> None:
    """Whether it is asked on arrival or when the result is compacted; the next one says what the result was."""
    context = rp.ContextPolicy(rhythm="strict", window=2, strict_chars=strict_chars)
    model = ScriptedModel([*(call("read_log", day=day) for day in range(1, 7)), "Done."])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(clerk(context), "Read.")
        assert await run.wait_result() == "Done."
        assert {entry.representation for entry in run.view()} > {"stub"}
    (record,) = [record for record in caplog.records if vars(record).get("event") == "compactor.failed"]
    assert (vars(record)["run"], vars(record)["compactor"]) == (run.id, "broken")
    assert record.exc_info
    assert "no such field" in str(record.exc_info[1])
