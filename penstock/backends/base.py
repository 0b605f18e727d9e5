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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from penstock.backends.abilities import Capabilities
from penstock.backends.dialect import Dialect, TimeKind
from penstock.backends.steps import (
    RAW,
    STAGED,
    Check,
    Execute,
    Figure,
    Guard,
    LoadPlan,
    LoadResult,
    Native,
    Receipt,
    RunContext,
    StagedColumn,
    Step,
    TableLoad,
    Tally,
    UserSql,
    Verdict,
    Widen,
)
from penstock.errors import Unsupported
from penstock.schema import Column, Ddl, PartitionField, Schema, TableName
from penstock.schema.names import folded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# ---------------------------------------------------------------- words shared by all


class ConnectionConfig(BaseModel):
    """Base of every backend's connection options. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: str
    name: str = ""  # the connection's name in the project
    path_base: ClassVar[str] = ""  # name of the field that holds a path relative to the project, if any
    schemes: ClassVar[tuple[str, ...]] = ()  # of DSNs, besides the backend's own name

    @property
    def in_process(self) -> bool:
        """Whether what it holds lives and dies with this process: a command refuses it as a target."""
        return False


@dataclass(frozen=True, slots=True)
class Sessions:
    """How many sessions a run may have on a server. Each task has one at each end while it runs."""

    server: str  # the same for two connections that lead to the same server
    most: int
    driver: int  # that the driver itself holds


@dataclass(frozen=True, slots=True)
class Shared:
    """A path that tasks use as the driver does: on a cluster, every machine must reach it.

    Asked for before anything is written, and tried on every executor.
    """

    path: Path  # a file that tasks read, or a folder with a folder per run (`backends/staging.py`) that they write to
    writes: bool
    remedy: str  # what to do where a worker does not reach it

    @staticmethod
    def file(path: Path) -> Shared:
        """A file or a folder of files, of a source."""
        return Shared(path, False, "move it to a folder that all workers share, or run with a local master")

    @staticmethod
    def staging(path: Path, connection: str) -> Shared:
        """Staging that a connection's option names."""
        whose = f"[connections.{connection}]" if connection else "the connection"
        return Shared(path, True, f"set `staging` of {whose} to a folder that the driver and all workers may write to")

    @staticmethod
    def folder(path: Path) -> Shared:
        """Staging inside the folder that is the target itself."""
        return Shared(path, True, "load into a folder that the driver and all workers may write to")

    @staticmethod
    def project(path: Path) -> Shared:
        """Staging in the project's folder."""
        return Shared(path, True, "move the project to a folder that all workers share, or run with a local master")


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

    def unselectable(self, columns: Sequence[Column]) -> tuple[str, ...]:
        """Columns that `select_sql` cannot give in the form that partitions do: such a load takes another path."""
        return ()

    def select_checks(self, columns: Sequence[Column], window: Window | None = None) -> tuple[Check, ...]:
        """What must hold of the source in the transaction that runs `select_sql`, and is not in that statement."""
        return ()

    def rows(self) -> int | None:
        """About how many rows a table has, for the progress; None where that is not known."""
        return None

    def size(self) -> int | None:
        """About how many bytes a table holds, for joins; None where that is not known.

        Never far too few: what seems small is sent whole to every executor.
        """
        return None

    def sessions(self) -> Sessions | None:
        """Of a server that counts them; None where any number of tasks may read."""
        return None

    def hand_out(self) -> None:
        """Put what the partitions read where tasks can reach it; called when rows are about to move.

        Only for what no task can open by itself. A plan asks for it only where a transform is a function, which
        may look at rows to say what it does.
        """

    def shared(self) -> tuple[Shared, ...]:
        """What the partitions read besides a server; nothing by default."""
        return ()

    def close(self) -> None:
        """Let go of the moment. Called on every way out, also twice."""

    def notes(self) -> tuple[str, ...]:
        """What the plan should say about this source."""
        return ()


class ReadsFrames(ABC):
    """Of a source that Spark's own reader reads: a run goes through Spark, and no partitions are asked for.

    A window is refused for it; the request's `limit` is its own to keep.
    """

    @property
    @abstractmethod
    def reader(self) -> str:
        """What reads it, for the plan: "Spark's own ORC reader"."""

    @abstractmethod
    def frame(self, spark: SparkSession, columns: Sequence[Column], schema: StructType) -> DataFrame:
        """`columns` as a frame of exactly `schema`: their names and the Spark types in which they travel.

        In the run's own session, at planning: no job runs before the run's own, which is tagged.
        """


# ---------------------------------------------------------------- targets

NOBODY = ""  # the pipeline of a load that only makes a table: the table is nobody's because of it


