"""What ``repertory stats`` says is what the run itself counted, and adds up over its tree."""

from __future__ import annotations

import re
from pathlib import Path

import anyio
import pytest
from cli_support import CHILD, OTHER, RUN, Result, invoke
from hypothesis import given
from hypothesis import strategies as st

import repertory as rp
from repertory.errors import ModelUnavailable
from repertory.llm.messages import ToolUse
from repertory.llm.model import ModelRequest
from repertory.llm.profiles import ModelProfile, profile_for
from repertory.record import MemoryJournal, RunStatistics
from repertory.service.reports import percentile
from repertory.service.requests import RunsQuery
from repertory.service.run_reader import RunReader
from repertory.testing import FunctionModel, call

PROFILE = profile_for("claude-sonnet-4-5")


@rp.tool(effect="pure")
def read_log(day: int) -> str:
    """Read the log of a day."""
    return "\n".join(f"day {day}, hour {hour}: ship {day * 100 + hour}" for hour in range(60))


def answers() -> FunctionModel:
    """Reads day after day, some twice, delegates once, then answers."""

    def answer(request: ModelRequest) -> ToolUse | str:
        count = len(model.requests)
        if request.system and "helper" in str(request.system):
            return "Fine."
        if count == 3:
            return call("delegate", agent="helper", task="Think.")
        return call("read_log", day=count % 9) if count <= 14 else "Done."

    model = FunctionModel(answer, name=PROFILE.name, profile=PROFILE)
    return model


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, RunStatistics, RunStatistics]:
    """A run in a database, with what it counted itself: alone, and with the run below it."""
    path = tmp_path_factory.mktemp("stats") / "runs.db"

    async def main() -> tuple[Path, str, RunStatistics, RunStatistics]:
        helper = rp.Agent("helper", instructions="You are the helper.", description="Helps.")
        policy = rp.ContextPolicy(rhythm="strict", window=2, strict_chars=0, summarize_every=4)
        agent = rp.Agent("clerk", tools=[read_log], team=[helper], context=policy)
        alerts = rp.AlertThresholds(tokens=5_000)
        async with rp.open_supervisor(path, model=answers(), alerts=alerts) as supervisor:
            run = await supervisor.spawn(agent, "Read.")
            await run.wait_result()
        return path, run.id, run.statistics(), run.statistics(tree=True)  # a summary may have been under way

    return anyio.run(main)


Counted = tuple[Path, str, RunStatistics, RunStatistics]


def test_the_figures_are_those_that_the_run_counted_itself(counted: Counted, tmp_path: Path) -> None:
    """All of them, worked out again from the record: the plain loop's, too."""
    path, run_id, alone, tree = counted
    for words, own, runs in (([], alone, 1), (["--tree"], tree, 2)):
        total = invoke("stats", run_id, "--db", path, "--json", *words, home=tmp_path).json["total"]
        again = {name: total[name] for name in RunStatistics.__struct_fields__}
        expected = {name: getattr(own, name) for name in RunStatistics.__struct_fields__}
        assert again == pytest.approx(expected)
        assert total["runs"] == runs
    assert tree.tokens_plain > tree.tokens_seen
    assert alone.iterations > 10


@pytest.mark.parametrize(
    ("name", "profile", "cost"),
    [
        (PROFILE.name, PROFILE, r"cost +\$0\.\d+ +plain \$0\.\d+, "),
        ("by-a-gateway", PROFILE, r"cost +\$0\.\d+ +plain \$0\.\d+, "),  # priced when it ran
        ("by-a-gateway", profile_for("by-a-gateway"), r"cost +unknown +plain unknown$"),
    ],
)
def test_a_price_that_nobody_knows_is_not_shown_as_nothing(
    name: str, profile: ModelProfile, cost: str, tmp_path: Path
) -> None:
    """Of the run and of the plain loop, each by itself."""
    path = tmp_path / "runs.db"

    async def main() -> None:
        model = FunctionModel(lambda _: "Done.", name=name, profile=profile)
        async with rp.open_supervisor(path, model=model) as supervisor:
            await (await supervisor.spawn(rp.Agent("clerk"), "Go.")).wait_result()

    anyio.run(main)
    out = invoke("stats", "--db", path, home=tmp_path).out
    assert re.search(cost, out, re.MULTILINE), out


def test_everything_else_adds_up(counted: Counted, tmp_path: Path) -> None:
    """Iterations, purposes, tools, decisions and alerts of a run agree with its sums."""
    path, run_id, alone, _ = counted
    shown = invoke("stats", run_id, "--db", path, "--json", home=tmp_path).json
    (run,) = shown["runs"]
    assert sum(step["prompt_tokens"] for step in run["iterations"]) == alone.tokens_seen
    assert sum(step["plain_tokens"] for step in run["iterations"]) == alone.tokens_plain
    assert sum(of["cost"] for of in run["purposes"].values()) == pytest.approx(alone.cost_seen)
    assert run["tools"]["read_log"]["deduplicated"] == alone.dedup_hits
    assert run["tools"]["delegate"]["calls"] == 1
    assert run["peak_context"] == max(step["prompt_tokens"] for step in run["iterations"])
    assert run["statistics"]["summaries_written"] > 0
    assert run["decisions"]
    assert all(line["tokens_before"] > line["tokens_after"] for line in run["decisions"] if line["kind"] == "strict")
    assert len(run["alerts"]) == shown["total"]["alerts"] == 1
    assert run["estimate"]["prompts"] == alone.iterations - 1
    assert 0 <= run["estimate"]["p50"] <= run["estimate"]["p95"]


