"""Where text and JSON go: records on stdout, everything else on stderr. Nothing is highlighted by guess."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.observe.redact import RedactingStream, redact, redact_values

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDTH = 100  # of output that goes nowhere near a terminal


def out() -> Console:
    return _console(stderr=False)


def err() -> Console:
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else WIDTH
    # Highlighting puts colour codes inside words, where the mask would no longer find a secret.
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=False, emoji=False, markup=True)


def table(title: str, *columns: str, right: Iterable[str] = ()) -> Table:
    """An empty table in the one style that all commands share."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    numbers = set(right)
    made = Table(
        title=Text(title, style="bold") if title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        header_style="bold dim",
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    for name in columns:
        made.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    return made


def cell(value: object, style: str = "") -> Any:
    """A table cell: text as it is, never read as markup, with secrets masked before it is wrapped."""
    from rich.text import Text

    return Text(redact("" if value is None else str(value)), style=style)


def spans(*parts: tuple[str, str]) -> Any:
    """A line of (text, style) parts, masked like a cell."""
    from rich.text import Text

    return Text.assemble(*((redact(text), style) for text, style in parts))


def print_json(records: Sequence[object] | object) -> None:
    """JSON and nothing else on stdout; strings are masked one by one, so that field names stay."""
    text = json.dumps(redact_values(plain(records)), indent=2, ensure_ascii=False)
    stream = sys.stdout.wrapped if isinstance(sys.stdout, RedactingStream) else sys.stdout
    stream.write(text + "\n")
    stream.flush()


def plain(value: Any) -> Any:
    """A record as JSON knows it: fields of dataclasses and models by their names."""
    if value is None or (isinstance(value, bool | int | float | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Path):
        return str(value)
    if type(value).__name__ == "TableName":
        return str(value)
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return str(value)


def count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def lag(size_: int | None, seconds: float | None) -> str:
    """How far behind, for people."""
    if size_ is None:
        return ""
    return size(size_) if seconds is None else f"{size(size_)}, {seconds:,.1f} s"


def size(number: int | None) -> str:
    """Bytes for people."""
    if number is None:
        return ""
    amount = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def per_second(rows: int | None, seconds: float | None) -> str:
    if not rows or not seconds or seconds <= 0:
        return ""
    return f"{rows / seconds:,.0f}"
