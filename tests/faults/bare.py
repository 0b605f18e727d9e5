"""A whole run in one process without a JVM: partitions are read and staged one after the other.

Started by the fault tests as `python -m tests.faults.bare FILE`, FILE being JSON with the
connections and the pipeline, so that it can be killed at any failpoint in about a second.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from penstock.errors import PenstockError
from penstock.project import Project
from penstock.project.model import Pipeline
from penstock.run.pipeline import run
from penstock.state import RunRecord, open_store
from penstock.testing.stage import stage_here


def carry_out(file: Path) -> list[RunRecord]:
    """Run what the file says."""
    spec = json.loads(file.read_text())
    pipeline = Pipeline.model_validate(spec["pipeline"])
    project = Project.from_objects(Path(spec["root"]), connections=spec["connections"], pipelines=[pipeline])
    with open_store(Path(spec["root"]) / "state.db") as store:
        return run(project, pipeline, store, stage=stage_here)


def main() -> int:
    try:
        records = carry_out(Path(sys.argv[1]))
    except PenstockError as error:
        print(json.dumps(error.to_record()), file=sys.stderr)
        return 1
    print(json.dumps({"rows": records[-1].rows, "inserted": records[-1].inserted}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
