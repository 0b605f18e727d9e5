"""What the Postgres backend can do."""

from __future__ import annotations

from penstock.backends.base import Capabilities

CAPABILITIES = Capabilities(
    name="postgres",
    title="PostgreSQL",
    extra="postgres",
    reads=True,
    writes=True,
    modes=frozenset({"append", "truncate", "merge", "scd2"}),
    deletes=frozenset({"hard", "soft", "close"}),
    transactional=True,
    atomic_across_tables=True,
    many_writers=True,
    user_sql=True,
    incremental=True,
    max_identifier_bytes=63,
    case_insensitive=False,
    same_database_sql=True,
    shared_moment=True,
    event_time=True,
    ttl=True,
    tested=("14", "15", "16", "17", "18"),
    types=(
        "bool",
        "int16",
        "int32",
        "int64",
        "float",
        "double",
        "decimal128",
        "string",
        "binary",
        "date32",
        "time64[us]",
        "timestamp[us]",
        "timestamp[us, UTC]",
        "list",
        "uuid",
        "json",
        "numeric",
        "interval",
        "enum",
    ),
    notes=(
        "Servers from version 14.",
        "A source needs SELECT only; a target needs CREATE on its database, for the schema _penstock.",
        'Nanoseconds, structs and maps are refused; `columns.x = "text"` keeps their text.',
    ),
)
