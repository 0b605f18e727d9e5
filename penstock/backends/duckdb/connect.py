"""Sessions on a DuckDB database. Of a file they are opened late, closed at once, never pooled.

DuckDB lets one process write a file, or many read it. Inside one process all connections to a
file share one instance, and closing any other handle on the file would drop the process's lock:
so the file is opened by DuckDB alone, and a registry allows many readers or one writer per file.

Never let a driver's message pass as it is: DuckDB puts cell values into some of them.
"""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from penstock.backends.duckdb.config import DuckDBConfig
from penstock.backends.duckdb.inmemory import database
from penstock.backends.file_load import FileSession
from penstock.errors import (
    CONSTRAINED,
    NOT_COMMITTED,
    ConnectionFailed,
    DataError,
    LinkLost,
    NotNow,
    NotThereYet,
    PenstockError,
    SourceError,
    TargetError,
)

DRAIN_ROWS = 1024
RETRY_SECONDS = 0.5  # at most, between two attempts to open a held file

_PID = re.compile(r"held in (.+?) \(PID (\d+)\)")
_TYPE = re.compile(r"\bto (?:destination )?(?:type )?([A-Z][A-Z0-9_]*(?:\(\d+,\s*\d+\))?)")
_LINE = re.compile(r"^LINE (\d+): ", re.MULTILINE)
_SAFE_CONSTRAINTS = re.compile(r"(NOT NULL constraint failed: .+|CHECK constraint failed on table .+)")
_KEY = re.compile(r'(?:duplicate key|key) "(.*?)"')
_TOO_LITTLE_MEMORY = re.compile(r"(could not|failed to) (allocate|pin) .* used\)")
_NO_SPACE = ("No space left", "Disk quota", "File too large", "temp_directory", "max_temp_directory_size")


_ABOUT_STATEMENTS = (
    duckdb.ParserException,
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.SyntaxException,
    duckdb.NotImplementedException,
    duckdb.DependencyException,
    duckdb.PermissionException,
    duckdb.TransactionException,
    duckdb.IOException,
)


class OutOfMemory(TargetError):
    """A statement cannot do with its session's memory_limit, not even by spilling."""


class FileHeld(PenstockError):
    """The file is open elsewhere; waited for, then reported as `LinkLost`."""


LEAST_MEMORY = "4MB"  # to which a reader goes back now and then


# ---------------------------------------------------------------- one writer per file and process


@dataclass(slots=True)
class _Registry:
    # Re-entrant: the collector may finish a forgotten reader, which leaves, while its thread is in here.
    lock: threading.RLock = field(default_factory=threading.RLock)
    readers: Counter[Path] = field(default_factory=Counter)
    writers: set[Path] = field(default_factory=set)
    pid: int = 0

    def enter(self, path: Path, *, read_only: bool) -> None:
        with self.lock:
            if self.pid != os.getpid():  # a forked child has none of its parent's connections
                self.pid = os.getpid()
                self.readers.clear()
                self.writers.clear()
            if path in self.writers or (not read_only and self.readers[path]):
                raise FileHeld(f"{path} is open in this process")
            if read_only:
                self.readers[path] += 1
            else:
                self.writers.add(path)

    def leave(self, path: Path, *, read_only: bool) -> None:
        with self.lock:
            if read_only:
                self.readers[path] -= 1
            else:
                self.writers.discard(path)


_registry = _Registry()


# ---------------------------------------------------------------- sessions


