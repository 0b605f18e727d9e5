"""Tables declared by classes: made, evolved and filled as the class says, on every target."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock import testing
from penstock.backends import registry
from penstock.backends.base import RunContext, TargetTable
from penstock.errors import DataError, PlanRefused, Unsupported
from penstock.project import Project, decorators
from penstock.run.pipeline import plan, run
from penstock.run.records import PipelinePlan
from penstock.schema import TableName
from penstock.state import RunRecord
from tests.conformance.harness import Flow, Harness

pytestmark = [pytest.mark.postgres, pytest.mark.sampled]

Declare = Callable[..., type[ps.ManagedTable]]


@pytest.fixture
def declare(flow: Flow) -> Iterator[Declare]:
    """Makes the class of the table that the flow loads; what it notes is taken out again."""
    before = list(decorators.registered.tables)

    def made(**columns: Any) -> type[ps.ManagedTable]:
        cls = type("Items", (ps.ManagedTable,), {"__annotations__": columns, "__module__": __name__})
        # One definition of the table at a time, as in a module that is edited.
        decorators.registered.tables[:] = before
        return ps.table(connection="to", name=f"{flow.target.schema}.items")(cls)

    yield made
    decorators.registered.tables[:] = before


def project(flow: Flow, cls: type, options: dict[str, Any]) -> Project:
    given = {"name": flow.name, "source": "from_", "target": cls, "mode": "merge", "place": "test"} | options
    if "query" not in given:
        given["table"] = f"{flow.source.schema}.items"
    return Project.from_objects(flow.root, {"from_": flow.source.options(), "to": flow.target.options()}, [given])


def load(flow: Flow, cls: type, **options: Any) -> RunRecord:
    made = project(flow, cls, options)
    return run(made, made.pipelines[flow.name], flow.store, stage=flow.stage)[-1]


def planned(flow: Flow, cls: type, **options: Any) -> PipelinePlan:
    made = project(flow, cls, options)
    return plan(made, made.pipelines[flow.name])[0]


def inspected(flow: Flow) -> TargetTable:
    """The target's table as its backend sees it."""
    made = Project.from_objects(flow.root, {"to": flow.target.options()})
    run_ = RunContext("0" * 32, "test", flow.root / "staging")
    target = registry.backend(flow.target.backend).target(made.connection("to"), run_)
    try:
        found = target.inspect(target.qualify(TableName(flow.target.schema, "items")))
    finally:
        target.close()
    assert found is not None
    return found


def columns(flow: Flow) -> list[tuple[str, str, bool]]:
    return [(one.name, one.type_sql.lower(), one.nullable) for one in inspected(flow).columns]


def nullable(flow: Flow) -> list[tuple[str, bool]]:
    return [(name, null) for name, _, null in columns(flow)]


def rows(flow: Flow) -> list[tuple[Any, ...]]:
    made = Project.from_objects(flow.root, {"to": flow.target.options()})
    found = testing.rows(made.connection("to"), f"{flow.target.schema}.items")
    return sorted(tuple(row.values()) for row in found)


@pytest.fixture
def items(flow: Flow) -> Flow:
    flow.source.execute(
        "create table items (note text, price numeric(10,2), id int)",
        "insert into items values ('a', 1.50, 1), (null, 2.25, 2)",
    )
    return flow


def test_the_table_is_what_the_class_says(items: Flow, declare: Declare) -> None:
    cls = declare(id=ps.Key[ps.BigInt], price=ps.Decimal[38, 12], note=ps.Text | None)
    shown = planned(items, cls)
    assert shown.refusals == ()
    assert "not null" in " ".join(shown.ddl)
    assert load(items, cls).inserted == 2
    # In the class's order, with its types, NULL only where it says so.
    assert nullable(items) == [("id", False), ("price", False), ("note", True)]
    assert columns(items)[0][1] == "bigint"
    if items.target.backend == "postgres":
        assert inspected(items).primary_key == ("id",)
    assert rows(items) == [(1, Decimal("1.500000000000"), "a"), (2, Decimal("2.250000000000"), None)]
    assert load(items, cls).updated == 0  # the same again changes nothing


