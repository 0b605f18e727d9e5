"""Loading a database that is one file with one writer, whichever library opens it.

Tasks stage beside it. The file is opened for writing in `commit` alone, loaded in one transaction and
closed at once; until then only the lock file says that a run is under way. A database in memory is
loaded in the same way; its lock is the process's, its staging the project's.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Generic, Self, TypeVar

from penstock.backends.base import (
    Load,
    LoadPlan,
    LoadResult,
    Receipt,
    RunContext,
    Shared,
    TableLoad,
    Target,
)
from penstock.backends.database_file import DatabaseFile
from penstock.backends.locks import BY_OPTION, FileLock, ProcessLock
from penstock.backends.reactions import Reaction, Reacts
from penstock.backends.sql import (
    Counts,
    SqlSession,
    check_format,
    check_source,
    check_watermark,
    ensure_catalog,
    last_watermark,
    record_load,
    result,
    run_steps,
    was_committed,
)
from penstock.backends.staging import StagingArea, staged_under
from penstock.errors import NOT_COMMITTED, PenstockError, TargetError, Unsupported
from penstock.observe.failpoints import failpoint
from penstock.schema import TableName


class FileSession(SqlSession):
    """One connection to one file. Use as a context manager, or close it."""

    @abstractmethod
    def close(self) -> None:
        """Safe twice. What was not committed is rolled back."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


Session = TypeVar("Session", bound=FileSession)
Config = TypeVar("Config", bound=DatabaseFile)


class FileTarget(Target, Reacts, Generic[Session, Config]):
    """A file as a target. Planning opens it for one question at a time."""

    def __init__(self, config: Config, run: RunContext) -> None:
        self._config = config
        self._run = run
        _check_writable(config)

    @abstractmethod
    def _asking(self) -> Session:
        """A session that only asks, of a file that is there."""

    @abstractmethod
    def _as_spelled(self, session: Session, table: TableName) -> TableName:
        """As the file spells it: what is remembered of a table must not depend on who names it how."""

    @abstractmethod
    def _load(
        self, plan: LoadPlan, lock: FileLock | ProcessLock, staging: StagingArea | None
    ) -> FileLoad[Session, Config]: ...

    def _read(self) -> Session | None:
        """A session that only asks, None while the file does not exist."""
        return self._asking() if self._config.in_memory or self._config.file.exists() else None

    @abstractmethod
    def _reactions(self, session: Session, table: TableName, keys: Sequence[str]) -> list[Reaction]:
        """As `reactions`, of one table, under the name that the database has it by."""

    def reactions(
        self, tables: Mapping[TableName, Sequence[str]], *, silenced: bool
    ) -> dict[TableName, list[Reaction]]:
        del silenced  # there is nothing that could be
        session = self._read()
        if session is None:
            return {}
        with session:
            return {
                table: self._reactions(session, self._as_spelled(session, table), keys)
                for table, keys in tables.items()
            }

    def watermark(self, pipeline: str, table: TableName) -> str | None:
        session = self._read()
        if session is None:
            return None
        with session:
            if not session.knows("tables"):
                return None
            check_format(session)
            return last_watermark(session, pipeline, self._as_spelled(session, table))

    def shared(self) -> tuple[Shared, ...]:
        return (Shared.staging(self._base(), self._config.name),)

    def _base(self) -> Path:
        return self._config.staging_base or StagingArea.base_of(self._run)

    def begin(self, plan: LoadPlan) -> Load:
        if any(load.adopt for load in plan.tables):
            raise Unsupported("a load of a file cannot adopt its staging", why="it is staged in other files")
        lock = self._lock(plan.run)
        wanted = plan.native_query is None
        staging = staged_under(lock, self._base(), plan.run, wanted=wanted, keeps=plan.keeps, elsewhere=BY_OPTION)
        load = self._load(plan, lock, staging)
        if plan.keeps:
            lock.release()
            load.take_lock = lambda: self._lock(plan.run)
            load.done = self._has_committed(plan.run)
        return load

    def _has_committed(self, run: RunContext) -> bool:
        session = self._read()
        if session is None:
            return False
        with session:
            return session.knows("loads") and was_committed(session, run.run_id)

    def _lock(self, run: RunContext) -> FileLock | ProcessLock:
        if self._config.in_memory:
            return ProcessLock.acquire(self._config.label, run.run_id, run.pipeline)
        return FileLock.acquire(self._config.lock_file, run.run_id, run.pipeline, target=str(self._config.file))


def _check_writable(config: DatabaseFile) -> None:
    """Say at planning what would otherwise fail after all rows have been staged."""
    if config.read_only:
        raise TargetError(f"connection {config.name!r} is read-only", remedy="remove read_only from it")
    if config.in_memory:
        return
    folder = config.file.parent
    if not folder.is_dir():
        raise TargetError(f"there is no folder {folder}", remedy="create it, or set another path")
    if not os.access(folder, os.W_OK | os.X_OK):  # the journal lies there
        raise TargetError(f"cannot write in {folder}", why="permission denied", remedy="make it writable")
    if config.file.exists() and not os.access(config.file, os.W_OK):
        raise TargetError(f"cannot write {config.file}", why="permission denied", remedy="make it writable")


