"""What SQLite can do."""

from __future__ import annotations

from penstock.backends.abilities import Capabilities

CAPABILITIES = Capabilities(
    name="sqlite",
    title="SQLite",
    extra="sqlite",
    reads=True,
    writes=True,
    modes=frozenset({"append", "truncate", "merge", "scd2"}),
    deletes=frozenset({"hard", "soft", "close"}),
    transactional=True,
    atomic_across_tables=True,
    many_writers=False,
    user_sql=True,
    incremental=True,
    max_identifier_bytes=None,
    case_insensitive=True,
    same_database_sql=True,
    shared_moment=True,  # of a copy
    event_time=True,
    ttl=True,
    time_zones=False,
    tested=("3.53",),
    types=("int64", "double", "string", "binary"),
    notes=(
        "A file has one writer: tasks stage Parquet files, the driver loads them in one transaction.",
        "A table is read by one task, or in ranges of row ids by several from a copy of the file.",
        "The file is locked by a lock file on the local file system; network file systems are not served.",
        "Tables are STRICT, of INTEGER, REAL, TEXT and BLOB; every other type is kept as canonical text (booleans and"
        " integers as INTEGER), remembered in `_penstock_columns`, and reads back as the type.",
        'A database in memory (`path = ":memory:"`) lives in the process that runs the pipelines: the driver hands its '
        "rows out to tasks, and a command refuses it as a target.",
        "NaN and -0.0 are not kept by SQLite: a data error with the key, unless the column is text.",
        "`row_hash` is NULL: SQLite has no MD5.",
    ),
)
