"""Driver errors become Penstock's own here: SQLSTATE decides the kind, texts lose their secrets.

Messages of data errors may repeat a cell's value (`invalid input syntax for type integer: "x"`),
so only their class is told, never their text; nor are the words of a function's author.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import adbc_driver_manager
import psycopg

from penstock.backends.postgres.config import Conninfo
from penstock.errors import (
    CONSTRAINED,
    NOT_COMMITTED,
    ConnectionFailed,
    DataError,
    Kind,
    LinkLost,
    NotNow,
    PenstockError,
    SourceError,
    TargetError,
)

DRIVER_ERRORS = (psycopg.Error, adbc_driver_manager.Error)

# Every class of SQLSTATE, and the single states that are not what their class is. The longest prefix decides; a class
# that is not here comes from a function that raises it, and says nothing about another try.
KINDS: dict[str, Kind] = {
    **dict.fromkeys(("00", "01", "02", "03", "09", "0A", "0B", "0F", "0L", "0P", "0Z"), Kind.PERMANENT),
    **dict.fromkeys(("10", "20", "24", "25", "26", "27", "28", "2B", "2D", "2F"), Kind.PERMANENT),
    **dict.fromkeys(("34", "38", "39", "3B", "3D", "3F", "42", "72", "F0", "HV", "P0", "XX"), Kind.PERMANENT),
    # The link; serialization and deadlocks.
    **dict.fromkeys(("08", "40"), Kind.TRANSIENT),
    # Cardinality, values, constraints, WITH CHECK OPTION.
    **dict.fromkeys(("21", "22", "23", "44"), Kind.DATA),
    # No resources: of connections there may be one in a moment, of disk and memory not.
    "53": Kind.PERMANENT,
    "53300": Kind.TRANSIENT,
    # Limits of the program; 54000 is a row or a key that is too large.
    "54": Kind.PERMANENT,
    "54000": Kind.DATA,
    # Not in the state for it; in use, or locked, only for now.
    "55": Kind.PERMANENT,
    "55006": Kind.TRANSIENT,
    "55P03": Kind.TRANSIENT,
    # Somebody's intervention: a cancelled statement is not tried again, an ended session is.
    "57": Kind.PERMANENT,
    **dict.fromkeys(("57P01", "57P02", "57P03", "57P05"), Kind.TRANSIENT),
    # The system around the server: a file that cannot be read stays so.
    "58": Kind.PERMANENT,
    # A transaction that was ended because it was idle, or took too long.
    **dict.fromkeys(("25P03", "25P04"), Kind.TRANSIENT),
}
DATA = tuple(prefix for prefix, kind in KINDS.items() if kind is Kind.DATA)

DATA_CLASSES = {
    "22001": "a text is too long for the column",
    "22003": "a number is out of the column's range",
    "22007": "a date or time is not valid",
    "22008": "a date or time is out of range",
    "22P02": "a text is not valid for the column's type",
    "22P03": "a value is not valid for the column's type",
    "22021": "a text holds a character that the server cannot store",
    "22P05": "a text holds a character that the server cannot store",
    "23502": "a NULL stands in a column that is NOT NULL",
    "23503": "a row refers to a row that is not there (foreign key)",
    "23505": "a key is there twice",
    "23514": "a row violates a check constraint",
    "23P01": "a row violates an exclusion constraint",
}

# The server's own classes of SQLSTATE; any other comes from a function that raises it.
_OWN_CLASSES = re.compile("0[0-389ABFLPZ]|10|2[0-8BDF]|3[489BDF]|4[024]|5[34578]|72|F0|HV|P0|XX")
_SPOKEN_STATES = ("P0001", "P0004", "38")
_SPEAKING_FUNCTIONS = ("exec_stmt_raise", "exec_stmt_assert")
_SPEAKING_FILES = ("plpy", "plperl", "pltcl")
_UNSPOKEN = "its text is in the server's log"

_COPY_PLACE = re.compile(r"COPY \S+, line (\d+)(?:, column ([^:\n]+?))?(?::|$|\n)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a COPY stopped: the row's number in it, from 1, and the staged column."""

    line: int
    column: str | None


def sqlstate(error: BaseException) -> str:
    return getattr(error, "sqlstate", None) or ""


def kind_of(state: str) -> Kind:
    """Of a SQLSTATE."""
    return KINDS.get(state) or KINDS.get(state[:2], Kind.PERMANENT)


