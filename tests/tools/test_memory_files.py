"""The memory tool of the Messages API over items: the provider's own implementation says what it answers."""

from __future__ import annotations

import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anthropic.lib.tools import ToolError
from anthropic.tools.memory import BetaLocalFilesystemMemoryTool
from hypothesis import example, given
from hypothesis import strategies as st

import repertory as rp
from repertory.actors import open_system
from repertory.errors import ConfigurationError, ItemChanged
from repertory.llm import ModelRequest
from repertory.llm.model import encode_request
from repertory.memory import Memory, MemoryActor, MemoryQuota
from repertory.record import MemoryJournal
from repertory.testing import ScriptedModel, open_messages_server
from repertory.testing import call as turn
from repertory.tools import ToolContext, ToolOutput, call_tool, memory_files_tool, memory_tools

TOOL = memory_files_tool()


@asynccontextmanager
async def open_memory(quotas: MemoryQuota | None = None) -> AsyncIterator[Memory]:
    """A scope of memory behind a real actor."""
    journal = MemoryJournal()
    async with open_system() as system:
        ref = system.spawn(lambda: MemoryActor(journal, quota=quotas), "memory")
        yield await Memory.open(ref, "r")
    await journal.aclose()


async def ask(memory: Memory, *, key: str = "", **command: Any) -> ToolOutput:
    """What the tool answers."""
    context = ToolContext(run_id="r", agent="scout", iteration=1, idempotency_key=key, memory=memory)
    return await call_tool(TOOL, command, context=context)


# --- the provider's implementation beside ours ------------------------------------------------------------


class Oracle:
    """The provider's own memory tool, over a real folder."""

    def __init__(self, folder: Path) -> None:
        self._tool = BetaLocalFilesystemMemoryTool(str(folder))

    def answer(self, command: dict[str, Any]) -> tuple[str, bool] | None:
        """What it says, and whether that is an error; None where it crashes, and so says nothing."""
        try:
            return str(self._tool.call(command)), False
        except ToolError as error:
            return str(error), True
        except (OSError, ValueError):
            return None
        finally:
            self._drop_empty_folders()

    def _drop_empty_folders(self) -> None:
        """Ours has no directories without a file in them."""
        for folder in sorted((path for path in self._tool.memory_root.rglob("*") if path.is_dir()), reverse=True):
            if not any(folder.iterdir()):
                folder.rmdir()


def without_directory_sizes(answer: tuple[str, bool]) -> tuple[str, bool]:
    """A listing without the sizes of directories: a file system says those of its own tables."""
    text, is_error = answer
    if not text.startswith("Here're"):
        return answer
    header, first, *lines = text.split("\n")
    lines = [re.sub(r"^\S+(\t.*/)$", r"\1", line) for line in lines]
    return "\n".join([header, first.partition("\t")[2], *lines]), is_error


names = st.sampled_from(["a", "b", "a.txt", "B", ".hidden", "a b", "node_modules"])
paths = st.lists(names, max_size=3).map(lambda parts: "/".join(["/memories", *parts])) | st.sampled_from(
    ["/memories/", "/memories//a", "/memories/./a", "/memories/a/", "/memories/../a", "/etc/passwd", "memories/a", ""]
)
texts = st.text(alphabet="ab \né\r", max_size=12)
lines = st.integers(-2, 6)
commands = st.one_of(
    st.fixed_dictionaries(
        {"command": st.just("view"), "path": paths},
        optional={"view_range": st.lists(lines, min_size=1, max_size=3)},
    ),
    st.fixed_dictionaries({"command": st.just("create"), "path": paths, "file_text": texts}),
    st.fixed_dictionaries({"command": st.just("create"), "path": paths, "file_text": texts}),
    st.fixed_dictionaries(
        {"command": st.just("str_replace"), "path": paths, "old_str": texts | st.just("a"), "new_str": texts}
    ),
    st.fixed_dictionaries({"command": st.just("insert"), "path": paths, "insert_line": lines, "insert_text": texts}),
    st.fixed_dictionaries({"command": st.just("delete"), "path": paths}),
    st.fixed_dictionaries({"command": st.just("rename"), "old_path": paths, "new_path": paths}),
)
whole_view = {"command": "view", "path": "/memories"}


