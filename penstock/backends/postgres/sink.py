"""Where a task's rows go: a shared staging table, with the receipt in the same transaction.

First attempt wins: the receipt's primary key decides, so a task that Spark runs twice adds its
rows once. A sink never touches the target.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
from psycopg.copy import LibpqWriter

from penstock.backends.base import Receipt, Sink
from penstock.backends.postgres.config import Conninfo
from penstock.backends.postgres.connect import identifier, open_session
from penstock.backends.postgres.decode import row_keys
from penstock.backends.postgres.encode import Wire, encode_batch
from penstock.backends.postgres.errors import DATA, Place, copy_place, refused, sqlstate
from penstock.backends.postgres.silence import LOOK_SECONDS, PatientConnection
from penstock.backends.postgres.wireforms import COPY_END, COPY_HEAD, rows
from penstock.errors import DataError, LinkLost, PenstockError, StagingLost, TargetError
from penstock.observe.failpoints import failpoint

# Sent rows may be ahead of the row that the server complains about, by what the sockets hold.
BATCHES_REMEMBERED = 8
PART = "_penstock_part"
# Bytes that are given to the link at once.
CHUNK = 65_536

Session = psycopg.Connection[tuple[Any, ...]]


@dataclass(slots=True)
class _Feed:
    """What has gone into the COPY so far: figures, and the keys of the last batches."""

    rows: int = 0
    bytes: int = 0
    keys: deque[tuple[int, pa.RecordBatch]] = field(default_factory=lambda: deque(maxlen=BATCHES_REMEMBERED))

    def take(self, batch: pa.RecordBatch, keys: tuple[str, ...]) -> None:
        known = [name for name in keys if name in batch.schema.names]
        # Copied: a slice would keep the whole batch alive for its keys.
        self.keys.append((self.rows, batch.select(known).take(np.arange(batch.num_rows))))
        self.rows += batch.num_rows
        self.bytes += batch.nbytes


class _Answered(Exception):
    """The server has spoken before the copy was over: it has given up."""


class _Sender(LibpqWriter):
    """Sends all of a block before it takes the next, and ends a failed copy without telling the server why."""

    def write(self, data: Any) -> None:
        link = self.connection.pgconn
        ready = select.poll()
        ready.register(link.socket, select.POLLIN | select.POLLOUT)
        self._listen(self._poll(ready))
        view = memoryview(data)
        for start in range(0, len(view), CHUNK):
            link.put_copy_data(view[start : start + CHUNK])
            # What libpq could not send it moves about in memory with every further block.
            while link.flush():
                self._listen(self._poll(ready))

    def _poll(self, ready: select.poll) -> list[tuple[int, int]]:
        """Until there is room, or the server speaks; one that does neither is given up."""
        attention = self.connection.attention if isinstance(self.connection, PatientConnection) else None
        if attention is not None:
            attention.heard()
        while not (events := ready.poll(LOOK_SECONDS * 1000)):
            if attention is not None:
                attention.doubt()
        return events

    def _listen(self, events: list[tuple[int, int]]) -> None:
        # It would read all the rest and drop it, and the keys of the row that it complains about be forgotten.
        if any(event & select.POLLIN for _, event in events):
            raise _Answered

    def finish(self, exc: BaseException | None = None) -> None:
        if exc is None:
            super().finish()
            return
        # The error's own text would stand in the server's log, keys and all.
        stopped = TargetError("the copy was stopped")
        if isinstance(exc, _Answered):
            super().finish(stopped)  # raises what the server has said
            return
        # The first error is the one that counts, not that the link may be gone as well.
        with suppress(psycopg.Error):
            super().finish(stopped)


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
        # Closing ends the transaction; a rollback on a broken link would hide the first error.
        with closing(open_session(self.conninfo, self.application)) as session:
            try:
                return self._write(session, part, batches)
            except psycopg.Error as error:
                raise self._mapped(error, _Feed()) from None

    def _write(self, session: Session, part: int, batches: Iterator[pa.RecordBatch]) -> Receipt:
        failpoint("sink.open")
        session.execute("begin")
        # The run's token: if a sweep has removed its staging, a receipt would outlive the run.
        session.execute(f"lock table _penstock.{identifier(self.staging)} in row exclusive mode".encode())
        # Waits while another attempt at this part is open; if that commits, nothing comes back.
        mine = session.execute(
            "insert into _penstock.receipts (run, tbl, part, rows, bytes, pid)"
            " values (%s, %s, %s, 0, 0, %s) on conflict do nothing returning part",
            (self.run_id, self.table, part, os.getpid()),
        )
        if mine.fetchone() is None:
            return self._existing(session, part)
        feed = self._copy(session, part, batches)
        session.execute(
            "update _penstock.receipts set rows = %s, bytes = %s where run = %s and tbl = %s and part = %s",
            (feed.rows, feed.bytes, self.run_id, self.table, part),
        )
        failpoint("sink.staged")
        # If we died here, the server rolls both back: no rows, no receipt.
        session.execute("commit")
        failpoint("sink.receipt")
        return Receipt(self.table, part, feed.rows, feed.bytes, pid=os.getpid())

    def _existing(self, session: Session, part: int) -> Receipt:
        row = session.execute(
            "select rows, bytes, pid from _penstock.receipts where run = %s and tbl = %s and part = %s",
            (self.run_id, self.table, part),
        ).fetchone()
        if row is None:
            raise self._lost("its receipt was removed")
        return Receipt(self.table, part, row[0], row[1], pid=row[2])

    def _copy(self, session: Session, part: int, batches: Iterator[pa.RecordBatch]) -> _Feed:
        feed = _Feed()
        wires = sorted(self.wires, key=lambda wire: not wire.fixed)
        names = [wire.column.name for wire in wires] + [PART] * self.by_attempt
        listed = ", ".join(identifier(name) for name in names)
        statement = f"copy _penstock.{identifier(self.staging)} ({listed}) from stdin (format binary)"
        cursor = session.cursor()
        try:
            with cursor.copy(statement.encode(), writer=_Sender(cursor)) as copy:
                copy.write(COPY_HEAD)
                for batch in batches:
                    if batch.num_rows:
                        arrays = encode_batch(batch, wires, self.keys, self.place)
                        if self.by_attempt:
                            arrays.append(pa.repeat(pa.scalar(part, pa.int64()), batch.num_rows))
                        feed.take(batch, self.keys)
                        copy.write(rows(arrays))
                copy.write(COPY_END)
        except _Answered:
            raise LinkLost(
                "the server spoke in the middle of the copy",
                why="it named no error",
                kept="nothing was committed",
                remedy="run it again",
                place=self.place,
            ) from None
        except psycopg.Error as error:
            raise self._mapped(error, feed) from None
        return feed

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
