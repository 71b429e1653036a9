"""What can be asked over HTTP, on both backends, over real sockets."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from service_parts import JSON, Gate, clerk, open_client, scribe

import repertory as rp
from repertory.errors import ConfigurationError, ContextMissing, JournalClosed
from repertory.llm.messages import text_of
from repertory.service import Control, Offers
from repertory.service.app import OPERATIONS
from repertory.service.routes import Nothing
from repertory.testing import FunctionModel, ScriptedModel, call


def test_a_run_is_started_watched_and_answered(short: Path, run_async: Any) -> None:
    """The id that POST gives leads to the state, the figures and the answer."""

    async def main() -> None:
        model = ScriptedModel([call("look_up", word="tide"), "It has 4 letters."])
        async with open_client(short, model) as client:
            run_id = await client.start("How long is 'tide'?")
            detail = await client.wait_for(run_id, "done")
            assert detail["result"] == "It has 4 letters."
            run = detail["run"]
            assert (run["agent"], run["task"], run["state"]) == ("clerk", "How long is 'tide'?", "done")
            assert (run["live"], run["resumable"]) == (False, False)
            figures = detail["statistics"]
            assert (figures["iterations"], figures["tool_calls"], figures["runs"]) == (2, 1, 1)
            assert figures["tokens_seen"] > 0
            listed = await client.get("/runs")
            assert [line["id"] for line in listed["runs"]] == [run_id]
            assert (await client.get(f"/runs/{run_id[:14]}"))["run"]["id"] == run_id

    run_async(main)


def test_health_is_a_round_trip_through_the_journal(short: Path, run_async: Any) -> None:
    """It says ok while the journal answers, and 503 with what is wrong once it does not."""

    async def main() -> None:
        async with open_client(short, ScriptedModel([]), database=str(short / "a.db")) as client:
            health = await client.get("/healthz")
            assert (health["status"], health["durability"], health["seq"]) == ("ok", "process", 0)
            await client.control.journal.aclose()
            while (answer := await client.http.get("/healthz")).status_code == 200:
                await anyio.sleep(0.01)
            assert answer.status_code == 503
            (wrong,) = [check for check in answer.json()["checks"] if check["state"] == "fail"]
            assert wrong["name"] == "journal"
            assert "is closed" in wrong["fact"]
            assert "start again" in wrong["advice"]

    with pytest.raises(JournalClosed):  # it comes out of the supervisor as itself
        run_async(main)


def test_metrics_are_the_figures_of_all_runs_by_agent(short: Path, run_async: Any) -> None:
    """They are read as Prometheus reads them, equal what the runs said, also of those that are removed, and a label
    cannot break the format.
    """

    async def main() -> None:
        model = ScriptedModel([call("look_up", word="tide"), "It has 4 letters.", "It is short."])
        async with open_client(short, model) as client:
            begun = (await client.http.get("/metrics")).text  # counters begin here
            assert 'repertory_cost_dollars_total{agent="clerk"} 0.0' in begun
            for task in ("How long is 'tide'?", 'Say "it"\n# TYPE'):
                await client.wait_for(await client.start(task), "done")
            answer = await client.http.get("/metrics")
            assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
            samples = {
                (sample.name, *sorted(sample.labels.values())): sample.value
                for family in text_string_to_metric_families(answer.text)
                for sample in family.samples
            }
            figures = [
                (await client.get(f"/runs/{run['id']}"))["statistics"] for run in (await client.get("/runs"))["runs"]
            ]
            assert samples["repertory_runs", "clerk", "done"] == 2
            assert samples["repertory_runs", "clerk", "failed"] == 0  # so that an alert sees it rise to 1
            assert samples["repertory_iterations_total", "clerk"] == 3
            assert samples["repertory_tool_calls_total", "clerk"] == 1
            assert samples["repertory_tokens_total", "clerk", "prompt"] == sum(each["tokens_seen"] for each in figures)
            newest = (await client.get("/runs"))["runs"][-1]["id"]
            assert (await client.http.delete(f"/runs/{newest}")).status_code == 204
            text = (await client.http.get("/metrics")).text
            assert 'repertory_runs{agent="clerk",state="done"} 1.0' in text
            assert 'repertory_iterations_total{agent="clerk"} 3.0' in text  # a fall would count as a restart

    run_async(main)


async def test_the_tree_shows_who_works_for_whom(short: Path) -> None:
    """Sub-agents stand below the run that they work for, and its figures include theirs where it says so."""

    async def answer(request: Any) -> Any:
        if "lead" in text_of(request.system):
            asked = len(request.messages) > 1
            return "All done." if asked else call("delegate", agent="clerk", task="Look.")
        return "Looked."

    async with open_client(short, FunctionModel(answer), agents=["test_service_api:lead"]) as client:
        run_id = await client.start("Lead.", agent="lead")
        detail = await client.wait_for(run_id, "done")
        (child,) = detail["tree"]["children"]
        assert child["run"]["agent"] == "clerk"
        assert child["run"]["parent_id"] == run_id
        assert detail["statistics"]["runs"] == 1
        assert detail["tree_statistics"]["runs"] == 2
        assert detail["tree_statistics"]["iterations"] == 3
        listed = await client.get("/runs?limit=1")
        assert [(line["agent"], line["depth"]) for line in listed["runs"]] == [("lead", 0), ("clerk", 1)]
        assert (await client.get("/runs?limit=0"))["more"] == 1
        refused = await client.post(f"/runs/{child['run']['id']}/resume", {}, 409)
        assert "is done" in refused["error"]


lead = rp.Agent("lead", instructions="You lead.", team=[clerk])


def test_a_run_is_paused_told_something_resumed_and_stopped(short: Path, run_async: Any) -> None:
    """Each takes effect at the run's next boundary, and what was said is in the record."""

    async def main() -> None:
        gate = Gate()
        async with open_client(short, gate.model) as client:
            run_id = await client.start()
            await client.post(f"/runs/{run_id}/pause", {})
            paused = await client.wait_for(run_id, "paused")
            assert (paused["run"]["live"], paused["run"]["resumable"]) == (True, True)
            calls = gate.calls
            await client.post(f"/runs/{run_id}/messages", {"text": "Hurry up."})
            gate.hold = True
            await client.post(f"/runs/{run_id}/resume", {})
            await gate.held.wait()
            assert gate.calls == calls + 1
            told = [text_of(message.content) for message in gate.model.requests[-1].messages]
            assert "Hurry up." in told[-1]
            await client.post(f"/runs/{run_id}/stop", {})
            gate.go.set()
            stopped = await client.wait_for(run_id, "stopped")
            assert stopped["run"]["resumable"]
            for path, body in (("stop", {}), ("pause", {})):
                refused = await client.post(f"/runs/{run_id}/{path}", body, 409)
                assert "resume it first" in refused["error"]
            gate.hold, gate.answer_after = False, 0
            await client.post(f"/runs/{run_id}/resume", {})
            assert (await client.wait_for(run_id, "done"))["result"] == "It is done."

    run_async(main)