class Session(FileSession):
    """One connection to one file, or a cursor on a database in memory. Use as a context manager, or close it."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, path: Path | None, *, read_only: bool) -> None:
        self.connection = connection
        self.side = "source" if read_only else "target"
        self._path = path
        self._read_only = read_only
        self._open = True

    def execute(self, sql: str, params: Sequence[Any] = ()) -> int:
        with mapped(self.side, "a statement was refused"):
            self.connection.execute(sql, list(params))
            shape = self.connection.description or []
            touched = 0
            # An undrained result keeps the connection busy, and may not have run to its end.
            while rows := self.connection.fetchmany(DRAIN_ROWS):
                if len(shape) == 1 and shape[0][0] == "Count":
                    touched += rows[0][0]
            return touched

    def query(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with mapped(self.side, "a query was refused"):
            rows: list[tuple[Any, ...]] = self.connection.execute(sql, list(params)).fetchall()
            return rows

    def transaction(self) -> str:
        return str(self.query("select txid_current()")[0][0])

    def has_schema(self, schema: str) -> bool:
        found = "select 1 from duckdb_schemas() where database_name = current_database() and schema_name = ?"
        return bool(self.query(found, (schema,)))

    def let_go(self, limit: str) -> None:
        """Give back the blocks that were read and are not in use: DuckDB would keep them up to its limit.

        By a cursor of its own: a result that is being read stays open.
        """
        with mapped(self.side, "memory could not be given back"), self.connection.cursor() as cursor:
            with suppress(duckdb.OutOfMemoryException):  # more than this is in use
                cursor.execute(f"set memory_limit = '{LEAST_MEMORY}'")
            cursor.execute(f"set memory_limit = '{limit}'")

    def close(self) -> None:
        """Closing the last connection writes DuckDB's log into the file. Safe twice."""
        if self._open:
            self._open = False
            try:
                self.connection.close()
            finally:
                if self._path is not None:
                    _registry.leave(self._path, read_only=self._read_only)


def open_file(
    config: DuckDBConfig, *, read_only: bool, threads: int | None = None, memory_limit: str | None = None
) -> Session:
    """A session on the file, after waiting up to `lock_timeout` for whoever holds it."""
    if config.in_memory:
        return _open_memory(config, threads, memory_limit, read_only=read_only)
    path = config.file
    if read_only and not path.exists():
        raise NotThereYet(
            f"there is no DuckDB file {path}",
            remedy=f"check `path` of connection {config.name!r}",
        )
    attempts = Retrying(
        retry=retry_if_exception_type(FileHeld),
        stop=stop_after_delay(config.lock_timeout),
        wait=wait_random_exponential(multiplier=0.05, max=RETRY_SECONDS),
        reraise=True,
    )
    try:
        connection = attempts(_open, path, read_only=read_only)
    except FileHeld as held:
        raise LinkLost(
            f"cannot open {path}",
            why=f"{held.what}, and was not let go within {config.lock_timeout:g} s",
            kept=NOT_COMMITTED,
            remedy=held.remedy or "close the other connection, or raise lock_timeout",
        ) from held
    session = Session(connection, path, read_only=read_only)
    try:
        _configure(session, config, threads, memory_limit)
    except BaseException:  # Ctrl-C too: an open file keeps others out
        session.close()
        raise
    return session


def _open_memory(config: DuckDBConfig, threads: int | None, memory_limit: str | None, *, read_only: bool) -> Session:
    session = Session(database(config.memory_name), None, read_only=read_only)
    try:
        _configure(session, config, threads, memory_limit)
        if read_only:
            # One moment, and no way to write: what `read_only` is to a file. Closing ends it.
            session.execute("begin transaction read only")
    except BaseException:  # Ctrl-C too: no transaction stays open
        session.close()
        raise
    return session


def _open(path: Path, *, read_only: bool) -> duckdb.DuckDBPyConnection:
    _registry.enter(path, read_only=read_only)
    try:
        return duckdb.connect(str(path), read_only=read_only)
    except duckdb.Error as error:
        _registry.leave(path, read_only=read_only)
        raise _refused(error, path, read_only=read_only) from error


def _refused(error: duckdb.Error, path: Path, *, read_only: bool) -> PenstockError:
    text = str(error)
    if "Could not set lock" in text:
        holder = _PID.search(text)
        who = f"process {holder[2]} ({Path(holder[1]).name})" if holder else "another process"
        return FileHeld(f"{who} holds the file", remedy=f"end {who}, or raise lock_timeout")
    if "different configuration" in text:
        return FileHeld("this process holds the file open in another way")
    if any(sign in text for sign in _NO_SPACE):
        return _full(error)
    cls = ConnectionFailed if read_only else TargetError
    return cls(f"cannot open {path}", why=_first_line(text), remedy="check that it is a DuckDB file you may open")


