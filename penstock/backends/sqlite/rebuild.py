"""Columns that get a wider type, in the load's own transaction.

Where the wider type is of another storage class, no ALTER does it: the table's rows are set aside, and the table is
made again from its own CREATE TABLE, in which the column's type alone is another one; then rows, indexes and triggers
come back. Nothing is renamed, so views and other tables' foreign keys find it under its name. What another class would
give another meaning stops it: planning says so first, and the transaction once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.backends.sql import SqlSession
from penstock.backends.sqlite.classes import wrong_cells
from penstock.backends.sqlite.created import definitions, fixed_columns, retyped, tokens_of
from penstock.backends.sqlite.dialect import SQLiteDialect, key_text
from penstock.backends.sqlite.encode import class_of
from penstock.backends.sqlite.types import NUMERIC, affinity, declared_class, held_class, literal, quote
from penstock.errors import NOT_COMMITTED, DataError, TargetError
from penstock.observe.failpoints import failpoint
from penstock.schema import TableName, WidenColumn
from penstock.schema.names import folded
from penstock.schema.words import parse

ASIDE = "_penstock_aside"
_WHOLE = {pa.float32(): 2**24, pa.float64(): 2**53}  # integers up to here are all told apart


def widen(session: SqlSession, columns: Sequence[WidenColumn], make: Callable[[str], object]) -> None:
    """Give the columns of one table their wider types. `make` runs a statement as SQLite keeps it."""
    table = columns[0].table
    declared = dict(session.query("select name, type from pragma_table_xinfo(?, 'main')", (table.table,)))
    other = [one for one in columns if _needs_class(declared.get(one.column, ""), one.type_sql)]
    if other:
        _rebuild(session, table, other, make)
    for one in columns:
        if one not in other and (sql := _with_digits(one)):
            session.execute(sql)
    if session.knows("columns"):
        # What the source called the narrower type is not true any more; a load says what it is now.
        known = "update _penstock.columns set type_sql = ?, native = '', logical = null where target = ? and name = ?"
        for one in columns:
            session.execute(session.marks(known), (one.type_sql, str(table), one.column))


def _needs_class(declared: str, type_sql: str) -> bool:
    have, want = affinity(declared), held_class(type_sql)
    return have != want and not (have == NUMERIC and want == "INTEGER")


def _with_digits(one: WidenColumn) -> str:
    """The class stays; a decimal's text gets the digits of its new scale, so that it is no change later."""
    scale = getattr(parse(one.type_sql).type, "scale", 0)
    if not scale:
        return ""
    column = quote(one.column)
    digits = f"iif(instr({column}, '.'), length({column}) - instr({column}, '.'), 0)"
    return (
        f"update {SQLiteDialect().relation(one.table)} set {column} = {column} || iif(instr({column}, '.'), '', '.')"
        f" || substr('{'0' * scale}', 1, {scale} - {digits})\nwhere {digits} < {scale}"
    )


# ---------------------------------------------------------------- what can be made again


def fixed(session: SqlSession, table: TableName) -> dict[str, str]:
    """Why columns of the table keep the storage class that they have, by folded name; the others may get another."""
    form = _form(session, table)
    found = definitions(form.sql)
    why = fixed_columns(found)
    inline = {one.name for one in found if "primary" in one.words}
    keys = [folded(name) for name, _, _, _, key, _ in form.columns if key]
    for name, type_, _, default, key, _ in form.columns:
        own = folded(name)
        # One that we have made has its key below its columns, and is numbered by nobody but its source.
        if key and len(keys) == 1 and type_.lower() == "integer" and not (form.strict and own not in inline):
            why.setdefault(own, "it may be the row's own number")
        if default is not None and default.lower() != "null" and not default.lstrip("+-").isdigit():
            why.setdefault(own, f"it has the default {default}")
    for (own,) in session.query("select \"from\" from pragma_foreign_key_list(?, 'main')", (table.table,)):
        why.setdefault(folded(own), "it is part of a foreign key")
    others = session.query(
        "select key.\"to\" from main.sqlite_schema as other, pragma_foreign_key_list(other.name, 'main') as key"
        " where other.type = 'table' and key.\"table\" = ? collate nocase",
        (table.table,),
    )
    for (other,) in others:
        for name in keys if other is None else [folded(other)]:
            why.setdefault(name, "a foreign key refers to it")
    for index, sql in _computing_indexes(session, table):
        tokens = tokens_of(sql)
        start = next(number for number, token in enumerate(tokens) if token.text == "(")
        for token in tokens[start:]:
            why.setdefault(token.name, f"the index {index} computes with it")
    return why


