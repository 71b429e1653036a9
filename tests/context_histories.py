"""Histories and policies that several tests share: built by hand, or drawn by Hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

from repertory.context import EMPTY, ContextPolicy, Outcome, Plan, Planner
from repertory.context.decisions import Decision, expansion
from repertory.context.plan import PinEntry, UnpinEntry
from repertory.llm.estimate import estimate_tokens
from repertory.llm.messages import Block, Image, Text, Thinking, ToolResult, ToolUse
from repertory.llm.profiles import CacheRules, ModelProfile, Prices
from repertory.record import Entry, Snapshot
from repertory.shortening import ResultPolicy
from repertory.shortening.shaping import shape_result

PICTURE = Image({"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="})


def profile(
    *, read: float = 0.1, target: str = "free", window: int = 200_000, cache: bool = True, output: int = 8192
) -> ModelProfile:
    """A model whose cache reads cost this share of its input price of $3."""
    prices = Prices(input=3.0, output=15.0, cache_read=3.0 * read, cache_write=3.75, cache_write_1h=6.0)
    rules = CacheRules() if cache else CacheRules(breakpoints=0)
    return ModelProfile(
        name="test-model", target=target, context_window=window, max_output=output, prices=(prices,), cache=rules
    )


def measure(snapshot: Sequence[Entry], plan: Plan) -> int:
    """Estimate what the plan shows of a snapshot, in tokens; system text and tools not included."""
    total = sum(plan.tokens_of(entry) for entry in snapshot[plan.start :])
    for cover in plan.covers:
        total += cover.tokens + sum(plan.tokens_of(snapshot[position]) for position in plan.kept(cover))
    return total


def expand(snapshot: Sequence[Entry], plan: Plan, position: int, *, iteration: int, **what: Any) -> Decision:
    """The decision to show an entry again, as a caller asks for it; ``what`` of it as ``expansion`` takes it."""
    edit = expansion(snapshot, plan, position, **what)
    return Decision(kind="expand", reason="asked for", iteration=iteration, position=len(snapshot), edits=(edit,))


def pin(snapshot: Sequence[Entry], position: int, *, iteration: int, on: bool = True) -> Decision:
    """The decision to keep an entry in view, or no longer."""
    edit = PinEntry(position=position) if on else UnpinEntry(position=position)
    return Decision(kind="pin", reason="asked for", iteration=iteration, position=len(snapshot), edits=(edit,))


class Story:
    """A ledger in the making."""

    def __init__(self, task: str = "Find out why the tides differ.") -> None:
        self.entries: list[Entry] = []
        self.iteration = 0
        self.calls = 0
        self.originals: dict[int, str] = {}
        self.add("user", "task", Text(task))

    def add(self, role: str, kind: str, *content: Block, **fields: Any) -> Entry:
        """Append one entry of the current iteration."""
        entry = Entry(
            role=role,
            kind=kind,
            content=content,
            iteration=self.iteration,
            position=len(self.entries),
            created_at=float(len(self.entries)),
            tokens=estimate_tokens(content),
            **fields,
        )
        self.entries.append(entry)
        return entry

    def say(self, text: str) -> Entry:
        """The user says something."""
        return self.add("user", "user-input", Text(text))

    def turn(
        self,
        *results: str | tuple[Block, ...],
        text: str = "Let me look.",
        tool: str = "read",
        thinking: str = "",
        policy: ContextPolicy | None = None,
        between: str = "",
        errors: Sequence[int] = (),
        arguments: dict[str, Any] | None = None,
    ) -> list[Entry]:
        """One iteration: the assistant's turn with a call per result, then the results, shaped if a policy says so."""
        self.iteration += 1
        uses = []
        for number in range(len(results)):
            self.calls += 1
            uses.append(
                ToolUse(f"call_{self.calls}", tool, arguments or {"path": f"src/file_{self.calls}.py", "n": number})
            )
        said: list[Block] = [Thinking(thinking, "sig")] if thinking else []
        if text:
            said.append(Text(text))
        out = [self.add("assistant", "assistant", *said, *uses)]
        if between:
            self.say(between)
        for number, (use, result) in enumerate(zip(uses, results, strict=True)):
            content, extra = result, {}
            if policy is not None:
                shaped = shape_result(result, rules=policy.rules(tool), content_id=f"c-{len(self.entries)}", tool=tool)
                content = shaped.content
                extra = {"content_id": shaped.content_id, "original_length": shaped.original_length}
            block = ToolResult(use.id, content, is_error=number in errors)
            entry = self.add("user", "action-result", block, tool=tool, tool_call_id=use.id, **extra)
            out.append(entry)
        return out

    def snapshot(self, position: int | None = None) -> Snapshot:
        """The ledger, or its beginning."""
        return Snapshot("run-test", self.entries[:position])

    def requests(self) -> list[int]:
        """The positions in front of which a model was called, and the end where it is to be called next."""
        calls = [entry.position for entry in self.entries if entry.role == "assistant" and entry.position]
        if self.entries[-1].role == "user":
            calls.append(len(self.entries))
        return calls


