"""Pipelines and connections in Python: the same rules, and a user's mistake told by file and line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.errors import ConfigError, PenstockError
from penstock.project import decorators, load
from penstock.project.findings import each

MODULE = """
import penstock as ps

@ps.connection
class shop(ps.DuckDB):
    path = "${SHOP_FILE:-shop.duckdb}"
    _private = 1

ps.connect("warehouse", type="duckdb", path="warehouse.duckdb", memory_limit="2GB")

@ps.pipeline(source=shop, target="warehouse.main.customers", mode="merge", keys=["id"], tags=("nightly",))
def customers():
    return "select id, '${NOT_A_REFERENCE}' as x from customers"

@customers.transform
def only_active(df):
    return df.where("x is not null")

@ps.pipeline(source="shop", target="warehouse.main.{table}", mode="append", tables=["main.*"], name="all tables")
def everything():
    pass
"""
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a project with a module; what it leaves in the interpreter is taken out again."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    path, modules = list(sys.path), set(sys.modules)
    before = list(decorators.registered.connections), list(decorators.registered.pipelines)

    def written(module: str, toml: str = '[project]\nmodules = ["pipelines"]\n') -> Path:
        (tmp_path / "penstock.toml").write_text(toml)
        (tmp_path / "pipelines.py").write_text(module)
        return tmp_path

    yield written
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.partition(".")[0] in ("pipelines", "shared"):
            del sys.modules[name]
    decorators.registered.connections[:], decorators.registered.pipelines[:] = before


def _findings(root: Path) -> list[PenstockError]:
    with pytest.raises(ConfigError) as caught:
        load(root)
    return each(caught.value)


@pytest.mark.parametrize("what", ["def shop(): pass", "class shop: path = 'shop.duckdb'"])
def test_a_connection_is_a_class_of_a_backend(write: Write, what: str) -> None:
    [finding] = _findings(write(f"import penstock as ps\n\n@ps.connection\n{what}\n"))
    assert "@ps.connection is for a class of options" in str(finding)
    assert "class shop(ps.Postgres)" in finding.remedy + finding.why


def test_decorated_objects_become_a_project(write: Write) -> None:
    root = write(MODULE)
    project = load(root)
    assert sorted(project.connections) == ["shop", "warehouse"]
    assert project.connection("shop").model_dump()["path"] == str(root / "shop.duckdb")
    assert project.connection("warehouse").model_dump()["memory_limit"] == "2GB"
    customers = project.pipelines["customers"]
    assert customers.query == "select id, '${NOT_A_REFERENCE}' as x from customers"
    assert (customers.source, customers.keys, customers.tags) == ("shop", ("id",), ("nightly",))
    assert customers.transform_function is not None
    assert customers.transform_function.__name__ == "only_active"
    assert customers.place == "pipelines.py:11"
    assert project.pipelines["all tables"].tables == ("main.*",)
    places = {entry.name: entry.places for entry in project.connections.entries()}
    assert places == {"shop": ("pipelines.py:4",), "warehouse": ("pipelines.py:9",)}


def test_loading_twice_gives_the_same(write: Write) -> None:
    root = write(MODULE)
    assert list(load(root).pipelines) == list(load(root).pipelines) == ["customers", "all tables"]


def test_two_projects_with_a_module_of_the_same_name(write: Write, tmp_path: Path) -> None:
    first = load(write(MODULE))
    other = tmp_path / "other"
    other.mkdir()
    (other / "penstock.toml").write_text('[project]\nmodules = ["pipelines"]\n')
    (other / "pipelines.py").write_text(
        MODULE.replace("def customers", "def clients").replace("@customers", "@clients")
    )
    assert list(load(other).pipelines) == ["clients", "all tables"]
    assert list(first.pipelines) == ["customers", "all tables"]


def test_arguments_win_over_the_environment(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_DUCKDB_WAREHOUSE_MEMORY_LIMIT", "9GB")
    monkeypatch.setenv("PENSTOCK_DUCKDB_WAREHOUSE_THREADS", "2")
    monkeypatch.setenv("PENSTOCK_DSN_WAREHOUSE", "duckdb:///elsewhere.duckdb")
    root = write(MODULE)
    options = load(root).connection("warehouse").model_dump()
    assert options["memory_limit"] == "2GB"
    assert options["threads"] == 2
    assert options["path"] == str(root / "warehouse.duckdb")


def test_the_same_name_in_toml_and_python_names_both_places(write: Write) -> None:
    toml = """[project]
