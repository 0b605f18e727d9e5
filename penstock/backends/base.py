"""The contracts every backend fills, and nothing of any one backend.

A run, seen from here:

    source = backend.source(config, request, run)      driver: one moment, held until close()
    target = backend.target(config, run)               driver
    plan   = load.plan(source, target, …)              all checks that need no row
    load   = target.begin(plan)                        lock, sweep of dead runs, empty staging
    receipt = load.sink(0).write(part, batches)        workers: stage + receipt, one atomic step
    load.commit(receipts)                              driver: one transaction, checks first
    load.abort() / load.close()                        driver: staging gone, lock free

Workers never commit to the target. Only what has a receipt is committed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from penstock.errors import Unsupported
from penstock.schema import Column, Ddl, Schema, TableName
from penstock.schema.names import folded

# ---------------------------------------------------------------- words shared by all


class Verdict(StrEnum):
    """What happens to a column's values on their way into the target."""

    EXACT = "exact"  # every value arrives as it was
    WIDENED = "widened"  # the target's type holds more than the source's
    CHECKED = "checked"  # asked for by the user or the target: cast forth and back before the load
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Native:
    """How a target holds one canonical column.

    Two SQL templates take `{}` for the staged column: `decode` turns what was staged into the
    target's type; `valid` is true where that loses nothing (empty: always true). `direct` says
    that what the sink stages is of the target's own type already, so a staging table may become
    the target.
    """

    sql: str
    verdict: Verdict = Verdict.EXACT
    decode: str = "{}"
    valid: str = ""
    direct: bool = True
    note: str = ""  # for the plan: what a reader should know
    remedy: str = ""  # of a refusal: a line of TOML that would do
    fallback: bool = False  # the text form holds values that the Arrow form cannot: see BeyondArrow
    ddl: tuple[Ddl, ...] = ()  # what must exist before the table (an enum type)
    widen_to: str = ""  # of a refusal: the type to which the existing column could be altered without loss
    collation: str = ""  # of the existing column: see TargetColumn


class ConnectionConfig(BaseModel):
    """Base of every backend's connection options. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: str
    name: str = ""  # the connection's name in the project
    path_base: ClassVar[str] = ""  # name of the field that holds a path relative to the project, if any
    schemes: ClassVar[tuple[str, ...]] = ()  # of DSNs, besides the backend's own name


@dataclass(frozen=True, slots=True)
class RunContext:
    """What every part of a run knows about it. Picklable; holds no secret."""

    run_id: str  # 32 hex digits, uuid7: sorts by time
    pipeline: str
    staging: Path  # `.penstock/staging/<run_id>`: local, or shared by all workers
    batch_bytes: int = 16 * 1024 * 1024
    batch_rows: int = 131_072

    @property
    def application_name(self) -> str:
        """How the run's database sessions call themselves, so that a cancel finds them."""
        return f"penstock:{self.run_id}"


@dataclass(frozen=True, slots=True)
class Sessions:
    """How many sessions a run may have on a server. Each task has one at each end while it runs."""

    server: str  # the same for two connections that lead to the same server
    most: int
    driver: int  # that the driver itself holds


# ---------------------------------------------------------------- sources


@dataclass(frozen=True, slots=True)
class Window:
    """The half-open range `[lower, upper)` of an incremental read, as text of the cursor's type."""

    column: str
    lower: str | None
    upper: str
    on_null: Literal["error", "include", "skip"] = "error"


@dataclass(frozen=True, slots=True)
class Cursor:
    """What to know to fix a window's upper bound on the source."""

    column: str
    lag: str | None  # "5m" for times, "1000" for integers
    timezone: str | None  # of a naive timestamp column
    floor: str | None = None  # where the last window ended: a bound never goes back before it


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """What a pipeline wants to read: a table or a query."""

    table: TableName | None = None
    query: str | None = None
    partition_on: str | None = None
    limit: int | None = None
    keys: tuple[str, ...] = ()  # shown with data errors


@dataclass(frozen=True, slots=True)
class Split:
    """The partitions of a read and, for the plan, why they are as they are."""

    partitions: tuple[Partition, ...]
    reason: str


class Partition(ABC):
    """A piece of a source that one task reads. Small, picklable; its repr shows no secret."""

    @abstractmethod
    def read(self) -> Iterator[pa.RecordBatch]:
        """In a worker: batches whose fields are exactly the columns that were asked for."""


