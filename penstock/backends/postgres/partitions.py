"""Partitions of a target, made on demand in the load's own transaction. Text only.

Only what no partition takes gets a new one, and what exists is never touched: partitions that people
have made count, whatever their bounds, and so does a DEFAULT one.

A partition is made as a table of its own and then attached. CREATE TABLE … PARTITION OF would lock
everybody out of the whole table, readers too; ATTACH lets them be.

Somebody else may be making the same one. Where one is missing, the lock is taken that ATTACH would
take, and the load looks again.
"""

from __future__ import annotations

from penstock.backends.base import STAGED, Check, Execute, PartitionField, Step, TimeKind
from penstock.backends.postgres.connect import identifier, literal
from penstock.schema import TableName

# Each takes a few of the server's locks, of which it has some thousands.
MOST_NEW = 1000

RANGE, LIST = "range", "list"


def strategy(field: PartitionField) -> str:
    return RANGE if field.transform else LIST


def clause(field: PartitionField) -> str:
    """What CREATE TABLE ends with."""
    return f"partition by {strategy(field)} ({identifier(field.column)})"


def steps(table: TableName, field: PartitionField, kind: TimeKind, key_text: str) -> tuple[Step, ...]:
    """Checks, then the statement that makes what is missing."""
    parent = ".".join(identifier(part) for part in table.parts)
    many = Check(
        f"select count(*)\nfrom (select distinct {_piece(field, kind)} from {STAGED}) as pieces"
        f"\nhaving count(*) > {MOST_NEW}",
        "the rows are of {0} partitions",
        why=f"a load makes {MOST_NEW} at most: more of them are rather a wrong partition_by than a wish",
        remedy="partition by a longer time or a column with fewer values, or load in pieces",
        figures=True,
    )
    make = Execute(_block(parent, field, kind), diagnose=(many,))
    if not field.transform:
        return (make,)
    # No piece of time has them: only a DEFAULT partition takes a NULL, and an endless one what is infinite.
    column = f"s.{identifier(field.column)}"
    bound = "pg_catalog.pg_get_expr(c.relpartbound, c.oid)"
    empty = Check(
        f"select case when {column} is null then 'NULL' else 'an infinite time' end, {key_text}\nfrom {STAGED} as s"
        f"\nwhere ({column} is null or not pg_catalog.isfinite({column})) and not exists (select"
        " from pg_catalog.pg_inherits i join pg_catalog.pg_class c on c.oid = i.inhrelid"
        f" where i.inhparent = {literal(parent)}::pg_catalog.regclass and ({bound} = 'DEFAULT'"
        f" or ({column} = 'infinity' and {bound} ~ 'TO \\(MAXVALUE\\)$')"
        f" or ({column} = '-infinity' and {bound} ~ 'FROM \\((MINVALUE|''-infinity'')\\)')))\nlimit 3",
        "{0} in the column that the target is partitioned by",
        why=f"no partition by {field.transform} takes such a row",
        remedy=f"filter them out, or make room for them: create table … partition of {table} default",
        labelled=True,
    )
    return (empty, make)


def _piece(field: PartitionField, kind: TimeKind) -> str:
    """What all rows of one partition have in common: a value, or where a piece of time begins."""
    column = identifier(field.column)
    if not field.transform:
        return column
    local = {"zoned": f"{column} at time zone 'UTC'", "date": f"{column}::timestamp"}.get(kind, column)
    return f"pg_catalog.date_trunc('{field.transform}', {local})"


