"""Files of others as a source: which they are, and what columns they have."""

from __future__ import annotations

import gzip
from datetime import date

import pyarrow as pa
import pytest

from penstock.backends.files.read import FilesSource
from penstock.errors import ConfigError, DataError, PlanRefused, SourceError
from tests.conformance.files_lake import Lake


def types(source: FilesSource) -> dict[str, str]:
    return {column.name: str(column.type) for column in source.schema()}


def test_a_table_is_a_directory_a_file_or_a_pattern(lake: Lake) -> None:
    lake.put("orders/a.csv", "id\n1\n")
    lake.put("orders/2024/b.csv", "id\n2\n")
    lake.put("orders/_c.csv", "id\n3\n")
    lake.put("orders/.d.csv", "id\n4\n")
    lake.put("single.csv", "id\n5\n")
    lake.put("sales/eu.csv", "id\n6\n")
    assert lake.read("orders") == [{"id": "2"}, {"id": "1"}]
    assert lake.read("single") == lake.read('"single.csv"') == [{"id": "5"}]
    assert lake.read("sales.eu") == [{"id": "6"}]
    assert lake.read('"*/*.csv"') == [{"id": "1"}, {"id": "6"}]
    assert lake.read('"orders/2024/*.csv"') == [{"id": "2"}]


def test_no_matching_file_is_an_error(lake: Lake) -> None:
    lake.put("orders/readme.md", "no data")
    for table in ("missing", '"*.parquet"', "orders"):
        with pytest.raises(SourceError, match="there is no"):
            lake.source(table)


def test_a_name_never_leaves_the_connections_path(lake: Lake) -> None:
    lake.put("../secret.csv", "id\n1\n")
    for table in ('"../secret.csv"', '".."."secret.csv"', '"/etc/passwd"', '"a/../../secret.csv"', '"_penstock"'):
        with pytest.raises(PlanRefused, match="is no name of a table"):
            lake.source(table, format="csv")


def test_files_of_several_formats_need_a_word(lake: Lake) -> None:
    lake.put("orders/a.csv", "id\n1\n")
    lake.put("orders/b.jsonl", '{"id": 2}\n')
    with pytest.raises(SourceError, match="files of several formats"):
        lake.source("orders")
    assert lake.read("orders", format="csv") == [{"id": "1"}]
    assert any("1 files are not csv" in note for note in lake.source("orders", format="csv").notes())


def test_a_declared_type_that_is_none_is_told_when_the_project_is_loaded(lake: Lake) -> None:
    lake.put("t.csv", "id\n1\n")
    with pytest.raises((ConfigError, ValueError), match="is not a type"):
        lake.source("t", columns={"id": "integerr"})


def test_infer_takes_a_type_only_if_every_value_is_spelled_so(lake: Lake) -> None:
    columns = {
        "n": ("1", "-20", "bigint"),
        "zip": ("007", "8", "text"),
        "na": ("1", "NA", "text"),
        "big": ("12345678901234567890123", "1", "text"),
        "x": ("1.5", "-0.25", "double"),
        "price": ("1.10", "2.25", "text"),
        "day": ("2024-01-31", "1999-12-01", "date"),
        "no_day": ("2024-01-31", "2024-1-1", "text"),
        "at": ("2024-01-31 12:00:00", "2024-01-31 12:00:00.5", "timestamp"),
        "zoned": ("2024-01-31 12:00:00+00", "2024-01-31 12:00:00.5+00", "timestamptz"),
        "other_zone": ("2024-01-31 12:00:00+02", "2024-01-31 12:00:00+00", "text"),
        "yes": ("true", "false", "bool"),
        "short": ("t", "f", "text"),
        "id": ("ffffffff-ffff-ffff-ffff-ffffffffffff", "00000000-0000-0000-0000-000000000000", "uuid"),
        "upper": ("FFFFFFFF-ffff-ffff-ffff-ffffffffffff", "00000000-0000-0000-0000-000000000000", "text"),
        "hex": ("0x10", "1", "text"),
        "empty": ("", "", "text"),
    }
    for place, name in enumerate(("a", "b")):
        # Typed once, over all files: the second one decides as much as the first.
        lake.put(f"t/{name}.csv", ",".join(columns) + "\n" + ",".join(c[place] for c in columns.values()) + "\n")
    found = lake.source("t", infer=True).schema()
    from penstock.schema.words import spell

    assert {column.name: spell(column) for column in found} == {name: c[2] for name, c in columns.items()}
    declared = lake.source("t", infer=True, columns={"n": "text"}).schema()
    assert spell(declared["n"]) == "text"
    rows = lake.read("t", infer=True)
    assert (rows[0]["n"], rows[1]["n"], rows[0]["zip"]) == (1, -20, "007")
    # Declared, a value may be spelled in another way: these are how Postgres' COPY has them.
    assert [row["short"] for row in lake.read("t", columns={"short": "bool"})] == [True, False]


