"""What the server's catalog says about types, tables and keys. Reads only.

Callers run these with `search_path = pg_catalog`, so that user types come out qualified.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.backends.postgres.connect import identifier
from penstock.backends.postgres.types import PgType

Query = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]

HEAP = "heap"


@dataclass(frozen=True, slots=True)
class Described:
    """A column of a table or a query, before its type is looked up."""

    name: str
    oid: int
    typmod: int
    dims: int = 0
    nullable: bool = True
    attnum: int = 0


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation that a read touches."""

    oid: int
    schema: str
    name: str
    kind: str  # pg_class.relkind
    method: str  # access method, "" where there is none
    bytes: int = 0
    children: bool = False
    granted: bool = True  # the user may read all of it by its own name

    @property
    def sql(self) -> str:
        return f"{identifier(self.schema)}.{identifier(self.name)}"

    @property
    def is_heap(self) -> bool:
        return self.kind in "rm" and self.method == HEAP


_TYPES = """
with recursive wanted as (
  select ord, oid, typmod, 0 as depth
  from unnest(%s::oid[], %s::int4[]) with ordinality as u(oid, typmod, ord)
  union all
  select w.ord, t.typbasetype, t.typtypmod, w.depth + 1
  from wanted w join pg_type t on t.oid = w.oid where t.typtype = 'd'
), based as (
  select distinct on (ord) ord, oid, typmod from wanted order by ord, depth desc
)
select t.typname::text, n.nspname::text, format_type(t.oid, b.typmod), b.typmod, t.typtype::text,
       e.typname::text, en.nspname::text, e.typtype::text,
       array(select enumlabel::text from pg_enum where enumtypid = t.oid order by enumsortorder)
from based b join pg_type t on t.oid = b.oid join pg_namespace n on n.oid = t.typnamespace
  left join pg_type e on e.oid = t.typelem and e.typarray = t.oid
  left join pg_namespace en on en.oid = e.typnamespace
order by b.ord
"""


def types(query: Query, wanted: Sequence[tuple[int, int]]) -> list[PgType]:
    """The types of `(oid, typmod)`, domains followed down to their base."""
    if not wanted:
        return []
    rows = query(_TYPES, ([oid for oid, _ in wanted], [typmod for _, typmod in wanted]))
    found = []
    for name, schema, spelling, typmod, kind, element, element_schema, element_kind, labels in rows:
        inner = PgType(element, element_schema, element, kind=element_kind) if element is not None else None
        found.append(PgType(name, schema, spelling, typmod, kind, inner, tuple(labels)))
    return found


_RELATION = """
select c.oid::int8, n.nspname::text, c.relname::text, c.relkind::text, coalesce(am.amname::text, ''),
       case when c.relkind in ('r', 'm') then coalesce(pg_relation_size(c.oid), 0) else 0 end,
       exists (select from pg_inherits where inhparent = c.oid),
       has_schema_privilege(n.oid, 'usage') and has_table_privilege(c.oid, 'select')
from pg_class c join pg_namespace n on n.oid = c.relnamespace left join pg_am am on am.oid = c.relam
"""


def relation(query: Query, name: str) -> Relation | None:
    """The relation that the quoted `name` means now, in the session's own search path."""
    rows = query("select to_regclass(%s)::oid::int8", (name,))
    return None if rows[0][0] is None else relation_of(query, rows[0][0])


def relation_of(query: Query, oid: int) -> Relation | None:
    rows = query(_RELATION + " where c.oid = %s", (oid,))
    return Relation(*rows[0]) if rows else None


def relations_named(query: Query, names: Sequence[tuple[str, str]]) -> list[Relation]:
    if not names:
        return []
    rows = query(
        _RELATION + " where (n.nspname::text, c.relname::text) in (select * from unnest(%s::text[], %s::text[]))",
        ([schema for schema, _ in names], [name for _, name in names]),
    )
    return [Relation(*row) for row in rows]