def _block(parent: str, field: PartitionField, kind: TimeKind) -> str:
    column = identifier(field.column)
    if field.transform:
        moment = {"zoned": "({}) at time zone 'UTC'", "date": "({})::date"}.get(kind, "{}")
        low = moment.format("piece.low")
        high = moment.format(f"piece.low + interval '1 {field.transform}'")
        look = _look_at_ends(field, kind)
        bounds = f"pg_catalog.format('from (%L) to (%L)', {low}, {high})"
        inside = f"pg_catalog.format('%1$s >= %2$L and %1$s < %3$L', {literal(column)}, {low}, {high})"
        label = (
            "case when piece.low between '0001-01-01' and '9999-12-31 23:00' then"
            " pg_catalog.to_char(piece.low, 'YYYYMMDDHH24')"
            " else pg_catalog.substr(pg_catalog.md5(piece.low::text), 1, 10) end"
        )
    else:
        look = _look_at_values(column)
        bounds = "pg_catalog.format('in (%L)', piece.low)"
        inside = (
            f"case when piece.low is null then {literal(column + ' is null')}"
            f" else pg_catalog.format('%s = %L', {literal(column)}, piece.low) end"
        )
        label = "coalesce(pg_catalog.substr(pg_catalog.md5(piece.low::text), 1, 10), 'null')"
    body = f"""
declare
  parent constant pg_catalog.regclass := {literal(parent)};
  homes text[];
  taken text;
  unsure pg_catalog.timestamp[];
  missing pg_catalog.timestamp[];
  fallback pg_catalog.regclass;
  home text;
  wanted text;
  piece record;
  held boolean;
  name text;
begin
  select n.nspname into home from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  where c.oid = parent;
  for look in 1..2 loop
    select nullif(partdefid, 0)::pg_catalog.regclass into fallback
    from pg_catalog.pg_partitioned_table where partrelid = parent;
    select pg_catalog.array_agg('(' || pg_catalog.pg_get_partition_constraintdef(inhrelid) || ')') into homes
    from pg_catalog.pg_inherits where inhparent = parent and inhrelid is distinct from fallback;
    taken := coalesce(pg_catalog.array_to_string(homes, ' or '), 'false');
{look}
    execute pg_catalog.format('select exists (%s)', wanted) into held using missing;
    if not held then
      return;
    end if;
    -- Keeps out whoever makes partitions, and no writer: what they have made meanwhile is seen then.
    lock table only {parent} in share update exclusive mode;
  end loop;
  execute pg_catalog.format('select count(*) > {MOST_NEW} from (%s) as pieces', wanted) into held using missing;
  if held then
    raise exception 'too many partitions';
  end if;
  for piece in execute wanted || ' order by 1' using missing loop
    if fallback is not null then
      execute pg_catalog.format('select exists (select from %s where %s)', fallback, {inside}) into held;
      -- The server takes no partition for rows that the DEFAULT one has: these stay together there.
      continue when held;
    end if;
    name := 'p_' || pg_catalog.lpad(parent::pg_catalog.oid::text, 10, '0') || '_' || {label};
    -- One that was detached may still have the name.
    while pg_catalog.to_regclass(pg_catalog.format('%I.%I', home, name)) is not null loop
      name := name || '_';
    end loop;
    execute pg_catalog.format('create table %I.%I (like %s including all excluding identity excluding indexes'
      ' excluding statistics)', home, name, parent);
    execute pg_catalog.format('alter table %s attach partition %I.%I for values %s', parent, home, name, {bounds});
  end loop;
end
"""
    mark = "$penstock$"
    while mark in body:  # a name may hold anything
        mark = f"{mark[:-1]}_$"
    return f"do {mark}{body}{mark}"


def _look_at_values(column: str) -> str:
    """Every value is held once against the partitions, and not every row."""
    distinct = f"with pieces as materialized (select distinct {column} from {STAGED})"
    return f"""
    wanted := {literal(f"{distinct} select {column} as low from pieces where (")} || taken || ') is not true';"""


def _look_at_ends(field: PartitionField, kind: TimeKind) -> str:
    """A partition is a stretch of time: with the first and the last row of a piece it has all between them.

    To hold every row against every partition would take many times as long as to insert them.
    """
    column, piece = identifier(field.column), _piece(field, kind)
    rows = f"from {STAGED} where pg_catalog.isfinite({column})"
    pieces = (
        f"with pieces as materialized (select {piece} as _penstock_low, min({column}) as _penstock_first,"
        f" max({column}) as _penstock_last {rows} group by 1),"
        f" ends as (select _penstock_low, _penstock_first as {column} from pieces"
        f" union all select _penstock_low, _penstock_last from pieces),"
        " placed as (select _penstock_low as low, "
    )
    sorted_out = (
        " as home from ends), pieces_placed as (select low, count(home) = 2 as known, min(home) < max(home) as apart"
        " from placed group by 1) select pg_catalog.array_agg(low) filter (where not known),"
        " pg_catalog.array_agg(low) filter (where known and apart) from pieces_placed"
    )
    between = f"select pg_catalog.array_agg(distinct {piece}) {rows} and {piece} = any ($1) and ("
    return f"""
    execute {literal(pieces)} || coalesce((select 'case ' || pg_catalog.string_agg(pg_catalog.format('when %s then %s',
      bound, place), ' ' order by place) || ' end' from pg_catalog.unnest(homes) with ordinality as h(bound, place)),
      'null::pg_catalog.int8') || {literal(sorted_out)} into missing, unsure;
    if unsure is not null then
      execute {literal(between)} || taken || ') is not true' into unsure using unsure;
      missing := pg_catalog.array_cat(missing, unsure);
    end if;
    wanted := 'select low from pg_catalog.unnest($1) as pieces(low)';"""
