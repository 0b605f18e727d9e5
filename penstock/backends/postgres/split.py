"""Cutting a source into partitions that together are the whole, once.

By ctid where the server proves that it will scan nothing but that range, by quantiles of a
column where the user names one, else not at all: `count(*)` over eight ranges is eight rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from penstock.backends.postgres import catalog
from penstock.backends.postgres.catalog import Relation
from penstock.backends.postgres.connect import identifier, literal
from penstock.backends.postgres.partition import Guard, relations_in
from penstock.backends.postgres.query import Splittable
from penstock.backends.postgres.snapshot import Holder
from penstock.errors import PlanRefused, SourceError

# Under this, the cost of a session is more than what a second task would save.
MIN_RANGE_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Piece:
    """One partition's statement and the relations to guard."""

    sql: str
    guards: tuple[Guard, ...]
    explained: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """What is read: the select list over alias `q`, the FROM, and the window's condition."""

    holder: Holder
    select: str
    condition: str = ""  # of the window, "" for all rows
    relation: Relation | None = None
    query: str | None = None

    def sql(self, conditions: Sequence[str] = (), limit: int | None = None) -> str:
        return self.over(self.source, conditions) + (f" limit {int(limit)}" if limit is not None else "")

    @property
    def source(self) -> str:
        return self.relation.sql if self.relation is not None else f"(\n{self.query}\n)"

    def over(self, source: str, conditions: Sequence[str]) -> str:
        every = [f"({c})" for c in (*conditions, self.condition) if c]
        where = f" where {' and '.join(every)}" if every else ""
        return f"select {self.select} from {source} as q{where}"


def one_piece(reading: Reading, limit: int | None = None) -> Piece:
    sql = reading.sql(limit=limit)
    return Piece(sql, guards_of_plan(reading.holder, sql), explained=True)


# ---------------------------------------------------------------- by ctid


