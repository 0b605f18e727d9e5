"""Where a run's tasks run, and whether all of those machines can do their part, asked before a target is touched."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.backends.registry import packages
from penstock.engine.reach import is_local, shown

if TYPE_CHECKING:
    from penstock.backends.base import Backend
    from penstock.project.model import Project, SparkConfig
    from penstock.run.prepare import Prepared


def place(spark: SparkConfig) -> str | None:
    """The cluster that tasks run on, as the plan names it; None for this machine."""
    if spark.remote is not None:
        return f"the Spark Connect server {shown(spark.remote)}"
    return None if is_local(spark.master) else spark.master


def cores(spark: SparkConfig) -> int:
    """How many tasks may run at once, as far as that is known without asking: a plan starts no cluster."""
    from penstock.engine.status import cores_in

    asked = cores_in(spark.conf.get) if place(spark) is not None else None
    return asked or os.cpu_count() or 1


def check_workers(project: Project, prepared: Prepared, backends: Iterable[Backend]) -> None:
    """On a cluster: ask every executor for its versions and for the files that the run shares with it."""
    from penstock.engine import session, status

    if prepared.transform is not None:
        spark = prepared.transform.spark  # of a frame that is the user's, another one than the project's
        session.furnish(spark, project.root)
    elif session.on_cluster(project.spark):
        spark = session.spark(project.spark, project.root)
    else:
        return
    if not status.on_cluster(spark):
        return
    from penstock.engine.probe import probe

    used = list(backends)
    wanted: dict[str, str] = {}
    for one in used:
        wanted |= packages(one.capabilities.extra)
    probe(
        spark,
        prepared.run,
        [*(one for source in prepared.sources for one in source.shared()), *prepared.target.shared()],
        sorted({type(one).__module__ for one in used}),
        wanted,
    )
