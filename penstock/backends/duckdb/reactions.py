"""What a table does by itself with the rows of a flush. DuckDB has no triggers, and puts no check off."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.backends.duckdb.connect import Session
from penstock.backends.reactions import Reaction, by_rows
from penstock.schema import TableName

_WHERE = "database_name = current_database() and schema_name = ? and table_name = ?"


def reactions(session: Session, table: TableName, keys: Sequence[str]) -> list[Reaction]:
    made = []
    constraints = session.query(
        f"select constraint_type, constraint_column_names, constraint_text from duckdb_constraints() where {_WHERE}"
        " and constraint_type in ('PRIMARY KEY', 'UNIQUE', 'FOREIGN KEY') order by constraint_index",
        table.parts,
    )
    for kind, columns, text in constraints:
        if kind == "FOREIGN KEY":
            what = f"{text} of {table} is checked row by row, in whatever order tables come"
            made.append(Reaction(what, "make the table without it, or choose another target"))
        elif not keys or not set(keys) <= set(columns):
            made.append(by_rows(text, str(table), "make the table without it, if rows do so"))
    indexes = session.query(
        f"select index_name, expressions from duckdb_indexes() where {_WHERE} and is_unique order by 1", table.parts
    )
    for index, expressions in indexes:
        columns = {part.strip(" \"'") for part in expressions.strip("[]").split(",")}
        if not keys or not set(keys) <= columns:
            made.append(by_rows(f"unique index {index}", str(table), f"drop index {index}, if rows do so"))
    return made
