"""The public surface is pinned, and importing it is cheap."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock

SURFACE = [
    "BigInt",
    "Binary",
    "Bool",
    "Busy",
    "Cancelled",
    "ConfigError",
    "ConfigErrors",
    "ConnectionFailed",
    "DataError",
    "Date",
    "Decimal",
    "Double",
    "DriverMissing",
    "DuckDB",
    "Enum",
    "Files",
    "Float",
    "Int",
    "Interval",
    "Json",
    "Key",
    "LinkLost",
    "List",
    "ManagedTable",
    "Map",
    "Memory",
    "Numeric",
    "PenstockError",
    "PlanRefused",
    "Postgres",
    "Project",
    "RunResult",
    "SQLite",
    "SmallInt",
    "SourceError",
    "SparkError",
    "StateError",
    "Struct",
    "TargetError",
    "Text",
    "Time",
    "TimeNs",
    "Timestamp",
    "TimestampMs",
    "TimestampNs",
    "TimestampS",
    "TimestampTz",
    "TimestampTzMs",
    "TimestampTzNs",
    "TimestampTzS",
    "TinyInt",
    "TransformError",
    "UBigInt",
    "UInt",
    "USmallInt",
    "UTinyInt",
    "Unsupported",
    "Uuid",
    "__version__",
    "connect",
    "connection",
    "create",
    "load_project",
    "memory",
    "pipeline",
    "plan",
    "query",
    "replication",
    "run",
    "source",
    "sync",
    "table",
    "udaf",
    "udf",
    "use_spark",
    "validate",
    "write",
]
HEAVY = ["pyspark", "pyarrow", "duckdb", "psycopg", "adbc_driver_postgresql", "pydantic", "sqlalchemy", "sqlglot"]


SIGNATURES = {
    "connect": "(name, *, type, **options)",
    "connection": "(cls=None, /, *, name=None)",
    "create": "(table, *, dry_run=False, project=None)",
    "load_project": "(path=None)",
    "pipeline": "(*, source, target, mode, name=None, **options)",
    "plan": "(pipeline, target=None, *, mode=None, name=None, full_refresh=False, limit=None, project=None, **options)",
    "query": "(connection, sql)",
    "replication": "(name, *, source=None, target=None, tables=(), project=None, **options)",
    "source": "(connection, *, table)",
    "sync": "(source, target, *, mode, name=None, project=None, progress=None, **options)",
    "table": "(*, connection, name)",
    "udaf": "(function=None, /, *, returns=None, name=None)",
    "udf": "(function=None, /, *, returns=None, name=None, per_row=False)",
    "use_spark": "(spark)",
    "validate": "(*names, project=None)",
    "write": "(data, target, *, mode, keys=(), name=None, project=None, progress=None, **options)",
}


def _fresh(code: str) -> dict[str, object]:
    """What a fresh interpreter prints as JSON."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_the_surface_is_pinned() -> None:
    assert penstock.__all__ == SURFACE
    assert dir(penstock) == sorted(SURFACE)


@pytest.mark.parametrize("name", SURFACE)
def test_every_name_resolves(name: str) -> None:
    assert getattr(penstock, name) is not None


def test_every_name_is_in_the_reference() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "python.md").read_text()
    assert [name for name in SURFACE if not re.search(rf"ps\.{name}\b", page)] == []


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_pinned(name: str) -> None:
    assert _bare(getattr(penstock, name)) == SIGNATURES[name]


def test_run_is_the_package_and_can_be_called() -> None:
    """`import penstock.run.pipeline` must not hide the function, nor the function the package."""
    import penstock.run.pipeline as inside
    from penstock.run import calls

    assert callable(penstock.run)
    assert inside.__name__ == "penstock.run.pipeline"
    assert _bare(calls.run) == "(pipeline, *, full_refresh=False, limit=None, project=None, progress=None)"


def test_a_replication_has_these_methods() -> None:
    from penstock.run.replicating import ReplicationHandle

    methods = {name: found for name, found in vars(ReplicationHandle).items() if not name.startswith("_")}
    assert {name: _bare(found) for name, found in methods.items()} == {
        "start": "(self, *, until_caught_up=False)",
        "status": "(self)",
        "stop": "(self)",
        "wait": "(self, timeout=None)",
    }


def _bare(function: Callable[..., object]) -> str:
    """A signature without its annotations."""
    found = inspect.signature(function)
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in found.parameters.values()]
    return str(found.replace(parameters=plain, return_annotation=inspect.Signature.empty))


def test_the_surface_for_tests_is_pinned() -> None:
    from penstock import testing

    assert testing.__all__ == ["EmbeddedPostgres", "assert_rows", "project", "rows", "run", "without_spark"]
    assert all(getattr(testing, name) is not None for name in testing.__all__)
    assert _bare(testing.assert_rows) == "(connection, table, expected, *, ordered=False)"
    assert _bare(testing.project) == "(folder, connections, pipelines=(), *, of=None)"
    assert _bare(testing.run) == "(project, pipeline, *, full_refresh=False)"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = penstock.nonsense


def test_the_package_of_modes_does_not_shadow_the_surface() -> None:
    answer = _fresh(
        "import penstock.load, penstock, json; print(json.dumps({'callable': callable(penstock.load_project)}))"
    )
    assert answer == {"callable": True}


def test_the_import_loads_nothing_heavy() -> None:
    code = f"import sys, json, penstock; print(json.dumps({{'heavy': [m for m in {HEAVY!r} if m in sys.modules]}}))"
    assert _fresh(code) == {"heavy": []}


def test_declaring_columns_loads_nothing_heavy() -> None:
    code = (
        "import sys, json, penstock as ps;"
        "[ps.Key[ps.BigInt], ps.Text | None, ps.Decimal[38, 12], ps.Enum['a'], ps.List[ps.Int], ps.Struct];"
        f"print(json.dumps({{'heavy': [m for m in {HEAVY!r} if m in sys.modules]}}))"
    )
    assert _fresh(code) == {"heavy": []}


def test_loading_a_project_brings_no_driver_and_no_spark(tmp_path: Path) -> None:
    root = tmp_path
    (root / "penstock.toml").write_text(
        '[connections.a]\ntype = "postgres"\ndsn = "${NOT_SET}"\n[connections.b]\ntype = "duckdb"\npath = "b.duckdb"\n'
        '[pipelines.p]\nsource = "a"\ntable = "t"\ntarget = "b.t"\nmode = "append"\n'
    )
    code = (
        "import sys, json, penstock;"
        f"p = penstock.load_project({str(root)!r}); names = [e.name for e in p.connections.entries()];"
        f"heavy = [m for m in {HEAVY!r} if m in sys.modules and m != 'pydantic'];"
        "print(json.dumps({'names': names, 'heavy': heavy}))"
    )
    assert _fresh(code) == {"names": ["a", "b"], "heavy": []}


def test_importing_state_brings_no_sqlalchemy() -> None:
    code = "import sys, json, penstock.state; print(json.dumps({'heavy': 'sqlalchemy' in sys.modules}))"
    assert _fresh(code) == {"heavy": False}
