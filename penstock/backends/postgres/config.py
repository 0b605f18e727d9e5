"""How a Postgres connection is configured, and what of it travels to workers.

A DSN is parsed here, on the driver; drivers get keywords, never the URI, because libpq repeats
pieces of a malformed URI, password included, in its errors. No text made here holds a secret.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pydantic import Field, SecretStr, model_validator

from penstock.backends.base import ConnectionConfig
from penstock.errors import ConfigError, ConnectionFailed
from penstock.observe import redact

# A target that others use must not be queued for: a lock we wait for also blocks all who come after.
DEFAULT_LOCK_TIMEOUT = "30s"
# Long enough for a slow name server, short enough that a wrong host is told within a coffee sip.
DEFAULT_CONNECT_TIMEOUT = 10
# Longer than a server that works hard is silent on the wire, short enough that nobody looks for the fault first.
DEFAULT_LINK_TIMEOUT = "60s"
PASSWORD_COMMAND_SECONDS = 60
# A dead peer is noticed within a minute, also when it went away without a word.
KEEPALIVES = {"keepalives": "1", "keepalives_idle": "20", "keepalives_interval": "10", "keepalives_count": "4"}
_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}
SECRET_KEYWORDS = ("password", "sslpassword", "oauth_client_secret")


class PostgresConfig(ConnectionConfig):
    """`[connections.NAME] type = "postgres"`: a `dsn`, or `host`, `user` … as libpq names them."""

    schemes: ClassVar[tuple[str, ...]] = ("postgresql",)

    type: Literal["postgres"] = "postgres"
    dsn: SecretStr | None = Field(None, description="A URI or libpq keywords; other options override its parts.")
    host: str | None = Field(None, description="A name, an address or a socket's folder, as libpq takes it.")
    port: int | None = Field(None, ge=1, le=65535, description="The server's port; libpq's own default is 5432.")
    user: str | None = Field(None, description="Who connects.")
    password: SecretStr | None = Field(None, description="Better from `${VAR}`, a passfile or `password_command`.")
    password_command: str | None = Field(None, description="Run for each new connection; prints the password.")
    dbname: str | None = Field(None, description="The database.")
    sslmode: str | None = Field(None, description="As libpq's: disable … verify-full.")
    options: dict[str, str] = Field(default_factory=dict, description="Any further libpq keyword.")
    schema_: str = Field("public", alias="schema", description="Where target tables without a schema go.")
    max_connections: int = Field(16, ge=2, description="Most sessions a run opens on this server.")
    lock_timeout: str = Field(
        DEFAULT_LOCK_TIMEOUT,
        description="How long a load waits for a lock on its target, a replication for one on its source.",
    )
    link_timeout: str = Field(
        DEFAULT_LINK_TIMEOUT, description="How long a server may be silent that does not work on anything of ours."
    )

    path_base: ClassVar[str] = ""

    @model_validator(mode="after")
    def _known_keywords(self) -> PostgresConfig:
        known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
        for name in self.options:
            if name not in known:
                raise ValueError(f"options.{name} is no libpq keyword")
            if name in SECRET_KEYWORDS:
                raise ValueError(f"options.{name} would be shown: use `{name}` of the connection or a passfile")
        if not re.fullmatch(r"\d+\s*(us|ms|s|min|h|d)?", self.lock_timeout):
            raise ValueError("lock_timeout is a duration such as '30s'")
        if _duration(self.link_timeout) < 1:
            raise ValueError("link_timeout is a duration such as '60s', and no shorter than '1s'")
        return self

    def conninfo(self) -> Conninfo:
        """The keywords of this connection, ready to travel."""
        keywords = self._parsed_dsn()
        for name in ("host", "port", "user", "dbname", "sslmode"):
            value = getattr(self, name)
            if value is not None:
                keywords[name] = str(value)
        keywords |= self.options
        if self.password is not None:
            keywords["password"] = self.password.get_secret_value()
        keywords.setdefault("connect_timeout", str(DEFAULT_CONNECT_TIMEOUT))
        secrets = {name: keywords.pop(name) for name in SECRET_KEYWORDS if name in keywords}
        return Conninfo(
            self.name or self.type,
            tuple(sorted((KEEPALIVES | keywords).items())),
            tuple(sorted(secrets.items())),
            self.password_command,
            _duration(self.link_timeout),
        )

    def _parsed_dsn(self) -> dict[str, str]:
        if self.dsn is None:
            return {}
        text = self.dsn.get_secret_value().strip()
        # SQLAlchemy's spelling of the same thing.
        text = re.sub(r"^(postgres(?:ql)?)\+\w+://", r"\1://", text)
        try:
            parsed = {name: str(value) for name, value in conninfo_to_dict(text).items()}
        except psycopg.Error:
            # libpq's own message repeats the text, so the cause is dropped, not chained.
            why = _why_malformed(text)
        else:
            if re.fullmatch(r"[\d,]*", parsed.get("port", "")):
                return parsed
            why = "its port is not a number"
        raise ConfigError(
            f"the dsn of connection {self.name or self.type!r} cannot be read",
            why=why,
            remedy="postgresql://user:password@host:5432/dbname, special characters percent-encoded (@ is %40)",
        )


def _duration(text: str) -> float:
    """In seconds; 0 of what is no duration."""
    found = re.fullmatch(r"(\d+)\s*(ms|s|min|h)", text)
    return int(found[1]) * _SECONDS[found[2]] if found is not None else 0.0


def _why_malformed(text: str) -> str:
    if "://" not in text:
        return "it is neither a URI nor a list of keyword=value"
    scheme = text.partition("://")[0]
    if scheme not in ("postgres", "postgresql"):
        return f"it starts with {scheme}://, not postgresql://" if scheme.isidentifier() else "it has no known scheme"
    return "libpq cannot parse it"


@dataclass(frozen=True, slots=True)
class Conninfo:
    """libpq keywords of one connection. Picklable; its repr shows no secret."""

    name: str
    keywords: tuple[tuple[str, str], ...]
    secrets: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    password_command: str | None = field(default=None, repr=False)
    patience: float = 60.0  # seconds that a server may be silent: see `silence`

    @property
    def address(self) -> str:
        """Where it leads, for people: `shop@db.example:5432/orders`."""
        known = dict(self.keywords)
        host = known.get("host") or known.get("hostaddr") or known.get("service") or "the default host"
        port = f":{known['port']}" if "port" in known else ""
        database = f"/{known['dbname']}" if "dbname" in known else ""
        return f"{host}{port}{database}"

    def libpq(self, **more: str) -> str:
        """Keyword text for a driver, with a fresh password where a command gives it."""
        merged: dict[str, Any] = dict(self.keywords) | dict(self.secrets) | more
        if self.password_command is not None:
            merged["password"] = self._ask_password()
        return make_conninfo(**merged)

    def redact(self, text: str) -> str:
        """`text` without this connection's secrets, should a driver ever repeat one."""
        for _, secret in self.secrets:
            if secret:
                text = text.replace(secret, redact.MASK)
        return redact.redact(text)

    def _ask_password(self) -> str:
        command = shlex.split(self.password_command or "")
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=PASSWORD_COMMAND_SECONDS
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConnectionFailed(
                f"the password_command of connection {self.name!r} could not be run",
                why=type(error).__name__,
                remedy="run it in a shell on this machine; workers run it too",
            ) from error
        if done.returncode != 0 or not done.stdout.strip():
            raise ConnectionFailed(
                f"the password_command of connection {self.name!r} gave no password",
                why=f"it ended with status {done.returncode}",
                remedy="run it in a shell on this machine; workers run it too",
            )
        password = done.stdout.rstrip("\n")
        redact.register(password)
        return password