def copy_place(error: BaseException) -> Place | None:
    found = _COPY_PLACE.search(str(error))
    if found is None:
        return None
    return Place(int(found.group(1)), found.group(2))


def is_link_error(error: BaseException) -> bool:
    """The session is gone or of no use; nothing is known about its last statement."""
    state = sqlstate(error)
    if state:
        return state.startswith(("08", "57P0"))
    text = str(error)
    return isinstance(error, (psycopg.OperationalError, adbc_driver_manager.OperationalError)) or (
        "server closed the connection" in text or "no connection to the server" in text
    )


def connecting(error: BaseException, conninfo: Conninfo) -> PenstockError:
    """An error from opening a session. libpq gives no SQLSTATE here, so its words decide."""
    text = conninfo.redact(_one_line(str(error)))
    what = f"connection {conninfo.name!r} cannot be opened"
    cases: tuple[tuple[str, type[PenstockError], str, str], ...] = (
        ("password authentication failed", ConnectionFailed, "the server refuses the user or the password", _USER),
        ("no password supplied", ConnectionFailed, "the server wants a password and none is given", _USER),
        ("pg_hba.conf", ConnectionFailed, "the server's pg_hba.conf admits no such connection", "ask who runs it"),
        ("database .* does not exist", ConnectionFailed, "there is no such database", "check `dbname`"),
        ("role .* does not exist", ConnectionFailed, "there is no such user", "check `user`"),
        ("too many (clients|connections)", LinkLost, "the server has no free connection", "lower max_connections"),
        ("remaining connection slots", LinkLost, "the server has no free connection", "lower max_connections"),
        (
            "[Tt]emporary failure in name resolution",
            LinkLost,
            "the name server does not answer",
            "try again",
        ),
        (
            "could not translate host name|failed to resolve host",
            ConnectionFailed,
            "the host name is not known",
            "check `host`",
        ),
        ("Connection refused", LinkLost, "nothing listens there", "check `host` and `port`, start the server"),
        ("starting up|shutting down|recovery mode", LinkLost, "the server is starting or stopping", "try again"),
        ("SSL|certificate", ConnectionFailed, "no TLS session can be agreed on", "check `sslmode`"),
    )
    for pattern, cls, why, remedy in cases:
        if re.search(pattern, text):
            return cls(what, why=f"{why} ({conninfo.address})", remedy=remedy)
    return LinkLost(what, why=f"{text} ({conninfo.address})", remedy="check `host`, `port` and the network")


_USER = "check `user` and `password` (or the environment variable it comes from)"


@dataclass(frozen=True, slots=True)
class Statement:
    """A user's statement, to be shown with the position marked.

    `offset` is how many characters of ours stood before it in what the server saw.
    """

    text: str
    offset: int = 0


def refused(
    error: BaseException,
    conninfo: Conninfo,
    *,
    side: type[PenstockError],
    place: str = "",
    statement: Statement | None = None,
) -> PenstockError:
    """An error from a statement. `side` is what a permanent refusal is called there."""
    state = sqlstate(error)
    kind = kind_of(state)
    if kind is Kind.TRANSIENT or (not state and is_link_error(error)):
        if state == "55P03":
            return LinkLost(
                "a lock was not to be had in time",
                why="another session holds what it needs, and has kept it longer than lock_timeout",
                remedy="run it again when that transaction has ended, or raise lock_timeout of the connection",
                place=place,
            )
        return LinkLost(
            "the link to the server broke" if state[:2] in ("", "08", "57") else "the server gave up",
            why=_primary(error, conninfo),
            remedy="run it again",
            place=place,
        )
    if kind is Kind.DATA:
        why = DATA_CLASSES.get(state, f"the server found the value wrong (SQLSTATE {state})")
        if side is SourceError:
            return SourceError("the source's query failed on a value", why=why, place=place)
        if _field(error, "source_function") == "ExecFindPartition":
            return DataError(
                "a row has no partition in the target",
                why="none of those that are there takes it",
                place=place,
                remedy="let the load make them: partition_by; or make one by hand, or a DEFAULT one for the rest",
            )
        return DataError("a value does not fit", why=_with_constraint(why, error), place=place, remedy=_remedy(state))
    if state.startswith("53"):
        return (NotNow if side is TargetError else side)(
            "the server is out of resources",
            why=_primary(error, conninfo),
            place=place,
            remedy="free disk space or memory on the server",
        )
    if state == "42501" or state.startswith("28"):
        return side(
            "the server denies it",
            why=_primary(error, conninfo),
            place=place,
            remedy="grant the privilege to the connection's user",
        )
    if state == "25006":
        if side is TargetError:
            return NotNow(
                "the target is read only",
                why=_primary(error, conninfo),
                kept=NOT_COMMITTED,
                place=place,
                remedy="lead the connection to the server that takes changes (target_session_attrs = read-write), or"
                " take back default_transaction_read_only",
            )
        return side(
            "the statement would write, and source sessions are read only",
            why=_primary(error, conninfo),
            place=place,
            remedy="read with a plain SELECT",
        )
    if _field(error, "source_function") == "check_new_partition_bound":
        return side(
            "a partition that the load needs is taken in part by another",
            why=_primary(error, conninfo),
            place=place,
            remedy="make one by hand for the rest of it, or choose a shorter piece of time in partition_by;"
            " if somebody has made it just now, run it again",
        )
    if _is_spoken(error):
        return side("a trigger or function raised an error", why=_UNSPOKEN, place=place)
    why = _primary(error, conninfo)
    if statement is not None:
        position = _position(error)
        why = f"{why}\n{marked(statement.text, position - statement.offset if position else None)}"
    return side("the server refuses the statement", why=why, place=place)


