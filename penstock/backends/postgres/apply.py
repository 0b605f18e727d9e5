"""Changes into Postgres: staged as text by COPY in the flush's own transaction, cast by the server itself.

The texts are those that a Postgres has printed: this one reads each as the value that it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import psycopg
import pyarrow as pa
import pyarrow.csv

from penstock.backends.applier import MISSING, SqlApplier, ledger_tables, staged_as
from penstock.backends.change_target import TableFailed
from penstock.backends.postgres import reactions
from penstock.backends.postgres.ahead import ReadAhead
from penstock.backends.postgres.config import PostgresConfig
from penstock.backends.postgres.connect import identifier
from penstock.backends.postgres.dialect import qualified
from penstock.backends.postgres.errors import refused
from penstock.backends.postgres.lasting import LastingSession
from penstock.backends.postgres.leases import lock_key
from penstock.backends.postgres.native import staging_type
from penstock.backends.postgres.types import BACKEND
from penstock.backends.sql import SqlSession, ensure_catalog
from penstock.backends.steps import TableLoad
from penstock.errors import PenstockError, PlanRefused, TargetError
from penstock.schema import TableName

# Types that COPY reads from text as a cast does, and that are smaller and sooner compared than their texts.
_READ_AT_ONCE = frozenset(
    {"smallint", "integer", "bigint", "real", "double precision", "numeric", "boolean", "uuid"}
    | {"date", "timestamp with time zone", "timestamp without time zone"}
)
_TYPES = {pa.bool_(): "boolean", pa.int64(): "bigint", pa.timestamp("us", "UTC"): "timestamptz"}
# Relations that a session keeps to stage flushes in: each COMMIT empties all of them.
MOST_STAGES = 64
TEXT_BYTES = 2 * 1024 * 1024  # of rows that are made into text together
OLDEST_SERVER = 150_000  # that has MERGE
_BLAMED = """
with named as (
  select c.oid from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  where n.nspname = %s and c.relname = %s
), kin as (
  select oid from named union select relid from named, pg_catalog.pg_partition_ancestors(named.oid)
), known as (
  select oid from kin union
  select confrelid from pg_catalog.pg_constraint where conrelid in (select oid from kin) and conname = %s
)
select n.nspname::pg_catalog.text, c.relname::pg_catalog.text from known
  join pg_catalog.pg_class c on c.oid = known.oid join pg_catalog.pg_namespace n on n.oid = c.relnamespace
