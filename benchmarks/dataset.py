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
        found = dict(session.execute(f"select column_name, column_type from (describe {table})").fetchall())
        row = session.execute(f"select {_select(DUCKDB_FIGURES)} from {table}").fetchone()
    assert row is not None
    figures = {name: _plain(value) for name, value in zip(DUCKDB_FIGURES, row, strict=True)}
    types = {name: found.get(name, "missing") for name, kind in DUCKDB_TYPES.items() if found.get(name) != kind}
    return _check(source, figures, types)


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