class Source(ABC):
    """A table or query, open for one run. The driver closes it when the run ends."""

    @abstractmethod
    def schema(self) -> Schema:
        """The columns in canonical form, from the source's own catalog."""

    @abstractmethod
    def partitions(self, columns: Sequence[Column], want: int, window: Window | None = None) -> Split:
        """At most about `want` partitions that all read one moment.

        `columns` names what to read, each in its canonical form or `as_text()`. Only these are
        read.
        """

    @abstractmethod
    def primary_key(self) -> tuple[str, ...]:
        """The key of a table, `()` of a query or a table without one."""

    @abstractmethod
    def upper(self, cursor: Cursor) -> str:
        """Where an incremental window ends, fixed at the source's one moment."""

    def select_sql(self, columns: Sequence[tuple[Column, str]], window: Window | None = None) -> str:
        """The read as one statement of the source's own dialect, for the same-database path.

        A column asked for as `schema()` gives it comes as the database itself has it; any other
        form is made. Each stands under the name beside it. Asked only of backends whose
        capabilities say `same_database_sql`.
        """
        raise Unsupported("this source cannot be read by a statement of the target")

    def rows(self) -> int | None:
        """About how many rows a table has, for the progress; None where that is not known."""
        return None

    def sessions(self) -> Sessions | None:
        """Of a server that counts them; None where any number of tasks may read."""
        return None

    def close(self) -> None:
        """Let go of the moment. Called on every way out, also twice."""

    def notes(self) -> tuple[str, ...]:
        """What the plan should say about this source."""
        return ()


# ---------------------------------------------------------------- targets


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column that exists in the target."""

    name: str
    type_sql: str  # normalised spelling, comparable with `Native.sql`
    nullable: bool = True
    has_default: bool = False
    generated: bool = False
    identity: Literal["", "default", "always"] = ""  # "always": the server lets no UPDATE set it
    collation: str = ""  # quoted; only one under which different texts are equal, so that keys fall together
    sequence: bool = False  # it owns one


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A table that exists in the target, with all that a load must know of it."""

    name: TableName
    columns: tuple[TargetColumn, ...]
    primary_key: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # triggers, foreign keys, row security: said in the plan
    refusals: tuple[str, ...] = ()  # what makes a load impossible
    owners: frozenset[str] = frozenset()  # the pipelines recorded in `_penstock.tables`
    loaded: frozenset[str] = frozenset()  # columns that this pipeline has loaded before
    rows: int | None = None  # an estimate
    triggers: tuple[str, ...] = ()  # that may leave out rows of a statement without an error

    def column(self, name: str, *, folding: bool = False) -> TargetColumn | None:
        """With `folding`, also one whose name differs only in case."""
        same = [c for c in self.columns if c.name == name or (folding and folded(c.name) == folded(name))]
        return same[0] if same else None


Figure = Literal["inserted", "updated", "deleted"]


@dataclass(frozen=True, slots=True)
class Execute:
    """A statement of the load. `counts` says which figure its row count adds to.

    If it fails and one of `diagnose` finds rows, that check's error is raised instead of the
    driver's. `touches` counts, before it, the rows that it must touch: another number afterwards
    ends the load.
    """

    sql: str
    counts: Figure | Literal[""] = ""
    diagnose: tuple[Check, ...] = ()
    touches: str = ""


@dataclass(frozen=True, slots=True)
class Tally:
    """A query for one number, added to a figure that the statement after it does not report."""

    sql: str
    counts: Figure


@dataclass(frozen=True, slots=True)
class Check:
    """A query that must return no row. Its rows are keys or figures for the message.

    With `figures`, `what` is formatted with the first row (`{0}`, `{1}` …). With `labelled`, the
    first value of a row is a column's name: `what` is formatted with it, and the rows of that
    column become `keys`. Otherwise the rows become `keys`. Three keys at most. What is formatted
    holds no name of a user's: it may have braces.
    `key` names staged columns: a target that can make them a key of what was staged, and is not
    refused, has proved the check and may leave the query out.
    """

    sql: str
    what: str
    why: str = ""
    remedy: str = ""
    figures: bool = False
    labelled: bool = False
    key: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UserSql:
    """A statement of the user's, which may not end our transaction."""

    sql: str
    place: str  # "transforms_pre[0]"


Step = Execute | Tally | Check | UserSql

RAW = "_penstock_raw"  # the relation that a load's steps find the staged rows under, as staged
STAGED = "_penstock_staged"  # the same, decoded to the target's types (made by the first step)


