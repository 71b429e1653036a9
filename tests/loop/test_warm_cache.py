"""A fan-out that warms the prompt cache its sub-agents share: what that saves, and that nobody waits in vain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

import repertory as rp
from repertory.errors import ModelUnavailable
from repertory.llm import ModelProfile, profile_for
from repertory.llm.messages import Text, text_of
from repertory.llm.model import ModelRequest, ModelResponse, Retrying, StreamEvent, TextDelta, encode_request
from repertory.llm.profiles import cost_of
from repertory.testing import call
from repertory.testing.cache import PromptCache

BEGINS = 1.0  # seconds until a server begins to answer
ENDS = 5.0  # and until it has
KNOWN = profile_for("claude-sonnet-4-6")
LONG = "Follow each of these rules. " * 200  # 5,600 characters: more than the 1,024 tokens that are cached at least
WIDE = 6


class Server:
    """A server with a prompt cache, which bills by its published rules and takes its time."""

    def __init__(self, profile: ModelProfile = KNOWN, *, lead: list[object] | None = None, trouble: int = 0) -> None:
        self.name, self.profile = profile.name, profile
        self._cache = PromptCache(trio.current_time)
        self._lead = lead or [fan_out("first")]
        self._trouble = trouble
        self.asked: list[float] = []
        self.cost = 0.0
        self.read = 0

    async def complete(
        self, request: ModelRequest, *, on_event: Callable[[StreamEvent], Any] | None = None
    ) -> ModelResponse:
        """Answer as a lead or as a worker."""
        assert on_event is not None
        if text_of(request.system).startswith("You lead."):
            turn = sum(message.role == "assistant" for message in request.messages)
            step = self._lead[turn] if turn < len(self._lead) else [Text("Done.")]
            if isinstance(step, float):
                await trio.sleep(step)
                step = [call("nothing", again=turn)]
            return ModelResponse(content=tuple(with_ids(step, turn)), stop_reason="tool_use")
        self.asked.append(trio.current_time())
        if self._trouble:
            self._trouble -= 1
            await trio.sleep(BEGINS)
            on_event(Retrying(2, 60.0, "overloaded"))
            await trio.sleep(60.0)
        used = self._cache.use(encode_request(request), self.profile)
        await trio.sleep(BEGINS)
        used.begun()
        on_event(TextDelta("It"))
        await trio.sleep(ENDS - BEGINS)
        usage = msgspec.structs.replace(used.usage, output_tokens=1)
        self.cost += cost_of(KNOWN, usage)
        self.read += usage.cache_read_tokens
        return ModelResponse(content=(Text("It is done."),), usage=usage)

    async def aclose(self) -> None:
        """Nothing to release."""


def with_ids(blocks: Any, turn: int) -> list[Any]:
    """The blocks of a turn, its calls numbered."""
    return [
        block if isinstance(block, Text) else msgspec.structs.replace(block, id=f"call-{turn}-{index}")
        for index, block in enumerate(blocks)
    ]


def fan_out(name: str, wide: int = WIDE) -> list[object]:
    """So many delegations in one turn."""
    return [call("delegate", agent="worker", task=f"{name} part {number}") for number in range(wide)]


async def play(server: Server, *, warm: bool | None = None, instructions: str = LONG) -> float:
    """Run a lead that fans out; seconds that it took."""
    worker = rp.Agent("worker", instructions=instructions)
    delegation = rp.Delegation(warm_cache=warm)
    lead = rp.Agent("lead", instructions="You lead.", team=[worker], delegation=delegation, limits=rp.Limits(runs=50))
    begun = trio.current_time()
    async with rp.open_supervisor(model=server, clock=trio.current_time, summaries=()) as supervisor:
        run = await supervisor.spawn(lead, "Go.")
        assert await run.wait_result() == "Done."
    return trio.current_time() - begun


async def test_one_call_writes_the_shared_prefix_and_the_others_read_it(autojump_clock: trio.testing.MockClock) -> None:
    """They wait for the beginning of the first answer, not for its end; and the head is paid for once."""
    cold, warm = Server(), Server()
    assert await play(cold, warm=False) == pytest.approx(ENDS)
    assert await play(warm) == pytest.approx(BEGINS + ENDS)
    assert [at - warm.asked[0] for at in warm.asked] == pytest.approx([0.0] + [BEGINS] * (WIDE - 1))
    assert cold.read == 0
    assert warm.cost < 0.5 * cold.cost


@pytest.mark.parametrize("case", ["too short", "unknown price", "no cache", "free", "forbidden"])
async def test_nobody_waits_where_nothing_is_saved(autojump_clock: trio.testing.MockClock, *, case: str) -> None:
    """Too short to be cached, of unknown price, without a cache, or by the agent's word: all begin at once."""
    free = msgspec.structs.replace(KNOWN.prices[0], input=0.0, output=0.0, cache_read=0.0, cache_write=0.0)
    profile = {
        "unknown price": msgspec.structs.replace(KNOWN, known=False),
        "no cache": msgspec.structs.replace(KNOWN, cache=msgspec.structs.replace(KNOWN.cache, breakpoints=0)),
        "free": msgspec.structs.replace(KNOWN, prices=(free,)),
    }.get(case, KNOWN)
    server = Server(profile)
    took = await play(
        server,
        warm=False if case == "forbidden" else None,
        instructions="You work." if case == "too short" else LONG,
    )
    assert took == pytest.approx(ENDS)
    assert len({*server.asked}) == 1


async def test_a_cache_that_is_warm_already_keeps_nobody_waiting(autojump_clock: trio.testing.MockClock) -> None:
    """A second fan-out begins at once while the entry lives, and warms it again when it has expired."""
    server = Server(lead=[fan_out("first"), fan_out("second"), 2 * KNOWN.cache.ttl, fan_out("third")])
    await play(server)
    first, second, third = (server.asked[WIDE * number : WIDE * (number + 1)] for number in range(3))
    assert [len({*each}) for each in (first, second, third)] == [2, 1, 2]


async def test_a_first_call_that_the_server_does_not_take_keeps_nobody_waiting_for_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The next one warms the cache instead, and the others follow that one."""
    server = Server(trouble=1)
    assert await play(server) == pytest.approx(BEGINS + 60.0 + ENDS)  # the unlucky one is the last to end
    assert [at - server.asked[0] for at in server.asked] == pytest.approx([0.0, BEGINS] + [2 * BEGINS] * (WIDE - 2))


async def test_a_first_call_that_fails_keeps_nobody_waiting_for_it(autojump_clock: trio.testing.MockClock) -> None:
    """Its run ends, and the next in line begins."""

    class Failing(Server):
        async def complete(self, request: ModelRequest, **more: Any) -> ModelResponse:
            if not text_of(request.system).startswith("You lead.") and not self.asked:
                self.asked.append(trio.current_time())
                await trio.sleep(BEGINS)
                raise ModelUnavailable("down")
            return await super().complete(request, **more)

    server = Failing()
    assert await play(server) == pytest.approx(2 * BEGINS + ENDS)