def _with_constraint(why: str, error: BaseException) -> str:
    """And the constraint's name, which is no value."""
    name = _field(error, "constraint_name")
    return f"{why}: {name} of {_field(error, 'table_name')}" if name else why


def _remedy(state: str) -> str:
    if not state.startswith("23"):
        return ""
    once = state in ("23505", "23P01")  # rows may have changed values with each other
    return CONSTRAINED.format("make it deferrable (initially deferred) or drop" if once else "drop")


def marked(statement: str, position: int | None) -> str:
    """The statement's line at `position` (characters, from 1) with a caret under the place."""
    if position is None or not 0 < position <= len(statement) + 1:
        return statement
    start = statement.rfind("\n", 0, position - 1) + 1
    end = statement.find("\n", start)
    line = statement[start : end if end >= 0 else len(statement)]
    number = statement.count("\n", 0, start) + 1
    caret = re.sub(r"[^\t]", " ", line[: position - 1 - start]) + "^"
    return f"line {number}:\n  {line}\n  {caret}"


def _field(error: BaseException, name: str) -> str:
    return getattr(getattr(error, "diag", None), name, None) or ""


def _position(error: BaseException) -> int | None:
    diag = getattr(error, "diag", None)
    text = getattr(diag, "statement_position", None)
    return int(text) if text else None


def _primary(error: BaseException, conninfo: Conninfo) -> str:
    if _is_spoken(error):
        return _UNSPOKEN
    diag = getattr(error, "diag", None)
    message = getattr(diag, "message_primary", None) or _detail(error, "PG_DIAG_MESSAGE_PRIMARY")
    return conninfo.redact(_one_line(message or str(error)))


def _is_spoken(error: BaseException) -> bool:
    """The words are those of a function's author, who may quote any value under any SQLSTATE."""
    state = sqlstate(error)
    if state and (not _OWN_CLASSES.match(state) or state.startswith(_SPOKEN_STATES)):
        return True
    diag = getattr(error, "diag", None)
    if diag is not None:
        return diag.source_function in _SPEAKING_FUNCTIONS or (diag.source_file or "").startswith(_SPEAKING_FILES)
    # ADBC does not tell who speaks, only that it happened inside of something.
    return any(line and not line.startswith("COPY ") for line in _detail(error, "PG_DIAG_CONTEXT").splitlines())


def _detail(error: BaseException, name: str) -> str:
    """A field that ADBC keeps of the server's message."""
    details: dict[str | bytes, str | bytes] = dict(getattr(error, "details", None) or [])
    raw = details.get(name.encode()) or details.get(name) or ""
    return raw.decode(errors="replace") if isinstance(raw, bytes) else raw


def _one_line(text: str) -> str:
    return " ".join(text.split())


__all__ = [
    "DRIVER_ERRORS",
    "Place",
    "Statement",
    "connecting",
    "copy_place",
    "is_link_error",
    "marked",
    "refused",
    "sqlstate",
]
