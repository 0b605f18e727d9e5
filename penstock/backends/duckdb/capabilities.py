"""What DuckDB can do."""

from __future__ import annotations

from penstock.backends.abilities import ARROW_TYPES, Capabilities

CAPABILITIES = Capabilities(
    name="duckdb",
    title="DuckDB",
    extra="duckdb",
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
    shared_moment=True,  # every source holds the file against writers
    event_time=True,
    ttl=True,
    tested=("2.0",),
    types=(*ARROW_TYPES, "interval"),
    notes=(
        "A file has one writer: tasks stage Parquet files, the driver loads them in one transaction.",
        "The file is locked by a lock file on the local file system; network file systems are not served.",
        'A database in memory (`path = ":memory:"`) lives in the process that runs the pipelines: the driver hands its '
        "rows out to tasks, and a command refuses it as a target.",
        "Keys are not declared: DuckDB's key index lives in memory and grows with the table.",
        "Types that DuckDB lacks are kept as text and read back as the type.",
        "UNION and VARIANT lose their tags as text and are refused as a target unless cast to text.",
    ),
)