def test_a_person_sees_the_chart_and_the_figures(counted: Counted, tmp_path: Path) -> None:
    """View and plain loop, what things cost, which tools, which decisions, and the alert."""
    path, run_id, *_ = counted
    out = invoke("stats", run_id, "--db", path, "--tree", home=tmp_path).out
    for words in ("█", "░", "prompt tokens", "read from cache", "retrievals", "FOR", "agent", "TOOL", "read_log",
                  "DECISION", "strict", "RUN", "helper", "estimate off by", "ALERT clerk:"):  # fmt: skip
        assert words in out, words


def test_a_summary_that_fell_back_is_told_from_one_that_was_written(tmp_path: Path) -> None:
    """The model was asked and gave nothing; its failed calls and the extract in their place both show."""
    path = tmp_path / "runs.db"

    def broken(request: ModelRequest) -> str:
        raise ModelUnavailable("no")

    async def main() -> None:
        policy = rp.ContextPolicy(rhythm="strict", window=2, strict_chars=0, summarize_every=4)
        agent = rp.Agent("clerk", tools=[read_log], context=policy)
        strategy = FunctionModel(broken)
        async with rp.open_supervisor(path, model=answers(), summaries=strategy) as supervisor:
            await (await supervisor.spawn(agent, "Read.")).wait_result()

    anyio.run(main)
    (run,) = invoke("stats", "--db", path, "--json", home=tmp_path).json["runs"]
    assert run["statistics"]["summaries_fallback"] > 0
    assert run["purposes"]["summary"]["failed"] == run["purposes"]["summary"]["calls"] > 0


def test_hostile_text_cannot_steer_the_terminal(made: Path, tmp_path: Path) -> None:
    """Agents, tools and reasons are shown spelled out."""
    for run_id in (RUN, CHILD):
        shown = invoke("stats", run_id, "--db", made, "--tree", home=tmp_path)
        assert shown.code == 0
        assert not {"\x1b", "\x9b", "\u202e"} & set(shown.out)


def test_a_run_without_a_model_call_has_nothing_to_count(made: Path, tmp_path: Path) -> None:
    """No chart, no division by nothing."""
    total = invoke("stats", CHILD, "--db", made, "--json", home=tmp_path).json["total"]
    assert (total["iterations"], total["average_context"], total["estimate"]["p95"]) == (0, 0, None)


def test_a_run_that_no_process_works_on_is_not_said_to_be_running(made: Path, tmp_path: Path) -> None:
    """It has the same state wherever it is shown."""
    (listed,) = (run for run in invoke("ps", "--db", made, "--json", home=tmp_path).json["runs"] if run["id"] == OTHER)
    stats = invoke("stats", OTHER, "--tree", "--db", made, "--json", home=tmp_path).json["runs"]
    record = invoke("ledger", OTHER, "--db", made, "--json", home=tmp_path).json
    assert [listed["state"], *(run["state"] for run in stats), record["state"]] == ["interrupted"] * 3
    out = invoke("stats", OTHER, "--tree", "--db", made, home=tmp_path).out
    assert out.startswith(f"lead {OTHER}, interrupted, 1 run\n")


def test_the_list_of_runs_asks_the_database_three_times_however_many_there_are() -> None:
    """``ps`` stays quick: what runs cost is added up where the records are."""
    asked: list[str] = []

    class Asked(MemoryJournal):
        def __getattribute__(self, name: str) -> object:
            if name.startswith("read_"):
                asked.append(name)
            return super().__getattribute__(name)

    async def main() -> None:
        journal = Asked()
        async with rp.open_supervisor(journal=journal, model=FunctionModel(lambda _: "Done.")) as supervisor:
            for _ in range(5):
                await (await supervisor.spawn(rp.Agent("a"), "Go.")).wait_result()
        asked.clear()
        runs = (await RunReader(journal, lambda _: False).list_runs(RunsQuery(limit=10, figures="yes"))).runs
        assert [run.figures.iterations for run in runs if run.figures is not None] == [1] * 5

    anyio.run(main)
    assert asked == ["read_roots", "read_trees", "read_statistics"]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50), st.sampled_from([0.5, 0.95, 1.0]))
def test_a_percentile_bounds_its_share(values: list[float], share: float) -> None:
    """At least that share is not above it, and less than that is below it."""
    found = percentile(values, share)
    assert found is not None
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    assert sum(value < found for value in values) < share * len(values) + 1e-9


def test_a_tree_can_be_read_on_a_terminal_of_80_columns(demo: Result, demo_home: Path) -> None:
    """No figure is cut: what has no room is left out; sub-agents stand below their run, under their part of its id."""
    result = invoke("stats", "--tree", home=demo_home, env={"COLUMNS": "80"})
    lines = result.out.splitlines()
    assert max(map(len, lines)) <= 80
    head = next(number for number, line in enumerate(lines) if line.startswith("RUN "))
    rows = lines[head : head + 1 + demo.json["agents"]]
    assert not any("…" in row for row in rows)
    below = demo.json["agents"] - 1
    assert [row.split()[0] for row in rows[1:]] == [demo.json["run_id"], *"├" * (below - 1), "└"]
    assert all(row.split()[1].startswith(".") for row in rows[2:])
    assert all("done" in row.split() for row in rows[1:])
