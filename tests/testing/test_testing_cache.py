"""The prompt cache's bill, against an oracle that knows the rules and nothing of the implementation."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.llm import Usage, profile_for
from repertory.testing.cache import PromptCache, block_tokens, positions_of, prompt_tokens

# A minimum small enough for short histories; everything else as it is.
PROFILE = profile_for("claude-sonnet-4-6")
PROFILE = msgspec.structs.replace(PROFILE, cache=msgspec.structs.replace(PROFILE.cache, minimum_tokens=40))


class Oracle:
    """The same rules, told as a story: everything that was ever written, looked through from the start each time.

    Prefixes are compared as lists of blocks instead of by digests; a position is readable if some request wrote it,
    began its answer, and was followed by writes and reads of it that never left a gap longer than the TTL.
    """

    def __init__(self) -> None:
        self.written: list[tuple[Any, float, list[float], list[bool]]] = []  # prefix, ttl, times of use, whether begun

    @staticmethod
    def flat(body: dict[str, Any]) -> list[tuple[Any, int, str | None]]:
        """Every block with what stands for it, its tokens and its marker."""
        settings = (body.get("tool_choice"), body.get("thinking"))
        out: list[tuple[Any, int, str | None]] = []
        for level, blocks in (
            ("tools", body.get("tools", [])),
            ("system", body.get("system", [])),
            *((message["role"], message["content"]) for message in body["messages"]),
        ):
            for block in blocks:
                plain = copy.deepcopy(block)
                marker = plain.pop("cache_control", None)
                key = (body["model"], level, plain, settings if level in ("user", "assistant") else None)
                out.append((key, block_tokens(plain), marker and marker.get("ttl", "5m")))
        return out

    def readable(self, prefix: list[Any], now: float) -> Any:
        """The longest entry that a prefix can be read from."""
        for entry in self.written:
            known, ttl, times, begun = entry
            if known == prefix and begun[0] and now < times[-1] + ttl:
                return entry
        return None

    def use(self, body: dict[str, Any], now: float) -> tuple[Usage, list[Any]]:
        """Bill one request, and give back what it wrote."""
        blocks = self.flat(body)
        keys = [key for key, _, _ in blocks]
        upto = [sum(tokens for _, tokens, _ in blocks[: n + 1]) for n in range(len(blocks))]
        marks = [n for n, (_, _, marker) in enumerate(blocks) if marker and upto[n] >= PROFILE.cache.minimum_tokens]
        found = []
        for mark in marks:
            for back in range(20):
                at = mark - back
                if at >= 0 and (entry := self.readable(keys[: at + 1], now)):
                    found.append((at, entry))
                    break
        for _, entry in found:
            entry[2].append(now)
        reached = max((at for at, _ in found), default=-1)
        read = upto[reached] if reached >= 0 else 0
        bill = {"5m": 0, "1h": 0}
        last, mine = read, []
        for mark in marks:
            if mark > reached:
                ttl = blocks[mark][2]
                assert ttl
                bill[ttl] += upto[mark] - last
                last = upto[mark]
                alive = [e for e in self.written if e[0] == keys[: mark + 1] and now < e[2][-1] + e[1]]
                entry = alive[0] if alive else (keys[: mark + 1], 300.0 if ttl == "5m" else 3600.0, [now], [False])
                if not alive:
                    self.written.append(entry)
                mine.append(entry)
        total = upto[-1]
        return Usage(total - last, 0, read, bill["5m"], bill["1h"]), mine


texts = st.sampled_from(["a" * 60, "b" * 100, "c" * 20, "d" * 200])
moves = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "append", "edit", "drop", "retool", "choose", "many"]),
        st.integers(0, 30),
        texts,
        st.sampled_from([0.0, 1.0, 200.0, 400.0, 4000.0]),  # seconds that pass before the request
        st.lists(st.integers(0, 40), max_size=3),  # where markers stand
        st.sampled_from(["5m", "1h", "mixed"]),
        st.booleans(),  # whether the answer begins before the next request
    ),
    min_size=1,
    max_size=12,
)


def mark(body: dict[str, Any], places: list[int], kind: str) -> dict[str, Any]:
    """Put up to four markers into a copy of a request, the long ones first."""
    body = copy.deepcopy(body)
    blocks = [*body["tools"], *body["system"], *(block for message in body["messages"] for block in message["content"])]
    chosen = sorted({place % len(blocks) for place in places} | {len(blocks) - 1})
    for number, place in enumerate(chosen):
        long = kind == "1h" or (kind == "mixed" and number < len(chosen) / 2)
        blocks[place]["cache_control"] = {"type": "ephemeral", "ttl": "1h"} if long else {"type": "ephemeral"}
    return body


@given(moves)
def test_the_cache_bills_as_the_rules_say(history: list[Any]) -> None:
    """Random histories that grow, are edited, idle and overlap: every figure of every bill agrees with the oracle."""
    now = 0.0
    cache, oracle = PromptCache(lambda: now), Oracle()
    body: dict[str, Any] = {
        "model": "m",
        "tools": [{"name": "f", "description": "d" * 50, "input_schema": {"type": "object"}}],
        "system": [{"type": "text", "text": "s" * 80}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "t" * 40}]}],
    }
    late: list[Any] = []
    for move, where, text, pause, places, kind, begins in history:
        block = {"type": "text", "text": text}
        messages = body["messages"]
        if move == "append":
            messages.append({"role": "assistant" if len(messages) % 2 else "user", "content": [block]})
        elif move == "many":
            messages.append(
                {"role": "user", "content": [{"type": "text", "text": f"{text}{n}"} for n in range(where)] or [block]}
            )
        elif move == "edit":
            messages[where % len(messages)]["content"] = [block]
        elif move == "drop" and len(messages) > 1:
            del messages[where % len(messages)]
        elif move == "retool":
            body["tools"][0]["description"] = text
        elif move == "choose":
            body["tool_choice"] = {"type": "auto" if where % 2 else "none"}
        now += pause
        asked = mark(body, places, kind)
        use = cache.use(asked, PROFILE)
        expected, mine = oracle.use(asked, now)
        assert use.usage == expected
        assert use.usage.prompt_tokens == prompt_tokens(asked)
        late.append((use.begun, mine))
        if begins:
            for begun, entries in late:
                begun()
                for entry in entries:
                    entry[3][0] = True
            late.clear()


def asked(text: str = "x" * 4000, *, marker: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A request of one block, marked."""
    block = {"type": "text", "text": text, "cache_control": marker or {"type": "ephemeral"}}
    return {"model": "m", "messages": [{"role": "user", "content": [block]}], **more}


