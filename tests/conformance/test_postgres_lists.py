"""Arrays on their way out of Postgres and in, whatever batch boundaries fall on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from penstock.backends.base import Source
from penstock.errors import BeyondArrow, DataError, PenstockError
from tests.conformance.postgres_bench import Bench, Database

pytestmark = pytest.mark.postgres

# Two rows out of three are NULL, the first hundred all of them: slices begin in every way.
LISTS = (
    "create table t as select n as id,"
    " case when n > 100 and n % 3 = 0 then array[n, null, -n] when n % 50 = 0 then '{}' end as l"
    " from generate_series(1, 400) n"
)


@pytest.mark.parametrize("batch_rows", [7, 64, 131_072])
def test_lists_survive_batches_that_begin_with_null(
    batch_rows: int, database: Callable[[], Database], bench: Callable[..., Bench]
) -> None:
    one, two = database(), database()
    one.execute(LISTS)
    work = bench(one, two)
    loading, columns = work.begin()
    try:
        sink = loading.sink(0)
        [piece] = work.source.partitions([staged.column for staged in columns], 1).partitions
        loading.commit([sink.write(0, replace(piece, batch_rows=batch_rows).read())])  # type: ignore[type-var]  # the backend's own dataclass
    finally:
        loading.close()
    rows = "select id, l from t order by id"
    assert two.query(rows) == one.query(rows)


def test_lists_a_sliced_batch_is_staged_as_it_is(database: Callable[[], Database], bench: Callable[..., Bench]) -> None:
    """What comes from elsewhere than Postgres may be a slice, with anything under its NULLs."""
    one, two = database(), database()
    one.execute("create table t (id int, l int[])")
    work = bench(one, two)
    loading, _ = work.begin()
    garbage = pa.ListArray.from_arrays(
        pa.array([0, 2, 4, 5], pa.int32()), pa.array([1, 2, 8, 9, 3], pa.int32()), mask=pa.array([False, True, False])
    )
    lists = pa.concat_arrays([pa.nulls(5, garbage.type), garbage])
    batch = pa.RecordBatch.from_arrays([pa.array(range(8), pa.int32()), lists], ["id", "l"])
    try:
        loading.commit([loading.sink(0).write(0, iter([batch.slice(3, 2), batch.slice(5)]))])
    finally:
        loading.close()
    assert two.query("select * from t order by id") == [(3, None), (4, None), (5, [1, 2]), (6, None), (7, [3])]


def test_lists_an_element_beyond_arrow_is_told_with_its_row(db: Database, opened: Callable[..., Source]) -> None:
    db.execute(
        "create table t (id int, l numeric(5,2)[])",
        "insert into t select n, case when n > 5 then array[1, 2] end from generate_series(1, 9) n",
        "insert into t values (42, '{1,NaN}'), (43, '{1}')",
    )
    source = opened(db, table="public.t", keys=("id",))
    [piece] = source.partitions(list(source.schema()), 1).partitions
    with pytest.raises(BeyondArrow) as caught:
        list(replace(piece, batch_rows=3).read())  # type: ignore[type-var]  # the backend's own dataclass
    assert caught.value.keys == ("id=42",)


def test_lists_an_element_that_the_server_lacks_is_told_with_its_row(
    database: Callable[[], Database], bench: Callable[..., Bench]
) -> None:
    one, two = database(), database()
    one.execute("create table t (id int, l text[])")
    work = bench(one, two)
    loading, _ = work.begin()
    lists = pa.array([None, None, ["a"], None, ["b", "c\x00d"], ["e"]], pa.list_(pa.string()))
    batch = pa.RecordBatch.from_arrays([pa.array(range(6), pa.int32()), lists], ["id", "l"])
    try:
        with pytest.raises(DataError) as caught:
            loading.sink(0).write(0, iter([batch.slice(1)]))
    finally:
        loading.abort()
        loading.close()
    assert caught.value.keys == ("id=4",)


def test_lists_a_form_that_the_driver_lacks_is_not_tried_again(db: Database, opened: Callable[..., Source]) -> None:
    db.execute("create table t as select 1 as id, 'a'::text as v")
    source = opened(db, table="public.t")
    [piece] = source.partitions(list(source.schema()), 1).partitions
    columns = tuple(replace(c, type=pa.list_(pa.int32())) if c.name == "v" else c for c in source.schema())
    with pytest.raises(PenstockError) as caught:
        list(replace(piece, columns=columns).read())  # type: ignore[type-var]  # the backend's own dataclass
    assert not caught.value.retryable