def family(query: Query, oid: int) -> list[Relation]:
    """A table and all that inherit from it, in a fixed order. The root comes first."""
    rows = query(
        "with recursive family as (select %s::oid as oid, 0 as depth union"
        " select i.inhrelid, f.depth + 1 from pg_inherits i join family f on i.inhparent = f.oid)"
        + _RELATION.replace(
            "from pg_class c",
            "from (select oid, min(depth) as depth from family group by oid) f join pg_class c on c.oid = f.oid",
        )
        + " order by f.depth, c.oid",
        (oid,),
    )
    return [Relation(*row) for row in rows]


# NOT NULL is a promise that is not kept by foreign tables, by constraints that are not validated, and
# by the children of a plain parent, which may have dropped it.
_TABLE_COLUMNS = """
select a.attname::text, a.atttypid::int8, a.atttypmod, a.attndims,
       not a.attnotnull or c.relkind = 'f'
       or c.relkind = 'r' and exists (select from pg_inherits where inhparent = c.oid)
       or exists (select from pg_constraint
                  where conrelid = c.oid and contype = 'n' and conkey = array[a.attnum] and not convalidated),
       a.attnum
from pg_attribute a join pg_class c on c.oid = a.attrelid
where a.attrelid = %s and a.attnum > 0 and not a.attisdropped order by a.attnum
"""


def table_columns(query: Query, oid: int) -> list[Described]:
    rows = query(_TABLE_COLUMNS, (oid,))
    return [Described(*row) for row in rows]


def primary_key(query: Query, oid: int) -> tuple[str, ...]:
    return _index_columns(query, oid, "indisprimary")


def checked_key(query: Query, oid: int) -> tuple[str, ...]:
    """The primary key, if it holds after every statement: one that can be deferred tells no two changes apart."""
    return _index_columns(query, oid, "indisprimary and i.indimmediate")


def _index_columns(query: Query, oid: int, which: str) -> tuple[str, ...]:
    rows = query(
        "select a.attname::text from pg_index i cross join unnest(i.indkey) with ordinality as k(attnum, ord)"
        " join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum"
        f" where i.indrelid = %s and i.{which} order by k.ord",
        (oid,),
    )
    return tuple(name for (name,) in rows)


def stored_bytes(query: Query, oid: int) -> int | None:
    """What a table and all that inherit from it take on the server's disk now; None of what is elsewhere."""
    rows = query(
        "with recursive family as (select %s::oid as oid union"
        " select i.inhrelid from pg_inherits i join family f on i.inhparent = f.oid)"
        " select case when bool_and(c.relkind in ('r', 'm', 'p')) then sum(pg_table_size(c.oid))::int8 end"
        " from pg_class c join family f on f.oid = c.oid",
        (oid,),
    )
    size: int | None = rows[0][0]
    return size


def partitioning(query: Query, oid: int) -> tuple[str, tuple[str, ...]]:
    """How a table is partitioned, and by which columns; "" stands for an expression."""
    rows = query(
        "select case p.partstrat when 'r' then 'range' when 'l' then 'list' else 'hash' end,"
        " coalesce(a.attname::text, '')"
        " from pg_partitioned_table p cross join unnest(p.partattrs) with ordinality as k(attnum, ord)"
        " left join pg_attribute a on a.attrelid = p.partrelid and a.attnum = k.attnum"
        " where p.partrelid = %s order by k.ord",
        (oid,),
    )
    return (rows[0][0], tuple(name for _, name in rows)) if rows else ("", ())


def estimated_rows(query: Query, oid: int) -> int | None:
    """What the last ANALYZE or VACUUM counted in a table and all that inherit from it, if it was each of them."""
    rows = query(
        "with recursive family as (select %s::oid as oid union"
        " select i.inhrelid from pg_inherits i join family f on i.inhparent = f.oid)"
        " select case when min(c.reltuples) >= 0 then sum(c.reltuples)::int8 end"
        " from pg_class c join family f on f.oid = c.oid where c.relkind in ('r', 'm')",
        (oid,),
    )
    return rows[0][0] or None  # before 14 a table that was never looked at has 0
