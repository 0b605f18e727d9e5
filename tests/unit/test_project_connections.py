"""Where a connection's options come from, which win, and how mistakes in them are told."""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import ConfigError, PenstockError
from penstock.project import Project, load
from penstock.project.findings import each

FILES = """
[connections.files]
type = "duckdb"
path = "files.duckdb"
memory_limit = "2GB"
"""
Make = Callable[..., Project]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Loads a project from text and environment variables."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)

    def made(text: str = "", user: str = "", **environment: str) -> Project:
        (tmp_path / "penstock.toml").write_text(text)
        if user:
            (tmp_path / "config" / "penstock").mkdir(parents=True, exist_ok=True)
            (tmp_path / "config" / "penstock" / "connections.toml").write_text(user)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return load()

    return made


def _options(project: Project, name: str) -> dict[str, object]:
    return project.connection(name).model_dump()


def _problems(project: Project, name: str) -> list[PenstockError]:
    with pytest.raises(PenstockError) as caught:
        project.connection(name)
    return each(caught.value)


def test_a_relative_path_lies_below_the_project(make: Make, tmp_path: Path) -> None:
    options = _options(make(FILES), "files")
    assert options["path"] == str(tmp_path / "files.duckdb")
    assert options["name"] == "files"
    assert options["memory_limit"] == "2GB"


@pytest.mark.parametrize("path", [":memory:", "/elsewhere/x.duckdb"])
def test_other_paths_are_left_alone(make: Make, path: str) -> None:
    assert _options(make(FILES.replace("files.duckdb", path)), "files")["path"] == path


def test_the_environment_overrides_single_properties(make: Make, tmp_path: Path) -> None:
    project = make(FILES, PENSTOCK_DUCKDB_FILES_MEMORY_LIMIT="3GB", PENSTOCK_DUCKDB_FILES_THREADS="2")
    options = _options(project, "files")
    assert (options["memory_limit"], options["threads"]) == ("3GB", 2)
    assert options["path"] == str(tmp_path / "files.duckdb")


def test_the_environment_alone_defines_a_connection(make: Make, tmp_path: Path) -> None:
    project = make(PENSTOCK_DUCKDB_LAKE_HOUSE_PATH="lake.duckdb", PENSTOCK_DUCKDB_LAKE_HOUSE_READ_ONLY="true")
    assert list(project.connections) == ["lake_house"]
    assert _options(project, "lake_house")["path"] == str(tmp_path / "lake.duckdb")
    assert _options(project, "lake_house")["read_only"] is True
    [entry] = project.connections.entries()
    assert (entry.name, entry.type) == ("lake_house", "duckdb")
    assert entry.places == ("environment PENSTOCK_DUCKDB_LAKE_HOUSE_*",)


def test_a_pipeline_may_use_a_connection_of_the_environment(make: Make) -> None:
    project = make(
        FILES + '[pipelines.p]\nsource = "sales-eu"\ntable = "t"\ntarget = "files.t"\nmode = "append"\n',
        PENSTOCK_DUCKDB_SALES_EU_PATH="eu.duckdb",
    )
    assert sorted(project.connections) == ["files", "sales-eu"]
    assert project.connection("sales-eu").name == "sales-eu"


def test_a_name_that_begins_like_another_one(make: Make) -> None:
    project = make(FILES, PENSTOCK_DUCKDB_FILES_EU_PATH="eu.duckdb")
    assert sorted(project.connections) == ["files", "files_eu"]
    assert _options(project, "files")["memory_limit"] == "2GB"
    project.check()


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("duckdb:///data/x.duckdb", "/data/x.duckdb"),
        ("duckdb:////data/x.duckdb", "/data/x.duckdb"),
        ("duckdb:///:memory:", ":memory:"),
        ("duckdb:///a%20b.duckdb?read_only=true", "/a b.duckdb"),
    ],
)
def test_a_dsn_defines_a_connection_by_its_scheme(make: Make, uri: str, path: str) -> None:
    project = make(PENSTOCK_DSN_LAKE=uri)
    assert list(project.connections) == ["lake"]
    assert _options(project, "lake")["path"] == path


def test_a_dsn_of_postgres_is_kept_whole(make: Make) -> None:
    project = make(PENSTOCK_DSN_SHOP="postgresql://u:hidden-word@h/db")
    config = project.connection("shop")
    assert config.type == "postgres"
    assert "hidden-word" not in repr(config)


