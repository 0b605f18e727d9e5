"""What a table does by itself with the rows of a flush. SQLite lets nobody turn triggers off, or put a check off."""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock.backends.reactions import Reaction, by_rows
from penstock.backends.sqlite.connect import Session
from penstock.schema import TableName

_BODY = re.compile(r"\bbegin\b", re.IGNORECASE)
_IGNORES = re.compile(r"\braise\s*\(\s*ignore\b", re.IGNORECASE)
_WRITES = r"\b(?:update(?:\s+or\s+\w+)?|into|delete\s+from)\s+(?:main\s*\.\s*)?[\"'`\[]?{}(?!\w)"


def reactions(session: Session, table: TableName, keys: Sequence[str]) -> list[Reaction]:
    found = session.query(
        "select type from main.sqlite_schema where type in ('table', 'view') and name = ? collate nocase",
        (table.table,),
    )
    if found and found[0][0] != "table":
        return [Reaction(f"{table} is a view", "another target for it: `target` in its options", refused=True)]
    return [*_of_triggers(session, table), *_of_unique(session, table, keys)]


def _of_triggers(session: Session, table: TableName) -> list[Reaction]:
    rows = session.query(
        "select name, sql from main.sqlite_schema where type = 'trigger' and tbl_name = ? collate nocase order by 1",
        (table.table,),
    )
    drop = "drop it (SQLite cannot turn it off), or choose another target for the table"
    writes = re.compile(_WRITES.format(re.escape(table.table)), re.IGNORECASE)
    made = []
    for name, sql in rows:
        body = sql[found.end() :] if (found := _BODY.search(sql)) else sql
        if _IGNORES.search(body) or writes.search(body):
            what = f"trigger {name} of {table.table} may change rows or leave them out"
            made.append(Reaction(what, drop, refused=True))
        else:
            made.append(
                Reaction(f"trigger {name} of {table.table} fires for what is replicated", f"if it shall not: {drop}")
            )
    return made


def _of_unique(session: Session, table: TableName, keys: Sequence[str]) -> list[Reaction]:
    rows = session.query(
        "select i.name, i.origin, c.name from pragma_index_list(?, 'main') as i"
        " left join pragma_index_info(i.name, 'main') as c where i.\"unique\" order by i.seq, c.seqno",
        (table.table,),
    )
    indexes: dict[tuple[str, str], list[str]] = {}
    for index, origin, column in rows:
        indexes.setdefault((index, origin), []).append(column or "")
    made = []
    for (index, origin), columns in indexes.items():
        if keys and set(keys) <= set(columns):
            continue  # of two rows that are alike there, the key is alike
        if origin == "c":
            made.append(by_rows(f"unique index {index}", table.table, f"drop index {index}, if rows do so"))
        else:
            named = f"the unique constraint on {', '.join(column or 'an expression' for column in columns)}"
            made.append(by_rows(named, table.table, "make the table without it, if rows do so"))
    return made
