"""Every backend at both ends of a run on a cluster, and the project's functions: one table in a chain, home again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.engine import session
from penstock.project import Project, decorators
from penstock.project.model import Pipeline
from penstock.run import pipeline as runs
from penstock.state import RunRecord, open_store
from tests.cluster.flow import ITEMS, ROWS
from tests.cluster.servers import Cluster
from tests.conformance.harness import Harness

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.sampled]

FUNCTIONS = """
import penstock as ps
import pyarrow.compute as pc

import vicinity


@ps.udf(returns="text")
def loud(texts):
    return vicinity.upper(texts)


@ps.udf(per_row=True)
def letters(text: str) -> int:
    return len(text)


@ps.udaf(returns="bigint")
def spread(values):
    found = pc.min_max(values).as_py()
    return found["max"] - found["min"]
"""
# Not the name of another test's module: both are imported in one process, in any order.
VICINITY = "import pyarrow.compute as pc\n\ndef upper(texts):\n    return pc.utf8_upper(texts)\n"

FILES = ("parquet", "csv", "jsonl", "orc")
CHAIN = ("shop.public.items", "sqlite.items", *(f"{kind}.{kind}_items" for kind in FILES), "memory.items", "duck.items")


class Site:
    def __init__(self, project: Project, source: Harness) -> None:
        self.project, self.source = project, source

    def run(self, source: str, target: str, **options: Any) -> RunRecord:
        connection, table = source.split(".", 1)
        given = {"name": "hop", "source": connection, "table": table, "target": target, "mode": "append", "place": "t"}
        return runs.run(self.project, Pipeline.model_validate(given | options), open_store("memory:"))[-1]


@pytest.fixture(params=["master", "remote"])
def site(
    request: pytest.FixtureRequest, cluster: Cluster, harness: Callable[[str], Harness], tmp_path: Path
) -> Iterator[Site]:
    session.stop()  # of other tests in this process
    if request.param == "master":
        lines = [f'master = "{cluster.url}"', "[spark.conf]", *(f'"{k}" = "{v}"' for k, v in cluster.conf().items())]
    else:
        lines = [f'remote = "{cluster.remote}"']
    source = harness("postgres")
    source.execute(*ITEMS)
    text = ["[project]", 'modules = ["functions"]', "[spark]", "parallel = 2", *lines]
    text += ["[connections.shop]", 'type = "postgres"', f'dsn = "{source.options()["dsn"]}"']
    text += ["[connections.memory]", 'type = "memory"', f'store = "{request.node.name}"']
    for name, kind in (("sqlite", "sqlite"), ("duck", "duckdb")):
        text += [f"[connections.{name}]", f'type = "{kind}"', f'path = "items.{kind}"']
    for kind in FILES:
        text += [f"[connections.{kind}]", 'type = "files"', f'format = "{kind}"', 'path = "files"']
    (tmp_path / "files").mkdir()
    (tmp_path / "penstock.toml").write_text("\n".join(text))
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    (tmp_path / "vicinity.py").write_text(VICINITY)
    path, functions = list(sys.path), list(decorators.registered.functions)
    yield Site(ps.load_project(tmp_path), source)
    session.stop()
    sys.path[:] = path
    decorators.registered.functions[:] = functions
    for name in ("functions", "vicinity"):
        sys.modules.pop(name, None)


def test_a_table_goes_through_every_backend_and_is_the_same(site: Site) -> None:
    for source, target in pairwise(CHAIN):
        done = site.run(source, target)
        assert (done.state, done.rows) == ("done", ROWS), (source, target)
    site.run(CHAIN[-1], "shop.public.back")
    columns = "id, name, price, at, day, code, doc::jsonb as doc, raw, tags"
    for one, other in (("items", "back"), ("back", "items")):
        differing = f"select count(*) from (select {columns} from {one} except all select {columns} from {other}) d"
        assert site.source.query(differing) == [(0,)]
    assert site.source.query("select count(*) from back") == [(ROWS,)]


def test_functions_and_joined_connections(site: Site) -> None:
    site.run("shop.public.items", "sqlite.names")
    sql = "select s.id, loud(s.name) as loud, letters(s.name) as n from source s join names n on s.id = n.id"
    site.run("shop.public.items", "shop.public.loud", transform=sql, inputs={"names": "sqlite.names"})
    wrong = "select count(*) from items i left join loud l using (id)"
    wrong += " where l.loud is distinct from upper(i.name) or l.n is distinct from length(i.name)"
    assert site.source.query(wrong) == [(0,)]
    groups = "select id % 7 as part, spread(id) as spread from source group by id % 7"
    site.run("shop.public.items", "shop.public.groups", transform=groups)
    assert site.source.query("select part, spread from groups order by part") == site.source.query(
        "select id % 7, max(id) - min(id) from items group by 1 order by 1"
    )
