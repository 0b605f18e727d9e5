"""dlt: `sql_table` into DuckDB with the backends that its docs call the fastest, warm in one process."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

PINS = "dlt.txt"
JOBS = {"duckdb"}
VARIANTS: dict[str, dict[str, Any]] = {
    "pyarrow": {"backend": "pyarrow", "reflection_level": "full_with_precision"},
    "connectorx": {"backend": "connectorx", "reflection_level": "full_with_precision"},
    "connectorx stream": {
        "backend": "connectorx",
        "reflection_level": "full_with_precision",
        "backend_kwargs": {"return_type": "arrow_stream"},
    },
}


def start(settings: dict[str, Any]) -> dict[str, Any]:
    os.environ["RUNTIME__DLTHUB_TELEMETRY"] = "false"
    os.environ["RUNTIME__LOG_LEVEL"] = "ERROR"
    import dlt  # noqa: F401  warm
    from dlt.sources import sql_database  # noqa: F401  warm

    return settings


def run(settings: dict[str, Any], job: dict[str, Any]) -> None:
    import dlt
    from dlt.sources.sql_database import sql_table

    schema, name = job["table"].split(".")
    work = Path(settings["folder"]) / "dlt"
    shutil.rmtree(work, ignore_errors=True)
    target_schema, target = job["target_table"].split(".")
    pipeline = dlt.pipeline(
        pipeline_name="orders",
        pipelines_dir=str(work),
        destination=dlt.destinations.duckdb(job["path"]),
        dataset_name=target_schema,
    )
    rows = sql_table(
        credentials=settings["source"]["dsn"].replace("postgresql://", "postgresql+psycopg2://"),
        schema=schema,
        table=name,
        chunk_size=100_000,
        **VARIANTS[job["variant"]],
    )
    pipeline.run(rows, table_name=target, write_disposition="replace")
