"""Full-text search over entries: plain words in, best passages out."""

from __future__ import annotations

import re
from collections.abc import Sequence

from repertory._excerpts import EXCERPT, cut_end, find_words, words_of
from repertory.llm.messages import Block, ToolUse, text_of
from repertory.record.journal import SearchHit
from repertory.record.records import EntryAppended
from repertory.record.rows import encode_json

TOKENIZER = "porter unicode61 remove_diacritics 2"
CREATE_INDEX = f"CREATE VIRTUAL TABLE entry_search USING fts5(words, content='', tokenize='{TOKENIZER}')"

_PHRASE_OR_WORD = re.compile(r'"([^"]+)"|([^\W_]+)')
_WORD = re.compile(r"[^\W_]+")


def searchable_text(content: Sequence[Block]) -> str:
    """The words of an entry: its texts and results, and the names and arguments of the calls it makes."""
    parts = [text_of(content)]
    parts += [f"{block.name} {encode_json(block.input)}" for block in content if isinstance(block, ToolUse)]
    # A lone surrogate is no character, and FTS5 stops reading at a NUL.
    return "\n".join(part for part in parts if part).encode("utf-8", "replace").decode().replace("\0", " ")


def match_expression(query: str) -> str:
    """Turn plain words into an FTS5 query that finds entries with any of them; "" where there is no word.

    Words between double quotes are a phrase. Everything else that FTS5 would read as syntax is dropped.
    """
    parts: list[str] = []
    for phrase, word in _PHRASE_OR_WORD.findall(query):
        words = _WORD.findall(phrase) if phrase else [word]
        if words:
            parts.append('"' + " ".join(words) + '"')
    return " OR ".join(parts)


def excerpt_for(text: str, query: str) -> str:
    """The words around the place where most words of the query stand together; else the beginning."""
    # The index stems words: the beginning of a word finds its other forms.
    stems = " ".join(word[: max(4, len(word) - 3)] for word in words_of(query))
    best = find_words(text, stems, limit=1)
    return best[0].text if best else text[: cut_end(text, EXCERPT)]


def search_hit(found: EntryAppended, rank: float, query: str) -> SearchHit:
    """One answer; SQLite's rank is better the smaller it is."""
    excerpt = excerpt_for(searchable_text(found.entry.content), query)
    return SearchHit(run_id=found.run_id, position=found.entry.position, score=-rank, excerpt=excerpt)
