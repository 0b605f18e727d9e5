"""Parquet: the format that holds canonical types itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.backends.files import types
from penstock.backends.files.config import PARQUET_COMPRESSION, Dialect
from penstock.backends.staging import staged_batches
from penstock.backends.steps import RunContext
from penstock.backends.stored import stored_schema, to_stored
from penstock.errors import PlanRefused, SourceError
from penstock.schema import Column

SAMPLE = 32_768  # rows, by which a column's encoding is chosen
# A shorter look goes first: to count the values of a column of chance takes longer than to write them. One with as
# many values as may have a dictionary has a tenth of these rows twice.
FIRST_LOOK, LEAST_TWICE = 4096, 1 / 20
# Less than this, and a column is written as it is: packing texts of chance takes as long as all else of a file.
LEAST_SAVED = 1 / 8
BUFFER_BYTES = 1024 * 1024  # of each column that is read


def opened(path: Path) -> pq.ParquetFile:
    """The file; a clear error where it is none, or only a part of one."""
    try:
        return pq.ParquetFile(
            path,
            coerce_int96_timestamp_unit="us",  # as older Spark and Hive write them, they reach further than nanoseconds
            pre_buffer=False,  # it holds all that will be read of the file, however large it is
            buffer_size=BUFFER_BYTES,
            page_checksum_verification=True,  # where there are any: else a damaged page is read as other values
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise broken(path) from error


def broken(path: Path) -> SourceError:
    return SourceError(
        f"{path} is not a whole Parquet file",
        why="it is cut off, damaged or of another format" if path.stat().st_size else "it is empty",
        remedy="write it again; leave out unfinished files by a name that begins with _ or .",
    )


def columns_of(path: Path, declared: Mapping[str, Column], section: str) -> list[Column]:
    """The canonical columns of a file of others; those that are declared, in `section`, as they are declared."""
    with opened(path) as file:
        schema = file.schema_arrow
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise PlanRefused(
            f"{path} has a column more than once", why=", ".join(twice), remedy="write it with other names"
        )
    columns = []
    for field in schema:
        column = declared.get(field.name)
        if column is not None and not types.readable(field.type, column.type):
            raise PlanRefused(
                f"column {field.name} of {path} is not read as {column.describe()}, which is declared",
                why=f"it is {field.type}, and a cast has no one meaning",
                remedy=f'declare what it is, or "text": columns = {{ "{field.name}" = "text" }}',
            )
        column = column or types.canonical(field.name, field.type, nullable=field.nullable)
        if column is None:
            raise PlanRefused(
                f"column {field.name} of {path} has a type that no target takes",
                why=f"it is {field.type}",
                remedy=f'declare another: {section} columns = {{ "{field.name}" = "bigint" }}',
            )
        columns.append(column)
    return columns


def rows(path: Path) -> int:
    with opened(path) as file:
        return int(file.metadata.num_rows)


def row_groups(path: Path) -> list[tuple[int, int]]:
    """Rows and bytes of each row group."""
    with opened(path) as file:
        metadata = file.metadata
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        return [(group.num_rows, group.total_byte_size) for group in groups]


def read(path: Path, names: Sequence[str], groups: Sequence[int] | None, run: RunContext) -> Iterator[pa.RecordBatch]:
    """Batches with the named columns, in the types that the file has."""
    with opened(path) as file:
        metadata = file.metadata
        chosen = list(range(metadata.num_row_groups)) if groups is None else list(groups)
        size = sum(metadata.row_group(number).total_byte_size for number in chosen)
        rows = sum(metadata.row_group(number).num_rows for number in chosen)
        # As many rows as fill a batch: what a row of text takes, only the file knows.
        most = max(1, min(run.batch_rows, int(rows * run.batch_bytes / size) if size else run.batch_rows))
        try:
            if not names:
                yield from _counted(rows, run.batch_rows)
                return
            for batch in file.iter_batches(most, row_groups=chosen, columns=list(names), use_threads=False):
                yield batch.select(list(names))
        except (pa.ArrowInvalid, OSError) as error:
            raise broken(path) from error


def _counted(rows: int, most: int) -> Iterator[pa.RecordBatch]:
    """Batches without a column of the file: all that is asked for lies in its folders, or nowhere."""
    while rows > 0:
        step = min(rows, most)
        yield pa.RecordBatch.from_struct_array(pa.array([{}] * step, pa.struct([])))
        rows -= step


class Writer:
    """Writes canonical batches into a new file, which begins with the first of them."""

    def __init__(self, path: Path, columns: Sequence[Column], dialect: Dialect) -> None:
        self._schema = stored_schema(columns)
        self._file = pa.OSFile(str(path), "wb")
        self._compression = dialect.compression  # the user's word, or ours column by column
        self._writer: pq.ParquetWriter | None = None
        self.lines = True

    def write(self, batch: pa.RecordBatch) -> None:
        arrays = [to_stored(batch.column(field.name), field.type) for field in self._schema]
        stored = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        if self._writer is None:
            sample = stored.slice(0, SAMPLE)
            repeating = _repeating(sample)
            self._writer = _writer(self._file, self._schema, self._compression or _packed(sample, repeating), repeating)
        self._writer.write_batch(stored)

    def close(self) -> None:
        (self._writer or _writer(self._file, self._schema, self._compression or PARQUET_COMPRESSION, [])).close()
        self._file.close()

    def drop(self) -> None:
        """Leave it unfinished: its finaliser would put a footer under half the rows and make a valid file of them."""
        if self._writer is not None:
            self._writer.is_open = False
        self._file.close()


def _writer(
    file: pa.NativeFile, schema: pa.Schema, compression: str | dict[str, str], by_dictionary: list[str]
) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        file,
        schema,
        compression=compression,
        use_dictionary=by_dictionary or False,
        store_schema=False,
        # Without one, three of four bits that a disk has turned over are read as other values.
        write_page_checksum=True,
    )


def _packed(sample: pa.RecordBatch, by_dictionary: list[str]) -> dict[str, str]:
    """The codec of each column that is smaller by it; of nested ones, of each of their leaves."""
    written = pa.BufferOutputStream()
    with _writer(written, sample.schema, PARQUET_COMPRESSION, by_dictionary) as writer:
        writer.write_batch(sample)
    group = pq.read_metadata(pa.BufferReader(written.getvalue())).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    return {
        column.path_in_schema: PARQUET_COMPRESSION
        for column in columns
        if column.total_compressed_size <= (1 - LEAST_SAVED) * column.total_uncompressed_size
    }


def _repeating(sample: pa.RecordBatch) -> list[str]:
    """The columns whose values come again, by the first rows.

    A dictionary of values that do not is begun, found too large and left: twice the time, and more bytes.
    """
    return [name for name, array in zip(sample.schema.names, sample.columns, strict=True) if _repeats(array)]


def _repeats(array: pa.Array) -> bool:
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pa.types.is_nested(array.type):
        return False
    if pc.count_distinct(array.slice(0, FIRST_LOOK)).as_py() > (1 - LEAST_TWICE) * FIRST_LOOK:
        return False
    return bool(pc.count_distinct(array).as_py() * 2 <= len(array))


def copy_parts(parts: Sequence[Path], path: Path, columns: Sequence[Column], dialect: Dialect) -> None:
    """One file out of several of the same columns, a row group at a time."""
    writer = Writer(path, columns, dialect)
    try:
        for part in parts:
            with opened(part) as file:
                for batch in staged_batches(file):
                    arrays = [types.convert(batch.column(column.name), column.type, own=True) for column in columns]
                    names = [column.name for column in columns]
                    writer.write(pa.RecordBatch.from_arrays(arrays, names=names))
        writer.close()
    except BaseException:  # Ctrl-C too: half a file must not look like a whole one
        writer.drop()
        raise
