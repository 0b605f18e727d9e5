"""A Postgres connection as a target: what is there, how columns are held, where loads begin.

Planning only reads. Everything that writes is in `load.py`, under the target's locks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from penstock.backends.base import Load, LoadPlan, Native, RunContext, Sessions, Target, TargetColumn, TargetTable
from penstock.backends.postgres import catalog, leases, native, reactions
from penstock.backends.postgres.config import PostgresConfig
from penstock.backends.postgres.connect import identifier, literal
from penstock.backends.postgres.dialect import PostgresDialect, qualified, render
from penstock.backends.postgres.errors import refused
from penstock.backends.postgres.lasting import LastingSession
from penstock.backends.postgres.load import PostgresLoad
from penstock.backends.postgres.native import Held
from penstock.backends.postgres.spelling import is_type_name
from penstock.backends.reactions import Reaction, Reacts
from penstock.backends.sql import last_watermark, loaded_by, owners_of
from penstock.errors import PlanRefused, TargetError
from penstock.schema import Column, CreateEnum, CreateSchema, Ddl, TableName
from penstock.schema.columns import ENUM

# Words that other systems use for these types.
ALIASES = {
    "string": "text",
    "double": "double precision",
    "long": "bigint",
    "datetime": "timestamp",
    "binary": "bytea",
    "blob": "bytea",
}
_NO_SUCH_TYPE = ("42704", "3F000", "42601", "42P01", "22023")

_COLUMNS = """
select a.attname::text, a.atttypid::int8, a.atttypmod, not a.attnotnull, a.atthasdef,
       a.attgenerated <> '',
       case a.attidentity when 'a' then 'always' when 'd' then 'default' else '' end,
       coalesce((select quote_ident(n.nspname) || '.' || quote_ident(c.collname) from pg_collation c
                 join pg_namespace n on n.oid = c.collnamespace
                 where c.oid = a.attcollation and not c.collisdeterministic), ''),
       exists (select from pg_depend d join pg_sequence s on s.seqrelid = d.objid
               where d.classid = 'pg_class'::regclass and d.refclassid = 'pg_class'::regclass
                 and d.refobjid = a.attrelid and d.refobjsubid = a.attnum and d.deptype in ('a', 'i'))
from pg_attribute a where a.attrelid = %s and a.attnum > 0 and not a.attisdropped order by a.attnum
"""
_NOTES = """
select 'trigger ' || quote_ident(tgname) || ' fires for loaded rows' from pg_trigger
  where tgrelid = %(oid)s and not tgisinternal and tgenabled <> 'D'
union all
select 'foreign key ' || quote_ident(conname) || ' refers to ' || confrelid::regclass::text from pg_constraint
  where conrelid = %(oid)s and contype = 'f'
union all
select 'it is referred to by foreign key ' || quote_ident(conname) || ' of ' || conrelid::regclass::text
  from pg_constraint where confrelid = %(oid)s and contype = 'f' and conrelid <> %(oid)s
union all
select 'row security is on' from pg_class where oid = %(oid)s and relrowsecurity
"""
# Before a row, also of a partition: such a trigger may answer NULL. The bits of tgtype are ROW and BEFORE.
_DROPPING = """
select distinct tgname::text from pg_trigger
where tgtype & 3 = 3 and not tgisinternal and tgenabled in ('O', 'A') and tgrelid in (
  select %(oid)s::oid union select relid from pg_partition_tree(%(oid)s::oid)
  union select inhrelid from pg_inherits where inhparent = %(oid)s)