def test_a_message_that_no_agent_could_read_is_refused_with_the_reason(short: Path, run_async: Any) -> None:
    """A program has begun the run and did not say where its agent is defined: that it is done is not what hinders."""

    async def main() -> None:
        async with open_client(short, Gate(answer_after=0).model) as client:
            run = await client.control.supervisor.spawn(rp.Agent("nameless"), "Who am I?")
            await run.wait_result()
            for path, body in (("messages", {"text": "And now?"}), ("fork", {})):
                refused = await client.post(f"/runs/{run.id}/{path}", body, 400)
                assert "does not say where its agent 'nameless' is defined" in refused["error"]

    run_async(main)


def test_a_run_of_an_earlier_process_goes_on_and_only_once(short: Path, run_async: Any) -> None:
    """It is listed as interrupted until it is resumed; two who resume it at once do not start two loops."""

    async def main() -> None:
        database = str(short / "a.db")
        gate = Gate()
        gate.hold = True
        async with open_client(short, gate.model, database=database, drain_timeout=0.2) as client:
            run_id = await client.start()
            await gate.held.wait()
        gate = Gate(answer_after=3)
        gate.hold = True
        async with open_client(short, gate.model, database=database) as client:
            (line,) = (await client.get("/runs"))["runs"]
            assert (line["state"], line["live"], line["resumable"]) == ("interrupted", False, True)
            assert [row.started.run_id for row in await client.control.unfinished()] == [run_id]
            async with anyio.create_task_group() as tasks:
                for _ in range(4):
                    tasks.start_soon(client.post, f"/runs/{run_id}/resume", {})
            gate.go.set()
            detail = await client.wait_for(run_id, "done")
            assert detail["result"] == "It is done."
            assert gate.calls == 4
            types = [event.type for _, event in await client.control.journal.read_events(run_id)]
            assert types.count("RunResumed") == 1
            assert "done" in (await client.post(f"/runs/{run_id}/resume", {}, 409))["error"]

    run_async(main)


