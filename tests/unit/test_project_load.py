"""What `penstock.toml` may say, and how every mistake in it is told: at once, with file and line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigError, ConfigErrors, PenstockError
from penstock.project import ColumnOption, Pipeline, Project, load
from penstock.project.findings import each
from penstock.schema import TableName

CONNECTIONS = """
[connections.shop]
type = "postgres"
dsn = "postgresql://shop"

[connections.warehouse]
type = "duckdb"
path = "warehouse.duckdb"
"""
PIPELINE = """
[pipelines.customers]
source = "shop"
table = "public.customers"
target = "warehouse.main.customers"
mode = "append"
"""
JOIN = 'transform = "select 1 as one"\n'
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a project's file; nothing of the developer's own configuration is seen."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)

    def written(text: str) -> Path:
        (tmp_path / "penstock.toml").write_text(text)
        return tmp_path

    return written


def _findings(text: str, write: Write) -> list[PenstockError]:
    with pytest.raises(ConfigError) as caught:
        load(write(text))
    return each(caught.value)


def _finding(extra: str, write: Write, base: str = PIPELINE) -> PenstockError:
    """The one finding of a pipeline with `extra` lines; keys given in `extra` replace those of `base`."""
    keys = [line.partition(" =")[0].strip() for line in extra.splitlines()]
    kept = [line for line in base.splitlines() if line.partition(" =")[0].strip() not in keys or not line]
    [found] = _findings(CONNECTIONS + "\n".join(kept) + "\n" + extra, write)
    return found


def _line(root: Path, text: str) -> str:
    lines = (root / "penstock.toml").read_text().splitlines()
    return f"penstock.toml:{next(n for n, line in enumerate(lines, 1) if text in line)}"


def test_a_whole_project(write: Write) -> None:
    root = write(
        CONNECTIONS
        + """
[pipelines.customers]
source = "shop"
query  = "select 1 as id"
target = 'warehouse."My Schema"."a.b"'
mode   = "scd1"
keys   = ["id"]
deletes = "soft"
order_by = "updated_at desc"
columns.price = "decimal(38,9)"
columns.x = { rename = "y", nan = "null" }
tags = ["nightly"]
schedule = "*/5 * * * *"

[spark]
parallel = 4
[spark.conf]
spark.sql.ansi.enabled = true
"spark.executor.cores" = 2

