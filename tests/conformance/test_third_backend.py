"""A backend of another package: installed, it is there everywhere, and what it cannot do is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.backends import registry
from penstock.errors import DriverMissing, PlanRefused, Unsupported
from penstock.project.schema import json_schema
from penstock.run.pipeline import stage_with_spark
from tests.conformance.arrow_folder import ArrowFolder, Manifest
from tests.conformance.arrow_folder_harness import FolderHarness, folder, site
from tests.conformance.harness import Flow, Harness

__all__ = ["folder", "site"]

pytestmark = pytest.mark.postgres

REPO = Path(__file__).parents[2]


@pytest.fixture
def into(folder: FolderHarness, harness: Callable[[str], Harness], tmp_path: Path) -> Flow:
    """From Postgres into the folder."""
    source = harness("postgres")
    source.execute(
        "create table items (id int primary key, name text, price numeric(38,12), seen timestamptz, tags text[])",
        "insert into items select n, 'n' || n, n / 7.0, timestamptz '2024-03-31 02:30+01', array['a', null]"
        " from generate_series(1, 1000) n",
    )
    return Flow(source, folder, tmp_path)


@pytest.mark.spark
def test_it_is_target_and_source_like_any_other(
    into: Flow, folder: FolderHarness, harness: Callable[[str], Harness], tmp_path: Path
) -> None:
    into.stage = stage_with_spark
    assert (into.run().inserted, into.run(mode="truncate").rows) == (1000, 1000)
    manifest = Manifest.read(folder.folder, "items")
    assert manifest is not None
    assert manifest.columns["price"] == "decimal(38,12)"
    out = Flow(folder, harness("duckdb"), tmp_path, stage_with_spark)
    record = out.run(mode="merge", keys=["id"], transform="select * from source where id > 10")
    assert (record.path, record.inserted) == ("spark", 990)
    columns = "id, name, cast(price as varchar), cast(seen at time zone 'UTC' as varchar), tags[1]"
    assert out.target.query(f"select {columns} from items order by 1") == into.source.query(
        f"select {columns} from items where id > 10 order by 1"
    )


DENIED: dict[str, tuple[dict[str, Any], str]] = {
    "mode": ({"mode": "merge"}, "Arrow files does not take mode merge"),
    "history": ({"mode": "scd2"}, "Arrow files does not take mode scd2"),
    "ttl": ({"ttl": {"column": "seen", "keep": "9d"}}, "Arrow files does not take ttl"),
    "partitions": ({"partition_by": ["day(seen)"]}, "Arrow files has no partitions"),
    "SQL": ({"transforms_post": ["delete from items"]}, "Arrow files runs no SQL of its own"),
}


@pytest.mark.parametrize("case", DENIED)
def test_what_a_target_cannot_do_is_refused(into: Flow, folder: FolderHarness, case: str) -> None:
    options, said = DENIED[case]
    with pytest.raises(Unsupported, match=said) as caught:
        into.run(**options)
    assert caught.value.kept == "nothing was touched"
    assert not list(folder.folder.glob("*"))


def test_names_are_held_against_its_limits(into: Flow) -> None:
    with pytest.raises(PlanRefused, match=r"the name 'n{21}' has 21 bytes, Arrow files takes 20"):
        into.run(columns={"name": {"rename": "n" * 21}})
    with pytest.raises(PlanRefused, match="the columns 'id' and 'ID' have the same name in Arrow files"):
        into.run(columns={"name": {"rename": "ID"}})


def test_what_a_source_cannot_do_is_refused(into: Flow, folder: FolderHarness, tmp_path: Path) -> None:
    into.run()
    copy = Flow(folder, folder, tmp_path)
    with pytest.raises(Unsupported, match="arrowfolder cannot be read incrementally"):
        copy.run(incremental="id", lag="0", target="to.copies")
    with pytest.raises(PlanRefused, match='path = "native" is refused: Arrow files runs no INSERT … SELECT'):
        copy.run(path="native", target="to.copies")
    assert copy.run(target="to.copies").rows == 1000


@pytest.mark.parametrize(("ability", "said"), [("reads", "cannot be a source"), ("writes", "cannot be a target")])
def test_a_backend_of_one_end_is_refused_at_the_other(
    into: Flow, folder: FolderHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ability: str, said: str
) -> None:
    into.run()
    monkeypatch.setattr(ArrowFolder, "capabilities", replace(ArrowFolder.capabilities, **{ability: False}))
    with pytest.raises(Unsupported, match=f"arrowfolder {said}"):
        Flow(folder, folder, tmp_path).run(target="to.copies")


def test_it_has_a_class_a_scheme_and_a_place_in_the_schema(site: Path) -> None:
    assert ps.ArrowFolder.type == "arrowfolder"  # type: ignore[attr-defined]  # made of what is installed
    assert registry.of_scheme("arrow") == "arrowfolder"
    types = [
        one["properties"]["type"] for one in json_schema()["properties"]["connections"]["additionalProperties"]["oneOf"]
    ]
    assert {"const": "arrowfolder"} in types
    with pytest.raises(DriverMissing) as caught:
        registry.backend("driverless")
    assert caught.value.remedy == "pip install 'penstock-arrow-folder'"
    vars(ps).pop("ArrowFolder")


def test_the_command_finds_it(into: Flow, site: Path, tmp_path: Path) -> None:
    into.run()
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(site), str(REPO)]),
        "PENSTOCK_DSN_LAKE": f"arrow://{tmp_path / 'lake'}",
    }
    (tmp_path / "penstock.toml").touch()
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", "tables", "list", "lake", "--output", "json"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert [record["table"] for record in json.loads(done.stdout)] == ["items"], done.stderr
