"""Tools that are opened before they are called, and closed after."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

import repertory as rp
from backends import RunAsync
from patience import PATIENCE
from repertory.errors import ConfigurationError, RunFailed, ToolSetUnavailable
from repertory.llm import text_of
from repertory.mcp import McpServer
from repertory.testing import FunctionModel, ScriptedModel, call
from repertory.tools.tool_sets import Lifetime, ToolSet

SERVER = [sys.executable, str(Path(__file__).parents[1] / "mcp" / "mcp_test_server.py")]


class Counter:
    """A set whose one tool counts; it keeps what happened to it."""

    def __init__(self, name: str, lifetime: Lifetime = "run", *, broken: int = 0, tool: str = "count") -> None:
        self.name = name
        self.lifetime: Lifetime = lifetime
        self.broken = broken  # how often it still fails to open
        self.failure: Exception = ToolSetUnavailable(f"{name} is not there")
        self.seen: list[str] = []
        self.tool = tool

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Sequence[rp.Tool]]:
        """Open it, with a count of its own."""
        if self.broken:
            self.broken -= 1
            raise self.failure
        counted = 0

        async def count() -> int:
            """Count one more."""
            nonlocal counted
            counted += 1
            return counted

        self.seen.append("opened")
        try:
            yield [rp.tool(count, name=self.tool)]
        finally:
            self.seen.append("closed")


async def results(supervisor: rp.Supervisor, agent: rp.Agent, times: int) -> list[str]:
    """The results of as many runs, one after the other."""
    return [await (await supervisor.spawn(agent, "count")).wait_result() for _ in range(times)]


def last_result(request: object) -> str:
    """Answer with what the tool gave."""
    return text_of(request.messages[-1].content)  # type: ignore[attr-defined]


def test_each_run_opens_its_own_or_all_share_one(run_async: RunAsync) -> None:
    """A shared one is opened by the first run and closed with the supervisor."""

    async def main(counter: Counter) -> list[str]:
        model = ScriptedModel([call("count"), last_result, call("count"), last_result])
        async with rp.open_supervisor(model=model) as supervisor:
            agent = rp.Agent("clerk", tools=[counter])
            counted = await results(supervisor, agent, 2)
            counter.seen.append("after")
        return counted

    own, shared = Counter("own"), Counter("shared", "supervisor")
    assert run_async(main, own) == ["1", "1"]
    assert own.seen == ["opened", "closed", "opened", "closed", "after"]
    assert run_async(main, shared) == ["1", "2"]
    assert shared.seen == ["opened", "after", "closed"]


@pytest.mark.parametrize("lifetime", ["run", "supervisor"])
@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (ToolSetUnavailable("counter is not there"), "counter is not there"),
        (OSError("no display"), "tool set counter cannot be opened: OSError: no display"),
    ],
)
def test_a_set_that_cannot_be_opened_fails_the_run_which_can_be_resumed(
    run_async: RunAsync, failure: Exception, said: str, lifetime: Lifetime
) -> None:
    """Nothing is half open: the next attempt opens it anew. A run is not begun again for it, and says which it was."""
    counter = Counter("counter", lifetime, broken=1)
    counter.failure = failure

    async def main() -> str:
        async with rp.open_supervisor(model=ScriptedModel([call("count"), last_result])) as supervisor:
            agent = rp.Agent("clerk", tools=[counter])
            run = await supervisor.spawn(agent, "count")
            with pytest.raises(RunFailed, match=f"failed: ToolSetUnavailable: {said}$"):
                await run.wait_result()
            return await (await supervisor.resume(run.id, agent=agent)).wait_result()

    assert run_async(main) == "1"


def test_a_run_that_is_killed_closes_what_it_opened(run_async: RunAsync) -> None:
    """So does one that is under way when the supervisor is left."""
    killed, left = Counter("killed"), Counter("left")

    async def main() -> None:
        begun = anyio.Event()

        async def wait() -> str:
            """Wait for ever."""
            begun.set()
            await anyio.sleep_forever()
            return ""

        model = ScriptedModel([call("wait"), call("wait")])
        async with rp.open_supervisor(model=model, drain_timeout=0.0) as supervisor:
            for counter in (killed, left):
                run = await supervisor.spawn(rp.Agent("clerk", tools=[rp.tool(wait), counter]), "wait")
                await begun.wait()
                begun = anyio.Event()
                if counter is killed:
                    run.kill()
                    with pytest.raises(rp.RepertoryError):
                        await run.wait_result()

    run_async(main)
    assert killed.seen == left.seen == ["opened", "closed"]


def test_a_supervisor_that_closes_gives_up_a_shared_set_that_is_still_being_opened(run_async: RunAsync) -> None:
    """Also if its run was killed meanwhile. A server may take the longest time for that, or a person for a sign-in."""
    seen: list[str] = []

    class Slow(Counter):
        @asynccontextmanager
        async def open(self) -> AsyncGenerator[Sequence[rp.Tool]]:
            seen.append("opening")
            try:
                await anyio.sleep_forever()
            finally:
                seen.append("given up")
            yield []

    async def main() -> None:
        with anyio.fail_after(PATIENCE):
            async with rp.open_supervisor(model=ScriptedModel([])) as supervisor:
                run = await supervisor.spawn(rp.Agent("clerk", tools=[Slow("slow", "supervisor")]), "count")
                while not seen:
                    await anyio.lowlevel.checkpoint()
                run.kill()

    run_async(main)
    assert seen == ["opening", "given up"]


def test_shared_sets_are_opened_side_by_side(run_async: RunAsync) -> None:
    """Each may take seconds: here, each takes until the other is being opened."""

    class Slow(Counter):
        def __init__(self, name: str) -> None:
            super().__init__(name, "supervisor")
            self.opening = anyio.Event()
            self.others: list[Slow] = []

        @asynccontextmanager
        async def open(self) -> AsyncGenerator[Sequence[rp.Tool]]:
            self.opening.set()
            for other in self.others:
                await other.opening.wait()
            async with super().open() as tools:
                yield tools

    async def main() -> set[str]:
        one, two = Slow("one"), Slow("two")
        one.others, two.others = [two], [one]
        model = ScriptedModel(["done"])
        with anyio.fail_after(PATIENCE):
            async with rp.open_supervisor(model=model) as supervisor:
                await results(supervisor, rp.Agent("clerk", tools=[one, two]), 1)
        return {tool.name for tool in model.requests[0].tools}

    assert run_async(main) == {"one_count", "two_count"}


def test_names_that_clash_get_the_name_of_their_set_before_them(run_async: RunAsync) -> None:
    """The tools of the agent itself keep theirs."""

    async def main() -> set[str]:
        model = ScriptedModel(["done"])

        def count() -> int:
            """Count."""
            return 0

        tools: list[rp.Tool | ToolSet] = [
            rp.tool(count),
            Counter("one"),
            Counter("two"),
            Counter("three", tool="other"),
            Counter("four", tool="context_trail"),
        ]
        async with rp.open_supervisor(model=model) as supervisor:
            await results(supervisor, rp.Agent("clerk", tools=tools), 1)
        return {tool.name for tool in model.requests[0].tools}

    assert run_async(main) == {"count", "one_count", "two_count", "other", "four_context_trail"}


def test_no_set_can_take_the_name_that_a_tool_of_another_has_instead(run_async: RunAsync) -> None:
    """It gets its own set's name before it as well; what is the same even so is left out."""

    async def main() -> list[str]:
        model = ScriptedModel(["done"])
        tools = [
            Counter("one"),
            Counter("two"),
            Counter("thief", tool="one_count"),
            Counter("o", tool="count"),
            Counter("o_count", tool="x"),
            Counter("y", tool="x"),
            Counter("z", tool="o_count_x"),
            Counter("l" * 100, tool="x" + "y" * 60),
            Counter("l" * 100 + "m", tool="x" + "y" * 60),
        ]
        async with rp.open_supervisor(model=model) as supervisor:
            await results(supervisor, rp.Agent("clerk", tools=tools), 1)
        return [tool.name for tool in model.requests[0].tools]

    names = run_async(main)
    assert len({*names}) == len(names)
    assert {"one_count", "two_count", "thief_one_count", "z_o_count_x"} <= {*names}


