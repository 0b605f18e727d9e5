"""The rows that every side moves, made in SQL by generate_series: the same on every machine.

Also what a target must hold afterwards: figures over every column, taken from source and target.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import LiteralString

import duckdb
import psycopg

COLUMNS = ("id", "quantity", "ratio", "amount", "customer", "note", "paid", "day", "updated_at", "token")

# As DuckDB names the types that are exact for these columns.
DUCKDB_TYPES = {
    "id": "BIGINT",
    "quantity": "INTEGER",
    "ratio": "DOUBLE",
    "amount": "DECIMAL(38,12)",
    "customer": "VARCHAR",
    "note": "VARCHAR",
    "paid": "BOOLEAN",
    "day": "DATE",
    "updated_at": "TIMESTAMP WITH TIME ZONE",
    "token": "UUID",
}

# As a project declares them for files that tell no types.
WORDS = {
    "id": "bigint",
    "quantity": "int",
    "ratio": "double",
    "amount": "decimal(38,12)",
    "customer": "text",
    "note": "text",
    "paid": "bool",
    "day": "date",
    "updated_at": "timestamptz",
    "token": "uuid",
}

CREATE = """
create table {table} (
  id bigint not null,
  quantity int,
  ratio float8,
  amount numeric(38,12),
  customer text,
  note text,
  paid bool,
  day date,
  updated_at timestamptz,
  token uuid
)
"""

FILL: LiteralString = """
insert into {table}
select
  i,
  i * 7919 % 1000003,
  i / 7.0::float8,
  i * 1234567.890123456789,
  'customer ' || i % 100000,
  case when i % 20 > 0 then md5(i::text) end,
  i % 3 = 0,
  date '2000-01-01' + (i % 9000)::int,
  timestamptz '2020-01-01 00:00:00+00' + i * interval '1.000001 second',
  md5('token ' || i)::uuid