async def test_agents_are_known_by_their_names(short: Path) -> None:
    """What can be started is listed, the research team with its folder."""
    async with open_client(short, ScriptedModel([]), root=short) as client:
        agents = await client.get("/agents")
    assert [agent["name"] for agent in agents] == ["clerk", "scribe", "research"]
    assert agents[0]["description"] == "You are a clerk."
    assert [agent["root"] for agent in agents] == [None, None, str(short)]


async def test_the_research_team_works_in_its_folder_and_nowhere_else(short: Path) -> None:
    """A run may be confined to a folder below the root; anything outside is refused before a run begins."""
    (short / "docs").mkdir()
    (short / "docs" / "tides.md").write_text("The tide turns twice a day.\n")
    (short / "out").symlink_to("/etc")
    async with open_client(short, "offline", root=short) as client:
        for root in ("/etc", "..", "out", "nowhere", "docs/tides.md", "a\0b"):
            refused = await client.post("/runs", {"agent": "research", "task": "Read.", "root": root}, 400)
            assert "folder" in refused["error"], root
        assert (await client.get("/runs"))["runs"] == []
        asked = {"agent": "research", "task": "How often does the tide turn?", "root": "docs"}
        made = await client.post("/runs", asked, 201)
        detail = await client.wait_for(made["id"], "done")
        assert "tides.md:1" in detail["result"]
        row = await client.control.journal.read_run(made["id"])
        assert row.started.options == {"root": str(short / "docs")}
        refused = await client.post("/runs", {"agent": "clerk", "task": "Read.", "root": "docs"}, 400)
        assert "leave root out" in refused["error"]


MISTAKES: list[tuple[str, str, bytes, int, str]] = [
    ("GET", "/runs/run-none", b"", 404, "run-none"),
    ("GET", "/runs/run-none/events", b"", 404, "run-none"),
    ("POST", "/runs/run-none/stop", b"{}", 404, "run-none"),
    ("GET", "/nothing", b"", 404, "nothing at this address"),
    ("GET", "/runs/", b"", 404, "nothing at this address"),
    ("GET", "/runs/run-none/stop", b"", 405, "does not take this method"),
    ("DELETE", "/runs", b"", 405, "does not take this method"),
    ("OPTIONS", "/runs", b"", 405, "does not take this method"),
    ("POST", "/runs", b"", 400, "missing required field `agent`"),
    ("POST", "/runs", b"{", 400, "truncated"),
    *(
        ("POST", "/runs", b'{"agent": "clerk", "task": "%b"}' % half, 400, "half of a surrogate pair")
        for half in (rb"\ud83d", rb"\ud83d and more", rb"\udc00", b"\xed\xa0\xbd")
    ),
    ("POST", "/runs", b'{"agent": "clerk"}', 400, "missing required field `task`"),
    ("POST", "/runs", b'{"agent": "clerk", "task": 7}', 400, "$.task"),
    ("POST", "/runs", b'{"agent": "clerk", "task": " "}', 400, "an empty one"),
    ("POST", "/runs", b'{"agent": "clerk", "task": "x", "extra": 1}', 400, "unknown field `extra`"),
    ("POST", "/runs", b'{"agent": "nobody", "task": "x"}', 400, "clerk, scribe"),
    ("POST", "/runs", b'{"agent": "research", "task": "x"}', 400, "clerk, scribe"),
    ("POST", "/runs", b'{"agent":' + b"[" * 100_000, 400, "more than 128 levels"),
    ("POST", "/runs/x/calls/c/result", b'{"result":%b%b}' % (b"[" * 128, b"]" * 128), 400, "more than 128 levels"),
    ("POST", "/runs/x/calls/c/approve", b'{"arguments":{"amount":-1e999}}', 400, "-1e999 is out of range"),
    ("POST", "/runs/x/calls/c/result", b'{"result":%b%b}' % (b"[" * 127, b"]" * 127), 404, "no run"),
    ("POST", "/runs", b'{"agent": "clerk", "task": "' + b"x" * 2**20 + b'y"}', 413, "1048576 characters"),
    ("POST", "/runs/a/fork", b'{"text": "' + b"x" * 2**20 + b'"}', 413, "1048576 bytes"),
    ("POST", "/runs", b'{"payload": [' + b"{}," * 2**20 + b"1]}", 413, "1048576 brackets and commas"),
    ("POST", "/runs/x/stop", b'{"now": true}', 400, "unknown field `now`"),
    ("GET", "/runs?limit=-1", b"", 400, "limit is '-1'; expected `int` >= 0"),
    ("GET", "/events?after=0x3", b"", 400, "after is '0x3'; expected `int`"),
    ("GET", "/events?after=" + "9" * 19, b"", 400, "expected `int` <= 999999999999999999"),
]


