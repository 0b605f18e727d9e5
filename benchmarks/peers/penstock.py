"""Penstock itself, warm: one process, one Spark session, one run after the other.

The jobs name pipelines of a project folder that the harness has written.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

PINS = None
JOBS = {"postgres", "duckdb"}


def start(settings: dict[str, Any]) -> dict[str, Any]:
    from penstock import project, state

    loaded = project.load(Path(settings["project"]))
    return {"project": loaded, "store": state.open_store(loaded.state_location)}


def run(state: dict[str, Any], job: dict[str, Any]) -> dict[str, float]:
    """The seconds of each phase: planning, copying by Spark tasks, the commit."""
    from penstock.run import pipeline

    loaded = state["project"]
    starts: dict[str, float] = {}

    def mark(event: pipeline.ProgressEvent) -> None:
        starts.setdefault(event.phase, event.seconds)

    pipeline.run(loaded, loaded.pipelines[job["pipeline"]], state["store"], progress=mark)
    names = list(starts)
    return {name: starts[after] - starts[name] for name, after in pairwise(names)}