@given(st.lists(commands, max_size=25))
@example(
    [
        {"command": "create", "path": "/memories/a/b/c", "file_text": "1\n2"},
        {"command": "rename", "old_path": "/memories/a", "new_path": "/memories/z/y"},
        {"command": "view", "path": "/memories/z"},
        {"command": "delete", "path": "/memories/z"},
        {"command": "view", "path": "/memories/z"},
    ]
)
@example(
    [
        {"command": "create", "path": "/memories/a/.b/c", "file_text": "1\n2\n3\n4\n5\n6\n7\n"},
        {"command": "str_replace", "path": "/memories/a/.b/c", "old_str": "4\n5", "new_str": "x"},
        {"command": "str_replace", "path": "/memories/a/.b/c", "old_str": "\n", "new_str": "x"},
        *(
            {"command": "insert", "path": "/memories/a/.b/c", "insert_line": line, "insert_text": "x\ny"}
            for line in (0, 3, 8, 99)
        ),
        {"command": "view", "path": "/memories/a/.b/c", "view_range": [2, -1]},
    ]
)
def test_every_answer_is_the_providers_own(sequence: list[dict[str, Any]]) -> None:
    """Word for word, errors too, in any order of commands. Where the provider's crashes, ours refuses and goes on."""

    async def play() -> None:
        with tempfile.TemporaryDirectory() as folder:
            oracle = Oracle(Path(folder))
            async with open_memory() as memory:
                for command in [*sequence, whole_view]:
                    expected = oracle.answer(command)
                    output = await ask(memory, **command)
                    if expected is None:
                        assert output.is_error, command
                        continue
                    said = output.text, output.is_error
                    assert without_directory_sizes(said) == without_directory_sizes(expected), command

    anyio.run(play)


async def test_where_the_providers_code_and_its_page_differ_its_code_is_followed() -> None:
    """Its page writes "Error: " before some errors, another insert error, and hides node_modules; its code does not."""
    async with open_memory() as memory:
        await ask(memory, command="create", path="/memories/node_modules/a", file_text="x")
        again = await ask(memory, command="create", path="/memories/node_modules/a", file_text="x")
        assert again.text == "File /memories/node_modules/a already exists"
        line = await ask(memory, command="insert", path="/memories/node_modules/a", insert_line=7, insert_text="x")
        assert line.text == "Invalid `insert_line` parameter: 7. It should be within the range [0, 1]."
        listing = await ask(memory, **whole_view)
        assert listing.text == (
            "Here're the files and directories up to 2 levels deep in /memories, excluding hidden items:\n"
            "1B\t/memories\n1B\t/memories/node_modules/\n1B\t/memories/node_modules/a"
        )


# --- paths ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/memories/../secret",
        "/memories/a/../../b",
        "/memories/a/../b",
        "/memories/..",
        "/memories/%2e%2e/secret",
        "/memories/%252e%252e%252fsecret",
        "/memories/..%2fsecret",
        "/memories/..\\secret",
        "/memories/\N{FULLWIDTH FULL STOP}\N{FULLWIDTH FULL STOP}/secret",
        "/memories/\N{TWO DOT LEADER}/secret",
        "/memories/..\N{FULLWIDTH SOLIDUS}secret",
        "/memories/..\N{DIVISION SLASH}secret",
    ],
)
@pytest.mark.parametrize("command", ["view", "create", "delete"])
async def test_a_path_that_leads_up_is_refused(path: str, command: str) -> None:
    """However it is spelled; nothing is written or ended."""
    async with open_memory() as memory:
        await memory.store("kept", item_id="secret")
        text = {"file_text": "x"} if command == "create" else {}
        output = await ask(memory, command=command, path=path, **text)
        assert (output.text, output.is_error) == (f"Path {path} would escape /memories directory", True)
        assert [item.item_id for item in await memory.query()] == ["secret"]


@pytest.mark.parametrize("path", ["", "/", "a", "secret", "/etc/passwd", "/memoriesx", "//memories/a", "C:\\a"])
async def test_a_path_outside_is_refused(path: str) -> None:
    """What does not begin with /memories is no file, also where an item has this very id."""
    async with open_memory() as memory:
        await memory.store("kept", item_id="secret")
        output = await ask(memory, command="view", path=path)
        assert (output.text, output.is_error) == (f"Path must start with /memories, got: {path}", True)


@pytest.mark.parametrize("name", ["a\0b", "a\nb", "a\N{ZERO WIDTH SPACE}b", "a\N{RIGHT-TO-LEFT OVERRIDE}b", "a\ud800"])
async def test_a_name_with_characters_that_cannot_be_seen_is_refused(name: str) -> None:
    """They forge lines of a listing, or make two names look like one."""
    async with open_memory() as memory:
        output = await ask(memory, command="create", path=f"/memories/{name}", file_text="x")
        assert output.is_error
        assert "cannot be seen" in output.text
        long = await ask(memory, command="create", path=f"/memories/{'x' * 1_000}", file_text="x")
        assert long.text == "A path has at most 1,000 characters, got 1,010"
        assert await memory.query() == []


