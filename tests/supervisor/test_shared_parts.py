"""What runs share with each other: a journal, models opened by name, and a summarizer with much to do."""

from __future__ import annotations

import pytest

import repertory as rp
from backends import RunAsync
from repertory.errors import ConfigurationError, JournalLocked, MailboxFull, ModelError
from repertory.llm import ModelRequest
from repertory.llm.messages import Message, Text
from repertory.record import open_journal
from repertory.runs.events import AnyEvent, SummaryRefused
from repertory.runs.models import open_models
from repertory.summarizer import SummarizeResult
from repertory.testing import FunctionModel, ScriptedModel, call
from repertory.testing.server import open_messages_server


@rp.tool(effect="pure")
async def look(number: int) -> str:
    """Look."""
    return f"{number} " * 2_000


def test_a_model_that_was_opened_by_its_name_is_closed_with_the_supervisor(
    run_async: RunAsync, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connections are released, also when the block is cancelled; one that was handed in is its owner's."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key")

    async def main() -> None:
        async with open_messages_server(lambda request: "Done.") as server:
            monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
            own = rp.AnthropicModel("claude-haiku-4-5", base_url=server.url)
            async with open_models(None) as models:
                opened, again = models.get("claude-haiku-4-5"), models.get("claude-haiku-4-5")
                assert opened is again
                assert models.get(own) is own
                for model in (opened, own):
                    await model.complete(
                        ModelRequest(model=model.name, max_tokens=100, messages=(Message("user", (Text("Go."),)),))
                    )
            assert opened._client is None  # type: ignore[attr-defined]
            assert own._client is not None
            await own.aclose()

    run_async(main)


async def test_a_model_that_cannot_be_closed_keeps_no_other_open() -> None:
    """What it raises is logged; nobody waits for the result of a good-bye."""
    closed = []

    class Stubborn(ScriptedModel):
        async def aclose(self) -> None:
            closed.append(self.name)
            raise ModelError("no")

    async with open_models(None) as models:
        models.opened.update({name: Stubborn([], name=name) for name in ("a", "b")})
    assert closed == ["a", "b"]


@pytest.mark.parametrize("mode", ["range", "result"])
async def test_a_summarizer_whose_mailbox_is_full_crashes_no_run(mode: str) -> None:
    """It refuses, which is an event like any other refusal, and the run goes on to its answer."""
    results = rp.ResultPolicy(compact_mode="summary") if mode == "result" else rp.ResultPolicy()
    policy = rp.ContextPolicy(rhythm="strict", window=2, summarize_every=1 if mode == "range" else 0, results=results)
    agent = rp.Agent("a", tools=[look], context=policy)
    model = ScriptedModel([*(call("look", number=number) for number in range(3)), "Done."])
    async with rp.open_supervisor(model=model) as supervisor:
        summarizer = supervisor._runtime.shared.summarizer
        summarizer.pause()
        with pytest.raises(MailboxFull):
            while True:
                summarizer.tell(SummarizeResult(run_id="nobody", position=0, text=""))
        run = await supervisor.spawn(agent, "Go.")
        events: list[AnyEvent] = [event async for event in run.events()]
        assert await run.wait_result() == "Done."
        refused = [event for event in events if isinstance(event, SummaryRefused)]
        assert run.statistics().summaries_refused == len(refused) >= 3
        summarizer.resume()


async def test_a_journal_has_one_supervisor_at_a_time() -> None:
    """A second one would make the calls of a run again that the first is making, and one of the two would fail it."""
    async with open_journal() as journal:
        model = FunctionModel(lambda _: "Done.")
        async with rp.open_supervisor(journal=journal, model=model) as supervisor:
            with pytest.raises(JournalLocked, match="another supervisor in this process"):
                async with rp.open_supervisor(journal=journal):
                    pass
            run = await supervisor.spawn(rp.Agent("clerk"), "Go.", run_id="run-1")
            assert await run.wait_result() == "Done."
        with pytest.raises(ConfigurationError, match="path must be given to open_journal"):
            async with rp.open_supervisor("runs.db", journal=journal):
                pass
        async with rp.open_supervisor(journal=journal, model=model) as supervisor:
            assert await (await supervisor.resume("run-1", agent=rp.Agent("clerk"))).wait_result() == "Done."