def test_mistakes_are_told_and_change_nothing(short: Path, run_async: Any) -> None:
    """Whatever is wrong with a request, the answer is JSON with the fact, and no run has begun."""

    async def main() -> None:
        async with open_client(short, ScriptedModel([])) as client:
            for method, path, body, status, words in MISTAKES:
                headers = JSON if method == "POST" else {}
                answer = await client.http.request(method, path, content=body, headers=headers)
                assert answer.status_code == status, (path, answer.text)
                assert words in answer.json()["error"], (path, answer.text)
            answer = await client.http.get("/events", headers={"last-event-id": "-7"})
            assert (answer.status_code, "Last-Event-ID" in answer.text) == (400, True)
            assert (await client.get("/runs"))["runs"] == []

    run_async(main)


async def test_an_error_does_not_repeat_all_that_was_sent(short: Path) -> None:
    """Wherever a long text stands in a request: the answer says what is wrong with its beginning alone."""
    long = "x" * 5000
    async with open_client(short, ScriptedModel(["Done."])) as client:
        run_id = await client.start("Count.")
        await client.wait_for(run_id, "done")
        for each in OPERATIONS:
            paths = [each.path.replace("{run_id}", run_id), re.sub(r"{\w+(:path)?}", long, each.path)]
            path = re.sub(r"{\w+(:path)?}", "1", paths[0])
            asked: list[tuple[str, dict[str, str], bytes]] = [(one, {}, b"{}") for one in paths]
            asked.append((f"{path}?{long}=1", {}, b"{}"))
            for field in msgspec.structs.fields(each.takes("query") or Nothing):
                asked.append((f"{path}?{field.encode_name}={long}", {}, b"{}"))
            for field in msgspec.structs.fields(each.takes("headers") or Nothing):
                asked.append((path, {field.encode_name: long}, b"{}"))
            for field in msgspec.structs.fields(each.takes("body") or Nothing):
                body = {"task": "x", "agent": "clerk", "reason": "x", "text": "x", "iteration": 1, "change": 1}
                known = {one.encode_name for one in msgspec.structs.fields(each.takes("body"))}
                sent = {name: value for name, value in body.items() if name in known} | {field.encode_name: long}
                asked.append((path, {}, msgspec.json.encode(sent)))
            for where, headers, content in asked:
                sending = {"headers": JSON | headers, "content": content if each.method == "POST" else b""}
                async with client.http.stream(each.method, where, **sending) as answer:
                    if answer.status_code >= 400:
                        error = json.loads(await answer.aread())["error"]
                        assert len(error) < 1000, (each.method, where[:100], error)


@pytest.mark.parametrize(
    ("agents", "words"),
    [
        (["service_parts:clerk", "service_parts:clerk"], "an agent 'clerk' already"),
        (["service_parts:nobody"], "has no 'nobody'"),
    ],
)
def test_wrong_agents_are_refused_at_the_start(agents: list[str], words: str) -> None:
    """A service that could not start what it was told to offer does not come up."""
    with pytest.raises(ConfigurationError, match=words):
        Offers(agents)
    with pytest.raises(ConfigurationError, match="no folder"):
        Offers(root=Path("/nowhere"))
    with pytest.raises(ConfigurationError, match="is no folder"):
        Offers(root=Path(__file__))
    with pytest.raises(ConfigurationError, match="no limit 'money'"):
        Offers(limits={"money": 2.0})


