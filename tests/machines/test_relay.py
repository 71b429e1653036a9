"""Runs that another machine owns, steered from here: by command, once, and whoever has the run meanwhile."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio
from shared_team import LEDGER, TEAM, make_team
from typer.testing import CliRunner

import repertory as rp
from backends import RunAsync
from patience import PATIENCE
from postgres_server import PostgresServer
from repertory.cli.app import app
from repertory.errors import ConfigurationError, MachineSilent, RunElsewhere, RunError, RunStopped
from repertory.llm.messages import Text, text_of
from repertory.llm.model import ModelRequest
from repertory.memory.messages import OpenScope
from repertory.record import Entry
from repertory.service.control import Control
from repertory.service.requests import RunsQuery
from repertory.service.run_tools import run_tools
from repertory.supervisor import Supervisor
from repertory.supervisor.relay import RemoteRun
from repertory.supervisor.relayed_memory import RelayedMemory
from repertory.testing import FunctionModel, call
from repertory.tools import tool

DONE = "Done."


@pytest.fixture(autouse=True)
def effects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the team writes down what it did."""
    path = tmp_path / "effects"
    path.touch()
    monkeypatch.setenv(LEDGER, str(path))
    return path


class Talk:
    """A model that answers once it was told to."""

    def __init__(self) -> None:
        self.asked = anyio.Event()

    async def answer(self, request: ModelRequest) -> object:
        """Wait by a tool until somebody says "enough"."""
        self.asked.set()
        said = [text_of(block) for message in request.messages for block in message.content]
        if any("enough" in text for text in said):
            return DONE
        await anyio.sleep(0.01)
        return call("look", at=len(request.messages))


@tool(effect="pure")
def look(at: int) -> str:
    """Look again."""
    return f"nothing yet at {at}"


@tool(effect="unsafe", approval="always")
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool(effect="unsafe")
def scan() -> rp.ResultLater:
    """Scan a bill."""
    return rp.ResultLater("somebody scans it")


PATIENT = rp.Agent("patient", tools=[look], context=None, limits=rp.Limits(iterations=10_000))
PAYER = rp.Agent("payer", tools=[pay], context=None)


@asynccontextmanager
async def two(
    uri: str, model: Callable[[ModelRequest], object], **options: Any
) -> AsyncGenerator[tuple[Supervisor, Supervisor]]:
    """The owner of what is started, and another one."""
    async with (
        rp.open_supervisor(uri, name="owner", model=FunctionModel(model), **options) as owner,
        rp.open_supervisor(uri, name="other", model=FunctionModel(lambda _: DONE), **options) as other,
    ):
        yield owner, other


async def remote(supervisor: Supervisor, run_id: str) -> RemoteRun:
    """A run that is elsewhere."""
    found = await supervisor.remote(run_id)
    assert found is not None
    return found


