"""A table as the log tells of it, with what only the catalog knows: its key, its columns' numbers, its file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.backends.changes import ChangedColumn, TableVersion
from penstock.backends.postgres import catalog
from penstock.backends.postgres.pgoutput import Relation
from penstock.backends.postgres.types import BACKEND, canonical
from penstock.schema import TableName
from penstock.schema.words import spell

# Of all columns, those that were dropped too: their numbers are never given again.
_COLUMNS = """
select a.attnum::int, a.attname::text, a.attisdropped, (a.attmissingval::text::text[])[1]
from pg_catalog.pg_attribute a where a.attrelid = %s and a.attnum > 0 order by a.attnum
"""
# A rewrite gives a table another file. VACUUM FULL, CLUSTER and TRUNCATE do that too, but leave its columns' entries
# alone, while an ALTER that gives rows other values changes one of them.
_SHAPES = """
with recursive family as (
  select o.oid as root, o.oid from unnest(%s::oid[]) as o(oid)
  union select f.root, i.inhrelid from pg_catalog.pg_inherits i join family f on i.inhparent = f.oid)
select o.oid::int8,
       (select coalesce(string_agg(c.relfilenode::text, ',' order by c.oid), '')
        from pg_catalog.pg_class c join family f on f.oid = c.oid where f.root = o.oid and c.relfilenode <> 0),
       (select pg_catalog.md5(coalesce(string_agg(a.attnum || ':' || a.xmin::text, ',' order by a.attnum), ''))
        from pg_catalog.pg_attribute a where a.attrelid = o.oid and a.attnum > 0)
from unnest(%s::oid[]) as o(oid)
"""


@dataclass(frozen=True, slots=True)
class _Entry:
    number: int
    name: str
    dropped: bool
    missing: str | None


def describe(query: catalog.Query, relation: Relation, before: TableVersion | None = None) -> TableVersion:
    """The catalog is asked now: of a table that has changed since, names may be others than the log's.

    `before` is the version that the log told last: columns that it has in the same way are the same.
    """
    key = catalog.checked_key(query, relation.oid)
    if not set(key) <= {column.name for column in relation.columns}:
        key = ()  # a part of it is a generated column, which the log does not have
    types = catalog.types(query, [(c.type_oid, c.typmod) for c in relation.columns])
    keys = [
        column.name in key if key and relation.identity in "df" else column.key and relation.identity == "i"
        for column in relation.columns
    ]
    natives = [f"{BACKEND}:{type_.spelling}" for type_ in types]
    words = [spell(canonical(c.name, type_)) for c, type_ in zip(relation.columns, types, strict=True)]
    same = before is not None and [(c.name, c.native) for c in before.columns] == [
        (column.name, native) for column, native in zip(relation.columns, natives, strict=True)
    ]
    if before is not None and same and not query("select 1 from pg_catalog.pg_class where oid = %s", (relation.oid,)):
        # Dropped since: the catalog knows nothing of it, but these changes were made before.
        return before
    identity = "full" if relation.identity == "f" else "key" if any(keys) else "none"
    names = [column.name for column in relation.columns]
    table = TableName(relation.schema, relation.table)
    made = version(query, relation.oid, table, list(zip(names, natives, keys, words, strict=True)), identity)
    if before is None or not same or before.replaced(made):
        return made
    return replace(made, columns=tuple(replace(c, key=k) for c, k in zip(before.columns, keys, strict=True)))


def version(
    query: catalog.Query, oid: int, table: TableName, columns: Sequence[tuple[str, str, bool, str]], identity: str
) -> TableVersion:
    entries = [_Entry(*row) for row in query(_COLUMNS, (oid,))]
    found = _entries([name for name, _, _, _ in columns], entries)
    [(file, stamp)] = shapes(query, [oid]).values()
    return TableVersion(
        table,
        tuple(
            ChangedColumn(name, native, key, entry.number if entry else 0, entry.missing if entry else None, word)
            for (name, native, key, word), entry in zip(columns, found, strict=True)
        ),
        identity,
        file,
        stamp,
    )


def shapes(query: catalog.Query, oids: Sequence[int]) -> dict[int, tuple[str, str]]:
    """Of each table its files, and what says that its columns have been altered: `TableVersion.file` and `stamp`."""
    return {oid: (file, stamp) for oid, file, stamp in query(_SHAPES, (list(oids), list(oids)))}


def _entries(names: Sequence[str], entries: Sequence[_Entry]) -> list[_Entry | None]:
    """The entry of each column. One that was renamed or dropped since is found by its place between the others."""
    by_name = {entry.name: entry for entry in entries if not entry.dropped}
    found: list[_Entry | None] = [by_name.get(name) for name in names]
    taken = {entry.number for entry in found if entry is not None}
    for place, entry in enumerate(found):
        if entry is not None:
            continue
        before = max((one.number for one in found[:place] if one is not None), default=0)
        after = min((one.number for one in found[place + 1 :] if one is not None), default=1 << 30)
        free = [one for one in entries if before < one.number < after and one.number not in taken]
        unknown = sum(1 for one in found[place:] if one is None)
        if len(free) == 1 or (free and len(free) == unknown):
            found[place] = free[0]
            taken.add(free[0].number)
    return found
