"""The worked companies do what they are there to show, and the one that reads much sends little."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import repertory as rp
from repertory._json_text import canonical_json
from repertory.llm import ModelRequest, ModelResponse, StreamEvent
from repertory.llm.estimate import estimate_tokens
from repertory.llm.model import encode_request
from repertory.testing import FunctionModel
from repertory.tools.citations import check_citations

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


class Weighed(rp.OfflineModel):
    """The offline model, and how many bytes each request had that it was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    async def complete(
        self, request: ModelRequest, *, on_event: Callable[[StreamEvent], Any] | None = None
    ) -> ModelResponse:
        """Answer, and take the weight."""
        self.sizes.append(len(canonical_json(encode_request(request))))
        return await super().complete(request, on_event=on_event)


async def test_the_research_company_reads_much_and_sends_little() -> None:
    """50 documents and more, every request under 50 kB, a tenth of a plain loop's tokens, about 900 for a document."""
    company = runpy.run_path(str(EXAMPLES / "research_company.py"))
    model = Weighed()
    async with rp.open_supervisor(model=model) as supervisor:
        question = company["QUESTION"]
        run = await supervisor.spawn(company["lead"], question, payload=company["Research"](topic="waiting"))
        answer = await run.wait_result()
        by_agent = {each.agent.name: await supervisor.journal.read_entries(each.id) for each in run.children}
    entries = [entry for each in by_agent.values() for entry in each]
    fetched = [entry for entry in entries if entry.tool == "fetch_document" and entry.original_length]
    passages = [entry for entry in entries if entry.tool == "retrieve_content"]
    characters = sum(entry.original_length or 0 for entry in fetched)
    assert len(fetched) >= 50
    assert characters / len(fetched) > 20_000

    assert max(model.sizes) < 50_000
    figures = run.statistics(tree=True)
    assert figures.tokens_seen < 0.1 * figures.tokens_plain
    in_view = sum(estimate_tokens(entry.content) for entry in [*fetched, *passages])
    assert in_view / len(fetched) < 900

    citations = check_citations(answer, company["LIBRARY"])
    assert len(citations) >= 5
    assert [citation for citation in citations if not citation.resolved] == []

    # Whichever researcher read a document, the lead's payload has it as a source, once and with its true length.
    researchers = [entry for name in by_agent if name != "fact_checker" for entry in by_agent[name]]
    read = {entry.url: entry.original_length for entry in researchers if entry.tool == "fetch_document"}
    assert len(run.payload.sources) == len(read)
    assert {source.url: source.length for source in run.payload.sources} == read


async def test_the_fact_checker_reads_the_teams_memory_and_changes_nothing() -> None:
    """It begins when the reports are in, sees what was stored until then, and its scope has nothing of its own."""
    company = runpy.run_path(str(EXAMPLES / "research_company.py"))
    async with rp.open_supervisor(model=rp.OfflineModel()) as supervisor:
        run = await supervisor.spawn(company["lead"], company["QUESTION"], payload=company["Research"](topic="x"))
        await run.wait_result()
        by_agent = {child.agent.name: child for child in run.children}
        assert sorted(by_agent) == ["fact_checker", "researcher_a", "researcher_b", "researcher_c"]
        starts = {name: (await supervisor.journal.read_run(child.id)).started.at for name, child in by_agent.items()}
        assert max(starts, key=lambda name: starts[name]) == "fact_checker"
        called = {entry.tool for entry in await supervisor.journal.read_entries(by_agent["fact_checker"].id)}
        assert "memory_store" not in called


async def test_the_reviewers_of_the_review_company_do_not_see_each_other() -> None:
    """Each has the lead's memory and its own rating, its findings are of their type, and the last two conflict."""
    company = runpy.run_path(str(EXAMPLES / "review_company.py"))
    async with rp.open_supervisor(model=FunctionModel(company["play"])) as supervisor:
        run = await supervisor.spawn(company["lead"], "Review the change of accounts.py.")
        verdict = await run.wait_result()
        assert isinstance(verdict, company["Verdict"])
        assert [finding.severity for finding in verdict.findings] == ["high", "high", "low"]
        children = {child.agent.name: child for child in run.children}
        ratings = [(await child.memory.retrieve("/memories/rating.md")).content for child in children.values()]
        assert len(set(ratings)) == 3
        assert await run.memory.query() == []
        reports = [await children[name].memory.merge() for name in ("bugs", "security", "style")]
        assert [(len(report.written), len(report.conflicts)) for report in reports] == [(1, 0), (0, 1), (0, 1)]
