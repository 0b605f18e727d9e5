"""What a call from Python gives back: figures, path and plan of each table that was loaded.

They look well in a notebook. Nothing here holds a cell's value.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.run.records import Finding, PipelinePlan
from penstock.state import RunRecord


@dataclass(frozen=True, slots=True, repr=False)
class TableResult:
    """One table that was loaded."""

    run_id: str
    target: str
    mode: str
    path: str
    rows: int  # read
    inserted: int
    updated: int
    deleted: int
    seconds: float
    plan: PipelinePlan

    def __repr__(self) -> str:
        return f"<{self.target}: {figures(self)}, {self.path} path, {self.seconds:.1f} s>"

    def _repr_html_(self) -> str:
        from penstock.run.html import results_html

        return results_html([self])


@dataclass(frozen=True, slots=True, repr=False)
class RunResult:
    """A pipeline that has run. Its figures are those of all its tables together."""

    pipeline: str
    tables: tuple[TableResult, ...]

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables)

    @property
    def inserted(self) -> int:
        return sum(table.inserted for table in self.tables)

    @property
    def updated(self) -> int:
        return sum(table.updated for table in self.tables)

    @property
    def deleted(self) -> int:
        return sum(table.deleted for table in self.tables)

    @property
    def seconds(self) -> float:
        return sum(table.seconds for table in self.tables)

    @property
    def path(self) -> str:
        """native, fused or spark; of tables that went different ways, all of them."""
        return ", ".join(dict.fromkeys(table.path for table in self.tables))

    @property
    def plans(self) -> Plans:
        return Plans(table.plan for table in self.tables)

    @property
    def plan(self) -> PipelinePlan:
        """Of the first table, which most pipelines have no other than."""
        return self.tables[0].plan

    def __repr__(self) -> str:
        if len(self.tables) == 1:
            return f"<{self.pipeline} → {repr(self.tables[0])[1:]}"
        return f"<{self.pipeline} → {len(self.tables)} tables: {figures(self)}, {self.path} path, {self.seconds:.1f} s>"

    def _repr_html_(self) -> str:
        from penstock.run.html import results_html

        return results_html(self.tables)

    @staticmethod
    def of(pipeline: str, records: Sequence[RunRecord]) -> RunResult:
        return RunResult(pipeline, tuple(_table(record) for record in records))


class Plans(tuple[PipelinePlan, ...]):
    """The plan of each table of a pipeline."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n".join(repr(plan) for plan in self) or "<no plan>"

    def _repr_html_(self) -> str:
        from penstock.run.html import plan_html

        return "".join(plan_html(plan) for plan in self)


class Findings(tuple[Finding, ...]):
    """What `validate` found; nothing, if all is well."""

    __slots__ = ()

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(one for one in self if one.severity == "error")

    def __repr__(self) -> str:
        return "\n".join(_told(one) for one in self) or "<nothing found>"

    def _repr_html_(self) -> str:
        from penstock.run.html import findings_html

        return findings_html(self)


def figures(one: TableResult | RunResult) -> str:
    """The figures that are not zero, in words."""
    counted = {"inserted": one.inserted, "updated": one.updated, "deleted": one.deleted}
    told = [f"{count:,} {name}" for name, count in counted.items() if count]
    return f"{one.rows:,} rows" + (f" ({', '.join(told)})" if told else "")


def _told(one: Finding) -> str:
    where = ", ".join(part for part in (one.pipeline, one.place) if part)
    text = f"{one.severity}: {where + ': ' if where else ''}{one.what}"
    return text + (f" ({one.why})" if one.why else "") + (f"; {one.remedy}" if one.remedy else "")


def _table(record: RunRecord) -> TableResult:
    ended = record.finished_at or record.started_at
    return TableResult(
        record.run_id,
        record.target or "",
        record.mode or "",
        record.path or "",
        record.rows or 0,
        record.inserted or 0,
        record.updated or 0,
        record.deleted or 0,
        (ended - record.started_at).total_seconds(),
        PipelinePlan.from_record(json.loads(record.plan or "{}")),
    )