def test_every_mode_makes_the_same_table(items: Flow, declare: Declare) -> None:
    cls = declare(id=ps.Key[ps.Int], note=ps.Text | None, price=ps.Decimal[10, 2])
    for mode in ("append", "truncate", "scd2"):
        items.target.execute(f"drop table if exists {items.target.schema}.items")
        assert load(items, cls, mode=mode).inserted == 2
        assert nullable(items)[:3] == [("id", False), ("note", True), ("price", False)]


def test_null_where_the_class_takes_none_is_told_by_key(items: Flow, declare: Declare) -> None:
    cls = declare(id=ps.Key[ps.Int], note=ps.Text, price=ps.Decimal[10, 2])
    for mode in ("merge", "append"):
        with pytest.raises(DataError, match="note") as caught:
            load(items, cls, mode=mode)
        assert caught.value.keys == ("id=2",)
    assert not items.target.has_table("items")


def test_a_value_that_the_declared_type_cannot_hold(items: Flow, declare: Declare) -> None:
    cls = declare(id=ps.Key[ps.Int], note=ps.Text | None, price=ps.Decimal[10, 1])
    with pytest.raises(DataError, match="column price has a value that its target type cannot hold") as caught:
        load(items, cls)
    assert caught.value.keys == ("id=2",)


def test_an_enum_takes_its_labels_only(items: Flow, declare: Declare) -> None:
    good = declare(id=ps.Key[ps.Int], note=ps.Enum["a", "it's {}"] | None)
    assert load(items, good, query="select id, note from items").inserted == 2
    items.source.execute("insert into items values ('other', 1, 3)")
    with pytest.raises(DataError, match="column note") as caught:
        load(items, good, query="select id, note from items")
    assert caught.value.keys == ("id=3",)


def test_the_table_grows_and_widens_with_the_class(items: Flow, declare: Declare) -> None:
    first = declare(id=ps.Key[ps.Int], price=ps.Decimal[10, 2])
    load(items, first, query="select id, price from items")
    items.source.execute("insert into items values ('c', 12345678.90, 5000000000)".replace("5000000000", "3"))
    second = declare(id=ps.Key[ps.BigInt], price=ps.Decimal[12, 3], note=ps.Text | None)
    shown = planned(items, second)
    assert shown.refusals == ()
    assert len(shown.ddl) >= 2  # SQLite holds a bigint where it holds an int
    assert shown.changes
    assert load(items, second).inserted == 1
    assert nullable(items) == [("id", False), ("price", False), ("note", True)]
    assert rows(items) == [
        (1, Decimal("1.500"), "a"),
        (2, Decimal("2.250"), None),
        (3, Decimal("12345678.900"), "c"),
    ]
    assert not planned(items, second).changes


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"id": ps.Key[ps.SmallInt]}, "cannot be widened to that: declare the type that the table has"),
    ({"price": ps.Text}, "Items.price is"),
    ({"note": ps.Text}, "takes no NULL, and in .* it does: change the class, or alter table"),
    ({"price": ps.Decimal[10, 2] | None}, "may be NULL, and in .* it may not: change the class, or alter table"),
    ({"more": ps.Int}, "Items.more is new and takes no NULL"),
]


def test_what_a_table_cannot_follow_is_refused(items: Flow, declare: Declare) -> None:
    first: dict[str, Any] = {"id": ps.Key[ps.Int], "price": ps.Decimal[10, 2], "note": ps.Text | None}
    load(items, declare(**first))
    before = columns(items)
    for change, said in REFUSED:
        extra = ", 1 as more" if "more" in change else ""
        with pytest.raises(PlanRefused, match=said) as caught:
            load(items, declare(**(first | change)), query=f"select id, price, note{extra} from items")
        assert caught.value.kept == "nothing was touched"
    assert columns(items) == before


