"""Loading a table of a memory store: tasks stage Arrow files, the commit puts another table in its place.

Until then the store is as it was; whoever has taken the old table keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from penstock.backends import arrowtypes
from penstock.backends.base import (
    Load,
    LoadPlan,
    LoadResult,
    Native,
    Receipt,
    RunContext,
    Shared,
    Sink,
    StagedColumn,
    TableLoad,
    Target,
    TargetColumn,
    TargetTable,
    other_owners,
)
from penstock.backends.guard import heed
from penstock.backends.locks import BY_PROJECT, ProcessLock
from penstock.backends.memory.store import Loaded, Store, StoredTable
from penstock.backends.memory.types import common, field_of
from penstock.backends.sql import check_staged
from penstock.backends.staging import ArrowSink, StagingArea, staged_under
from penstock.errors import PlanStale, StagingLost
from penstock.observe.failpoints import failpoint
from penstock.schema import Column, Ddl, TableName
from penstock.schema.words import spell


class MemoryTarget(Target):
    """A store of this process as a target."""

    def __init__(self, store: Store, run: RunContext) -> None:
        self._store = store
        self._run = run

    def inspect(self, table: TableName) -> TargetTable | None:
        found = self._store.find(table)
        if found is None:
            return None
        mine = found.loaded.get(self._run.pipeline)
        return TargetTable(
            table,
            tuple(TargetColumn(column.name, spell(column)) for column in found.columns),
            owners=frozenset(found.loaded),
            loaded=mine.columns if mine is not None else frozenset(),
            rows=found.data.num_rows,
        )

    def native(self, column: Column, existing: TargetColumn | None, cast: str | None) -> Native:
        return arrowtypes.native(column, existing, cast)

    def render(self, ddl: Ddl) -> list[str]:  # noqa: ARG002  there is no statement to say it in
        return []

    def watermark(self, pipeline: str, table: TableName) -> str | None:
        found = self._store.find(table)
        mine = found.loaded.get(pipeline) if found is not None else None
        return mine.watermark if mine is not None else None

    def qualify(self, table: TableName) -> TableName:
        return table

    def has_schema(self, schema: str) -> bool:  # noqa: ARG002  a schema is a part of a name here
        return True

    def shared(self) -> tuple[Shared, ...]:
        return (Shared.project(StagingArea.base_of(self._run)),)

    def begin(self, plan: LoadPlan) -> Load:
        name = f"the memory store {self._store.name!r}"
        lock = ProcessLock.acquire(name, plan.run.run_id, plan.run.pipeline)
        staging = staged_under(lock, StagingArea.base_of(plan.run), plan.run, elsewhere=BY_PROJECT)
        assert staging is not None  # noqa: S101  it was wanted
        return MemoryLoad(self._store, plan, lock, staging)


@dataclass(frozen=True, slots=True)
class MemorySink(Sink):
    """Stages rows in the types that the store keeps."""

    files: ArrowSink
    columns: tuple[StagedColumn, ...]
    keys: tuple[str, ...]

    def write(self, part: int, batches: Iterator[pa.RecordBatch]) -> Receipt:
        return self.files.write(part, (arrowtypes.cast_batch(batch, self.columns, self.keys) for batch in batches))


class MemoryLoad(Load):
    """A load of one or more tables of a store. Holds the store's lock for loads."""

    def __init__(self, store: Store, plan: LoadPlan, lock: ProcessLock, staging: StagingArea) -> None:
        self._store = store
        self._plan = plan
        self._lock = lock
        self._staging = staging

    def sink(self, table: int) -> Sink:
        columns = self._plan.tables[table].columns
        schema = pa.schema([pa.field(staged.column.name, arrowtypes.held_type(staged)) for staged in columns])
        return MemorySink(self._staging.arrow_sink(table, schema), columns, self._plan.key_columns)

    def commit(self, receipts: Sequence[Receipt]) -> LoadResult:
        failpoint("commit.begin")
        staged = [self._read(number, load, receipts) for number, load in enumerate(self._plan.tables)]
        with self._store.lock:
            made = [self._made(load, rows) for load, rows in zip(self._plan.tables, staged, strict=True)]
            failpoint("commit.loaded")
            rows = sum(table.num_rows for table in staged)
            deleted = sum(self._store.rows(load.table) for load in self._plan.tables if load.replaces)
            result = LoadResult(rows, rows, 0, deleted)
            try:
                self._store.put({load.table: table for load, table in zip(self._plan.tables, made, strict=True)})
                self.result = result
            except BaseException:  # Ctrl-C too: between the two, the rows are there and would be loaded again
                if self._store.find(self._plan.tables[0].table) is made[0]:
                    self.result = result
                raise
        failpoint("commit.done")
        self.abort()
        return self.result

    def _read(self, number: int, load: TableLoad, receipts: Sequence[Receipt]) -> pa.Table:
        files = self._staging.files(number, receipts)
        schema = pa.schema([field_of(arrowtypes.held(staged)) for staged in load.columns])
        pieces = [_read_file(file) for file in files]
        batches = [batch for piece in pieces for batch in piece]
        table = pa.Table.from_batches(batches, schema.remove_metadata()).cast(schema)
        check_staged(load, table.num_rows, [receipt for receipt in receipts if receipt.table == number])
        return table

    def _made(self, load: TableLoad, rows: pa.Table) -> StoredTable:
        """The table that takes the place of the one that is there, with the store locked."""
        found = self._store.find(load.table)
        self._check_plan(load, found)
        data, loaded = rows, {}
        if found is not None:
            if load.guard is not None:
                heed(load.guard, load.table, found.data.num_rows, rows.num_rows)
            kept = found.data.slice(0, 0) if load.replaces else found.data
            data, loaded = _joined(kept, rows), dict(found.loaded)
        names = frozenset(staged.column.name for staged in load.columns)
        return StoredTable(data, {**loaded, self._plan.run.pipeline: Loaded(self._plan.watermark, names)})

    def _check_plan(self, load: TableLoad, found: StoredTable | None) -> None:
        """The plan was made before the lock: the table must still be the one that it was made for."""
        mine = found.loaded.get(self._plan.run.pipeline) if found is not None else None
        watermark = mine.watermark if mine is not None else None
        reasons = {
            "the table was not there" if load.creates else "the table is gone": (found is None) != load.creates,
            "its columns have changed": found is not None and not _fits(found, load),
            "the stored watermark is not the one that the window begins at": self._plan.watermark is not None
            and watermark != self._plan.continues,
            "another pipeline has loaded it": load.replaces
            and found is not None
            and bool(other_owners(found.loaded, self._plan.run.pipeline)),
        }
        for why, applies in reasons.items():
            if applies:
                raise PlanStale(
                    "the store has changed since this run was planned",
                    why=why,
                    kept="nothing was committed",
                    remedy="run it again",
                    place=str(load.table),
                )

    def abort(self) -> None:
        self._staging.close()

    def close(self) -> None:
        try:
            self.abort()
        finally:
            self._lock.release()


