"""Changes folded and brought into the target's forms: here, or by Spark tasks that read the log themselves.

A task leaves its rows in files beside the project, which the flush's own transaction takes them from. If we die
before that, nothing was changed: the next start removes the files and folds again.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.ipc

from penstock.backends.applier import ORIGIN
from penstock.backends.base import Receipt, RunContext, Sink
from penstock.backends.change_source import CopyMoment, ReadsTexts
from penstock.backends.change_target import TableFailed
from penstock.backends.changelog.chain import Chain
from penstock.backends.changes import VALUE, ChangedColumn, Position, StoredChanges, TableChanges, TableVersion
from penstock.backends.registry import backend
from penstock.errors import Kind, PenstockError, Unsupported
from penstock.load.flush import COMMITTED_AT, TIMES, UNSENT, VERSION
from penstock.observe.failpoints import failpoint
from penstock.replicate.apply import Changes, Prepared, TablePlan, rounds_of
from penstock.replicate.fold import Folded, fold, fold_bag
from penstock.replicate.reread import made_whole
from penstock.replicate.tables import Kept
from penstock.replicate.versions import aligned
from penstock.schema import Schema, TableName

_RELATION, _TRUNCATED = b"relation", b"truncated"
FOLDER = "flushes"  # under `.penstock`


class Texts(Protocol):
    """What the texts of a log mean: a source, or its backend without a server."""

    def values(self, version: TableVersion, schema: Schema, rows: pa.Table) -> pa.Table: ...

    def key_texts(self, column: ChangedColumn, texts: pa.Array) -> pa.Array: ...


# A round of a table's plan, by its number.
Prepare = Callable[[TablePlan, int], Prepared]


def prepare_here(
    transactions: pa.Table,
    piece: Callable[[StoredChanges], TableChanges],
    texts: Texts,
    moment: CopyMoment | None = None,
) -> Prepare:
    """Each when it is asked for: no more of a large transaction is held than a piece.

    With `moment`, rows of which a change has only a part are read whole there.
    """

    def prepare(plan: TablePlan, number: int) -> Prepared:
        return prepared(plan.evolved.kept, _held(plan.rounds[number], piece), transactions, texts, moment)

    return prepare


def _held(
    found: Sequence[TableChanges | StoredChanges], piece: Callable[[StoredChanges], TableChanges]
) -> list[TableChanges]:
    return [piece(one) if isinstance(one, StoredChanges) else one for one in found]


def prepared(
    kept: Kept,
    versions: Sequence[TableChanges],
    transactions: pa.Table,
    texts: Texts,
    moment: CopyMoment | None = None,
) -> Prepared:
    version = kept.source.version
    rows = aligned(versions, version)
    folded = fold(version, rows, texts.key_texts) if kept.replica.keys else fold_bag(version, rows)
    if moment is not None and kept.replica.keys:
        folded, transactions = made_whole(version, folded, transactions, moment)
    upserts = _upserts(kept, version, folded, transactions, texts)
    return Prepared(folded.truncated, upserts, _deletes(kept, version, folded, transactions, texts))


def _upserts(kept: Kept, version: TableVersion, folded: Folded, transactions: pa.Table, texts: Texts) -> pa.Table:
    rows = folded.upserts
    named = {column.name: rows[f"n{number}"] for number, column in enumerate(version.columns)}
    made = texts.values(version, kept.wire, pa.table(named))
    columns = {kept.held(name): made[name] for name in made.column_names}
    unsent = [number for number in range(len(version.columns)) if f"u{number}" in rows.column_names]
    columns |= {f"{UNSENT}{number}": rows[f"u{number}"] for number in unsent}
    if kept.replica.keys and unsent:  # the target has it under the key that it had
        origin = _keys(kept, version, rows, texts)
        names = [staged.column.name for staged in kept.replica.columns]
        columns |= {f"{ORIGIN}{names.index(key)}": origin[key] for key in kept.replica.keys}
    return pa.table(columns | _versions(rows, transactions))


def _deletes(kept: Kept, version: TableVersion, folded: Folded, transactions: pa.Table, texts: Texts) -> pa.Table:
    made = _keys(kept, version, folded.deletes, texts)
    times = {} if kept.replica.keys else {TIMES: folded.deletes["n"]}
    found = {name: made[name] for name in made.column_names}
    return pa.table(found | times | _versions(folded.deletes, transactions))


def _keys(kept: Kept, version: TableVersion, rows: pa.Table, texts: Texts) -> pa.Table:
    """The key columns that the fold has numbered in the order of the table's columns."""
    keys = [column.name for column in version.columns if column.key or not kept.replica.keys]
    made = texts.values(version, kept.wire, pa.table({key: rows[f"k{number}"] for number, key in enumerate(keys)}))
    return made.rename_columns([kept.held(name) for name in made.column_names])


def _versions(rows: pa.Table, transactions: pa.Table) -> dict[str, pa.Array]:
    tx = rows["tx"].combine_chunks()
    return {
        VERSION: transactions["commit"].combine_chunks().take(tx).cast(pa.int64()),
        COMMITTED_AT: transactions["at"].combine_chunks().take(tx),
    }


# ---------------------------------------------------------------- by Spark tasks


