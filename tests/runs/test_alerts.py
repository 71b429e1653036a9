"""When a run's figures are worth an alert, and that each crossing is said once."""

from __future__ import annotations

import logging
import math
import re
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest

import repertory as rp
from backends import RunAsync
from context_scenes import Reader, clerk, read_log
from repertory.errors import ConfigurationError
from repertory.record import RunStatistics
from repertory.runs.alerts import AlertThresholds, Watch, crossings
from repertory.runs.events import Alert, ContextEdited
from repertory.testing import ScriptedModel, call, open_messages_server
from repertory.testing.faults import Raw

DOCUMENTED = AlertThresholds()
COMMON: dict[str, Any] = {"run_id": "run-1", "agent": "clerk", "iteration": 1, "at": 0.0}


EVERYTHING = RunStatistics(tool_calls=10, retrievals=9, summaries_refused=1)


@pytest.mark.parametrize(
    ("figures", "tokens", "metrics"),
    [
        (RunStatistics(), 0, []),
        (RunStatistics(), 80_000, []),
        (RunStatistics(), 80_001, ["tokens"]),
        (RunStatistics(tool_calls=10, retrievals=1), 0, []),
        (RunStatistics(tool_calls=10, retrievals=2), 0, ["retrieval_share"]),
        (RunStatistics(tool_calls=9, retrievals=9), 0, []),
        (RunStatistics(summaries_written=99, summaries_refused=1), 0, []),
        (RunStatistics(summaries_written=98, summaries_refused=1), 0, ["summary_failures"]),
        (RunStatistics(summaries_written=98, summaries_fallback=1), 0, ["summary_failures"]),
        (EVERYTHING, 90_000, ["tokens", "retrieval_share", "summary_failures"]),
    ],
)
def test_a_figure_is_worth_an_alert_only_beyond_its_threshold(
    figures: RunStatistics, tokens: int, metrics: list[str]
) -> None:
    """The documented thresholds: at them all is well, and a handful of tool calls says nothing yet."""
    assert [crossing.metric for crossing in crossings(figures, DOCUMENTED, tokens=tokens)] == metrics


def test_a_reason_has_the_figure_and_the_threshold() -> None:
    """Whoever reads the log needs to look nothing up."""
    (tokens,) = crossings(RunStatistics(), DOCUMENTED, tokens=81_234)
    assert tokens.reason == "81,234 prompt tokens in the last 16 iterations, more than 80,000"
    assert (tokens.value, tokens.threshold) == (81_234, 80_000)
    (share,) = crossings(RunStatistics(tool_calls=20, retrievals=5), DOCUMENTED, tokens=0)
    assert share.reason == "25.0% of 20 tool calls look something up again, more than 10.0%"


@pytest.mark.parametrize(
    ("billed", "estimate", "alerts"), [(0, 3_999, 0), (0, 4_000, 1), (999, 4_000, 1), (1_000, 4_000, 0), (90_000, 0, 0)]
)
def test_a_bill_far_below_the_estimate_is_worth_an_alert(billed: int, estimate: int, alerts: int) -> None:
    """A prompt of 16 kB that cost fewer than 1,000 tokens was not read whole, or not billed as it should be."""
    found = crossings(RunStatistics(), DOCUMENTED, tokens=0, billed=billed, estimate=estimate)
    assert [crossing.metric for crossing in found] == ["billed_share"] * alerts
    for crossing in found:
        assert crossing.reason.startswith(f"the server billed {billed:,} tokens for a prompt of about {estimate:,}")
    silent = crossings(RunStatistics(), AlertThresholds(billed_share=None), tokens=0, billed=billed, estimate=estimate)
    assert not silent