from generate_series(1::bigint, {rows}) as i
"""

# For tools that cannot read a uuid.
TEXT_VIEW = """
create view {table}_text as
select id, quantity, ratio, amount, customer, note, paid, day, updated_at, token::text as token from {table}
"""

# One figure per column, in words that both engines understand in the same way.
FIGURES = {
    "rows": "count(*)",
    "id": "sum(id)",
    "quantity": "sum(quantity)",
    "ratio": "sum(floor(ratio))",
    "amount": "sum(amount)",
    "customer": "sum(length(customer))",
    "note": "sum(length(note))",
    "paid": "sum(case when paid then 1 else 0 end)",
    "day": "sum(day - date '2000-01-01')",
    "token": "max(cast(token as varchar))",
}
POSTGRES_FIGURES = FIGURES | {"updated_at": "sum((extract(epoch from updated_at) * 1000000)::numeric(38,0))"}
DUCKDB_FIGURES = FIGURES | {"updated_at": "sum(epoch_us(updated_at))"}

Figures = dict[str, str]


@dataclass(frozen=True, slots=True)
class Check:
    """What a target holds, against the source."""

    complete: bool  # every row is there, by count and by the sum of the keys
    differing: tuple[str, ...]  # columns whose figure is not the source's
    types: dict[str, str]  # columns whose type is not the exact one


def seed(dsn: str, table: str, rows: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute(_sql(CREATE.format(table=table)))
        session.execute(_sql(FILL.format(table=table, rows=rows)))
        session.execute(_sql(f"alter table {table} add primary key (id)"))
        session.execute(_sql(TEXT_VIEW.format(table=table)))
        session.execute(_sql(f"vacuum (freeze, analyze) {table}"))


def change(dsn: str, table: str, *, one_in: int, turn: int) -> int:
    """Change one row in `one_in`, other rows at every turn. The space of the old versions is freed."""
    with psycopg.connect(dsn, autocommit=True) as session:
        statement = f"update {table} set amount = amount + 1, note = md5(coalesce(note, '')) where id %% %s = %s"
        changed = session.execute(_sql(statement), (one_in, turn % one_in)).rowcount
        session.execute(_sql(f"vacuum (analyze) {table}"))
    return changed


def postgres_figures(dsn: str, table: str) -> Figures:
    with psycopg.connect(dsn) as session:
        row = session.execute(_sql(f"select {_select(POSTGRES_FIGURES)} from {table}")).fetchone()
    assert row is not None
    return {name: _plain(value) for name, value in zip(POSTGRES_FIGURES, row, strict=True)}


def check_postgres(source: Figures, dsn: str, table: str) -> Check:
    return _check(source, postgres_figures(dsn, table), {})


def check_duckdb(source: Figures, path: Path, table: str) -> Check:
    with duckdb.connect(str(path), read_only=True) as session:
        return _check_typed(source, session, table)


def check_parquet(source: Figures, folder: Path) -> Check:
    with duckdb.connect() as session:
        session.execute("set timezone = 'UTC'")
        return _check_typed(source, session, f"read_parquet('{folder}/*.parquet')")


def check_relation(source: Figures, session: duckdb.DuckDBPyConnection, relation: str) -> Check:
    """Of a table that keeps some types as texts or integers: as it reads when they are taken back."""
    session.execute("set timezone = 'UTC'")
    columns = ", ".join(f"cast({name} as {kind}) as {name}" for name, kind in DUCKDB_TYPES.items())
    return _check(source, _duckdb_figures(session, f"(select {columns} from {relation})"), {})


def _check_typed(source: Figures, session: duckdb.DuckDBPyConnection, relation: str) -> Check:
    found = dict(session.execute(f"select column_name, column_type from (describe from {relation})").fetchall())
    types = {name: found.get(name, "missing") for name, kind in DUCKDB_TYPES.items() if found.get(name) != kind}
    return _check(source, _duckdb_figures(session, relation), types)


def _duckdb_figures(session: duckdb.DuckDBPyConnection, relation: str) -> Figures:
    row = session.execute(f"select {_select(DUCKDB_FIGURES)} from {relation}").fetchone()
    assert row is not None
    return {name: _plain(value) for name, value in zip(DUCKDB_FIGURES, row, strict=True)}


def write_parquet(dsn: str, table: str, folder: Path) -> None:
    """The table as Parquet files, as another tool would have left them."""
    import adbc_driver_postgresql.dbapi
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    schema = pa.schema(
        [
            *(("id", pa.int64()), ("quantity", pa.int32()), ("ratio", pa.float64()), ("amount", pa.decimal128(38, 12))),
            *(("customer", pa.string()), ("note", pa.string()), ("paid", pa.bool_()), ("day", pa.date32())),
            *(("updated_at", pa.timestamp("us", "UTC")), ("token", pa.string())),
        ]
    )
    with adbc_driver_postgresql.dbapi.connect(dsn) as session, session.cursor() as cursor:
        cursor.execute(_sql(f"select * from {table}_text"))
        reader = cursor.fetch_record_batch()
        writers = [pq.ParquetWriter(folder / f"part-{number}.parquet", schema) for number in range(4)]
        for number, batch in enumerate(reader):
            arrays = [batch.column(field.name).cast(field.type) for field in schema]
            writers[number % len(writers)].write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
        for writer in writers:
            writer.close()


def write_csv(dsn: str, table: str, file: Path) -> None:
    with psycopg.connect(dsn) as session, session.cursor() as cursor, file.open("wb") as out:
        cursor.execute("set timezone = 'UTC'")
        with cursor.copy(_sql(f"copy {table} to stdout (format csv, header)")) as copy:
            for data in copy:
                out.write(data)


# ---------------------------------------------------------------- a shop of three tables

SHOP = {
    "customers": (
        "id bigint primary key, name text, segment text",
        "i, 'customer ' || i, (array['AUTOMOBILE','BUILDING','FURNITURE','HOUSEHOLD','MACHINERY'])[1 + i % 5]",
    ),
    "orders": (
        "id bigint primary key, customer_id bigint, day date, priority text",
        "i, 1 + i * 7919 % {customers}, date '2020-01-01' + (i % 400)::int, 'P' || i % 5",
    ),
    "lines": (
        "id bigint primary key, order_id bigint, price numeric(15,2), discount numeric(15,2), shipped date, note text",
        "i, 1 + i % {orders}, (i % 100000) / 100.0, (i % 10) / 100.0, date '2020-01-05' + (i % 420)::int, md5(i::text)",
    ),
}


def seed_shop(dsn: str, sizes: dict[str, int]) -> None:
    with psycopg.connect(dsn, autocommit=True) as session:
        for name, (columns, values) in SHOP.items():
            session.execute(_sql(f"create table public.{name} ({columns})"))
            made = values.format(**sizes)
            session.execute(
                _sql(f"insert into public.{name} select {made} from generate_series(1::bigint, {sizes[name]}) as i")
            )
            session.execute(_sql(f"vacuum (freeze, analyze) public.{name}"))


def join_figures(dsn: str, sql: str) -> tuple[str, ...]:
    with psycopg.connect(dsn) as session:
        row = session.execute(_sql(f"select count(*), sum(revenue), sum(items) from ({sql}) as found")).fetchone()
    assert row is not None
    return tuple(_plain(value) for value in row)


def check_join(wanted: tuple[str, ...], folder: Path) -> Check:
    with duckdb.connect() as session:
        relation = f"read_parquet('{folder}/*.parquet')"
        row = session.execute(f"select count(*), sum(revenue), sum(items) from {relation}").fetchone()
    assert row is not None
    found = tuple(_plain(value) for value in row)
    return Check(found == wanted, (), {})


def _check(source: Figures, target: Figures, types: dict[str, str]) -> Check:
    differing = tuple(name for name in COLUMNS if source[name] != target[name])
    return Check(source["rows"] == target["rows"] and source["id"] == target["id"], differing, types)


def _select(figures: dict[str, str]) -> str:
    return ", ".join(figures.values())


def _plain(value: object) -> str:
    text = str(value)
    return text.rstrip("0").rstrip(".") if "." in text else text


def _sql(text: str) -> LiteralString:
    # Only names fixed in this package are put into these statements.
    return text
