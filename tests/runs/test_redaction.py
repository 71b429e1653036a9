"""Secrets that a supervisor was told of: they reach no file, no log and no model."""

from __future__ import annotations

import base64
import json
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import anyio
import msgspec
import pytest

import repertory as rp
from repertory.errors import ConfigurationError, PayloadInvalid, RecordRefused, RunFailed
from repertory.llm.messages import Block, Text, ToolResult
from repertory.llm.model import ModelRequest
from repertory.record import Redactor, open_journal
from repertory.runs.log import redacted_log
from repertory.testing import FunctionModel, ScriptedModel, call

SECRET = 'canary/7d1f+"9b&c ü'
NAME = "REPERTORY_TEST_SECRET"
FORMS = [
    SECRET,
    quote(SECRET, safe=""),
    json.dumps(SECRET)[1:-1],
    SECRET.encode().hex(),
    base64.b64encode(b"user:" + SECRET.encode() + b"\n").decode(),
    base64.urlsafe_b64encode(SECRET.encode()).decode(),
]
# What none of the forms above can do without.
TRACES = [b"canary/7", b"canary%2F7", SECRET.encode().hex()[:20].encode(), b"Y2FuYXJ5", b"NhbmFyeS83", b"jYW5hcnkvN2"]


@rp.tool(effect="pure", repeatable=False)
async def leak(how: str) -> str:
    """Print the environment in some form."""
    if how == "raise":
        raise RuntimeError(f"401 for {SECRET}")
    return "PATH=/bin\n" + "\n".join(FORMS) + f"\n{how}"


def traces_in(data: bytes) -> list[bytes]:
    """Which traces of the secret there are."""
    return [trace for trace in TRACES if trace in data]


async def model_of_leaks(request: ModelRequest) -> Any:
    """A model that says, sends and stores the secret, as if it had found it elsewhere."""
    step = len(request.messages) // 2
    if step == 0:
        return call("leak", how="print")
    if step == 1:
        return call("leak", how="raise")
    if step == 2:
        return call("leak", how=SECRET)
    if step == 3:
        return call("memory_store", content=f"the password is {SECRET}", type="finding")
    return f"It is {SECRET}."


