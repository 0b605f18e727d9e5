"""Transforms over tables of other connections: joined by value, each at its moment, the small ones broadcast."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.errors import SourceError, TransformError
from penstock.project import Project
from penstock.project.model import Pipeline
from penstock.run import inputs
from penstock.run.pipeline import RunOptions, context_of, plan, run
from penstock.run.prepare import Prepared, prepare
from penstock.state import RunRecord, open_store
from tests.conformance.harness import Harness, PostgresHarness

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

JOIN = (
    "select o.id, o.amount, o.ref, c.name, c.balance, r.label from source o"
    " join customers c on o.customer = c.id left join regions r on c.region = r.code"
)
NAMED: dict[str, Any] = {
    "customers": "crm.main.customers",
    "regions": {"source": "shop", "query": "select code, label from regions where code <> 'xx'"},
}


class Sites:
    """A shop in Postgres, its customers in a DuckDB file, a warehouse in another."""

    def __init__(self, harness: Callable[[str], Harness], root: Path) -> None:
        self.shop, self.crm, self.warehouse = harness("postgres"), harness("duckdb"), harness("duckdb")
        self.root = root
        self.store = open_store("memory:")
        self.shop.execute(
            "create table orders (id int primary key, customer int, amount numeric(38,12), ref uuid, filler text)",
            "insert into orders select n, n % 7, n / 7.0, gen_random_uuid(), repeat('x', 100)"
            " from generate_series(1, 2000) n",
            "create table regions (code text primary key, label text)",
            "insert into regions values ('eu', 'Europe'), ('us', 'America'), ('xx', 'nowhere')",
        )
        self.crm.execute(
            "create table customers (id integer, name varchar, region varchar, balance decimal(38,9), secret varchar)",
            "insert into customers values (0, 'Ann', 'eu', 12345678901234567890123456789.123456789, 's'),"
            " (1, 'Bob', 'us', -0.000000001, 's'), (2, null, 'xx', null, 's'), (3, 'Dee', null, 0, 's')",
        )

    def project(self, **options: Any) -> tuple[Project, Pipeline]:
        defaults = {"name": "joined", "source": "shop", "table": "public.orders", "mode": "append", "place": "test"}
        pipeline = Pipeline.model_validate({**defaults, "target": "warehouse.main.joined", **options})
        connections = {"shop": self.shop.options(), "crm": self.crm.options(), "warehouse": self.warehouse.options()}
        return Project.from_objects(self.root, connections, [pipeline]), pipeline

    def run(self, **options: Any) -> RunRecord:
        return run(*self.project(**options), self.store)[-1]

    @contextmanager
    def prepared(self, **options: Any) -> Iterator[Prepared]:
        project, pipeline = self.project(**options)
        with closing(prepare(project, pipeline, pipeline.table, context_of(project, pipeline), RunOptions())) as made:
            yield made


@pytest.fixture
def sites(harness: Callable[[str], Harness], tmp_path: Path) -> Sites:
    return Sites(harness, tmp_path)


def spark_plan(prepared: Prepared) -> str:
    assert prepared.transform is not None
    return str(prepared.transform.frame._jdf.queryExecution().executedPlan().toString())  # type: ignore[operator]  # what `explain` prints


def test_a_join_across_postgres_and_duckdb(sites: Sites) -> None:
    record = sites.run(transform=JOIN, inputs=NAMED)
    assert (record.path, record.state) == ("spark", "done")
    orders = sites.shop.query("select id, customer, amount::text, ref::text from orders")
    customers = {
        row[0]: row[1:] for row in sites.crm.query("select id, name, cast(balance as varchar), region from customers")
    }
    labels = {"eu": "Europe", "us": "America"}
    expected = [
        (id_, amount, ref, customers[who][0], customers[who][1], labels.get(customers[who][2]))
        for id_, who, amount, ref in orders
        if who in customers
    ]
    columns = "id, cast(amount as varchar), cast(ref as varchar), name, cast(balance as varchar), label"
    assert sites.warehouse.query(f"select {columns} from joined order by 1") == sorted(expected)
    types = dict(sites.warehouse.query("select column_name, data_type from duckdb_columns() where table_name='joined'"))
    assert (types["ref"], types["balance"], types["amount"]) == ("UUID", "DECIMAL(38,9)", "DECIMAL(38,12)")
    assert sites.warehouse.leftovers() == []


def test_the_plan_says_what_is_read_when_and_how(sites: Sites) -> None:
    [planned] = plan(*sites.project(transform=JOIN, inputs=NAMED))
    first, second = planned.inputs
    assert (first.name, first.connection, first.table, first.columns) == ("customers", "crm", "main.customers", 4)
    assert (first.broadcast, first.partitions) == (True, 1)
    assert (second.table, second.broadcast) == ("query", False)
    assert second.broadcast_reason == "nobody knows its size; `broadcast = true` says that it is small"
    assert "4 of 5 columns are read: the transform names no other" in planned.notes
    assert "source and regions are read at one moment of shop" in planned.notes
    assert "shop and crm are read at different moments: connections have no common one" in planned.notes


def test_a_small_input_is_broadcast_and_a_large_one_is_not(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    sql = "select o.id, c.name from source o join customers c on o.customer = c.id"
    options: dict[str, Any] = {"transform": sql, "inputs": {"customers": "crm.main.customers"}}
    with sites.prepared(**options) as prepared:
        assert "BroadcastHashJoin" in spark_plan(prepared)
    monkeypatch.setattr(inputs, "BROADCAST_BYTES", 10)
    with sites.prepared(**options) as prepared:
        assert "BroadcastHashJoin" not in spark_plan(prepared)
        assert prepared.plan().inputs[0].broadcast_reason == "it has about 85 bytes, more than 10 bytes"
    forced = {"customers": {"source": "crm", "table": "main.customers", "broadcast": True}}
    with sites.prepared(transform=sql, inputs=forced) as prepared:
        assert "BroadcastHashJoin" in spark_plan(prepared)


def test_a_function_gets_the_inputs_that_it_names(sites: Sites) -> None:
    def joined(orders: Any, customers: Any) -> Any:
        return orders.join(customers, orders.customer == customers.id).select(orders.id, customers.name)

    def alone(orders: Any) -> Any:
        return orders.select("id")

    with sites.prepared(transform_function=joined, inputs=NAMED) as prepared:
        assert prepared.transform is not None
        assert prepared.transform.schema.names == ("id", "name")
    with sites.prepared(transform_function=alone, inputs=NAMED) as prepared:
        assert prepared.transform is not None
        assert prepared.transform.schema.names == ("id",)


def test_what_is_wrong_with_an_input_is_told_by_its_name(sites: Sites) -> None:
    with pytest.raises(SourceError, match=r"there is no table main\.custmers") as missing:
        sites.run(transform=JOIN, inputs=NAMED | {"customers": "crm.main.custmers"})
    assert missing.value.place.endswith("inputs.customers")
    with pytest.raises(SourceError) as wrong:
        sites.run(transform=JOIN, inputs=NAMED | {"regions": {"source": "shop", "query": "select cod from regions"}})
    assert wrong.value.place.endswith("inputs.regions")
    with pytest.raises(TransformError, match="SQL is wrong") as caught:
        sites.run(transform="select o.id, c.nme\nfrom source o join customers c on o.customer = c.id", inputs=NAMED)
    # Spark offers the nearest names out of all that the views have.
    assert "`c`.`name`" in caught.value.why
    assert "line 1" in caught.value.why


def test_sessions_of_every_input_count(sites: Sites) -> None:
    limited = sites.shop.options() | {"max_connections": 8}
    sql = "select o.id from source o join r on true join s on true"
    views = {"r": "shop.public.regions", "s": {"source": "shop", "query": "select 1 as one"}}
    pipeline = {"name": "p", "source": "shop", "table": "public.orders", "mode": "append", "parallel": 16}
    pipeline |= {"target": "warehouse.main.t", "transform": sql, "inputs": views}
    connections = {"shop": limited, "warehouse": sites.warehouse.options()}
    project = Project.from_objects(sites.root, connections, [pipeline])
    [planned] = plan(project, project.pipeline("p"))
    # Eight less the driver's one, for three reads that may run beside each other.
    assert "2 tasks at most: max_connections" in planned.notes


ACCOUNTS = 3_000


@contextmanager
def moving(dsn: str) -> Iterator[list[int]]:
    """Money moves from one table to the other; the sum of both never changes."""
    stop, done = threading.Event(), [0]

    def work() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not stop.is_set():
                with connection.transaction():
                    connection.execute("update cash set amount = amount - 1 where id = %s", (done[0] % ACCOUNTS,))
                    connection.execute("update bank set amount = amount + 1 where id = %s", (done[0] % ACCOUNTS,))
                done[0] += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield done
    finally:
        stop.set()
        thread.join(30)


def test_one_moment_for_two_tables_of_one_connection(sites: Sites) -> None:
    assert isinstance(sites.shop, PostgresHarness)
    for table in ("cash", "bank"):
        sites.shop.execute(
            f"create table {table} (id int primary key, amount int)",
            f"insert into {table} select n, 100 from generate_series(0, {ACCOUNTS - 1}) n",
        )
    options: dict[str, Any] = {
        "table": "public.cash",
        "inputs": {"bank": "shop.public.bank"},
        "transform": "select sum(s.amount) as cash, sum(b.amount) as bank from source s join bank b using (id)",
    }
    with moving(sites.shop.dsn) as done:
        for number in range(2):
            before = done[0]
            sites.run(**options, target=f"warehouse.main.sum{number}")
            assert done[0] > before, "the workload stood still: the test shows nothing"
    for number in range(2):
        assert sites.warehouse.query(f"select cash + bank from sum{number}") == [(2 * 100 * ACCOUNTS,)]
