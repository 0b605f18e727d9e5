"""Rules of docs/explanation/rules.md, sections 1 and 2: splitting a source, and tasks. No JVM."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from penstock.backends import staging
from penstock.backends.base import Load, ReadRequest, Receipt, RunContext, Sink, Source
from penstock.backends.duckdb import connect as duckdb_connect
from penstock.backends.postgres import PostgresBackend, PostgresConfig, split
from penstock.backends.postgres.connect import SETTINGS, Identity, reading_session
from penstock.backends.postgres.leases import staging_name
from penstock.errors import SourceMoved, StagingLost
from penstock.run.prepare import Prepared
from penstock.schema import TableName
from penstock.testing.postgres import EmbeddedPostgres
from tests.conformance.harness import DuckDBHarness, Flow, Harness, PostgresHarness

pytestmark = pytest.mark.postgres

REPO = Path(__file__).parents[2]


def new_run() -> RunContext:
    return RunContext(uuid.uuid4().hex, "test", Path("unused"))


@pytest.fixture
def postgres(harness: Callable[[str], Harness]) -> PostgresHarness:
    made = harness("postgres")
    assert isinstance(made, PostgresHarness)
    return made


@contextmanager
def reading(dsn: str, query: str = "", table: str = "", **options: Any) -> Iterator[Source]:
    request = ReadRequest(TableName.parse(table) if table else None, query or None)
    source = PostgresBackend().source(PostgresConfig(name="db", dsn=dsn, **options), request, new_run())
    try:
        yield source
    finally:
        source.close()


def rows_of(source: Source, want: int = 4) -> int:
    pieces = source.partitions(list(source.schema()), want).partitions
    return sum(batch.num_rows for piece in pieces for batch in piece.read())


# ---------------------------------------------------------------- 1. splitting a source


def test_1_splitting_by_ctid_only_heaps(postgres: PostgresHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "MIN_RANGE_BYTES", 8192)
    postgres.execute(
        "create access method other type table handler heap_tableam_handler",
        "create table plain as select n as id, repeat('x', 500) as v from generate_series(1, 200) n",
        "create table strange using other as select * from plain",
        "create materialized view seen as select * from plain",
        "create view looked_at as select * from plain",
    )
    for table, split_up in (("plain", True), ("seen", True), ("strange", False), ("looked_at", False)):
        with reading(postgres.dsn, table=f"public.{table}") as source:
            found = source.partitions(list(source.schema()), 4)
            assert (len(found.partitions) > 1) is split_up, found.reason
            assert rows_of(source) == 200
    with reading(postgres.dsn, query="select id, v from strange") as source:
        assert len(source.partitions(list(source.schema()), 4).partitions) == 1
        assert rows_of(source) == 200


def test_1_splitting_a_materialized_view_that_is_refreshed_meanwhile_is_noticed(postgres: PostgresHarness) -> None:
    postgres.execute(
        "create table t as select generate_series(1, 10) as id", "create materialized view seen as table t"
    )
    for request in ({"table": "public.seen"}, {"query": "select id from seen where id > 0"}):
        with reading(postgres.dsn, **request) as source:
            [piece] = source.partitions(list(source.schema()), 1).partitions
            assert sum(batch.num_rows for batch in piece.read()) == 10
            with psycopg.connect(postgres.dsn) as refresher:
                refresher.execute("refresh materialized view seen")
                with pytest.raises(SourceMoved):
                    list(piece.read())
            with pytest.raises(SourceMoved):
                list(piece.read())


def test_1_splitting_a_mixed_family_reads_each_member_once(
    postgres: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parent with rows of its own, a child and a grandchild: the parent's size tells nothing of them."""
    monkeypatch.setattr(split, "MIN_RANGE_BYTES", 8192)
    postgres.execute(
        "create table top (id int, v text)",
        "create table middle () inherits (top)",
        "create table bottom () inherits (middle)",
        *(
            f"insert into {name} select n, repeat('x', 500) from generate_series({low}, {high}) n"
            for name, low, high in (("top", 1, 3), ("middle", 4, 200), ("bottom", 201, 210))
        ),
    )
    with reading(postgres.dsn, table="public.top") as source:
        pieces = source.partitions(list(source.schema()), 4).partitions
        assert len(pieces) > 1
        assert all(piece.guards for piece in pieces)  # type: ignore[attr-defined]  # the backend's own part
        ids = [n for piece in pieces for batch in piece.read() for n in batch.column("id").to_pylist()]
    assert sorted(ids) == list(range(1, 211))


