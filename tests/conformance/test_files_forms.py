"""What a target of files cannot be, by its name and options: told before anything is touched."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.orc as po
import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.errors import UNTOUCHED, PenstockError, PlanRefused, Unsupported
from penstock.project import load
from penstock.run.pipeline import plan, run, validate
from penstock.state import open_store
from penstock.testing.stage import stage_here
from tests.conformance.files_harness import FilesHarness
from tests.conformance.harness import DuckDBHarness, Flow

PROJECT = """\
[connections.db]
type = "duckdb"
path = "d.duckdb"

[connections.lake]
type = "files"
path = "lake"

[connections.orc]
type = "files"
path = "orc"
format = "orc"
tables.other.format = "csv"

[connections.one]
type = "files"
path = "single.orc"
format = "orc"

[pipelines.p]
source = "db"
table = "main.items"
mode = "truncate"
"""
PLACE = "penstock.toml:20"
DIRECTORY, FOLDERS = "cannot be one file of ORC", "has no folders by value"
LEFT_OUT, WHOLE = "leave partition_by out", 'set format = "orc" of the connection'
CASES = [
    ("orc.items", ["id"], f"ORC {FOLDERS}", LEFT_OUT),
    ('orc."one.orc"', [], f"one.orc {DIRECTORY}", "name a directory, without the ending: orc.one"),
    ('orc.sales."one.orc"', ["id"], f"one.orc {DIRECTORY}", "name a directory, without the ending: orc.sales.one"),
    ("one.single", [], f"single.orc {DIRECTORY}", "let `path` of [connections.one] be a directory"),
    ('lake."one.orc"', [], f"one.orc {DIRECTORY}", 'lake.one, with format = "orc" of the connection'),
    ("orc.other", [], "ORC is written by Spark", WHOLE),
    ('lake."one.csv"', ["id"], f"one.csv is one file, which {FOLDERS}", f"{LEFT_OUT}, or name a directory"),
]


@pytest.mark.parametrize(("target", "by", "what", "remedy"), CASES)
def test_a_form_that_files_cannot_have_is_refused_at_planning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, by: list[str], what: str, remedy: str
) -> None:
    DuckDBHarness(tmp_path / "d.duckdb").execute("create table items as select 1 as id, 'a' as name")
    text = f"{PROJECT}target = '{target}'\npartition_by = {by}\n"
    (tmp_path / "penstock.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    there = sorted(tmp_path.iterdir())
    project = load(tmp_path)
    [finding] = validate(project, ["p"])
    assert finding.severity == "error"
    assert what in finding.what
    assert remedy in finding.remedy
    assert Path(finding.place).name == PLACE

    def refused(error: PenstockError) -> None:
        assert isinstance(error, Unsupported)
        told = (error.what, error.why, error.remedy, error.place)
        assert told == (finding.what, finding.why, finding.remedy, finding.place)
        assert error.kept == UNTOUCHED

    pipeline = project.pipelines["p"]
    with pytest.raises(Unsupported) as caught:
        plan(project, pipeline)
    refused(caught.value)
    with open_store("memory:") as store, pytest.raises(Unsupported) as caught:
        run(project, pipeline, store, stage=stage_here)
    refused(caught.value)
    with pytest.raises(Unsupported) as caught:
        project.check()
    refused(caught.value)
    assert CliRunner().invoke(app, ["run", "p"]).exit_code != 0
    assert sorted(path for path in tmp_path.iterdir() if path.name != ".penstock") == there


def test_orc_that_is_there_is_not_loaded_beside_it_in_another_form(tmp_path: Path) -> None:
    """Its format is known by its files alone, when the target is looked at."""
    source = DuckDBHarness(tmp_path / "s.duckdb")
    source.execute("create table items as select 1::bigint as id")
    lake = FilesHarness(tmp_path / "lake", tables={"main.items": {"columns": {"id": "bigint"}}})
    options = lake.options()
    del options["format"]
    lake.options = lambda: options  # type: ignore[method-assign]  # by what the files' names say
    there = tmp_path / "lake/main/items/a.orc"
    there.parent.mkdir(parents=True)
    po.write_table(pa.table({"id": [1]}), there)
    flow = Flow(source, lake, tmp_path)
    assert any('set format = "orc" of the connection' in one for one in flow.plan().refusals)
    with pytest.raises(PlanRefused, match="ORC is written by Spark") as caught:
        flow.run()
    assert caught.value.place == "test"
    assert [path for path in there.parent.rglob("*") if path.is_file()] == [there]