def long_story(iterations: int, *, size: int = 4_000, policy: ContextPolicy | None = None, **turn: Any) -> Story:
    """A story with results of so many characters, each with a path and a number of its own."""
    story = Story()
    for number in range(1, iterations + 1):
        line = f"def handler_{number}(request): return 'lib/module_{number}.py:{1000 + number}'\n"
        story.turn((line * (1 + size // len(line)))[:size], policy=policy, **turn)
    return story


def planned(story: Story, policy: ContextPolicy, model: ModelProfile, **options: Any) -> list[Any]:
    """Plan every call of a story in order; the outcomes."""
    planner = Planner(policy=policy, profile=model, head_tokens=options.pop("head_tokens", 500))
    plan = options.pop("plan", None)
    out = []
    for position in story.requests():
        snapshot = story.snapshot(position)
        iteration = story.entries[position].iteration if position < len(story.entries) else story.iteration + 1
        outcome = planner.next(snapshot, *([plan] if plan is not None else []), iteration=iteration, **options)
        plan = outcome.plan
        out.append((snapshot, outcome))
    return out


def plan_afresh(
    snapshot: Sequence[Entry],
    plan: Plan = EMPTY,
    *,
    policy: ContextPolicy,
    profile: ModelProfile,
    head_tokens: int = 0,
    max_tokens: int = 8192,
    **asked: Any,
) -> Outcome:
    """What a planner says of the next request that knows nothing but record and plan."""
    planner = Planner(policy=policy, profile=profile, head_tokens=head_tokens, max_tokens=max_tokens)
    return planner.next(snapshot, plan, **asked)


# --- drawn by Hypothesis ----------------------------------------------------------------------------------

_WORDS = st.sampled_from(
    [
        "",
        " ",
        "ok",
        "naïve café 日本語 👩‍👩‍👧 e\u0301",
        "ERROR: file not found at src/app/main.py:42",
        "x" * 700,
        "line\n" * 400,
    ]
)
_TEXTS = st.one_of(_WORDS, st.text(max_size=40).filter(lambda s: not any("\ud800" <= c <= "\udfff" for c in s)))
_RESULTS = st.one_of(
    _TEXTS,
    st.builds(
        lambda word, times: f"{word} value_{times} path/to/{times}.txt\n" * times,
        st.sampled_from(["row", "é漢"]),
        st.integers(1, 400),
    ),
    st.builds(lambda text: (Text(text), PICTURE), _TEXTS),
    st.just(()),
)
_ARGUMENTS = st.sampled_from(
    [
        None,
        None,
        {"path": "src/new.py", "text": "def handler_7():\n    return 'src/a.py'\n" * 60},
        {"edits": [{"old": "x" * 1_200, "new": "日本 e\u0301 👩‍👩‍👧 " * 150}, {"line": 3}], "dry": False},
    ]
)


@st.composite
def stories(draw: st.DrawFn, *, most: int = 14, policy: ContextPolicy | None = None) -> Story:
    """Histories with parallel calls, long arguments, long and empty results, pictures, errors, thinking and users."""
    story = Story(draw(st.sampled_from(["Do it.", "Tâche: 日本 – keep ALL constraints.\n- one\n- two"])))
    for _ in range(draw(st.integers(0, most))):
        if draw(st.integers(0, 9)) == 0:
            story.add("assistant", "assistant", Text(draw(st.sampled_from(["Done.", " ", "partial"]))))
            story.say(draw(st.sampled_from(["And now?", "constraint: never delete"])))
            continue
        results = draw(st.lists(_RESULTS, min_size=1, max_size=4))
        story.turn(
            *results,
            text=draw(st.sampled_from(["", "I will read handler_7 in src/a.py", "  "])),
            tool=draw(st.sampled_from(["read", "search", "pinned", "expiring"])),
            thinking=draw(st.sampled_from(["", "hm"])),
            between=draw(st.sampled_from(["", "", "", "wait, also check the moon"])),
            errors=draw(st.sampled_from([(), (0,)])),
            arguments=draw(_ARGUMENTS),
            policy=policy,
        )
        if draw(st.integers(0, 5)) == 0:
            story.say(draw(st.sampled_from(["please hurry", "use only port 8443"])))
    return story


@st.composite
def policies(draw: st.DrawFn) -> ContextPolicy:
    """Policies of both rhythms, gentle and harsh."""
    return ContextPolicy(
        rhythm=draw(st.sampled_from(["thrifty", "thrifty", "strict"])),
        window=draw(st.integers(1, 6)),
        keep_recent=draw(st.integers(0, 6)),
        summarize_every=draw(st.sampled_from([0, 1, 3, 10])),
        summary_tokens=draw(st.sampled_from([50, 200, 500])),
        budget_tokens=draw(st.sampled_from([None, None, 3_000, 8_000])),
        keep_user_input=draw(st.booleans()),
        stubs=draw(st.sampled_from([True, True, True, False])),
        summaries=draw(st.booleans()),
        comfort_tokens=draw(st.sampled_from([None, 0, 2_000])),
        retrieval=draw(st.booleans()),
        show_once=draw(st.sampled_from([True, True, True, False])),
        tools={
            "pinned": ResultPolicy(pin=True),
            "expiring": ResultPolicy(
                expiration_mode=draw(st.sampled_from(["remove", "compact", "none"])),
                expiration_turns=draw(st.integers(0, 3)),
                compact_mode=draw(st.sampled_from(["stub", "first_chars", "summary"])),
            ),
        },
    )


def models() -> st.SearchStrategy[ModelProfile]:
    """Models with and without a prompt cache, of both targets, with windows large and small."""
    return st.builds(
        profile,
        read=st.sampled_from([0.1, 0.025, 1.0]),
        target=st.sampled_from(["free", "free", "binding"]),
        window=st.sampled_from([200_000, 20_000]),
        cache=st.sampled_from([True, True, True, False]),
        output=st.just(4096),
    )


def words_of(value: Any) -> str:
    """Everything a value says, as JSON text."""
    return msgspec.json.encode(value).decode()
