"""Characters that no encoding can write do not poison a run."""

from __future__ import annotations

import pytest

import repertory as rp
from repertory._json_text import canonical_json
from repertory.llm.messages import text_of
from repertory.llm.model import encode_request
from repertory.testing import ScriptedModel, call


@rp.tool(effect="pure")
def echo(text: str) -> str:
    """Say it again."""
    return text


@pytest.mark.parametrize("context", [None, rp.ContextPolicy(), rp.ContextPolicy(rhythm="strict")])
async def test_they_come_from_models_and_users_and_the_run_goes_on(context: rp.ContextPolicy | None) -> None:
    """A task, a call and an answer hold one; every request can be sent, and the record keeps what came."""
    model = ScriptedModel([call("echo", text="a\ud800b"), "\udfff done"])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk", tools=[echo], context=context), "task \udfff")
        assert await run.wait_result() == "\udfff done"
        entries = await supervisor.journal.read_entries(run.id)
        assert text_of(entries[0].content) == "task \udfff"
    for request in model.requests:
        assert b"\\ud" not in canonical_json(encode_request(request))