def test_a_known_secret_is_nowhere(
    tmp_path: Path, run_async: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not in the database, its log, the program's log, nor in what a model is shown, however it is written."""
    monkeypatch.setenv(NAME, SECRET)
    caplog.set_level(logging.DEBUG)

    async def run(folder: Path, redact: list[str]) -> tuple[bytes, bytes, str]:
        model = FunctionModel(model_of_leaks)
        agent = rp.Agent("clerk", instructions=f"Use {SECRET}.", tools=[leak, *rp.memory_tools()], model=model)
        seen = []
        async with rp.open_supervisor(folder / "a.db", redact=redact) as supervisor:
            going = await supervisor.spawn(agent, f"What is {SECRET}?")
            await going.send(f"I mean {SECRET}.")
            async for event in going.events():
                seen.append(repr(event))
            result = await going.wait_result()
            shown = msgspec.json.encode([request.messages for request in model.requests])
            system = msgspec.json.encode([request.system for request in model.requests])
            entries = await supervisor.journal.read_entries(going.id)
            assert [part.position for part in going.view()] == [entry.position for entry in entries]
            assert list(going._live.ledger.snapshot()) == entries
            for number in range(1, len(model.requests) + 1):
                await supervisor.journal.read_request(going.id, number)
            files = b"".join(path.read_bytes() for path in folder.iterdir())
        files += b"".join(path.read_bytes() for path in folder.iterdir())
        return files, shown + system + "".join(seen).encode(), result

    async def main() -> None:
        for name, redact in (("kept", []), ("redacted", [NAME, "NOT_SET_ANYWHERE"])):
            (tmp_path / name).mkdir()
            caplog.clear()
            files, shown, result = await run(tmp_path / name, redact)
            if redact:
                assert traces_in(files) == []
                assert traces_in(shown) == []
                assert traces_in(caplog.text.encode()) == []
                assert result == f"It is [redacted: {NAME}]."
                assert f"[redacted: {NAME}]".encode() in files
            else:  # the checker must see it
                assert len(traces_in(files)) >= 4
                assert len(traces_in(shown)) >= 4
                assert traces_in(caplog.text.encode())

    run_async(main)


async def test_a_run_that_fails_with_a_secret_records_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why it failed is in the record, without it."""
    monkeypatch.setenv(NAME, SECRET)

    @rp.tool(effect="pure")
    async def abort() -> str:
        """End the run."""
        raise rp.ToolAbort(f"no access with {SECRET}")

    agent = rp.Agent("clerk", tools=[abort], model=FunctionModel(lambda _: call("abort")))
    async with rp.open_supervisor(tmp_path / "a.db", redact=[NAME]) as supervisor:
        going = await supervisor.spawn(agent, "Try.")
        with pytest.raises(RunFailed):
            await going.wait_result()
        row = await supervisor.journal.read_run(going.id)
        assert f"no access with [redacted: {NAME}]" in str(row.error)
    assert traces_in(b"".join(path.read_bytes() for path in tmp_path.iterdir())) == []


def test_a_document_with_a_secret_in_it_becomes_a_line(tmp_path: Path, run_async: Any, monkeypatch: Any) -> None:
    """With the task, with a message and as a result: nobody could read what was left of its base 64."""
    monkeypatch.setenv(NAME, SECRET)
    page = b"%PDF-1.4 /Type/Page "
    plain, secret = (rp.media_block(page + said.encode(), title=SECRET) for said in ("nothing", SECRET))

    @rp.tool(effect="pure")
    def find() -> list[object]:
        """Find documents."""
        return ["two:", plain, secret]

    model = ScriptedModel([call("find"), "Done.", "Done."])
    agent = rp.Agent("clerk", tools=[find], model=model)

    async def main() -> None:
        async with rp.open_supervisor(tmp_path / "a.db", redact=[NAME]) as supervisor:
            going = await supervisor.spawn(agent, "Look.", attachments=[plain, secret])
            await going.wait_result()
            for _ in range(2):
                await going.ask("And here?", attachments=[secret], message_id="m-1")

    run_async(main)
    left = Text(f"[left out: document with [redacted: {NAME}] in it]")
    shown = rp.media_block(page + b"nothing", title=f"[redacted: {NAME}]")
    task, result, message = (each.content for each in model.requests[-1].messages if each.role == "user")
    assert task == (shown, left, Text("Look."))
    assert isinstance(result[0], ToolResult)
    assert result[0].content == (Text("two:"), shown, left)
    assert message == (left, Text("And here?"))
    assert traces_in(b"".join(path.read_bytes() for path in tmp_path.iterdir())) == []


@dataclass
class Door:
    """A part of a payload that msgspec does not make."""

    key: Annotated[str, msgspec.Meta(max_length=len(SECRET))] = ""


class Login(msgspec.Struct):
    """A payload with room for a secret, but not for what stands for it."""

    token: Annotated[str, msgspec.Meta(max_length=len(SECRET))] = ""
    door: Door = msgspec.field(default_factory=Door)


async def test_a_payload_fits_its_type_as_it_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands for a secret may be longer than the type allows; the run could not have been resumed."""
    monkeypatch.setenv(NAME, SECRET)

    @rp.tool(effect="transactional")
    async def log_in(context: rp.ToolContext) -> str:
        """Log in."""
        context.payload.set("token", SECRET)
        return "logged in"

    tried = anyio.Event()

    async def begin(_: ModelRequest) -> Block:
        await tried.wait()
        return call("log_in")

    agent = rp.Agent("clerk", tools=[log_in], payload=Login)
    async with rp.open_supervisor(
        tmp_path / "a.db", model=ScriptedModel([begin, "Done."]), redact=[NAME]
    ) as supervisor:
        run = await supervisor.spawn(agent, "Log in.", run_id="r")
        for path, value in (("token", SECRET), ("door", Door(SECRET)), ("", Login(door=Door(SECRET)))):
            with pytest.raises(PayloadInvalid, match=r"does not fit its type.*`\$\.(token|door\.key)`"):
                await run.change_payload({path: value})
        tried.set()
        assert await run.wait_result() == "Done."
        assert run.payload == Login()
        (_, record) = await supervisor.journal.read_payload("r")
        assert [conflict.change.value for conflict in record.conflicts] == [f"[redacted: {NAME}]"]
        with pytest.raises(PayloadInvalid, match=r"does not fit Login.*`\$\.token`"):
            await supervisor.spawn(agent, "Go on.", payload=Login(token=SECRET))
    async with rp.open_supervisor(tmp_path / "a.db", model="offline", redact=[NAME]) as supervisor:
        assert (await supervisor.resume("r", agent=agent)).payload == Login()


@pytest.mark.parametrize("before", [b"", b"a", b"ab", b"user:", b"\xff\xfe\xfd\xfc"])
def test_base_64_is_found_wherever_it_begins(before: bytes) -> None:
    """Three bytes become four letters, so what stands before decides how a secret looks."""
    redact = Redactor(["S"], {"S": "correct horse battery staple"})
    letters = base64.b64encode(before + b"correct horse battery staple" + b"!after").decode()
    assert "[redacted: S]" in redact(letters)
    assert redact(letters).count("[redacted: S]") == 1


def test_what_holds_no_secret_is_the_very_same() -> None:
    """Nothing is copied where nothing is found; of two secrets that overlap the longer one counts."""
    redact = Redactor(["A", "B", "NOT_SET"], {"A": "password", "B": "password-of-bob"})
    value = {"a": ["x", ("y", b"z")], "n": 1}
    assert redact(value) is value
    assert redact(["my password-of-bob", b"a password"]) == ["my [redacted: B]", b"a [redacted: A]"]
    assert redact({"password": ("password",)}) == {"[redacted: A]": ("[redacted: A]",)}
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQ\nEFAASCBKcwggSjAgEAAoIBAQC7\n-----END KEY-----"
    assert "MIIEv" not in Redactor(["K"], {"K": key})("     2\tMIIEvQIBADANBgkqhkiG9w0BAQ")


async def test_what_cannot_be_redacted_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value too short to be told from other text, and an open journal that was told nothing."""
    monkeypatch.setenv(NAME, "abc")
    with pytest.raises(ConfigurationError, match=f"the value of {NAME} has 3 characters"):
        async with rp.open_supervisor(tmp_path / "a.db", redact=[NAME]):
            pass
    monkeypatch.setenv(NAME, SECRET)
    async with open_journal(redact=[NAME]) as journal:
        assert journal.redact(SECRET) == f"[redacted: {NAME}]"
        with pytest.raises(ConfigurationError, match="must be given to open_journal"):
            async with rp.open_supervisor(journal=journal, redact=[NAME]):
                pass
    assert os.environ[NAME] == SECRET


async def test_what_holds_a_secret_is_safe_to_repeat_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record knows a task and a message without the secret, and they are the same ones all the same."""
    monkeypatch.setenv(NAME, SECRET)
    asked, go = anyio.Event(), anyio.Event()

    async def answer(request: ModelRequest) -> str:
        asked.set()
        await go.wait()
        return "Done."

    agent = rp.Agent("clerk", model=FunctionModel(answer))
    async with rp.open_supervisor(tmp_path / "a.db", redact=[NAME], drain_timeout=0) as supervisor:
        run = await supervisor.spawn(agent, f"Try {SECRET}.", run_id="run-1")
        await asked.wait()
        await run.send(f"Try {SECRET} again.", message_id="m1")
    go.set()
    async with rp.open_supervisor(tmp_path / "a.db", redact=[NAME]) as supervisor:
        run = await supervisor.spawn(agent, f"Try {SECRET}.", run_id="run-1")
        await run.send(f"Try {SECRET} again.", message_id="m1")
        assert await run.wait_result() == "Done."
        entries = await supervisor.journal.read_entries("run-1")
    assert [entry.kind for entry in entries].count("user-input") == 1


async def test_what_is_nested_deep_is_looked_through_or_refused_and_its_tool_run_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All that can be kept; else a result becomes an error of its call, and a run of which it is an option ends."""
    monkeypatch.setenv(NAME, SECRET)
    ran: list[str] = []

    def nested(levels: int) -> dict[str, Any]:
        value: dict[str, Any] = {"a": SECRET}
        for level in range(levels - 1):
            value = {"a": value if level % 2 else [value]}
        return value

    assert SECRET not in str(Redactor([NAME])(nested(330)))  # 495 levels with the lists
    deep = nested(400)

    @rp.tool(effect="pure")
    async def look() -> rp.ToolOutput:
        """Look."""
        ran.append("look")
        return rp.ToolOutput("fine", facts=deep)

    agent = rp.Agent("clerk", tools=[look], model=ScriptedModel([call("look"), "Done."]))
    async with rp.open_supervisor(redact=[NAME]) as supervisor:
        with pytest.raises(RecordRefused, match="more than 500 levels"):
            await supervisor.spawn(agent, "Try.", options=deep)
        run = await supervisor.spawn(agent, "Try.")
        assert await run.wait_result() == "Done."
    assert ran == ["look"]


def test_no_logger_is_left_out(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Each that a part of the package has; a filter has to be put on every one of them."""
    monkeypatch.setenv(NAME, SECRET)
    source = "".join(path.read_text(encoding="utf-8") for path in Path(rp.__file__).parent.rglob("*.py"))
    names = set(re.findall(r'(?:Log|getLogger)\("(repertory[^"]*)"\)', source))
    with redacted_log(Redactor([NAME])):
        for name in names:
            logging.getLogger(name).warning("it is %s", SECRET)
    assert {record.name: record.getMessage() for record in caplog.records} == dict.fromkeys(
        names, f"it is [redacted: {NAME}]"
    )


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A name that was mistyped must not look like a secret that is kept."""
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    Redactor(["NO_SUCH_KEY"])
    assert "redact: NO_SUCH_KEY is not set" in caplog.text
