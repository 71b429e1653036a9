"""Splitting a question for a team, and composing one answer from what the team found."""

from __future__ import annotations

import re

from repertory.llm.messages import Block, Text, ToolUse
from repertory.llm.offline.compose import choose, findings_in
from repertory.llm.offline.research import FINDING, PART_OF, PHASES, items_in, wanted_in
from repertory.llm.offline.toolbox import Toolbox
from repertory.llm.offline.view import Call, Progress, View
from repertory.llm.offline.words import keywords, shorten

_CLAUSE = re.compile(
    r"\?\s+|[;:]\s+|,?\s+\b(?:and|but|while)\s+(?=(?:how|what|why|where|when|which|who|does|do|is|are)\b)|\.\s+"
    r"|,\s+(?=(?:how|what|why|where|when|which|who)\b)"
)
_PAIR = re.compile(r"\b(?P<one>\w{3,})(?:,\s+(?P<two>\w{3,}))?,?\s+and\s+(?P<three>\w{3,})\b")
_PRONOUN = re.compile(r"\b(its|their|it|they|them|those)\b", re.IGNORECASE)
_SECTION = 3  # statements quoted per part
_MOST = 5  # parts
_STEPS = 3  # delegate, look up, fetch; the answer comes after


def next_turn(view: View, toolbox: Toolbox) -> list[Block] | None:
    """The next turn of a lead; None where there is nothing to delegate."""
    assert toolbox.delegate is not None
    reports = view.called(toolbox.delegate.name)
    progress = view.progress
    if progress is None and not reports:
        return _delegate(view, toolbox)
    progress = progress or Progress(phase="lookup")
    if toolbox.can_research and (progress.phase in PHASES or (reports and all(call.failed for call in reports))):
        return None  # nobody could help: do it alone
    parts = progress.searched or tuple(_part_of(call) for call in reports)
    calls: list[ToolUse] = []
    said, phase = "", progress.phase
    if phase == "lookup":
        phase = "fetch"
        if toolbox.query is not None:
            # What the reports say goes into the model's own words: by the next turn they may be shortened.
            said = f"The reports are in.\n\n{_sections(view, toolbox, parts)}\n\nI look through what is in memory."
            calls = [toolbox.query.query(tags=[FINDING], limit=200)]
    if phase == "fetch" and not calls:
        phase = "compose"
        listed = "\n".join(call.result for call in view.last)
        if toolbox.retrieve is not None and toolbox.query is not None:
            said = "I fetch some of it."
            calls = [toolbox.retrieve.retrieve(identifier) for identifier in items_in(listed, limit=8)]
    if calls:
        note = Progress(step=progress.step + 1, phase=phase, searched=parts).note(_STEPS)
        return [Text(f"{said}\n{note}"), *calls]
    return [Text(_answer(view, toolbox, parts))]


def _delegate(view: View, toolbox: Toolbox) -> list[Block] | None:
    assert toolbox.delegate is not None
    parts = split(view.task)
    if not parts:
        return None
    names = toolbox.delegate.properties["agent"].get("enum") or []
    if not names:
        return None
    calls = [
        ToolUse(
            "", toolbox.delegate.name, {"agent": names[index % len(names)], "task": f"{part}\n\n{PART_OF} {view.task}"}
        )
        for index, part in enumerate(parts)
    ]
    plan = "\n".join(f"{number}. {part}" for number, part in enumerate(parts, 1))
    # The parts go into the note: when the calls are out of view, the answer still knows its sections.
    note = Progress(step=1, phase="lookup", searched=tuple(parts)).note(_STEPS)
    return [Text(f"Plan: I delegate {len(parts)} parts, to be looked into side by side.\n{plan}\n{note}"), *calls]


