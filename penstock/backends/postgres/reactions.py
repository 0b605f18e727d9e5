"""What a table does by itself with the rows of a flush, and which of it `session_replication_role` keeps still.

As replica, a session fires only what is enabled for it, checks no foreign key, and checks no constraint that is
deferrable: what the server's own subscriptions do. Names come qualified: the session's search_path is pg_catalog.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.backends.postgres import catalog
from penstock.backends.postgres.connect import DriverSession, identifier
from penstock.backends.postgres.dialect import qualified
from penstock.backends.reactions import Reaction, by_rows
from penstock.errors import TargetError
from penstock.schema import TableName

ROLE = ("session_replication_role", "replica")
# Bits of tgtype.
ROW, BEFORE = 1, 2
# By tgenabled and ev_enabled: those that fire in a session as replica, and in any other.
FIRES = {True: "RA", False: "OA"}
KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence", "c": "a type"}
CHANGES = {"c": "deletes or changes", "n": "changes", "d": "changes"}

_FAMILY = """
with recursive family as (select %s::oid as oid union
  select i.inhrelid from pg_inherits i join family f on i.inhparent = f.oid)
"""
_TRIGGERS = f"""{_FAMILY}
select distinct on (tgname, tgenabled) quote_ident(tgname), tgrelid::regclass::text, tgtype::int, tgenabled::text
from pg_trigger where tgrelid in (select oid from family) and not tgisinternal and tgenabled <> 'D'
order by tgname, tgenabled, tgrelid
"""
_RULES = """
select quote_ident(rulename), ev_class::regclass::text, ev_enabled::text
from pg_rewrite where ev_class = %s and rulename <> '_RETURN' and ev_enabled <> 'D' order by 1
"""
_UNIQUE = f"""{_FAMILY}
select quote_ident(c.relname), i.indrelid::regclass::text, i.indimmediate, con.contype is not null,
       i.indisexclusion,
       array(select a.attname::text from pg_attribute a
             where a.attrelid = i.indrelid and a.attnum = any((i.indkey::int2[])[0:i.indnkeyatts - 1]))
from pg_index i join pg_class c on c.oid = i.indexrelid
  left join pg_constraint con on con.conindid = i.indexrelid and con.contype in ('p', 'u', 'x')
where i.indrelid in (select oid from family) and (i.indisunique or i.indisexclusion) and i.indisready
  and not exists (select from pg_inherits where inhrelid = i.indexrelid)
order by 1
"""
_FOREIGN = f"""{_FAMILY}
select quote_ident(conname), conrelid::regclass::text, confrelid::regclass::text, condeferrable,
       confrelid in (select oid from family),
       confupdtype::text, confdeltype::text
from pg_constraint as con
where contype = 'f' and conparentid = 0 and coalesce((to_jsonb(con) ->> 'conenforced')::bool, true)
  and (conrelid in (select oid from family) or confrelid in (select oid from family))
order by 1
"""


def silence(session: DriverSession) -> bool:
    """Whether the transaction that is open may be one of a replica; from now on it is, where it may."""
    try:
        with session.atomic():  # a refusal leaves the transaction as it was
            session.execute(f"set local {ROLE[0]} = {ROLE[1]}")
    except TargetError as error:
        if getattr(error.__cause__, "sqlstate", None) == "42501":
            return False
        raise
    return True


def reactions(session: DriverSession, table: TableName, keys: Sequence[str], *, silenced: bool) -> list[Reaction]:
    found = catalog.relation(session.query, qualified(table))
    if found is None:
        return []
    if found.kind in KINDS:
        what = f"{table} is {KINDS[found.kind]}, not a table"
        return [Reaction(what, "another target for it: `target` in its options", refused=True)]
    [(user,)] = session.query("select current_user::text")
    grant = f"grant set on parameter {ROLE[0]} to {identifier(user)}"
    return [
        *_of_triggers(session, found.oid, grant, silenced=silenced),
        *_of_rules(session, found.oid, grant, silenced=silenced),
        *_of_unique(session, found.oid, keys, silenced=silenced),
        *([] if silenced else _of_foreign_keys(session, found.oid, grant)),
    ]


def _of_triggers(session: DriverSession, oid: int, grant: str, *, silenced: bool) -> list[Reaction]:
    made = []
    for name, table, kind, enabled in session.query(_TRIGGERS, (oid,)):
        changing = kind & (ROW | BEFORE) == ROW | BEFORE
        disable = f"alter table {table} disable trigger {name}"
        if enabled not in FIRES[silenced]:
            if not changing and silenced:
                keep = f"if it shall fire: alter table {table} enable always trigger {name}"
                made.append(Reaction(f"trigger {name} of {table} does not fire for what is replicated", keep))
            continue
        mend = disable if silenced else f"{grant}; or {disable}"
        if changing:
            what = f"trigger {name} of {table} fires before each row, and may change it or leave it out"
            made.append(Reaction(what, f"{mend}; or another target for the table", refused=True))
        else:
            made.append(Reaction(f"trigger {name} of {table} fires for what is replicated", f"if it shall not: {mend}"))
    return made


def _of_rules(session: DriverSession, oid: int, grant: str, *, silenced: bool) -> list[Reaction]:
    return [
        Reaction(
            f"rule {name} of {table} may change rows or leave them out",
            f"{'' if silenced else f'{grant}; or '}alter table {table} disable rule {name};"
            " or another target for the table",
            refused=True,
        )
        for name, table, enabled in session.query(_RULES, (oid,))
        if enabled in FIRES[silenced]
    ]


def _of_unique(session: DriverSession, oid: int, keys: Sequence[str], *, silenced: bool) -> list[Reaction]:
    made = []
    for name, table, immediate, declared, excludes, columns in session.query(_UNIQUE, (oid,)):
        if keys and set(keys) <= set(columns) and not excludes:
            continue  # of two rows that are alike there, the key is alike
        constraint = f"{'exclusion' if excludes else 'unique'} {'constraint' if declared else 'index'} {name}"
        drop = f"alter table {table} drop constraint {name}" if declared else "drop that index"
        if immediate:
            again = "add it again as a constraint that is deferrable initially deferred, or leave it out"
            made.append(by_rows(constraint, table, f"{drop}, and {again}"))
        elif silenced:
            what = f"{constraint} of {table} is deferrable, which the server does not check for what is replicated"
            made.append(Reaction(what, "keep the values unique at the source"))
    return made


def _of_foreign_keys(session: DriverSession, oid: int, grant: str) -> list[Reaction]:
    made = []
    for name, table, other, deferrable, referred, on_update, on_delete in session.query(_FOREIGN, (oid,)):
        does = CHANGES.get(on_delete) or CHANGES.get(on_update)
        if referred and does:
            what = f"foreign key {name} {does} rows of {table} when rows of {other} change"
            mend = f"{grant}; or make it a constraint without actions"
            made.append(Reaction(what, f"{mend}, deferrable; or drop it", refused=True))
        elif not deferrable or (referred and "r" in (on_update, on_delete)):
            what = f"foreign key {name} of {table} to {other} is checked row by row, in whatever order tables come"
            mend = f"{grant}; or alter table {table} alter constraint {name} deferrable"
            made.append(Reaction(what, mend))
    return made
