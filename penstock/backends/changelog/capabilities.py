"""What a log of changes can do."""

from __future__ import annotations

from penstock.backends.abilities import Capabilities

CAPABILITIES = Capabilities(
    name="changelog",
    title="Change log",
    extra="",
    reads=False,
    writes=False,
    modes=frozenset(),
    deletes=frozenset(),
    transactional=False,
    atomic_across_tables=False,
    many_writers=False,
    user_sql=False,
    incremental=False,
    max_identifier_bytes=None,
    case_insensitive=False,
    same_database_sql=False,
    queries=False,
    notes=(
        "The source of a replication, not of a pipeline: what another replication has written into its files target, "
        "or into a buffer with `keep_copy = true`.",
    ),
)
