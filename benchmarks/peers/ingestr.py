"""ingestr: `ingestr ingest` from Postgres into DuckDB, one process per run as it is meant to be used.

It writes through DuckDB's ADBC driver, which it would fetch from elsewhere: here it is the library
inside DuckDB's JDBC jar. It crashes on uuid columns (the schema that it exports to the driver is
freed twice), so it reads the view in which the uuid is text.
"""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path
from typing import Any

PINS = "ingestr.txt"
JOBS = {"duckdb"}
DRIVER = ("org.duckdb", "duckdb_jdbc", "1.5.5.0")
LIBRARY = "libduckdb_java.so_linux_amd64"
MANIFEST = """\
manifest_version = 1
name = "DuckDB"
version = "1.5.5"

[ADBC]
version = "1.1.0"

[Driver]
entrypoint = "duckdb_adbc_init"

[Driver.shared]
linux_amd64 = "{library}"
"""


def prepare(environment: Path, jar: Any) -> None:
    drivers = environment / "drivers"
    drivers.mkdir(exist_ok=True)
    if not (drivers / LIBRARY).exists():
        with zipfile.ZipFile(jar(*DRIVER)) as archive:
            archive.extract(LIBRARY, drivers)
    (drivers / "duckdb.toml").write_text(MANIFEST.format(library=drivers / LIBRARY))


def start(settings: dict[str, Any]) -> dict[str, Any]:
    return settings


def run(settings: dict[str, Any], job: dict[str, Any]) -> None:
    environment = Path(settings["environment"])
    variables = {
        "HOME": str(environment),
        "ADBC_DRIVER_PATH": str(environment / "drivers"),
        "SOURCE_URI": settings["source"]["dsn"] + "?sslmode=disable",
        "DESTINATION_URI": f"duckdb:///{job['path']}",
    }
    command = [str(environment / "bin" / "ingestr"), "ingest", "--source-table", job["table"] + "_text"]
    command += ["--dest-table", job["target_table"], "--yes", "--progress", "log"]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError((done.stdout + done.stderr).strip()[:400])
