"""Names that differ only in case, in a target that does not tell them apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import PlanRefused
from tests.conformance.harness import Flow, Harness

pytestmark = [pytest.mark.postgres]


@pytest.fixture
def into_file(harness: Callable[[str], Harness], tmp_path: Path) -> Flow:
    flow = Flow(harness("postgres"), harness("duckdb"), tmp_path)
    flow.source.execute(
        "create table items (id bigint primary key, name text)", "insert into items values (1, 'a'), (2, 'b')"
    )
    return flow


@pytest.mark.parametrize("exists", [True, False])
def test_a_table_has_one_memory_however_it_is_spelled(into_file: Flow, exists: bool) -> None:
    """With two, an append would begin again, and a truncate would take what another pipeline brought."""
    into_file.target.execute("create schema sales")
    if exists:
        into_file.target.execute("create table sales.items (id bigint, name varchar)")
    options = {"incremental": "id", "lag": "0"}
    for spelling in ("SALES.Items", "sales.items", "Sales.ITEMS"):
        into_file.run(target=f"to.{spelling}", **options)
    assert into_file.target.rows("sales.items") == [(1, "a"), (2, "b")]
    [remembered] = into_file.target.query("select target, count(*) from _penstock.columns group by all")
    assert remembered == ("sales.items" if exists else 'sales."Items"', 2)
    with pytest.raises(PlanRefused, match=f"is loaded by pipeline {into_file.name} too"):
        into_file.run(target="to.Sales.items", mode="truncate", name="other")


def test_the_default_schema_of_a_new_file_is_spelled_as_the_file_will_spell_it(into_file: Flow, tmp_path: Path) -> None:
    into_file.target.path = tmp_path / "new.duckdb"  # type: ignore[attr-defined]  # a DuckDB's harness
    options = {"incremental": "id", "lag": "0"}
    for spelling in ("MAIN.items", "main.items"):
        into_file.run(target=f"to.{spelling}", **options)
    assert into_file.target.rows("items") == [(1, "a"), (2, "b")]


def test_letters_beyond_ascii_are_told_apart_as_duckdb_does(into_file: Flow) -> None:
    into_file.target.execute('create table "é" (id bigint, name varchar)')
    into_file.run(target='to.main."É"')
    assert into_file.target.rows('"é"') == []
    back = Flow(into_file.target, into_file.source, into_file.root)
    assert [back.run(table=f'main."{name}"', target=f'to.public."{name}"').rows for name in "éÉ"] == [0, 2]


HISTORY = ", VALID_FROM timestamptz, VALID_TO timestamptz, IS_CURRENT boolean, ROW_HASH varchar"


@pytest.mark.parametrize("mode", ["append", "truncate", "merge", "scd2"])
def test_columns_of_an_existing_table_are_found_whatever_their_case(into_file: Flow, mode: str) -> None:
    into_file.target.execute(f"create table items (ID bigint, Name varchar{HISTORY if mode == 'scd2' else ''})")
    assert into_file.run(mode=mode).inserted == 2
    into_file.source.execute("update items set name = 'c' where id = 2")
    into_file.run(mode=mode)
    counts = {"append": 4, "truncate": 2, "merge": 2, "scd2": 3}
    assert into_file.target.query("select count(*), max(name) from items") == [(counts[mode], "c")]
    described = [row[0] for row in into_file.target.query("describe items")]
    assert described[:2] == ["ID", "Name"]
    assert len(described) == (6 if mode == "scd2" else 2)


def test_columns_are_found_whatever_their_case_inside_one_file(into_file: Flow, tmp_path: Path) -> None:
    file = into_file.target
    file.execute("create table items as select 1 as id, 'a' as name", "create table copies (ID bigint, Name varchar)")
    record = Flow(file, file, tmp_path).run(mode="merge", keys=["id"], target="to.main.copies")
    assert (record.path, file.rows("copies")) == ("native", [(1, "a")])


def test_columns_that_fall_together_are_refused(into_file: Flow) -> None:
    into_file.target.execute("create table items (ID bigint)")
    with pytest.raises(PlanRefused, match="have the same name in DuckDB"):
        into_file.run(query='select id, id as "Id" from items')
