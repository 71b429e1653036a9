"""Answers without tools: the sentences of the context that fit the question best, or an extractive summary."""

from __future__ import annotations

import re

from repertory.llm.messages import ToolResult, text_of
from repertory.llm.model import ModelRequest
from repertory.llm.offline.words import covered, fit, keywords, sentences, shorten

_SUMMARY = re.compile(
    r"\b(summar(?:y|ise|ize|isation|ization)|compact(?:ion)?|condense|handover|tl;?dr)\b", re.IGNORECASE
)
_LIMIT = re.compile(r"\b(\d{2,5})\s*(tokens|words|characters|chars)\b", re.IGNORECASE)
_MARKUP = re.compile(r"</?[A-Za-z][\w-]*>|\[progress [^\]\n]*\]")
_TELLING = re.compile(
    r"https?://|[\w./-]+\.\w+:\d+|`[^`]+`|\b\d[\d.,]*\b|\b(error|failed|must|never|decided|because)\b", re.IGNORECASE
)


def from_context(request: ModelRequest) -> str:
    """Answer the last user message from everything else that is in view."""
    question = text_of([block for block in request.messages[-1].content if not isinstance(block, ToolResult)])
    system = text_of(request.system)
    if not request.tools and _SUMMARY.search(f"{system[:2000]}\n{question[:400]}\n{question[-600:]}"):
        return _summary(request, f"{system}\n{question}")
    return _extract(request, question)


def _summary(request: ModelRequest, prompt: str) -> str:
    """The most telling sentences, in their order, within the length that the prompt asks for."""
    budget = 1_600
    if limit := _LIMIT.search(prompt):
        amount = int(limit[1])
        budget = amount * {"tokens": 4, "words": 6}.get(limit[2].lower(), 1) * 9 // 10
    # The prompt may hold the text to summarise itself; its own instructions are a few lines of it, no more.
    rows = [
        sentence
        for message in request.messages
        for block in message.content
        for sentence in sentences(_MARKUP.sub("\n\n", text_of(block)))
        if len(sentence) > 25
    ]
    seen: set[str] = set()
    unique = [row for row in rows if not (row.lower() in seen or seen.add(row.lower()))]  # type: ignore[func-returns-value]
    about = keywords("\n".join(unique[:400]), limit=30)
    scored = sorted(
        range(len(unique)),
        key=lambda i: (
            -(fit(unique[i], about) + 1.5 * len(_TELLING.findall(unique[i][:400]))) / (len(unique[i]) + 80),
            i,
        ),
    )
    chosen: list[int] = []
    for index in scored:
        row = shorten(unique[index], 320)
        if len(row) + 3 <= budget:
            chosen.append(index)
            budget -= len(row) + 3
    return "\n".join(f"- {shorten(unique[index], 320)}" for index in sorted(chosen)) or "- Nothing to summarise."


def _extract(request: ModelRequest, question: str) -> str:
    wanted = keywords(question)
    rows: list[str] = []
    for message in request.messages:
        for block in message.content:
            if message is request.messages[-1] and not isinstance(block, ToolResult):
                # A question may bring its own material; the sentences that ask are not part of the answer.
                rows.extend(row for row in sentences(_MARKUP.sub("", text_of(block))) if not row.endswith("?"))
            else:
                rows.extend(sentences(_MARKUP.sub("", text_of(block))))
    rows.extend(sentences(text_of(request.system)))
    best = sorted(dict.fromkeys(rows), key=lambda row: -fit(row, wanted) / (len(row) + 120))
    chosen: list[str] = []
    missing = {keyword.stem for keyword in wanted}
    for row in best:
        gained = covered(row, wanted) & missing
        if gained and len(chosen) < 5:
            chosen.append(shorten(row, 400))
            missing -= gained
    if not chosen:
        about = ", ".join(keyword.word for keyword in wanted[:5]) or "this"
        return f"I work offline, by rules, and nothing in the conversation tells about {about}."
    return "\n".join(f"- {row}" for row in chosen) if len(chosen) > 1 else chosen[0]