modules = ["pipelines"]
[connections.shop]
type = "duckdb"
path = "x"
[pipelines.customers]
source = "shop"
table = "t"
target = "warehouse.t"
mode = "append"
"""
    found = {one.what: one for one in _findings(write(MODULE, toml))}
    connection = found["connection 'shop' is defined twice"]
    assert connection.why == "in penstock.toml:3 and in pipelines.py:4"
    pipeline = found["pipeline 'customers' is defined twice"]
    assert pipeline.why == "in penstock.toml:6 and in pipelines.py:11"


def test_one_name_twice_in_python(write: Write) -> None:
    again = MODULE + '\nps.connect("shop", type="duckdb", path="y")\n'
    [found] = _findings(write(again))
    assert found.what == "connection 'shop' is defined twice"


def test_the_rules_of_toml_hold_for_decorators(write: Write) -> None:
    module = MODULE.replace('keys=["id"]', 'keys="id", kyes=1')
    found = _findings(write(module))
    assert [one.what for one in found] == [
        "unknown key 'kyes' in pipeline 'customers'",
        'keys must be a list: keys = ["id"]',
    ]
    assert {one.place for one in found} == {"pipelines.py:11"}


@pytest.mark.parametrize(
    ("module", "why", "place"),
    [
        ("x = 1\ny = 1 / 0\n", "ZeroDivisionError: division by zero", "pipelines.py:2"),
        ("x = 1\ny = (1\n", "'(' was never closed", "pipelines.py:2"),
        ("import shared\n", "KeyError: 'nothing'", "shared.py:3"),
        ("import no_such_package\n", "ModuleNotFoundError: No module named 'no_such_package'", "pipelines.py:1"),
        ("raise SystemExit(3)\n", "SystemExit: 3", "pipelines.py:1"),
        ("import penstock as ps\n\nps.pipeline(source='x')\n", "missing 2 required keyword", "pipelines.py:3"),
    ],
)
def test_a_module_that_cannot_be_imported(write: Write, module: str, why: str, place: str) -> None:
    root = write(module)
    (root / "shared.py").write_text("def f():\n    d = {}\n    return d['nothing']\nf()\n")
    [found] = _findings(root)
    assert found.what == "module 'pipelines' cannot be imported"
    assert why in found.why
    assert found.place == place


def test_a_module_that_is_not_there(write: Write) -> None:
    [found] = _findings(write("", '[project]\nmodules = ["pipeline"]\n'))
    assert found.what == "there is no module 'pipeline'"
    assert found.place == "penstock.toml:2"


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("return 42", "must return its query as text"),
        ("pass", "must return its query as text"),
        ("raise ValueError('x')", "failed to give its query"),
    ],
)
def test_a_function_that_gives_no_query(write: Write, body: str, what: str) -> None:
    module = MODULE.replace("return \"select id, '${NOT_A_REFERENCE}' as x from customers\"", body)
    [found] = _findings(write(module))
    assert what in found.what
    assert found.place.startswith("pipelines.py:1")


def test_sql_and_a_function_exclude_each_other(write: Write) -> None:
    [found] = _findings(write(MODULE.replace("tags=", 'transform="select 1", tags=')))
    assert found.what == "transform is given as SQL and as a function"


def test_a_project_without_a_file(write: Write) -> None:
    root = write(MODULE)
    load(root)
    (root / "penstock.toml").unlink()
    assert list(load().pipelines) == ["customers", "all tables"]


def test_a_connections_options_are_not_shown() -> None:
    handle = decorators.ConnectionHandle("x", decorators.Origin("m", "f", 1), {"password": "hidden-word"})
    assert "hidden-word" not in repr(handle)


def test_a_decorated_function_is_still_one(write: Write) -> None:
    load(write(MODULE))
    module = sys.modules["pipelines"]
    assert "select id" in module.customers()
    assert repr(module.customers) == "<pipeline 'customers'>"


@pytest.mark.parametrize(
    ("module", "what", "remedy"),
    [
        (
            "import penstock as ps\n\n"
            '@ps.pipeline(source="a", target="b.c", mode="append")\nclass Customers:\n    pass\n',
            "@ps.pipeline is for a function",
            "def customers()",
        ),
        (
            'import penstock as ps\nshop = ps.connect("shop", type="duckdb", path="x")\n'
            '@ps.pipeline(source=shop, target=shop, mode="append")\ndef customers():\n    return "select 1"\n',
            "is a connection",
            'target="shop.schema.table"',
        ),
    ],
)
def test_decorator_in_the_wrong_place_says_what_belongs_there(
    write: Write, module: str, what: str, remedy: str
) -> None:
    [found] = _findings(write(module))
    assert what in found.what
    assert remedy in found.remedy
    assert found.place == "pipelines.py:3"


JOINED = """
import penstock as ps

shop = ps.connect("shop", type="duckdb", path="shop.duckdb")

@ps.pipeline(
    source=shop, target="shop.main.joined", mode="append",
    inputs={"customers": "shop.main.customers", "regions": {"source": shop, "query": "select 1 as id"},
        "rates": ps.query(shop, "select '${NOT_A_REFERENCE}' as id")},
)
def joined():
    return "select 1 as id"

@joined.transform
def join(df, custmers, *, regions=None, **more):
    return df
"""


def test_the_inputs_of_a_function_are_its_parameters(write: Write) -> None:
    root = write(JOINED)
    with pytest.raises(ConfigError, match="the transform function wants 'custmers', which is no input") as caught:
        load(root)
    assert caught.value.remedy == "did you mean 'customers'?"
    assert "pipelines.py" in caught.value.place


def test_inputs_name_connections_as_sources_do(write: Write) -> None:
    pipeline = load(write(JOINED.replace("custmers", "customers"))).pipeline("joined")
    assert pipeline.connections == ("shop",) * 5
    assert pipeline.inputs["rates"].query == "select '${NOT_A_REFERENCE}' as id"
    assert pipeline.inputs["customers"].table == "main.customers"