async def test_two_spellings_of_a_name_are_one_file() -> None:
    """Composed or not, with a slash more or less: what looks the same is the same."""
    async with open_memory() as memory:
        await ask(memory, command="create", path="/memories/caf\N{LATIN SMALL LETTER E WITH ACUTE}", file_text="x")
        again = await ask(memory, command="view", path="/memories//cafe\N{COMBINING ACUTE ACCENT}/")
        assert not again.is_error


# --- one store, two views ---------------------------------------------------------------------------------


async def test_files_and_items_are_the_same_things() -> None:
    """What is written as a file is found by a query and read by its path; an item under a path is a file."""
    tools = {tool.name: tool for tool in memory_tools()}
    async with open_memory() as memory:
        context = ToolContext(run_id="r", agent="scout", memory=memory)
        await ask(memory, command="create", path="/memories/herons.md", file_text="Herons stand still.")
        listed = await call_tool(tools["memory_query"], {"text": "herons", "type": "file"}, context=context)
        assert "/memories/herons.md · file" in listed.text
        read = await call_tool(tools["memory_retrieve"], {"id": "/memories/herons.md"}, context=context)
        assert read.text.endswith("Herons stand still.")

        await memory.store("The plan is green.", item_id="/memories/plan.md", type="plan", tags=["plan"])
        await memory.store("Not a file.", item_id="item-1")
        edited = await ask(memory, command="str_replace", path="/memories/plan.md", old_str="green", new_str="red")
        assert edited.text.endswith("     1\tThe plan is red.")
        item = await memory.retrieve("/memories/plan.md")
        assert (item.content, item.type, item.tags) == ("The plan is red.", "plan", ("plan",))
        listing = await ask(memory, **whole_view)
        assert [line.partition("\t")[2] for line in listing.text.splitlines()[1:]] == [
            "/memories",
            "/memories/herons.md",
            "/memories/plan.md",
        ]


async def test_a_snapshot_edits_files_for_itself() -> None:
    """Scopes hold for files as for all items: the parent keeps its own until a merge."""
    async with open_memory() as memory:
        await ask(memory, command="create", path="/memories/plan/a.md", file_text="green")
        child = await memory.fork("child", mode="snapshot")
        await ask(child, command="rename", old_path="/memories/plan", new_path="/memories/old")
        await ask(child, command="str_replace", path="/memories/old/a.md", old_str="green", new_str="red")
        assert {item.item_id for item in await child.query()} == {"/memories/old/a.md"}
        assert (await memory.retrieve("/memories/plan/a.md")).content == "green"


async def test_edits_side_by_side_are_all_kept() -> None:
    """Agents that share a scope edit one file at once: what each was told of stands in it, and a file is made once."""
    async with open_memory() as memory:
        await ask(memory, command="create", path="/memories/log.md", file_text="begin\n")
        answers: list[ToolOutput] = []

        async def edit(number: int) -> None:
            added = {"command": "insert", "path": "/memories/log.md", "insert_line": 1, "insert_text": f"line {number}"}
            answers.append(await ask(memory, key=f"edit {number}", **added))
            made = await ask(memory, key=f"new {number}", command="create", path="/memories/new.md", file_text="x")
            answers.append(made)

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(edit, number)
        text = str((await memory.retrieve("/memories/log.md")).content)
        assert sorted(text.splitlines()) == sorted(["begin", *(f"line {number}" for number in range(20))])
        assert sum(answer.is_error for answer in answers) == 19


async def test_of_agents_that_move_or_delete_the_same_files_at_once_one_gets_each() -> None:
    """No file is in two places afterwards, and nobody is told of an error but who found nothing any more."""
    async with open_memory() as memory:
        for number in range(6):
            await ask(memory, command="create", path=f"/memories/plans/{number}", file_text="x")
        answers: list[ToolOutput] = []

        async def do(key: str, **command: Any) -> None:
            answers.append(await ask(memory, key=key, **command))

        async with anyio.create_task_group() as group:
            for name in ("b", "c", "d"):
                command = {"command": "rename", "old_path": "/memories/plans", "new_path": f"/memories/{name}"}
                group.start_soon(lambda name=name, command=command: do(name, **command))
        files = [item.item_id for item in await memory.query()]
        assert sorted(file[-1] for file in files) == ["0", "1", "2", "3", "4", "5"]
        assert {answer.text for answer in answers if answer.is_error} <= {"The path /memories/plans does not exist"}
        del answers[:]
        async with anyio.create_task_group() as group:
            for file in files:
                for key in ("e", "f"):
                    directory = file.rpartition("/")[0]
                    group.start_soon(lambda key=key, path=directory: do(key, command="delete", path=path))
        assert await memory.query() == []
        told = {answer.text.partition(" ")[0] for answer in answers}
        assert told <= {"Successfully", "The"}, answers