def test_the_oracle_sees_a_wrong_bill() -> None:
    """Negative control: a cache that forgets the lookback, or never expires, is found out by the same comparison."""
    now = 0.0
    cache, oracle = PromptCache(lambda: 0.0), Oracle()  # this clock stands still
    cache.use(asked(), PROFILE).begun()
    _, mine = oracle.use(asked(), now)
    for entry in mine:
        entry[3][0] = True
    assert cache.use(asked(), PROFILE).usage != oracle.use(asked(), 500.0)[0]


def test_an_entry_lives_from_the_start_of_its_last_use() -> None:
    """Five minutes, refreshed by reading; one hour for the long kind."""
    now = 0.0
    cache = PromptCache(lambda: now)
    cache.use(asked(), PROFILE).begun()
    for now in (299.0, 598.0, 897.0):  # noqa: B007 - the cache's clock reads it
        assert cache.use(asked(), PROFILE).usage.cache_read_tokens > 0
    now = 897.0 + 300.0
    assert cache.use(asked(), PROFILE).usage.cache_read_tokens == 0
    hour = {"type": "ephemeral", "ttl": "1h"}
    cache.use(asked("y" * 4000, marker=hour), PROFILE).begun()
    now += 3599.0
    assert cache.use(asked("y" * 4000, marker=hour), PROFILE).usage.cache_read_tokens > 0


def test_an_entry_can_be_read_only_once_its_answer_has_begun() -> None:
    """Sub-agents that start all at once each pay for the prefix; those that wait for the first do not."""
    cache = PromptCache(lambda: 0.0)
    first, second = cache.use(asked(), PROFILE), cache.use(asked(), PROFILE)
    assert first.usage == second.usage
    assert first.usage.cache_write_tokens > 0
    first.begun()
    assert cache.use(asked(), PROFILE).usage.cache_read_tokens == first.usage.cache_write_tokens
    second.begun()


def test_a_short_prefix_is_silently_not_cached() -> None:
    """Below the model's minimum nothing is written, and nothing is said."""
    cache = PromptCache(lambda: 0.0)
    for _ in range(2):
        use = cache.use(asked("short"), PROFILE)
        use.begun()
        assert use.usage == Usage(input_tokens=prompt_tokens(asked("short")))
    tokens = prompt_tokens(asked())
    for minimum, written in ((tokens, tokens), (tokens + 1, 0)):
        exact = msgspec.structs.replace(PROFILE, cache=msgspec.structs.replace(PROFILE.cache, minimum_tokens=minimum))
        assert PromptCache(lambda: 0.0).use(asked(), exact).usage.cache_write_tokens == written


def test_a_model_without_a_cache_bills_plain_input() -> None:
    """A profile with no breakpoints ignores markers."""
    cache = PromptCache(lambda: 0.0)
    assert cache.use(asked(), profile_for("offline")).usage == Usage(input_tokens=prompt_tokens(asked()))


@pytest.mark.parametrize(
    "change",
    [
        {"tool_choice": {"type": "any"}},
        {"thinking": {"type": "adaptive"}},
        {"model": "other"},
        {"system": "more"},
        {
            "messages": [
                {"role": "user", "content": [{"type": "image", "source": {}}, *asked()["messages"][0]["content"]]}
            ]
        },
    ],
)
def test_what_changes_the_reading_of_messages_misses_the_cache(change: dict[str, Any]) -> None:
    """Settings, pictures, the model, or anything before: the same words are not the same prefix."""
    cache = PromptCache(lambda: 0.0)
    cache.use(asked(), PROFILE).begun()
    assert cache.use({**asked(), **change}, PROFILE).usage.cache_read_tokens == 0
    assert cache.use(asked(), PROFILE).usage.cache_read_tokens > 0  # control: unchanged it is read


def test_automatic_caching_marks_the_last_block_that_can_be_marked() -> None:
    """The top-level marker moves on its own, and skips thinking."""
    body: dict[str, Any] = {
        "model": "m",
        "system": "s" * 400,
        "messages": [
            {"role": "user", "content": "q" * 400},
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "a"}, {"type": "thinking", "thinking": "t", "signature": ""}],
            },
        ],
        "cache_control": {"type": "ephemeral", "ttl": "1h"},
    }
    assert [position.marker for position in positions_of(body)] == [None, None, "1h", None]
    assert prompt_tokens({"model": "m", "messages": []}) == 0


def test_a_marker_inside_a_tool_result_counts_for_the_result() -> None:
    """Where the marker stands inside, the whole block is the position."""
    part = {"type": "text", "text": "x" * 400, "cache_control": {"type": "ephemeral"}}
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [part]}]}],
    }
    [position] = positions_of(body)
    assert position.marker == "5m"