def other_owners(owners: Iterable[str], pipeline: str) -> frozenset[str]:
    """The pipelines besides this one that have brought rows."""
    return frozenset(owners) - {pipeline, NOBODY}


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
    fixed: str = ""  # why it cannot be held in another way than it is: "it has a CHECK"


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
    partitioned: str = ""  # how: range, list, hash
    partition_columns: tuple[str, ...] = ()  # by what; "" stands for an expression

    def column(self, name: str, *, folding: bool = False) -> TargetColumn | None:
        """With `folding`, also one whose name differs only in case."""
        exact = next((c for c in self.columns if c.name == name), None)
        if exact is not None or not folding:
            return exact
        wanted = folded(name)
        return next((c for c in self.columns if folded(c.name) == wanted), None)


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

    done: bool = False  # of a load that `keeps`: an earlier start of it has committed

    def staged(self) -> list[Receipt]:
        """Of a load that `keeps`: the parts that are durable, whoever has staged them."""
        raise Unsupported("this target keeps nothing of a load that has stopped")

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


class Target(ABC):
    """A connection that loads go into.

    With a `dialect`, a load's modes, checks and casts are planned as steps in its SQL. Without one
    there are no steps: such a target appends and truncates by itself, casts in its sinks, and keeps
    to the load's `guard`.
    """

    dialect: Dialect | None = None

    @abstractmethod
    def inspect(self, table: TableName) -> TargetTable | None:
        """The table as it is, or None. A name without a schema gets the target's default one."""

    @abstractmethod
    def native(self, column: Column, existing: TargetColumn | None, cast: str | None) -> Native:
        """How `column` is held: in a new table, in the `existing` column, or as the user's `cast`."""

    @abstractmethod
    def render(self, ddl: Ddl) -> list[str]: ...

    def steps(self, ddl: Sequence[Ddl]) -> list[Step]:
        """What carries DDL out in the commit transaction; of a target with SQL, the statements of `render`."""
        return [Execute(line) for one in ddl for line in self.render(one)]

    @abstractmethod
    def watermark(self, pipeline: str, table: TableName) -> str | None:
        """What the pipeline's last committed load stored, as JSON; None where it had no window."""

    @abstractmethod
    def begin(self, plan: LoadPlan) -> Load: ...

    def end_sessions(self) -> None:
        """End what earlier attempts of this run have open on a server: their links may be lost, their locks are not."""
        return

    @abstractmethod
    def qualify(self, table: TableName) -> TableName:
        """The table's full name: the default schema filled in, and spelled as the target spells it."""

    @abstractmethod
    def has_schema(self, schema: str) -> bool: ...

    def refusals(self, table: TableName, mode: str) -> tuple[str, ...]:
        """Why this very table cannot be loaded in a mode that its backend takes: a file is replaced, not added to."""
        return ()

    def overlaps(self, source: Source, table: TableName) -> str:
        """Why the source would read what the load writes; empty where it does not."""
        return ""

    def sessions(self) -> Sessions | None:
        """Of a server that counts them; None where any number of tasks may write."""
        return None

    def shared(self) -> tuple[Shared, ...]:
        """What the sinks write to besides a server; nothing by default."""
        return ()

    def close(self) -> None:
        """Let go of planning connections."""


class WritesFrames(ABC):
    """Of a target that Spark's own writer fills: a run goes through Spark, and no sink is asked for."""

    @property
    @abstractmethod
    def writer(self) -> str:
        """What writes it, for the plan: "Spark's own ORC writer"."""

    @abstractmethod
    def write_frame(self, load: Load, table: int, frame: DataFrame) -> list[Receipt]:
        """Stage the frame by a Spark job; one receipt per file that was staged whole.

        Its columns are those of the load, named as in the target, each in the Spark type in which
        its wire form travels. Called in a thread whose jobs carry the run's tag. When the run is
        cancelled it raises, and no task of it writes any more once it has.
        """


# ---------------------------------------------------------------- backends


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

    def beside(self, opened: Source, config: ConnectionConfig, request: ReadRequest, run: RunContext) -> Source:
        """Another read of the connection that `opened` reads, for the same transform.

        With the capability `shared_moment`, at the moment of `opened`, which lasts until one of
        the two is closed: they are closed together. Without it, at a moment of its own.
        """
        del opened
        return self.source(config, request, run)

    @abstractmethod
    def target(self, config: ConnectionConfig, run: RunContext) -> Target: ...

    def unable(
        self, config: ConnectionConfig, table: TableName, partition_by: Sequence[PartitionField]
    ) -> Iterable[Unsupported]:
        """What the capabilities promise and this very target cannot, by its options and its name.

        Asked before anything is opened or any run begins; `table` is as the pipeline spells it.
        """
        del config, table, partition_by
        return ()

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
    "Figure",
    "Guard",
    "Load",
    "LoadPlan",
    "LoadResult",
    "Native",
    "Partition",
    "PartitionField",
    "Progress",
    "ReadRequest",
    "ReadsFrames",
    "Receipt",
    "RunContext",
    "Sessions",
    "Shared",
    "Sink",
    "Source",
    "Split",
    "StagedColumn",
    "Step",
    "TableInfo",
    "TableLoad",
    "Tally",
    "Target",
    "TargetColumn",
    "TargetTable",
    "TimeKind",
    "UserSql",
    "Verdict",
    "Widen",
    "Window",
    "WritesFrames",
]
