"""What a digest says of a single result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from context_histories import Story, profile

from repertory.context import EMPTY, ContextPolicy, Planner, ResultPolicy, register_compactor
from repertory.context.compactors import COMPACTORS
from repertory.llm.messages import text_of

FIRST = 2  # the position of the first result


class Berths:
    """A compactor of the application's own."""

    name = "berths"

    def matches(self, text: str, data: object) -> bool:
        """Whether it is about berths."""
        return "berth" in text

    def compact(self, text: str, data: object, length: int) -> str:
        """Count them."""
        return f"{text.count('berth')} berths\nand quays"


class Tides(Berths):
    """One for other results."""

    name = "tides"

    def matches(self, text: str, data: object) -> bool:
        """Never."""
        return False


@pytest.fixture(autouse=True)
def berths() -> Iterator[None]:
    """The application has registered its compactor."""
    register_compactor(Berths())
    register_compactor(Tides())
    yield
    COMPACTORS.pop("berths")
    COMPACTORS.pop("tides")


def first_line(rules: ResultPolicy, gists: Mapping[int, str]) -> str:
    """What a digest says of the first result of a run."""
    story = Story()
    for day in range(12):
        lines = [f"crane_{day}_{number} stands at berth {number}, crane_{day}_{number} moves" for number in range(60)]
        story.turn("\n".join(lines))
    planner = Planner(policy=ContextPolicy(tools={"read": rules}), profile=profile(cache=False))
    planner.next(story.snapshot(23), EMPTY, iteration=12)  # the lines are made before the summaries come
    plan = planner.next(story.snapshot(), EMPTY, iteration=13, gists=gists).plan
    return text_of(plan.covers[0].content).splitlines()[2]


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        (ResultPolicy(compact_mode="summary"), "> Two berths are busy."),
        (ResultPolicy(compact_mode="first_chars", compact_length=30), "> crane_0_0 stands at berth"),
        (ResultPolicy(compactor="berths"), "> 60 berths and quays"),
    ],
    ids=["a model's summary", "first characters", "an application's compactor"],
)
def test_a_digest_says_of_a_result_what_its_policy_asks_for(rules: ResultPolicy, says: str) -> None:
    """That, in one line, and nothing else."""
    assert first_line(rules, {FIRST: "Two berths\nare busy."}).startswith(says)


@pytest.mark.parametrize(
    "rules",
    [
        ResultPolicy(),
        ResultPolicy(compact_mode="summary"),
        ResultPolicy(compactor="file"),
        ResultPolicy(compactor="tides"),
    ],
    ids=["nothing asked for", "a summary that is not written yet", "a built-in compactor", "one that does not match"],
)
def test_else_it_keeps_the_names_worth_keeping(rules: ResultPolicy) -> None:
    """Built-in compactors are for stubs; a digest keeps more of what will be needed."""
    assert first_line(rules, {}).startswith("> crane_0_0 crane_0_1")