def test_infer_in_json_lines_takes_a_type_only_if_every_value_is_spelled_so(lake: Lake) -> None:
    """Strings and other tokens alike: what counts is what is in them."""
    columns = {
        "n": ("1", "-20", "bigint", [1, -20]),
        "least": ("9223372036854775807", "-9223372036854775808", "bigint", [2**63 - 1, -(2**63)]),
        "beyond": ("9223372036854775808", "1", "text", ["9223372036854775808", "1"]),
        "zip": ('"007"', '"8"', "text", ["007", "8"]),
        "na": ("1", '"NA"', "text", ["1", "NA"]),
        "big": ("12345678901234567890123", "1", "text", ["12345678901234567890123", "1"]),
        "fine": ("0.1234567890123456789012", "1.5", "text", ["0.1234567890123456789012", "1.5"]),
        "quoted": ('"1"', '"2"', "bigint", [1, 2]),
        "escaped": ('"\\u0031"', "2", "bigint", [1, 2]),
        "x": ("1.5", "-0.25", "double", [1.5, -0.25]),
        "zero": ("-0", "1", "double", [-0.0, 1.0]),
        "price": ("1.10", "2.25", "text", ["1.10", "2.25"]),
        "power": ("1e5", "2.0", "text", ["1e5", "2.0"]),
        "yes": ("true", "false", "bool", [True, False]),
        "day": ('"2024-01-31"', '"1999-12-01"', "date", [date(2024, 1, 31), date(1999, 12, 1)]),
        "at": ('"2024-01-31T12:00:00"', "null", "text", ["2024-01-31T12:00:00", None]),
        "null": ("null", "5", "bigint", [None, 5]),
        "none": ("null", "null", "text", [None, None]),
        "absent": ("1", None, "bigint", [1, None]),
        "empty": ('""', "5", "text", ["", "5"]),
        "empty_null": ('""', "null", "text", ["", None]),
        "null_text": ('"null"', "1", "text", ["null", "1"]),
        "list": ("[1, 2]", "[]", "text", ["[1, 2]", "[]"]),
    }
    for place, name in enumerate(("a", "b")):
        members = (f'"{column}": {case[place]}' for column, case in columns.items() if case[place] is not None)
        lake.put(f"t/{name}.jsonl", "{" + ", ".join(members) + "}\n")
    from penstock.schema.words import spell

    found = {column.name: spell(column) for column in lake.source("t", infer=True).schema()}
    assert found == {name: case[2] for name, case in columns.items()}
    rows = lake.read("t", infer=True)
    assert {name: [row[name] for row in rows] for name in columns} == {name: case[3] for name, case in columns.items()}
    assert str(rows[0]["zero"]) == "-0.0"
    # Without it, all stay the text that they are; declared, a type is taken as it is.
    assert {spell(column) for column in lake.source("t").schema()} == {"text"}
    declared = lake.source("t", infer=True, columns=dict.fromkeys(columns, "text")).schema()
    assert {spell(column) for column in declared} == {"text"}


@pytest.mark.parametrize("leads_to", ["elsewhere", "no_such_folder", "."])
def test_files_behind_a_linked_folder_are_nobodys_to_read_or_remove(lake: Lake, leads_to: str) -> None:
    lake.put("elsewhere/theirs.csv", "a\n1\n")
    lake.put("t/ours.csv", "a\n1\n")
    theirs = lake.root / "elsewhere" / "theirs.csv"
    (lake.root / "t" / "link").symlink_to("." if leads_to == "." else lake.root / leads_to)
    with pytest.raises(PlanRefused, match="is a link to"):
        lake.read("t")
    assert theirs.exists()


