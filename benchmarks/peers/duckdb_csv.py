"""DuckDB's own `read_csv` into a table, types declared: what the target can take in. Runs in Penstock's environment."""

from __future__ import annotations

from typing import Any

PINS = None
JOBS = {"csv"}


def start(settings: dict[str, Any]) -> dict[str, Any]:
    return settings


def run(settings: dict[str, Any], job: dict[str, Any]) -> None:
    import duckdb

    del settings
    columns = ", ".join(f"'{name}': '{kind}'" for name, kind in job["types"].items())
    with duckdb.connect(job["path"]) as session:
        session.execute("set timezone = 'UTC'")
        session.execute(
            f"create table {job['target_table']} as from read_csv('{job['files']}', header = true,"
            f" columns = {{{columns}}})"
        )
