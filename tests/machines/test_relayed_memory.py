"""Memory that is changed from another machine is changed once, whoever carries it out."""

from __future__ import annotations

import base64
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import msgspec
import pytest
from placed_team import REF, Script, last, make

import repertory as rp
from patience import PATIENCE
from postgres_server import PostgresServer
from repertory.errors import ConfigurationError, ItemNotFound
from repertory.llm.model import ModelRequest
from repertory.machines.commands import Command
from repertory.memory.messages import ClearScope, DeleteItem, MergeScope, MoveItems, OpenScope, RestoreScope, StoreItem
from repertory.runs.live import LiveRun
from repertory.supervisor.relayed_memory import answer_memory, decode_answer, encode_request
from repertory.testing import ScriptedModel, call


@pytest.fixture(autouse=True)
def script() -> Iterator[None]:
    """The models as they are without a test."""
    Script.reset()
    yield
    Script.reset()


async def carried_out(live: LiveRun, request: Any, *, again: bool = False) -> Any:
    """What a request is answered, the first time or by a machine that cannot know whether it was carried out before."""
    command = Command(f"cmd-{request}", live.run_id, "memory", {}, again=again)
    return decode_answer(await answer_memory(live, command, request=encode_request(request, lambda value: value)))


async def on_record(supervisor: rp.Supervisor) -> tuple[Any, Any]:
    """All versions of all items, and the scopes."""
    scopes = await supervisor.journal.read_scopes()
    return await supervisor.journal.read_items([scope.scope_id for scope in scopes]), scopes


@pytest.mark.parametrize(
    "make_request",
    [
        lambda scope, _: StoreItem(scope_id=scope, item_id="a", content="third", if_position=2),
        lambda scope, _: StoreItem(scope_id=scope, content="new"),
        lambda scope, _: DeleteItem(scope_id=scope, item_id="a"),
        lambda scope, _: ClearScope(scope_id=scope),
        lambda scope, _: MoveItems(scope_id=scope, moves={"a": "d"}),
        lambda scope, _: RestoreScope(scope_id=scope, position=1),
        lambda _, snapshot: MergeScope(scope_id=snapshot),
        lambda scope, _: OpenScope(owner="run-1.a", mode="snapshot", parent_id=scope, scope_id="scope-b"),
    ],
    ids=["store if unchanged", "store", "delete", "clear", "move", "restore", "merge", "open"],
)
async def test_what_was_carried_out_before_is_answered_as_then(make_request: Any) -> None:
    """By what stands in the record with the change; nothing is written twice, nor lost of what others wrote since."""
    async with rp.open_supervisor(model=ScriptedModel(["Done."])) as supervisor:
        run = await supervisor.spawn(rp.Agent("lead"), "Go.", run_id="run-1")
        live, memory = supervisor._runtime.runs.find(run.id), run.memory
        assert live is not None
        for text in ("first", "second"):
            await memory.store(text, item_id="a")
        snapshot = await memory.fork("run-1.b")
        await snapshot.store("of the snapshot", item_id="b")
        request = make_request(memory.scope_id, snapshot.scope_id)
        answer = await carried_out(live, request)
        await memory.store("of somebody else", item_id="c")
        before = await on_record(supervisor)
        assert await carried_out(live, request, again=True) == answer
        assert await on_record(supervisor) == before


async def test_what_was_not_carried_out_before_is_carried_out_again() -> None:
    """The machine died before it came to that; and what is refused is refused again."""
    async with rp.open_supervisor(model=ScriptedModel(["Done."])) as supervisor:
        run = await supervisor.spawn(rp.Agent("lead"), "Go.")
        live, scope = supervisor._runtime.runs.find(run.id), run.memory.scope_id
        assert live is not None
        await run.memory.store("first", item_id="a")
        assert await carried_out(live, DeleteItem(scope_id=scope, item_id="a"), again=True) == 1
        for again in (False, True):
            with pytest.raises(ItemNotFound):
                await carried_out(live, DeleteItem(scope_id=scope, item_id="b"), again=again)


