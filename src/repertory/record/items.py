"""Reading memory: finding the items that the layers of a scope show, by their labels or their words."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import Final, TypeAlias

from repertory._choices import Natural, check_struct
from repertory._frozen import Frozen
from repertory.errors import ConfigurationError
from repertory.record.contents import of_tree
from repertory.record.memory_records import ItemWritten, ScopeMerged, ScopeOpened
from repertory.record.reads import Reads, json_list
from repertory.record.rows import NO_LIMIT, TABLES, Value, encode_json
from repertory.record.search import FullText, IndexRow, Question, SearchIndex, indexable, label, phrases_of, spaced

Layer: TypeAlias = tuple[str, int]
"""A scope, and the position of the item log up to which it is seen."""

_ITEMS = TABLES[ItemWritten]
# Ranking 100,000 items for a word that all of them hold took 100 ms; ranking the newest thousand took 6.
_RANKED: Final = 1_000
# The newest item has the highest position, unless it was moved here: machines that share a journal number items from
# blocks of their own.
LAST_POSITION: Final = """SELECT max(position) FROM (
    SELECT position FROM items WHERE seq = (SELECT max(seq) FROM items)
    UNION ALL SELECT max((SELECT max(position) FROM items WHERE scope_id = s.scope_id)) FROM scopes s
              WHERE s.seq <= (SELECT max(upto) FROM moved)
    UNION ALL SELECT max(position) FROM scopes UNION ALL SELECT max(position) FROM scope_merges
    UNION ALL SELECT max(position) FROM removals) ends"""
_COMPOUND: Final = 400  # queries in one UNION ALL; SQLite takes up to 500: https://www.sqlite.org/limits.html


class ItemQuery(Frozen, frozen=True, kw_only=True):
    """Which items to find. A field that is left empty does not restrict them.

    Attributes:
        types: The item's type is one of these.
        sources: The item's source is one of these.
        tags: The item has all of these tags.
        related_to: The item is related to any of these items.
        id_prefix: The item's id begins with this.
        since: Written at this time or later, in seconds since 1970.
        until: Written before this time.
        text: Plain words, all of which must be in the content or the tags. Other forms of a word match too; case and
            accents do not matter; words in double quotes are a phrase. Of the newest thousand matches, the best come
            first.
        limit: The maximum number of items; None for all. Without ``text`` the newest come first.

    Raises:
        ConfigurationError: A value is of another type, the limit is below 0, or a time is not a valid number.
    """

    types: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    related_to: tuple[str, ...] = ()
    id_prefix: str = ""
    since: float | None = None
    until: float | None = None
    text: str = ""
    limit: Natural | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_struct(self)
        for name in ("since", "until"):
            if math.isnan(getattr(self, name) or 0.0):
                raise ConfigurationError(f"ItemQuery.{name} must be a time in seconds since 1970, got nan")


def _index_row(_seq: int, item: ItemWritten) -> IndexRow | None:
    if item.deleted:
        return None
    labels = [label("type", item.type), label("source", item.source)]
    labels += [label("tag", tag) for tag in item.tags]
    labels += [label("item", other) for other in item.related_to]
    words = "\n".join((*(() if item.format == "bytes" else (item.content,)), *item.tags))
    return IndexRow(item.position, (label("scope", item.scope_id), " ".join(labels)), spaced(indexable(words)))


ITEMS: Final = SearchIndex("item_search", _ITEMS, ("scope", "labels", "words"), "items", _index_row)


def _labels(query: ItemQuery) -> list[list[str]]:
    """The labels to look for in the index, besides words."""
    wanted = [[label("tag", tag)] for tag in query.tags]
    for kind, values in (("type", query.types), ("source", query.sources), ("item", query.related_to)):
        wanted += [[label(kind, value) for value in values]] if values else []
    return wanted


def _select(
    layers: Sequence[Layer], query: ItemQuery, ids: str | None, full_text: FullText, *, bodies: bool, ended: bool
) -> Question:
    """SELECT the items that the layers, nearest first, show; only those in ``ids``, a JSON list, if it is given.

    Each layer is queried by itself for its newest items that fit, so that the engine reads no more than needed. If
    there are words, these are ranked.
    """
    labels, words = _labels(query), bool(phrases_of(query.text))
    most = NO_LIMIT if query.limit is None else query.limit
    parts: list[str] = []
    values: list[Value] = [encode_json([{"id": scope_id, "upto": upto} for scope_id, upto in layers])]
    for depth, (scope_id, upto) in enumerate(layers):
        # The order is that of an index, so nothing is sorted, and reading stops at the last item that is wanted.
        source, rank, order, index = "items t", "-t.position", "t.position", "items_by_scope"
        where: list[str] = ["t.scope_id = ?"]
        wanted: list[Value] = [scope_id]
        if labels or words:
            source, values_there = full_text.items([[label("scope", scope_id)], *labels], query.text, upto)
            source, rank, order = f"({source}) f CROSS JOIN items t", "f.score" if words else rank, "f.place"
            wanted = [*values_there, scope_id]
            # The plus sign keeps SQLite from using the rowid's bound as a bound on the position, and reading a range.
            where.append("t.position = +f.place")
        else:
            where.append("t.position <= ?")
            wanted.append(upto)
            index = "items_by_id" if ids is not None or query.id_prefix else index
        if ids is not None:
            where.append("t.item_id IN (SELECT value FROM json_each(?))")
            wanted.append(ids)
        if query.id_prefix:
            where.append("t.item_id >= ? AND t.item_id < ?")
            wanted += [query.id_prefix, query.id_prefix + "\U0010ffff"]
        if query.since is not None:
            where.append("t.at >= ?")
            wanted.append(float(query.since))
        if query.until is not None:
            where.append("t.at < ?")
            wanted.append(float(query.until))
        if not ended:
            where.append("t.deleted = 0")
        newer = "items n INDEXED BY items_by_id WHERE n.item_id = t.item_id AND n.scope_id ="
        where.append(f"NOT EXISTS (SELECT 1 FROM {newer} ? AND n.position > t.position AND n.position <= ?)")
        wanted += [scope_id, upto]
        if depth:
            nearer = f"SELECT 1 FROM layers l CROSS JOIN {newer} l.scope_id AND n.position <= l.upto"
            where.append(f"NOT EXISTS ({nearer} AND l.depth < {depth})")
        parts.append(
            f"""SELECT * FROM (SELECT t.seq, {rank} AS rank FROM {source} INDEXED BY {index}
                WHERE {" AND ".join(where)} ORDER BY {order} DESC LIMIT ?) layer{depth}"""
        )
        values += [*wanted, _RANKED if words else most]
    side = f"LEFT JOIN {_ITEMS.side} b ON b.seq = t.seq" if bodies else ""
    starts = range(0, len(parts), _COMPOUND)
    unions = [f"SELECT * FROM ({' UNION ALL '.join(parts[at : at + _COMPOUND])}) layers{at}" for at in starts]
    # The layers are a table, as the SQL would otherwise grow with the square of their number.
    sql = f"""WITH layers (depth, scope_id, upto) AS (
                  SELECT key, json_extract(value, '$.id'), CAST(json_extract(value, '$.upto') AS BIGINT)
                  FROM json_each(?))
              SELECT {_ITEMS.select("t", "b" if bodies else "")}
              FROM ({" UNION ALL ".join(unions)} ORDER BY rank, seq DESC LIMIT ?) f JOIN items t ON t.seq = f.seq {side}
              ORDER BY f.rank, f.seq DESC"""
    return sql, [*values, most]


class ItemReads(Reads):
    """The part of a journal that reads memory."""

    async def read_scopes(self, owner: str | None = None) -> list[ScopeOpened]:
        """Every memory scope, or those that were opened for a run and for those below it."""
        if owner is None:
            return await self._records(ScopeOpened, "ORDER BY t.seq")
        return await self._records(ScopeOpened, f"WHERE {of_tree('t.owner')} ORDER BY t.seq", owner, owner, owner)

    async def read_scope_ids(self, part: str = "") -> list[str]:
        """The ids of memory scopes that contain a text, in the order in which they were opened."""
        return await self._ids("scopes", "SELECT scope_id FROM scopes WHERE instr(scope_id, ?) > 0 ORDER BY seq", part)

    async def read_scope(self, scope_id: str) -> list[ScopeOpened]:
        """A scope and then its ancestors, nearest first; [] if there is no scope with this id."""
        above = """WITH RECURSIVE above (id, parent_id, depth) AS (
                       SELECT scope_id, parent_id, 0 FROM scopes WHERE scope_id = ? UNION ALL
                       SELECT s.scope_id, s.parent_id, depth + 1
                       FROM above JOIN scopes s ON s.scope_id = above.parent_id)
                   SELECT id, depth FROM above"""
        return await self._records(ScopeOpened, f"JOIN ({above}) a ON t.scope_id = a.id ORDER BY a.depth", scope_id)

    async def read_snapshot_scopes(self, scope_id: str) -> list[ScopeOpened]:
        """The snapshots of a scope, or of a shared scope that stands for it, oldest first."""
        names = """WITH RECURSIVE names (id) AS (
                       SELECT scope_id FROM scopes WHERE scope_id = ? UNION
                       SELECT s.scope_id FROM names JOIN scopes s ON s.parent_id = names.id
                       WHERE s.mode LIKE 'shared%')
                   SELECT id FROM names"""
        rest = f"WHERE t.parent_id IN ({names}) AND t.mode LIKE 'snapshot%' ORDER BY t.seq"
        return await self._records(ScopeOpened, rest, scope_id)

    async def read_merge(self, scope_id: str) -> ScopeMerged | None:
        """The last merge of a scope into its parent; None if there was none."""
        found = await self._records(ScopeMerged, "WHERE t.scope_id = ? ORDER BY t.seq DESC LIMIT 1", scope_id)
        return found[0] if found else None

    async def last_item_position(self) -> int:
        """The last position in the item log; 0 if it is empty."""
        return await self._number("items", LAST_POSITION)

    async def item_position_at(self, number: int, scope_id: str) -> int:
        """The last position that a scope showed or wrote before the record with this number; 0 if it was empty.

        Other scopes do not count: their positions may be another machine's, above what is written here later.
        """
        known = """SELECT position FROM scopes WHERE scope_id = ?
                   UNION ALL SELECT max(position) FROM items WHERE scope_id = ? AND seq < ?"""
        return await self._number("items", f"SELECT max(position) FROM ({known}) known", scope_id, scope_id, number)

    async def take_item_positions(self) -> int:
        """The position after which the memory actor, the only one to write items, continues."""
        return await self.last_item_position()

    async def scope_size(self, scope_id: str) -> tuple[int, int]:
        """The number of a scope's own items that are not deleted, and their bytes."""
        newer = "SELECT 1 FROM items n INDEXED BY items_by_id WHERE n.scope_id = t.scope_id AND n.item_id = t.item_id"
        sql = f"""SELECT count(*), coalesce(sum(size), 0) FROM items t INDEXED BY items_by_id
                  WHERE scope_id = ? AND deleted = 0 AND NOT EXISTS ({newer} AND n.position > t.position)"""
        (size,) = await self._rows(tuple[int, int], f"items of {scope_id!r:.60}", sql, scope_id)
        return size

    async def read_items(self, scope_ids: Sequence[str]) -> list[ItemWritten]:
        """All versions of the scopes' items, in order."""
        where = "WHERE t.scope_id IN (SELECT value FROM json_each(?)) ORDER BY t.position"
        return await self._records(ItemWritten, where, json_list(scope_ids))

    async def find_items(
        self,
        layers: Sequence[Layer],
        query: ItemQuery | None = None,
        *,
        ids: Collection[str] | None = None,
        bodies: bool = False,
        ended: bool = False,
    ) -> list[ItemWritten]:
        """The items that layers show together, newest first, or best match first if the query has words.

        Args:
            layers: Scopes, nearest first. The version of an item in the nearest scope hides the others.
            query: Which items to find; None for all.
            ids: Only these items; None for all.
            bodies: Whether to read their contents; otherwise these are "".
            ended: Whether to include deleted items.
        """
        query = query or ItemQuery()
        if query.text.strip() and not phrases_of(query.text):
            return []  # punctuation is not indexed

        async def shown() -> list[ItemWritten]:
            items = await self.find_items(layers, ids=ids, bodies=True, ended=ended)
            return sorted(items, key=attrgetter("position"))

        journal: Reads = self
        if _labels(query) or query.text.strip():
            journal = await self._indexed(ITEMS, shown)
        wanted = None if ids is None else json_list(ids)
        sql, values = _select(layers, query, wanted, journal._full_text, bodies=bodies, ended=ended)
        return await journal._fetch("items", sql, values, lambda rows: [_ITEMS.read(row)[1] for row in rows])