def test_an_agent_may_have_the_name_of_a_research_team_that_is_not_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a company file; only where that team is offered, too, the name is taken."""
    (tmp_path / "of_the_same_name.py").write_text("import repertory as rp\nmine = rp.Agent('research')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert [agent.name for agent in Offers(["of_the_same_name:mine"]).list()] == ["research"]
    with pytest.raises(ConfigurationError, match="an agent 'research' already"):
        Offers(["of_the_same_name:mine"], root=tmp_path)


async def test_runs_of_a_service_have_its_limits_and_keep_them() -> None:
    """Those that are not said stay the agent's own; a resumption finds them with the run."""
    async with rp.open_supervisor(model=ScriptedModel(["Done."])) as supervisor:
        control = Control(supervisor, Offers(["service_parts:clerk"], limits={"tokens": 1_000_000}))
        run_id = await control.start("clerk", "Go.")
        row = await supervisor.journal.read_run(run_id)
        found = rp.load_agent(row.started.agent_ref, **row.started.options)
    own = rp.load_agent("service_parts:clerk").limits
    assert found.limits == msgspec.structs.replace(own, tokens=1_000_000)


async def test_a_service_without_agents_says_how_to_have_some(short: Path) -> None:
    """The first thing a new user meets is a way on."""
    async with open_client(short, ScriptedModel([]), agents=()) as client:
        refused = await client.post("/runs", {"agent": "x", "task": "y"}, 400)
        assert "--root DIR or --agent" in refused["error"]


async def test_the_end_comes_to_all_runs_at_once() -> None:
    """While one run that hangs is waited for, the others begin nothing new."""
    busy, hung = Gate(), Gate()
    hung.hold = True

    async def answer(request: Any) -> Any:
        return await (hung if "You write." in text_of(request.system) else busy).answer(request)

    async with rp.open_supervisor(model=FunctionModel(answer), drain_timeout=0.3) as supervisor:
        for _ in range(3):
            await supervisor.spawn(clerk, "Count.")
        await supervisor.spawn(scribe, "Write.")
        await hung.held.wait()
        before = busy.calls
    assert busy.calls <= before + 3


keeper = rp.Agent("keeper", instructions="You keep.", payload=dict[str, list[str]])


async def test_a_run_says_how_many_versions_its_payload_had(short: Path) -> None:
    """A run without one has none."""
    agents = ["test_service_api:keeper", "test_service_api:lead"]
    async with open_client(short, ScriptedModel(["Kept.", "Looked."]), agents=agents) as client:
        run_id = await client.start("Keep.", agent="keeper")
        detail = await client.wait_for(run_id, "done")
        assert detail["payload_version"] == 1
        other = await client.start("Look.", agent="lead")
        detail = await client.wait_for(other, "done")
        assert detail["payload_version"] == 0
        assert "has no payload" in (await client.get(f"/runs/{other}/payload", 404))["error"]


@rp.tool(effect="pure")
async def tenant(context: rp.ToolContext[str]) -> str:
    """Say for whom this is."""
    return f"for {context.context}"


needy = rp.Agent("needy", tools=[tenant])


async def test_runs_of_a_service_find_its_context_and_need_it_again(tmp_path: Path) -> None:
    """A process that was started without it says so, and leaves the run as it was."""

    def answer(request: Any) -> Any:
        return "done" if len(request.messages) > 1 else call("tenant")

    path, agents = tmp_path / "c.db", ["test_service_api:needy"]
    async with rp.open_supervisor(path, model=FunctionModel(answer)) as supervisor:
        control = Control(supervisor, Offers(agents), context="ann")
        run_id = await control.start("needy", "Go.")
        await control.tell(run_id, "stop")
        with pytest.raises(rp.RepertoryError):
            await supervisor.run(run_id).wait_result()
    async with rp.open_supervisor(path, model=FunctionModel(answer)) as supervisor:
        with pytest.raises(ContextMissing, match=f"run {run_id} was given an application context"):
            await Control(supervisor, Offers(agents)).resume(run_id)
        await Control(supervisor, Offers(agents), context="bob").resume(run_id)
        assert await supervisor.run(run_id).wait_result() == "done"
        results = [text_of(entry.content) for entry in await supervisor.journal.read_entries(run_id) if entry.tool]
    assert results == ["for bob"]
