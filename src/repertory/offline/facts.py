"""Tables of facts for the offline model, if a question asks for kinds of facts, such as since when or what instead.

The rules are those of English, not of any subject: a sentence that tells since when has "since" and a number in it, one
that names a substitute says "use … instead" or "in favor of …". A cell is quoted from its line, or empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from repertory.offline.quoting import Keyword, cited_in, fit, keywords, shorten

# The pattern of a question for a kind of fact, the column's head, and the patterns of sentences that state it.
_VERSION = r"(?:[A-Za-z]+ )?v?(\d+(?:\.\d+)*)(?![\d-])"
_KINDS = (
    (r"\bsince (?:when|which)\b", "since", rf"\b(?:since|[Dd]eprecated in|as of) {_VERSION}"),
    (
        r"\bwhen \w+ \w+ (?:removed|dropped|gone)\b|\buntil when\b",
        "removed",
        rf"\b(?:remov(?:al|ed)|dropped|gone|disappear) (?:in|from|with|by) {_VERSION}",
    ),
    (
        r"\binstead\b|\btakes? (?:its|their) place\b|\breplaces?\b",
        "instead",
        r"\b(?:[Uu]se|get|set|see) (?:the )?([^;,]{1,60}?) instead\b"
        r"|\b(?:in favou?r of|replaced by|superseded by|renamed to) (?:the )?([\w.()'`]{1,60})",
    ),
)
_PLACES = re.compile(
    r"\bin ([\w./]+(?:(?:, and |, | and )(?:in )?(?!(?:and|what|when|since|how|who|why)\b)[\w./]{2,})+)"
)
_MOST = 20  # rows: few enough to read through, and nearly a terminal of 24 lines
_OWNER = re.compile(r"`([\w.]+)`: ")
_SUBJECT = re.compile(
    r"^(?:(?:the|a|setting|using|support for) )*(\S+(?: \S+){0,3}?) (?:is|are|was|were|has been|have been)\b", re.I
)
_POINTING = re.compile(
    r"^(?:this|that|it|they|these|those|we|you|which|there|"
    r"(?:the )?(?:method|function|class|module|argument|parameter))\b|[{}%]",
    re.IGNORECASE,
)
_KIND = re.compile(r" (?:method|function|class|module|attribute|argument|parameter)$")
_WHOLE_FILE = re.compile(r"^this (?:module|package|file|page)\b", re.IGNORECASE)
_IN_QUOTES = re.compile(r"(?:`[\w.]+`: )?[fF]?[\"']")  # a line of code; messages() reads the whole string
_PLACE = re.compile(r" \(([^\s()]+):(\d+)\)$")


def columns(question: str) -> list[str]:
    """The kinds of facts that a question asks for, as column heads; empty for most questions."""
    return [head for asking, head, _ in _KINDS if re.search(asking, question, re.IGNORECASE)]


def by_place(question: str) -> list[str]:
    """Split a question about several places (in a, b and c) into one for each; empty if it names fewer than two."""
    named = _PLACES.search(question)
    if named is None:
        return []
    places = [re.sub(r"^in ", "", name) for name in re.split(r", and |, | and ", named[1])]
    return [f"{question[: named.start(1)]}{place}{question[named.end(1) :]}" for place in places]


def topic(question: str) -> Keyword | None:
    """The topic of such a question: its first keyword that is not the name of a place."""
    about = keywords(re.sub(r"\b[Ii]n [\w./]+", "", question), limit=1)
    return about[0] if about else None


def telling(lines: Iterable[str], question: str, *, limit: int) -> list[str]:
    """The cited lines that are about the topic and state at least one of the facts, without repetition."""
    heads, about = columns(question), topic(question)
    fitting = (line for line in lines if about and cited_in(line) and fit(_PLACE.sub("", line), [about]))
    found = (line for line in fitting if any(_facts(line, heads)) and not _IN_QUOTES.match(line))
    return list(dict.fromkeys(found))[:limit]


def table(lines: Iterable[str], heads: Sequence[str]) -> str:
    """Lines as a Markdown table: what each is about, the facts it states, and its place; "" for no lines."""
    rows: dict[str, list[str]] = {}
    for what, cells in _rows(lines, heads):
        known = rows.get(what)
        if known is None or cells.count("") < known.count(""):  # of two lines, keep the one with more facts
            rows[what] = cells
    # A name without its class is redundant beside the same name with it.
    whole = {(what.rpartition(".")[2], cells[-1].partition(":")[0]) for what, cells in rows.items() if "." in what}
    kept = {what: row for what, row in rows.items() if (what, row[-1].partition(":")[0]) not in whole}
    if not kept:
        return ""
    fullest = _fullest(kept)
    shown = [[what, *(cell or "–" for cell in cells)] for what, cells in kept.items() if what in fullest]
    full = [["what", *heads, "where"], ["---"] * (len(heads) + 2), *shown]
    more = [f"\n{len(kept) - len(shown)} more say less."] if len(kept) > len(shown) else []
    return "\n".join(["| " + " | ".join(cells) + " |" for cells in full] + more)


def _fullest(rows: dict[str, list[str]]) -> list[str]:
    """The rows to show: of each place those with the most facts, so that no place is crowded out."""
    places: dict[str, list[str]] = {}
    for what in sorted(rows, key=lambda what: rows[what].count("")):
        places.setdefault(re.split("[/:]", rows[what][-1])[0], []).append(what)
    ranked = [(rank, what) for group in places.values() for rank, what in enumerate(group)]
    return [what for _, what in sorted(ranked, key=lambda each: each[0])[:_MOST]]


def _rows(lines: Iterable[str], heads: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    for line in lines:
        place, owner = _PLACE.search(line), _OWNER.match(line)
        if place is None:
            continue
        said = line[owner.end() if owner else 0 : place.start()]
        subject = _SUBJECT.match(said)
        if subject and not _POINTING.search(subject[0]):
            what = subject[1]
        else:
            what = owner[1] if owner else place[1] if _WHOLE_FILE.match(said) else ""
        what = shorten(_plain(_KIND.sub("", what)).removesuffix("()"), 60)
        if what:
            yield what, [*_facts(line, heads), f"{place[1]}:{place[2]}"]


def _facts(line: str, heads: Sequence[str]) -> list[str]:
    """The fact of each kind in a line; "" if it has none."""
    said = _PLACE.sub("", line)
    found = [re.search(saying, said) for _, head, saying in _KINDS if head in heads]
    cells = [_plain(next(filter(None, match.groups()))) if match else "" for match in found]
    return ["" if re.search("[{}%]", cell) else cell for cell in cells]  # a placeholder is not a fact


def _plain(text: str) -> str:
    """Remove quotation marks and characters that would end a cell."""
    return re.sub("['`\"]", "", text).strip(".").replace("|", "/")