def test_none_switches_one_alert_off() -> None:
    """Each by itself."""
    for name in ("tokens", "retrieval_share", "summary_failures"):
        left = crossings(EVERYTHING, AlertThresholds(**{name: None}), tokens=90_000)  # type: ignore[arg-type]
        assert name not in [crossing.metric for crossing in left]
        assert len(left) == 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tokens": -1}, "alerts.tokens must be a whole number of at least 0 or None, got -1"),
        ({"tokens": "x"}, "alerts.tokens must be a whole number of at least 0 or None, got 'x'"),
        ({"tokens": True}, "alerts.tokens must be a whole number"),
        ({"tokens": math.nan}, "alerts.tokens must be a whole number"),
        ({"window": 0}, "alerts.window must be a whole number of at least 1, got 0"),
        ({"window": 2.5}, "alerts.window must be a whole number of at least 1, got 2.5"),
        ({"window": None}, "alerts.window must be a whole number of at least 1, got None"),
        ({"least_tool_calls": True}, "alerts.least_tool_calls must be a whole number of at least 1, got True"),
        ({"retrieval_share": math.nan}, "alerts.retrieval_share must be a number from 0 to 1 or None, got nan"),
        ({"retrieval_share": 10}, "alerts.retrieval_share must be a number from 0 to 1 or None, got 10"),
        ({"least_estimate": 0}, "alerts.least_estimate must be a whole number of at least 1, got 0"),
        ({"billed_share": 1.5}, "alerts.billed_share must be a number from 0 to 1 or None, got 1.5"),
        ({"summary_failures": "1%"}, "alerts.summary_failures must be a number from 0 to 1 or None, got '1%'"),
    ],
)
def test_thresholds_that_make_no_sense_are_refused(fields: dict[str, Any], words: str) -> None:
    """Nothing can be below zero, no iterations have no tokens, and what is no number is no threshold."""
    with pytest.raises(ConfigurationError, match=words):
        AlertThresholds(**fields)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"alerts": 5}, "open_supervisor: alerts must be AlertThresholds, or None for no alerts, got 5"),
        ({"alerts": True}, "open_supervisor: alerts must be AlertThresholds"),
        ({"summaries": object()}, "open_supervisor: summaries must be a Model, the name of one, or several, got <obj"),
        ({"summaries": ScriptedModel}, "open_supervisor: summaries must be a Model"),
        ({"summaries": ["offline", None]}, "open_supervisor: summaries must be a Model, the name of one, or several"),
        ({"summaries": "no such"}, "malformed model name 'no such'"),
    ],
)
async def test_a_supervisor_takes_nothing_that_would_only_fail_later(options: dict[str, Any], words: str) -> None:
    """Also the name of a model that nobody can reach: it would be summaries without a model that nobody asked for."""
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        async with rp.open_supervisor(**options):
            pass


def test_only_the_last_iterations_count_and_a_crossing_is_said_once() -> None:
    """It is said again only after the figure was back below."""
    watch = Watch(AlertThresholds(tokens=100, window=2))
    said = []
    for tokens in (60, 60, 60, 10, 10, 95, 10):
        watch.saw_prompt(tokens)
        said.append([crossing.value for crossing in watch.check(RunStatistics())])
    assert said == [[], [120], [], [], [], [105], []]


async def test_a_run_raises_an_alert_and_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    """One event per crossing, in the journal too, and one line at WARNING, at the end of its iteration."""
    model = ScriptedModel([*(call("read_log", day=day) for day in range(1, 6)), "Done."])
    alerts = rp.AlertThresholds(tokens=2_000, window=3)
    with caplog.at_level(logging.INFO, logger="repertory"):
        async with rp.open_supervisor(model=model, alerts=alerts) as supervisor:
            run = await supervisor.spawn(rp.Agent("clerk", tools=[read_log], context=None), "Read.")
            await run.wait_result()
            heard = [event async for event in run.events() if isinstance(event, Alert)]
            kept = [event for _, event in await supervisor.journal.read_events(run.id) if event.type == "Alert"]
    (alert,) = heard
    assert alert.metric == "tokens"
    assert 2_000 < alert.value < 6_000
    assert [event.body["reason"] for event in kept] == [alert.reason]
    (line,) = [record for record in caplog.records if vars(record).get("event") == "alert"]
    assert (line.levelno, line.reason, line.run) == (logging.WARNING, alert.reason, run.id)  # type: ignore[attr-defined]
    sizes = [record.view_tokens for record in caplog.records if vars(record).get("event") == "iteration.started"]  # type: ignore[attr-defined]
    assert len(sizes) == 6
    assert sizes == sorted(sizes)