def test_hive_folders_are_text_columns_unless_declared(lake: Lake) -> None:
    for region, month in (("eu", "01"), ("us", "02"), ("__HIVE_DEFAULT_PARTITION__", "03"), ("a%2Fb", "04")):
        lake.parquet(f"t/region={region}/month={month}/x.parquet", pa.table({"id": [1]}))
    rows = lake.read("t")
    assert sorted((row["region"] or "", row["month"]) for row in rows) == [
        ("", "03"),
        ("a/b", "04"),
        ("eu", "01"),
        ("us", "02"),
    ]
    assert {row["month"] for row in lake.read("t", columns={"month": "int"})} == {1, 2, 3, 4}
    assert types(lake.source("t", infer=True))["month"] == "string"  # 01 is not how 1 is spelled
    with pytest.raises(DataError, match=r"the folder of .* holds a value of region that is no int32"):
        lake.read("t", columns={"region": "int"})


def test_packed_files_are_unpacked_by_their_name(lake: Lake) -> None:
    lake.put("t/a.csv.gz", gzip.compress(b"id\n1\n"))
    lake.put("t/b.csv", "id\n2\n")
    (lake.root / "t" / "c.csv.zst").write_bytes(pa.compress(b"id\n3\n", "zstd", asbytes=True))
    assert lake.read("t") == [{"id": "1"}, {"id": "2"}, {"id": "3"}]


def test_hostile_a_packed_file_that_is_cut_off(lake: Lake) -> None:
    packed = gzip.compress(b"id,v\n" + b"".join(b"%d,%d\n" % (n, n * 7919) for n in range(50_000)))
    lake.put("t.csv.gz", packed[:-2000])
    lake.put("u.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 50_000)[:-20])
    for table, columns in (("t", {"id": "text", "v": "text"}), ("u", {"a": "int"})):
        with pytest.raises(SourceError, match=r"cannot be (read|unpacked)"):
            lake.read(table, columns=columns)


def test_mixed_schemas_across_files_name_both(lake: Lake) -> None:
    lake.parquet("t/a.parquet", pa.table({"id": pa.array([1], pa.int32())}))
    lake.parquet("t/b.parquet", pa.table({"id": pa.array([2**40], pa.int64())}))
    assert lake.read("t") == [{"id": 1}, {"id": 2**40}]  # widened without loss
    lake.parquet("t/c.parquet", pa.table({"id": ["x"]}))
    with pytest.raises(SourceError, match=r"a\.parquet and .*c\.parquet have different types of column id"):
        lake.source("t")
    assert lake.read("t", columns={"id": "text"})[2] == {"id": "x"}
    lake.parquet("u/a.parquet", pa.table({"id": [1], "extra": [1]}))
    lake.parquet("u/b.parquet", pa.table({"id": [1]}))
    with pytest.raises(SourceError, match="have different columns: extra is missing"):
        lake.source("u")
    lake.put("v/a.csv", "id,name\n1,a\n")
    lake.put("v/b.csv", "name,id\nb,2\n")
    assert lake.read("v") == [{"id": "1", "name": "a"}, {"id": "2", "name": "b"}]  # by name, not by place
    lake.put("v/c.csv", "id,title\n1,a\n")
    with pytest.raises(SourceError, match="have different columns"):
        lake.source("v")


def test_a_declared_column_that_is_missing_is_told(lake: Lake) -> None:
    lake.put("t.csv", "id\n1\n")
    with pytest.raises(SourceError, match="price is missing in the file"):
        lake.source("t", columns={"id": "int", "price": "text"})


@pytest.mark.parametrize(
    ("name", "content"), [("t.csv", "id,n\n1,5\n2,x\n"), ("t.jsonl", '{"id":1,"n":5}\n{"id":2,"n":"x"}\n')]
)
def test_a_value_that_is_not_of_its_declared_type_is_told_with_its_key(lake: Lake, name: str, content: str) -> None:
    lake.put(name, content)
    with pytest.raises(DataError, match=r"column n of .*row 2 holds a value that is no int32") as caught:
        lake.read("t", columns={"id": "int", "n": "int"}, keys=("id",))
    assert caught.value.keys == ("id=2",)
    assert "'x'" not in str(caught.value.to_record())


def test_limit_reads_no_more(lake: Lake) -> None:
    lake.put("t.csv", "id\n" + "".join(f"{n}\n" for n in range(5000)))
    assert len(lake.read("t", limit=7)) == 7


def test_a_column_that_comes_twice_into_a_file_is_refused(lake: Lake) -> None:
    lake.put("t/p=1/p=2/a.csv", "id\n1\n")
    with pytest.raises(PlanRefused, match="has column p in two folders"):
        lake.source("t")
    lake.put("u/id=1/a.csv", "id\n1\n")
    with pytest.raises(PlanRefused, match="has column id in itself and in its folder"):
        lake.source("u")
