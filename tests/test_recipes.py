"""The recipes work: the web applications answer over ASGI, the unit is one that systemd takes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import MutableMapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import msgspec
import pytest

from pages import blocks_of
from patience import PATIENCE
from repertory.llm import ModelRequest, text_of
from repertory.testing import FunctionModel

PAGE = Path(__file__).parent.parent / "docs" / "recipes.md"


def source(title: str) -> str:
    """The file of that name that the page shows."""
    return next(block.source for block in blocks_of(PAGE.read_text(encoding="utf-8")) if block.title == title)


def load(title: str, folder: Path) -> ModuleType:
    """The page's module."""
    path = folder / title
    path.write_text(source(title), encoding="utf-8")
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def post(app: Any, path: str, value: object, state: dict[str, Any]) -> tuple[int, bytes]:
    """One request, as a server makes it."""
    sent: list[MutableMapping[str, Any]] = []
    body = json.dumps(value).encode()
    asked = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> MutableMapping[str, Any]:
        if asked:
            return asked.pop()
        await anyio.sleep_forever()
        return {}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http"}
    where = {"path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers}
    await app(scope | where | {"state": dict(state), "server": ("x", 80), "client": ("x", 1)}, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


@pytest.mark.parametrize("title", ["web_app.py", "fast_app.py"])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_web_application_answers(title: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that is asked twice under one id has one run and one answer; Starlette's can be read along."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REPERTORY_MODEL", "offline")
    module = load(title, tmp_path)
    question = {"id": "q-1", "question": "When is the canteen open?"}

    async def main() -> None:
        with anyio.fail_after(PATIENCE):
            async with module.lifespan(module.app) as state:
                answers = [await post(module.app, "/ask", question, state) for _ in range(2)]
                assert answers[0] == answers[1]
                assert answers[0][0] == 200
                assert json.loads(answers[0][1]) == {"id": "q-1", "answer": "The canteen is open from 11:30 to 14:00."}
                assert len(await state["supervisor"].runs()) == 1
                if title == "web_app.py":
                    for _ in range(2):
                        status, words = await post(module.app, "/stream", question | {"id": "q-2"}, state)
                        assert (status, words) == (200, b"The canteen is open from 11:30 to 14:00.")

    anyio.run(main, backend=backend)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_chat_in_the_browser_is_asked_everything_once(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that are sent again, the first one and after a restart too, are answered and not asked again."""
    monkeypatch.chdir(tmp_path)
    module = load("chat_app.py", tmp_path)
    first, second = {"id": "m-1", "text": "one"}, {"id": "m-2", "text": "two"}

    async def serve(*said: dict[str, str]) -> list[str]:
        async with module.lifespan(module.app) as state:
            answers = [await post(module.app, "/chats/ann", each, state) for each in said]
            assert len(await state["supervisor"].runs()) == 1
        assert {status for status, _ in answers} == {200}
        return [words.decode() for _, words in answers]

    async def main() -> None:
        def last(kind: str, answer: str) -> str:
            return f"event: {kind}\ndata: {json.dumps(answer)}\n\n"

        with anyio.fail_after(PATIENCE):
            one, again, two = await serve(first, first, second)
            assert (one, again) == (last("text", "1: one") + last("answer", "1: one"), last("answer", "1: one"))
            assert two == last("text", "3: two") + last("answer", "3: two")
            three, again = await serve({"id": "m-3", "text": "three"}, second)
            assert three == last("text", "5: three") + last("answer", "5: three")
            assert again == last("answer", "3: two")

    model = FunctionModel(lambda request: f"{len(request.messages)}: {text_of(request.messages[-1].content)}")
    module.clerk = msgspec.structs.replace(module.clerk, model=model)
    anyio.run(main, backend=backend)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_answer_in_the_browser_that_is_broken_off_stays_so(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for it is told; the model is not asked for it once more, which nobody would see, but somebody pay."""
    monkeypatch.chdir(tmp_path)
    module = load("chat_app.py", tmp_path)
    asked: list[str] = []

    async def answer(request: ModelRequest) -> str:
        asked.append(text_of(request.messages[-1].content))
        if asked[-1] == "two" and asked.count("two") == 1:
            begun.set()
            await anyio.sleep_forever()
        return f"to {asked[-1]}"

    async def main() -> None:
        async with module.lifespan(module.app) as state:

            async def say(message_id: str, text: str) -> str:
                _, words = await post(module.app, "/chats/ann", {"id": message_id, "text": text}, state)
                return words.decode()

            async def say_two() -> None:
                assert await say("m-2", "two") == "event: stopped\ndata: null\n\n"

            with anyio.fail_after(PATIENCE):
                assert "to one" in await say("m-1", "one")
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(say_two)
                    await begun.wait()
                    state["supervisor"].run("ann").kill()
                assert asked == ["one", "two"]
                assert "event: answer" in await say("m-3", "three")

    begun = anyio.Event()
    module.clerk = msgspec.structs.replace(module.clerk, model=FunctionModel(answer))
    anyio.run(main, backend=backend)


def instruction(name: str) -> list[str]:
    """The command that an instruction of the Dockerfile has, with everything in the folder that it is run in."""
    lines = source("Dockerfile").replace("\\\n", " ").splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name} "))
    words: list[str] = json.loads(line[line.index("[") :])
    return [word.replace("/data/", "").replace("/run/repertory/", "") for word in words]


def test_the_container_serves_and_says_whether_it_is_healthy() -> None:
    """What it starts takes its options and ends at SIGTERM; its check succeeds as long as it serves, and no longer."""
    environment = {**os.environ, "ANTHROPIC_API_KEY": "sk-of-a-container"}
    healthy = [sys.executable, *instruction("HEALTHCHECK")[1:]]
    with tempfile.TemporaryDirectory(prefix="rp") as folder:  # a short name: those of sockets are
        (Path(folder) / "my_agents.py").write_text('import repertory as rp\n\nclerk = rp.Agent("clerk")\n')
        command = [sys.executable, "-m", *instruction("CMD")]
        with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True) as service:
            assert service.stderr is not None
            try:
                assert "serving" in service.stderr.readline()
                subprocess.run(healthy, cwd=folder, timeout=PATIENCE, check=True)
            finally:
                service.terminate()
            assert service.wait(PATIENCE) == 0
        ended = subprocess.run(healthy, cwd=folder, timeout=PATIENCE, check=False, stderr=subprocess.DEVNULL)
        assert ended.returncode != 0


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """Every line of it, once the command it starts is one that is there."""
    if (verifier := shutil.which("systemd-analyze")) is None:
        pytest.skip("there is no systemd here")
    unit = tmp_path / "repertory.service"
    unit.write_text(source("repertory.service").replace("/srv/repertory/.venv/bin/repertory", "/bin/true"))
    checked = subprocess.run(
        [verifier, "verify", str(unit)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert [line for line in checked.stderr.splitlines() if "repertory" in line] == []
