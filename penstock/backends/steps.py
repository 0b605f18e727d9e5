"""A planned load as data: columns on their way, the statements that bring them in, receipts.

Made by `load/`, carried out by the targets, printed by `penstock plan`. Nothing here runs anything.
"""

from __future__ import annotations

import os
import time
import uuid
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from penstock.schema import Column, ColumnDef, Ddl, PartitionField, TableName, WidenColumn


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
    nan_null: bool = False  # NaN becomes NULL: `decode` does it in SQL, a target without SQL in its sink
    in_sink: bool = False  # the sink makes and checks the cast: a statement inside the database cannot


@dataclass(frozen=True, slots=True)
class RunContext:
    """What every part of a run knows about it. Picklable; holds no secret."""

    run_id: str  # 32 hex digits, uuid7: sorts by time
    pipeline: str
    staging: Path  # `.penstock/staging/<run_id>`: local, or shared by all workers
    batch_bytes: int = 16 * 1024 * 1024
    batch_rows: int = 131_072
    at_once: int | None = None  # tasks that may run; None: as many as there are cores

    @staticmethod
    def new(pipeline: str, base: Path) -> RunContext:
        """Of a run that begins now, with a folder of its own under `base`."""
        run_id = _uuid7().hex
        return RunContext(run_id, pipeline, base / run_id)

    @property
    def application_name(self) -> str:
        """How the run's database sessions call themselves, so that a cancel finds them."""
        return f"penstock:{self.run_id}"


def _uuid7() -> uuid.UUID:
    """A random id whose first 48 bits are the time in milliseconds, so that ids sort by time."""
    value = (int(time.time() * 1000) << 80) | int.from_bytes(os.urandom(10), "big")
    value = (value & ~(0xF << 76)) | (0x7 << 76)
    value = (value & ~(0x3 << 62)) | (0x2 << 62)
    return uuid.UUID(int=value)


Figure = Literal["inserted", "updated", "deleted"]


@dataclass(frozen=True, slots=True)
class Execute:
    """A statement of the load. `counts` says which figure its row count adds to.

    If it fails and one of `diagnose` finds rows, that check's error is raised instead of the
    driver's. `touches` counts, before it, the rows that it must touch: another number afterwards
    ends the load, for a trigger has left some out, or else for what `lacking` says.
    """

    sql: str
    counts: Figure | Literal[""] = ""
    diagnose: tuple[Check, ...] = ()
    touches: str = ""
    lacking: str = ""


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
    With `moved`, what was found is that the source is not what it was: the load is planned anew.
    With `lacking`, that rows are not there of which a change brings only a part.
    """

    sql: str
    what: str
    why: str = ""
    remedy: str = ""
    figures: bool = False
    labelled: bool = False
    key: tuple[str, ...] = ()
    moved: bool = False
    lacking: bool = False


@dataclass(frozen=True, slots=True)
class UserSql:
    """A statement of the user's, which may not end our transaction."""

    sql: str
    place: str  # "transforms_pre[0]"


@dataclass(frozen=True, slots=True)
class Widen:
    """Columns of one table that get a wider type, where no statement does it: the session looks at the table first."""

    columns: tuple[WidenColumn, ...]
    sql: str  # for the plan


Step = Execute | Tally | Check | UserSql | Widen

RAW = "_penstock_raw"  # the relation that a load's steps find the staged rows under, as staged
STAGED = "_penstock_staged"  # the same, decoded to the target's types (made by the first step)


@dataclass(frozen=True, slots=True)
class StagedColumn:
    """One column on its way: as the source gives it, and as the target holds it."""

    source: str  # the column's name at the source
    column: Column  # its form on the wire, named as in the target
    native: Native


@dataclass(frozen=True, slots=True)
class Guard:
    """When a load that replaces rows must stop, for targets that have no steps to check it by."""

    allow_empty: bool
    max_delete_ratio: float


@dataclass(frozen=True, slots=True)
class TableLoad:
    """One table's part of a load: what is staged and the statements that bring it in.

    A target with SQL makes the relation `RAW` out of its staging and runs `steps` in order, in the
    commit transaction; for one without there are none. With `adopt`, the staging table itself, made
    by `adopt` under another name, becomes the target and `steps` follow.
    """

    table: TableName
    columns: tuple[StagedColumn, ...]
    steps: tuple[Step, ...]
    mode: str = "append"
    adopt: tuple[Ddl, ...] = ()
    lock: bool = True  # keep other writers out of the target during the commit
    creates: bool = False  # the target is made by this load
    replaces: bool = False  # the rows that are there go
    guard: Guard | None = None  # of a load that replaces rows, where there are no steps
    partition_by: tuple[PartitionField, ...] = ()  # of the table that is made, or as the one that is there has it
    metadata: tuple[ColumnDef, ...] = ()  # columns that the mode itself keeps


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """All that a target needs to carry a load out, and all that `penstock plan` prints of it."""

    run: RunContext
    tables: tuple[TableLoad, ...]
    # JSON, stored with the load. None is stored too: where rows that were read without a window end is not known.
    watermark: str | None = None
    continues: str | None = None  # the watermark that was read at planning: the commit must find it unchanged
    key_columns: tuple[str, ...] = ()  # shown with data errors
    native_query: str | None = None  # same database: RAW is this query, evaluated once
    native_checks: tuple[Check, ...] = ()  # before it, in the same transaction: the source is what was planned
    by_attempt: bool = False  # parts belong to task attempts: rows without a given receipt do not count
    # What is staged outlives the process, and the next start of this very run goes on with it: only the run itself
    # removes it. The target's lock is taken for the commit alone.
    keeps: bool = False


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a task leaves for the commit. First attempt wins."""

    table: int
    part: int
    rows: int
    bytes: int = 0
    ref: str = ""  # the backend's own: a file name
    pid: int = 0  # of the worker

    def to_record(self) -> dict[str, Any]:
        """As JSON, for the way back from a worker."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class LoadResult:
    rows: int  # staged
    inserted: int
    updated: int
    deleted: int
