"""Rows read by their keys under the snapshot of a moment: as the log prints them, whatever is in them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from penstock.backends.change_source import TableRequest
from penstock.backends.changes import VALUE
from penstock.backends.postgres import keyed
from penstock.backends.postgres.snapshot import Holder
from penstock.replicate.tables import ends_of
from penstock.schema import TableName
from tests.replication.stand import Stand

pytestmark = [pytest.mark.postgres]

ODD = (
    "''", "E'\\n'", "E'a\\r\\nb'", "'\"'", "'a\"b,c'", "''''", "'\\'", "'\\\\.'", "'\\N'", "'NULL'", "'null'", "','",
    "'{}'", "'{a,\"b\"}'", "' '", "E'\\t'", "'é'", "'日本'", "'😀'", "E'\\u0001'", "'%s'", "'%'", "'$1'", "'\\.'",
)  # fmt: skip
COLUMNS = ("k", "n", "v", "doc", "raw", "tags", "flag", "price")


def refused(*_: Any) -> Any:
    raise AssertionError("rows are asked for as tuples")


@pytest.mark.parametrize("read_bytes", [5_000, 1 << 24])
def test_many_rows_with_odd_keys_and_odd_values(
    make: Callable[..., Stand], monkeypatch: pytest.MonkeyPatch, read_bytes: int
) -> None:
    stand = make("sqlite")
    texts = f"(array[{', '.join(ODD)}])"
    stand.source.execute(
        "create table odd (k text, n int, v text, doc json, raw bytea, tags text[], flag bool, price numeric,"
        " gone text, primary key (n, k))",
        "alter table odd drop column gone",
        f"insert into odd select {texts}[1 + i % {len(ODD)}], i, {texts}[1 + i / 7 % {len(ODD)}],"
        f" to_json({texts}[1 + i / 5 % {len(ODD)}]), convert_to({texts}[1 + i / 3 % {len(ODD)}], 'UTF8'),"
        f" array[{texts}[1 + i % {len(ODD)}], null, '', repeat('x', i % 50)], i % 2 = 0, i / 8.0"
        f" from generate_series(0, 11999) i",
        # Of every column a NULL, and of one row all.
        *(
            f"update odd set {name} = null where n % 97 = {at} or n = 5"
            for at, name in enumerate(COLUMNS)
            if name not in "kn"
        ),
    )
    wanted = "where n % 11 <> 0"
    printed = ", ".join(f"case when {name} is null then null else format('%s', {name}) end" for name in COLUMNS)
    here = stand.source.query(f"select {printed} from odd {wanted} order by n")
    keys = stand.source.query(f"select n::text, k from odd {wanted} union all select '-1', 'none'")
    asked = pa.table(
        {name: pa.array(values, VALUE) for name, values in zip("nk", zip(*keys, strict=True), strict=True)}
    )
    ends, table = ends_of(stand.project(), stand.replication), TableRequest(TableName("public", "odd"))
    with closing(ends.change_source(stand.replication, [table])) as source:
        source.publish()
        [found] = source.tables()
        with closing(source.moment()) as moment:
            stand.source.execute("update odd set v = 'too late'")
            monkeypatch.setattr(Holder, "ask", refused)
            monkeypatch.setattr(keyed, "READ_BYTES", read_bytes)
            rows = moment.rows(found.version, asked)
            monkeypatch.undo()
    assert (rows.column_names, set(rows.schema.types)) == (list(COLUMNS), {VALUE})
    there = sorted(zip(*(column.to_pylist() for column in rows.columns), strict=True), key=lambda row: int(row[1]))
    assert there == here
    assert len(here) > 2 * keyed.KEYS