def test_another_key_than_the_tables_is_refused(items: Flow, declare: Declare) -> None:
    load(items, declare(id=ps.Key[ps.Int], price=ps.Decimal[10, 2], note=ps.Text | None))
    if not inspected(items).primary_key:  # DuckDB's is left to the loads' own checks
        items.target.execute(
            "drop table items", "create table items (id int primary key, price decimal(10,2) not null, note varchar)"
        )
    other = declare(id=ps.Int, price=ps.Key[ps.Decimal[10, 2]], note=ps.Text | None)
    with pytest.raises(PlanRefused, match=r"Items has the key \(price\), and .*items has \(id\)"):
        load(items, other)


def test_columns_that_only_one_side_has(items: Flow, declare: Declare) -> None:
    cls = declare(id=ps.Key[ps.Int], note=ps.Text | None, colour=ps.Text | None)
    with pytest.raises(PlanRefused) as caught:
        load(items, cls)
    assert "column price of the source" in caught.value.why
    assert "is not declared by Items" in caught.value.why
    assert "Items.colour is not in the source" in caught.value.why
    assert load(items, cls, on_drift="ignore").inserted == 2
    assert [name for name, _, _ in columns(items)] == ["id", "note", "colour"]
    assert items.target.query("select id, note, colour from items order by 1") == [(1, "a", None), (2, None, None)]
    with pytest.raises(PlanRefused, match="is not declared by Items"):
        load(items, cls, on_drift="ignore", strict_schema=True)


def test_a_column_that_takes_no_null_must_come(items: Flow, declare: Declare) -> None:
    cls = declare(id=ps.Key[ps.Int], colour=ps.Text)
    with pytest.raises(PlanRefused, match=r"Items.colour takes no NULL and is not in the source"):
        load(items, cls, query="select id from items", on_drift="ignore")


def test_an_append_keeps_the_declared_key(items: Flow, declare: Declare) -> None:
    cls = declare(id=ps.Key[ps.Int], note=ps.Text | None)
    query = "select id, note from items"
    assert load(items, cls, mode="append", query=query).inserted == 2
    with pytest.raises(DataError, match="keys that are in the target already") as caught:
        load(items, cls, mode="append", query=query)
    assert set(caught.value.keys) == {"id=1", "id=2"}
    with pytest.raises(DataError, match="duplicate keys"):
        load(items, cls, mode="append", query="select 9 as id, note from items")
    with pytest.raises(DataError, match="NULL in a key"):
        load(items, cls, mode="append", query="select nullif(id, 1) + 10 as id, note from items")
    assert items.target.query("select count(*) from items") == [(2,)]


def test_names_of_the_source_are_matched_after_renaming(items: Flow, declare: Declare) -> None:
    cls = declare(number=ps.Key[ps.Int], note=ps.Text | None)
    options = {"query": "select id, note from items", "columns": {"id": {"rename": "number"}}}
    assert load(items, cls, **options).inserted == 2
    assert load(items, cls, **options).updated == 0
    assert items.target.query("select number from items order by 1") == [(1,), (2,)]


EVERY: dict[str, tuple[Any, str]] = {
    "Bool": (ps.Bool, "true"),
    "TinyInt": (ps.TinyInt, "cast(7 as smallint)"),
    "SmallInt": (ps.SmallInt, "cast(7 as smallint)"),
    "Int": (ps.Int, "7"),
    "BigInt": (ps.BigInt, "cast(7 as bigint)"),
    "UTinyInt": (ps.UTinyInt, "cast(7 as smallint)"),
    "USmallInt": (ps.USmallInt, "7"),
    "UInt": (ps.UInt, "cast(7 as bigint)"),
    "UBigInt": (ps.UBigInt, "cast(7 as numeric(20,0))"),
    "Float": (ps.Float, "cast(1.5 as real)"),
    "Double": (ps.Double, "cast(1.5 as double precision)"),
    "Decimal": (ps.Decimal[20, 3], "cast(1.5 as numeric(20,3))"),
    "Numeric": (ps.Numeric, "cast(1.5 as numeric)"),
    "Text": (ps.Text, "'x'"),
    "Binary": (ps.Binary, r"cast('\x01' as bytea)"),
    "Date": (ps.Date, "date '2024-01-01'"),
    "Time": (ps.Time, "time '01:02:03'"),
    "Timestamp": (ps.Timestamp, "timestamp '2024-01-01 01:02:03'"),
    "TimestampTz": (ps.TimestampTz, "timestamptz '2024-01-01 01:02:03+00'"),
    "Uuid": (ps.Uuid, "cast('00000000-0000-0000-0000-000000000001' as uuid)"),
    "Json": (ps.Json, "cast('{}' as json)"),
    "Interval": (ps.Interval, "interval '1 day'"),
    "Enum": (ps.Enum["x", "y"], "'x'"),
    "List": (ps.List[ps.Int], "array[1, 2]"),
}


