"""What a run cost, and what a plain loop would have cost in its place."""

from __future__ import annotations

import msgspec

from repertory.llm.model import Usage
from repertory.llm.profiles import ModelProfile, cost_of


class RunStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one run, or the sum over a tree of runs.

    A plain loop sends the whole record at every call, nothing shortened, with a cache breakpoint at the end.

    Attributes:
        iterations: Model calls of the loop.
        tokens_seen: Prompt tokens that the model was shown, over all calls, as billed.
        tokens_plain: Prompt tokens that a plain loop would have sent for the same iterations.
        cost_seen: US dollars, the summarizer's calls included.
        cost_plain: US dollars of the plain loop, cache reads and writes priced as the provider would.
        view_tokens: The newest prompt.
        record_tokens: The prompt that a plain loop would send now.
        summaries: Summaries swapped in.
        summaries_failed: Summaries, of single results too, that were refused, or failed: also where an extractive one
            took their place.
        retrievals: Calls of the tools that look something up again.
        retrievals_covered: Those of them that brought back what a summary or digest stood for: what it lacked.
        tool_calls: All tool calls.
        dedup_hits: Tool calls answered from an earlier, identical one.
        runs: How many runs the figures are about.
        listener_errors: How often a lifecycle listener raised.
    """

    iterations: int = 0
    tokens_seen: int = 0
    tokens_plain: int = 0
    cost_seen: float = 0.0
    cost_plain: float = 0.0
    view_tokens: int = 0
    record_tokens: int = 0
    output_tokens: int = 0
    summaries: int = 0
    retrievals: int = 0
    retrievals_covered: int = 0
    tool_calls: int = 0
    dedup_hits: int = 0
    runs: int = 1
    listener_errors: int = 0
    summaries_failed: int = 0

    @property
    def retrieval_rate(self) -> float:
        """Retrievals of what a summary stood for, for each summary in use: near 0 they say what was needed."""
        return self.retrievals_covered / self.summaries if self.summaries else 0.0

    def __add__(self, other: RunStatistics) -> RunStatistics:
        mine, theirs = msgspec.structs.asdict(self), msgspec.structs.asdict(other)
        return RunStatistics(**{name: mine[name] + theirs[name] for name in mine})


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


class Meter:
    """Adds up one run while it goes on."""

    def __init__(self) -> None:
        self.statistics = RunStatistics()

    def reset(self) -> None:
        """Begin again, to count a record from its beginning; what events alone tell stays."""
        self.statistics = RunStatistics(summaries_failed=self.statistics.summaries_failed)

    def count_call(self, profile: ModelProfile, usage: Usage, *, view_estimate: int, record_estimate: int) -> None:
        """Count one of the loop's model calls.

        Args:
            profile: The model that was called.
            usage: What it billed.
            view_estimate: Tokens that the prompt was estimated to have.
            record_estimate: Tokens that a plain loop's prompt is estimated to have, by the same estimator; it is
                corrected by how far off the first estimate was.
        """
        now = self.statistics
        prompt = usage.prompt_tokens
        plain = round(record_estimate * prompt / view_estimate) if view_estimate else prompt
        as_plain = plain_usage(profile, prompt=plain, previous_prompt=now.record_tokens, output=usage.output_tokens)
        self.statistics = msgspec.structs.replace(
            now,
            iterations=now.iterations + 1,
            tokens_seen=now.tokens_seen + prompt,
            tokens_plain=now.tokens_plain + plain,
            cost_seen=now.cost_seen + cost_of(profile, usage),
            cost_plain=now.cost_plain + cost_of(profile, as_plain),
            view_tokens=prompt,
            record_tokens=plain,
            output_tokens=now.output_tokens + usage.output_tokens,
        )

    def add(self, **figures: float) -> None:
        """Add to some of the figures: ``meter.add(tool_calls=1)``."""
        now = self.statistics
        self.statistics = msgspec.structs.replace(
            now, **{name: getattr(now, name) + value for name, value in figures.items()}
        )
