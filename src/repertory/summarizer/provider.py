"""The provider's own summary: signed, written by the run's own model, and legal where no other summary is."""

from __future__ import annotations

from repertory.errors import ModelResponseInvalid
from repertory.llm.features import compaction_request, compaction_text, is_compaction
from repertory.llm.model import Model
from repertory.summarizer.strategies import SummaryTask, SummaryText

# It replaces the provider's prompt, so it says all: without the last sentence a model may call a tool instead.
INSTRUCTIONS = """\
Summarize this conversation so that the work can go on from your summary alone; the messages themselves will be gone. \
Write under these headings, leaving out those for which there is nothing:
GOAL: what the user wants.
CONSTRAINTS: every requirement, limit and preference, word for word.
FACTS: what was found out, with the exact identifiers, paths, numbers, addresses and error texts.
DECISIONS: what was decided, and why.
OPEN: what is still to be done, and what was being done last.
LOOKUP: citations and iterations whose originals are worth reading again, and for what.
Never invent, keep identifiers exactly as they are, and carry over what an earlier summary says and still holds. \
Do not call tools; respond with the summary text only."""


class ProviderStrategy:
    """Asks the provider for a signed summary of exactly one request that was sent.

    The call is that request with one field more, so it reads the prompt cache that the request wrote, and costs little
    more than the summary's own tokens.

    Args:
        model: The run's own model: another one's summary would leave the thinking behind it invalid.
        instructions: What the summary must hold, at most 16,384 characters; "" for the provider's own prompt.
    """

    name = "provider"

    def __init__(self, model: Model, *, instructions: str = INSTRUCTIONS) -> None:
        self._model = model
        self._instructions = instructions

    async def summarize(self, task: SummaryTask) -> SummaryText:
        """Ask once.

        Raises:
            ModelError: There was no answer.
            ValueError: The task has no request to summarize.
            ModelResponseInvalid: The answer is no summary; its message has the stop reason.
        """
        if task.request is None:
            raise ValueError("the provider summarizes requests; Summarize.request is None")
        request = compaction_request(task.request, instructions=self._instructions)
        replied = task.log(request, self._model.profile)
        try:
            response = await self._model.complete(request)
        except BaseException as error:
            replied(error)
            raise
        replied(response)
        text = compaction_text(response.content)
        blocks = [block for block in response.content if is_compaction(block)]
        if response.stop_reason != "compaction" or len(blocks) != 1 or not text.strip():
            raise ModelResponseInvalid(
                f"no summary came of the compaction: stop reason {response.stop_reason!r}, {len(blocks)} blocks"
            )
        return SummaryText(text, self._model.name, content=tuple(blocks))