def test_every_type_that_both_have(flow: Flow, declare: Declare) -> None:
    """Declared, made, loaded, and found unchanged by the next plan."""
    cls = declare(**{name.lower(): type_ for name, (type_, _) in EVERY.items()})
    query = "select " + ", ".join(f'{value} as "{name.lower()}"' for name, (_, value) in EVERY.items())
    assert load(flow, cls, query=query, mode="append").inserted == 1
    again = planned(flow, cls, query=query, mode="append")
    assert (again.ddl, again.refusals, again.changes) == ((), (), False)
    assert load(flow, cls, query=query, mode="append").inserted == 1


def test_a_table_is_made_and_evolved_by_itself(items: Flow, declare: Declare) -> None:
    made = testing.project(items.root, {"from_": items.source.options(), "to": items.target.options()})
    first = declare(**{name.lower(): type_ for name, (type_, _) in EVERY.items()})
    shown = ps.create(first, dry_run=True, project=made)
    assert any("create table" in line for line in shown)
    assert not items.target.has_table("items")
    assert ps.create(first, project=made) == shown
    assert ps.create(first, project=made) == ()
    items.target.execute("drop table items")
    ps.create(declare(id=ps.Int | None), project=made)  # where staging might have become the table
    ps.create(declare(**GROWN), project=made)
    assert nullable(items) == [("id", True), ("note", True), ("price", True)]
    with pytest.raises(PlanRefused, match="cannot be widened"):
        ps.create(declare(id=ps.SmallInt | None), project=made)
    # It is nobody's: a pipeline that replaces its rows may come.
    assert load(items, declare(**GROWN), mode="truncate").inserted == 2
    assert items.target.leftovers() == []


@pytest.mark.parametrize(
    ("shape", "column", "figures"),
    [
        ({"mode": "scd2", "deletes": "close"}, "valid_from", (2, 2)),
        ({"mode": "merge", "deletes": "soft"}, "_penstock_deleted_at", (0, 2)),
    ],
)
def test_a_table_is_made_for_the_pipeline_that_loads_it(
    items: Flow, declare: Declare, shape: dict[str, Any], column: str, figures: tuple[int, int]
) -> None:
    cls = declare(id=ps.Key[ps.Int], price=ps.Decimal[10, 2] | None)
    options = shape | {"query": "select id as nr, 1.50 as price from items", "keys": ["nr"]}
    options |= {"columns": {"nr": {"rename": "id"}}}
    made = project(items, cls, options)
    assert any(column in line for line in ps.create(cls, project=made))
    assert ps.create(cls, project=made) == ()
    load(items, cls, **options)
    done = load(items, cls, **options | {"query": "select id as nr, 2.50 as price from items"})
    assert (done.inserted, done.updated) == figures
    rows = f"select id, cast({'valid_to' if column == 'valid_from' else column} as text) from items order by 1, 2"
    before = items.target.query(rows)
    grown = declare(id=ps.Key[ps.Int], price=ps.Decimal[10, 2] | None, note=ps.Text | None)
    assert len(ps.create(grown, project=project(items, grown, options))) == 1
    assert items.target.query(rows) == before  # none is closed or deleted


def test_a_history_into_a_table_that_takes_one_row_of_a_key_is_refused(items: Flow, declare: Declare) -> None:
    cls = declare(id=ps.Key[ps.Int], price=ps.Decimal[10, 2] | None)
    ps.create(cls, project=project(items, cls, {}))
    options: dict[str, Any] = {"mode": "scd2", "query": "select id, 1.50 as price from items", "keys": ["id"]}
    if not inspected(items).primary_key:  # DuckDB declares none
        load(items, cls, **options, on_drift="evolve")
        assert load(items, cls, **options | {"query": "select id, 2 as price from items"}).inserted == 2
        return
    with pytest.raises(PlanRefused, match=r"has the primary key \(id\), and in a history a key has several rows"):
        load(items, cls, **options, on_drift="evolve")