def _computing_indexes(session: SqlSession, table: TableName) -> list[tuple[str, str]]:
    return session.query(
        "select made.name, made.sql from pragma_index_list(?, 'main') as found"
        " join main.sqlite_schema as made on made.type = 'index' and made.name = found.name"
        " where found.partial or exists (select 1 from pragma_index_xinfo(found.name, 'main') where cid = -2)",
        (table.table,),
    )


@dataclass(frozen=True, slots=True)
class _Form:
    sql: str
    strict: bool
    with_rowid: bool
    columns: tuple[tuple[str, str, int, str | None, int, int], ...]  # name, type, not null, default, key, hidden

    def with_types(self, types: dict[str, str]) -> _Form:
        columns = tuple((name, types.get(name, type_), *rest) for name, type_, *rest in self.columns)
        return replace(self, sql="", columns=columns)  # type: ignore[arg-type]  # six values, as before


def _form(session: SqlSession, table: TableName) -> _Form:
    [(sql, strict, without)] = session.query(
        "select made.sql, found.strict, found.wr from main.sqlite_schema as made join pragma_table_list as found"
        " on found.schema = 'main' and found.name = made.name"
        " where made.type = 'table' and made.name = ? collate nocase",
        (table.table,),
    )
    columns = session.query(
        "select name, type, \"notnull\", dflt_value, pk, hidden from pragma_table_xinfo(?, 'main') order by cid",
        (table.table,),
    )
    return _Form(sql, bool(strict), not without, tuple(columns))


# ---------------------------------------------------------------- made again


def _rebuild(
    session: SqlSession, table: TableName, widened: Sequence[WidenColumn], make: Callable[[str], object]
) -> None:
    """If we die anywhere here, the transaction is rolled back, and the table is what it was."""
    _require_free(session, table, widened)
    form = _form(session, table)
    _require_fit(session, table, widened, form)
    relation = SQLiteDialect().relation(table)
    words = {one.column: one.type_sql for one in widened}
    names = [name for name, *_, hidden in form.columns if not hidden]
    cells = [_cell(name, words[name]) if name in words else quote(name) for name in names]
    listed = [quote(name) for name in names]
    if rowid := _rowid(form):
        # Full text indexes and programs know a row by it.
        cells, listed = [*cells, rowid], [*listed, rowid]
    aside = [f"c{number}" for number in range(len(cells))]
    select = ", ".join(f"{cell} as {name}" for cell, name in zip(cells, aside, strict=True))
    kept = session.query(
        "select sql from main.sqlite_schema where tbl_name = ? collate nocase and type in ('index', 'trigger')"
        " and sql is not null order by rowid",
        (table.table,),
    )
    number = _sequence(session, table)
    session.execute(f"create temporary table {ASIDE} as select {select} from {relation}")
    session.execute(f"drop table {relation}")
    failpoint("widen.dropped")
    types = {name: declared_class(word) for name, word in words.items()}
    make(retyped(form.sql, {folded(name): type_ for name, type_ in types.items()}))
    session.execute(f"insert or abort into {relation} ({', '.join(listed)}) select {', '.join(aside)} from {ASIDE}")
    for (sql,) in kept:
        make(sql)
    if number is not None:
        session.execute("delete from main.sqlite_sequence where name = ?", (table.table,))
        session.execute("insert into main.sqlite_sequence (name, seq) values (?, ?)", (table.table, number))
    [(before, after)] = session.query(f"select (select count(*) from {ASIDE}), (select count(*) from {relation})")
    if before != after or replace(_form(session, table), sql="") != form.with_types(types):
        raise TargetError(
            f"{table} was not made again as it was",
            why="its rows are fewer, or its columns are others",
            kept=NOT_COMMITTED,
            remedy=_BY_HAND,
            place=str(table),
        )
    session.execute(f"drop table {ASIDE}")


