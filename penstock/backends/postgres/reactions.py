"""What a table does by itself with the rows of a flush, and which of it `session_replication_role` keeps still.

As replica, a session fires only what is enabled for it, checks no foreign key, and checks no constraint that is
deferrable: what the server's own subscriptions do. Names come qualified: the session's search_path is pg_catalog.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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

_FOUND = """
select u.ord::int, c.oid::int8, c.relkind::text, current_user::text
from unnest(%s::text[]) with ordinality as u(name, ord) join pg_class c on c.oid = to_regclass(u.name)
"""
# Each table with its partitions and whatever inherits from it, under the number of the first.
_FAMILY = """
with recursive family as (select u.oid as root, u.oid as oid from unnest(%s::oid[]) as u(oid) union
  select f.root, i.inhrelid from pg_inherits i join family f on i.inhparent = f.oid)
"""
_TRIGGERS = f"""{_FAMILY}
select distinct on (root, tgname, tgenabled)
       root::int8, quote_ident(tgname), tgrelid::regclass::text, tgtype::int, tgenabled::text
from family join pg_trigger on tgrelid = family.oid where not tgisinternal and tgenabled <> 'D'
order by root, tgname, tgenabled, tgrelid
"""
_RULES = """
select ev_class::int8, quote_ident(rulename), ev_class::regclass::text, ev_enabled::text
from pg_rewrite where ev_class = any(%s::oid[]) and rulename <> '_RETURN' and ev_enabled <> 'D' order by 1, 2
"""
_UNIQUE = f"""{_FAMILY}
select root::int8, quote_ident(c.relname), i.indrelid::regclass::text, i.indimmediate, con.contype is not null,
       i.indisexclusion,
       array(select a.attname::text from pg_attribute a
             where a.attrelid = i.indrelid and a.attnum = any((i.indkey::int2[])[0:i.indnkeyatts - 1]))
from family join pg_index i on i.indrelid = family.oid join pg_class c on c.oid = i.indexrelid
  left join pg_constraint con on con.conindid = i.indexrelid and con.contype in ('p', 'u', 'x')
where (i.indisunique or i.indisexclusion) and i.indisready
  and not exists (select from pg_inherits where inhrelid = i.indexrelid)
order by 1, 2
"""
_FOREIGN = f"""{_FAMILY}
select distinct root::int8, quote_ident(conname), conrelid::regclass::text, confrelid::regclass::text, condeferrable,
       confrelid = family.oid, confupdtype::text, confdeltype::text
from family join pg_constraint as con on family.oid in (conrelid, confrelid)
where contype = 'f' and conparentid = 0 and coalesce((to_jsonb(con) ->> 'conenforced')::bool, true)
order by 1, 2
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


def reactions(
    session: DriverSession, tables: Mapping[TableName, Sequence[str]], *, silenced: bool
) -> dict[TableName, list[Reaction]]:
    """Of many tables at once, each with its key: a few questions, however many they are."""
    made: dict[TableName, list[Reaction]] = {}
    names, oids, grant = list(tables), dict[int, TableName](), ""
    for place, oid, kind, user in session.query(_FOUND, ([qualified(name) for name in names],)):
        name = names[place - 1]
        grant = f"grant set on parameter {ROLE[0]} to {identifier(user)}"
        if kind in KINDS:
            what, remedy = f"{name} is {KINDS[kind]}, not a table", "another target for it: `target` in its options"
            made[name] = [Reaction(what, remedy, refused=True)]
        else:
            oids[oid], made[name] = name, []
    if not oids:
        return made
    found: list[tuple[int, Reaction | None]] = []
    for oid, *trigger in session.query(_TRIGGERS, (list(oids),)):
        found.append((oid, _of_trigger(trigger, grant, silenced=silenced)))
    for oid, *rule in session.query(_RULES, (list(oids),)):
        found.append((oid, _of_rule(rule, grant, silenced=silenced)))
    for oid, *index in session.query(_UNIQUE, (list(oids),)):
        found.append((oid, _of_unique(index, tables[oids[oid]], silenced=silenced)))
    for oid, *foreign in [] if silenced else session.query(_FOREIGN, (list(oids),)):
        found.append((oid, _of_foreign_key(foreign, grant)))
    for oid, reaction in found:
        made[oids[oid]] += [reaction] if reaction is not None else []
    return made


def _of_trigger(trigger: Sequence[Any], grant: str, *, silenced: bool) -> Reaction | None:
    name, table, kind, enabled = trigger
    changing = kind & (ROW | BEFORE) == ROW | BEFORE
    disable = f"alter table {table} disable trigger {name}"
    if enabled not in FIRES[silenced]:
        if changing or not silenced:
            return None
        keep = f"if it shall fire: alter table {table} enable always trigger {name}"
        return Reaction(f"trigger {name} of {table} does not fire for what is replicated", keep)
    mend = disable if silenced else f"{grant}; or {disable}"
    if not changing:
        return Reaction(f"trigger {name} of {table} fires for what is replicated", f"if it shall not: {mend}")
    what = f"trigger {name} of {table} fires before each row, and may change it or leave it out"
    return Reaction(what, f"{mend}; or another target for the table", refused=True)


def _of_rule(rule: Sequence[Any], grant: str, *, silenced: bool) -> Reaction | None:
    name, table, enabled = rule
    if enabled not in FIRES[silenced]:
        return None
    disable = f"alter table {table} disable rule {name}; or another target for the table"
    mend = disable if silenced else f"{grant}; or {disable}"
    return Reaction(f"rule {name} of {table} may change rows or leave them out", mend, refused=True)


def _of_unique(index: Sequence[Any], keys: Sequence[str], *, silenced: bool) -> Reaction | None:
    name, table, immediate, declared, excludes, columns = index
    if keys and set(keys) <= set(columns) and not excludes:
        return None  # of two rows that are alike there, the key is alike
    constraint = f"{'exclusion' if excludes else 'unique'} {'constraint' if declared else 'index'} {name}"
    if immediate:
        drop = f"alter table {table} drop constraint {name}" if declared else "drop that index"
        again = "add it again as a constraint that is deferrable initially deferred, or leave it out"
        return by_rows(constraint, table, f"{drop}, and {again}")
    if not silenced:
        return None
    what = f"{constraint} of {table} is deferrable, which the server does not check for what is replicated"
    return Reaction(what, "keep the values unique at the source")


def _of_foreign_key(foreign: Sequence[Any], grant: str) -> Reaction | None:
    name, table, other, deferrable, referred, on_update, on_delete = foreign
    does = CHANGES.get(on_delete) or CHANGES.get(on_update)
    if referred and does:
        what = f"foreign key {name} {does} rows of {table} when rows of {other} change"
        mend = f"{grant}; or make it a constraint without actions"
        return Reaction(what, f"{mend}, deferrable; or drop it", refused=True)
    if deferrable and not (referred and "r" in (on_update, on_delete)):
        return None
    what = f"foreign key {name} of {table} to {other} is checked row by row, in whatever order tables come"
    return Reaction(what, f"{grant}; or alter table {table} alter constraint {name} deferrable")
