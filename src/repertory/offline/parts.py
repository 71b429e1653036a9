"""Splits a question into parts that can be researched side by side, for the offline model."""

from __future__ import annotations

import re

from repertory.offline.facts import by_place, columns
from repertory.offline.quoting import keywords

MOST_PARTS = 5
_ASKS = r"(?:how|what|why|where|when|which|who|does|do|is|are)\b"
_CLAUSE = re.compile(rf"\?\s+|[;:]\s+|,?\s+\b(?:and|but|while)\s+(?={_ASKS})|\.\s+|,\s+(?={_ASKS})", re.IGNORECASE)
_SUBJECT = re.compile(r"\b(?:does|do|did|is|are)\s+(?:the\s+)?(?:\w+'s\s+)?(\w+)", re.IGNORECASE)
_PRONOUN = re.compile(r"\b(its|their|it|they|them|those)\b", re.IGNORECASE)


def split(question: str) -> list[str]:
    """Split a question into three to five parts, by its clauses or by angles on its topic; empty if it says nothing."""
    head = " ".join(question.split("\n\n", maxsplit=1)[0].split())
    if columns(head):  # each row of the table needs all clauses
        return by_place(head)[:MOST_PARTS] or [head]
    clauses = [clause for part in _CLAUSE.split(head) if keywords(clause := part.strip(" ?.,;:"))]
    if not clauses:
        return []
    subject = _SUBJECT.search(clauses[0])
    topic = subject[1] if subject and keywords(subject[1]) else keywords(clauses[0])[0].word
    parts = [
        f"{clause} (in {topic})" if index and _PRONOUN.search(clause) else clause
        for index, clause in enumerate(clauses)
    ]
    about = " and ".join(keyword.word for keyword in keywords(head, limit=2))
    angles = (
        f"Which definitions concern {about}, and what are they for",
        f"What happens step by step in the code around {about}",
        f"How is the code around {about} used and tested",
    )
    parts = list(dict.fromkeys([*parts, *angles]))[: min(max(3, len(parts)), MOST_PARTS)]
    return [f"{part[:1].upper()}{part[1:]}?" for part in parts]
