"""Conversations that were held elsewhere go on as runs, and no request that follows is refused."""

from __future__ import annotations

import base64
import math
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec import Struct
from msgspec.structs import replace

import repertory as rp
from backends import RunAsync
from repertory.errors import ConfigurationError, PayloadInvalid, RecordingError, RunExists
from repertory.llm.messages import Image, RawBlock, ToolResult, text_of
from repertory.record import Entry
from repertory.replay import import_run
from repertory.testing import FunctionModel, open_messages_server

PICTURE = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0" * 64).decode()
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}}
FOUND = {"type": "web_search_result", "url": "https://e.example", "title": "E", "encrypted_content": "a"}
CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": [IMAGE, {"type": "text", "text": "What is this?"}]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
            {"type": "text", "text": "A mill.", "citations": None},
        ],
    },
    {"role": "user", "content": "Look up A1, and show page 2."},
    {
        "role": "assistant",
        "content": [
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "A1"}},
            {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [FOUND]},
            {"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": {"order": "A1"}},
            {"type": "tool_use", "id": "toolu_2", "name": "show", "input": {"page": 2}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "no such order", "is_error": True},
            {"type": "tool_result", "tool_use_id": "toolu_2", "content": [{"type": "text", "text": "page 2:"}, IMAGE]},
            {"type": "text", "text": "Be quick."},
        ],
    },
    {"role": "assistant", "content": "A1 is unknown."},
]
clerk = rp.Agent("clerk", "You help.")