@dataclass(frozen=True, slots=True)
class StagedColumn:
    """One column on its way: as the source gives it, and as the target holds it."""

    source: str  # the column's name at the source
    column: Column  # its form on the wire, named as in the target
    native: Native


@dataclass(frozen=True, slots=True)
class TableLoad:
    """One table's part of a load: what is staged and the statements that bring it in.

    The backend makes the relation `RAW` out of its staging and runs `steps` in order, in the
    commit transaction. With `adopt`, the staging table itself, made by `adopt` under another
    name, becomes the target and `steps` follow.
    """

    table: TableName
    columns: tuple[StagedColumn, ...]
    steps: tuple[Step, ...]
    mode: str = "append"
    adopt: tuple[Ddl, ...] = ()
    lock: bool = True  # keep other writers out of the target during the commit
    creates: bool = False  # the target is made by this load


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """All that a target needs to carry a load out, and all that `penstock plan` prints of it."""

    run: RunContext
    tables: tuple[TableLoad, ...]
    watermark: str | None = None  # JSON, stored with the load
    continues: str | None = None  # the watermark that was read at planning: the commit must find it unchanged
    key_columns: tuple[str, ...] = ()  # shown with data errors
    native_query: str | None = None  # same database: RAW is this query, evaluated once
    by_attempt: bool = False  # parts belong to task attempts: rows without a given receipt do not count


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a task leaves for the commit. First attempt wins."""

    table: int
    part: int
    rows: int
    bytes: int = 0
    ref: str = ""  # the backend's own: a file name
    pid: int = 0  # of the worker


@dataclass(frozen=True, slots=True)
class LoadResult:
    rows: int  # staged
    inserted: int
    updated: int
    deleted: int


class Sink(ABC):
    """What tasks write into. Picklable; its repr shows no secret."""

    @abstractmethod
    def write(self, part: int, batches: Iterator[pa.RecordBatch]) -> Receipt:
        """In a worker: stage all batches and make the receipt durable in one atomic step.

        If another attempt at `part` has committed, its receipt is returned and nothing is added.
        """


class Load(ABC):
    """One load of one or more tables. Holds the target's lock until closed.

    `result` is set as soon as the commit is known to have happened, so that an interrupt that
    comes right then is not taken for a rolled back load.
    """

    result: LoadResult | None = None

    @abstractmethod
    def sink(self, table: int) -> Sink: ...

    @abstractmethod
    def commit(self, receipts: Sequence[Receipt]) -> LoadResult:
        """All steps in one transaction, carrying the watermark.

        If COMMIT itself fails, looks for the run's row in `_penstock.loads` before it reports.
        """

    @abstractmethod
    def abort(self) -> None:
        """Remove what was staged. Safe after any failure, and twice."""

    @abstractmethod
    def close(self) -> None:
        """Free the lock. Safe twice."""


ROW_HASH_VERSION = 2  # raised with every change of what `row_hash` gives


class Dialect(ABC):
    """The SQL wording in which SQL targets differ; everything else is planned once in `load/`."""

    sqlglot: ClassVar[str]  # sqlglot's name of it
    update_form: ClassVar[Literal["update_from", "delete_insert"]]
    savepoints: ClassVar[bool]  # a failed statement can be looked into before the transaction ends

    @abstractmethod
    def quote(self, name: str) -> str: ...

    @abstractmethod
    def differs(self, columns: Sequence[tuple[str, str]], left: str, right: str) -> str:
        """True where any of `(name, type_sql)` differs in representation between two aliases."""

    @abstractmethod
    def key_text(self, columns: Sequence[str]) -> str:
        """An expression that prints the key columns of a row for people: `id=7, region='eu'`."""

    def row_hash(self, columns: Sequence[str], alias: str) -> str:
        """`2:` and the MD5 of the columns' texts, one after the other. Information only.

        Before each text stand its length and a colon, which keep ('ab', 'c') and ('a', 'bc') apart;
        NULL is a dash. Targets agree on values that they print alike (integers, decimals, texts,
        booleans, dates, timestamps); floats, for one, they do not.
        """
        texts = [f"cast({alias}.{self.quote(name)} as {self.text_type})" for name in columns]
        parts = [f"coalesce(cast(length({text}) as {self.text_type}) || ':' || {text}, '-')" for text in texts]
        return f"'{ROW_HASH_VERSION}:' || md5({' || '.join(parts)})"

    @abstractmethod
    def now(self) -> str:
        """The target's clock in UTC, one reading per statement, as a timestamp with time zone."""

    def overriding(self) -> str:
        """What an INSERT needs after its column list to set identity columns."""
        return ""

    def reset_sequence(self, table: TableName, column: str) -> str:
        """A statement that moves an identity column's sequence past its highest value, or ""."""
        return ""

    def relation(self, table: TableName) -> str:
        return ".".join(self.quote(part) for part in table.parts)

    timestamp_type: ClassVar[str]
    text_type: ClassVar[str]
    bool_type: ClassVar[str]