[state]
path = "elsewhere/state.db"
"""
    )
    project = load()
    pipeline = project.pipelines["customers"]
    assert project.root == root
    assert pipeline.mode == "merge"
    assert pipeline.keys == ("id",)
    assert pipeline.target_connection == "warehouse"
    assert pipeline.target_table(None) == TableName("My Schema", "a.b")
    assert str(pipeline.target) == 'warehouse."My Schema"."a.b"'
    assert pipeline.columns == {
        "price": ColumnOption(type="decimal(38,9)"),
        "x": ColumnOption(rename="y", nan="null"),
    }
    assert pipeline.place == _line(root, "[pipelines.customers]")
    assert project.spark.conf == {"spark.sql.ansi.enabled": "true", "spark.executor.cores": "2"}
    assert project.spark.master == "local[*]"
    assert project.state_location == root / "elsewhere" / "state.db"


def test_the_file_is_found_upward(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write(CONNECTIONS + PIPELINE)
    (root / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(root / "deep" / "er")
    assert load().root == root
    assert load(root / "penstock.toml").root == root
    assert load().state_location == root / ".penstock" / "state.db"


def test_no_project_says_how_to_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no project found") as caught:
        load()
    assert str(tmp_path) in caught.value.why
    assert "penstock init" in caught.value.remedy
    with pytest.raises(ConfigError, match="no project at"):
        load(tmp_path / "nowhere")


def test_an_unknown_key_gets_the_nearest_name_and_its_line(write: Write) -> None:
    found = _finding('mdoe = "merge"', write)
    assert found.what == "unknown key 'mdoe' in pipeline 'customers'"
    assert found.remedy == "did you mean 'mode'?"
    assert found.place == _line(Path(), "mdoe")


@pytest.mark.parametrize(
    ("text", "what", "remedy"),
    [
        ("[pipeline.x]\n", "unknown key 'pipeline'", "did you mean 'pipelines'?"),
        ("[spark]\nmemory = 1\n", "unknown key 'memory' in [spark]", "driver_memory"),
        ('[state]\nfile = "x"\n', "unknown key 'file' in [state]", "known: path, url"),
        ("[project]\nmodule = []\n", "unknown key 'module' in [project]", "did you mean 'modules'?"),
        ('[pipelines]\nx = "y"\n', "pipelines.x must be a table", "[pipelines.x]"),
        ("connections = 1\n", "connections must hold tables", "[connections.NAME]"),
        ('[connections.a]\npath = "x"\n', "connection 'a' has no type", "type is one of changelog, duckdb, "),
        ('[connections.a]\ntype = "postgress"\n', "has the unknown type 'postgress'", "did you mean 'postgres'?"),
        ('[spark]\nmaster = "local"\nremote = "sc://x"\n', "[spark] contradicts itself", ""),
        ('[spark]\ndriver_memory = "lots"\n', "driver_memory of [spark] is wrong", ""),
        ("[spark.conf]\nspark.speculation = true\n", "[spark.conf] cannot set spark.speculation", "remove"),
        ('[state]\nurl = "memory:"\npath = "x"\n', "[state] contradicts itself", ""),
    ],
)
def test_mistakes_outside_of_pipelines(write: Write, text: str, what: str, remedy: str) -> None:
    [found] = _findings(text, write)
    assert what in found.what
    assert remedy in found.remedy
    assert found.place.startswith("penstock.toml:")


@pytest.mark.parametrize("key", ["keys", "tables", "tags", "track", "partition_by", "transforms_pre"])
def test_text_in_the_place_of_a_list(write: Write, key: str) -> None:
    base = PIPELINE.replace('table = "public.customers"\n', "") if key == "tables" else PIPELINE
    found = _finding(f'{key} = "id"', write, base)
    assert found.what == f'{key} must be a list: {key} = ["id"]'
    assert found.place == _line(Path(), f'{key} = "id"')


@pytest.mark.parametrize(
    ("extra", "what", "at"),
    [
        ('query = "select 1"', "table and query exclude each other", "query ="),
        ('mode = "upsert"', "mode = 'upsert' is not known", "mode ="),
        ('mode = "merge"\ndeletes = "close"', "deletes = 'close' needs mode 'scd2', not 'merge'", "deletes ="),
        ('mode = "scd2"\ndeletes = "hard"', "deletes = 'hard' needs mode 'merge', not 'scd2'", "deletes ="),
        ('deletes = "soft"', "deletes = 'soft' needs mode 'merge', not 'append'", "deletes ="),
        ('delete_scope = "true"', "delete_scope has no meaning", "delete_scope ="),
        ('incremental = "updated_at"', "an incremental append needs an explicit lag", "incremental ="),
        ('mode = "merge"\ndeletes = "hard"\nincremental = "u"', "deletes = 'hard' needs a full extract", "deletes ="),
        ('mode = "truncate"\nincremental = "u"', "mode 'truncate' needs a full extract", "mode ="),
        ('lag = "5m"', "lag has no meaning without incremental", "lag ="),
        ('incremental = "u"\nlag = "soon"', "lag is wrong", "lag ="),
        ('incremental = "u"\nlag = 5\ncursor_timezone = "Mars"', "no time zone 'Mars'", "cursor_timezone ="),
        ('transform = "select 1"\npath = "fused"', "path = 'fused' has no transform", 'path = "fused"'),
        ('transform = "select 1"\npath = "native"', "path = 'native' has no transform", 'path = "native"'),
        ('track = ["a"]', "track needs mode 'scd2'", "track ="),
        ('mode = "scd2"\ntrack = ["a"]\nignore = ["b"]', "track and ignore exclude each other", "ignore ="),
        ('order_by = "a"', "order_by has no meaning in mode 'append'", "order_by ="),
        ('keys = ["a", "b", "a"]', "keys names 'a' twice", "keys ="),
        ('truncate_with = "truncate"', "truncate_with has no meaning in mode 'append'", "truncate_with ="),
        ('event_time = "at"', "event_time needs mode 'scd2', not 'append'", "event_time ="),
        ('mode = "scd2"\nkeys = ["at"]\nevent_time = "at"', "event_time = 'at' is one of the keys", "event_time ="),
        ('mode = "scd2"\nttl = { column = "at", keep = "9d" }', "ttl has no meaning in mode 'scd2'", "ttl ="),
        ('ttl = { column = "at", keep = "soon" }', "ttl.keep is wrong", "ttl ="),
        ('ttl = { column = "at", keep = "90" }', "ttl.keep is wrong", "ttl ="),
        ('ttl = { colum = "at", column = "at", keep = "9d" }', "unknown key 'colum' in ttl", "ttl ="),
        ('cursor_timezone = "UTC"', "cursor_timezone has no meaning without", "cursor_timezone ="),
        ('partition_by = ["week(at)"]', "partition_by is wrong", "partition_by ="),
        ('partition_by = ["day()"]', "partition_by is wrong", "partition_by ="),
        ('partition_by = [""]', "partition_by is wrong", "partition_by ="),
        ('partition_by = ["day(at)", "at"]', "partition_by names 'at' twice", "partition_by ="),
        ('inputs.c = "shop.public.c"', "inputs has no meaning without a transform", "inputs.c"),
        (JOIN + 'inputs.c = "shpo.public.c"', "names a connection that does not exist: 'shpo'", "inputs.c"),
        (JOIN + 'inputs.c = "shop"', "inputs.c is wrong", "inputs.c"),
        (JOIN + 'inputs.c = { source = "shop" }', "inputs.c is wrong", "inputs.c"),
        (JOIN + 'inputs.c = { source = "shop", table = "a.b.c" }', "'a.b.c' is not a table name", "inputs.c"),
        (JOIN + 'inputs.c = { source = "shop", tabel = "c" }', "unknown key 'tabel' in inputs.c", "inputs.c"),
        (JOIN + 'inputs.SOURCE = "shop.public.c"', "the view 'SOURCE' is there already", "inputs.SOURCE"),
        (JOIN + 'inputs."a-b" = "shop.public.c"', "'a-b' is no name for a view", 'inputs."a-b"'),
        ("max_delete_ratio = 1.5", "max_delete_ratio is wrong", "max_delete_ratio ="),
        ("parallel = 0", "parallel is wrong", "parallel ="),
        ('source = "shpo"', "names a connection that does not exist: 'shpo'", "source ="),
        ('target = "warehose.main.x"', "names a connection that does not exist: 'warehose'", "target ="),
        ('target = "warehouse"', "target is wrong", "target ="),
        ('target = "warehouse..x"', "target is wrong", "target ="),
        ("target = 'warehouse.\"x'", "target is wrong", "target ="),
        ('target = "warehouse.a.b.c"', "target is wrong", "target ="),
        (
            "target = { connection = 'warehouse', tabel = 't', table = 't' }",
            "unknown key 'tabel' in target",
            "target =",
        ),
        ('table = "a.b.c"', "'a.b.c' is not a table name", "table ="),
        ("columns.a = { typ = 'text' }", "unknown key 'typ' in columns.a", "columns.a"),
        ("columns.a = { rename = 'x' }\ncolumns.b = { rename = 'x' }", "'a' and 'b' are both renamed", "columns.a"),
        ("columns.a = { nan = 'zero' }", "columns.a.nan is wrong", "columns.a"),
        ("allow_empty = 'maybe'", "allow_empty is wrong", "allow_empty"),
        ("query = ''", "query is wrong", "query ="),
        ("name = 'x'", "unknown key 'name'", "name ="),
    ],
)
def test_what_a_pipeline_may_not_say(write: Write, extra: str, what: str, at: str) -> None:
    found = _finding(extra, write)
    assert what in found.what
    assert found.place == _line(Path(), at)


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ('target = "warehouse.t"\nmode = "append"', "nothing to read is named"),
        ('query = "select 1"\ntarget = "warehouse.t"\nmode = "merge"', "mode 'merge' of a query needs keys"),
        ('query = "select 1"\ntarget = "warehouse.t"\nmode = "scd2"', "mode 'scd2' of a query needs keys"),
        ('query = "select 1"\ntarget = "warehouse.{table}"\nmode = "append"', "which a query does not have"),
        ('tables = ["public.*"]\ntarget = "warehouse.t"\nmode = "append"', "many tables would be loaded into one"),
        ('tables = ["!public.*"]\ntarget = "warehouse.{table}"\nmode = "append"', "tables only leaves tables out"),
        ('table = "t"\ntarget = "warehouse.t"', "pipeline 'p' has no mode"),
        ('table = "t"\nmode = "append"', "pipeline 'p' has no target"),
    ],
)
def test_what_a_pipeline_must_say(write: Write, lines: str, what: str) -> None:
    [found] = _findings(f'{CONNECTIONS}\n[pipelines.p]\nsource = "shop"\n{lines}\n', write)
    assert what in found.what


@pytest.mark.parametrize(
    "lines",
    [
        'table = "t"\ntarget = "warehouse.t"\nmode = "merge"',  # the table's own primary key
        'tables = ["public.*", "!public.audit_*"]\ntarget = "warehouse.{schema}.{table}"\nmode = "merge"',
        'table = "t"\ntarget = "warehouse.t"\nmode = "merge"\nincremental = "u"\ndeletes = "hard"\ndelete_scope = "1"',
        'table = "t"\ntarget = "warehouse.t"\nmode = "append"\nincremental = "id"\nlag = 1000',
        'table = "t"\ntarget = "warehouse.t"\nmode = "append"\nincremental = "u"\nlag = "0"',
        'table = "t"\ntarget = "warehouse.t"\nmode = "merge"\nincremental = "u"',
        'table = "t"\ntarget = "warehouse.t"\nmode = "truncate"\ndelete_scope = "region = 1"',
        'table = "t"\ntarget = "warehouse.t"\nmode = "scd2"\ndeletes = "close"\ntrack = ["a"]',
        'table = "t"\ntarget = "warehouse.t"\nmode = "scd2"\nevent_time = "at"\ncursor_timezone = "UTC"',
        'table = "t"\ntarget = "warehouse.t"\nmode = "merge"\nttl = { column = "at", keep = "90d" }',
        'table = "t"\ntarget = "warehouse.t"\nmode = "append"\npartition_by = ["month(a t)", "région"]',
        'table = "t"\ntarget = "warehouse.t"\nmode = "append"\ntransform = "select 1"\npath = "spark"',
    ],
)
def test_what_a_pipeline_may_say(write: Write, lines: str) -> None:
    root = write(f'{CONNECTIONS}\n[pipelines.p]\nsource = "shop"\n{lines}\n')
    assert list(load(root).pipelines) == ["p"]


def test_all_findings_are_told_at_once(write: Write) -> None:
    findings = _findings(
        CONNECTIONS.replace('"duckdb"', '"duckbd"')
        + """
