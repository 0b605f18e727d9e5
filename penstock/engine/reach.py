"""Whether a master or a Spark Connect server is there, asked before Spark itself waits for it.

Spark's own client tries a master for a minute and a Connect server for ten, and says why only in
its log. Nothing here starts anything, and no error shows a token that a URL may hold.
"""

from __future__ import annotations

import re
import socket
from contextlib import closing

from penstock.errors import ConfigError, DriverMissing, SparkError

CONNECT_SECONDS = 5.0  # for one TCP connection
READY_SECONDS = 10.0  # until a Connect server has answered in its protocol
UNTOUCHED = "nothing was touched"

_MASTER = re.compile(r"spark://(?P<hosts>[^/,]+:\d+(,[^/,]+:\d+)*)")
_KUBERNETES = re.compile(r"k8s://(?:(?P<scheme>https?)://)?(?P<host>[^/:]+)(?::(?P<port>\d+))?(?:/.*)?")


def is_local(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def shown(remote: str) -> str:
    """A Connect URL without its parameters: a token may be among them."""
    return remote.partition("/;")[0].partition(";")[0]


def check_master(master: str) -> str:
    """What answers at `master`, in a few words; an error that says where nothing does."""
    if is_local(master):
        return "this machine"
    if master == "yarn":
        return "YARN, through the Hadoop settings"
    places = _places(master)
    failures = []
    for host, port in places:
        why = refusal(host, port)
        if why is None:
            return f"{host}:{port}"
        failures.append(f"{host}:{port}: {why}")
    raise SparkError(
        f"no Spark master answers at {master}",
        why="; ".join(failures),
        kept=UNTOUCHED,
        remedy="start it, or correct master in [spark] of penstock.toml",
    )


def standalone_masters(master: str) -> int:
    """How many there are in the URL of standalone ones; 0 for every other kind."""
    return len(_places(master)) if _MASTER.fullmatch(master) else 0


def no_master(master: str) -> SparkError:
    """Of a port that is open, where Spark's own client finds no master."""
    return SparkError(
        f"no Spark master answers at {master}",
        why="something else than a master listens there, or one with other security settings",
        kept=UNTOUCHED,
        remedy="correct master in [spark] of penstock.toml: the port is not that of the master's page",
    )


def check_remote(remote: str) -> str:
    """What answers at a Connect URL; an error if it is nothing, or no Connect server."""
    try:
        import grpc
        from pyspark.sql.connect.client import DefaultChannelBuilder
    except ImportError as error:
        raise DriverMissing(
            "the client of Spark Connect is not installed",
            why=str(error).splitlines()[0],
            remedy="pip install 'penstock[connect]'",
        ) from error
    try:
        builder = DefaultChannelBuilder(remote)
        endpoint = str(builder.endpoint)
    except Exception as error:  # its own errors, and the URL parser's
        raise ConfigError(
            f"[spark] remote is no URL of a Spark Connect server: {shown(remote)}",
            remedy='remote = "sc://host:15002"',
        ) from error
    host, _, port = endpoint.rpartition(":")
    why = refusal(host.strip("[]"), int(port))
    if why is None:
        with closing(builder.toChannel()) as channel:
            try:
                grpc.channel_ready_future(channel).result(READY_SECONDS)
            except grpc.FutureTimeoutError:
                why = "something else than a Spark Connect server answers there, or one with other TLS settings"
    if why is not None:
        raise SparkError(
            f"no Spark Connect server answers at {shown(remote)}",
            why=f"{endpoint}: {why}",
            kept=UNTOUCHED,
            remedy="start it, or correct remote in [spark] of penstock.toml",
        )
    return endpoint


def _places(master: str) -> list[tuple[str, int]]:
    standalone = _MASTER.fullmatch(master)
    if standalone:
        pairs = [one.rpartition(":") for one in standalone["hosts"].split(",")]
        return [(host.strip("[]"), int(port)) for host, _, port in pairs]
    kubernetes = _KUBERNETES.fullmatch(master)
    if kubernetes:
        port = kubernetes["port"] or ("80" if kubernetes["scheme"] == "http" else "443")
        return [(kubernetes["host"], int(port))]
    raise ConfigError(
        f"[spark] master cannot be {master!r}",
        why="Spark knows no such kind of master",
        kept=UNTOUCHED,
        remedy='master = "local[*]", "spark://host:7077", "k8s://https://host:443" or "yarn"',
    )


def refusal(host: str, port: int) -> str | None:
    """Why no connection can be made; None if one was."""
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except socket.gaierror:
        return "no such host"
    except TimeoutError:
        return f"no answer in {CONNECT_SECONDS:.0f} s"
    except OSError as error:
        return (error.strerror or type(error).__name__).lower()
    return None