def _read_file(file: Path) -> list[pa.RecordBatch]:
    try:
        with pa.OSFile(str(file)) as opened:
            reader = pa.ipc.open_file(opened)
            return [reader.get_batch(number) for number in range(reader.num_record_batches)]
    except (OSError, pa.ArrowInvalid) as error:
        raise StagingLost("what was staged cannot be read", why=f"{file.name} is not whole") from error


def _fits(found: StoredTable, load: TableLoad) -> bool:
    """Whether every column goes into what is there, or is one that it is to be widened to."""
    there = {column.name: spell(column) for column in found.columns}
    for staged in load.columns:
        have = there.get(staged.column.name)
        if have is not None and have != staged.native.sql and not arrowtypes.widens(have, staged.native.sql):
            return False
    return True


def _joined(kept: pa.Table, rows: pa.Table) -> pa.Table:
    """All columns of both by name, what one lacks being NULL, and rows after one another; no value is copied."""
    fields = []
    for name in dict.fromkeys([*kept.column_names, *rows.column_names]):
        here = kept.schema.field(name) if name in kept.column_names else None
        new = rows.schema.field(name) if name in rows.column_names else None
        if here is None or new is None or (not kept.num_rows and new.type == here.type):
            fields.append((new or here).with_nullable(True))  # type: ignore[union-attr]  # one of them has it
        else:
            fields.append(common(here, new))
    schema = pa.schema(fields)
    return pa.concat_tables([_aligned(kept, schema), _aligned(rows, schema)])


def _aligned(table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        table.column(field.name).cast(field.type)
        if field.name in table.column_names
        else pa.chunked_array([pa.nulls(table.num_rows, field.type)])
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
