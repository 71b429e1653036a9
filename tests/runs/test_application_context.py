"""The application's own object: seen by every tool of a tree, and by nobody else."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog.testing

import repertory as rp
from backends import RunAsync
from repertory.errors import ContextMissing, RunError
from repertory.llm.messages import ToolResult, text_of
from repertory.llm.model import ModelRequest
from repertory.testing import FunctionModel, ScriptedModel, call

CANARY = "canary-7f3a91c2"


@dataclass
class App:
    """What an application hands in."""

    tenant: str = CANARY
    seen: int = 0

    def __reduce__(self) -> Any:
        raise AssertionError("the context was pickled")


@rp.tool(effect="transactional")
async def look(context: rp.ToolContext[App]) -> str:
    """Use the application's object."""
    assert context.context.tenant == CANARY
    context.context.seen += 1
    context.progress(f"{context}")
    return f"seen by {context!r}"


@rp.tool(effect="unsafe")
def crash(context: rp.ToolContext[App]) -> str:
    """Crash with the tool's own context in the message, in a thread."""
    context.context.seen += 1
    raise ValueError(f"broken in {context}")


def team() -> rp.Agent:
    """A lead whose worker uses the object, too."""
    worker = rp.Agent("worker", instructions="You work.", tools=[look, crash])

    def answer(request: ModelRequest) -> Any:
        done = any(isinstance(block, ToolResult) for message in request.messages for block in message.content)
        if done:
            return "done"
        calls = [call("look"), call("crash")]
        if text_of(request.system) != "You work.":
            calls.append(call("delegate", agent="worker", task="Look."))
        return calls

    return rp.Agent("lead", tools=[look, crash], team=[worker], model=FunctionModel(answer))


def test_no_byte_of_the_context_is_written_sent_shown_or_logged(
    tmp_path: Path, run_async: RunAsync, caplog: pytest.LogCaptureFixture
) -> None:
    """A canary in it is found by every tool, in every run of the tree, and nowhere else."""
    path, app = tmp_path / "c.db", App()
    shown: list[str] = []

    async def main() -> None:
        agent = team()
        async with rp.open_supervisor(path, durability="process") as supervisor:
            run = await supervisor.spawn(agent, "Look.", context=app)
            await run.wait_result()
            shown.extend(str(msgspec.to_builtins(event)) for event in [event async for event in run.events(tree=True)])
            shown.append(repr(run))
            shown.append(repr(run._live))
            for each in (run, *run.children):
                for called in await supervisor.journal.read_model_calls(each.id):
                    shown.append(str(await supervisor.journal.read_request(each.id, called.called.call)))

    with caplog.at_level(logging.DEBUG), structlog.testing.capture_logs() as logs:
        run_async(main)
    assert app.seen == 4
    files = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"seen by <ToolContext" in files  # negative control: this is where it would be found
    assert CANARY.encode() not in files
    assert CANARY not in "\n".join([*shown, caplog.text, str(logs)])


def test_a_run_that_was_given_a_context_goes_on_only_with_one(tmp_path: Path, run_async: RunAsync) -> None:
    """What is missing and how to hand it in is said before anything runs; the run is left as it was."""
    path = tmp_path / "c.db"
    agent = rp.Agent("a", tools=[look], model=ScriptedModel([call("look"), "done"]))

    async def main() -> None:
        app = App()
        async with rp.open_supervisor(path, durability="process") as supervisor:
            run = await supervisor.spawn(agent, "Look.", run_id="r1", context=App())
            run.stop()
            with pytest.raises(RunError):
                await run.wait_result()
        async with rp.open_supervisor(path, durability="process") as supervisor:
            with pytest.raises(ContextMissing, match=r"run r1 was given .* hand it in again as context=…"):
                await supervisor.resume("r1", agent=agent)
            with pytest.raises(RunError):
                supervisor.run("r1")
            again = await supervisor.resume("r1", agent=agent, context=app)
            assert await again.wait_result() == "done"
        async with rp.open_supervisor(path, durability="process") as supervisor:
            done = await supervisor.resume("r1", agent=agent)  # it only tells its result
            assert await done.wait_result() == "done"
        assert app.seen == 1

    run_async(main)


async def test_a_run_without_a_context_needs_none() -> None:
    """The tool finds None."""

    @rp.tool(effect="pure")
    async def ask(context: rp.ToolContext) -> str:
        """Say what there is."""
        return str(context.context)

    async with rp.open_supervisor(model=ScriptedModel([call("ask"), "done"])) as supervisor:
        run = await supervisor.spawn(rp.Agent("a", tools=[ask]), "Ask.")
        await run.wait_result()
        assert text_of((await supervisor.journal.read_entries(run.id))[2].content) == "None"