async def test_a_read_only_view_of_memory_is_told() -> None:
    """The files can be read, and nothing else."""
    async with open_memory() as memory:
        await ask(memory, command="create", path="/memories/a", file_text="x")
        view = await memory.fork("checker", mode="snapshot-read-only")
        assert not (await ask(view, command="view", path="/memories/a")).is_error
        for command in ({"command": "create", "file_text": "x", "path": "/memories/b"}, {"command": "delete"}):
            output = await ask(view, **{"path": "/memories/a", **command})
            assert output.is_error
            assert "read" in output.text
        assert [item.item_id for item in await memory.query()] == ["/memories/a"]


async def test_a_quota_is_told_and_nothing_is_written() -> None:
    """The store's own limits hold for files; the model hears which, and the file is as it was."""
    async with open_memory(MemoryQuota(item_bytes=10, items=2)) as memory:
        await ask(memory, command="create", path="/memories/a", file_text="small")
        large = await ask(memory, command="insert", path="/memories/a", insert_line=1, insert_text="x" * 10)
        assert large.is_error
        assert "may hold 10" in large.text
        await ask(memory, command="create", path="/memories/b", file_text="small")
        more = await ask(memory, command="create", path="/memories/c", file_text="small")
        assert more.is_error
        assert (await memory.retrieve("/memories/a")).content == "small"


async def test_a_file_with_too_many_occurrences_or_lines_is_answered_in_bounds() -> None:
    """Neither a listing of a million places nor a number wider than its column."""
    async with open_memory(MemoryQuota(item_bytes=None, scope_bytes=None)) as memory:
        await ask(memory, command="create", path="/memories/a", file_text="a\n" * 1_000_000)
        some = await ask(memory, command="str_replace", path="/memories/a", old_str="a", new_str="b")
        assert some.text.endswith(" 99, 100, …. Please ensure it is unique")
        view = await ask(memory, command="view", path="/memories/a")
        assert view.text == "File /memories/a exceeds maximum line limit of 999,999 lines."


# --- calls ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        {"command": "create", "path": "/memories/new", "file_text": "x"},
        {"command": "str_replace", "path": "/memories/d/a", "old_str": "one", "new_str": "two"},
        {"command": "insert", "path": "/memories/d/a", "insert_line": 0, "insert_text": "zero"},
        {"command": "rename", "old_path": "/memories/d", "new_path": "/memories/e/f"},
    ],
    ids=lambda command: str(command["command"]),
)
async def test_a_command_that_is_made_again_answers_the_same(command: dict[str, Any]) -> None:
    """After a crash between write and outcome the same call runs again: it knows its own work and does nothing more."""
    async with open_memory() as memory:
        await ask(memory, command="create", path="/memories/d/a", file_text="one\nline", key="k0")
        await ask(memory, command="create", path="/memories/d/b", file_text="two", key="k1")
        first = await ask(memory, key="k", **command)
        assert not first.is_error
        files = {item.item_id: (await memory.retrieve(item.item_id)).content for item in await memory.query()}
        again = await ask(memory, key="k", **command)
        assert (again.text, again.is_error) == (first.text, False)
        assert files == {item.item_id: (await memory.retrieve(item.item_id)).content for item in await memory.query()}


async def test_an_edit_during_a_rename_is_not_lost() -> None:
    """Wherever between the copy and the end of the old file it falls: each edit that was made is in a file."""
    async with open_memory() as memory:
        names = [str(number) for number in range(20)]
        for name in names:
            await ask(memory, key=f"create {name}", command="create", path=f"/memories/d/{name}", file_text="begin\n")
        made: dict[str, list[str]] = {name: [] for name in names}

        async def edit(name: str) -> None:
            for turn in range(5):
                said, path = f"edit {turn}", f"/memories/d/{name}"
                done = await ask(
                    memory, key=f"{name} {turn}", command="insert", path=path, insert_line=1, insert_text=said
                )
                if done.is_error:
                    return  # it is somewhere else by now
                made[name].append(said)

        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(edit, name)
            renamed = await ask(memory, key="rename", command="rename", old_path="/memories/d", new_path="/memories/e")
        assert not renamed.is_error
        for name in names:
            text = (await memory.retrieve(f"/memories/e/{name}")).content
            assert sorted(text.splitlines()[1:]) == made[name]
        assert any(made.values())