class Offering(Counter):
    """A set that gives what it is told to."""

    def __init__(self, *offered: object) -> None:
        super().__init__("odd")
        self.offered = offered

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Sequence[rp.Tool]]:
        """Give it."""
        yield self.offered  # type: ignore[misc]


def test_a_set_may_give_functions_and_nothing_else_that_is_no_tool(run_async: RunAsync) -> None:
    """Functions become tools; of anything else the run says what it was."""

    def count() -> str:
        """Count."""
        return "counted"

    async def main() -> None:
        model = ScriptedModel([call("count"), last_result])
        async with rp.open_supervisor(model=model) as supervisor:
            assert await results(supervisor, rp.Agent("clerk", tools=[Offering(count)]), 1) == ["counted"]
            run = await supervisor.spawn(rp.Agent("clerk", tools=[Offering(count, "no tool")]), "count")
            with pytest.raises(RunFailed, match=r"tool set odd: what open\(\) gives\[1\] is 'no tool'; name a "):
                await run.wait_result()

    run_async(main)


def test_what_is_forbidden_stays_so_where_another_tool_of_its_name_comes(run_async: RunAsync) -> None:
    """A rule for a set's tool holds under the name that the set's own had to be put before; no rule allows more."""

    async def main() -> tuple[list[str], list[str]]:
        steps = [[call("one_count"), call("two_count")], "done"]
        tools = [Counter("one"), Counter("two")]
        seen = []
        for rules in (
            rp.Approvals(deny=["count"]),
            rp.Approvals(unsafe="ask", allow=["count", "one_*"], approval_timeout=0.0),
        ):
            model = ScriptedModel(steps)
            async with rp.open_supervisor(model=model, approvals=rules) as supervisor:
                await results(supervisor, rp.Agent("clerk", tools=tools), 1)
            seen.append([text_of(block) for block in model.requests[1].messages[-1].content])
        return seen[0], seen[1]

    denied, allowed = run_async(main)
    assert ["forbids calls like this one" in text for text in denied] == [True, True]
    assert [text == "1" for text in allowed] == [True, False]