def test_a_message_reaches_a_run_of_another_machine_once(postgres: PostgresServer, run_async: RunAsync) -> None:
    """However often it is sent; the result can be waited for there as well."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        talk = Talk()
        async with two(uri, talk.answer) as (owner, other):
            run = await owner.spawn(PATIENT, "Wait.")
            await talk.asked.wait()
            assert await owner.remote(run.id) is None
            assert await other.elsewhere() == {run.id: "owner"}
            there = await remote(other, run.id)
            with anyio.fail_after(PATIENCE):
                with pytest.raises(ConfigurationError, match="message_id must have 1 to 200 printable"):
                    await there.send("That is enough.", message_id="m\0")
                await there.send("Half a character: \ud800")
                for _ in range(2):
                    await there.send("That is enough.", message_id="m-1")
                assert await there.wait_result() == DONE
                with pytest.raises(RunError, match="something else"):
                    await there.send("Something else.", message_id="m-1")
            assert await other.remote(run.id) is None
            entries = await other.journal.read_entries(run.id)
            assert sum("enough" in text_of(block) for entry in entries for block in entry.content) == 1
            assert await there.state() == "done"

    run_async(main)


def test_images_reach_a_run_of_another_machine(postgres: PostgresServer, run_async: RunAsync) -> None:
    """As large as they may be; what cannot be shown is refused where it is sent."""
    uri, picture = postgres.emptied_journal(), rp.media_block(b"\x89PNG\r\n\x1a\n" + bytes(3_000_000))

    async def main() -> None:
        talk = Talk()
        async with two(uri, talk.answer) as (owner, other):
            run = await owner.spawn(PATIENT, "Wait.")
            await talk.asked.wait()
            there = await remote(other, run.id)
            with anyio.fail_after(PATIENCE):
                with pytest.raises(ConfigurationError, match=r"got 'face\.png'"):
                    await there.send("Look.", attachments="face.png")  # type: ignore[arg-type]
                for _ in range(2):
                    await there.send("Look, that is enough.", attachments=[picture], message_id="m-1")
                assert await there.wait_result() == DONE
            entries = await other.journal.read_entries(run.id)
            (message,) = (entry.content for entry in entries if entry.kind == "user-input")
            assert message == (picture, Text("Look, that is enough."))

    run_async(main)


def test_an_image_with_a_redacted_value_in_it_is_left_out_wherever_it_is_sent(
    postgres: PostgresServer, run_async: RunAsync, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run reads that, and nobody is refused; said again at the owner, it is the same message."""
    uri, secret = postgres.emptied_journal(), "a-password-that-nobody-reads"
    picture = rp.media_block(b"\x89PNG\r\n\x1a\n" + secret.encode())
    monkeypatch.setenv("SECRET", secret)

    async def main() -> None:
        talk = Talk()
        async with two(uri, talk.answer, redact=["SECRET"]) as (owner, other):
            run = await owner.spawn(PATIENT, "Wait.")
            await talk.asked.wait()
            there = await remote(other, run.id)
            with anyio.fail_after(PATIENCE):
                for handle in (there, run):
                    await handle.send("Look, that is enough.", attachments=[picture], message_id="m-1")
                assert await there.wait_result() == DONE
            assert "[left out: image with [redacted: SECRET] in it]" in _texts(await other.journal.read_entries(run.id))

    run_async(main)


def test_nothing_that_was_said_at_another_machine_is_left_of_a_run_that_is_removed(
    postgres: PostgresServer, run_async: RunAsync
) -> None:
    """A message stayed for a day where it was written down for the owner, with what came with it."""
    uri, picture = postgres.emptied_journal(), rp.media_block(b"\x89PNG\r\n\x1a\n")

    async def main() -> None:
        talk = Talk()
        async with two(uri, talk.answer) as (owner, other):
            for run_id in ("one", "one2"):
                await owner.spawn(PATIENT, "Wait.", run_id=run_id)
                there = await remote(other, run_id)
                with anyio.fail_after(PATIENCE):
                    await there.send("That is enough.", attachments=[picture])
                    assert await there.wait_result() == DONE
            await other.remove("one")
        with postgres.connect(uri) as connection:
            assert connection.execute("SELECT DISTINCT run_id FROM commands").fetchall() == [("one2",)]

    run_async(main)


def test_images_are_given_as_a_result_at_any_machine(postgres: PostgresServer, run_async: RunAsync) -> None:
    """As often as one likes, also once the run has ended; the model was shown their base 64 as a text."""
    uri, picture = postgres.emptied_journal(), rp.media_block(b"\x89PNG\r\n\x1a\n" + bytes(3_000_000))
    clerk, shown = rp.Agent("clerk", tools=[scan], context=None), list[Any]()

    def answer(request: ModelRequest) -> object:
        shown[:] = request.messages[-1].content
        return DONE if len(request.messages) > 1 else call("scan")

    async def main() -> None:
        async with two(uri, answer) as (owner, other):
            run = await owner.spawn(clerk, "What is on the bill?")
            control = Control(other)
            given: dict[str, Any] = {"result": [Text("the bill"), picture], "is_error": False}
            with anyio.fail_after(PATIENCE):
                while not run.waiting():
                    await anyio.sleep(0.01)
                given["call_id"] = run.waiting()[0].call_id
                there = await remote(other, run.id)
                with pytest.raises(ConfigurationError, match="says why it failed, which takes text alone"):
                    await there.give_result(given["call_id"], picture, is_error=True)
                await control.tell(run.id, "give_result", **given)
                assert await run.wait_result() == DONE
                await control.tell(run.id, "give_result", **given)
                with pytest.raises(RunError, match="was given another result already"):
                    await control.tell(run.id, "give_result", **{**given, "result": picture})
            (result,) = shown
            assert result.content == (Text("the bill"), picture)

    run_async(main)


