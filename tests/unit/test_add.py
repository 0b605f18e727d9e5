"""`penstock add`: what it proposes for a table, and what it does to penstock.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path

import duckdb
import pytest

from penstock.errors import ConfigError
from penstock.project import load
from penstock.project.append import Block, append
from penstock.run.drafts import Draft, Wish, drafts
from penstock.run.pipeline import validate

PROJECT = """# Mine, with care.
[connections.shop]
type = "duckdb"
path = "shop.duckdb"          # beside it

[connections.warehouse]
type = "duckdb"
path = "warehouse.duckdb"
"""

TABLES = """
create table orders (id integer primary key, amount decimal(12, 2), updated_at timestamptz);
create table lines (order_id integer, line integer, changed timestamp, primary key (order_id, line));
create table notes (note varchar);
create view recent as select * from orders;
create schema "Old Stuff";
create table "Old Stuff"."we""ird ${HOME} 'né'" ("a.b" integer primary key);
create table "Old Stuff".notes (note varchar);
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "penstock.toml").write_text(PROJECT)
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as shop:
        shop.execute(TABLES)
    return tmp_path


def propose(folder: Path, *patterns: str, **rest: object) -> list[Draft]:
    return [draft for draft, _ in drafts(load(folder), Wish("shop", patterns, **rest))]  # type: ignore[arg-type]


def add(folder: Path, *patterns: str, **rest: object) -> None:
    made = drafts(load(folder), Wish("shop", patterns, **rest))  # type: ignore[arg-type]
    append(folder / "penstock.toml", [block for _, block in made])


def test_the_primary_key_becomes_the_keys_of_a_merge(folder: Path) -> None:
    [draft] = propose(folder, "main.lines")
    assert (draft.pipeline, draft.mode, draft.keys) == ("lines", "merge", ("order_id", "line"))
    assert (draft.table, draft.target) == ("main.lines", "warehouse.lines")


def test_a_table_without_a_key_is_loaded_anew(folder: Path) -> None:
    [draft] = propose(folder, "main.notes")
    assert (draft.mode, draft.keys) == ("truncate", ())
    assert "no primary key" in draft.toml


def test_a_cursor_is_a_comment_and_never_an_option(folder: Path) -> None:
    [zoned] = propose(folder, "main.orders")
    assert '# incremental = "updated_at"' in zoned.toml
    assert "cursor_timezone" not in zoned.toml
    [naive] = propose(folder, "main.lines")
    assert '# incremental = "changed"' in naive.toml
    assert "cursor_timezone" in naive.toml
    assert set(tomllib.loads(zoned.toml)["pipelines"]["orders"]) == {"source", "table", "target", "mode", "keys"}
    assert "incremental" not in propose(folder, "main.orders", mode="scd2")[0].toml


def test_what_is_added_loads_and_all_that_was_there_stays(folder: Path) -> None:
    add(folder, "main.orders")
    text = (folder / "penstock.toml").read_text()
    assert text.startswith(PROJECT + "\n[pipelines.orders]\n")
    pipeline = load(folder).pipelines["orders"]
    assert (pipeline.table, pipeline.mode, pipeline.keys) == ("main.orders", "merge", ("id",))


def test_odd_names_come_back_as_they_are(folder: Path) -> None:
    add(folder, '"Old Stuff".*')
    pipelines = load(folder).pipelines
    odd = "we\"ird ${HOME} 'né'"
    assert set(pipelines) == {odd, "notes"}
    assert pipelines[odd].keys == ("a.b",)
    assert pipelines[odd].target_table().table == odd
    [again] = propose(folder, str(pipelines[odd].table), name="again")
    assert again.table == pipelines[odd].table


def test_a_pattern_takes_tables_and_two_of_one_name_get_their_schemas(folder: Path) -> None:
    assert sorted(draft.pipeline for draft in propose(folder, "*", "!*.we*")) == [
        "Old Stuff_notes",
        "lines",
        "main_notes",
        "orders",
    ]