def test_a_dsn_in_the_environment_replaces_the_file(make: Make) -> None:
    """Mixed, the file's host would win over the one in the DSN: rows for one server would reach another."""
    toml = '[connections.shop]\ntype = "postgres"\nhost = "production"\npassword = "p"\n'
    for variable in ("PENSTOCK_DSN_SHOP", "PENSTOCK_POSTGRES_SHOP_DSN"):
        options = _options(make(toml, **{variable: "postgresql://test/db"}), "shop")
        assert (options["host"], options["password"]) == (None, None)


def test_the_users_own_file_comes_last(make: Make, tmp_path: Path) -> None:
    user = FILES.replace("2GB", "9GB") + '[connections.mine]\ntype = "duckdb"\npath = "/mine.duckdb"\n'
    project = make(FILES, user)
    assert _options(project, "files")["memory_limit"] == "2GB"
    assert _options(project, "mine")["path"] == "/mine.duckdb"
    places = {entry.name: entry.places for entry in project.connections.entries()}
    assert places["mine"] == ("config/penstock/connections.toml:6",)


def test_an_unknown_connection_lists_where_it_was_looked_for(make: Make, tmp_path: Path) -> None:
    [found] = _problems(make(FILES), "fils")
    assert found.what == "there is no connection 'fils'"
    for place in ("penstock.toml", "connections.toml", "PENSTOCK_DSN_FILS", "PENSTOCK_<BACKEND>_FILS_<PROPERTY>"):
        assert place in found.why
    assert found.remedy == "did you mean 'files'?"


def test_unknown_options_get_the_nearest_name_and_their_line(make: Make) -> None:
    found = _problems(make(FILES + 'memroy = "x"\npth = "y"\n'), "files")
    assert [(one.what, one.place) for one in found] == [
        ("unknown key 'memroy' in connection 'files'", "penstock.toml:6"),
        ("unknown key 'pth' in connection 'files'", "penstock.toml:7"),
    ]
    assert found[1].remedy == "did you mean 'path'?"


def test_an_unknown_option_of_the_environment_names_its_variable(make: Make) -> None:
    [found] = _problems(make(FILES, PENSTOCK_DUCKDB_FILES_MEMROY="x"), "files")
    assert found.place == "PENSTOCK_DUCKDB_FILES_MEMROY"


def test_wrong_values_are_told_without_the_value(make: Make) -> None:
    [found] = _problems(make(FILES + 'threads = "s3cret-word"\n'), "files")
    assert found.what == "threads of connection 'files' is wrong"
    assert found.place == "penstock.toml:6"
    trace = "".join(traceback.format_exception(found))  # what a log would hold
    assert "s3cret-word" not in f"{trace} {found.remedy}"
    [missing] = _problems(make('[connections.files]\ntype = "duckdb"\n'), "files")
    assert missing.what == "path of connection 'files' is missing"


def test_variables_are_filled_in_when_a_connection_is_used(make: Make) -> None:
    project = make(FILES.replace("files.duckdb", "${NO_SUCH_FOLDER}/x"))
    assert list(project.connections) == ["files"]
    [found] = _problems(project, "files")
    assert "NO_SUCH_FOLDER" in found.what
    assert found.place == "penstock.toml:4"


def test_check_tells_the_findings_of_all_connections(make: Make) -> None:
    project = make(FILES + 'x = 1\n[connections.other]\ntype = "duckdb"\npath = "${NO_SUCH_FOLDER}"\n')
    with pytest.raises(ConfigError) as caught:
        project.check()
    assert len(each(caught.value)) == 2


def test_a_dsn_with_an_unknown_scheme(make: Make) -> None:
    with pytest.raises(ConfigError) as caught:
        make(
            FILES + '[pipelines.p]\nsource = "lake"\ntable = "t"\ntarget = "files.t"\nmode = "append"\n',
            PENSTOCK_DSN_LAKE="oracle://u:hidden-word@h",
        )
    assert "PENSTOCK_DSN_LAKE" in caught.value.what
    assert "hidden-word" not in f"{caught.value} {caught.value.remedy}"


def test_two_backends_for_one_name(make: Make) -> None:
    project = make(PENSTOCK_DUCKDB_LAKE_PATH="x", PENSTOCK_POSTGRES_LAKE_HOST="h")
    [found] = _problems(project, "lake")
    assert "as duckdb and as postgres" in found.what


def test_a_missing_driver_gets_its_install_line(make: Make, tmp_path: Path) -> None:
    make(FILES)
    code = (
        "import sys; sys.modules['duckdb'] = None\n"
        "import penstock\n"
        f"project = penstock.load_project({str(tmp_path)!r})\n"
        "assert [e.name for e in project.connections.entries()] == ['files']\n"
        "try: project.connection('files')\n"
        "except penstock.DriverMissing as error: print(error.remedy)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "pip install 'penstock[duckdb]'"