def test_a_call_is_approved_at_any_machine(postgres: PostgresServer, run_async: RunAsync) -> None:
    """What is wrong with a decision comes back as the error that the owner would raise."""
    uri = postgres.emptied_journal()

    def answer(request: ModelRequest) -> object:
        return DONE if len(request.messages) > 1 else call("pay", amount=5)

    async def main() -> None:
        async with two(uri, answer) as (owner, other):
            run = await owner.spawn(PAYER, "Pay.")
            with anyio.fail_after(PATIENCE):
                while not run.waiting():
                    await anyio.sleep(0.01)
                there = await remote(other, run.id)
                with pytest.raises(RunError, match="no call"):
                    await there.approve("no-such-call")
                with pytest.raises(ConfigurationError, match="amount"):
                    await there.approve(run.waiting()[0].call_id, arguments={"amount": "much"})
                await there.approve(run.waiting()[0].call_id, arguments={"amount": 4}, by="ann")
                assert await run.wait_result() == DONE
            entries = await other.journal.read_entries(run.id)
            assert any("paid 4" in text_of(block) for entry in entries for block in entry.content)

    run_async(main)


def test_an_answer_may_be_repeated_anywhere_at_whatever_instant_the_run_ends(
    postgres: PostgresServer, run_async: RunAsync
) -> None:
    """The first lets the run end at its machine, before that comes to the others."""
    uri = postgres.emptied_journal()

    def answer(request: ModelRequest) -> object:
        return DONE if len(request.messages) > 1 else call("pay", amount=5)

    async def main() -> None:
        async with two(uri, answer) as (owner, other):
            run = await owner.spawn(PAYER, "Pay.")
            with anyio.fail_after(PATIENCE):
                while not run.waiting():
                    await anyio.sleep(0.01)
                approve = partial(Control(other).tell, run.id, "approve", call_id=run.waiting()[0].call_id)
                async with anyio.create_task_group() as tasks:
                    for _ in range(20):
                        tasks.start_soon(approve)
                assert await run.wait_result() == DONE

    run_async(main)


def test_a_run_elsewhere_is_paused_resumed_and_stopped(postgres: PostgresServer, run_async: RunAsync) -> None:
    """Each takes effect before the caller goes on, or at the next boundary as it does for the owner."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        talk = Talk()
        async with two(uri, talk.answer) as (owner, other):
            run = await owner.spawn(PATIENT, "Wait.")
            await talk.asked.wait()
            there = await remote(other, run.id)
            with anyio.fail_after(PATIENCE):
                await there.pause()
                while await there.state() != "paused":
                    await anyio.sleep(0.01)
                await there.resume()
                await there.stop()
                with pytest.raises(RunStopped):
                    await there.wait_result()

    run_async(main)


def test_a_command_that_takes_long_holds_up_no_other(postgres: PostgresServer, run_async: RunAsync) -> None:
    """A message to a run that is stopping waits until its model has answered; meanwhile it is killed."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        asked = anyio.Event()

        async def answer(request: ModelRequest) -> object:
            if "heard" in str(request.messages):
                return DONE
            asked.set()
            await anyio.sleep_forever()
            raise AssertionError

        async with two(uri, answer) as (owner, other), anyio.create_task_group() as tasks:
            run = await owner.spawn(PATIENT, "Wait.")
            await asked.wait()
            there = await remote(other, run.id)
            await there.stop()
            tasks.start_soon(there.send, "Is it heard?")
            with anyio.fail_after(PATIENCE), postgres.connect(uri) as connection:
                while connection.execute("SELECT 1 FROM commands WHERE verb = 'send'").fetchone() is None:
                    await anyio.sleep(0.01)
                await there.kill()
                while (await owner.journal.read_run(run.id)).result != DONE:
                    await anyio.sleep(0.01)

    run_async(main)


