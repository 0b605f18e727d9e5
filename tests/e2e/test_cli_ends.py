"""How a command ends when it is stopped, or when what it notes down cannot be written."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest

from penstock.testing.postgres import EmbeddedPostgres
from tests.e2e.command import PROJECT, TWICE, Project, await_count

INSIDE_DUCKDB = """
[pipelines.inside]
source = "warehouse"
query = "select range as id from range(1000)"
target = "warehouse.main.inside"
mode = "append"
"""


@pytest.mark.postgres
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_rolls_back_and_leaves_nothing_running(
    project: Project, shop: EmbeddedPostgres, number: signal.Signals, code: int
) -> None:
    project.write(
        PROJECT.replace("select id, name from public.customers", "select 1 as id, pg_sleep(60)::text as name")
    )
    process = subprocess.Popen(
        project.command("run", "same"),
        cwd=project.folder,
        env=project.environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with psycopg.connect(shop.dsn, autocommit=True) as watcher:
        asleep = "select count(*) from pg_stat_activity where query like '%pg_sleep(60)%' and pid <> pg_backend_pid()"
        await_count(watcher, asleep, 1)
        process.send_signal(number)
        _, said = process.communicate(timeout=20)
        assert process.returncode == code, said
        assert "kept:" in said
        assert "Traceback" not in said
        await_count(watcher, asleep, 0)
        [exists] = watcher.execute("select to_regclass('public.customers_copy') is not null").fetchone() or [None]
        assert exists is False
    [record] = project.json("runs", "list")
    assert record["state"] == "cancelled"


@pytest.mark.postgres
@pytest.mark.parametrize("pipeline", ["same", "inside"])
@pytest.mark.parametrize("failpoint", ["commit.done", "run.finish"])
def test_signal_after_the_commit_says_that_the_rows_are_there(
    project: Project, tmp_path: Path, failpoint: str, pipeline: str
) -> None:
    duckdb.connect(str(tmp_path / "warehouse.duckdb")).close()
    project.write(PROJECT + INSIDE_DUCKDB)
    with project.held(failpoint, "run", pipeline) as process:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
    assert process.returncode == 130, said
    assert "kept:    the load is committed: 1000 rows" in said
    assert "next:    do not run it again for the same rows" in said
    assert "rolled back" not in said
    [record] = project.json("runs", "list")
    assert (record["state"], record["rows"], record["inserted"]) == ("done", 1000, 1000)


@pytest.mark.postgres
def test_hang_up_does_not_end_a_run_under_nohup(project: Project) -> None:
    with project.held("commit.begin", "run", "same", "--output", "json", under=("nohup",)) as process:
        process.send_signal(signal.SIGHUP)
        project.go_on()
        shown, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    [outcome] = json.loads(shown)
    assert (outcome["state"], outcome["inserted"]) == ("done", 1000)


@pytest.mark.postgres
def test_retry_is_logged_and_stands_in_the_history(project: Project, shop: EmbeddedPostgres) -> None:
    with project.held("commit.loaded", "run", "same") as process:
        with psycopg.connect(shop.dsn, autocommit=True) as connection:
            ours = "starts_with(application_name, 'penstock:')"
            connection.execute(f"select pg_terminate_backend(pid) from pg_stat_activity where {ours}".encode())
        project.go_on()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "warning trying again pipeline=same attempt=2 error=LinkLost" in said
    done, failed = project.json("runs", "list")
    assert (done["state"], failed["state"]) == ("done", "failed")
    shown: dict[str, Any] = project.json("runs", "show", str(done["run_id"]))  # type: ignore[assignment]  # one record, not a list
    [event] = shown["events"]
    assert (event["name"], event["data"]["attempt"], event["data"]["after"]) == ("retry", 2, failed["run_id"])
    assert "attempt 2, error LinkLost" in project.run("runs", "show", str(done["run_id"])).stdout


# ---------------------------------------------------------------- a history that cannot be written


def lose_the_history(project: Project) -> None:
    """While a run is under way: a folder stands where the file was."""
    file = project.folder / ".penstock" / "state.db"
    file.rename(file.with_suffix(".away"))
    file.mkdir()


@pytest.mark.postgres
@pytest.mark.parametrize("output", ["text", "json"])
def test_committed_load_is_done_also_without_a_history(project: Project, output: str) -> None:
    with project.held("run.finish", "run", "same", "--output", output) as process:
        lose_the_history(project)
        project.go_on()
        shown, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "warning run history not written" in said
    assert "error:" not in said
    if output == "json":
        [outcome] = json.loads(shown)
        assert (outcome["state"], outcome["inserted"], outcome["path"]) == ("done", 1000, "native")
    else:
        assert [line.split()[:2] for line in shown.splitlines() if line[:1] in "✓✗"] == [["✓", "same"]]


@pytest.mark.postgres
def test_error_of_a_load_is_told_also_without_a_history(project: Project) -> None:
    project.write(PROJECT + TWICE)
    with project.held("commit.begin", "run", "twice", "same", "--output", "json") as process:
        lose_the_history(project)
        project.go_on()
        shown, said = process.communicate(timeout=60)
    assert process.returncode == 1, said
    first, second = json.loads(shown)
    assert first["error"]["error"] == "DataError"
    assert second["error"]["error"] == "StateError"
    assert "duplicate keys" in said
    assert "warning run history not written" in said
