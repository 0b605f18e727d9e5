"""Every error of a driver is transient, permanent or one of data: tried again, the end, or the fault of a value."""

from __future__ import annotations

import adbc_driver_manager
import duckdb
import psycopg
import pytest
from psycopg.errors import _sqlcodes

from penstock.backends.duckdb.connect import translate as of_duckdb
from penstock.backends.postgres.config import Conninfo
from penstock.backends.postgres.errors import KINDS, kind_of, refused
from penstock.backends.sqlite.config import SQLiteConfig
from penstock.backends.sqlite.connect import translate as of_sqlite
from penstock.errors import Kind, NotNow, PenstockError, SourceError, TargetError

CONNINFO = Conninfo("db", ())
# Of each class one that stands for it, and every state that is not what its class is.
STATES = {
    "08006": Kind.TRANSIENT,
    "08P01": Kind.TRANSIENT,
    "0A000": Kind.PERMANENT,
    "21000": Kind.DATA,
    "22003": Kind.DATA,
    "23505": Kind.DATA,
    "25P02": Kind.PERMANENT,
    "25P03": Kind.TRANSIENT,
    "25006": Kind.PERMANENT,
    "28P01": Kind.PERMANENT,
    "40001": Kind.TRANSIENT,
    "40P01": Kind.TRANSIENT,
    "42P01": Kind.PERMANENT,
    "42501": Kind.PERMANENT,
    "44000": Kind.DATA,
    "53100": Kind.PERMANENT,
    "53200": Kind.PERMANENT,
    "53300": Kind.TRANSIENT,
    "54000": Kind.DATA,
    "54011": Kind.PERMANENT,
    "55000": Kind.PERMANENT,
    "55006": Kind.TRANSIENT,
    "55P03": Kind.TRANSIENT,
    "57014": Kind.PERMANENT,
    "57P01": Kind.TRANSIENT,
    "57P02": Kind.TRANSIENT,
    "57P03": Kind.TRANSIENT,
    "57P04": Kind.PERMANENT,
    "58030": Kind.PERMANENT,
    "P0001": Kind.PERMANENT,
    "XX000": Kind.PERMANENT,
}


def test_every_class_that_the_driver_knows_has_a_kind() -> None:
    assert {code.sqlstate[:2] for code in _sqlcodes.values()} <= KINDS.keys()


@pytest.mark.parametrize("state", STATES)
def test_a_state_has_its_kind_whichever_driver_tells_it(state: str) -> None:
    told = (
        psycopg.errors.lookup(state)("x"),
        adbc_driver_manager.OperationalError("x", status_code=0, sqlstate=state),
    )
    assert kind_of(state) is STATES[state]
    for error in told:
        assert refused(error, CONNINFO, side=TargetError).kind is STATES[state]
    # A source does not mend its values when it is asked again.
    expected = Kind.TRANSIENT if STATES[state] is Kind.TRANSIENT else Kind.PERMANENT
    assert refused(told[0], CONNINFO, side=SourceError).kind is expected


@pytest.mark.parametrize("state", ["53100", "53200", "53400", "25006"])
def test_a_target_without_room_or_right_to_write_is_waited_for_by_replications_alone(state: str) -> None:
    error = refused(psycopg.errors.lookup(state)("x"), CONNINFO, side=TargetError)
    assert isinstance(error, NotNow)
    assert error.passing
    assert not error.retryable
    assert not refused(psycopg.errors.lookup(state)("x"), CONNINFO, side=SourceError).passing


def test_a_link_that_is_gone_has_no_state_and_is_transient() -> None:
    error = refused(psycopg.OperationalError("server closed the connection"), CONNINFO, side=TargetError)
    assert error.kind is Kind.TRANSIENT


def seen(error: PenstockError) -> tuple[Kind, bool]:
    return error.kind, error.passing


DUCKDB = [
    (duckdb.ConstraintException("Constraint Error: Duplicate key"), Kind.DATA, False),
    (duckdb.ConversionException("Conversion Error: Could not convert"), Kind.DATA, False),
    (duckdb.OutOfRangeException("Out of Range Error: x"), Kind.DATA, False),
    (duckdb.IOException("IO Error: No space left on device"), Kind.PERMANENT, True),
    (duckdb.CatalogException("Catalog Error: no such table"), Kind.PERMANENT, False),
    (duckdb.BinderException("Binder Error: no such column"), Kind.PERMANENT, False),
    (duckdb.OutOfMemoryException("Out of Memory Error: x"), Kind.PERMANENT, False),
    (duckdb.InternalException("INTERNAL Error: x"), Kind.PERMANENT, False),
]


@pytest.mark.parametrize("number", range(len(DUCKDB)))
def test_errors_of_duckdb(number: int) -> None:
    error, kind, passing = DUCKDB[number]
    assert seen(of_duckdb(error, "target", "a flush failed")) == (kind, passing)


SQLITE = [
    (adbc_driver_manager.OperationalError("database is locked", status_code=0), Kind.TRANSIENT, True),
    (adbc_driver_manager.OperationalError("database or disk is full", status_code=0), Kind.PERMANENT, True),
    (adbc_driver_manager.OperationalError("disk I/O error", status_code=0), Kind.PERMANENT, True),
    (adbc_driver_manager.IntegrityError("UNIQUE constraint failed: t.id", status_code=0), Kind.DATA, False),
    (adbc_driver_manager.DatabaseError("database disk image is malformed", status_code=0), Kind.PERMANENT, False),
    (adbc_driver_manager.OperationalError("no such table: t", status_code=0), Kind.PERMANENT, False),
]


@pytest.mark.parametrize("number", range(len(SQLITE)))
def test_errors_of_sqlite(number: int) -> None:
    error, kind, passing = SQLITE[number]
    config = SQLiteConfig.model_validate({"name": "lite", "type": "sqlite", "path": "x.db"})
    assert seen(of_sqlite(error, config, "target", "a flush failed")) == (kind, passing)