[pipelines.a]
source = "shpo"
table = "t"
target = "warehouse.t"
mode = "merge"
keys = "id"
deletes = "close"
paralel = 2
dsn = "${UNSET_ONE}"
[pipelines.b]
source = "shop"
table = "${UNSET_TWO}"
target = "warehouse.t"
mode = "apend"
path = "fused"
transform = "select 1"
""",
        write,
    )
    told = " | ".join(finding.what for finding in findings)
    for expected in (
        "unknown type 'duckbd'",
        "keys must be a list",
        "'shpo'",
        "deletes = 'close'",
        "unknown key 'paralel'",
        "UNSET_ONE",
        "UNSET_TWO",
        "mode = 'apend'",
        "path = 'fused'",
    ):
        assert expected in told
    assert all(isinstance(finding, ConfigError) for finding in findings)
    assert all(finding.place.startswith("penstock.toml:") for finding in findings)


def test_several_findings_come_as_one_error(write: Write) -> None:
    with pytest.raises(ConfigErrors) as caught:
        load(write("[pipelines.a]\n[pipelines.b]\n"))
    assert caught.value.exit_code == 2
    assert len(caught.value.findings) > 1


def test_an_unset_variable_names_itself_and_its_line(write: Write) -> None:
    found = _finding('query = "select ${NO_SUCH_THING}"', write, PIPELINE.replace("table", "#"))
    assert "NO_SUCH_THING" in found.what
    assert found.place == _line(Path(), "NO_SUCH_THING")


def test_user_sql_may_not_end_the_transaction(write: Write) -> None:
    findings = _findings(
        CONNECTIONS
        + PIPELINE
        + """transforms_pre = ["delete from t where x = 'commit; rollback'",
  "/* quiet */ COMMIT",
  "update t set x = 1; -- then\\n rollback"]
