"""Publications: those that a replication makes, and one that the user has made and that is only looked at.

Two of our own: one for tables whose every change can be sent, one for tables without a key, of which only what is
added is sent. A table without a key in the first would make the application's own UPDATE fail.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from penstock.backends.change_source import Finding, LogNames
from penstock.backends.postgres.connect import DriverSession, identifier, literal
from penstock.backends.postgres.dialect import qualified
from penstock.backends.postgres.replication import PublishedTable, publications
from penstock.schema import TableName

LISTS = 150_000  # the first version whose publications have column lists and row filters
GENERATED = 180_000  # the first version that sends generated columns
KINDS = ("insert, update, delete, truncate", "insert, truncate")

_MEMBERS = """
select n.nspname::text, c.relname::text,
       coalesce(max(r.oid), max(s.oid), max(p.oid))::int8
from pg_catalog.pg_publication p
  cross join lateral pg_catalog.pg_get_publication_tables(p.pubname::text) g
  join pg_catalog.pg_class c on c.oid = g.relid join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  left join pg_catalog.pg_publication_rel r on r.prpubid = p.oid and r.prrelid = c.oid
  {schemas}
where p.pubname = any(%s) group by 1, 2
"""
_SCHEMAS = "left join pg_catalog.pg_publication_namespace s on s.pnpubid = p.oid and s.pnnspid = c.relnamespace"


def statements(
    session: DriverSession, names: LogNames, tables: Sequence[PublishedTable], troubled: Collection[TableName] = ()
) -> list[str]:
    """What is missing of our own publications, and no more. `troubled` are tables whose UPDATEs fail in them."""
    if names.own:
        return []
    known = {name for (name,) in session.query("select pubname::text from pg_catalog.pg_publication")}
    # First of all: one that has lost its key since is one that nobody can update.
    failing = [table for table in members(session, [names.publication]) if table in troubled]
    made = [_drop(names.publication, failing)] if failing else []
    for name, wanted, kinds in zip(publications(names), _members(tables), KINDS, strict=True):
        if name not in known:
            made.append(_create(session, name, wanted, kinds))
        elif {table.name for table in wanted} - set(members(session, [name])):
            made.append(_set(name, wanted))
    return made


def changes(session: DriverSession, names: LogNames, tables: Sequence[PublishedTable]) -> list[str]:
    """What makes our own publications have just these tables, columns and rows."""
    if names.own:
        return []
    made = []
    for name, wanted in zip(publications(names), _members(tables), strict=True):
        there = members(session, [name])
        if wanted:
            made.append(_set(name, wanted))
        elif there:
            made.append(_drop(name, list(there)))
    return made


def removal(names: LogNames) -> list[str]:
    """What takes back our own publications."""
    return [] if names.own else [f"drop publication if exists {identifier(name)}" for name in publications(names)]


def _drop(name: str, tables: Sequence[TableName]) -> str:
    return f"alter publication {identifier(name)} drop table {', '.join(qualified(table) for table in tables)}"


def members(session: DriverSession, names: Sequence[str]) -> dict[TableName, int]:
    """The tables of some publications, each with the number of the entry that makes it one.

    A table that was taken out and put in again has another number: what happened to it in between was not sent.
    """
    query = _MEMBERS.format(schemas=_SCHEMAS)
    if session.connection.info.server_version < LISTS:
        query = _MEMBERS.format(schemas="").replace("max(s.oid), ", "").replace("g\n", "g(relid)\n")
    return {TableName(schema, table): entry for schema, table, entry in session.query(query, (list(names),))}


def _create(session: DriverSession, name: str, tables: Sequence[PublishedTable], kinds: str) -> str:
    listed = f" for table {', '.join(table.sql for table in tables)}" if tables else ""
    options = [f"publish = {literal(kinds)}", "publish_via_partition_root = true"]
    if session.connection.info.server_version >= GENERATED:
        options.append("publish_generated_columns = stored")
    return f"create publication {identifier(name)}{listed} with ({', '.join(options)})"


def _set(name: str, tables: Sequence[PublishedTable]) -> str:
    return f"alter publication {identifier(name)} set table {', '.join(table.sql for table in tables)}"


def _members(tables: Sequence[PublishedTable]) -> tuple[list[PublishedTable], list[PublishedTable]]:
    return [table for table in tables if table.changes], [table for table in tables if not table.changes]


# ---------------------------------------------------------------- what is left out


def chosen(tables: Sequence[PublishedTable], names: LogNames) -> tuple[list[PublishedTable], tuple[Finding, ...]]:
    """Without the tables that no key tells apart and nobody has named: and what is said of each."""
    taken, left = [], []
    for table in tables:
        if table.unsent:
            left.append(Finding(f"{table.name} is left out: {table.unsent}, and the log has nothing of it", UNSENT))
        elif table.changes or names.own:
            taken.append(table)
        elif table.literal:
            taken.append(table)
            left.append(
                Finding(
                    f"of {table.name} only what is added is replicated: {table.trouble}",
                    _identify(table),
                )
            )
        else:
            left.append(
                Finding(
                    f"{table.name} is left out: {table.trouble}, and its UPDATEs would fail if they were published",
                    f"{_identify(table)}; named letter by letter, what is added to it is replicated",
                )
            )
    return taken, tuple(left)


def _identify(table: PublishedTable) -> str:
    whole = "" if "virtual" in table.trouble else f", or: alter table {qualified(table.name)} replica identity full"
    if table.kind == "p":
        whole += ", and so of each of its partitions" if whole else ""
    if "NOTHING" in table.trouble or "index" in table.trouble or "virtual" in table.trouble:
        return f"where it has a primary key, alter table {qualified(table.name)} replica identity default{whole}"
    return f"give it a primary key{whole}"


UNSENT = "copy it by a pipeline instead, or exclude it"


def sends_generated(session: DriverSession, names: LogNames) -> bool:
    """Whether stored generated columns are in the stream."""
    if session.connection.info.server_version < GENERATED:
        return False
    if not names.own:
        return True
    rows = session.query(
        "select pubgencols::text from pg_catalog.pg_publication where pubname = %s", (names.publication,)
    )
    return bool(rows) and rows[0][0] == "s"


# ---------------------------------------------------------------- one of the user's own

_OWN = "select pubinsert and pubupdate and pubdelete and pubtruncate, pubviaroot from pg_publication where pubname = %s"


def own_findings(session: DriverSession, name: str, tables: Sequence[PublishedTable]) -> list[Finding]:
    """What a publication that is left as it is lacks."""
    rows = session.query(_OWN, (name,))
    if not rows:
        return [
            Finding(
                f"there is no publication {name}",
                f"create publication {identifier(name)} for table"
                f" {', '.join(table.sql for table in tables)} with (publish_via_partition_root = true);"
                " or leave `publication` out, and one is made",
            )
        ]
    [(all_kinds, via_root)] = rows
    there = members(session, [name])
    found = []
    lacking = [table for table in tables if table.name not in there]
    if lacking:
        found.append(
            Finding(
                f"the publication {name} does not have {', '.join(str(table.name) for table in lacking)}",
                f"alter publication {identifier(name)} add table {', '.join(table.sql for table in lacking)}",
            )
        )
    if not all_kinds:
        found.append(
            Finding(
                f"the publication {name} does not send every kind of change",
                f"alter publication {identifier(name)} set (publish = {literal(KINDS[0])})",
            )
        )
    if not via_root and any(table.kind == "p" for table in tables):
        found.append(
            Finding(
                f"the publication {name} sends the rows of partitions by the partitions' names",
                f"alter publication {identifier(name)} set (publish_via_partition_root = true)",
            )
        )
    found += [
        Finding(
            f"{table.name} has no replica identity that does, {table.trouble}: the server refuses its UPDATEs and"
            " DELETEs while it is published",
            _identify(table),
        )
        for table in tables
        if not table.changes
    ]
    return found


def as_published(session: DriverSession, name: str, tables: Sequence[PublishedTable]) -> list[PublishedTable]:
    """With the columns and rows that a publication of the user's own sends: the copy brings the same."""
    if session.connection.info.server_version < LISTS:
        return list(tables)
    rows = session.query(
        "select t.schemaname::text, t.tablename::text, t.rowfilter, case when r.prattrs is not null"
        " then t.attnames::text[] end from pg_catalog.pg_publication_tables t"
        " join pg_catalog.pg_publication p on p.pubname = t.pubname"
        " left join pg_catalog.pg_publication_rel r on r.prpubid = p.oid"
        " and r.prrelid = pg_catalog.format('%%I.%%I', t.schemaname, t.tablename)::regclass where t.pubname = %s",
        (name,),
    )
    sent = {TableName(schema, table): (where, columns) for schema, table, where, columns in rows}
    made = []
    for table in tables:
        where, columns = sent.get(table.name, (None, None))
        given = tuple(column for column in table.columns if columns is None or column in columns)
        made.append(replace(table, columns=given or tuple(columns or ()), where=where or table.where))
    return made
