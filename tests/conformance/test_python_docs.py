"""The Python that README and docs show does what they say: run, not only read."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from penstock.project import decorators, load

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# Rows need no JVM here; what is shown of results is kept for the end.
BEFORE = """
from penstock import testing
testing.without_spark().__enter__()
"""
AFTER = """
import duckdb
with duckdb.connect("warehouse.duckdb") as connection:
    for table in ("customers", "balances", "people"):
        print(connection.execute(f"select * from {table} order by 1").fetchall())
print(ps.create(Balances, dry_run=True), done.inserted)
"""


def blocks(page: str) -> list[tuple[str, str]]:
    return [(found[1], found[2]) for found in BLOCK.finditer((ROOT / page).read_text())]


def test_the_examples_of_working_from_python_run(tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as shop:
        shop.execute("create table customers (id bigint, name varchar, active boolean, balance decimal(10,2))")
        shop.execute("insert into customers values (1, 'Ada', true, 1.5), (2, null, false, 2.25)")
    python = [text for language, text in blocks("docs/how-to/python.md") if language == "python"]
    shown = [text for text in python if "pyspark" not in text]
    assert len(shown) == len(python) - 1
    (tmp_path / "script.py").write_text(BEFORE + "\n".join(shown) + AFTER)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=150
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "[(1, 'Ada')]",
        "[(1, 'Ada', Decimal('1.500000000000')), (2, None, Decimal('2.250000000000'))]",
        "[(1, 'Ada'), (2, 'Grace'), (3, 'Edsger')]",
        "() 1",
    ]


@pytest.mark.postgres
def test_the_example_of_a_test_passes_and_can_fail(tmp_path: Path) -> None:
    for _, text in blocks("docs/how-to/test-your-pipelines.md"):
        (tmp_path / text.splitlines()[0].removeprefix("# ")).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    pipelines = tmp_path / "pipelines.py"
    pipelines.write_text(pipelines.read_text().replace("trim(name)", "name"))
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=150)
    assert done.returncode == 1
    assert "missing: (1, 'Ada')" in done.stdout
    assert "extra:   (1, ' Ada ')" in done.stdout


def test_the_project_of_the_readme_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = [("\n".join(text for kind, text in blocks("README.md") if kind == wanted)) for wanted in ("toml", "python")]
    (tmp_path / "penstock.toml").write_text(shown[0])
    (tmp_path / "pipelines.py").write_text(shown[1])
    monkeypatch.setenv("SHOP_DSN", "postgresql://reader@localhost/shop")
    monkeypatch.chdir(tmp_path)
    noted = decorators.registered
    before = [list(kept) for kept in (noted.connections, noted.pipelines, noted.tables)]
    path = list(sys.path)
    try:
        project = load(tmp_path)
    finally:
        sys.path[:] = path
        sys.modules.pop("pipelines", None)
        noted.connections[:], noted.pipelines[:], noted.tables[:] = before
    assert sorted(project.pipelines) == ["customers", "orders"]
    assert project.pipelines["orders"].keys == ("id",)
    assert sorted(project.replications) == ["live"]
    project.check()
