"""What the log has only a part of: a row that the target lacks, a transaction that is older than its table."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.replication.conftest import TARGETS
from tests.replication.stand import ITEMS, Stand
from tests.waiting import await_true

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]


@pytest.mark.parametrize("target", TARGETS)
def test_a_part_of_a_row_that_is_not_there_fails_its_table_and_is_never_null(
    make: Callable[..., Stand], target: str
) -> None:
    """The source does not send a large value that has not changed: nobody knows it but the target's row."""
    stand = make(target)
    stand.source.execute(
        *ITEMS,
        "create table docs (id int primary key, n int, big text)",
        "alter table docs alter big set storage external",
        "insert into docs select i, 0, repeat(md5(i::text), 200) from generate_series(1, 10) i",
    )
    stand.start()
    stand.sync()
    stand.target.execute("delete from docs where id = 3")
    stand.source.execute("update docs set n = n + 1 where id < 6", "update items set name = 'new' where id = 1")
    stand.sync()
    assert stand.state("docs")["phase"] == "failed"
    assert "only a part of a row that the target does not have" in stand.state("docs")["reason"]
    stand.assert_agrees("items")
    assert stand.target.query("select count(*) from docs where big is null or id = 3") == [(0,)]
    assert stand.target.query("select max(n) from docs") == [(0,)]  # nothing else of that flush is there either
    stand.resync("docs")
    stand.sync(settled=True)
    stand.assert_agrees("docs", "items")


def test_a_transaction_that_is_open_while_its_table_is_added_comes_whole(make: Callable[..., Stand]) -> None:
    """What it has written before its table was published, the log does not send: the copy must have it."""
    stand = make("sqlite", tables=["public.items"])
    stand.source.execute(*ITEMS, "create table late (id int primary key, v int)", "insert into late values (1, 0)")
    stand.start()
    stand.sync()
    published = (
        "select 1 from pg_publication_tables where tablename = 'late'"
        f" and pubname like '{stand.replication.publication_name}%'"
    )
    with psycopg.connect(stand.source.dsn) as writer:
        writer.execute("insert into late values (2, 0)")
        writer.execute("update late set v = 7 where id = 1")
        stand.replication = stand.replication.model_copy(update={"tables": ("public.items", "public.late")})
        assert stand.ask("reload") == "1 table added, 0 removed"
        await_true(lambda: stand.source.query(published), 30, lambda: stand.error)
        writer.execute("insert into late values (3, 0)")
        writer.execute("update late set v = 8 where id = 2")
    stand.source.execute("insert into late values (4, 0)")
    stand.sync()
    stand.assert_agrees("items", "late")
    assert len(stand.rows("late")) == 4