@contextmanager
def second_answer_lost(postgres: PostgresServer, uri: str, *, of: str = "%") -> Generator[None]:
    """Have the second answer of memory get lost on its way, of those that runs with such ids give."""
    with postgres.connect(uri) as connection:
        connection.execute("CREATE SEQUENCE answers")
        connection.execute(
            """CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                   IF nextval('answers') = 2 THEN RAISE EXCEPTION 'lost'; END IF;
                   RETURN NEW;
               END $$"""
        )
        connection.execute(
            f"""CREATE TRIGGER lost BEFORE UPDATE OF answered_at ON commands FOR EACH ROW
               WHEN (NEW.verb = 'memory' AND NEW.run_id LIKE '{of}') EXECUTE FUNCTION lose()"""
        )
        connection.commit()
    try:
        yield
    finally:
        with postgres.connect(uri) as connection:  # other tests use the database
            connection.execute("DROP FUNCTION lose CASCADE")
            connection.execute("DROP SEQUENCE answers")
            connection.commit()


async def test_an_answer_that_is_lost_is_given_again(postgres: PostgresServer) -> None:
    """The model is told that the item is gone, and not that there was none."""
    uri = postgres.emptied_journal()
    turns = [call("note", item="a", text="x"), call("drop", item="a"), call("notes")]
    shown: list[str] = []

    def worker(request: ModelRequest) -> object:
        shown.append(last(request))
        return turns[len(shown) - 1] if len(shown) <= len(turns) else "42"

    Script.worker = worker
    async with (
        rp.open_supervisor(uri, name="plain", labels=()) as plain,
        rp.open_supervisor(uri, name="gpu", labels=("gpu",)),
    ):
        with second_answer_lost(postgres, uri):
            run = await plain.spawn(make(), "What is it?", agent_ref=REF)
            with anyio.fail_after(PATIENCE):
                assert await run.wait_result() == "It is 42"
    assert shown[1:] == ["noted", "dropped", "nothing"]


async def test_memory_is_shared_with_those_that_a_placed_run_has_placed(postgres: PostgresServer) -> None:
    """What they ask goes from one machine to the next, up to whose memory it is, and changes that once."""
    uri, Script.helper_placement = postgres.emptied_journal(), ["tpu"]
    turns = [call("note", item="a", text="x"), call("drop", item="a"), call("note", item="b", text="y"), "helped"]
    shown: list[str] = []

    def helper(request: ModelRequest) -> object:
        shown.append(last(request))
        return turns[len(shown) - 1]

    Script.worker = lambda request: (
        call("delegate", agent="helper", task="Help.") if len(request.messages) == 1 else last(request)
    )
    Script.helper = helper
    async with (
        rp.open_supervisor(uri, name="plain", labels=()) as plain,
        rp.open_supervisor(uri, name="gpu", labels=("gpu",)),
        rp.open_supervisor(uri, name="tpu", labels=("tpu",)),
    ):
        with second_answer_lost(postgres, uri, of="%.@%"):
            run = await plain.spawn(make(), "What is it?", agent_ref=REF)
            with anyio.fail_after(PATIENCE):
                assert await run.wait_result() == "It is helped"
        assert [(await run.memory.retrieve(item.item_id)).text for item in await run.memory.query()] == ["y"]
    assert shown[1:] == ["noted", "dropped", "noted"]


async def test_what_another_version_asks_is_refused() -> None:
    """And takes nobody down."""
    async with rp.open_supervisor(model=ScriptedModel(["Done."])) as supervisor:
        run = await supervisor.spawn(rp.Agent("lead"), "Go.")
        live = supervisor._runtime.runs.find(run.id)
        assert live is not None
        requests = (["ForgetAll", {}], ["StoreItem", {"scope": 5}], "ClearScope", [["ClearScope"], {}])
        texts = [base64.b64encode(msgspec.msgpack.encode(request)).decode() for request in requests]
        for text in (*texts, "", "not base 64", texts[0][:8]):
            with pytest.raises(ConfigurationError, match="another version"):
                await answer_memory(live, Command("cmd-1", live.run_id, "memory", {}), request=text)


@pytest.mark.parametrize("answer", [["ItemInfo", {"item": 5}], ["MergeReport", {}], ["Item"], ["Item", [3]], 7])
def test_what_another_version_answers_is_refused(answer: Any) -> None:
    """By an error of memory's own, as its users expect them."""
    text = base64.b64encode(msgspec.msgpack.encode(answer)).decode()
    for each in (text, text[:5], "not base 64"):
        with pytest.raises(ConfigurationError, match="knows no answer of this form"):
            decode_answer(each)