class FileLoad(Load, Generic[Session, Config]):
    """A load of one or more tables of a file. Holds the lock file, not the database."""

    begin: ClassVar[str] = "begin transaction"
    savepoints: ClassVar[bool] = False  # a failed statement can be looked into before the transaction ends
    take_lock: Callable[[], FileLock | ProcessLock] | None = None  # of a load that holds it for its commit alone

    def __init__(
        self, config: Config, plan: LoadPlan, lock: FileLock | ProcessLock, staging: StagingArea | None
    ) -> None:
        self._config = config
        self._plan = plan
        self._lock = lock
        self._staging = staging

    @abstractmethod
    def _asking(self) -> Session:
        """A session that only asks, to look for what became of a commit."""

    @abstractmethod
    def _make_raw(self, session: Session, number: int, load: TableLoad, receipts: Sequence[Receipt]) -> int:
        """Make `RAW`; the number of rows in it."""

    @abstractmethod
    def _drop_relations(self, session: Session) -> None:
        """Make room for the next table's relations: `RAW`, `STAGED` and whatever its mode made beside them."""

    def _remember(self, session: Session) -> None:
        """Write down what the backend wants to know of the load later, in its transaction."""

    def _send(self, session: Session) -> None:
        session.execute("commit")

    def _shut(self, session: Session) -> None:
        session.close()

    def _area(self) -> StagingArea:
        if self._staging is None:
            raise TargetError("a load inside one database stages nothing", kept=NOT_COMMITTED)
        return self._staging

    def _committed(self, session: Session, receipts: Sequence[Receipt]) -> LoadResult:
        """All of the load in a session that is open for writing, and closed whatever comes."""
        try:
            if self.take_lock is not None:
                self._lock = self.take_lock()
            done = self._in_transaction(session, receipts)
            self._send_commit(session, done)
        finally:
            self._shut(session)  # at once: others wait for the file
        self.abort()
        return done

    def staged(self) -> list[Receipt]:
        return self._area().receipts()

    def _in_transaction(self, session: Session, receipts: Sequence[Receipt]) -> LoadResult:
        session.execute(self.begin)
        try:
            failpoint("commit.begin")
            check_source(session, self._plan)
            ensure_catalog(session)
            check_format(session)
            check_watermark(session, self._plan)
            counts, staged = Counts(), {}
            for number, load in enumerate(self._plan.tables):
                staged[number] = self._make_raw(session, number, load, receipts)
                run_steps(session, load, counts, savepoints=self.savepoints)
                self._drop_relations(session)
            record_load(session, self._plan, staged)
            self._remember(session)
            failpoint("commit.loaded")
        except BaseException:  # Ctrl-C too: no transaction stays open
            _roll_back(session)
            raise
        return result(counts, sum(staged.values()))

    def _send_commit(self, session: Session, done: LoadResult) -> None:
        try:
            self._send(session)
            self.result = done
        except BaseException as error:
            # Neither an error nor Ctrl-C tells whether the journal was written. Only the row that
            # travelled in the same transaction does; to report a failure, or to try again, before
            # looking for it could load everything twice.
            if self.result is None and self._was_committed(session, error):
                self.result = done
            if not isinstance(error, PenstockError):
                raise  # whoever handles it finds in `result` what has become of the load
            if self.result is None:
                raise
        failpoint("commit.done")

    def _was_committed(self, session: Session, error: BaseException) -> bool:
        run_id = self._plan.run.run_id
        loads = session.marks("_penstock.loads")
        try:
            self._shut(session)  # what is not committed by now is rolled back
            with self._asking() as again:
                return again.knows("loads") and was_committed(again, run_id)
        except BaseException as unknown:  # noqa: BLE001  a second Ctrl-C too leaves it unknown
            why = f"{unknown}" if isinstance(unknown, PenstockError) else type(unknown).__name__
            raise TargetError(
                "the answer to the commit was lost, and the file cannot be looked into",
                why=why,
                kept=f"it is not known whether the load was committed: run {run_id} in {loads} tells",
                remedy=f"look there before you run it again: select * from {loads} in {self._config.label}",
            ) from error

    def abort(self) -> None:
        if self._staging is not None:
            self._staging.close()

    def close(self) -> None:
        try:
            if self._plan.keeps and self._staging is not None and self.result is None:
                self._staging.leave()
            else:
                self.abort()
        finally:
            self._lock.release()


def _roll_back(session: FileSession) -> None:
    """End the transaction; the library may have done so itself, and if it fails, closing ends it."""
    try:
        session.execute("rollback")
    except PenstockError:
        session.close()
