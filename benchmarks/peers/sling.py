"""sling: `sling run` from Postgres into DuckDB, one process per run as it is meant to be used.

It writes through the DuckDB command line, which it would fetch from elsewhere: here it comes from
PyPI with the two extensions that sling loads, put where DuckDB looks for them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

PINS = "sling.txt"
JOBS = {"duckdb"}
PLATFORM = "linux_amd64"


def prepare(environment: Path, jar: Any) -> None:
    del jar
    for extension in environment.glob("lib/python*/site-packages/duckdb_extension_*/extensions/v*/*.duckdb_extension"):
        place = environment / ".duckdb" / "extensions" / extension.parent.name / PLATFORM
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(extension, place)


def start(settings: dict[str, Any]) -> dict[str, Any]:
    return settings


def run(settings: dict[str, Any], job: dict[str, Any]) -> None:
    environment = Path(settings["environment"])
    binary = next(environment.glob("lib/python*/site-packages/sling_linux_amd64/bin/sling-linux-amd64"))
    variables = {
        "HOME": str(environment),
        "SLING_HOME_DIR": str(environment / ".sling"),
        "SLING_TEMP_DIR": settings["folder"],
        "DUCKDB_PATH": str(environment / "bin" / "duckdb"),
        "BENCH_SOURCE": settings["source"]["dsn"] + "?sslmode=disable",
        "BENCH_TARGET": f"duckdb://{job['path']}",
    }
    command = [str(binary), "run", "--src-conn", "BENCH_SOURCE", "--src-stream", job["table"]]
    command += ["--tgt-conn", "BENCH_TARGET", "--tgt-object", job["target_table"], "--mode", "full-refresh"]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError((done.stdout + done.stderr).strip()[-400:])