def test_the_next_owner_carries_out_what_the_first_left(postgres: PostgresServer, run_async: RunAsync) -> None:
    """A command outlives the machine it was for; who asked is told that nobody has answered yet."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        async with rp.open_supervisor(uri, labels=(), max_runs=1, name="busy", model=_waits()) as busy:
            await _begun(await busy.spawn(PATIENT, "Wait."))
            queued = await busy.spawn(make_team(), "Work.", agent_ref=TEAM)
            there = await remote(busy, queued.id)
            commands = busy._runtime.commands  # pyright: ignore[reportPrivateUsage]
            assert commands is not None
            message = {"text": "Be quick.", "message_id": "m-2"}
            ask = partial(commands.ask, queued.id, "send", message, command_id=f"{queued.id}/m-2")
            with pytest.raises(MachineSilent, match="repertory machines"):
                await ask(within=0.0)
            async with rp.open_supervisor(uri, labels=(), name="free", model=FunctionModel(lambda _: DONE)):
                with anyio.fail_after(PATIENCE):
                    await there.wait_result()
            with anyio.fail_after(PATIENCE):
                entries = await busy.journal.read_entries(queued.id)
                heard = sum("Be quick." in text_of(block) for entry in entries for block in entry.content)
                assert heard <= 1
                if heard:
                    await ask()
                else:
                    with pytest.raises(RunError, match="ended"):
                        await ask()

    run_async(main)


def test_what_was_refused_is_heard_when_it_is_said_again(postgres: PostgresServer, run_async: RunAsync) -> None:
    """Under the same id, as clients repeat it: the run had ended, and was resumed since."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        talk = Talk()
        async with two(uri, talk.answer) as (owner, other):
            run = await owner.spawn(PATIENT, "Wait.")
            await talk.asked.wait()
            there = await remote(other, run.id)
            say = partial(there.send, "That is enough.", message_id="m-1")
            with anyio.fail_after(PATIENCE):
                run.kill()
                await run.wait_ended()
                with pytest.raises(RunError, match="has ended meanwhile"):
                    await say()
                await owner.resume(run.id, agent=PATIENT)
                await say()
                assert await there.wait_result() == DONE

    run_async(main)


