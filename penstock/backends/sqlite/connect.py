"""Sessions on a SQLite database: opened late, closed at once, never pooled.

All of them go through the one SQLite inside the ADBC driver: a second library in the process, or a
plain handle on the file, would drop the locks of the first when it is closed, and a writer's row was
lost that way.

Never let a driver's message pass as it is: it repeats the whole statement.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote as percent

import pyarrow as pa
from adbc_driver_manager import Error, IntegrityError
from adbc_driver_sqlite import dbapi
from sqlglot import TokenType
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import TokenError

from penstock.backends.file_load import FileSession
from penstock.backends.sql import Catalog
from penstock.backends.sqlite.config import SQLiteConfig
from penstock.backends.sqlite.inmemory import uri
from penstock.backends.sqlite.rebuild import widen
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
from penstock.schema import WidenColumn

PREFIX = "_penstock_"  # SQLite has no schemas: what is ours begins with this
BATCH_ROWS = "adbc.sqlite.query.batch_rows"

_HEAD = re.compile(r"^[A-Z_]+: (?:\[SQLite\] )?(?:Failed to [a-z ]+: )?")
_STATEMENT = re.compile(r"\nquery(?: was)?: .*", re.DOTALL)
_LOCKED = ("is locked", "database is busy")
_NO_DATABASE = ("file is not a database", "file is encrypted")
_CORRUPT = ("disk image is malformed", "malformed database schema")  # there is malformed JSON too
_FULL = "database or disk is full"
_READ_ONLY = "readonly database"


class Session(FileSession):
    """One connection to one database, in autocommit until `begin`. Use as a context manager, or close it."""

    catalog = Catalog(
        prefix=PREFIX,
        integer="integer",
        time="text",
        now="(strftime('%Y-%m-%d %H:%M:%f', 'now') || '+00:00')",
        suffix=" strict",
    )

    def __init__(self, connection: dbapi.Connection, config: SQLiteConfig, *, side: str) -> None:
        self.connection = connection
        self.side = side
        self._config = config
        self._transaction = 0
        self._open = True

    def execute(self, sql: str, params: Sequence[Any] = ()) -> int:
        """The driver runs the first statement of a text and is silent about the rest: one at a time."""
        with self.mapped("a statement was refused"), self.connection.cursor() as cursor:
            require_one(sql, self.side)
            if params:
                cursor.execute(sql, tuple(params))
                cursor.fetchall()
                return 0
            return _run(cursor, sql)

    def make(self, sql: str) -> int:
        """Run a statement as SQLite itself keeps it: a trigger's holds semicolons."""
        with self.mapped("a statement was refused"), self.connection.cursor() as cursor:
            return _run(cursor, sql)

    def widen(self, columns: Sequence[WidenColumn]) -> None:
        widen(self, columns, self.make)

    def query(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self.mapped("a query was refused"), self.connection.cursor() as cursor:
            cursor.execute(sql, tuple(params) or None)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows

    def touched(self, sql: str, params: Sequence[Any]) -> int:
        self.execute(sql, params)
        return int(self.query("select changes()")[0][0])

    def names(self, sql: str) -> list[str]:
        """The columns that a query gives."""
        with self.mapped("the query was refused"), self.connection.cursor() as cursor:
            cursor.execute(sql)
            return [str(column[0]) for column in cursor.description or ()]

    @contextmanager
    def stream(self, sql: str, rows: int) -> Iterator[pa.RecordBatchReader]:
        """The answer in batches of so many rows; open as long as the context is."""
        with self.mapped("reading failed"), self.connection.cursor() as cursor:
            cursor.adbc_statement.set_options(**{BATCH_ROWS: str(rows)})
            cursor.execute(sql)
            reader = cursor.fetch_record_batch()
            try:
                yield reader
            finally:
                reader.close()

    def ingest(self, table: str, batches: pa.RecordBatchReader) -> int:
        """Make a temporary table out of batches."""
        with self.mapped("the staged rows were refused"), self.connection.cursor() as cursor:
            return int(cursor.adbc_ingest(table, batches, mode="create", temporary=True))

    def transaction(self) -> str:
        """SQLite numbers no transactions. A savepoint of ours lives as long as the one that it stands in."""
        try:
            self.execute("release _penstock_transaction")
        except PenstockError:
            self._transaction += 1
        self.execute("savepoint _penstock_transaction")
        return str(self._transaction)

    def savepoint(self) -> None:
        self.execute("savepoint _penstock_step")

    def rollback_to_savepoint(self) -> None:
        self.execute("rollback to _penstock_step")

    def knows(self, table: str) -> bool:
        return bool(self.query("select 1 from main.sqlite_schema where name = ?", (PREFIX + table,)))

    def mapped(self, what: str) -> Any:
        return mapped(self._config, self.side, what)

    def close(self) -> None:
        """Safe twice. What was not committed is rolled back."""
        if self._open:
            self._open = False
            self.connection.close()


def _run(cursor: dbapi.Cursor, sql: str) -> int:
    statement = cursor.adbc_statement
    statement.set_sql_query(sql)
    return max(int(statement.execute_update()), 0)


# ---------------------------------------------------------------- opening


def open_source(config: SQLiteConfig) -> Session:
    """A session that cannot write."""
    _require_file(config)
    try:
        return _asked(_open(config, config.file, "ro", "source"))
    except PenstockError as error:
        if _READ_ONLY not in error.why:
            raise
    # A writer has died in its transaction: only who may write can roll it back, as SQLite does by itself.
    _query_only(_open(config, config.file, "rw", "source")).close()
    return _asked(_open(config, config.file, "ro", "source"))


def open_target(config: SQLiteConfig, *, create: bool = False) -> Session:
    """A session that may write; with `create`, the file is made."""
    if not create:
        _require_file(config)
    return _asked(_open(config, config.file, "rwc" if create else "rw", "target"))


def open_planning(config: SQLiteConfig) -> Session:
    """A session on a target that asks and does not write, but rolls back what a dead writer has left."""
    return _query_only(open_target(config))


def open_copy(config: SQLiteConfig, path: Path) -> Session:
    """A session on a copy of the database."""
    return _open(config, path, "ro", "source")


def _query_only(session: Session) -> Session:
    try:
        session.execute("pragma query_only = on")
    except BaseException:
        session.close()
        raise
    return _asked(session)


def _asked(session: Session) -> Session:
    """The session, once it has answered: until it is asked, SQLite does not look at the file."""
    try:
        session.query("select count(*) from main.sqlite_schema")
    except BaseException:
        session.close()
        raise
    return session


def _open(config: SQLiteConfig, path: Path, mode: str, side: str) -> Session:
    with mapped(config, side, f"cannot open {config.label if path == config.file else path}"):
        where = f"file:{percent(str(path))}?mode={mode}"
        if config.in_memory and path == config.file:
            where = uri(config.memory_name, mode)
        connection = dbapi.connect(where, autocommit=True)
    session = Session(connection, config, side=side)
    try:
        session.query(f"pragma busy_timeout = {int(config.lock_timeout * 1000)}")
        # A view or trigger of a foreign file must not run functions with effects.
        session.execute("pragma trusted_schema = off")
    except BaseException:
        session.close()
        raise
    return session


def _require_file(config: SQLiteConfig) -> None:
    if config.in_memory:
        return
    if not config.file.exists():
        raise NotThereYet(
            f"there is no SQLite file {config.file}", remedy=f"check `path` of connection {config.name!r}"
        )
    if config.file.is_dir():
        raise ConnectionFailed(f"{config.file} is a folder", remedy=f"check `path` of connection {config.name!r}")


# ---------------------------------------------------------------- statements


def require_one(sql: str, side: str) -> None:
    """Refuse a text of several statements: all but the first would be left out without a word."""
    if ";" in sql and len(_statements(sql)) > 1:
        cls = SourceError if side == "source" else TargetError
        raise cls("a text holds more than one statement", remedy="write them one by one")


def bare(query: str) -> str:
    """One statement without the semicolon at its end."""
    found = _statements(query)
    if len(found) != 1:
        raise SourceError("a query must be one SELECT", why=f"found {len(found)} statements")
    start, end = found[0]
    return query[start:end]


def plainly_named(query: str) -> str:
    """The same query with every name in backticks: in double quotes, a name that is none is a text to SQLite."""
    try:
        tokens = Dialect.get_or_raise("sqlite").tokenize(query)
    except TokenError:
        return query
    made, end = [], 0
    for token in tokens:
        if token.token_type is TokenType.IDENTIFIER and query[token.start] == '"':
            made += [query[end : token.start], "`" + token.text.replace("`", "``") + "`"]
            end = token.end + 1
    return "".join([*made, query[end:]])


def _statements(sql: str) -> list[tuple[int, int]]:
    """Where each statement begins and ends; comments around them do not count."""
    try:
        tokens = Dialect.get_or_raise("sqlite").tokenize(sql)
    except TokenError:
        return [(0, len(sql))]  # a quote that is never closed: SQLite says so
    found: list[tuple[int, int]] = []
    begun = False
    for token in tokens:
        if token.token_type is TokenType.SEMICOLON:
            begun = False
        elif begun:
            found[-1] = (found[-1][0], token.end + 1)
        else:
            found.append((token.start, token.end + 1))
            begun = True
    return found


# ---------------------------------------------------------------- errors


@contextmanager
def mapped(config: SQLiteConfig, side: str, what: str) -> Iterator[None]:
    """SQLite's errors as Penstock's, without the statement that the driver repeats."""
    try:
        yield
    except (Error, pa.ArrowException, OSError) as error:
        if isinstance(error, PenstockError):
            raise
        raise translate(error, config, side, what) from error


def translate(error: Exception, config: SQLiteConfig, side: str, what: str) -> PenstockError:
    said = message(error)
    cls = SourceError if side == "source" else TargetError
    if any(sign in said for sign in _LOCKED):
        return LinkLost(
            f"{config.label} is locked",
            why=f"another connection kept it for more than lock_timeout = {config.lock_timeout:g} s",
            kept=NOT_COMMITTED,
            remedy="end the other program's transaction, or raise lock_timeout",
        )
    if any(sign in said for sign in _NO_DATABASE):
        return ConnectionFailed(
            f"{config.file} is not a SQLite database", why=said, remedy="check `path`, and that the file is whole"
        )
    if any(sign in said for sign in _CORRUPT):
        return cls(
            f"{config.label} is damaged",
            why=said,
            kept=NOT_COMMITTED,
            remedy="restore it, or save what can be read: sqlite3 FILE .recover",
        )
    if "disk I/O error" in said:
        what = f"reading {config.file} failed" if side == "source" else "the disk is full, or fails"
        remedy = f"look at the disk of {config.file} and of TMPDIR: free space, limits on files, the system's log"
        return (SourceError if side == "source" else NotNow)(what, why=said, kept=NOT_COMMITTED, remedy=remedy)
    if _FULL in said:
        remedy = "free space on the file's disk and in TMPDIR, or point staging elsewhere"
        return NotNow("the disk is full", why=said, kept=NOT_COMMITTED, remedy=remedy)
    if isinstance(error, IntegrityError):
        remedy = CONSTRAINED.format("drop")
        return DataError("a constraint of the target is violated", why=said, kept=NOT_COMMITTED, remedy=remedy)
    return cls(what, why=said, kept=NOT_COMMITTED)


def message(error: Exception) -> str:
    """What SQLite said; no cell's value is in it."""
    text = _STATEMENT.sub("", str(error))
    return _HEAD.sub("", text).strip()
