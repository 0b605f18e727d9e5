"""Transaction control is found wherever it hides, and only there (docs/explanation/rules.md, 3)."""

from __future__ import annotations

import pytest

from penstock.project.sqlcheck import Unreadable, transaction_control


@pytest.mark.parametrize("dialect", ["postgres", "duckdb", "no-such-dialect"])
@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("commit", ["COMMIT"]),
        ("  Commit Work ;", ["COMMIT"]),
        ("/* a */ -- b\n rollback", ["ROLLBACK"]),
        ("/* outer /* inner */ still a comment */ begin", ["BEGIN"]),
        ("update t set x = 1; savepoint a; release a", ["SAVEPOINT", "RELEASE"]),
        ("select 1;; end", ["END"]),
        ("abort", ["ABORT"]),
        ("start transaction", ["START TRANSACTION"]),
        ("prepare transaction 'x'; commit prepared 'x'", ["PREPARE TRANSACTION", "COMMIT"]),
        ("set transaction read only", ["SET TRANSACTION"]),
        ("set session characteristics as transaction read only", ["SET SESSION CHARACTERISTICS"]),
        ("copy t from 'x'; commit", ["COMMIT"]),
        ("show x; commit", ["COMMIT"]),
        ("execute p; commit", ["COMMIT"]),
        ("select 'a; commit', \"b; commit\"", []),
        ("select 1 -- ; commit", []),
        ("do $$ begin perform 1; commit; end $$", []),
        ("select $x$; commit; $x$", []),
        ("select case when a then b end", []),
        ("set search_path = x", []),
        ("prepare p as select 1", []),
        ("delete from commit", []),
        ("", []),
    ],
)
def test_transaction_control(dialect: str, sql: str, found: list[str]) -> None:
    assert transaction_control(sql, dialect) == found


def test_text_that_is_no_sql_is_refused_without_showing_it() -> None:
    with pytest.raises(Unreadable) as caught:
        transaction_control("select 'secret")
    assert "secret" not in str(caught.value)