_BY_HAND = "load into another table, or give the column its type yourself"


def _require_free(session: SqlSession, table: TableName, widened: Sequence[WidenColumn]) -> None:
    why = fixed(session, table)
    for one in widened:
        if reason := why.get(folded(one.column)):
            raise TargetError(
                f"column {one.column} of {table} cannot become {one.type_sql}",
                why=f"the table would have to be made again, and {reason}",
                kept=NOT_COMMITTED,
                remedy=_BY_HAND,
                place=str(table),
            )
    if session.query("pragma foreign_keys") == [(1,)]:
        raise TargetError(  # dropping a table would delete what refers to it
            f"{table} cannot be made again",
            why="this SQLite checks foreign keys by default",
            kept=NOT_COMMITTED,
            remedy=_BY_HAND,
            place=str(table),
        )


def _require_fit(session: SqlSession, table: TableName, widened: Sequence[WidenColumn], form: _Form) -> None:
    """Before anything is done: a cell that the wider type cannot hold was written by somebody else."""
    tests = {one.column: _unfit(one.column, one.type_sql) for one in widened}
    keys = [name for name, _, _, _, key, _ in sorted(form.columns, key=lambda column: column[4]) if key]
    key = key_text(keys, quote) if keys else key_text(["rowid"], lambda _: _rowid(form) or "null")
    rows = session.query(wrong_cells(tests, SQLiteDialect().relation(table), "", key))
    if rows:
        name = rows[0][0]
        [word] = [one.type_sql for one in widened if one.column == name]
        raise DataError(
            f"column {name} has a value that {word} cannot hold",
            why=f"the column of the target is to become {word}, and no value in it may change",
            kept=NOT_COMMITTED,
            remedy="correct it in the target, or load into another table",
            keys=tuple(shown for label, shown in rows if label == name),
            place=str(table),
        )


def _unfit(name: str, word: str) -> str:
    column, type_ = quote(name), parse(word).type
    limits = None
    if type_ in _WHOLE:
        limits = -_WHOLE[type_], _WHOLE[type_]
    elif type_ == pa.uint64():
        limits = 0, 2**63 - 1
    elif pa.types.is_decimal(type_) and type_.precision - type_.scale < len(str(2**63)):
        most = 10 ** (type_.precision - type_.scale) - 1
        limits = -most, most
    beyond = f" or {column} not between {limits[0]} and {limits[1]}" if limits else ""
    return f"(typeof({column}) <> 'null' and (typeof({column}) <> 'integer'{beyond}))"


def _cell(name: str, word: str) -> str:
    """An integer as the wider type has it."""
    type_ = parse(word).type
    if class_of(type_) == "REAL":
        return f"cast({quote(name)} as real)"
    scale = getattr(type_, "scale", 0)
    digits = f" || {literal('.' + '0' * scale)}" if scale else ""
    return f"cast({quote(name)} as text){digits}"


def _rowid(form: _Form) -> str:
    taken = {folded(name) for name, *_ in form.columns}
    return next((name for name in ("rowid", "_rowid_", "oid") if name not in taken), "") if form.with_rowid else ""


def _sequence(session: SqlSession, table: TableName) -> int | None:
    """The last number that AUTOINCREMENT has given."""
    if not session.query("select 1 from main.sqlite_schema where name = 'sqlite_sequence'"):
        return None
    rows = session.query("select seq from main.sqlite_sequence where name = ?", (table.table,))
    return int(rows[0][0]) if rows else None