order by 1
"""
_REFUSALS = {
    "v": "it is a view",
    "m": "it is a materialized view",
    "f": "it is a foreign table",
    "S": "it is a sequence",
    "i": "it is an index",
    "c": "it is a type",
}


class PostgresTarget(Target, Reacts):
    """Opens a session when first asked something."""

    dialect = PostgresDialect()

    def __init__(self, config: PostgresConfig, run: RunContext) -> None:
        self._config = config
        self._run = run
        self._conninfo = config.conninfo()
        self._opened: LastingSession | None = None
        self._types: dict[str, Held | None] = {}

    @property
    def _session(self) -> LastingSession:
        if self._opened is None:
            settings = (("search_path", "pg_catalog"),)
            self._opened = LastingSession(self._conninfo, self._run.application_name, settings)
        return self._opened

    # ------------------------------------------------------------ what is there

    def qualify(self, table: TableName) -> TableName:
        return table if table.schema is not None else TableName(self._config.schema_, table.table)

    def inspect(self, table: TableName) -> TargetTable | None:
        table = self.qualify(table)
        found = catalog.relation(self._session.query, qualified(table))
        if found is None:
            return None
        rows = self._session.query(_COLUMNS, (found.oid,))
        types = catalog.types(self._session.query, [(row[1], row[2]) for row in rows])
        columns = tuple(TargetColumn(row[0], type_.spelling, *row[3:]) for row, type_ in zip(rows, types, strict=True))
        notes = self._query_named(_NOTES, {"oid": found.oid})
        refusals = (_REFUSALS[found.kind],) if found.kind in _REFUSALS else ()
        if self._session.query("select 1 from pg_rewrite where ev_class = %s and rulename <> '_RETURN'", (found.oid,)):
            refusals = (*refusals, "it has rewrite rules, which may drop or change rows in silence")
        estimate = self._session.query("select reltuples::int8 from pg_class where oid = %s", (found.oid,))[0][0]
        return TargetTable(
            table,
            columns,
            catalog.primary_key(self._session.query, found.oid),
            tuple(note for (note,) in notes),
            refusals,
            owners_of(self._session, table) if self._has_catalog("tables") else frozenset(),
            loaded_by(self._session, self._run.pipeline, table) if self._has_catalog("columns") else frozenset(),
            estimate if estimate >= 0 else None,
            tuple(name for (name,) in self._query_named(_DROPPING, {"oid": found.oid})),
            *catalog.partitioning(self._session.query, found.oid),
        )

    def has_schema(self, schema: str) -> bool:
        return bool(self._session.query("select 1 from pg_namespace where nspname = %s", (schema,)))

    def watermark(self, pipeline: str, table: TableName) -> str | None:
        if not self._has_catalog("tables"):
            return None
        return last_watermark(self._session, pipeline, self.qualify(table))

    def may_silence(self) -> bool:
        with self._session.connection.transaction(force_rollback=True):
            return reactions.silence(self._session)

    def reactions(
        self, tables: Mapping[TableName, Sequence[str]], *, silenced: bool
    ) -> dict[TableName, list[Reaction]]:
        named = {self.qualify(table): table for table in tables}
        wanted = {table: tables[given] for table, given in named.items()}
        found = reactions.reactions(self._session, wanted, silenced=silenced)
        return {named[table]: all_ for table, all_ in found.items()}

    # ------------------------------------------------------------ how columns are held

    def native(self, column: Column, existing: TargetColumn | None, cast: str | None) -> Native:
        own = self._own(column)
        want: Held | None = None
        if cast is not None:
            want = self._asked(column, cast)
            if existing is not None and existing.type_sql != want.sql:
                return native.refusal(
                    column, f"the column exists as {existing.type_sql}, not as {want.sql}", existing.type_sql
                )
        elif existing is not None:
            want = self._held(existing.type_sql) or Held(existing.type_sql)
        server = self._session.connection.info.server_version
        return native.plan(column, own, want, asked=cast is not None, server=server)

    def render(self, ddl: Ddl) -> list[str]:
        return render(ddl)

    def _own(self, column: Column) -> Held | None:
        """The type the column has by itself: its very own one where it comes from Postgres."""
        past = column.native_in("postgres")
        if past is None or not is_type_name(past):
            # No name of a type: a source's memory is a table that others may have written to.
            sql = native.own_type(column)
            return Held(sql) if sql is not None else None
        held = None if native.is_printed_only(past) else self._held(past)
        if held is not None:
            return held
        if column.logical is not None and column.logical.kind == ENUM and column.logical.labels:
            return self._new_enum(TableName.parse(past), column.logical.labels)
        return Held(native.TEXT, missing=past)

    def _new_enum(self, name: TableName, labels: tuple[str, ...]) -> Held:
        sql = qualified(name)
        ddl: tuple[Ddl, ...] = (CreateEnum(sql, labels),)
        if name.schema is not None and not self.has_schema(name.schema):
            ddl = (CreateSchema(name.schema), *ddl)
        return Held(sql, labels, ddl)

    def _asked(self, column: Column, cast: str) -> Held:
        spelled = ALIASES.get(cast.strip().lower(), cast.strip())
        held = self._held(spelled)
        if held is None:
            raise PlanRefused(
                f"columns.{column.name}: {cast!r} is no type of the target",
                remedy='a type such as "decimal(38,9)", "text", "timestamptz"',
            )
        return held

    def _held(self, sql: str) -> Held | None:
        """The type in the server's own spelling; None if the server has no such type."""
        if sql not in self._types:
            self._types[sql] = self._look_up(sql) if is_type_name(sql) else None
        return self._types[sql]

    def _look_up(self, sql: str) -> Held | None:
        connection = self._session.connection
        path = f"{identifier(self._config.schema_)}, public"
        try:
            with connection.transaction(force_rollback=True):
                connection.execute("select pg_catalog.set_config('search_path', %s, true)", (path,))
                described = connection.execute(f"select null::{sql}".encode()).pgresult
        except psycopg.Error as error:
            if error.sqlstate in _NO_SUCH_TYPE:
                return None
            raise refused(error, self._conninfo, side=TargetError) from error
        if described is None or described.nfields != 1:
            return None
        found = catalog.types(self._session.query, [(described.ftype(0), described.fmod(0))])[0]
        if found.kind == "p":  # a record has no column type
            return None
        return Held(found.spelling, found.labels if found.kind == "e" else None)

    def _has_catalog(self, name: str) -> bool:
        rows = self._session.query(f"select to_regclass({literal('_penstock.' + name)}) is not null")
        return bool(rows[0][0])

    def _query_named(self, sql: str, params: dict[str, Any]) -> list[tuple[Any, ...]]:
        try:
            return self._session.connection.execute(sql.encode(), params).fetchall()
        except psycopg.Error as error:
            raise refused(error, self._conninfo, side=TargetError) from error

    # ------------------------------------------------------------ loads

    def begin(self, plan: LoadPlan) -> Load:
        return PostgresLoad(self._config, plan)

    def end_sessions(self) -> None:
        leases.end_sessions(self._session, self._run.application_name)

    def sessions(self) -> Sessions:
        [(started,)] = self._session.query("select pg_catalog.pg_postmaster_start_time()::pg_catalog.text")
        # Planning has one, and the load another.
        return Sessions(started, self._config.max_connections, driver=2)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None