def test_a_run_that_was_paused_where_its_machine_has_ended_is_resumed_at_any_service(
    postgres: PostgresServer, run_async: RunAsync
) -> None:
    """No machine takes it by itself, so nobody else would carry out what is asked of it."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        talk = Talk()
        models = {"model": FunctionModel(talk.answer), "labels": ()}
        async with rp.open_supervisor(uri, name="other", **models) as other:
            async with rp.open_supervisor(uri, name="leaving", **models) as leaving:
                run = await leaving.spawn(PATIENT, "Wait.", agent_ref="test_relay:PATIENT")
                await talk.asked.wait()
                await (await remote(other, run.id)).pause()
            assert await other.remote(run.id) is None
            control = Control(other)
            for ask in (control.send(run.id, "enough"), control.tell(run.id, "stop")):
                with pytest.raises(RunError, match="resume it first"):
                    await ask
            await control.resume(run.id)
            await control.send(run.id, "enough")
            assert (await control.wait_ended(run.id, PATIENCE)).result == DONE

    run_async(main)


LEAD = rp.Agent("lead", team=[PAYER], context=None)


def test_a_sub_agent_that_its_lead_has_yet_to_take_up_is_waited_for(
    postgres: PostgresServer, run_async: RunAsync
) -> None:
    """It has not ended: its lead was resumed at another machine, and is held there."""
    uri = postgres.emptied_journal()

    def answer(request: ModelRequest) -> object:
        if len(request.messages) > 1:
            return DONE
        is_lead = any(tool.name == "delegate" for tool in request.tools)
        return call("delegate", agent="payer", task="Pay.") if is_lead else call("pay", call_id="c-1", amount=5)

    async def main() -> None:
        async with two(uri, answer) as (owner, other):
            async with rp.open_supervisor(uri, model=FunctionModel(answer)) as leaving:
                run = await leaving.spawn(LEAD, "Go.")
                with anyio.fail_after(PATIENCE):
                    while not run.waiting(tree=True):
                        await anyio.sleep(0.01)
                (waiting,) = run.waiting(tree=True)
            again = await owner.resume(run.id, agent=LEAD)
            again.pause()
            there = await remote(other, waiting.run_id)
            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(there.approve, "c-1")
                    with postgres.connect(uri) as connection:
                        while not connection.execute("SELECT 1 FROM commands WHERE taken_by IS NOT NULL").fetchone():
                            await anyio.sleep(0.01)
                    again.resume()
                assert await again.wait_result() == DONE

    run_async(main)


async def test_memory_is_waited_for_until_a_machine_has_its_run(
    postgres: PostgresServer, mock_clock: trio.testing.MockClock
) -> None:
    """Who shares the memory of a lead that was lost is not told so: it is asked again once the lead continues."""
    uri, mock_clock.rate = postgres.emptied_journal(), 1.0
    opened: list[str] = []
    async with rp.open_supervisor(uri, labels=(), max_runs=1, name="busy", model=_waits(), drain_timeout=0) as busy:
        await _begun(await busy.spawn(PATIENT, "Wait."))
        lead = await busy.spawn(PATIENT, "Wait.", agent_ref="test_relay:PATIENT")
        commands = busy._runtime.commands  # pyright: ignore[reportPrivateUsage]
        assert commands is not None
        memory = RelayedMemory(lead.id, commands, busy.journal)

        async def ask() -> None:
            pending = await memory.ask(OpenScope(owner="run-1.a", scope_id="scope-a"))
            opened.append((await pending()).scope_id)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            with postgres.connect(uri) as connection, anyio.fail_after(PATIENCE):
                while not connection.execute("SELECT 1 FROM commands WHERE verb = 'memory'").fetchone():
                    await anyio.sleep(0.01)
            mock_clock.jump(3_600)
            await anyio.sleep(0)
            assert not opened
            async with rp.open_supervisor(uri, labels=(), name="free", model=_waits(), drain_timeout=0):
                with anyio.fail_after(PATIENCE):
                    while not opened:
                        await anyio.sleep(0.01)
    assert opened == ["scope-a"]


async def test_a_command_whose_run_ended_before_its_turn_is_refused(postgres: PostgresServer) -> None:
    """The machine had looked at it, did not find the run any more, and never came back to it."""
    uri = postgres.emptied_journal()
    async with rp.open_supervisor(uri, model=FunctionModel(lambda _: DONE)) as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk"), "Go.")
        await run.wait_result()
        commands = supervisor._runtime.commands
        assert commands is not None
        with postgres.connect(uri) as connection:
            connection.execute(
                """INSERT INTO commands (command_id, root_id, run_id, verb, body, at, taken_by)
                   VALUES ('cmd-1', %s, %s, 'stop', '{}', clock_timestamp(), %s)""",
                [run.id, run.id, commands.machines.machine_id],
            )
        with pytest.raises(RunError, match="ended meanwhile"):
            await commands.ask(run.id, "stop", {}, command_id="cmd-1")


async def test_a_command_that_cannot_be_read_ends_no_machine(postgres: PostgresServer) -> None:
    """Of a machine with another version, say: it would be asked of the next owner too, and of the one after that."""
    uri = postgres.emptied_journal()
    async with rp.open_supervisor(uri, labels=(), name="one", model=_waits()) as supervisor:
        run = await supervisor.spawn(PATIENT, "Wait.")
        await _begun(run)
        commands = supervisor._runtime.commands  # pyright: ignore[reportPrivateUsage]
        assert commands is not None
        message = {"message_id": {}, "text": "x", "sender": ""}
        with anyio.fail_after(PATIENCE):
            with pytest.raises(RunError, match="hear could not be carried out: TypeError: "):
                await commands.ask(run.id, "hear", message)
            with pytest.raises(ConfigurationError, match="another version"):
                await commands.ask(run.id, "memory", {"request": "x"})
        assert supervisor.run(run.id).state == "running"


async def _begun(run: rp.Run[Any]) -> None:
    """Where a machine is just looking at the queue, a new run waits a moment for its turn."""
    with anyio.fail_after(PATIENCE):
        while run.state != "running":
            await anyio.sleep(0.01)


def _waits() -> FunctionModel:
    async def answer(_: ModelRequest) -> object:
        await anyio.sleep_forever()

    return FunctionModel(answer)


def test_hints_come_again_after_the_listener_has_lost_its_connection(
    postgres: PostgresServer, run_async: RunAsync
) -> None:
    """Whatever connections are cut, a command is carried out."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        talk = Talk()
        async with two(uri, talk.answer) as (owner, other):
            run = await owner.spawn(PATIENT, "Wait.")
            await talk.asked.wait()
            with postgres.connect(uri) as connection:
                connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
            with anyio.fail_after(PATIENCE):
                await (await remote(other, run.id)).send("enough")
                assert await run.wait_result() == DONE

    run_async(main)


