"""What files can do."""

from __future__ import annotations

from penstock.backends.abilities import ARROW_TYPES, Capabilities

CAPABILITIES = Capabilities(
    name="files",
    title="Files",
    extra="",
    reads=True,
    writes=True,
    modes=frozenset({"append", "truncate"}),
    deletes=frozenset(),
    transactional=True,
    atomic_across_tables=False,
    many_writers=False,
    user_sql=False,
    incremental=True,
    max_identifier_bytes=None,
    case_insensitive=True,
    same_database_sql=False,
    queries=False,
    partition_by=frozenset({"value"}),
    instead="rows that change in place need a table format, Delta or Iceberg, or a database",
    tested=("Parquet, CSV, JSON Lines, ORC",),
    types=ARROW_TYPES,
    notes=(
        "A load is committed by its manifest; files that no manifest names and others have put there are read too.",
        "Modes that change rows in place need a table format, Delta or Iceberg, or a database.",
        "ORC is read and written by Spark itself; its dates end with the year 9999 and have no infinity."
        " It takes no `partition_by`, no incremental reads and no single file as a target.",
        "A table is locked by a lock file on the local file system; network file systems are not served.",
        "Columns whose names differ only in case are refused: Spark and DuckDB do not tell them apart.",
    ),
)
