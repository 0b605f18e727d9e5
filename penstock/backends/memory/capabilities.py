"""What a store of Arrow tables can do."""

from __future__ import annotations

from penstock.backends.abilities import ARROW_TYPES, Capabilities

CAPABILITIES = Capabilities(
    name="memory",
    title="Memory",
    extra="",
    reads=True,
    writes=True,
    modes=frozenset({"append", "truncate"}),
    deletes=frozenset(),
    transactional=True,
    atomic_across_tables=True,
    many_writers=False,
    user_sql=False,
    incremental=True,
    max_identifier_bytes=None,
    case_insensitive=False,
    same_database_sql=False,
    queries=False,
    shared_moment=True,
    instead='a DuckDB or SQLite connection with path = ":memory:" takes merge and scd2',
    types=ARROW_TYPES,
    notes=(
        "Arrow tables by name in the process that runs the pipelines; they end with it, so a command refuses one as "
        "a target.",
        "Tasks exchange Arrow files with the process, in the project's staging folder.",
        "As the target of a replication it works in a DuckDB in memory and shows its tables: `penstock[duckdb]`.",
        'Merge and scd2 need a database: DuckDB and SQLite have them in memory too, with `path = ":memory:"`.',
    ),
)