def calling(arguments: dict[str, Any]) -> dict[str, Any]:
    """A model's message with a call."""
    return {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look_up", "input": arguments}]}


@pytest.mark.parametrize("profile", ["claude-opus-4-6", "claude-sonnet-5-5"])
def test_whatever_the_conversation_ends_with_it_goes_on(run_async: RunAsync, profile: str) -> None:
    """A strict server takes what follows; if the model had the last word nobody is asked before the next question."""

    async def main() -> None:
        async with (
            open_messages_server(lambda request: "I see.") as server,
            aclosing(rp.AnthropicModel(profile, base_url=server.url)) as model,
            rp.open_supervisor(model=model) as supervisor,
        ):
            for length in range(2, len(CHAT) + 1):
                run_id, answered = f"chat-{length}", CHAT[length - 1]["content"]
                await import_run(supervisor, CHAT[:length], agent=clerk, run_id=run_id, client="ann")
                run = await supervisor.resume(run_id, agent=clerk)
                if run.state == "done":
                    assert await run.wait_result() == ("A mill." if length == 2 else answered)
                    assert run.statistics().model_calls == 0
                else:
                    assert await run.wait_result() == "I see."
                assert await run.ask("And now?") == "I see."
                forked = await supervisor.fork(run_id, iteration=1, agent=clerk)
                assert await forked.wait_result() in ("A mill.", "I see.")
            assert {exchange.status for exchange in server.exchanges} == {200}

    run_async(main)


async def entries_of(supervisor: rp.Supervisor, run_id: str) -> tuple[Entry, ...]:
    """The record of a run."""
    return tuple(await supervisor.journal.read_entries(run_id))


async def test_the_record_has_all_but_the_thinking() -> None:
    """Results with their pictures, what a server's own tools did, and words beside results; in the loop's order."""
    async with rp.open_supervisor(model="offline") as supervisor:
        await import_run(supervisor, CHAT, agent=clerk, run_id="chat", at=86_400)
        entries = await entries_of(supervisor, "chat")
        assert [(entry.kind, entry.iteration, text_of(entry.content)) for entry in entries] == [
            ("task", 0, "[image]\n\nWhat is this?"),
            ("assistant", 1, "A mill."),
            ("user-input", 1, "Look up A1, and show page 2."),
            ("assistant", 2, ""),
            ("action-result", 2, "no such order"),
            ("action-result", 2, "page 2:"),
            ("user-input", 2, "Be quick."),
            ("assistant", 3, "A1 is unknown."),
        ]
        assert [type(block) for block in entries[3].content[:2]] == [RawBlock, RawBlock]
        shown = entries[5].content[0]
        assert isinstance(shown, ToolResult)
        assert isinstance(shown.content[1], Image)
        (row,) = await supervisor.runs()
        assert (row.state, row.iteration, row.started.task) == ("done", 3, "[image]\n\nWhat is this?")
        assert {row.started.at, row.updated_at, *(entry.created_at for entry in entries)} == {86_400.0}


class Order(Struct):
    """What the payload of an agent is here."""

    number: str = "A1"


async def test_it_has_the_payload_and_the_task_that_its_agent_declares() -> None:
    """As a run has that is spawned: what does not fit is refused."""
    seller = rp.Agent("seller", "About {payload.number}.", payload=Order)
    reader = rp.Agent("reader", input=Order)
    async with rp.open_supervisor(model=FunctionModel(lambda request: text_of(request.system))) as supervisor:
        await import_run(supervisor, CHAT, agent=seller, run_id="chat")
        run = await supervisor.resume("chat", agent=seller)
        assert (await run.ask("What about?"), run.payload) == ("About A1.", Order())
        await import_run(supervisor, CHAT, agent=seller, run_id="other", payload=Order("B2"))
        assert (await supervisor.resume("other", agent=seller)).payload == Order("B2")
        with pytest.raises(PayloadInvalid):
            await import_run(supervisor, CHAT, agent=clerk, run_id="third", payload=Order("B2"))
        with pytest.raises(ConfigurationError, match="a task of agent reader must be"):
            await import_run(supervisor, CHAT, agent=reader, run_id="third")


async def test_calls_without_a_result_get_one_that_says_so() -> None:
    """Whether the loop of then has made them nobody knows, so they are not made here."""
    model = FunctionModel(lambda request: text_of(request.messages[-1].content))
    async with rp.open_supervisor(model=model) as supervisor:
        await import_run(supervisor, CHAT[:4], agent=clerk, run_id="chat")
        run = await supervisor.resume("chat", agent=clerk)
        assert await run.wait_result() == "[no result was recorded]\n[no result was recorded]"


async def test_it_is_safe_to_repeat(tmp_path: Path) -> None:
    """At the same time, after the run went on, and in another process; what is another run's id is refused."""
    for _ in range(2):
        async with rp.open_supervisor(tmp_path / "runs.db", model="offline") as supervisor:
            once_more = partial(import_run, supervisor, CHAT, agent=clerk, run_id="chat")
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(once_more)
            run = await supervisor.resume("chat", agent=clerk)
            await run.ask("And now?", message_id="m1")
            await once_more()
            assert len(await entries_of(supervisor, "chat")) == 10
            for conversation, agent in ((CHAT[:2], clerk), (CHAT, replace(clerk, name="other"))):
                with pytest.raises(RunExists, match="run chat is there already"):
                    await import_run(supervisor, conversation, agent=agent, run_id="chat")
    async with rp.open_supervisor(tmp_path / "runs.db", model="offline") as supervisor:
        await supervisor.remove("chat")
        with pytest.raises(RunExists, match="has been removed"):
            await import_run(supervisor, CHAT, agent=clerk, run_id="chat")


async def test_secrets_are_kept_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of what is said here."""
    monkeypatch.setenv("SHOP_KEY", "the-key-of-the-shop")
    chat = [{"role": "user", "content": "Use the-key-of-the-shop."}, {"role": "assistant", "content": "So I do."}]
    async with rp.open_supervisor(tmp_path / "runs.db", model="offline", redact=["SHOP_KEY"]) as supervisor:
        for _ in range(2):
            await import_run(supervisor, chat, agent=clerk, run_id="chat")
    files = [file.read_bytes() for file in tmp_path.iterdir()]
    assert not any(b"the-key-of-the-shop" in content for content in files)
    assert any(b"[redacted: SHOP_KEY]" in content for content in files)


@pytest.mark.parametrize(
    ("conversation", "more", "error", "says"),
    [
        (CHAT[:1], {}, RecordingError, "no model has answered"),
        ("Hello.", {}, RecordingError, r"the conversation: expected a list of messages"),
        ([{"role": "user", "content": [{}]}], {}, RecordingError, r"a block with a type at \$\[0\]\.content\[0\]"),
        ([*CHAT[:3], calling({"order": object()})], {}, RecordingError, "the conversation is not JSON"),
        ([*CHAT[:3], calling({"order": math.nan})], {}, RecordingError, "the conversation is not JSON"),
        (CHAT, {"run_id": "a b"}, ConfigurationError, "run_id must"),
        (CHAT, {"at": "today"}, ConfigurationError, "at must"),
        (CHAT, {"client": "a b"}, ConfigurationError, "client must"),
        (CHAT, {"agent": None}, ConfigurationError, "expected an Agent"),
        (CHAT, {"agent_ref": 1}, ConfigurationError, "agent_ref"),
    ],
)
async def test_what_cannot_be_imported_is_refused(
    conversation: Any, more: dict[str, Any], error: type[Exception], says: str
) -> None:
    """With the place that is wrong; and nothing is on record."""
    arguments: dict[str, Any] = {"agent": clerk, "run_id": "chat", **more}
    async with rp.open_supervisor(model="offline") as supervisor:
        with pytest.raises(error, match=says):
            await import_run(supervisor, conversation, **arguments)
        assert await supervisor.runs() == []
