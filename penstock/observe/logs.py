"""Logs: structured, lower case, on stderr, one line each. Never a cell's value, never a secret.

    10:04:31 info copy pipeline=customers table=public.customers rows=120000

`PENSTOCK_LOG` sets the level. Spark's and py4j's own loggers speak only of errors.
"""

from __future__ import annotations

import logging
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.observe.redact import redact

ENV = "PENSTOCK_LOG"
DEFAULT_LEVEL = "info"  # a run without a terminal tells how far it has got
LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
ROOT = "penstock"
QUIET = ("py4j", "pyspark", "urllib3", "sqlglot", "sqlalchemy")


class LineFormatter(logging.Formatter):
    """`time level event key=value …`, with secrets masked."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = getattr(record, "fields", {})
        time = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S")
        parts = [time, record.levelname.lower(), record.getMessage()]
        parts += [f"{name}={_shown(value)}" for name, value in fields.items() if value is not None]
        return redact(" ".join(parts))


class StderrHandler(logging.StreamHandler[Any]):
    """Writes to whatever stderr is at the moment: a progress bar puts its own in front of it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        return sys.stderr


class Log:
    """A logger whose events are a word or two and whose facts are fields."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(f"{ROOT}.{name}")

    def debug(self, event: str, **fields: object) -> None:
        self._logger.debug(event, extra={"fields": fields})

    def info(self, event: str, **fields: object) -> None:
        self._logger.info(event, extra={"fields": fields})

    def warning(self, event: str, **fields: object) -> None:
        self._logger.warning(event, extra={"fields": fields})

    def error(self, event: str, **fields: object) -> None:
        self._logger.error(event, extra={"fields": fields})


def setup(level: str | None = None) -> None:
    """Send Penstock's logs to stderr and quiet the libraries. Safe twice."""
    logger = logging.getLogger(ROOT)
    wanted = (level or os.environ.get(ENV) or DEFAULT_LEVEL).lower()
    logger.setLevel(LEVELS.get(wanted, LEVELS[DEFAULT_LEVEL]))
    logger.propagate = False
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    stderr = StderrHandler()
    stderr.setFormatter(LineFormatter())
    logger.addHandler(stderr)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.ERROR)
    if wanted not in LEVELS:
        Log("logs").warning("unknown log level", given=wanted, known=", ".join(LEVELS), taken=DEFAULT_LEVEL)


def write_traceback(folder: Path, text: str) -> Path:
    """Keep the traceback of an unexpected failure, with secrets masked, where only the user reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{datetime.now(UTC).strftime('%Y%m%dT%H%M%S.%f')}-{os.getpid()}.log"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(redact(text))
    return path


def _shown(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    text = text.replace("\n", " ")
    return f'"{text}"' if " " in text else text
