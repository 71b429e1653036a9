"""Memory items: the log of their versions, what is asked of it, and in which shape an item is given out."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from repertory._choices import check_choice
from repertory._excerpts import EXCERPT, cut_end, find_words, fold, words_of
from repertory._frozen import freeze_fields
from repertory.llm.messages import Json
from repertory.record.records import ItemWritten

TransformKind: TypeAlias = Literal["full", "excerpt", "summary", "first_n", "last_n", "filtered"]

_SENTENCE = re.compile(r"(?<=[.!?…])\s+|\n+")


class ItemInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An item without its content.

    Attributes:
        item_id: Its id.
        scope_id: The scope that this version was written in; an inherited one names the ancestor.
        position: This version's place in the log of all items.
        type: ``action_result``, ``web_content``, ``database_result``, ``custom``, or the application's own word.
        size: Characters of the content.
        at: When this version was written, in seconds since 1970.
    """

    item_id: str
    scope_id: str
    type: str
    size: int
    at: float
    position: int
    source: str = ""
    tags: tuple[str, ...] = ()
    related_to: tuple[str, ...] = ()
    metadata: Json = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        freeze_fields(self, "metadata", sequences=("tags", "related_to"))


class Item(ItemInfo, frozen=True, kw_only=True):
    """An item with its content, as the transform left it; ``size`` is that of the whole."""

    content: str


class Transform(msgspec.Struct, frozen=True, kw_only=True):
    """In which shape an item's content is given out.

    =============  ====================================================================
    kind           what is left
    =============  ====================================================================
    ``full``       all of it
    ``excerpt``    the ``n`` characters where most of ``words`` stand together, or the first ones
    ``summary``    the first sentence of each paragraph, up to ``n`` characters
    ``first_n``    at most the first ``n`` characters
    ``last_n``     at most the last ``n`` characters
    ``filtered``   the lines that hold any of ``words``
    =============  ====================================================================

    Attributes:
        n: Characters; not used by ``full`` and ``filtered``.
        words: What to look for.
    """

    kind: TransformKind = "full"
    n: int = EXCERPT
    words: str = ""

    def __post_init__(self) -> None:
        check_choice("Transform.kind", self.kind, TransformKind)


FULL: Final = Transform()


class ItemQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which items are wanted; what is left empty does not matter.

    Attributes:
        types: Any of these.
        sources: Any of these.
        tags: All of these.
        since: Written at this time or later, in seconds since 1970.
        until: Written before this time.
        text: Plain words, all of which must begin a word of the content or be a tag.
        limit: How many at most, the newest first; None for all.
    """

    types: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    since: float | None = None
    until: float | None = None
    text: str = ""
    limit: int | None = None


class ItemLog:
    """All versions of all items, by scope. Grows only; a position in it is a snapshot of everything."""

    def __init__(self) -> None:
        self.position = 0
        self._versions: dict[str, dict[str, list[ItemWritten]]] = {}
        self._sizes: dict[str, tuple[int, int]] = {}  # scope -> (living items, their characters)

    def add(self, version: ItemWritten) -> None:
        """Take in the next version."""
        versions = self._versions.setdefault(version.scope_id, {}).setdefault(version.item_id, [])
        count, characters = self.size(version.scope_id)
        for sign, each in ((-1, versions[-1] if versions else None), (1, version)):
            if each is not None and not each.deleted:
                count += sign
                characters += sign * len(each.content)
        self._sizes[version.scope_id] = count, characters
        versions.append(version)
        self.position = max(self.position, version.position)

    def size(self, scope_id: str) -> tuple[int, int]:
        """How many living items were written in a scope, and their characters."""
        return self._sizes.get(scope_id, (0, 0))

    def item_ids(self, scope_id: str) -> Iterable[str]:
        """Every item that was ever written in a scope."""
        return self._versions.get(scope_id, {})

    def versions(self, scope_id: str, item_id: str) -> Sequence[ItemWritten]:
        """All versions of an item that were written in a scope, in order."""
        return self._versions.get(scope_id, {}).get(item_id, ())

    def version_at(self, scope_id: str, item_id: str, upto: int | None) -> ItemWritten | None:
        """The last version written in a scope at or before a position; None where there is none."""
        versions = self.versions(scope_id, item_id)
        count = len(versions) if upto is None else bisect_right(versions, upto, key=lambda version: version.position)
        return versions[count - 1] if count else None


def item_info(version: ItemWritten) -> ItemInfo:
    """An item without its content."""
    return ItemInfo(**_facts(version))


def _facts(version: ItemWritten) -> Json:
    facts = {name: getattr(version, name) for name in ItemInfo.__struct_fields__ if name != "size"}
    return {**facts, "size": len(version.content)}


def shape_item(version: ItemWritten, transform: Transform = FULL) -> Item:
    """An item with its content in the wanted shape."""
    return Item(**_facts(version), content=shape_text(version.content, transform))


def shape_text(text: str, transform: Transform) -> str:
    """Apply a transform."""
    n = max(0, transform.n)
    match transform.kind:
        case "full":
            return text
        case "excerpt":
            best = find_words(text, transform.words, limit=1, size=n)
            return best[0].text if best else text[: cut_end(text, n)]
        case "summary":
            return _first_sentences(text, n)
        case "first_n":
            return text[: cut_end(text, n)]
        case "last_n":
            return text[max(0, len(text) - n) :]
        case "filtered":
            words = words_of(transform.words)
            return "\n".join(line for line in text.split("\n") if any(word in fold(line) for word in words))


def _first_sentences(text: str, limit: int) -> str:
    """The first sentence of every paragraph, as far as whole sentences fit; of the first one, what fits."""
    chosen: list[str] = []
    left = limit
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        sentence = _SENTENCE.split(paragraph.strip(), maxsplit=1)[0]
        if len(sentence) > left:
            break
        chosen.append(sentence)
        left -= len(sentence) + 1
    return " ".join(chosen) if chosen else text.strip()[: cut_end(text.strip(), limit)]


def matches(version: ItemWritten, query: ItemQuery) -> bool:
    """Whether an item is wanted."""
    if query.types and version.type not in query.types:
        return False
    if query.sources and version.source not in query.sources:
        return False
    if not set(query.tags) <= set(version.tags):
        return False
    if query.since is not None and version.at < query.since:
        return False
    if query.until is not None and version.at >= query.until:
        return False
    if query.text:
        text = fold("\n".join((version.content, *version.tags)))
        return all(re.search(rf"\b{re.escape(word)}", text) for word in words_of(query.text))
    return True
