"""What a flush into SQLite promises of the disk."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.backends.sqlite import apply
from penstock.backends.sqlite.apply import SQLiteApplier
from penstock.backends.sqlite.config import SQLiteConfig
from penstock.backends.sqlite.connect import Session, open_target


def test_a_flush_is_on_the_disk_whatever_sqlite_was_built_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One built with another default lets a commit in WAL be lost with the power."""

    def opened(*args: Any, **options: Any) -> Session:
        session = open_target(*args, **options)
        session.execute("pragma synchronous = normal")
        return session

    monkeypatch.setattr(apply, "open_target", opened)
    applier = SQLiteApplier(SQLiteConfig(name="to", path=str(tmp_path / "a.sqlite")), "r")
    with closing(applier), applier.session() as session:
        assert session.query("pragma journal_mode") == [("wal",)]
        assert session.query("pragma synchronous") == [(2,)]
