"""Settings of a session and the JVM's command line, without a JVM."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.engine import archive, gateway, job, session
from penstock.engine.java import JavaHome
from penstock.errors import ConfigError, SparkError
from penstock.observe.process import start_of

JAVA = JavaHome(Path("/opt/java"), "17.0.1", "PATH")


def config(**changes: object) -> SimpleNamespace:
    known = {"master": "local[*]", "remote": None, "driver_memory": "1g", "shuffle_partitions": 2, "conf": {}}
    known |= {"executor_memory": None}
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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.stage.maxConsecutiveAttempts", "4"),
        ("spark.speculation", "true"),
        ("spark.sql.session.timeZone", "Europe/Berlin"),
        ("spark.sql.ansi.enabled", "false"),
        ("spark.sql.timestampType", "TIMESTAMP_LTZ"),
    ],
)
def test_a_setting_that_exactness_needs_cannot_be_changed(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        session.spark(config(conf={name: value}), tmp_path)
    session.check_conf({name: session.EXACT[name].upper(), "spark.ui.enabled": "true"})
    assert not (tmp_path / ".penstock").exists()


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


def test_a_jvm_that_its_driver_left_behind_ends_before_its_folder_goes(tmp_path: Path) -> None:
    left = tmp_path / ".penstock" / "spark" / f"{socket.gethostname()}-99999999"
    left.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as orphan:
        told = {"pid": orphan.pid, "started": start_of(orphan.pid)}
        (left / gateway.IDENTITY).write_text(json.dumps(told))
        session._folder(tmp_path)
        assert orphan.wait(10) == -signal.SIGKILL
    assert not left.exists()


def test_a_process_that_only_has_the_jvms_number_is_spared(tmp_path: Path) -> None:
    left = tmp_path / ".penstock" / "spark" / f"{socket.gethostname()}-99999999"
    left.mkdir(parents=True)
    (left / gateway.IDENTITY).write_text(json.dumps({"pid": os.getpid(), "started": "another time"}))
    session._folder(tmp_path)
    assert not left.exists()


def test_an_interrupt_while_the_jvm_starts_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def interrupted(process: subprocess.Popen[bytes], *_: object) -> None:
        started.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(gateway, "_answer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        # Like the JVM, it ends by itself only when it gets to reading its input.
        gateway.launch([sys.executable, "-c", "import time; time.sleep(600)"], tmp_path, os.environ)
    assert started[0].returncode == -signal.SIGKILL


def test_counters_of_dead_drivers_are_swept_and_no_others(tmp_path: Path) -> None:
    here, pid = socket.gethostname(), os.getpid()
    drivers = {
        "dead": {"pid": 99999999, "started": "x", "host": here},
        "reused": {"pid": pid, "started": "another time", "host": here},
        "live": {"pid": pid, "started": start_of(pid), "host": here},
        "elsewhere": {"pid": 99999999, "started": "x", "host": "other"},
        "busy": {"pid": 99999999, "started": "x", "host": here},
    }
    for name, driver in drivers.items():
        folder = tmp_path / name / "tasks"
        folder.mkdir(parents=True)
        (folder / job.DRIVER).write_text(json.dumps(driver))
    worker = {"pid": pid, "started": start_of(pid), "host": here, "rows": 0, "bytes": 0, "done": False}
    (tmp_path / "busy" / "tasks" / "0.0.json").write_text(json.dumps(worker))
    (tmp_path / "theirs").mkdir()
    job.sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["busy", "elsewhere", "live", "theirs"]


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


def test_where_no_folder_is_short_enough_workers_are_reached_without_sockets(tmp_path: Path) -> None:
    enabled = "spark.python.unix.domain.socket.enabled"
    long = tmp_path / ("x" * session.MAX_SOCKET_FOLDER)
    assert session.settings(config(), long, long)[enabled] == "false"
    assert session.settings(config(), long, Path("/tmp/short"))[enabled] == "true"


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
