"""Results and plans as people see them: a line in a terminal, a small table in a notebook."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser

import pytest

from penstock.errors import ConfigError, ConfigErrors, DataError
from penstock.observe import redact
from penstock.run.records import ColumnPlan, Finding, PipelinePlan
from penstock.run.results import Findings, Plans, RunResult
from penstock.state import RunRecord
from penstock.told import render

PLAN = PipelinePlan(
    "customers",
    "public.customers",
    "warehouse.main.customers",
    "merge",
    "fused",
    "different systems",
    4,
    "4 ranges",
    (ColumnPlan("id", "id", "bigint", "int64", "BIGINT", "exact", ""),),
    ('create table "x<y" (id bigint)',),
    ("insert into x select 1",),
    ("a <script>note</script>",),
    (),
    changes=True,
)


def record(**figures: int) -> RunRecord:
    made = RunRecord("0" * 32, "customers", mode="merge", path="fused", target="warehouse.main.customers")
    done = replace(made, plan=json.dumps(PLAN.to_record()), rows=1200, **figures)  # type: ignore[arg-type]  # figures
    return replace(done, state="done", finished_at=done.started_at + timedelta(seconds=2.5))


class Reader(HTMLParser):
    """The texts of a page, and whether every tag is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    assert reader.open == []
    assert not reader.tags & {"script", "style", "iframe", "img"}
    return reader


def test_a_result_is_one_line() -> None:
    one = RunResult.of("customers", [record(inserted=1000, updated=200)])
    assert repr(one) == (
        "<customers → warehouse.main.customers: 1,200 rows (1,000 inserted, 200 updated), fused path, 2.5 s>"
    )
    two = RunResult.of("customers", [record(inserted=1000), record()])
    assert repr(two) == "<customers → 2 tables: 2,400 rows (1,000 inserted), fused path, 5.0 s>"
    assert (two.rows, two.inserted, two.updated, two.deleted, two.seconds) == (2400, 1000, 0, 0, 5.0)
    assert (one.plan, one.plans) == (PLAN, (PLAN,))


def test_a_plan_is_one_line() -> None:
    assert repr(PLAN) == ("<plan customers: public.customers → warehouse.main.customers, merge, fused path, 1 columns>")
    assert repr(Plans([PLAN, replace(PLAN, refusals=("no",))])).endswith("1 columns, 1 refusals>")
    assert PipelinePlan.from_record(json.loads(json.dumps(PLAN.to_record()))) == PLAN


def test_a_notebook_shows_a_table_with_everything_escaped() -> None:
    page = read(RunResult.of("customers", [record(inserted=1000)])._repr_html_())
    assert {"table", "details", "summary"} <= page.tags
    assert "1,000" in page.texts
    assert "a <script>note</script>" in page.texts  # as text, and not as a tag
    assert any('create table "x<y"' in text for text in page.texts)
    refused = read(replace(PLAN, refusals=("column <b>x</b> is gone",))._repr_html_())
    assert "column <b>x</b> is gone" in refused.texts


def test_a_notebook_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    redact.register_all(["hunter2-hunter2"])
    shown = replace(PLAN, notes=("password is hunter2-hunter2",))._repr_html_()
    assert "hunter2" not in shown


def test_findings_are_told_or_nothing_is() -> None:
    assert repr(Findings()) == "<nothing found>"
    assert read(Findings()._repr_html_()).texts == ["nothing found"]
    found = Findings([Finding("p", "error", "bad <x>", "because", "do this", "penstock.toml:3")])
    assert repr(found) == "error: p, penstock.toml:3: bad <x> (because); do this"
    assert "bad <x>" in read(found._repr_html_()).texts
    assert found.errors == tuple(found)


def test_an_error_in_a_notebook_is_the_text_of_the_command_line() -> None:
    error = DataError("duplicate keys", why="two rows", keys=("id=7",), place="pipelines.py:4")
    error.pipeline = "customers"
    assert "\n".join(error._render_traceback_()) == render(error, pipeline="customers")
    several = ConfigErrors([ConfigError("one", place="a:1"), ConfigError("two", place="a:2")])
    assert several._render_traceback_() == [
        "error:   a:1: one",
        "error:   a:2: two",
        "2 problems in the project; nothing was run",
    ]
