"""`penstock add` on a real server: what it writes is what `plan` and `run` take."""

from __future__ import annotations

import psycopg
import pytest

from penstock.testing.postgres import EmbeddedPostgres
from tests.e2e.command import Project

TABLES = """
create schema "Back Office";
create table "Back Office"."Line ""Items"" now" (
    "Order No" bigint, line int, updated_at timestamptz, price numeric(12, 2), primary key ("Order No", line)
);
insert into "Back Office"."Line ""Items"" now" values (1, 1, now(), 9.90), (1, 2, now(), 0.10);
create table "Back Office".log (entry text);
create view "Back Office".seen as select * from "Back Office".log;
"""


@pytest.mark.postgres
def test_what_was_added_is_planned_and_run(project: Project, shop: EmbeddedPostgres) -> None:
    with psycopg.connect(shop.dsn, autocommit=True) as connection:
        connection.execute(TABLES)
    # To the same server: its tables go there by one statement, without Spark.
    words = ("add", "shop", '"Back Office".*', "--target", "shop.public.copy_of_{table}")
    before = (project.folder / "penstock.toml").read_text()
    dry = project.run(*words, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert (project.folder / "penstock.toml").read_text() == before
    items, log = project.json(*words)
    assert (items["mode"], items["keys"]) == ("merge", ["Order No", "line"])
    assert '# incremental = "updated_at"' in items["toml"]
    assert (log["mode"], log["keys"]) == ("truncate", [])
    after = (project.folder / "penstock.toml").read_text()
    assert after == f"{before}\n{items['toml']}\n{log['toml']}"
    assert after == f"{before}\n{dry.stdout}"
    [ran] = project.json("run", str(items["pipeline"]))
    assert (ran["state"], ran["inserted"]) == ("done", 2)
    with psycopg.connect(shop.dsn) as connection:
        rows = connection.execute('select "Order No", line, price::text from "copy_of_Line ""Items"" now"').fetchall()
    assert sorted(rows) == [(1, 1, "9.90"), (1, 2, "0.10")]
    refused = project.run(*words)
    assert refused.returncode == 2
    assert "already" in refused.stderr
    assert "nothing was touched" in refused.stderr
