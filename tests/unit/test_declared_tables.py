"""Tables as classes: what is wrong with one is told when the project is loaded, with its file and line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock as ps
from penstock.errors import ConfigError, PenstockError
from penstock.project import decorators, load
from penstock.project.findings import each
from penstock.schema import declare, words

HEAD = """import penstock as ps

ps.connect("shop", type="duckdb", path="shop.duckdb")
ps.connect("warehouse", type="duckdb", path="warehouse.duckdb")

"""
TABLE = """@ps.table(connection="warehouse", name="main.customers")
class Customers(ps.ManagedTable):
    id: ps.Key[ps.BigInt]
    name: ps.Text | None
    balance: ps.Decimal[38, 12]

"""
PIPELINE = """@ps.pipeline(source="shop", target=Customers, mode="merge")
def customers():
    return "select id, name, balance from customers"
"""
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a project with a module; what it leaves in the interpreter is taken out again."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    path, modules, noted = list(sys.path), set(sys.modules), decorators.registered
    before = [list(kept) for kept in (noted.connections, noted.pipelines, noted.tables)]

    def written(body: str, toml: str = "") -> Path:
        (tmp_path / "penstock.toml").write_text('[project]\nmodules = ["pipelines"]\n' + toml)
        (tmp_path / "pipelines.py").write_text(HEAD + body)
        return tmp_path

    yield written
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name == "pipelines":
            del sys.modules[name]
    noted.connections[:], noted.pipelines[:], noted.tables[:] = before


def findings(root: Path) -> list[PenstockError]:
    with pytest.raises(ConfigError) as caught:
        load(root)
    return each(caught.value)


def test_a_pipeline_takes_columns_types_and_keys_from_the_class(write: Write) -> None:
    project = load(write(TABLE + PIPELINE))
    pipeline = project.pipelines["customers"]
    assert str(pipeline.target) == "warehouse.main.customers"
    assert pipeline.keys == ("id",)
    assert pipeline.declared == project.tables["Customers"]
    assert [(c.name, c.word, c.nullable, c.key) for c in project.tables["Customers"].columns] == [
        ("id", "bigint", False, True),
        ("name", "text", True, False),
        ("balance", "decimal(38,12)", False, False),
    ]
    assert project.tables["Customers"].place == "pipelines.py:6"


def test_annotations_that_are_text_are_read_too(write: Write) -> None:
    root = write(TABLE + PIPELINE)
    (root / "pipelines.py").write_text("from __future__ import annotations\n" + (root / "pipelines.py").read_text())
    assert [c.word for c in load(root).tables["Customers"].columns] == ["bigint", "text", "decimal(38,12)"]


def test_a_pipeline_in_toml_has_the_class_of_its_target(write: Write) -> None:
    toml = '[pipelines.p]\nsource = "shop"\ntable = "t"\ntarget = "warehouse.main.customers"\nmode = "merge"\n'
    pipeline = load(write(TABLE, toml)).pipelines["p"]
    assert pipeline.declared is not None
    assert pipeline.keys == ("id",)


def test_columns_of_bases_come_first(write: Write) -> None:
    body = "class Dated(ps.ManagedTable):\n    made_at: ps.TimestampTz\n\n" + TABLE.replace(
        "class Customers(ps.ManagedTable)", "class Customers(Dated)"
    )
    assert load(write(body)).tables["Customers"].names == ("made_at", "id", "name", "balance")


WRONG = {
    "a plain type": ("name: ps.Text | None", "name: str", "is annotated with str", "ps.Text", 9),
    "an optional plain type": ("name: ps.Text | None", "name: int | None", "is annotated with int", "ps.BigInt", 9),
    "no digits": ("balance: ps.Decimal[38, 12]", "balance: ps.Decimal", "has a wrong type", "", 10),
    "too many digits": ("ps.Decimal[38, 12]", "ps.Decimal[39, 12]", "has a wrong type", "", 10),
    "more digits after the point": ("ps.Decimal[38, 12]", "ps.Decimal[3, 12]", "has a wrong type", "", 10),
    "an optional key": ("ps.Key[ps.BigInt]", "ps.Key[ps.BigInt] | None", "is a key that may be NULL", "| None", 8),
    "a key of an optional": ("ps.Key[ps.BigInt]", "ps.Key[ps.BigInt | None]", "is a key that may be NULL", "", 8),
    "a key without a type": ("ps.Key[ps.BigInt]", "ps.Key", "has no type", "", 8),
    "a key of json": ("ps.Key[ps.BigInt]", "ps.Key[ps.Json]", "cannot be a key: it is json", "another", 8),
    "two types": ("ps.Text | None", "ps.Text | ps.Int", "may be of several types", "", 9),
    "a default": ("name: ps.Text | None", "name: ps.Text | None = 'x'", "has a value", "leave", 9),
    "a list of numeric": ("ps.Text | None", "ps.List[ps.Numeric]", "has numeric inside another type", "ps.Text", 9),
    "an empty enum": ("ps.Text | None", "ps.Enum", "has a wrong type", "", 9),
    "a label twice": ("ps.Text | None", "ps.Enum['a', 'a']", "has a wrong type", "", 9),
    "a table": ("ps.Text | None", "ps.ManagedTable", "is annotated with ManagedTable", "", 9),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_column_is_one_error_with_its_line(write: Write, case: str) -> None:
    old, new, what, remedy, line = WRONG[case]
    assert old in TABLE
    [found] = findings(write(TABLE.replace(old, new) + PIPELINE))
    assert "of Customers" in found.what
    assert what in found.what
    assert remedy in found.remedy
    assert found.place == f"pipelines.py:{line}"


def test_all_that_is_wrong_is_told_at_once(write: Write) -> None:
    body = TABLE.replace("ps.Text | None", "str").replace("ps.Decimal[38, 12]", "float") + PIPELINE
    assert [one.place for one in findings(write(body))] == ["pipelines.py:9", "pipelines.py:10"]


def test_an_unknown_type_names_the_nearest(write: Write) -> None:
    [found] = findings(write(TABLE.replace("ps.BigInt", "ps.BigInteger") + PIPELINE))
    assert "did you mean 'BigInt'?" in found.why
    assert found.place == "pipelines.py:8"


def test_an_unknown_type_in_an_annotation_that_is_text(write: Write) -> None:
    root = write(TABLE.replace("ps.BigInt", "ps.BigInteger") + PIPELINE)
    (root / "pipelines.py").write_text("from __future__ import annotations\n" + (root / "pipelines.py").read_text())
    [found] = findings(root)
    assert found.what.startswith("column id of Customers has an annotation that cannot be read")
    assert found.remedy == "did you mean ps.BigInt?"
    assert found.place == "pipelines.py:9"


def test_a_field_of_a_struct_is_read_and_checked(write: Write) -> None:
    struct = "class Address(ps.Struct):\n    street: ps.Text\n    number: ps.Int | None\n\n"
    body = struct + TABLE.replace("ps.Text | None", "ps.List[Address]")
    assert load(write(body)).tables["Customers"].columns[1].word == "struct(street text, number int)[]"


def test_a_wrong_field_of_a_struct(write: Write) -> None:
    struct = "class Address(ps.Struct):\n    street: str\n\n"
    [found] = findings(write(struct + TABLE.replace("ps.Text | None", "ps.List[Address]")))
    assert "is annotated with str" in found.what


@pytest.mark.parametrize(
    ("old", "new", "what", "remedy", "line"),
    [
        ('mode="merge"', 'mode="merge", keys=["idd"]', "keys names 'idd', which is no column of Customers", "'id'", 12),
        ('mode="merge"', 'mode="scd2", track=["nome"]', "track names 'nome'", "did you mean 'name'?", 12),
        ('mode="merge"', 'mode="merge", columns={"id": "int"}', "columns.id gives a type", "in the class", 12),
        ('mode="merge"', 'mode="merge", columns={"x": {"rename": "y"}}', "no column of Customers", "known: ", 12),
        ('connection="warehouse"', 'connection="warehose"', "a connection that does not exist", "'warehouse'", 6),
        ('name="main.customers"', 'name="a.b.c.d"', "the name of Customers is wrong", "", 6),
        ("target=Customers", "target=int", "the target int is a class that declares no table", "", 12),
    ],
)
def test_what_a_class_and_its_pipeline_contradict(
    write: Write, old: str, new: str, what: str, remedy: str, line: int
) -> None:
    assert old in TABLE + PIPELINE
    [found] = findings(write((TABLE + PIPELINE).replace(old, new)))
    assert what in found.what
    assert remedy in found.remedy
    assert found.place == f"pipelines.py:{line}"


def test_a_class_that_was_never_decorated(write: Write) -> None:
    body = (TABLE + PIPELINE).replace('@ps.table(connection="warehouse", name="main.customers")\n', "\n")
    [found] = findings(write(body))
    assert found.what == "the target Customers has no name in a connection"
    assert found.place == "pipelines.py:12"


def test_one_table_declared_twice_names_both_places(write: Write) -> None:
    [found] = findings(write(TABLE + TABLE.replace("class Customers", "class Again")))
    assert found.what == "table warehouse.main.customers is declared twice"
    assert found.why == "by Customers in pipelines.py:6 and by Again in pipelines.py:12"


def test_a_class_without_keys_cannot_be_merged(write: Write) -> None:
    [found] = findings(write(TABLE.replace("ps.Key[ps.BigInt]", "ps.BigInt") + PIPELINE))
    assert found.what == "mode 'merge' of a query needs keys"


def test_the_decorator_over_something_else(write: Write) -> None:
    [found] = findings(write(TABLE.replace("(ps.ManagedTable)", "")))
    assert found.what == "@ps.table is for a class of columns"
    assert found.place == "pipelines.py:6"


def test_every_word_is_spelled_as_words_are() -> None:
    """The classes and `words.py` are one spelling."""
    spelled = [
        cls.word
        for name in declare.__all__
        if isinstance(cls := getattr(ps, name, None), type) and vars(cls).get("word")
    ]
    spelled += [ps.Decimal[38, 12].word, ps.Enum["a", "it's"].word]  # type: ignore[attr-defined]  # Literals to a checker
    for word in spelled:
        assert words.spell(words.parse(word).column("x")) == word
    assert set(words.PLAIN) <= set(spelled)


EXAMPLE = """
import penstock as ps