def _configure(session: Session, config: DuckDBConfig, threads: int | None, memory_limit: str | None) -> None:
    settings: dict[str, Any] = {
        "TimeZone": "UTC",  # zoned times are printed and cast in UTC whatever the machine says
        "memory_limit": memory_limit or config.memory_limits[0],
        "preserve_insertion_order": False,  # keeping order makes a large load hold all of it
        "arrow_lossless_conversion": True,  # uuid and json keep their types on the way to Arrow
        "enable_progress_bar": False,
        "autoinstall_known_extensions": False,  # a run's result must not depend on a download
    }
    if (limit := threads or config.threads) is not None:
        settings["threads"] = limit
    if config.temp_directory is not None:
        settings["temp_directory"] = str(Path(config.temp_directory).expanduser().resolve())
    for name, value in settings.items():
        if name == "temp_directory" and session.query("select current_setting(?)", (name,))[0][0] == value:
            continue  # it cannot be set again once the instance, shared in this process, has used it
        rendered = f"'{value.replace(chr(39), chr(39) * 2)}'" if isinstance(value, str) else str(value).lower()
        session.execute(f"set {name} = {rendered}")


# ---------------------------------------------------------------- errors


@contextmanager
def mapped(side: str, what: str, place: str = "") -> Iterator[None]:
    """DuckDB's errors as Penstock's, without the cell values that DuckDB quotes."""
    try:
        yield
    except duckdb.Error as error:
        raise translate(error, side, what, place) from error


def named(error: OSError) -> duckdb.Error:
    """What DuckDB has found while Arrow read its rows on: that is told as an error of the system, with its name."""
    text = str(error)
    name = re.match(r"(\w+(?: \w+)*) Error: ", text)
    words = "".join(word[0].upper() + word[1:] for word in name[1].split()) if name else ""
    made = getattr(duckdb, f"{words}Exception", duckdb.OperationalError)
    found: duckdb.Error = made(text)
    return found


def translate(error: duckdb.Error, side: str, what: str, place: str = "") -> PenstockError:
    text = str(error)
    if any(sign in text for sign in _NO_SPACE) and isinstance(error, duckdb.OperationalError):
        return _full(error)
    if isinstance(error, duckdb.ConstraintException):
        named = _SAFE_CONSTRAINTS.search(text)
        why = named[1] if named else _without_values(_first_line(text))
        keys = tuple(_KEY.findall(text)) if named is None else ()
        what, remedy = "a constraint of the target is violated", CONSTRAINED.format("drop")
        return DataError(what, why=why, keys=keys, kept=NOT_COMMITTED, remedy=remedy, place=place)
    if isinstance(error, duckdb.DataError):
        to = _TYPE.search(text)
        why = f"a value does not fit {to[1]}" if to else "a value could not be converted"
        return DataError(what, why=why + _position(text), kept=NOT_COMMITTED, place=place)
    # A COMMIT that runs out of memory is told as a failure of the transaction.
    if isinstance(error, duckdb.OutOfMemoryException) or _TOO_LITTLE_MEMORY.search(text):
        remedy = "raise memory_limit of the connection, or lower its threads"
        too_little = SourceError if side == "source" else OutOfMemory
        return too_little(
            what, why="DuckDB ran out of its memory_limit", kept=NOT_COMMITTED, remedy=remedy, place=place
        )
    # Only these speak of the statement alone; the others may quote what a row holds.
    why = (
        _message(text) if isinstance(error, _ABOUT_STATEMENTS) else _without_values(_first_line(text)) + _position(text)
    )
    cls = SourceError if side == "source" else TargetError
    return cls(what, why=why, kept=NOT_COMMITTED, place=place)


def _full(error: Exception) -> TargetError:
    made = NotNow(
        "the disk is full",
        why=_without_values(_first_line(str(error))),
        kept=NOT_COMMITTED,
        remedy="free space on the file's disk, or point temp_directory and staging elsewhere",
    )
    made.__cause__ = error
    return made


def _first_line(text: str) -> str:
    return text.partition("\n")[0].partition(": ")[2] or text.partition("\n")[0]


def _message(text: str) -> str:
    """All lines: what DuckDB says about a statement, with the place it points at."""
    return text.partition(": ")[2].strip() or text.strip()


def _position(text: str) -> str:
    """The piece of the statement that DuckDB points at: our SQL or the user's, never a row."""
    found = _LINE.search(text)
    return "\n\n" + text[found.start() :].rstrip() if found else ""


def _without_values(text: str) -> str:
    return re.sub(r"\"[^\"]*\"|'[^']*'", "…", text)


def shift_lines(text: str, by: int) -> str:
    """`LINE n:` as the user counts lines, when `by` lines of ours stand before the query."""
    return _LINE.sub(lambda match: f"LINE {max(int(match[1]) - by, 1)}: ", text)