@dataclass(frozen=True, slots=True)
class _Reader:
    """Texts read without their server."""

    name: str  # of the backend

    def _backend(self) -> ReadsTexts:
        found = backend(self.name)
        assert isinstance(found, ReadsTexts)  # noqa: S101  the flusher has asked
        return found

    def values(self, version: TableVersion, schema: Schema, rows: pa.Table) -> pa.Table:
        return self._backend().text_values(version, schema, rows)

    def key_texts(self, column: ChangedColumn, texts: pa.Array) -> pa.Array:
        found = self._backend().text_keys(column, texts)
        if found is None:
            raise Unsupported(f"only its server knows which keys {column.name} are equal")
        return found


@dataclass(frozen=True)
class FoldSink(Sink):
    """Two files for each part: the rows that come, and the keys of those that go."""

    folder: Path

    def write(self, part: int, batches: Iterator[pa.RecordBatch]) -> Receipt:
        rows = size = 0
        writer: pa.ipc.RecordBatchFileWriter | None = None
        seen = b""
        try:
            for batch in batches:
                relation = batch.schema.metadata[_RELATION]
                if relation != seen:
                    if writer is not None:
                        writer.close()
                    # Under a name of its own first: another attempt of the task may be writing too.
                    writer = pa.ipc.new_file(str(self._beside(part, relation)), batch.schema)
                    seen = relation
                assert writer is not None  # noqa: S101  made above
                writer.write_batch(batch)
                rows += batch.num_rows
                size += batch.nbytes
        finally:
            if writer is not None:
                writer.close()
        failpoint("fold.written")
        for relation in (b"upserts", b"deletes"):
            self._beside(part, relation).replace(self.path(part, relation))
        return Receipt(0, part, rows, size, pid=os.getpid())

    def _beside(self, part: int, relation: bytes) -> Path:
        return self.folder / f".{part}.{relation.decode()}.{os.getpid()}"

    def path(self, part: int, relation: bytes) -> Path:
        return self.folder / f"{part}.{relation.decode()}"

    def read(self, part: int) -> Prepared:
        upserts, deletes = (_mapped(self.path(part, relation)) for relation in (b"upserts", b"deletes"))
        return Prepared(upserts.schema.metadata[_TRUNCATED] == b"true", upserts, deletes)


def _mapped(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


@dataclass(frozen=True)
class FoldPiece:
    """What one task folds: a round of one table."""

    part: int
    sink: FoldSink
    log: Path
    segments: tuple[int, ...]
    after: Position
    until: Position
    kept: Kept
    round: int
    texts: _Reader

    def read(self) -> Iterator[pa.RecordBatch]:
        name = self.kept.source.name
        try:
            chain = Chain(self.log)
            only = frozenset({name})
            segments = [chain.read(number, only) for number in self.segments]
            changes = Changes.of(segments, self.after).until_commit(self.until)
            found = rounds_of(changes, name)[self.round]
            made = prepared(self.kept, _held(found, chain.piece), changes.batch.transactions, self.texts)
        except PenstockError as error:
            error.place = str(name)  # whose table it is: the flush goes on without it
            raise
        for relation, rows in ((b"upserts", made.upserts), (b"deletes", made.deletes)):
            told = {_RELATION: relation, _TRUNCATED: b"true" if made.truncated else b"false"}
            marked = rows.replace_schema_metadata(told)
            yield from marked.to_batches() or [pa.RecordBatch.from_pylist([], marked.schema)]


# Carries pieces out as Spark tasks.
RunPieces = Callable[[Sequence[FoldPiece], RunContext], list[Receipt]]


class SparkFolder:
    """Folds flushes of one replication by Spark jobs. Used by the agent's own thread alone."""

    def __init__(self, base: Path, replication: str, texts_of: str, run: RunPieces) -> None:
        self._folder = base / FOLDER / replication
        self._replication = replication
        self._texts = _Reader(texts_of)
        self._run = run
        # Of an agent that was killed: nobody else works for this replication.
        shutil.rmtree(self._folder, ignore_errors=True)

    def can(self, plan: TablePlan) -> bool:
        """Whether its keys can be told apart without the source's server."""
        reads = backend(self._texts.name)
        keys = [column for column in plan.evolved.kept.source.version.columns if column.key]
        empty = pa.array([], VALUE)
        return isinstance(reads, ReadsTexts) and all(reads.text_keys(key, empty) is not None for key in keys)

    def prepare(
        self, plans: Sequence[TablePlan], log: Path, segments: Sequence[int], after: Position, until: Position
    ) -> tuple[Prepare, Callable[[], None]]:
        """All rounds of these tables, in one job; with what removes the files again."""
        folder = self._folder / uuid.uuid4().hex
        folder.mkdir(parents=True)
        sink = FoldSink(folder)
        parts: dict[tuple[TableName, int], int] = {}
        pieces = []
        for plan in plans:
            for number in range(len(plan.rounds)):
                part = parts[plan.source, number] = len(parts)
                kept = plan.evolved.kept
                pieces.append(FoldPiece(part, sink, log, tuple(segments), after, until, kept, number, self._texts))

        def remove() -> None:
            shutil.rmtree(folder, ignore_errors=True)

        try:
            self._run(pieces, RunContext.new(self._replication, self._folder / "runs"))
        except PenstockError as error:
            remove()
            guilty = [plan.source for plan in plans if str(plan.source) == error.place]
            if error.kind is Kind.TRANSIENT or not guilty:
                raise
            raise TableFailed(guilty[0], error) from error
        except BaseException:  # Ctrl-C too
            remove()
            raise
        return lambda plan, number: sink.read(parts[plan.source, number]), remove
