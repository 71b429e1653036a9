"""Images and documents that come with a task or a message."""

from __future__ import annotations

import base64
import itertools
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

import repertory as rp
from backends import RunAsync
from repertory.errors import ConfigurationError, MediaUnreadable, PromptTooLong, RunError
from repertory.llm.messages import Block, Image, RawBlock, Text
from repertory.llm.model import ModelRequest
from repertory.llm.profiles import profile_for
from repertory.testing import FunctionModel, ScriptedModel, call

PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII=")
PICTURE = rp.media_block(PIXEL, "image/png")
BILL = rp.media_block(b"%PDF-1.4\n1 0 obj<</Type/Page>>endobj\n%%EOF", "application/pdf", title="bill")
CLERK = rp.Agent("clerk")


def said(request: ModelRequest) -> list[tuple[Block, ...]]:
    """What the user has said in a request."""
    return [message.content for message in request.messages if message.role == "user"]


def test_a_model_sees_what_comes_with_a_task_and_with_a_message(run_async: RunAsync, tmp_path: Path) -> None:
    """Before the words, as models read it best; once, however often it is sent; also in the next process and a fork."""
    path, seen = tmp_path / "journal.db", list[list[tuple[Block, ...]]]()

    def look(request: ModelRequest) -> str:
        seen.append(said(request))
        return f"answer {len(seen)}"

    async def main() -> None:
        async with rp.open_supervisor(path, model=FunctionModel(look)) as supervisor:
            run = await supervisor.spawn(CLERK, "What is it?", attachments=[PICTURE], run_id="look")
            assert await run.wait_result() == "answer 1"
            assert await run.ask("And this?", attachments=[PICTURE, PICTURE], message_id="m2") == "answer 2"
            with pytest.raises(RunError, match="with another text or other attachments"):
                await run.ask("And this?", attachments=[PICTURE], message_id="m2")
        async with rp.open_supervisor(path, model=FunctionModel(look)) as supervisor:
            again = await supervisor.spawn(CLERK, "What is it?", attachments=[PICTURE], run_id="look")
            fork = await supervisor.fork("look", iteration=2, agent=CLERK)
            for run in (again, fork):
                assert await run.ask("And this?", attachments=[PICTURE, PICTURE], message_id="m2") == "answer 2"
            events = [record.body for _, record in await supervisor.journal.read_events("look")]
            assert "iVBOR" not in str(events)

    run_async(main)
    task, message = (PICTURE, Text("What is it?")), (PICTURE, PICTURE, Text("And this?"))
    assert seen == [[task], [task, message]]


def test_what_a_process_did_not_read_is_read_by_the_next_one(run_async: RunAsync, tmp_path: Path) -> None:
    """A message is durable with what comes with it before a model has seen either."""
    path, seen = tmp_path / "journal.db", list[list[tuple[Block, ...]]]()

    async def wait(_: ModelRequest) -> str:
        await anyio.sleep_forever()
        return ""

    def look(request: ModelRequest) -> str:
        seen.append(said(request))
        return "done"

    async def main() -> None:
        async with rp.open_supervisor(path, model=FunctionModel(wait), drain_timeout=0) as supervisor:
            run = await supervisor.spawn(CLERK, "What is it?", attachments=[PICTURE])
            await run.send("And this?", attachments=[PICTURE])
        async with rp.open_supervisor(path, model=FunctionModel(look)) as supervisor:
            run = await supervisor.resume(run.id, agent=CLERK)
            await run.wait_result()

    run_async(main)
    assert seen[-1] == [(PICTURE, Text("What is it?"), PICTURE, Text("And this?"))]


def test_a_title_of_any_characters_is_shown(run_async: RunAsync) -> None:
    """That of a file may be no UTF-8; with a message it ended the run, and again whenever that was resumed."""
    seen = list[list[tuple[Block, ...]]]()
    odd, plain = (rp.media_block(b"%PDF-1.4 %%EOF", title=title) for title in ("caf\udce9\0.pdf", "caf\ufffd\0.pdf"))

    def look(request: ModelRequest) -> str:
        seen.append(said(request))
        return "done"

    async def main() -> None:
        async with rp.open_supervisor(model=FunctionModel(look)) as supervisor:
            run = await supervisor.spawn(CLERK, "Read it.", attachments=[odd])
            await run.wait_result()
            await run.ask("And this.", attachments=[odd])

    run_async(main)
    assert seen[-1] == [(plain, Text("Read it.")), (plain, Text("And this."))]


def test_a_model_that_takes_no_documents_is_told_that_there_was_one(run_async: RunAsync) -> None:
    """As with the result of a tool. The message stays the same one, in a fork of a fork too."""
    seen = list[list[tuple[Block, ...]]]()
    profile = msgspec.structs.replace(profile_for("claude-sonnet-4-5"), documents=False)

    def look(request: ModelRequest) -> str:
        seen.append(said(request))
        return "done"

    async def main() -> None:
        async with rp.open_supervisor(model=FunctionModel(look, profile=profile)) as supervisor:
            run = await supervisor.spawn(CLERK, "Pay it.", attachments=[BILL])
            await run.wait_result()
            await run.ask("And this.", attachments=[BILL], message_id="m1")
            for _ in range(2):
                run = await supervisor.fork(run.id, iteration=2, agent=CLERK)
                assert await run.ask("And this.", attachments=[BILL], message_id="m1") == "done"
                with pytest.raises(RunError, match="with another text or other attachments"):
                    await run.send("And this.", message_id="m1")

    run_async(main)
    line = Text("[a document, which this model cannot be shown]")
    assert seen == [[(line, Text("Pay it."))], [(line, Text("Pay it.")), (line, Text("And this."))]]


