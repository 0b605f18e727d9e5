"""The shop's server: an embedded Postgres in a temporary folder, gone on every way out."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files

from penstock.errors import PenstockError
from penstock.testing.postgres import EmbeddedPostgres


class Shop:
    """A running shop. SQL goes in through psql, which comes with the server."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self._server = server

    @property
    def dsn(self) -> str:
        return self._server.dsn

    @property
    def password(self) -> str:
        return self._server.password

    def seed(self, orders: int) -> None:
        self._script("shop.sql", orders=orders)

    def change(self) -> None:
        """A day's work: new, changed and vanished rows."""
        self._script("changes.sql")

    def open_bank(self, accounts: int) -> None:
        self._script("bank.sql", accounts=accounts)

    @contextmanager
    def trading(self, accounts: int) -> Iterator[None]:
        """People transfer money all the while, until the block ends."""
        command = [str(self._server.binary("psql")), "--no-psqlrc", "--quiet", "--command"]
        process = subprocess.Popen(
            [*command, f"call office.trade({accounts})"], env=self._environment(), start_new_session=True
        )
        try:
            yield
            closing = "insert into office.closed values (now())"
            subprocess.run([*command, closing], check=True, env=self._environment())
            if process.wait() != 0:
                raise PenstockError("the demo's bank has failed", why=f"psql ended with {process.returncode}")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

    def _script(self, name: str, **variables: int) -> None:
        command = [str(self._server.binary("psql")), "--no-psqlrc", "--quiet"]
        for variable, value in variables.items():
            command += ["--set", f"{variable}={value}"]
        with as_file(files("penstock.demo") / name) as path:
            command += ["--file", str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=self._environment())
        if done.returncode != 0:
            raise PenstockError(f"the demo's {name} failed", why=done.stderr.strip()[-400:])

    def _environment(self) -> dict[str, str]:
        # In the environment, not on the command line, where every user could read it.
        return os.environ | {
            "PGHOST": "127.0.0.1",
            "PGPORT": str(self._server.port),
            "PGUSER": self._server.user,
            "PGPASSWORD": self._server.password,
            "PGDATABASE": "postgres",
        }


@contextmanager
def running() -> Iterator[Shop]:
    # Ctrl-C must reach the run that reads from it first, so that it rolls back in peace.
    server = EmbeddedPostgres(apart=True)
    try:
        yield Shop(server.start())
    finally:
        server.remove()