"""
_OPTIONS = pyarrow.csv.WriteOptions(include_header=False, quoting_style="all_valid")


class PostgresApplier(SqlApplier):
    """Keeps one session for all flushes, as long as its link lasts, and in it the relations that they are staged in.

    To make and drop them in each flush would leave dead rows in the server's catalogs, some hundred every second.
    """

    texts_of = BACKEND

    def __init__(self, config: PostgresConfig, replication: str) -> None:
        super().__init__(replication)
        self._conninfo = config.conninfo()
        self._session = LastingSession(
            self._conninfo, f"penstock:{replication}:apply", (("lock_timeout", config.lock_timeout),)
        )
        server = self._session.connection.info.server_version
        if server < OLDEST_SERVER:
            self._session.close()
            raise PlanRefused(
                f"the server of connection {config.name!r} is too old to be replicated into",
                why=f"it is version {server // 10000}, and MERGE came with 15",
                kept="nothing was touched",
                remedy="upgrade it, or choose another target",
            )
        self._stages: dict[str, None] = {}  # that are there, the longest unused first; perhaps more than are
        self._filled: set[str] = set()  # in this transaction
        self._silent = False  # no trigger of the target's tables fires: see `reactions`
        with self._session.atomic():
            # Two that are the first to write here must not make them twice.
            self._session.execute("select pg_catalog.pg_advisory_xact_lock(%s)", (lock_key("catalog"),))
            ensure_catalog(self._session)
            for statement in ledger_tables(self._session.catalog):
                self._session.execute(statement)

    @contextmanager
    def session(self) -> Iterator[SqlSession]:
        self._filled.clear()
        with self._session.atomic():
            yield self._session

    def silence(self) -> bool:
        if not self._silent:
            with self._session.atomic():
                self._silent = reactions.silence(self._session)
            if self._silent:
                self._session.keep(*reactions.ROLE)
        return self._silent

    def defer(self, session: SqlSession) -> None:
        # As replica nothing deferrable is checked at all.
        if not self._silent:
            session.execute("set constraints all deferred")

    def settle(self, session: SqlSession, tables: Mapping[TableName, TableName]) -> None:
        if self._silent:
            return
        try:
            with self._session.atomic():  # a savepoint: the catalog is asked afterwards
                session.execute("set constraints all immediate")
        except PenstockError as error:
            if error.passing:
                raise
            source = self._blamed(error, tables)
            error.place = error.place or str(source)
            raise TableFailed(source, error) from error

    def _blamed(self, error: PenstockError, tables: Mapping[TableName, TableName]) -> TableName:
        """The table of the flush that a constraint is of, or of whose partitions, or that it refers to."""
        diag = getattr(error.__cause__, "diag", None)
        names = [(getattr(diag, name, None) or "") for name in ("schema_name", "table_name", "constraint_name")]
        named = TableName(names[0], names[1])
        for schema, table in ((named.schema, named.table), *self._session.query(_BLAMED, names)):
            if TableName(schema, table) in tables:
                return tables[TableName(schema, table)]
        return next(iter(tables.values()))  # of nobody that can be told: without it, the others show whose it is

    def stage(self, session: SqlSession, name: str, rows: pa.Table, load: TableLoad) -> None:
        columns = ", ".join(f"{identifier(field.name)} {_type(field, load)}" for field in rows.schema)
        self._make_stage(session, name, columns)
        try:
            with self._session.connection.cursor().copy(f"copy {name} from stdin (format csv)".encode()) as copy:
                # The server reads the one while the next is made.
                for text in ReadAhead(_texts(rows), lambda: None):
                    copy.write(memoryview(text))
        except psycopg.Error as error:
            raise refused(error, self._conninfo, side=TargetError) from error

    def _make_stage(self, session: SqlSession, name: str, columns: str) -> None:
        if name == MISSING:
            session.execute(f"create temp table {name} ({columns}) on commit drop")
            return
        if name in self._filled:  # by the round before, of a transaction that comes in pieces
            session.execute(f"truncate {name}")
            return
        # It may be gone although it is known here, with a transaction that failed, or there although it is not.
        session.execute(f"create temp table if not exists {name} ({columns}) on commit delete rows")
        self._filled.add(name)
        self._stages.pop(name, None)
        self._stages[name] = None
        while len(self._stages) > MOST_STAGES:
            oldest = next(iter(self._stages))
            del self._stages[oldest]
            self._filled.discard(oldest)
            session.execute(f"drop table if exists {oldest}")

    def unstage(self, session: SqlSession, name: str) -> None:
        if name == MISSING:
            session.execute(f"drop table {name}")

    def exists(self, session: SqlSession, table: TableName) -> bool:
        found = session.query("select pg_catalog.to_regclass(%s) is not null", (qualified(table),))
        return bool(found[0][0])

    def close(self) -> None:
        self._session.close()


def _texts(rows: pa.Table) -> Iterator[pa.Buffer]:
    """As COPY reads them: NULL is an empty field, an empty text is ""."""
    for number, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type):
            # To print one takes longer than all the rest of its row, and many rows were committed together.
            known = rows.column(number).combine_chunks().dictionary_encode()
            rows = rows.set_column(number, field.name, known.dictionary.cast(pa.string()).take(known.indices))
    count = max(1, rows.num_rows * TEXT_BYTES // max(1, rows.nbytes))
    for start in range(0, rows.num_rows, count):
        text = pa.BufferOutputStream()
        pyarrow.csv.write_csv(rows.slice(start, count), text, _OPTIONS)
        yield text.getvalue()


def _type(field: pa.Field, load: TableLoad) -> str:
    staged = staged_as(load, field.name)
    if staged is None:
        return _TYPES.get(field.type, "text")
    sql, decode = staged.native.sql, staged.native.decode
    return sql if sql in _READ_AT_ONCE and decode == f"{{}}::{sql}" else staging_type(staged.column, staged.native)