def split(question: str) -> list[str]:
    """Cut a question into at least three parts that differ: its clauses, the things it names, or angles on one thing.

    Args:
        question: What was asked; only its first paragraph counts.

    Returns:
        Three to five questions; nothing where the question says nothing.
    """
    head = " ".join(question.split("\n\n", maxsplit=1)[0].split())
    wanted = keywords(head, limit=6)
    if not wanted:
        return []
    clauses = [clause.strip(" ?.,;:") for clause in _CLAUSE.split(head)]
    clauses = [clause for clause in clauses if keywords(clause)]
    topic = _topic(clauses[0]) if clauses else ""
    parts: list[str] = []
    for clause in clauses:
        resolved = f"{clause} (in {topic})" if topic and _PRONOUN.search(clause) else clause
        parts.extend(_pairs(resolved) if len(clauses) < _MOST else [resolved])
    if len(parts) < 3:
        about = " and ".join(sorted((keyword.word for keyword in wanted[:2]), key=head.find))
        angles = [f"Which definitions concern {about}, and what are they for"]
        angles.append(f"What happens step by step in the code around {about}")
        angles.append(f"How is the code around {about} used and tested")
        parts = list(dict.fromkeys([*parts, *angles]))[: max(3, len(parts))]
    return [f"{part[:1].upper()}{part[1:]}?" for part in dict.fromkeys(parts)][:_MOST]


def _pairs(clause: str) -> list[str]:
    """ "how do locks and queues work" asks two things; each gets its own question."""
    match = _PAIR.search(clause)
    if match is None or not all(keywords(word) for word in match.groups() if word):
        return [clause]
    return [clause[: match.start()] + word + clause[match.end() :] for word in match.groups() if word]


def _topic(clause: str) -> str:
    """What a clause is about, for later clauses that only say "its"."""
    owned = re.search(r"\b\w+'s\s+(\w+)", clause)
    if owned and keywords(owned[1]):
        return owned[1]
    found = keywords(clause, limit=1)
    return found[0].word if found else ""


def _part_of(call: Call) -> str:
    return str(call.input.get("task", "")).partition("\n\n")[0]


def _answer(view: View, toolbox: Toolbox, parts: tuple[str, ...]) -> str:
    """The whole answer: what fits the question best, then every part with what supports it."""
    # The model's own words and the newest results: what else is in view depends on what was shortened meanwhile.
    everything = findings_in([*view.notes, *(call.result for call in view.last if not call.failed)])
    short = choose(everything, wanted_in(view.task), limit=2, per_file=1)
    head = " ".join(str(finding) for finding in short) or "The team found nothing that can be quoted with a source."
    return f"{head}\n\n{_sections(view, toolbox, parts)}"


def _sections(view: View, toolbox: Toolbox, parts: tuple[str, ...]) -> str:
    """What is known about each part, under its own heading; nothing is told twice."""
    assert toolbox.delegate is not None
    reports = {_part_of(call): call for call in view.called(toolbox.delegate.name)}
    stored = findings_in(call.result for call in view.calls if call.name != toolbox.delegate.name and not call.failed)
    sections: list[str] = []
    told: set[str] = set()
    for part in parts:
        call = reports.get(part)
        whole = call is not None and not call.failed and not call.result.startswith("[")
        noted = [note.partition(f"**{part}**\n")[2].partition("\n\n")[0] for note in view.notes]
        own = findings_in([*noted, *([call.result] if call is not None and whole else [])])
        pool = own or stored
        chosen = choose([f for f in pool if f.source not in told], wanted_in(part), limit=_SECTION)
        told |= {finding.source for finding in chosen}
        if chosen:
            body = "\n".join(f"- {finding}" for finding in chosen)
        elif call is not None and call.failed:
            body = f"- This part failed: {shorten(call.result, 200)}"
        elif call is not None and whole and call.result and not own:
            body = f"- {shorten(call.result, 400)}"  # a report without sources is still a report
        else:
            body = next((text for text in noted if text), "- Nothing beyond what stands elsewhere in this answer.")
        sections.append(f"**{part}**\n{body}")
    return "\n\n".join(sections)