async def test_a_directory_is_moved_and_deleted_in_one_transaction(tmp_path: Path) -> None:
    """However many files it has, all of them or none: no crash leaves some here and some there."""
    async with rp.open_journal(tmp_path / "j.db") as journal, open_system() as system:
        memory = await Memory.open(system.spawn(lambda: MemoryActor(journal), "memory"), "r")
        for name in range(20):
            await memory.store(str(name), item_id=f"/memories/d/{name}", tags=["t"], metadata={"k": name})
        batches: list[int] = []
        journal.observe(lambda records: batches.append(len(records)))
        await ask(memory, key="k", command="rename", old_path="/memories/d", new_path="/memories/e")
        moved = await memory.retrieve("/memories/e/7")
        assert (moved.content, moved.tags, moved.metadata["k"]) == ("7", ("t",), 7)
        await ask(memory, command="delete", path="/memories/e")
        assert await memory.query() == []
        assert batches == [40, 20]


async def test_items_are_moved_only_where_none_is() -> None:
    """Nor two to one place; nothing is moved then, and an item that is not there is passed over."""
    async with open_memory() as memory:
        for item_id in "abc":
            await memory.store(item_id, item_id=item_id)
        with pytest.raises(ItemChanged):
            await memory.move({"a": "b", "c": "d"})
        with pytest.raises(ConfigurationError, match="an id of its own"):
            await memory.move({"a": "d", "c": "d"})
        assert await memory.move({"a": "d", "b": None, "x": "y", "z": None}) == ["a", "b"]
        assert {item.item_id: (await memory.retrieve(item.item_id)).content for item in await memory.query()} == {
            "c": "c",
            "d": "a",
        }


@pytest.mark.parametrize(("command", "missing"), [("view", "`path`"), ("rename", "`old_path` and `new_path`")])
async def test_a_missing_argument_is_named(command: str, missing: str) -> None:
    """The model can repair it."""
    async with open_memory() as memory:
        output = await ask(memory, command=command)
        assert (output.text, output.is_error) == (f"The command `{command}` needs {missing}.", True)


async def test_a_provider_that_knows_the_tool_is_sent_its_type() -> None:
    """And another one is sent what it is for and takes; both are given the same calls."""
    sent: list[dict[str, Any]] = []
    for name in ("claude-opus-5-5", "qwen3"):
        look = turn("memory", command="view", path="/memories")
        model = ScriptedModel([look, "Nothing yet."], profile=rp.profile_for(name))
        agent = rp.Agent("keeper", tools=[TOOL], model=model)
        async with rp.open_supervisor() as supervisor:
            run = await supervisor.spawn(agent, "Look into your memory.")
            assert await run.wait_result() == "Nothing yet."
        request: ModelRequest = model.requests[0]
        sent.append(encode_request(request)["tools"][0])
    assert sent[0].pop("cache_control", None) in (None, {"type": "ephemeral"})
    assert sent[0] == {"type": "memory_20250818", "name": "memory"}
    assert sent[1]["name"] == "memory"
    assert set(sent[1]) >= {"name", "description", "input_schema"}
    assert sent[1]["input_schema"]["required"] == ["command"]


async def test_the_provider_is_sent_its_type_over_http() -> None:
    """A strict server takes the declaration, also as the end of the cached head, and its calls run here."""
    script = ScriptedModel([turn("memory", command="create", path="/memories/a", file_text="x"), "Kept."])
    async with open_messages_server(script) as server:
        model = rp.AnthropicModel("claude-opus-5-5", api_key="k" * 20, base_url=server.url)
        async with rp.open_supervisor(model=model) as supervisor:
            run = await supervisor.spawn(rp.Agent("keeper", tools=[TOOL]), "Keep an x.")
            assert await run.wait_result() == "Kept."
            assert (await run.memory.retrieve("/memories/a")).content == "x"
        await model.aclose()
        declared = server.exchanges[0].body["tools"]
    assert [(tool["type"], tool["name"]) for tool in declared] == [("memory_20250818", "memory")]
    assert [set(tool) - {"cache_control"} for tool in declared] == [{"type", "name"}]
