"""What a plain loop would have cost in a run's place, and the figures of a tree of runs while it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakValueDictionary

import msgspec

from repertory.llm.model import Usage
from repertory.llm.profiles import ModelProfile, cost_of
from repertory.record import Journal, ModelReplied, Record, RunStatistics
from repertory.record.statistics import count_in


def plain_usage(profile: ModelProfile, *, prompt: int, previous_prompt: int, output: int) -> Usage:
    """What a plain loop's call would have been billed.

    It appends and never edits, so all of its previous prompt is read from the cache and the rest is written.

    Args:
        profile: The model.
        prompt: Tokens of this prompt.
        previous_prompt: Tokens of the one before; 0 for the first call.
        output: Tokens of the answer.
    """
    if profile.cache.breakpoints == 0 or prompt < profile.cache.minimum_tokens:
        return Usage(input_tokens=prompt, output_tokens=output)
    read = min(previous_prompt, prompt) if previous_prompt >= profile.cache.minimum_tokens else 0
    return Usage(cache_read_tokens=read, cache_write_tokens=prompt - read, output_tokens=output)


def with_plain(
    replied: ModelReplied, profile: ModelProfile, *, view_estimate: int, record_estimate: int, previous: int
) -> ModelReplied:
    """Write into the record of an answered call what a plain loop's call in its place would have been.

    Args:
        replied: The record.
        profile: The model that was called.
        view_estimate: Tokens that the prompt was estimated to have.
        record_estimate: Tokens that a plain loop's prompt is estimated to have, by the same estimator; it is corrected
            by how far off the first estimate was.
        previous: Tokens of the plain loop's prompt before; 0 for the first call.
    """
    prompt = replied.usage.prompt_tokens
    plain = round(record_estimate * prompt / view_estimate) if view_estimate else prompt
    usage = plain_usage(profile, prompt=plain, previous_prompt=previous, output=replied.usage.output_tokens)
    return msgspec.structs.replace(replied, plain_tokens=plain, plain_cost=cost_of(profile, usage))


class Tally:
    """The figures of every run of one tree. Whoever holds it sees them grow with what becomes durable."""

    def __init__(self, by_run: dict[str, RunStatistics] | None = None) -> None:
        self.by_run = dict(by_run or {})

    def of(self, run_id: str) -> RunStatistics:
        """The figures of one run."""
        return self.by_run.get(run_id, RunStatistics())

    def tree(self, run_id: str) -> RunStatistics:
        """The sum over a run and all runs below it."""
        below = f"{run_id}."
        return sum((now for name, now in list(self.by_run.items()) if name.startswith(below)), start=self.of(run_id))


class Tallies:
    """Keeps the tallies of a journal's trees up with its commits, for as long as somebody holds them."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._of_root: WeakValueDictionary[str, Tally] = WeakValueDictionary()
        self.close = journal.observe(self._committed)

    def begin(self, root_id: str) -> Tally:
        """A tally for a tree that has no record yet."""
        return self._of_root.setdefault(root_id, Tally())

    async def open(self, root_id: str) -> Tally:
        """The tally of a tree that has a record."""
        tally = self._of_root.get(root_id)
        if tally is None:
            tally = self._of_root[root_id] = Tally(await self._journal.read_statistics(root_id))
        return tally

    def _committed(self, records: Sequence[Record]) -> None:
        for record in records:
            # The id of a run below another begins with the other's and a dot.
            tally = self._of_root.get(getattr(record, "run_id", "").partition(".")[0])
            if tally is not None:
                count_in(tally.by_run, record)
