"""Summaries that are there already: what was summarized once in a tree of runs is not paid again."""

from __future__ import annotations

from repertory._ids import root_of
from repertory.llm.messages import text_of
from repertory.record import Journal
from repertory.summarizer.frames import Written
from repertory.summarizer.messages import RESULT_SUMMARIZED

_MOST = 1_000  # texts of a few kB each; one that was let go costs a model call at worst


class KeptSummaries:
    """Finds summaries by what they were made from, in the record of the run and of those of its tree at work here."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._texts: dict[tuple[str, str], Written] = {}  # by root run and key; the longest unused first

    async def find(self, run_id: str, key: str) -> Written | None:
        """The summary with this key that was made for the run or another one of its tree; None for none."""
        if (run_id, "") not in self._texts:
            await self._read(run_id)
        text = self._texts.get((root_of(run_id), key))
        if text is not None:
            self.add(run_id, text)
        return text

    def add(self, run_id: str, text: Written) -> None:
        """Keep a text for the tree of a run, until others need the room. The record keeps it for good."""
        if text.key:
            self._put((root_of(run_id), text.key), text)

    async def _read(self, run_id: str) -> None:
        for summary in await self._journal.read_summaries(run_id):
            self.add(run_id, Written(text_of(summary.content), summary.model, key=summary.key))
        for _, event in await self._journal.read_events(run_id, types=[RESULT_SUMMARIZED]):
            self.add(run_id, Written(event.body["text"], key=event.body.get("key", "")))
        self._put((run_id, ""), Written(""))  # marks the run as read

    def _put(self, place: tuple[str, str], text: Written) -> None:
        self._texts.pop(place, None)
        self._texts[place] = text
        while len(self._texts) > _MOST:
            del self._texts[next(iter(self._texts))]