class Address(ps.Struct):
    street: ps.Text
    number: ps.Int | None


@ps.connection
class warehouse(ps.DuckDB):
    path = "warehouse.duckdb"


@ps.table(connection=warehouse, name="main.customers")
class Customers(ps.ManagedTable):
    id: ps.Key[ps.BigInt]
    name: ps.Text | None
    balance: ps.Decimal[38, 12]
    due: ps.Decimal[10, 2] | None
    state: ps.Enum["new", "paid"]
    tags: ps.List[ps.Text]
    limits: ps.Map[ps.Text, ps.Int]
    address: Address | None
    seen_at: ps.TimestampTz


@ps.pipeline(source="shop", target=Customers, mode="merge", schedule="*/5 * * * *")
def customers() -> str:
    return "select * from customers"
"""


def test_a_type_checker_takes_the_classes(tmp_path: Path) -> None:
    example = tmp_path / "example.py"
    example.write_text(EXAMPLE)
    repo = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", str(repo / "pyproject.toml"), str(example)],
        capture_output=True,
        text=True,
        cwd=repo,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_a_project_for_tests_has_all_of_the_real_one_but_its_connections(write: Write, tmp_path: Path) -> None:
    from penstock import testing

    function = "@ps.udf(returns='bigint')\ndef twice(values):\n    return values\n\n"
    real = load(write(TABLE + function + PIPELINE))
    connections = {name: {"type": "duckdb", "path": str(tmp_path / f"{name}.duckdb")} for name in ("shop", "warehouse")}
    made = testing.project(tmp_path / "test", connections, of=real)
    assert made.pipelines == real.pipelines
    assert (made.tables, made.functions) == (real.tables, real.functions)
    assert list(made.functions) == ["twice"]
    assert made.connection("shop").model_dump()["path"] == str(tmp_path / "shop.duckdb")
    with pytest.raises(ConfigError, match="a connection that does not exist: 'warehouse'"):
        testing.project(tmp_path / "test", {"shop": connections["shop"]}, of=real)