transforms_post = ["set transaction isolation level serializable", "do $$ begin null; end $$"]
""",
        write,
    )
    assert [finding.what for finding in findings] == [
        "transforms_pre[1] holds COMMIT",
        "transforms_pre[2] holds ROLLBACK",
        "transforms_post[0] holds SET TRANSACTION",
    ]
    assert findings[0].place == _line(Path(), "quiet")


# ---------------------------------------------------------------- targets


def _pipeline(**options: Any) -> Pipeline:
    defaults: dict[str, Any] = {"name": "p", "source": "shop", "mode": "append", "target": "warehouse.t"}
    return Pipeline.model_validate(defaults | options)


def test_the_target_of_each_table() -> None:
    pipeline = _pipeline(tables=["public.*"], target="warehouse.{schema}_copy.{table}_raw")
    assert pipeline.target_table('public."Odd Name"') == TableName("public_copy", "Odd Name_raw")
    assert pipeline.target_table(TableName("s", "{table}")) == TableName("s_copy", "{table}_raw")
    with pytest.raises(ConfigError, match="asks for a schema"):
        pipeline.target_table("orders")


def test_a_target_as_a_table() -> None:
    pipeline = _pipeline(target={"connection": "my.db", "schema": "a.b", "table": 'say "x"'})
    assert pipeline.target_table() == TableName("a.b", 'say "x"')
    assert str(pipeline.target) == '"my.db"."a.b"."say ""x"""'
    assert _pipeline(target=str(pipeline.target)).target == pipeline.target