def test_tables_of_one_name_go_to_tables_of_their_own(folder: Path) -> None:
    """One of them would overwrite the rows of the other."""
    assert {draft.target for draft in propose(folder, "*.notes")} == {
        'warehouse."Old Stuff_notes"',
        "warehouse.main_notes",
    }
    with pytest.raises(ConfigError, match=r"would both be loaded into warehouse\.main\.notes") as caught:
        propose(folder, "*.notes", target="warehouse.main.{table}")
    assert "{schema}" in caught.value.remedy
    assert caught.value.kept == "nothing was touched"
    with duckdb.connect(str(folder / "shop.duckdb")) as shop:
        shop.execute('create schema more; create table more.notes (note varchar); create table "MAIN_notes" (n int)')
    with pytest.raises(ConfigError, match=r"would both be loaded into warehouse\."):
        propose(folder, "*.notes", "main.MAIN_notes")  # DuckDB does not tell them apart


@pytest.mark.parametrize("target", ["warehouse.notes", "warehouse.main.NOTES"])
def test_a_table_that_a_pipeline_loads_from_elsewhere_is_no_target(folder: Path, target: str) -> None:
    with (folder / "penstock.toml").open("a") as file:
        file.write('\n[pipelines.old]\nsource = "shop"\ntable = "\\"Old Stuff\\".notes"\n')
        file.write(f'target = "{target}"\nmode = "truncate"\n')
    with pytest.raises(ConfigError, match=r'shop\."Old Stuff"\.notes and shop\.main\.notes would both be') as caught:
        propose(folder, "main.notes")
    assert "pipeline 'old' loads" in caught.value.why
    assert propose(folder, "main.notes", target="warehouse.main.remarks")
    assert propose(folder, "main.notes", mode="append")  # every row stays
    assert propose(folder, '"Old Stuff".notes', name="again")  # the same rows


def test_pipelines_of_two_sources_into_one_table_are_told(folder: Path) -> None:
    with (folder / "penstock.toml").open("a") as file:
        for name, table, target in (("new", "main", "notes"), ("old", '\\"Old Stuff\\"', "main.notes")):
            file.write(f'\n[pipelines.{name}]\nsource = "shop"\ntable = "{table}.notes"\n')
            file.write(f'target = "warehouse.{target}"\nmode = "merge"\nkeys = ["note"]\n')
    [finding] = validate(load(folder))
    assert (finding.pipeline, finding.severity) == ("old", "warning")
    assert finding.what == "warehouse.main.notes is loaded by pipeline new too, from shop.main.notes"
    file = folder / "penstock.toml"
    file.write_text(file.read_text().replace('"merge"\nkeys = ["note"]', '"append"'))
    assert validate(load(folder)) == []  # every row stays


def test_a_name_that_reads_as_a_placeholder_is_refused(folder: Path) -> None:
    with duckdb.connect(str(folder / "shop.duckdb")) as shop:
        shop.execute('create table "{table}x" (n int)')
    with pytest.raises(ConfigError, match="cannot go to") as caught:
        propose(folder, 'main."{table}x"')
    assert caught.value.remedy == "--target warehouse.NAME, with another name"
    [draft] = propose(folder, 'main."{table}x"', target="warehouse.x")
    assert draft.target == "warehouse.x"


def test_a_pattern_takes_files_that_somebody_else_has_written(folder: Path) -> None:
    (folder / "drop").mkdir()
    (folder / "drop" / "cities.csv").write_text("name,people\nOslo,7\n")
    with (folder / "penstock.toml").open("a") as file:
        file.write('\n[connections.drop]\ntype = "files"\npath = "drop"\n')
    [(draft, _)] = drafts(load(folder), Wish("drop", ("*",), "warehouse.main.cities"))
    assert (draft.table, draft.mode) == ('"cities.csv"', "truncate")


def test_the_target_may_hold_the_tables_names(folder: Path) -> None:
    made = propose(folder, "*.notes", target="warehouse.{schema}.raw_{table}")
    assert {draft.target for draft in made} == {"warehouse.main.raw_notes", 'warehouse."Old Stuff".raw_notes'}
    [draft] = propose(folder, "main.notes", target="warehouse.main.remarks", mode="append", name="remarks")
    assert (draft.pipeline, draft.target, draft.mode) == ("remarks", "warehouse.main.remarks", "append")


def test_keys_may_be_said(folder: Path) -> None:
    [draft] = propose(folder, "main.notes", keys=("note",))
    assert (draft.mode, draft.keys) == ("merge", ("note",))


