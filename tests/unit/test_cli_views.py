"""How records look: narrow enough for 100 columns as text, stable field names as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from penstock.cli.context import Output
from penstock.cli.run import Outcome
from penstock.cli.views import findings, outcomes, plans
from penstock.observe import redact
from penstock.run.records import ColumnPlan, Finding, InputPlan, PipelinePlan

PLAN = PipelinePlan(
    pipeline="customers",
    table="shop.customers",
    target="warehouse.main.customers",
    mode="merge",
    path="fused",
    path_reason="two databases, no transform",
    partitions=4,
    partition_reason="ctid ranges",
    columns=(
        ColumnPlan("id", "customer_id", "bigint", "int64", "BIGINT", "exact", ""),
        ColumnPlan("[bold]x", "[bold]x", "numeric", "string (numeric)", "VARCHAR", "exact", "kept as text " * 12),
    ),
    ddl=('create table "main"."customers" (\n  "id" BIGINT\n)',),
    sql=("insert into x select " + ", ".join(f"column_{n}" for n in range(40)),),
    notes=("the target has a trigger",),
    refusals=(),
    changes=True,
    watermark_from=None,
    watermark_to="2024-02-01",
    inputs=(InputPlan("regions", "crm", "main.regions", 1, "one partition", 2, True, "it has about 85 bytes"),),
)
OUTCOME = Outcome(
    pipeline="customers",
    table=None,
    run_id="0190",
    state="done",
    mode="merge",
    path="fused",
    source="shop.shop.customers",
    target="warehouse.main.customers",
    rows=200_000,
    inserted=150_000,
    updated=50_000,
    deleted=7,
    bytes=12_000_000,
    partitions=4,
    seconds=2.0,
    rows_per_second=100_000.0,
    error=None,
)


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("COLUMNS", "100")
    redact.forget()
    yield
    redact.forget()


def test_plan_shows_every_decision_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    plans.show([PLAN], Output.TEXT)
    text = capsys.readouterr().out
    for wanted in (
        "customers  shop.customers → warehouse.main.customers",
        "path        fused  two databases, no transform",
        "partitions  4  ctid ranges",
        "input       regions = crm.main.regions  broadcast: it has about 85 bytes",
        "window      [the beginning, 2024-02-01)",
        "id → customer_id",
        "[bold]x",
        '  create table "main"."customers" (\n    "id" BIGINT\n  )',
        "the target has a trigger",
    ):
        assert wanted in text
    statements = text[text.index("load SQL") :]
    assert "column_39" in statements.splitlines()[1]  # a statement is never broken: it can be copied
    assert all(len(line) <= 100 for line in text[: text.index("load SQL")].splitlines())


def test_refused_plan_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    plans.show([replace(PLAN, refusals=("column x has no type",))], Output.TEXT)
    assert "refused: this pipeline cannot run as it is\n - column x has no type" in capsys.readouterr().out


def test_plan_as_json_has_the_records_fields(capsys: pytest.CaptureFixture[str]) -> None:
    plans.show([PLAN, PLAN], Output.JSON)
    [first, second] = json.loads(capsys.readouterr().out)
    assert first == second == json.loads(json.dumps(PLAN.to_record()))


def test_outcomes_fit_100_columns_and_name_the_table_of_many(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes.show([OUTCOME, replace(OUTCOME, table="shop.orders", state="failed")], Output.TEXT)
    text = capsys.readouterr().out
    assert all(len(line) <= 100 for line in text.splitlines())
    assert "customers shop.orders" in text
    assert "200,000" in text
    assert "100,000" in text


def test_outcomes_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes.show([OUTCOME], Output.JSON)
    [record] = json.loads(capsys.readouterr().out)
    assert list(record) == [
        "pipeline",
        "table",
        "run_id",
        "state",
        "mode",
        "path",
        "source",
        "target",
        "rows",
        "inserted",
        "updated",
        "deleted",
        "bytes",
        "partitions",
        "seconds",
        "rows_per_second",
        "error",
    ]


def test_findings_are_one_table_with_errors_first(capsys: pytest.CaptureFixture[str]) -> None:
    found = [
        Finding("orders", "warning", "column big", "kept as text"),
        Finding("customers", "error", "no key", remedy='keys = ["id"]'),
    ]
    findings.show(found, 3, Output.TEXT)
    text = capsys.readouterr().out
    assert text.index("customers") < text.index("orders")
    assert 'keys = ["id"]' in text
    assert "3 pipelines checked: 1 error, 1 warning" in text


def test_no_findings_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    findings.show([], 1, Output.TEXT)
    assert "1 pipeline checked: 0 errors, 0 warnings" in capsys.readouterr().out


def test_secret_in_a_cell_is_masked_before_the_cell_is_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    secret = "a secret phrase of many words that a narrow cell would break into pieces"
    redact.register(secret)
    findings.show([Finding("a", "error", f"refused: {secret}", remedy="r " * 30)], 1, Output.TEXT)
    plans.show([replace(PLAN, path_reason=secret, sql=(secret,), notes=(secret,))], Output.TEXT)
    plans.show([replace(PLAN, path_reason=secret, sql=(secret,), notes=(secret,))], Output.JSON)
    assert "phrase" not in capsys.readouterr().out