def test_a_project_from_objects(tmp_path: Path) -> None:
    connections = {"shop": {"type": "duckdb", "path": "a.duckdb"}, "warehouse": {"type": "duckdb", "path": ":memory:"}}
    project = Project.from_objects(tmp_path, connections, [_pipeline(table="t")])
    assert project.pipeline("p").table == "t"
    with pytest.raises(ConfigError, match="no pipeline 'q'"):
        project.pipeline("q")
    with pytest.raises(ConfigError, match="nothing to read"):
        Project.from_objects(tmp_path, connections, [_pipeline()])
    with pytest.raises(ConfigError, match="'nowhere'"):
        Project.from_objects(tmp_path, connections, [_pipeline(table="t", target="nowhere.t")])
    raw = {"name": "p", "source": "shop", "table": "t", "target": "warehouse.t", "mode": "append"}
    assert Project.from_objects(tmp_path, connections, [raw]).pipeline("p").mode == "append"
    with pytest.raises(ConfigError, match="unknown key 'tabel'"):
        Project.from_objects(tmp_path, connections, [{**raw, "tabel": "t"}])


REPLICATION = """
[replications.{name}]
source = "shop"
target = "warehouse"
tables = ["public.*"]
"""


@pytest.mark.parametrize("path", ["/var/lib/changes", "./changes", ".penstock/buffer/one"])
def test_two_replications_with_one_buffer_are_refused(path: str, write: Write) -> None:
    one, two = REPLICATION.format(name="one"), REPLICATION.format(name="two")
    first = "" if path.endswith("one") else f'[replications.one.buffer]\npath = "{path}/"\n'
    second = f'[replications.two.buffer]\npath = "{path.removeprefix("./")}"\n'
    [found] = _findings(CONNECTIONS + one + first + two + second, write)
    assert "'one' and 'two' have the same buffer" in found.what
    assert "another path" in found.remedy
    assert found.place.startswith("penstock.toml:")
    load(write(CONNECTIONS + one + first + two))
