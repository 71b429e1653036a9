"""What requests cost, against an oracle that keeps whole prefixes and looks through all of them each time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_stories import long_run

from repertory.llm import estimate_tokens
from repertory.llm.messages import Image, Message, RedactedThinking, Text, Thinking, ToolResult, ToolUse, encode_block
from repertory.llm.model import Breakpoint, ModelRequest, ToolSchema, Usage, encode_request
from repertory.llm.profiles import CacheRules, cost_of
from repertory.replay import profile_named
from repertory.replay.billing import Biller, plain_requests
from repertory.testing.cache import PromptCache

PROFILE = msgspec.structs.replace(profile_named("r=0.1"), cache=CacheRules(minimum_tokens=40))
TOOL = ToolSchema("look", "Look something up, in whatever way is best.", {"type": "object"})
FRAME = ModelRequest(model="m", messages=(), system=(Text("You look things up. " * 4),), tools=(TOOL,))


class Oracle:
    """The cache's rules told as a story: a list of everything ever written, compared block by block."""

    def __init__(self) -> None:
        self.written: list[list[Any]] = []  # whole prefix, time of last use

    def bill(self, request: ModelRequest, now: float) -> Usage:
        """Bill one request, whose markers are all of the 5-minute kind."""
        pictures = any(
            isinstance(part, Image)
            for message in request.messages
            for block in message.content
            for part in (block, *(block.content if isinstance(block, ToolResult) else ()))
        )
        blocks: list[tuple[Any, int]] = [
            (("tool", tool.name, tool.description), estimate_tokens(tool)) for tool in request.tools
        ]
        blocks += [(("system", encode_block(block)), estimate_tokens(block)) for block in request.system]
        head, ends = len(blocks), []
        for message in request.messages:
            blocks += [
                ((message.role, pictures, encode_block(block)), estimate_tokens(block)) for block in message.content
            ]
            ends.append(len(blocks))
        marks = []
        for point in request.breakpoints:
            at = head - 1 if point.message is None else ends[point.message] - 1
            if point.message is not None:
                content = request.messages[point.message].content
                while isinstance(content[at - ends[point.message]], Thinking | RedactedThinking):
                    at -= 1
            marks.append(at)
        upto = [sum(tokens for _, tokens in blocks[: n + 1]) for n in range(len(blocks))]
        marks = [mark for mark in marks if upto[mark] >= PROFILE.cache.minimum_tokens]
        hits = []
        for mark in marks:
            for at in range(mark, max(-1, mark - 20), -1):
                prefix = [key for key, _ in blocks[: at + 1]]
                entry = next((e for e in self.written if e[0] == prefix and now < e[1] + 300), None)
                if entry:
                    hits.append((at, entry))
                    break
        for _, entry in hits:
            entry[1] = now
        reached = max((at for at, _ in hits), default=-1)
        read = last = upto[reached] if reached >= 0 else 0
        for mark in marks:
            if mark > reached:
                last = upto[mark]
                prefix = [key for key, _ in blocks[: mark + 1]]
                if not any(e[0] == prefix and now < e[1] + 300 for e in self.written):
                    self.written.append([prefix, now])
        return Usage(input_tokens=upto[-1] - last, cache_read_tokens=read, cache_write_tokens=last - read)


blocks = st.sampled_from(
    [
        Text("a" * 100),
        Text("b" * 300),
        ToolUse("c", "look", {"at": "x" * 60}),
        ToolResult("c", "y" * 200),
        ToolResult("c", (Text("y" * 50), Image({"type": "url", "url": "u"}))),
        Image({"type": "url", "url": "v"}),
        Thinking("t" * 80, "signature"),
        RedactedThinking("data"),
    ]
)
moves = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "append", "append", "edit", "drop", "rebuild", "retool", "many"]),
        st.integers(0, 30),
        st.lists(blocks, min_size=1, max_size=3),
        st.sampled_from([1.0, 1.0, 200.0, 400.0]),
        st.lists(st.integers(0, 40), max_size=2),
    ),
    min_size=1,
    max_size=14,
)


def play(history: list[Any]) -> list[ModelRequest]:
    """The requests of a history that grows, is edited, loses messages, and gets other tools."""
    messages: list[Message] = [Message("user", (Text("task " * 30),))]
    frame, requests = FRAME, []
    for move, where, said, _, marks in history:
        content = (*said, Text("end"))
        role = "assistant" if len(messages) % 2 else "user"
        if move == "append":
            messages.append(Message(role, content))
        elif move == "many":
            messages.append(Message(role, tuple(Text(f"{n} " * 20) for n in range(where + 1))))
        elif move == "edit":
            at = where % len(messages)
            messages[at] = Message(messages[at].role, content)
        elif move == "drop" and len(messages) > 1:
            del messages[where % len(messages)]
        elif move == "rebuild":
            messages = [Message(message.role, message.content) for message in messages]
        elif move == "retool":
            frame = msgspec.structs.replace(
                frame, tools=(msgspec.structs.replace(TOOL, description=f"Other {where}."),)
            )
        places = sorted({place % len(messages) for place in marks} | {len(messages) - 1})
        points = (Breakpoint(None), *(Breakpoint(place) for place in places))
        requests.append(msgspec.structs.replace(frame, messages=tuple(messages), breakpoints=points))
    return requests