def test_1_sessions_time_outs_are_off_in_holder_and_workers(postgres: PostgresHarness) -> None:
    [(user,)] = postgres.query("select current_user")
    [(database,)] = postgres.query("select current_database()")
    for name in ("statement_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout"):
        postgres.execute(f"alter role {user} in database {database} set {name} = '300ms'")
    with reading(postgres.dsn, query="select n, pg_sleep(0.12)::text as s from generate_series(1, 4) n") as source:
        [piece] = source.partitions(list(source.schema()), 1).partitions
        assert sum(batch.num_rows for batch in piece.read()) == 4
        # The holder has been idle in its transaction all the while, and is still there.
        assert rows_of(source) == 4


def test_1_sessions_notice_a_client_that_is_gone(postgres: PostgresHarness) -> None:
    """A killed driver's backends were still active after 20 s without these settings."""
    config = PostgresConfig(name="db", dsn=postgres.dsn)
    wanted = dict(SETTINGS)
    assert wanted["client_connection_check_interval"] == "1000"
    with reading_session(config.conninfo(), "test") as connection, connection.cursor() as cursor:
        for name, value in wanted.items():
            cursor.execute(f"select setting from pg_settings where lower(name) = '{name}'")
            assert cursor.fetchone()[0].lower() == value.lower(), name
    keywords = dict(config.conninfo().keywords)
    assert keywords["keepalives"] == "1"
    assert int(keywords["keepalives_idle"]) + 4 * int(keywords["keepalives_interval"]) <= 60


def test_1_sessions_a_worker_on_another_server_reads_nothing(postgres: PostgresHarness) -> None:
    postgres.execute("create table t as select generate_series(1, 10) as id")
    with EmbeddedPostgres() as elsewhere, reading(postgres.dsn, table="public.t") as source:
        [piece] = source.partitions(list(source.schema()), 1).partitions
        other = PostgresConfig(name="db", dsn=elsewhere.dsn).conninfo()
        PostgresHarness(elsewhere.dsn).execute("create table t as select generate_series(1, 10) as id")
        with pytest.raises(SourceMoved):
            list(replace(piece, conninfo=other).read())  # type: ignore[type-var]  # the backend's own dataclass
        # A snapshot of the same name may exist there: the server's identity decides.
        moment = piece.moment  # type: ignore[attr-defined]  # the backend's own part
        for field in ("started", "system", "database"):
            forged = replace(moment, identity=replace(moment.identity, **{field: "another"}))
            with pytest.raises(SourceMoved) as caught:
                list(replace(piece, moment=forged).read())  # type: ignore[type-var]  # the backend's own dataclass
            assert "another server" in caught.value.why
        assert isinstance(moment.identity, Identity)
        assert rows_of(source) == 10


def test_1_duckdb_one_file_as_source_and_target_lets_go_before_the_commit(
    harness: Callable[[str], Harness], tmp_path: Path
) -> None:
    file = harness("duckdb")
    file.execute("create table items as select range as id, 'x' as name from range(1000)")
    flow = Flow(file, file, tmp_path)
    record = flow.run(path="fused", target="to.main.copied", mode="merge", keys=["id"])
    assert (record.path, record.rows) == ("fused", 1000)
    assert file.query("select count(*), count(distinct id) from copied") == [(1000, 1000)]


