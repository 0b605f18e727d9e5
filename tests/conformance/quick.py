"""A flow without a JVM: partitions are read and staged one after the other in this process."""

from __future__ import annotations

from typing import Any

from penstock.run.pipeline import RunOptions, run
from penstock.state import RunRecord
from tests.conformance.harness import Flow
from tests.faults.bare import stage_here


class QuickFlow(Flow):
    """For rules that Spark has no part in."""

    def run(self, run_options: RunOptions | None = None, **options: Any) -> RunRecord:
        pipeline = self.pipeline(**options)
        return run(self.project(pipeline), pipeline, self.store, run_options, stage=stage_here)[-1]
