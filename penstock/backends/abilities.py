"""What backends can do, as data: planner, tests and the matrix in the docs read this and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

# The canonical types that Arrow itself has, as the matrix names them.
ARROW_TYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float", "double"),
    *("decimal128", "string", "binary", "date32", "time64", "timestamp", "uuid", "json", "list", "struct", "map"),
)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What one backend can do."""

    name: str  # "postgres"
    title: str  # "PostgreSQL"
    extra: str  # the pip extra that installs its driver, "" if always there
    reads: bool  # may be a source
    writes: bool  # may be a target
    modes: frozenset[str]  # of append, truncate, merge, scd2
    deletes: frozenset[str]  # of hard, soft, close
    transactional: bool  # a load is one transaction
    atomic_across_tables: bool  # several tables commit together
    many_writers: bool  # tasks load the target's own server in parallel
    user_sql: bool  # takes transforms_pre and transforms_post, delete_scope and order_by
    incremental: bool  # can fix an upper bound at its one moment
    max_identifier_bytes: int | None  # longer names are refused at planning
    case_insensitive: bool  # names that differ only in case are the same
    same_database_sql: bool  # can run INSERT … SELECT inside itself
    queries: bool = True  # as a source, takes a query
    shared_moment: bool = False  # several tables of a transform are read at one moment: see Backend.beside
    event_time: bool = False  # scd2 by the times of the rows
    ttl: bool = False  # deletes rows by age in the load's own transaction
    partition_by: frozenset[str] = frozenset()  # of value, year, month, day, hour
    max_partition_fields: int | None = None  # None: any number
    instead: str = ""  # for whoever asks for a mode that it does not take: what would
    time_zones: bool = True  # knows others than UTC
    tested: tuple[str, ...] = ()  # versions of the system that the suite runs on, for the matrix
    types: tuple[str, ...] = ()  # canonical types it holds as themselves, for the matrix
    notes: tuple[str, ...] = ()  # sentences for the matrix
