"""What `penstock plan`, `validate` and the progress of a run hand to whoever shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Phase = Literal["plan", "copy", "commit", "done"]


@dataclass(frozen=True, slots=True)
class RunOptions:
    full_refresh: bool = False  # read everything again, whatever the watermark says
    limit: int | None = None  # at most so many source rows


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """One column from source to target."""

    source: str
    target: str
    source_type: str
    canonical: str
    target_type: str
    verdict: str
    note: str


@dataclass(frozen=True, slots=True)
class InputPlan:
    """What a transform reads besides its source."""

    name: str  # of the view
    connection: str
    table: str  # or "query"
    partitions: int
    partition_reason: str
    columns: int  # that are read
    broadcast: bool  # sent whole to every task that joins it
    broadcast_reason: str


@dataclass(frozen=True, slots=True, repr=False)
class PipelinePlan:
    """All that is known before a row moves."""

    pipeline: str
    table: str  # the source's table, or "query"
    target: str
    mode: str
    path: str
    path_reason: str
    partitions: int
    partition_reason: str
    columns: tuple[ColumnPlan, ...]
    ddl: tuple[str, ...]
    sql: tuple[str, ...]
    notes: tuple[str, ...]
    refusals: tuple[str, ...]
    changes: bool  # DDL or types would change
    watermark_from: str | None = None
    watermark_to: str | None = None
    inputs: tuple[InputPlan, ...] = ()

    def to_record(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_record(record: Mapping[str, Any]) -> PipelinePlan:
        """The plan that `to_record` described."""
        fields: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in record.items()}
        fields["columns"] = tuple(ColumnPlan(**column) for column in record["columns"])
        fields["inputs"] = tuple(InputPlan(**one) for one in record.get("inputs", ()))
        return PipelinePlan(**fields)

    def __repr__(self) -> str:
        refused = f", {len(self.refusals)} refusals" if self.refusals else ""
        return (
            f"<plan {self.pipeline}: {self.table} → {self.target}, {self.mode}, {self.path} path,"
            f" {len(self.columns)} columns{refused}>"
        )

    def _repr_html_(self) -> str:
        from penstock.run.html import plan_html

        return plan_html(self)


@dataclass(frozen=True, slots=True)
class Finding:
    pipeline: str
    severity: Literal["error", "warning"]
    what: str
    why: str = ""
    remedy: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    phase: Phase
    pipeline: str
    table: str
    rows: int = 0
    bytes: int = 0
    total_rows: int | None = None  # an estimate
    seconds: float = 0.0