@given(moves)
def test_every_bill_is_what_the_oracle_says(history: list[Any]) -> None:
    """Figure by figure; and what is remembered from request to request changes nothing."""
    biller, oracle, now = Biller(PROFILE), Oracle(), 0.0
    for request, (*_, pause, _marks) in zip(play(history), history, strict=True):
        now += pause
        usage, kept = biller.bill(request, at=now)
        assert usage == oracle.bill(request, now)
        assert usage.prompt_tokens == estimate_tokens(request)
        anew = Biller(PROFILE)
        anew.bill(request, at=0.0)
        assert anew.positions == biller.positions
        assert 0 <= kept <= len(biller.positions)


@given(moves)
def test_the_test_server_would_bill_the_same(history: list[Any]) -> None:
    """It reads the bytes of the body as they go over the wire."""
    now = 0.0
    biller, server = Biller(PROFILE), PromptCache(lambda: now)
    for request, (*_, pause, _marks) in zip(play(history), history, strict=True):
        now += pause
        use = server.use(encode_request(request), PROFILE)
        use.begun()
        assert biller.bill(request, at=now)[0] == use.usage


def test_the_oracle_sees_a_wrong_bill() -> None:
    """Negative control: a clock that stands still is found out."""
    request = play([("append", 0, [Text("a" * 400)], 1.0, [])])[0]
    biller, oracle = Biller(PROFILE), Oracle()
    assert biller.bill(request, at=0.0)[0] == oracle.bill(request, 0.0)
    assert biller.bill(request, at=0.0)[0] != oracle.bill(request, 301.0)


def tokens_of(*blocks: Any) -> int:
    """By the definition: a quarter of the bytes of each block's JSON, rounded up."""
    return sum(-(-len(msgspec.json.encode(encode_block(block))) // 4) for block in blocks)


def test_an_appending_loop_reads_what_it_sent_and_writes_what_is_new() -> None:
    """By hand: two calls; the second reads the whole first prompt."""
    run = long_run(2, size=1200)
    frame = msgspec.structs.replace(FRAME, system=(), tools=())
    biller = Biller(msgspec.structs.replace(PROFILE, cache=CacheRules(minimum_tokens=1)))
    first, second = [biller.bill(request, at=0.0)[0] for request in plain_requests(run, frame, reasoning=None)]
    task = tokens_of(Text(run.task))
    turn = run.turns[0]
    new = tokens_of(*turn.content, *turn.results.values())
    assert first == Usage(cache_write_tokens=task)
    assert second == Usage(cache_read_tokens=task, cache_write_tokens=new)
    dollars = cost_of(PROFILE, second + Usage(output_tokens=10))
    assert dollars == pytest.approx((task * 0.2 + new * 2.5 + 10 * 10.0) / 1e6)


def test_more_blocks_than_a_lookup_goes_back_are_written_anew() -> None:
    """Ten parallel calls and their results hide the entry of the request before; nine do not (control)."""
    for parallel, read_all in ((9, True), (10, False)):
        run = long_run(2, parallel=parallel)
        biller = Biller(PROFILE)
        first, second = [biller.bill(request, at=0.0)[0] for request in plain_requests(run, FRAME, reasoning=None)]
        assert (second.cache_read_tokens == first.prompt_tokens) is read_all
        assert second.cache_read_tokens > 0  # the static head is found in any case


def test_an_idle_loop_pays_for_its_whole_prompt_again() -> None:
    """Six minutes after the last request nothing is left of it."""
    requests = list(plain_requests(long_run(2), FRAME, reasoning=None))
    for pause, read in ((299.0, True), (301.0, False)):
        biller = Biller(PROFILE)
        biller.bill(requests[0], at=0.0)
        assert (biller.bill(requests[1], at=pause)[0].cache_read_tokens > 0) is read


def test_what_views_have_shown_once_is_forgotten() -> None:
    """Memory follows the view, not the number of edits."""
    biller = Biller(PROFILE)
    for number in range(3_000):
        request = msgspec.structs.replace(FRAME, messages=(Message("user", (Text(f"view {number}"),)),))
        biller.bill(request, at=float(number))
    assert len(biller._known) < 1_100
