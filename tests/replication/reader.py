"""Reads a target all along, as an application would: `python -m tests.replication.reader KIND PLACE SUM`.

It ends when its standard input does, and then prints how often it has read, how many moments it has seen, and every
one at which money was missing, or a transfer.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
from collections.abc import Callable
from typing import Any

import duckdb
import psycopg

# Every transfer moves what it takes, and counts in both accounts.
SQL = (
    "select (select sum(balance) from {0}accounts), (select sum(moves) from {0}accounts),"
    " (select count(*) from {0}transfers)"
)
Read = Callable[[], Any]  # a row


def reader(kind: str, place: str) -> Read:
    if kind == "postgres":
        session = psycopg.connect(place, autocommit=True)
        return lambda: session.execute(SQL.format("public.").encode()).fetchone()
    if kind == "sqlite":
        file = sqlite3.connect(place)
        return lambda: file.execute(SQL.format("")).fetchone()

    def read() -> Any:
        with duckdb.connect(place, read_only=True) as opened:
            return opened.execute(SQL.format("main.")).fetchone()

    return read


# Not there yet, or, of a DuckDB file, held by the agent.
NOT_NOW = (psycopg.errors.UndefinedTable, sqlite3.OperationalError, duckdb.CatalogException, duckdb.IOException)


def _await_end(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


def main() -> int:
    kind, place, whole = sys.argv[1], sys.argv[2], int(sys.argv[3])
    over = threading.Event()
    threading.Thread(target=_await_end, args=(over,), daemon=True).start()
    read = reader(kind, place)
    reads, moments, torn = 0, set(), []
    while not over.wait(0.005):
        try:
            total, moves, count = map(int, read())
        except NOT_NOW:
            continue
        reads += 1
        moments.add(count)
        if total != whole or moves != 2 * count:
            torn.append((total, moves, count))
    print(json.dumps({"reads": reads, "moments": len(moments), "torn": torn}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