def test_any_service_steers_a_run_wherever_it_is(postgres: PostgresServer, run_async: RunAsync) -> None:
    """Its clients need not know that there are several."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        talk = Talk()
        async with two(uri, talk.answer) as (owner, other), anyio.create_task_group() as tasks:
            run = await owner.spawn(PATIENT, "Wait.")
            await talk.asked.wait()
            control = Control(other)
            tasks.start_soon(control.run)
            with anyio.fail_after(PATIENCE):
                assert await control.unfinished() == []
                assert [(view.id, view.state) for view in (await control.runs.list_runs(RunsQuery(limit=10))).runs] == [
                    (run.id, "running")
                ]
                await control.tell(run.id, "pause")
                while (await control.read_run(run.id)).run.state != "paused":
                    await anyio.sleep(0.01)
                await control.resume(run.id)
                tools = {tool.name: tool for tool in run_tools(control)}
                waits = partial(tools["wait_result"].function, run_id=run.id)
                while (await waits(timeout=0.0))["state"] != "running":  # until its owner has resumed it
                    await anyio.sleep(0.01)
                await control.send(run.id, "enough")
                assert (await waits(timeout=PATIENCE))["result"] == DONE
                assert (await control.wait_ended(run.id, PATIENCE)).result == DONE
            control.close()

    run_async(main)


def test_a_run_that_ends_elsewhere_before_it_hears_a_message_continues_here(
    postgres: PostgresServer, run_async: RunAsync
) -> None:
    """As it would in one process: it has ended, so this service takes it up."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        talk = Talk()
        async with two(uri, talk.answer) as (owner, other), anyio.create_task_group() as tasks:
            run = await owner.spawn(PATIENT, "Wait.", agent_ref="test_relay:PATIENT")
            await talk.asked.wait()
            waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT%'"
            with anyio.fail_after(PATIENCE), postgres.connect(uri) as locking, postgres.connect(uri) as looking:
                with locking.transaction():
                    locking.execute("LOCK TABLE commands IN EXCLUSIVE MODE")
                    tasks.start_soon(Control(other).send, run.id, "And then?")
                    while looking.execute(waits).fetchone() is None:
                        await anyio.sleep(0.01)
                    await run.ask("That is enough.")
                    await run.wait_ended()
                while "And then?" not in _texts(await other.journal.read_entries(run.id)):
                    await anyio.sleep(0.01)

    run_async(main)


def test_a_handle_says_where_its_run_is(postgres: PostgresServer, run_async: RunAsync) -> None:
    """Rather than doing nothing."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        async with rp.open_supervisor(uri, labels=(), max_runs=1, model=_waits()) as busy:
            await _begun(await busy.spawn(PATIENT, "Wait."))
            run = await busy.spawn(make_team(), "Work.", agent_ref=TEAM)
            for verb in (run.stop, run.kill, run.pause, run.resume):
                with pytest.raises(RunElsewhere, match=r"supervisor\.remote"):
                    verb()
            with pytest.raises(RunElsewhere, match=r"supervisor\.remote"):
                await run.send("Well?")

    run_async(main)


def test_a_machine_drains_when_somebody_asks_it_to(postgres: PostgresServer, run_async: RunAsync) -> None:
    """From the command line, by its name; what it had goes on elsewhere."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        talk = Talk()
        async with rp.open_supervisor(uri, name="leaving", labels=(), model=FunctionModel(talk.answer)) as leaving:
            run = await leaving.spawn(PATIENT, "Wait.")
            await talk.asked.wait()
            listed = await anyio.to_thread.run_sync(_cli, "machines", "--db", uri)
            assert "leaving" in listed
            assert "up" in listed
            (machine,) = json.loads(await anyio.to_thread.run_sync(_cli, "machines", "--db", uri, "--json"))["machines"]
            assert (machine["name"], machine["runs"], machine["draining"]) == ("leaving", 1, False)
            refused = await anyio.to_thread.run_sync(_cli, "drain", "x", "--db", uri)
            assert "no machine that is alive is called 'x'" in refused
            await anyio.to_thread.run_sync(_cli, "drain", "leaving", "--db", uri)
            with anyio.fail_after(PATIENCE):
                while not (await leaving.machines())[0].draining or await leaving.remote(run.id) is None:
                    await anyio.sleep(0.01)

    run_async(main)


def _texts(entries: Sequence[Entry]) -> list[str]:
    return [text_of(block) for entry in entries for block in entry.content]


def _cli(*words: str) -> str:
    return CliRunner().invoke(app, list(words)).output