def table_by_ctid(reading: Reading, want: int) -> tuple[list[Piece], str]:
    """Ranges of a table and all that inherit from it, or one piece with the reason."""
    relation = reading.relation
    if relation is None:
        raise PlanRefused("only a table is split by ctid")
    why = _why_whole(reading, relation)
    if why:
        return [one_piece(reading)], why
    members = [m for m in catalog.family(reading.holder.catalog, relation.oid) if m.kind != "p"]
    block = _block_size(reading.holder)
    total = sum(member.bytes for member in members)
    size = max(-(-total // max(want, 1)), MIN_RANGE_BYTES)
    pieces: list[Piece] = []
    small: list[Relation] = []
    for member in members:
        blocks = -(-member.bytes // block)
        per_range = max(-(-size // block), 1)
        if member.is_heap and blocks > per_range:
            pieces += _ranges(reading, member, _bounds(blocks, per_range))
        elif member.bytes + sum(m.bytes for m in small) > size:
            pieces.append(_together(reading, small))
            small = [member]
        else:
            small.append(member)
    if small:
        pieces.append(_together(reading, small))
    if len(pieces) == 1:
        return pieces, f"the table has {_megabytes(total)}, too little to split"
    tables = f" of {len(members)} tables" if len(members) > 1 else ""
    return pieces, f"{len(pieces)} ranges of ctid{tables}, {_megabytes(total)} in all"


def query_by_ctid(reading: Reading, query: Splittable, want: int) -> tuple[list[Piece], str]:
    """Ranges of a query over one table, if the server would scan nothing but them."""
    holder = reading.holder

    def restricted(low: int, high: int | None) -> str:
        text = query.restricted(_tid_condition(query.alias, low, high))
        return Reading(holder, reading.select, reading.condition, query=text).sql()

    try:
        plan = _explain(holder, restricted(1, 2))
    except SourceError:
        return [one_piece(reading)], "what it reads has no ctid, or none that this user may read"
    if not _only_tid_ranges(plan[0]["Plan"]):
        return [one_piece(reading)], "the server would not read it as plain ranges of one table"
    relations = catalog.relations_named(holder.catalog, relations_in(plan))
    if not relations or any(not relation.is_heap for relation in relations):
        return [one_piece(reading)], "it does not read plain tables"
    guards = tuple(_guard(holder, relation) for relation in relations)
    biggest = max(relation.bytes for relation in relations)
    block = _block_size(holder)
    size = max(-(-biggest // max(want, 1)), MIN_RANGE_BYTES)
    bounds = _bounds(-(-biggest // block), -(-size // block))
    if len(bounds) == 1:
        return [one_piece(reading)], f"its table has {_megabytes(biggest)}, too little to split"
    pieces = [Piece(restricted(low, high), guards, explained=True) for low, high in bounds]
    return pieces, f"{len(pieces)} ranges of ctid, {_megabytes(biggest)} in all"


def _why_whole(reading: Reading, relation: Relation) -> str:
    """Why a table is read in one piece, "" if it need not be."""
    holder = reading.holder
    if relation.kind == "v":
        return "it is a view"
    if relation.kind == "f":
        return "it is a foreign table"
    if not relation.granted:
        return "not every column of it may be read, and ctid is none of those that are granted"
    if relation.kind != "p" and not relation.is_heap:
        return f"its access method is {relation.method}, not heap"
    members = catalog.family(holder.catalog, relation.oid)
    if len(members) > 1:
        # A member read by its own name obeys its own grants and policies, not its parent's.
        oids = [member.oid for member in members]
        answer = holder.catalog(
            "select row_security_active(%s::oid),"
            " bool_and(has_table_privilege(oid, 'select')) from unnest(%s::oid[]) as u(oid)",
            (relation.oid, oids),
        )
        if answer[0][0]:
            return "row security is on, and the parts of a table have policies of their own"
        if not answer[0][1]:
            return "not every part of it may be read by its own name"
    if reading.condition and _uses_index(_explain(holder, reading.sql())):
        return "the window is read through an index"
    return ""


def _ranges(reading: Reading, member: Relation, bounds: list[tuple[int, int | None]]) -> list[Piece]:
    return [one_range(reading, member, low, high) for low, high in bounds]


def one_range(reading: Reading, member: Relation, low: int, high: int | None) -> Piece:
    """Blocks of one table, without what inherits from it."""
    condition = _tid_condition("q", low, high)
    return Piece(reading.over(f"only {member.sql}", [condition]), (_guard(reading.holder, member),))


def blocks_of(holder: Holder, member: Relation, range_bytes: int) -> list[tuple[int, int | None]]:
    """A table in ranges of about so many bytes."""
    block = _block_size(holder)
    return _bounds(-(-member.bytes // block), max(range_bytes // block, 1))


def _together(reading: Reading, members: list[Relation]) -> Piece:
    """Several small tables, each whole, in one partition."""
    sql = "\nunion all\n".join(reading.over(f"only {member.sql}", []) for member in members)
    return Piece(sql, tuple(_guard(reading.holder, member) for member in members if member.kind in "rm"))


def _bounds(blocks: int, per_range: int) -> list[tuple[int, int | None]]:
    """`[low, high)` in blocks; the last is open, for the file may have grown since it was measured."""
    count = max(-(-blocks // per_range), 1)
    starts = [blocks * number // count for number in range(count)]
    return [(low, starts[number + 1] if number + 1 < count else None) for number, low in enumerate(starts)]


def _tid_condition(alias: str, low: int, high: int | None) -> str:
    lower = f"{alias}.ctid >= '({low},0)'::pg_catalog.tid"
    return lower if high is None else f"{lower} and {alias}.ctid < '({high},0)'::pg_catalog.tid"


# ---------------------------------------------------------------- by a column


def by_column(reading: Reading, column: str, type_sql: str, want: int) -> tuple[list[Piece], str]:
    """Ranges between quantiles; NULLs go with the first, what sorts highest (NaN) with the last."""
    key = f"q.{identifier(column)}"
    bounds: list[str] = []
    if want > 1:
        shares = ", ".join(str(number / want) for number in range(1, want))
        source = f"select {key} as k from {reading.source} as q" + (
            f" where ({reading.condition})" if reading.condition else ""
        )
        rows = reading.holder.ask(
            f"select b::pg_catalog.text from (select distinct b from (select unnest(percentile_disc("
            f"array[{shares}]::float8[]) within group (order by k)) as b from ({source}) as s"
            " where k is not null) as t where b is not null) as u order by u.b"
        )
        bounds = [text for (text,) in rows]
    conditions = _key_conditions(key, type_sql, bounds)
    guards = guards_of_plan(reading.holder, reading.sql())
    pieces = [Piece(reading.sql([condition] if condition else []), guards) for condition in conditions]
    if len(pieces) == 1:
        return pieces, f"{column} has too few different values to split by"
    return pieces, f"{len(pieces)} ranges of {column}; the source runs the query {len(pieces)} times"


def _key_conditions(key: str, type_sql: str, bounds: Sequence[str]) -> list[str]:
    if not bounds:
        return [""]
    marks = [f"{literal(bound)}::{type_sql}" for bound in bounds]
    conditions = [f"{key} < {marks[0]} or {key} is null"]
    conditions += [f"{key} >= {low} and {key} < {high}" for low, high in pairwise(marks)]
    return [*conditions, f"{key} >= {marks[-1]}"]


# ---------------------------------------------------------------- what the server says


def guards_of_plan(holder: Holder, sql: str) -> tuple[Guard, ...]:
    """Guards of every stored relation that the server would read for `sql`."""
    found = catalog.relations_named(holder.catalog, relations_in(_explain(holder, sql)))
    return tuple(_guard(holder, relation) for relation in found if relation.kind in "rm")


def _guard(holder: Holder, relation: Relation) -> Guard:
    columns = catalog.table_columns(holder.catalog, relation.oid)
    return Guard(
        relation.oid,
        relation.schema,
        relation.name,
        tuple((c.attnum, c.name) for c in columns),
        lockable=relation.granted and relation.kind != "m",
    )


def _explain(holder: Holder, sql: str) -> list[dict[str, Any]]:
    answer = holder.ask(f"explain (verbose, format json) {sql}")[0][0]
    plan: list[dict[str, Any]] = json.loads(answer) if isinstance(answer, str) else answer
    return plan


def _only_tid_ranges(node: dict[str, Any]) -> bool:
    if node["Node Type"] == "Append":
        return all(_only_tid_ranges(child) for child in node.get("Plans", []))
    return node["Node Type"] == "Tid Range Scan" and not node.get("Plans")


def _uses_index(plan: Any) -> bool:
    if isinstance(plan, list):
        return any(_uses_index(part) for part in plan)
    return isinstance(plan, dict) and (
        "Index" in plan.get("Node Type", "")
        or any(_uses_index(v) for v in plan.values() if isinstance(v, (list, dict)))
    )


def _block_size(holder: Holder) -> int:
    return int(holder.catalog("select current_setting('block_size')")[0][0])


def _megabytes(size: int) -> str:
    return f"{size / 1024 / 1024:.1f} MiB"
