"""A run whose model has no key is refused before it is on record."""

from __future__ import annotations

from pathlib import Path

import pytest

import repertory as rp
from backends import RunAsync
from repertory.errors import ModelAuthenticationError
from repertory.llm.anthropic import AnthropicModel
from repertory.testing import FunctionModel


@pytest.fixture(autouse=True)
def _without_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(tmp_path))


def test_nothing_is_recorded_of_a_run_whose_model_has_no_key(
    run_async: RunAsync, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own model or one of its team; with a key, or with a server that needs none, it begins."""
    clerk = rp.Agent("clerk", model="claude-sonnet-5-5", context=None)
    lead = rp.Agent("lead", model=FunctionModel(lambda _: "Done."), team=[clerk], context=None)

    async def main() -> None:
        async with rp.open_supervisor() as supervisor:
            for agent in (clerk, lead):
                with pytest.raises(ModelAuthenticationError, match="set ANTHROPIC_API_KEY"):
                    await supervisor.spawn(agent, "Sort.")
            assert await supervisor.runs() == []
            monkeypatch.setenv("ANTHROPIC_API_KEY", "key")
            run = await supervisor.spawn(lead, "Sort.")
            assert await run.wait_result() == "Done."
            monkeypatch.delenv("ANTHROPIC_API_KEY")
        await AnthropicModel("x", base_url="http://127.0.0.1:1").check_key()
        await AnthropicModel("x", api_key="key").check_key()

    run_async(main)
