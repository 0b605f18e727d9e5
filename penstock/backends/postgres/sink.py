"""Where a task's rows go: a shared staging table, with the receipt in the same transaction.

First attempt wins: the receipt's primary key decides, so a task that Spark runs twice adds its
rows once. A sink never touches the target.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.backends.base import Receipt, Sink
from penstock.backends.postgres.config import Conninfo
from penstock.backends.postgres.connect import identifier, worker_session
from penstock.backends.postgres.decode import row_keys
from penstock.backends.postgres.encode import Wire, encode_batch, wire_schema
from penstock.backends.postgres.errors import DATA, DRIVER_ERRORS, Place, copy_place, refused, sqlstate
from penstock.errors import DataError, PenstockError, StagingLost, TargetError
from penstock.observe.failpoints import failpoint

if TYPE_CHECKING:
    import adbc_driver_postgresql.dbapi as adbc

# Sent rows may be ahead of the row that the server complains about, by what the sockets hold.
BATCHES_REMEMBERED = 8
PART = "_penstock_part"


@dataclass(slots=True)
class _Feed:
    """What has gone into the COPY so far: figures, and the keys of the last batches."""

    rows: int = 0
    bytes: int = 0
    keys: deque[tuple[int, pa.RecordBatch]] = field(default_factory=lambda: deque(maxlen=BATCHES_REMEMBERED))
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class PostgresSink(Sink):
    """Stages one table of one load."""

    conninfo: Conninfo
    application: str
    run_id: str
    table: int
    staging: str
    wires: tuple[Wire, ...]
    keys: tuple[str, ...]
    place: str  # the target's name, for errors
    by_attempt: bool = False  # every row carries its part: only some parts will count

    def write(self, part: int, batches: Iterator[pa.RecordBatch]) -> Receipt:
        try:
            with worker_session(self.conninfo, self.application) as connection:
                return self._write(connection, part, batches)
        except DRIVER_ERRORS as error:
            raise self._mapped(error, _Feed()) from None

    def _write(self, connection: adbc.Connection, part: int, batches: Iterator[pa.RecordBatch]) -> Receipt:
        failpoint("sink.open")
        with connection.cursor() as cursor:
            # The run's token: if a sweep has removed its staging, a receipt would outlive the run.
            cursor.execute(f"lock table _penstock.{identifier(self.staging)} in row exclusive mode")
            # Waits while another attempt at this part is open; if that commits, nothing comes back.
            cursor.execute(
                "insert into _penstock.receipts (run, tbl, part, rows, bytes, pid)"
                " values ($1, $2, $3, 0, 0, $4) on conflict do nothing returning part",
                (self.run_id, self.table, part, os.getpid()),
            )
            if not cursor.fetchall():
                return self._existing(cursor, part)
            feed = self._ingest(cursor, part, batches)
            cursor.execute(
                "update _penstock.receipts set rows = $1, bytes = $2 where run = $3 and tbl = $4 and part = $5",
                (feed.rows, feed.bytes, self.run_id, self.table, part),
            )
        failpoint("sink.staged")
        # If we died here, the server rolls both back: no rows, no receipt.
        connection.commit()
        failpoint("sink.receipt")
        return Receipt(self.table, part, feed.rows, feed.bytes, pid=os.getpid())

    def _existing(self, cursor: adbc.Cursor, part: int) -> Receipt:
        cursor.execute(
            "select rows, bytes, pid from _penstock.receipts where run = $1 and tbl = $2 and part = $3",
            (self.run_id, self.table, part),
        )
        row: tuple[Any, ...] | None = cursor.fetchone()
        if row is None:
            raise self._lost("its receipt was removed")
        return Receipt(self.table, part, row[0], row[1], pid=row[2])

    def _ingest(self, cursor: adbc.Cursor, part: int, batches: Iterator[pa.RecordBatch]) -> _Feed:
        feed = _Feed()
        schema = wire_schema(self.wires)
        if self.by_attempt:
            schema = schema.append(pa.field(PART, pa.int64()))
        reader = pa.RecordBatchReader.from_batches(schema, self._encoded(part, batches, feed))
        try:
            cursor.adbc_ingest(self.staging, reader, mode="append", db_schema_name="_penstock")
        except DRIVER_ERRORS as error:
            # An error of the source travels through C as text; the object itself was kept aside.
            if feed.error is not None:
                raise feed.error from None
            raise self._mapped(error, feed) from None
        return feed

    def _encoded(self, part: int, batches: Iterator[pa.RecordBatch], feed: _Feed) -> Iterator[pa.RecordBatch]:
        try:
            for batch in batches:
                if batch.num_rows == 0:
                    continue
                encoded = encode_batch(batch, self.wires, self.keys, self.place)
                known = [name for name in self.keys if name in batch.schema.names]
                # Copied: a slice would keep the whole batch alive for its keys.
                feed.keys.append((feed.rows, batch.select(known).take(np.arange(batch.num_rows))))
                feed.rows += batch.num_rows
                feed.bytes += batch.nbytes
                if self.by_attempt:
                    column = pa.repeat(pa.scalar(part, pa.int64()), batch.num_rows)
                    encoded = encoded.append_column(PART, column)
                yield encoded
        except BaseException as error:  # ADBC would tell it in words of its own
            feed.error = error
            raise

    # ------------------------------------------------------------ errors

    def _mapped(self, error: BaseException, feed: _Feed) -> PenstockError:
        state = sqlstate(error)
        if state in ("42P01", "3F000"):
            return self._lost("its staging table was removed")
        place = copy_place(error)
        mapped = refused(error, self.conninfo, side=TargetError, place=self.place)
        if not state.startswith(DATA) or place is None:
            return mapped
        column = f"column {place.column!r}" if place.column else "a row"
        return DataError(
            f"{column} cannot hold a value",
            why=mapped.why,
            kept="nothing was committed",
            remedy=f'columns.{place.column} = "text", or a wider type' if place.column else "",
            place=self.place,
            keys=self._key_of(place, feed),
        )

    def _key_of(self, place: Place, feed: _Feed) -> tuple[str, ...]:
        for start, batch in feed.keys:
            if start < place.line <= start + batch.num_rows:
                return row_keys(batch, [place.line - 1 - start], self.keys)
        return ()

    def _lost(self, why: str) -> StagingLost:
        return StagingLost(
            "the run's staging is not there any more",
            why=why,
            kept="nothing was committed",
            remedy="run it again",
            place=self.place,
        )