@pytest.mark.parametrize(
    ("patterns", "rest", "what", "remedy"),
    [
        (("main.ordres",), {}, "no table main.ordres", "main.orders"),
        (("nothing*",), {}, "fits nothing", "tables list"),
        (("main.notes",), {"mode": "merge"}, "no primary key", "--keys"),
        (("main.notes",), {"mode": "upsert"}, "does not take mode upsert", "--mode"),
        (("main.notes",), {"keys": ("nota",)}, "no column 'nota'", "note"),
        (("main.notes", "main.lines"), {"target": "warehouse.main.x"}, "several tables", "{table}"),
        (("main.notes", "main.lines"), {"name": "x"}, "--name is for one", "leave"),
        (("main.notes",), {"target": "warehose"}, "warehose", "warehouse"),
    ],
)
def test_what_cannot_be_is_told_with_a_way_out(
    folder: Path, patterns: tuple[str, ...], rest: dict[str, object], what: str, remedy: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        propose(folder, *patterns, **rest)
    assert what in str(caught.value)
    assert remedy in caught.value.remedy


def test_a_name_that_is_taken_is_refused_with_a_free_one(folder: Path) -> None:
    add(folder, "main.orders")
    before = (folder / "penstock.toml").read_text()
    with pytest.raises(ConfigError, match="'orders' already") as caught:
        add(folder, "main.orders")
    assert caught.value.remedy == "--name shop_orders"
    assert "penstock.toml:10" in caught.value.why
    add(folder, "main.orders", name="shop_orders")
    with pytest.raises(ConfigError, match="'orders' already") as caught:
        add(folder, "main.*")
    assert caught.value.remedy == "leave them out: '!main.orders'"
    add(folder, "main.*", "!main.orders")
    assert (folder / "penstock.toml").read_text().startswith(before)


def test_where_to_is_never_guessed(folder: Path) -> None:
    with (folder / "penstock.toml").open("a") as file:
        file.write('\n[connections.other]\ntype = "duckdb"\npath = "other.duckdb"\n')
    with pytest.raises(ConfigError, match="not clear where to load to") as caught:
        propose(folder, "main.orders")
    assert "other, warehouse" in caught.value.why or "warehouse, other" in caught.value.why


# ---------------------------------------------------------------- the file

BLOCK = Block("x", {"source": "shop", "table": "main.orders", "target": "warehouse.x", "mode": "truncate"}, {})


def test_a_file_that_would_not_load_is_left_as_it_is(folder: Path) -> None:
    file = folder / "penstock.toml"
    file.write_text("pipelines = {}\n" + PROJECT)
    before = file.read_bytes()
    with pytest.raises(ConfigError, match="would not load") as caught:
        append(file, [BLOCK])
    assert file.read_bytes() == before
    assert caught.value.kept == "nothing was touched"
    wrong = Block("x", {"source": "shop", "table": "t", "target": "nowhere.x", "mode": "truncate"}, {})
    file.write_text(PROJECT)
    with pytest.raises(ConfigError, match="nowhere"):
        append(file, [wrong])
    assert file.read_text() == PROJECT
    assert sorted(path.name for path in folder.iterdir()) == ["penstock.toml", "shop.duckdb"]


def test_a_dry_run_writes_nothing(folder: Path) -> None:
    assert "[pipelines.x]" in append(folder / "penstock.toml", [BLOCK], dry_run=True)
    assert (folder / "penstock.toml").read_text() == PROJECT


def test_line_ends_marks_and_permissions_stay(folder: Path) -> None:
    file = folder / "kept.toml"
    before = b"\xef\xbb\xbf" + PROJECT.rstrip("\n").replace("\n", "\r\n").encode()
    file.write_bytes(before)
    file.chmod(0o640)
    link = folder / "penstock.toml"
    link.unlink()
    link.symlink_to(file)
    append(link, [BLOCK])
    after = file.read_bytes()
    assert after.startswith(before + b"\r\n\r\n[pipelines.x]\r\n")
    assert b"\n" not in after.replace(b"\r\n", b"")
    assert file.stat().st_mode & 0o777 == 0o640
    assert link.is_symlink()
    assert set(load(folder).pipelines) == {"x"}


def test_a_change_by_somebody_else_is_not_overwritten(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "penstock.toml"
    theirs = PROJECT + "# theirs\n"

    def meanwhile(path: Path, text: str) -> None:
        path.write_text(theirs)

    monkeypatch.setattr("penstock.project.append.load_text", meanwhile)
    with pytest.raises(ConfigError, match="in the meantime"):
        append(file, [BLOCK])
    assert file.read_text() == theirs