@pytest.mark.parametrize("with_task", [True, False])
def test_what_cannot_be_read_leaves_view_for_good_and_the_words_stay(run_async: RunAsync, *, with_task: bool) -> None:
    """Through everything that happens to old turns, as the server would refuse each request that shows it again."""
    lines = [f"line {number} of the log is about value_{number * 7}" for number in range(200)]
    words, asked = list[str](), itertools.count(1)

    @rp.tool(effect="pure")
    def read(number: int) -> str:
        """Read a log."""
        return "\n".join(f"{line} in log {number}" for line in lines)

    def look(request: ModelRequest) -> object:
        if any(isinstance(block, Image | RawBlock) for content in said(request) for block in content):
            raise MediaUnreadable("Could not process image")
        words[:] = [block.text for content in said(request) for block in content if isinstance(block, Text)]
        number = next(asked)
        return call("read", number=number) if number < 40 else "done"

    async def main() -> str:
        agent = rp.Agent("clerk", tools=[read])
        async with rp.open_supervisor(model=FunctionModel(look)) as supervisor:
            run = await supervisor.spawn(agent, "Look.", attachments=[PICTURE, BILL] if with_task else ())
            if not with_task:
                await run.send("Look here.", attachments=[PICTURE, BILL])
            return await run.wait_result()

    assert run_async(main) == "done"
    note = "[without 1 image, 1 document: it could not be read, or something beside it]"
    assert f"{'Look.' if with_task else 'Look here.'}\n{note}" in words


@pytest.mark.parametrize("kept", [True, False])
def test_a_chat_goes_on_with_more_images_than_a_request_may_have(run_async: RunAsync, *, kept: bool) -> None:
    """Those of earlier messages leave view, also where a fold has kept the words; the model can get them again."""
    asked, most = itertools.count(1), 10
    seen, words = list[int](), list[str]()

    @rp.tool(effect="pure")
    def read(number: int) -> str:
        """Read a log."""
        return "\n".join(f"line {line} of log {number} is about value_{line * 7}" for line in range(400))

    def look(request: ModelRequest) -> object:
        blocks = [block for content in said(request) for block in content]
        images = sum(isinstance(block, Image) for block in blocks)
        if images > most:
            raise PromptTooLong(f"too many images and documents: {images} + 0 > {most}")
        seen.append(images)
        words[:] = [block.text for block in blocks if isinstance(block, Text)]
        number = next(asked)
        return call("read", number=number) if kept and number % 4 else "done"

    async def main() -> None:
        agent = rp.Agent("clerk", tools=[read, *rp.context_tools()], limits=rp.Limits(iterations=100))
        async with rp.open_supervisor(model=FunctionModel(look)) as supervisor:
            run = await supervisor.spawn(agent, "Look.", attachments=[PICTURE])
            await run.wait_result()
            for number in range(12):
                await run.ask(f"And at number {number}?", attachments=[PICTURE] * 3)

    run_async(main)
    assert max(seen) <= most
    assert "Look." in words  # the task keeps its image as long as there is room for it
    assert any(each.startswith("And at number 11?") for each in words)
    note = "[without 3 images: there was no room; context_retrieve(iteration={}) shows the whole]"
    assert f"And at number 0?\n{note.format(4 if kept else 1)}" in words


def test_too_many_images_say_nothing_of_how_long_a_prompt_may_be(run_async: RunAsync) -> None:
    """The images leave view; the words, which need more than three quarters of the refused prompt, stay."""
    most = 10

    def look(request: ModelRequest) -> str:
        images = sum(isinstance(block, Image) for content in said(request) for block in content)
        if images > most:
            raise PromptTooLong(f"too many images and documents: {images} + 0 > {most}", media=True)
        return "done"

    async def main() -> None:
        async with rp.open_supervisor(model=FunctionModel(look)) as supervisor:
            run = await supervisor.spawn(CLERK, "word " * 90_000)
            await run.wait_result()
            for number in range(5):
                assert await run.ask(f"And number {number}?", attachments=[PICTURE] * 3) == "done"

    run_async(main)


@pytest.mark.parametrize(
    ("attachments", "message"),
    [
        ("face.png", "the attachments of a .* are a list of what media_block makes; got 'face.png'"),
        ([PIXEL], "got b"),
        (None, "got None"),
        ([PICTURE, Text("Look.")], "got Text"),
        (
            [Image({"type": "base64", "media_type": "image/png", "data": "A" * 7_000_000})],
            "cannot be shown .* too large",
        ),
        (
            [RawBlock({"type": "document", "source": {"data": "A" * 20_000_000}})] * 2,
            "have 30,000,000 bytes; a request has room",
        ),
    ],
)
def test_what_could_never_be_shown_is_refused(run_async: RunAsync, attachments: Any, message: str) -> None:
    """Before anything is on record, with what was expected and what came."""

    async def main() -> None:
        async with rp.open_supervisor(model=ScriptedModel(["done"])) as supervisor:
            with pytest.raises(ConfigurationError, match=message):
                await supervisor.spawn(CLERK, "Look.", attachments=attachments)
            assert not await supervisor.runs()
            run = await supervisor.spawn(CLERK, "Look.")
            await run.wait_result()
            for say in (run.send, run.ask):
                with pytest.raises(ConfigurationError, match=message):
                    await say("Look.", attachments=attachments)
            assert run.state == "done"

    run_async(main)
