"""Writing files: what tasks have staged, the driver commits by a manifest and then moves into place.

Nothing counts before the manifest is there, and everything that it names counts from then on, wherever
the files still are. What a truncate replaces is removed last.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from penstock.backends.arrowtypes import held
from penstock.backends.base import (
    Load,
    LoadPlan,
    LoadResult,
    Native,
    Receipt,
    RunContext,
    Shared,
    Sink,
    Source,
    Target,
    TargetColumn,
    TargetTable,
)
from penstock.backends.files import parquet, types
from penstock.backends.files.config import COMPRESSED, DEFAULT_FORMAT, Dialect, FileFormat, FilesConfig, format_of
from penstock.backends.files.forms import SET_IT, WHOLE_CONNECTION, unable
from penstock.backends.files.listing import Listing
from penstock.backends.files.manifest import Chain, DataFile, Group, Loader, Manifest, next_manifest, staging_base
from penstock.backends.files.pieces import Piece
from penstock.backends.files.place import META, Mark, Place, data_files, found_files, locate, matches
from penstock.backends.files.read import FilesSource
from penstock.backends.files.sink import FilesSink, writer
from penstock.backends.guard import heed
from penstock.backends.locks import BY_TARGET, FileLock, cannot_write
from penstock.backends.staging import StagingArea, lost, make_folders, sweep, sync, sync_folders
from penstock.errors import PenstockError, PlanStale, TargetError, Unsupported
from penstock.observe.failpoints import failpoint
from penstock.schema import Column, Ddl, TableName
from penstock.schema.words import spell

TEXTS = ("csv", "jsonl")
FOLDERS_LOOKED_AT = 4  # by value, of files that a pattern may take


class FilesTarget(Target):
    """A directory of tables, or one file. Nothing is open between two questions."""

    by_spark = False

    def __init__(self, config: FilesConfig, run: RunContext) -> None:
        if config.read_only:
            raise TargetError(f"connection {config.name!r} is read-only", remedy="remove read_only from it")
        self._config = config
        self._run = run

    def qualify(self, table: TableName) -> TableName:
        self._place(table)
        return table

    def has_schema(self, schema: str) -> bool:  # noqa: ARG002  a directory is made with its table
        return True

    def inspect(self, table: TableName) -> TargetTable | None:
        place = self._place(table)
        chain = Chain.read(place)
        if chain.last is None and not data_files(place, self._config, found_files(place)):
            return None
        listing = Listing.of(self._config, place, self._run)
        loader = chain.loader(self._run.pipeline)
        counted = [entry.rows for entry in listing.entries]
        return TargetTable(
            table,
            tuple(TargetColumn(column.name, spell(column)) for column in listing.columns),
            notes=listing.notes,
            owners=frozenset(chain.last.loaders) if chain.last else frozenset(),
            loaded=frozenset(loader.loaded) if loader else frozenset(),
            rows=sum(rows for rows in counted if rows is not None),
        )

    def refusals(self, table: TableName, mode: str) -> tuple[str, ...]:
        place = self._place(table)
        dialect = self._dialect(place)  # raises where nothing can be written so
        # Told by the files that are there: what names and options tell has been refused before.
        if (dialect.format == "orc") != self.by_spark:
            return (f"{WHOLE_CONNECTION}: {SET_IT}",)
        if place.kind == "file" and mode == "append":
            return (
                f"{place.root} is one file, which a load replaces: it takes truncate;"
                " to append, name a table without the file's ending, which is a directory",
            )
        if place.root.parent.exists() and not os.access(place.root.parent, os.W_OK | os.X_OK):
            return (f"cannot write in {place.root.parent}: permission denied",)
        return ()

    def overlaps(self, source: Source, table: TableName) -> str:
        if not isinstance(source, FilesSource):
            return ""
        place = self._place(table)
        read = [entry.path for entry in source.listing.entries]
        if source.place.kind == "pattern":
            inside = self._would_match(place, source.place) or any(path.is_relative_to(place.root) for path in read)
        else:
            inside = place.overlaps(source.place)
        return f"{source.place.shown} is read and {place.root} is written: they are, or hold, the same files" * inside

    def _would_match(self, place: Place, read: Place) -> bool:
        """Whether a pattern takes what a load will call its files, in folders by value or not."""
        if not place.root.is_relative_to(read.root):
            return False
        root = PurePosixPath(place.root.relative_to(read.root).as_posix())
        name = f"{'0' * 32}-00000-{'0' * 8}{self._dialect(place).extension}"
        below = [root.joinpath(*["column=value"] * depth, name) for depth in range(FOLDERS_LOOKED_AT)]
        return any(matches(read.pattern, one) for one in (root, *(below if place.kind == "folder" else ())))

    def native(self, column: Column, existing: TargetColumn | None, cast: str | None) -> Native:
        return types.native(column, existing, cast)

    def render(self, ddl: Ddl) -> list[str]:  # noqa: ARG002  the next manifest carries the new columns
        return []

    def watermark(self, pipeline: str, table: TableName) -> str | None:
        loader = Chain.read(self._place(table)).loader(pipeline)
        return loader.watermark if loader else None

    def shared(self) -> tuple[Shared, ...]:
        root = self._config.root
        one_file = format_of(root.name)[0] is not None and not root.is_dir()
        return (Shared.folder((root.parent if one_file else root) / META),)

    def begin(self, plan: LoadPlan) -> Load:
        if len(plan.tables) != 1:
            raise Unsupported("files are loaded one table at a time", why="each table has manifests of its own")
        [load] = plan.tables
        for error in unable(self._config, load.table, load.partition_by):
            raise error  # at planning it was another place
        place = self._place(load.table)
        dialect = self._dialect(place)
        if (dialect.format == "orc") != self.by_spark:
            raise Unsupported(WHOLE_CONNECTION, remedy=SET_IT)
        try:
            make_folders(place.root.parent)
        except OSError as error:
            raise cannot_write(error, place.root.parent, BY_TARGET) from error
        staging: StagingArea | None = None
        lock = FileLock.acquire(
            lock_file(place), plan.run.run_id, plan.run.pipeline, target=str(place.root), elsewhere=BY_TARGET
        )
        try:
            failpoint("load.begin")
            # A run that died between its manifest and its last file is finished first: its staging
            # holds rows that are committed, and the sweep would take them for leftovers.
            Chain.read(place).publish()
            sweep(staging_base(place))
            make_folders(place.meta)
            staging = StagingArea.create(staging_base(place), plan.run, elsewhere=BY_TARGET)
            failpoint("load.staging")
        except BaseException as error:  # Ctrl-C too: nobody else frees the lock
            if staging is not None:
                staging.close()
            _remove_empty(place)
            lock.release()
            if isinstance(error, OSError):
                raise cannot_write(error, place.root.parent, BY_TARGET) from error
            raise
        return FilesLoad(self._config, place, dialect, plan, lock, staging)

    def _place(self, table: TableName) -> Place:
        place = locate(self._config, table, exists=False)
        if place.kind == "pattern":
            raise TargetError(f"{table} is a pattern, and a target is one table", remedy="name a directory or a file")
        return place

    def _dialect(self, place: Place) -> Dialect:
        """How the target's files are written: as asked for, as its name says, or as those that are there."""
        chosen = self._config.table(place.table).format or self._config.format
        compression = None
        if place.kind == "file":
            told, compression = format_of(place.root.name)
            chosen = chosen or told
        chosen = chosen or self._found_format(place)
        made = self._config.dialect(place.table, chosen, compression)
        if chosen in TEXTS and made.compression not in ("", *COMPRESSED.values()):
            raise Unsupported(f"{chosen} is not written with compression {made.compression!r}", remedy="gzip or zstd")
        if chosen in TEXTS and "".encode(made.encoding):
            # Every part and every batch would begin with it, in the middle of the file.
            raise Unsupported(
                f"{chosen} is not written in {made.encoding}",
                why="it begins with a byte order mark",
                remedy="leave `encoding` out, which is utf-8, or say utf-16-le or utf-16-be",
            )
        return made

    def _found_format(self, place: Place) -> FileFormat:
        chain = Chain.read(place)
        if chain.groups:
            return chain.groups[-1].dialect.format
        told = {format_of(file.name)[0] for file in found_files(place)} - {None}
        return told.pop() or DEFAULT_FORMAT if len(told) == 1 else DEFAULT_FORMAT


