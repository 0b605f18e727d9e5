"""Rows that only the driver's process holds, on their way to tasks: Arrow files in the run's staging.

Partitions are made while planning, and name files that are not there yet; `write` fills them when
rows are about to move (for a transform function, which may look at rows, while it is planned), batch
by batch, so that the rows are not in memory twice. Tasks map the files and never write to them; the
driver removes them when it closes the source.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from penstock.backends.base import Partition, RunContext
from penstock.backends.locks import BY_PROJECT, cannot_write
from penstock.backends.staging import StagingArea, check_token, sweep, write_arrow
from penstock.errors import SourceMoved
from penstock.observe.failpoints import failpoint
from penstock.schema import Column

FOLDER = "read"  # beside the folders of the runs: targets stage in theirs at the same time

Batches = Callable[[], Iterable[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class HandedOut(Partition):
    """A file that the driver has written for one task."""

    file: Path

    def read(self) -> Iterator[pa.RecordBatch]:
        check_token(self.file.parent, self.file.parent.name)
        failpoint("read.open")
        first = True
        try:
            with pa.memory_map(str(self.file)) as mapped:
                reader = pa.ipc.open_file(mapped)
                for number in range(reader.num_record_batches):
                    yield reader.get_batch(number)
                    if first:
                        first = False
                        failpoint("read.batch")
        except FileNotFoundError as error:
            raise SourceMoved(
                f"the rows that were handed out in {self.file} are gone", why="the file is not there"
            ) from error


class Exchange:
    """The files of one source in one run."""

    def __init__(self, run: RunContext) -> None:
        # A name of its own: a run may have several sources.
        self._run = replace(run, run_id=uuid.uuid4().hex)
        self._base = run.staging.parent / FOLDER
        self._pending: list[tuple[Path, pa.Schema, Batches]] = []
        self._made = 0
        self._area: StagingArea | None = None

    def partition(self, columns: Sequence[Column], batches: Batches) -> HandedOut:
        """A partition whose batches, of exactly these columns, `write` will ask for."""
        return HandedOut(self.file(pa.schema([pa.field(column.name, column.type) for column in columns]), batches))

    def file(self, schema: pa.Schema, batches: Batches) -> Path:
        """A file of its own, which `write` will fill."""
        file = self._base / self._run.run_id / f"p{self._made}.arrow"
        self._made += 1
        self._pending.append((file, schema, batches))
        return file

    def write(self) -> None:
        """Fill every file. Safe twice."""
        if self._area is None:
            try:
                self._base.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise cannot_write(error, self._base.parent, BY_PROJECT) from error
            sweep(self._base)
            self._area = StagingArea.create(self._base, self._run, elsewhere=BY_PROJECT)
        while self._pending:
            file, schema, batches = self._pending[-1]
            try:
                write_arrow(file, schema, batches())
            except OSError as error:
                raise cannot_write(error, file.parent, BY_PROJECT) from error
            self._pending.pop()  # only now: what failed is written again

    def close(self) -> None:
        """Remove what was written. Safe twice."""
        if self._area is not None:
            area, self._area = self._area, None
            area.close()
