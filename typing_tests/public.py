"""What a type checker must make of the public surface; mypy and pyright read this in strict mode, nothing runs it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypedDict, assert_type

import msgspec
import pydantic

import repertory as rp
from repertory import llm, testing
from repertory.actors import ActorContext, ActorRef, Request, handler, open_system
from repertory.llm import ModelRequest, ModelResponse, StreamEvent, Usage
from repertory.llm.messages import Image, RawBlock
from repertory.memory import Item, ItemInfo
from repertory.record import Entry, Journal, RunRow, Snapshot
from repertory.runs.events import AnyEvent, ToolEnded
from repertory.testing import Answer, FunctionModel, ScriptedModel, call
from repertory.tools.context import GivenAnswer
from repertory.tools.media import Media


@rp.tool
def bare(word: str) -> str:
    """Decorated without parentheses."""
    return word


@rp.tool(effect="idempotent", deadline=5, policy=rp.ResultPolicy(cap_chars=2_000))
async def full(word: str, context: rp.ToolContext) -> rp.ToolOutput:
    """Decorated with options."""
    assert_type(context.memory, rp.Memory | None)
    assert_type(await context.need_memory().store(word), ItemInfo)
    return rp.ToolOutput(word, facts={"length": len(word)}, metadata={"by": "me"})


@dataclass
class App:
    """An application's own object."""

    tenant: str


@rp.tool(effect="pure")
async def for_tenant(context: rp.ToolContext[App]) -> str:
    """The context has the type that the tool says."""
    assert_type(context.context, App)
    context.payload.append("seen", context.context.tenant)
    return context.context.tenant


taken: Callable[[str], str] = bare
assert_type(bare("x"), str)
assert_type(rp.tool(bare.function, name="other")(word="x"), str)
tools: list[rp.Tool] = [bare, full, for_tenant]


