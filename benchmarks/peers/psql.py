"""`psql COPY | psql COPY`: what two Postgres servers can do with nothing between them.

The table is made without a key, as the plainest copy would; `key` adds the primary key afterwards,
which is what a first merge has to leave behind.
"""

from __future__ import annotations

import os
import subprocess
from typing import Any

PINS = None
JOBS = {"postgres", "nowhere"}


def start(settings: dict[str, Any]) -> dict[str, Any]:
    return settings


def run(settings: dict[str, Any], job: dict[str, Any]) -> None:
    if "connections" in job:
        _to_nowhere(settings, job)
    else:
        _copy(settings, job)


def _to_nowhere(settings: dict[str, Any], job: dict[str, Any]) -> None:
    """What the source can emit at most: every row in binary, in so many connections, and nobody takes it."""
    step = -(-job["rows"] // job["connections"])
    statements = [
        f"copy (select * from {job['table']} where id > {low} and id <= {low + step}) to stdout (format binary)"
        for low in range(0, job["rows"], step)
    ]
    readers = [
        subprocess.Popen(
            _command(settings, settings["source"], ["-c", statement]),
            stdout=subprocess.DEVNULL,
            env=_environment(settings["source"]),
        )
        for statement in statements
    ]
    codes = [reader.wait() for reader in readers]
    if any(codes):
        raise RuntimeError(f"psql COPY TO ended with {codes}")


def _copy(settings: dict[str, Any], job: dict[str, Any]) -> None:
    table, target = job["table"], job["target_table"]
    form = "(format binary)" if job.get("binary") else ""
    create = f"create table {target} ({job['ddl']})"
    _psql(settings, settings["target"], ["-c", create])
    with subprocess.Popen(
        _command(settings, settings["source"], ["-c", f"copy {table} to stdout {form}"]),
        stdout=subprocess.PIPE,
        env=_environment(settings["source"]),
    ) as reader:
        _psql(settings, settings["target"], ["-c", f"copy {target} from stdin {form}"], stdin=reader.stdout)
        if reader.stdout is not None:
            reader.stdout.close()
    if reader.returncode != 0:
        raise RuntimeError(f"psql COPY TO ended with {reader.returncode}")
    if job.get("key"):
        _psql(settings, settings["target"], ["-c", f"alter table {target} add primary key (id)"])


def _psql(settings: dict[str, Any], end: dict[str, Any], arguments: list[str], stdin: Any = None) -> None:
    subprocess.run(_command(settings, end, arguments), stdin=stdin, env=_environment(end), check=True)


def _command(settings: dict[str, Any], end: dict[str, Any], arguments: list[str]) -> list[str]:
    where = ["-h", end["host"], "-p", str(end["port"]), "-U", end["user"], "-d", end["database"]]
    return [settings["psql"], "-X", "-q", "-v", "ON_ERROR_STOP=1", *where, *arguments]


def _environment(end: dict[str, Any]) -> dict[str, str]:
    return os.environ | {"PGPASSWORD": end["password"]}