class Target(ABC):
    """A connection that loads go into."""

    dialect: Dialect

    @abstractmethod
    def inspect(self, table: TableName) -> TargetTable | None:
        """The table as it is, or None. A name without a schema gets the target's default one."""

    @abstractmethod
    def native(self, column: Column, existing: TargetColumn | None, cast: str | None) -> Native:
        """How `column` is held: in a new table, in the `existing` column, or as the user's `cast`."""

    @abstractmethod
    def render(self, ddl: Ddl) -> list[str]: ...

    @abstractmethod
    def watermark(self, pipeline: str, table: TableName) -> str | None:
        """What the pipeline's last committed load stored, as JSON."""

    @abstractmethod
    def begin(self, plan: LoadPlan) -> Load: ...

    @abstractmethod
    def qualify(self, table: TableName) -> TableName:
        """The table's full name: the default schema filled in, and spelled as the target spells it."""

    @abstractmethod
    def has_schema(self, schema: str) -> bool: ...

    def sessions(self) -> Sessions | None:
        """Of a server that counts them; None where any number of tasks may write."""
        return None

    def close(self) -> None:
        """Let go of planning connections."""


# ---------------------------------------------------------------- backends


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do. Planner, tests and the matrix in the docs read this and nothing else."""

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
    user_sql: bool  # takes transforms_pre and transforms_post
    incremental: bool  # can fix an upper bound at its one moment
    max_identifier_bytes: int | None  # longer names are refused at planning
    case_insensitive: bool  # names that differ only in case are the same
    same_database_sql: bool  # can run INSERT … SELECT inside itself
    tested: tuple[str, ...] = ()  # versions of the system that the suite runs on, for the matrix
    types: tuple[str, ...] = ()  # canonical types it holds as themselves, for the matrix
    notes: tuple[str, ...] = ()  # sentences for the matrix


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table that `penstock tables` lists."""

    name: TableName
    kind: str  # table, view, partitioned table …
    rows: int | None  # an estimate
    bytes: int | None
    primary_key: tuple[str, ...] = ()


class Backend(ABC):
    """A kind of system. Registered through the entry point group `penstock.backends`."""

    capabilities: ClassVar[Capabilities]
    config: ClassVar[type[ConnectionConfig]]

    @abstractmethod
    def source(self, config: ConnectionConfig, request: ReadRequest, run: RunContext) -> Source: ...

    @abstractmethod
    def target(self, config: ConnectionConfig, run: RunContext) -> Target: ...

    @abstractmethod
    def test(self, config: ConnectionConfig) -> str:
        """Connect and say what answered: product and version."""

    @abstractmethod
    def tables(self, config: ConnectionConfig) -> list[TableInfo]: ...

    @abstractmethod
    def same_database(self, a: ConnectionConfig, b: ConnectionConfig) -> tuple[bool, str]:
        """Whether a statement on `b` can read what `a` reads, in the same way, and why not."""


Progress = Callable[[int, int], None]  # rows so far, bytes so far

__all__ = [
    "RAW",
    "STAGED",
    "Backend",
    "Capabilities",
    "Check",
    "ConnectionConfig",
    "Cursor",
    "Dialect",
    "Execute",
    "Load",
    "LoadPlan",
    "LoadResult",
    "Native",
    "Partition",
    "Progress",
    "ReadRequest",
    "Receipt",
    "RunContext",
    "Sessions",
    "Sink",
    "Source",
    "Split",
    "StagedColumn",
    "Step",
    "TableInfo",
    "TableLoad",
    "Target",
    "TargetColumn",
    "TargetTable",
    "UserSql",
    "Verdict",
    "Window",
]


def as_record(receipt: Receipt) -> dict[str, Any]:
    """A receipt as JSON, for the way back from a worker."""
    return {name: getattr(receipt, name) for name in Receipt.__slots__}
