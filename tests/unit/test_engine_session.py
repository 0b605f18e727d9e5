"""Settings of a session and the JVM's command line, without a JVM."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.engine import archive, gateway, session
from penstock.engine.java import JavaHome
from penstock.errors import SparkError

JAVA = JavaHome(Path("/opt/java"), "17.0.1", "PATH")


def config(**changes: object) -> SimpleNamespace:
    known = {"master": "local[*]", "remote": None, "driver_memory": "1g", "shuffle_partitions": None, "conf": {}}
    return SimpleNamespace(**(known | changes))


@pytest.mark.parametrize(
    ("master", "made"),
    [
        ("local[*]", "local[*,4]"),
        ("local[3]", "local[3,4]"),
        ("local", "local[1,4]"),
        ("local[2,7]", "local[2,7]"),
        ("spark://host:7077", "spark://host:7077"),
    ],
)
def test_local_tasks_are_really_retried(master: str, made: str) -> None:
    assert session.with_retries(master) == made


def test_settings_keep_values_as_they_are_and_the_terminal_quiet(tmp_path: Path) -> None:
    made = session.settings(config(), tmp_path, tmp_path)
    assert made["spark.sql.session.timeZone"] == "UTC"
    assert made["spark.sql.ansi.enabled"] == "true"
    assert made["spark.sql.timestampType"] == "TIMESTAMP_NTZ"
    assert made["spark.ui.enabled"] == made["spark.ui.showConsoleProgress"] == "false"
    assert made["spark.driver.host"] == made["spark.driver.bindAddress"] == "127.0.0.1"
    assert made["spark.python.daemon.module"] == "penstock.engine.daemon"
    assert made["spark.stage.maxConsecutiveAttempts"] == "1"
    assert not any("packages" in name for name in made)


def test_the_users_settings_win(tmp_path: Path) -> None:
    made = session.settings(config(conf={"spark.ui.enabled": "true"}, shuffle_partitions=9), tmp_path, tmp_path)
    assert (made["spark.ui.enabled"], made["spark.sql.shuffle.partitions"]) == ("true", "9")


def test_a_cluster_gets_no_local_addresses(tmp_path: Path) -> None:
    made = session.settings(config(master="spark://host:7077"), tmp_path, tmp_path)
    assert "spark.driver.host" not in made
    assert "spark.python.daemon.module" not in made
    argv = gateway.command(JAVA, tmp_path, "1g", [], "spark://host:7077")
    assert argv[-3:] == ["--master", "spark://host:7077", "pyspark-shell"]


def test_the_jvm_gets_a_fixed_heap_and_no_missing_module(tmp_path: Path) -> None:
    argv = gateway.command(JAVA, tmp_path, "700m", [], "local[*]")
    assert argv[:2] == ["/opt/java/bin/java", "-Xmx700m"]
    assert not any("incubator" in argument for argument in argv)
    assert argv[-1] == "org.apache.spark.api.python.PythonGatewayServer"


def test_folders_of_dead_processes_are_swept_and_no_others(tmp_path: Path) -> None:
    parent = tmp_path / ".penstock" / "spark"
    host = socket.gethostname()
    dead, live, elsewhere = parent / f"{host}-99999999", parent / f"{host}-{os.getppid()}", parent / "other-99999999"
    for folder in (dead, live, elsewhere):
        folder.mkdir(parents=True)
    made = session._folder(tmp_path)
    assert not dead.exists()
    assert live.exists()
    assert elsewhere.exists()
    assert made.name == f"{host}-{os.getpid()}"


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / ".penstock").write_text("in the way")
    with pytest.raises(SparkError, match="cannot be written"):
        session._folder(tmp_path)


def test_a_long_project_path_gets_a_short_socket_folder(tmp_path: Path) -> None:
    folders = [tmp_path / ("x" * 80)]
    short = session._socket_folder(folders)
    assert len(str(short)) <= session.MAX_SOCKET_FOLDER
    assert folders[-1] == short
    short.rmdir()


def test_the_archive_is_keyed_by_java_and_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(archive.OFF, raising=False)
    jar = tmp_path / "a.jar"
    jar.write_text("1")
    first = archive.archive_of(JAVA, [jar])
    jar.write_text("22")
    second = archive.archive_of(JAVA, [jar])
    third = archive.archive_of(JavaHome(JAVA.path, "17.0.2", "PATH"), [jar])
    assert len({first.folder, second.folder, third.folder}) == 3
    assert first.use() == []
    assert first.folder.is_relative_to(tmp_path / "penstock" / "cds")


def test_an_unwritable_cache_only_means_no_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.delenv(archive.OFF, raising=False)
    known = archive.archive_of(JAVA, [])
    assert known.use() == []
    assert archive.train_later(known) is None


def test_what_the_jvm_printed_last_is_the_reason(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("Error: Could not find or load main class X\nCaused by: no class X\n\tat a.b.C\n\t... 3 more\n")
    assert gateway.last_line(log) == "Caused by: no class X"