async def called() -> None:
    """A tool has the arguments and the result of its function."""
    assert_type(await full("x", rp.ToolContext()), rp.ToolOutput)
    assert_type(await rp.call_tool(bare, {"word": "x"}), rp.ToolOutput)
    bare(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await full("x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def plain(word: str) -> str:
    """Taken as it is."""
    return word


async def show(run: rp.Run, scans: Sequence[bytes]) -> str:
    """What comes with a message is handed on."""
    media: list[Media] = [rp.media_block(scan) for scan in scans]
    return await run.ask("What is this?", attachments=media)


def look(request: ModelRequest) -> Answer:
    """A model that a test plays says what it is shown."""
    shown = [block for message in request.messages for block in message.content if isinstance(block, Image | RawBlock)]
    assert_type(shown, list[Image | RawBlock])
    return f"{len(shown)} images and documents"


async def answered() -> None:
    """A test gives a tool the answer for which it asked."""
    await rp.call_tool(bare, {"word": "x"}, context=rp.ToolContext(answer=GivenAnswer(value=3, state={})))


class EchoModel:
    """A model of an application's own: the protocol is all that it needs."""

    @property
    def name(self) -> str:
        """Its name."""
        return "echo"

    @property
    def profile(self) -> rp.ModelProfile:
        """What the planner is told."""
        return rp.profile_for("echo")

    async def complete(
        self, request: ModelRequest, *, on_event: Callable[[StreamEvent], Any] | None = None
    ) -> ModelResponse:
        """Answer with what it was told."""
        return ModelResponse(content=request.messages[-1].content, usage=Usage())

    async def aclose(self) -> None:
        """Nothing to release."""


models: Sequence[rp.Model] = [
    EchoModel(),
    rp.OfflineModel(),
    rp.AnthropicModel("claude-sonnet-5-5"),
    ScriptedModel([call("bare", word="a"), "b"]),
    FunctionModel(lambda request: request.model),
    rp.open_model("offline"),
]
agent = rp.Agent(
    "agent",
    tools=[bare, full, plain, partial(plain, word="x"), *rp.file_tools("."), *rp.memory_tools(), *rp.context_tools()],
    team=[rp.research_team(".")],
    model="claude-sonnet-5-5",
    memory="snapshot",
    context=rp.ContextPolicy(rhythm="strict", tools={"bare": rp.ResultPolicy(expiration_mode="remove")}),
    limits=rp.Limits(iterations=3, cost=0.5),
)


class Count(Request[int], frozen=True):
    """A message that types its answer."""


class Counter:
    """An actor of an application's own."""

    @handler
    def count(self, message: Count) -> int:
        """Answer."""
        return 1


async def main(journal: Journal, ctx: ActorContext, context: rp.ToolContext) -> str:
    """What the calls of a program give."""
    async with rp.open_supervisor("runs.db", model=models[0], durability="process") as supervisor:
        assert_type(supervisor, rp.Supervisor)
        run = await supervisor.spawn(agent, "task")
        assert_type(run, rp.Run)
        async for event in run.events(tree=True):
            assert_type(event, AnyEvent)
            if isinstance(event, ToolEnded):
                assert_type(event.characters, int)
        assert_type(run.children, tuple[rp.Run[Any], ...])
        assert_type(run.statistics(tree=True), rp.RunStatistics)
        assert_type(await supervisor.runs(states=["done"]), list[RunRow])
        assert_type(await supervisor.journal.read_entries(run.id), list[Entry])
        assert_type(await context.need_memory().retrieve("item"), Item)
        assert_type(await run.wait_result(), str)
    async with open_system("mine") as system:
        ref = system.spawn(Counter, "counter")
        assert_type(await ref.ask(Count()), int)
    async with rp.open_journal("runs.db", readonly=True) as opened:
        assert_type(opened, Journal)
    return "done"


def narrowed(event: AnyEvent, snapshot: Snapshot, ref: ActorRef[Count]) -> Entry:
    """What is narrowed, indexed and sent."""
    if isinstance(event, ToolEnded):
        assert_type(event.deduplicated, bool)
    ref.tell(Count())
    assert_type(snapshot[1:], list[Entry])
    return snapshot[0]


class Finding(msgspec.Struct):
    """A part of a result."""

    line: int


@dataclass
class Nothing:
    """The other half of a union."""

    why: str


class Question(TypedDict):
    """A task."""

    topic: str


class Verdict(pydantic.BaseModel):
    """A model of pydantic's."""

    holds: bool


checker = rp.Agent("checker", output=Finding, input=Question, team=[agent])
assert_type(checker, rp.Agent[Finding])
members = [checker, agent]  # of different results, without an annotation
rp.Agent("lead", team=members)
assert_type(rp.run_sync(checker, {"topic": "tides"}), Finding)
assert_type(rp.run_sync(rp.Agent("agent", output=list[Finding]), "task"), list[Finding])
assert_type(rp.run_sync(rp.Agent("agent", output=Verdict), "task"), Verdict)
assert_type(rp.run_sync(rp.Agent("agent", output=int), "task"), int)
assert_type(rp.run_sync(rp.Agent[Finding | Nothing]("agent", output=Finding | Nothing), "task"), Finding | Nothing)
assert_type(rp.run_sync(rp.Agent[Literal["yes", "no"]]("a", output=Literal["yes", "no"]), "x"), Literal["yes", "no"])


async def typed(supervisor: rp.Supervisor) -> Finding:
    """What a run gives is what its agent says, after a restart too."""
    run = await supervisor.spawn(checker, Question(topic="tides"))
    assert_type(run, rp.Run[Finding])
    assert_type(await run.wait_result(), Finding)
    assert_type(await run.ask("And the moon?"), Finding)
    assert_type(run.agent, rp.Agent[Finding])
    assert_type(await supervisor.resume(run.id), rp.Run[Any])
    assert_type(await supervisor.retry(run.id, agent=checker), rp.Run[Finding])
    assert_type(await supervisor.fork(run.id), rp.Run[Any])
    assert_type(await supervisor.fork(run.id, agent=checker), rp.Run[Finding])
    assert_type(await supervisor.rewind(run.id, 1, agent=checker), rp.Run[Finding])
    resumed = await supervisor.resume(run.id, agent=checker)
    return await resumed.wait_result()


assert_type(rp.run_sync(agent, "task", path="runs.db", model="offline"), str)
assert_type(rp.load_agent("module:name"), rp.Agent[Any])

# A room is an attribute of the package, whatever else was imported.
assert_type(rp.errors.RunFailed("it failed"), rp.errors.RunFailed)

# A misspelt name is an error, although rooms import their names late.
rp.Agnet  # type: ignore[attr-defined]
rp.erors  # type: ignore[attr-defined]
llm.RetryPolcy  # type: ignore[attr-defined]
testing.cal  # type: ignore[attr-defined]