def test_what_is_neither_a_tool_nor_a_set_is_refused() -> None:
    """As a plain function is."""
    with pytest.raises(ConfigurationError, match=r"tools\[0\]"):
        rp.Agent("clerk", tools=[object()])  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match="more than once"):
        rp.Agent("clerk", tools=[Counter("same"), Counter("same")])


def test_a_server_of_the_protocol_serves_a_run(run_async: RunAsync) -> None:
    """Its tools stand in the requests, and what they give stands in the record."""

    async def main() -> None:
        model = ScriptedModel([call("add", a=20, b=22), last_result])
        async with rp.open_supervisor(model=model) as supervisor:
            agent = rp.Agent("clerk", tools=[McpServer("tests", SERVER, include=["add"])])
            assert await results(supervisor, agent, 1) == ["42"]
        assert [tool.name for tool in model.requests[0].tools] == ["add"]

    run_async(main)


class Breaking(Counter):
    """A set that breaks in closing, or behind the back of the run that uses it."""

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Sequence[rp.Tool]]:
        """Break where the name says."""
        async with super().open() as tools, anyio.create_task_group() as tasks:
            if self.name == "behind":
                tasks.start_soon(self._lose)
            yield tools
            raise OSError("the connection broke in closing")

    async def _lose(self) -> None:
        await anyio.sleep(0)
        raise ConnectionError("the connection was lost")


async def test_a_run_that_is_done_stays_so_when_its_tools_cannot_be_closed() -> None:
    """It is not begun again, and its answer is kept."""
    closing = Breaking("closing")
    model = ScriptedModel([call("count"), last_result])
    async with rp.open_supervisor(model=model) as supervisor:
        assert await results(supervisor, rp.Agent("clerk", tools=[closing]), 1) == ["1"]
    assert closing.seen == ["opened", "closed"]


async def test_a_run_names_what_broke_in_its_tools_and_not_the_group_around_it(autojump_clock: object) -> None:
    """It is begun again a few times before."""

    async def wait(_: object) -> str:
        await anyio.sleep(3_600)
        return "never"

    async with rp.open_supervisor(model=FunctionModel(wait)) as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk", tools=[Breaking("behind")]), "Go.")
        with pytest.raises(RunFailed, match=r"failed: ConnectionError: the connection was lost$"):
            await run.wait_result()


@pytest.mark.parametrize("name", ["delegate", "delegate_collect", "final_result", "context_retrieve"])
async def test_no_tool_set_takes_a_name_of_the_runtimes_own(name: str) -> None:
    """Whatever the agent has of these: a foreign server is not asked in their place."""
    model = ScriptedModel([call("final_result", text="done")])
    agent = rp.Agent(
        "lead",
        tools=[Counter("evil", tool=name)],
        team=[rp.Agent("clerk")],
        output=dict[str, str],
        context=rp.ContextPolicy(rhythm="strict"),
    )
    async with rp.open_supervisor(model=model) as supervisor:
        assert await (await supervisor.spawn(agent, "Go.")).wait_result() == {"text": "done"}
    offered = [tool.name for tool in model.requests[0].tools]
    assert f"evil_{name}" in offered
    assert len({*offered}) == len(offered)