def test_a_server_that_bills_next_to_nothing_is_told_on(run_async: RunAsync) -> None:
    """A server that cuts prompts, or whose bill is wrong: the run goes on, and the alert says what is the matter."""
    usage = {"input_tokens": 5, "output_tokens": 1}
    answer = {"id": "m", "model": "x", "content": [{"type": "text", "text": "Done."}], "usage": usage}
    raw = Raw(200, {"content-type": "application/json"}, msgspec.json.encode(answer))

    async def main() -> None:
        async with (
            open_messages_server(ScriptedModel([]), faults=[raw]) as server,
            aclosing(rp.AnthropicModel("claude-haiku-4-5", base_url=server.url)) as model,
            rp.open_supervisor(model=model) as supervisor,
        ):
            run = await supervisor.spawn(rp.Agent("clerk"), "Read. " * 4_000)
            assert await run.wait_result() == "Done."
            (alert,) = [event async for event in run.events() if isinstance(event, Alert)]
            assert alert.metric == "billed_share"
            assert "billed 5 tokens for a prompt of about 6,0" in alert.reason

    run_async(main)


async def test_alerts_can_be_switched_off() -> None:
    """``alerts=None`` is silence, whatever the figures."""
    model = ScriptedModel([*(call("read_log", day=day) for day in range(1, 6)), "Done."])
    async with rp.open_supervisor(model=model, alerts=None) as supervisor:
        run = await supervisor.spawn(clerk(), "Read.")
        await run.wait_result()
        assert not [event async for event in run.events() if isinstance(event, Alert)]


def test_a_resumed_run_does_not_repeat_its_alerts(tmp_path: Path, run_async: RunAsync) -> None:
    """What an earlier process said is not said again; the window goes on where it was."""
    alerts = rp.AlertThresholds(tokens=2_000, window=50)
    agent = rp.Agent("clerk", tools=[read_log], context=None, limits=rp.Limits(iterations=5))
    wider = rp.Agent("clerk", tools=[read_log], context=None)

    async def main() -> None:
        steps = [call("read_log", day=day) for day in range(1, 7)]
        async with rp.open_supervisor(tmp_path / "a.db", model=ScriptedModel(steps), alerts=alerts) as supervisor:
            run = await supervisor.spawn(agent, "Read.")
            with pytest.raises(Exception, match="no answer after 5"):
                await run.wait_result()
        steps = [call("read_log", day=7), "Done."]  # type: ignore[list-item]
        async with rp.open_supervisor(tmp_path / "a.db", model=ScriptedModel(steps), alerts=alerts) as supervisor:
            again = await supervisor.resume(run.id, agent=wider)
            assert await again.wait_result() == "Done."
            events = await supervisor.journal.read_events(run.id)
        assert [event.type for _, event in events].count("Alert") == 1

    run_async(main)


async def test_an_edit_says_how_large_the_prompt_was_and_is() -> None:
    """Before and after, in tokens, at every compaction."""
    reader = Reader(7, stop_at=0)
    async with rp.open_supervisor(model=reader.model) as supervisor:
        run = await supervisor.spawn(clerk(), "Read.")
        await run.wait_result()
        edits = [event async for event in run.events() if isinstance(event, ContextEdited)]
    assert edits
    for edit in edits:
        assert edit.tokens_before > edit.tokens_after > 0