def lock_file(place: Place) -> Path:
    return place.root.parent / f".{place.root.name}.penstock.lock"


# ---------------------------------------------------------------- the load


class FilesLoad(Load):
    """A load of one table. Holds its lock file."""

    def __init__(
        self,
        config: FilesConfig,
        place: Place,
        dialect: Dialect,
        plan: LoadPlan,
        lock: FileLock,
        staging: StagingArea,
    ) -> None:
        self._config = config
        self._place = place
        self._dialect = dialect
        self._plan = plan
        self._lock = lock
        self._staging = staging
        self._unknown = False  # whether the manifest was written
        [self._load] = plan.tables

    @property
    def folder(self) -> Path:
        """Of this run's staging."""
        return self._staging.folder

    @property
    def run_id(self) -> str:
        return self._plan.run.run_id

    def sink(self, table: int) -> Sink:
        return FilesSink(
            self._staging.folder,
            self._plan.run.run_id,
            table,
            self._dialect,
            self._load.columns,
            self._plan.key_columns,
            tuple(field.column for field in self._load.partition_by) if self._place.kind == "folder" else (),
            single=self._place.kind == "file",
            elsewhere=BY_TARGET,
        )

    def commit(self, receipts: Sequence[Receipt]) -> LoadResult:
        try:
            failpoint("commit.begin")
            chain = Chain.read(self._place)
            self._check_watermark(chain)
            files = self._staged(receipts)
            done, manifest = self._manifest(chain, files)
            # A manifest that is on the disk names files that are found there.
            sync_folders((self._staging.folder / file.name for file in files), self._place.meta)
            self._write(chain, manifest, done)
        except OSError as error:
            raise cannot_write(error, self._place.root.parent, BY_TARGET) from error
        # From here on the rows are there, whatever happens: the next run does what this one cannot.
        failpoint("commit.done")
        after = Chain.read(self._place)
        after.publish()
        after.forget()
        self.abort()
        return done

    # ------------------------------------------------------------ what was staged

    def _staged(self, receipts: Sequence[Receipt]) -> list[DataFile]:
        """The files that the receipts name, proved to be there, whole, and of no part twice."""
        if len({receipt.part for receipt in receipts}) != len(receipts):
            raise lost("a part has two receipts")
        files = []
        for receipt in sorted(receipts, key=lambda one: one.part):
            named = [DataFile.from_record(record) for record in json.loads(receipt.ref or "[]")]
            if sum(file.rows for file in named) != receipt.rows:
                raise lost(f"the files of part {receipt.part} are not what its receipt says")
            files += named
        for file in files:
            path = self._staging.folder / file.name
            if not path.is_file() or path.stat().st_size != file.size:
                raise lost(f"{file.name} is not what its receipt says")
            self._require_rows(path, file.rows)
        return [self._one_file(files)] if self._place.kind == "file" else files

    def _one_file(self, parts: Sequence[DataFile]) -> DataFile:
        """The parts in one file: lines one after the other, or row group by row group."""
        paths = [self._staging.folder / part.name for part in parts]
        path = self._staging.folder / self._place.root.name
        columns = [held(staged) for staged in self._load.columns]
        if self._dialect.format == "parquet":
            parquet.copy_parts(paths, path, columns, self._dialect)
        else:
            head = writer(path, columns, self._dialect)
            head.close()
            with path.open("ab") as out:  # packed or not: one stream after the other is a stream
                for part in paths:
                    with part.open("rb") as read:
                        while data := read.read(1 << 20):
                            out.write(data)
        sync(path)
        mark, rows = Mark.of(path), sum(part.rows for part in parts)
        self._require_rows(path, rows)
        lines = all(part.lines for part in parts)
        return DataFile(path.name, rows, mark.size, mark.modified, (), lines)

    def _require_rows(self, path: Path, rows: int) -> None:
        """A Parquet file tells its own rows: they are those that were counted on their way into it."""
        if self._dialect.format == "parquet" and (found := parquet.rows(path)) != rows:
            raise lost(f"{path.name} holds {found} rows, and {rows} were staged")

    def _check_watermark(self, chain: Chain) -> None:
        """With the table locked: the window must begin where the last load ended."""
        if self._plan.watermark is None:
            return
        loader = chain.loader(self._plan.run.pipeline)
        if (loader.watermark if loader else None) != self._plan.continues:
            raise PlanStale(
                "another run has loaded since this one was planned",
                why="the stored watermark is not the one that the window begins at",
                place=str(self._load.table),
            )

    # ------------------------------------------------------------ the manifest

    def _manifest(self, chain: Chain, files: Sequence[DataFile]) -> tuple[LoadResult, Manifest]:
        load, run = self._load, self._plan.run
        rows = sum(file.rows for file in files)
        live = 0
        removes: tuple[tuple[str, Mark], ...] = ()
        if load.replaces:
            listing = Listing.of(self._config, self._place, run) if chain.last or self._has_data() else None
            live = _count(listing, run) if listing else 0
            if load.guard is not None:
                heed(load.guard, load.table, live, rows)
            if listing is not None and self._place.kind != "file":  # a single file is replaced in one step
                removes = tuple(_named(entry.path, self._place, entry.mark) for entry in listing.entries)
        known = chain.last
        mine = Loader(load.mode, self._plan.watermark, tuple(staged.column.name for staged in load.columns))
        columns = self._columns(chain, fresh=load.replaces or load.creates)
        written = tuple(held(staged) for staged in load.columns)
        manifest = Manifest(
            0,
            run.run_id,
            run.pipeline,
            load.mode,
            datetime.now(UTC).isoformat(timespec="microseconds"),
            rows,
            columns,
            (Group(run.run_id, self._dialect, written, tuple(files)),),
            load.replaces or known is None,
            {} | ({} if known is None else known.loaders) | {run.pipeline: mine},
            removes,
        )
        return LoadResult(rows, rows, 0, live if load.replaces else 0), next_manifest(chain, manifest)

    def _columns(self, chain: Chain, *, fresh: bool) -> tuple[Column, ...]:
        """The table's columns after this load: what both loads call alike stays, what differs is plain."""
        new = {staged.column.name: held(staged) for staged in self._load.columns}
        before: tuple[Column, ...] = chain.last.columns if chain.last else ()
        if chain.last is None and self._has_data():
            before = Listing.of(self._config, self._place, self._plan.run).columns
        made = []
        for column in before:
            loaded = new.pop(column.name, None)
            if loaded is None:
                made.append(replace(column, nullable=True))
            elif fresh:
                made.append(loaded)
            else:
                made.append(_both(column, loaded))
        # Rows that were there before have NULL in a column that is new.
        added = new.values() if fresh else [replace(column, nullable=True) for column in new.values()]
        return (*made, *added)

    def _has_data(self) -> bool:
        return bool(data_files(self._place, self._config, found_files(self._place)))

    def _write(self, chain: Chain, manifest: Manifest, done: LoadResult) -> None:
        try:
            chain.write(manifest)
            self.result = done
        except BaseException as error:
            # Neither an error nor Ctrl-C tells whether the name was linked. Only the manifest does; to
            # report a failure, or to try again, before looking for it could load everything twice.
            if self.result is None and self._was_committed(chain, manifest, error):
                self.result = done
            if self.result is None or not isinstance(error, Exception):
                raise

    def _was_committed(self, chain: Chain, manifest: Manifest, error: BaseException) -> bool:
        try:
            return chain.committed(manifest.number, manifest.run)
        except (OSError, PenstockError) as unknown:
            self._unknown = True
            raise TargetError(
                "it is not known whether the manifest was written",
                why=str(unknown),
                kept=f"what was staged; the load counts if {self._place.meta} holds a manifest of run {manifest.run}",
                remedy="look there before you run it again: the next run finishes the load, or removes what was staged",
            ) from error

    def abort(self) -> None:
        if self._unknown:
            # A manifest may name what is in staging. The next run looks: it moves the files, or sweeps them.
            self._staging.leave()
            return
        if self.result is not None:
            # Committed: what is still in staging, if publishing failed, is rows. The next run moves it.
            chain = Chain.read(self._place)
            pending = (chain.paths(group, file)[1] for group in chain.groups for file in group.files)
            if any(path.exists() for path in pending):
                self._staging.leave()
                return
        self._staging.close()
        _remove_empty(self._place)

    def close(self) -> None:
        try:
            self.abort()
        finally:
            self._lock.release()


def _remove_empty(place: Place) -> None:
    """A table that never came to be leaves no trace."""
    for folder in (place.meta, place.meta.parent):
        with suppress(OSError):
            folder.rmdir()


def _both(old: Column, new: Column) -> Column:
    """What two loads have in common: the wider type, and a native spelling only if both have it."""
    same = (old.type, old.logical, old.native) == (new.type, new.logical, new.native)
    if same:
        return replace(new, nullable=old.nullable or new.nullable)
    type_ = types.wider(old.type, new.type) or new.type
    logical = old.logical if old.logical == new.logical else None
    return Column(old.name, type_, logical, "" if old.native != new.native else old.native, True)


def _named(path: Path, place: Place, mark: Mark) -> tuple[str, Mark]:
    return path.relative_to(place.base).as_posix(), mark


def _count(listing: Listing, run: RunContext) -> int:
    """Rows that are there: known of files with a manifest and of Parquet, counted in others."""
    total = 0
    for entry in listing.entries:
        if entry.rows is not None:
            total += entry.rows
        else:
            total += sum(batch.num_rows for batch in Piece(entry).read([entry.columns[0].as_text()], (), run))
    return total