GROWN: dict[str, Any] = {"id": ps.BigInt | None, "note": ps.Text | None, "price": ps.Decimal[10, 2] | None}


State = ps.Enum["a", "c"]


@pytest.mark.parametrize("backend", ["postgres", "duckdb", "sqlite"])
def test_inside_one_database_the_class_holds_too(
    backend: str, harness: Callable[[str], Harness], tmp_path: Path
) -> None:
    """The native path: no row leaves the database, and each is cast and checked all the same."""
    home = harness(backend)
    home.execute(
        "create table items (id int not null, price decimal(10,2), state text)",
        "insert into items values (1, 1.50, 'a'), (2, 2.25, 'c'), (3, null, 'c'), (4, 4.00, 'b')",
    )
    before = list(decorators.registered.tables)
    try:

        @ps.table(connection="home", name=f"{home.schema}.copies")
        class Copies(ps.ManagedTable):
            id: ps.Key[ps.BigInt]
            price: ps.Double
            state: State

        made = testing.project(tmp_path, {"home": home.options()})

        def sync(where: str) -> ps.RunResult:
            query = ps.query("home", f"select id, price, state from items where {where}")
            with testing.without_spark():
                return ps.sync(query, Copies, mode="merge", project=made)

        done = sync("id < 3")
        assert (done.path, done.inserted) == ("native", 2)
        found = testing.rows(made.connection("home"), f"{home.schema}.copies")
        assert sorted(tuple(row.values()) for row in found) == [(1, 1.5, "a"), (2, 2.25, "c")]
        for where, column, key in (("id = 3", "price", "id=3"), ("id = 4", "state", "id=4")):
            with pytest.raises(DataError, match=f"column {column}") as caught:
                sync(where)
            assert caught.value.keys == (key,)
    finally:
        decorators.registered.tables[:] = before


MODULE = """import penstock as ps

@ps.table(connection="warehouse", name="main.customers")
class Customers(ps.ManagedTable):
    id: ps.Key[ps.BigInt]
    name: ps.Text | None
"""
TOML = '[project]\nmodules = ["tables"]\n[connections.warehouse]\ntype = "duckdb"\npath = "w.duckdb"\n'


def test_the_command_makes_tables_and_shows_what_it_runs(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text(TOML)
    (tmp_path / "tables.py").write_text(MODULE)

    def tables(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from penstock.cli.main import main; main()", "tables", "create", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100)

    shown = tables("--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert 'create table "main"."customers"' in shown.stdout
    assert not (tmp_path / "w.duckdb").exists()
    assert tables("Customers").returncode == 0
    [record] = json.loads(tables("-o", "json").stdout)
    assert record == {"name": "Customers", "table": "warehouse.main.customers", "statements": []}
    wrong = tables("Custmers")
    assert (wrong.returncode, "did you mean 'Customers'?" in wrong.stderr) == (2, True)


def test_declared_a_key_that_partitions_cannot_keep_is_refused(flow: Flow, declare: Declare) -> None:
    flow.source.execute("create table items (id bigint, made date)", "insert into items values (1, '2026-01-01')")
    loose = declare(id=ps.Key[ps.BigInt], made=ps.Date)
    if not flow.target.capabilities.partition_by:
        with pytest.raises(Unsupported, match="has no partitions"):
            load(flow, loose, partition_by=["year(made)"])
        return
    with pytest.raises(PlanRefused, match="Items has a key without made, which a partitioned table cannot have"):
        load(flow, loose, partition_by=["year(made)"])
    assert not flow.target.has_table("items")
    cls = declare(id=ps.Key[ps.BigInt], made=ps.Key[ps.Date])
    assert [load(flow, cls, partition_by=["year(made)"]).inserted for _ in range(2)] == [1, 0]
    assert set(inspected(flow).primary_key) == {"id", "made"}