def test_1_duckdb_a_workers_connection_is_closed_before_its_receipt(
    harness: Callable[[str], Harness], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = harness("duckdb"), harness("duckdb")
    assert isinstance(source, DuckDBHarness)
    source.execute("create table items as select range as id from range(1000)")
    open_then: list[int] = []
    readers = duckdb_connect._registry.readers

    def seen(name: str) -> None:
        if name == "sink.staged":
            open_then.append(readers[source.path.resolve()])

    monkeypatch.setattr(staging, "failpoint", seen)
    Flow(source, target, tmp_path).run(path="fused")
    assert open_then == [1]  # the driver's own, which holds the moment


# ---------------------------------------------------------------- 2. tasks


def staged_by(flow: Flow, look: Callable[[Prepared, Sink, list[Receipt]], None], **options: Any) -> None:
    """Run the pipeline, and look around when every task has written and nothing is committed."""
    from penstock.run.pipeline import run
    from tests.faults.bare import stage_here

    def stage(project: Any, prepared: Prepared, sink: Sink, on_progress: Any) -> list[Receipt]:
        receipts = stage_here(project, prepared, sink, on_progress)
        look(prepared, sink, receipts)
        return receipts

    pipeline = flow.pipeline(**options)
    run(flow.project(pipeline), pipeline, flow.store, stage=stage)


@pytest.mark.parametrize("backend", ["postgres", "duckdb"])
def test_2_tasks_workers_never_commit_to_the_target(
    harness: Callable[[str], Harness], backend: str, tmp_path: Path
) -> None:
    source, target = harness("postgres"), harness(backend)
    flow = Flow(source, target, tmp_path)
    source.execute("create table items as select generate_series(1, 10) as id")
    flow.run()
    source.execute("insert into items values (11)")

    def look(prepared: Prepared, sink: Sink, receipts: list[Receipt]) -> None:
        assert [receipt.rows for receipt in receipts] == [11]
        assert target.query("select count(*) from items") == [(10,)]

    staged_by(flow, look, mode="truncate")
    assert target.query("select count(*) from items") == [(11,)]


def test_2_tasks_names_of_staging_have_a_fixed_length(postgres: PostgresHarness, tmp_path: Path) -> None:
    """Names cut at 63 bytes with a notice made two tables one."""
    run = uuid.uuid4().hex
    assert {len(staging_name(run, number)) for number in (0, 7, 9999)} == {39}
    assert len({staging_name(run, number) for number in range(100)}) == 100
    postgres.execute(*(f"create table {'t' * 62}{n} as select {n} as id" for n in (1, 2)))
    flow = Flow(postgres, postgres, tmp_path)
    for number in (1, 2):
        long = f"{'t' * 62}{number}"
        staged_by(
            flow,
            lambda prepared, sink, receipts: None,
            table=f"public.{long}",
            target=f"to._copies.{long}",
            path="fused",
        )
        assert postgres.query(f"select id from _copies.{long}") == [(number,)]


def test_2_tasks_a_task_whose_staging_was_swept_writes_nothing(postgres: PostgresHarness, tmp_path: Path) -> None:
    """The run's own table in staging is its token: without it a late attempt leaves no receipt."""
    postgres.execute("create table items as select generate_series(1, 10) as id")
    kept: list[Sink] = []
    flow = Flow(postgres, postgres, tmp_path)
    staged_by(
        flow,
        lambda prepared, sink, receipts: kept.append(pickle.loads(pickle.dumps(sink))),  # noqa: S301  our own object
        path="fused",
        target="to.public.copied",
    )
    batch = pa.RecordBatch.from_pydict({"id": pa.array([1], pa.int32())})
    with pytest.raises(StagingLost):
        kept[0].write(5, iter([batch]))
    assert postgres.leftovers() == []


def test_2_tasks_drivers_get_keywords_never_the_uri() -> None:
    config = PostgresConfig(name="db", dsn="postgresql://clerk:p%40ss-w0rd@db.example:6543/shop?sslmode=prefer")
    text = config.conninfo().libpq()
    assert "://" not in text
    assert "password=p@ss-w0rd" in text
    assert "host=db.example" in text
    for shown in (repr(config), repr(config.conninfo()), str(config.conninfo())):
        assert "p@ss" not in shown
        assert "p%40ss" not in shown


def test_2_tasks_a_native_load_starts_no_spark(postgres: PostgresHarness, tmp_path: Path) -> None:
    postgres.execute("create table items as select generate_series(1, 10) as id")
    code = (
        "import sys\nfrom pathlib import Path\nfrom tests.conformance.harness import Flow, PostgresHarness\n"
        "here = PostgresHarness(sys.argv[1])\n"
        "record = Flow(here, here, Path(sys.argv[2])).run(target='to.public.copied')\n"
        "assert record.path == 'native', record\nassert 'pyspark' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, postgres.dsn, str(tmp_path)],
        cwd=REPO, capture_output=True, text=True, check=False, env=os.environ | {"JAVA_HOME": "/nonexistent"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_2_tasks_the_package_asks_spark_by_data_frames_only() -> None:
    """No RDD and no JVM handle outside of the module that is for them, so that it runs on Spark Connect."""
    allowed = {"status.py", "session.py", "gateway.py", "archive.py", "training.py"}
    found = [
        f"{path.name}:{number}"
        for path in (REPO / "penstock").rglob("*.py")
        if path.name not in allowed
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"\._jvm|\._jsc|\.rdd\b|sparkContext|\._sc\b", line)
    ]
    assert found == []


def test_2_tasks_abort_ends_the_sessions_of_late_workers_before_it_sweeps(
    postgres: PostgresHarness, tmp_path: Path
) -> None:
    """A worker that is still writing when the run is given up must not commit a receipt afterwards."""
    from penstock.run.prepare import prepare
    from penstock.run.records import RunOptions

    postgres.execute("create table items as select generate_series(1, 10) as id")
    flow = Flow(postgres, postgres, tmp_path)
    pipeline = flow.pipeline(path="fused", target="to.public.copied")
    run = new_run()
    prepared = prepare(flow.project(pipeline), pipeline, "public.items", run, RunOptions())
    load: Load = prepared.target.begin(prepared.planned.load)
    try:
        with psycopg.connect(postgres.dsn, application_name=f"{run.application_name}:sink") as late:
            late.execute("insert into _penstock.receipts values (%s, 0, 3, 1, 1, 1)", (run.run_id,))
            load.abort()
            with pytest.raises(psycopg.OperationalError):
                late.commit()
    finally:
        load.close()
        prepared.close()
    assert postgres.leftovers() == []
