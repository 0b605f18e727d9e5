"""scd2 by event time: a version begins when its row says, however late the row comes.

Every event that was ever seen is kept as a version, also one whose values are those of the version
before it. To leave such a one out would make the history depend on the order of arrival: of the
events a, a, b the second a is needed once b turns out to lie between the two.

A key that has vanished ends at the load's own time. That end stays a bound of the history, unless
the key is seen again and has no event after it: then it was never gone.
"""

from __future__ import annotations

from penstock.backends.base import STAGED, Check, Execute, StagedColumn, Step
from penstock.load.columns import ColumnsPlan
from penstock.load.modes import (
    ADD_TERM,
    IS_CURRENT,
    IS_NEW,
    NOW,
    RANK,
    ROW_HASH,
    VALID_FROM,
    VALID_TO,
    Statement,
    first_of,
    shrink_guard,
    undecided,
    vanished,
)
from penstock.load.times import Moment, counts_nanoseconds

EVENTS = "_penstock_events"  # of the load: one per key and moment
REPLACED = "_penstock_replaced"  # events that take the place of what the target has of their moment
TOUCHED = "_penstock_touched"  # keys whose bounds are to be mended
VERSIONS = "_penstock_versions"  # their versions, old and new, with the bounds that they should have
MENDED = "_penstock_mended"  # versions of the target with other ends
AT = "_penstock_at"
ENDS = "_penstock_ends"
NEXT = "_penstock_next"
LAST = "_penstock_last"
KIND = "_penstock_kind"


def event_refusals(event: Moment | None, columns: ColumnsPlan) -> list[str]:
    """`valid_from` counts microseconds: two events of one of them would become one."""

    def fine(staged: StagedColumn) -> bool:
        return event is not None and staged.column.name == event.column and counts_nanoseconds(staged)

    return [
        f"event_time = {staged.source!r} counts nanoseconds, and {VALID_FROM} microseconds: cast it in the query"
        for staged in columns.columns
        if fine(staged)
    ]


def scd2_by_event(statement: Statement, event: Moment) -> list[Step]:
    """The whole mode; all bounds are taken from the events, so a load that comes twice changes nothing."""
    steps: list[Step] = [_null_check(statement, event), _events(statement, event)]
    steps.append((_tie_in_load if statement.pipeline.order_by else _conflict_in_load)(statement, event))
    if statement.exists:
        steps += [_own_history_check(statement, event), *_same_moment(statement, event)]
        if statement.pipeline.deletes == "close":
            steps += _closes(statement)
    return [*steps, _touched(statement), _versions(statement), *_mended(statement), _inserted(statement)]


# ---------------------------------------------------------------- the load's own events


def _null_check(statement: Statement, event: Moment) -> Check:
    none = f"{event.instant(statement.dialect, 's')} is null"
    return Check(
        f"select {statement.key_text()}\nfrom {STAGED} as s\nwhere {none}\nlimit 3",
        f"rows without an event time ({event.column})",
        why="it is NULL, or nothing that the target could put in order: such a row has no place in the history",
        remedy="filter them out, or give them a time in the query",
    )


def _events(statement: Statement, event: Moment) -> Execute:
    """One row per key and moment, and whether the target has none of it yet."""
    names, valid_from = statement.listed(statement.names), _quoted(statement, VALID_FROM)
    rank = f"row_number() over (partition by {statement.listed(statement.keys)}, {AT}{first_of(statement)}) as {RANK}"
    return Execute(
        f"create temporary table {EVENTS} as\n"
        f"select {statement.listed(statement.names, 'e')}, e.{AT}, t.{valid_from} is null as {IS_NEW}"
        f"\nfrom (\n  select {names}, {AT}, {rank}\n  from (select {names}, {event.instant(statement.dialect, 's')}"
        f" as {AT} from {STAGED} as s) as timed\n) as e\n"
        f"left join {statement.target} as t on {_same_version(statement, 't', 'e')}\nwhere e.{RANK} = 1"
    )


def _compared(statement: Statement, event: Moment) -> tuple[str, ...]:
    """What must be equal in two rows that are one event: of local times two may be one moment."""
    return tuple(dict.fromkeys((*statement.tracked, event.column)))


def _conflict_in_load(statement: Statement, event: Moment) -> Check:
    return Check(
        f"select distinct {statement.key_text()}\nfrom {STAGED} as s\nwhere exists (select 1 from {EVENTS} as e"
        f" where {statement.same_key('s', 'e')} and e.{AT} = {event.instant(statement.dialect, 's')}"
        f"\n  and {statement.differs(_compared(statement, event), 's', 'e')})\nlimit 3",
        "one key has different values at one time",
        why=f"two rows of the load have the same {event.column}, so neither of them is the later one",
        remedy='say which wins with order_by = "seq desc"',
    )


def _tie_in_load(statement: Statement, event: Moment) -> Check:
    timed = f"select {statement.listed(statement.names)}, {event.instant(statement.dialect, 's')} as {AT}"
    why = (
        f"two rows of one key have the same {event.column}, are equal in {statement.pipeline.order_by},"
        " and have different values"
    )
    return undecided(statement, f"{timed} from {STAGED} as s", _compared(statement, event), why, moment=AT)


# ---------------------------------------------------------------- what the target has


def _own_history_check(statement: Statement, event: Moment) -> Check:
    """Versions by load time and by event time in one history would follow each other in no order."""
    valid_from = f"t.{_quoted(statement, VALID_FROM)}"
    return Check(
        f"select distinct {statement.key_text()}\nfrom {statement.target} as t\n"
        f"where {valid_from} is distinct from {event.instant(statement.dialect, 't')}\n"
        f"  and exists (select 1 from {EVENTS} as e where e.{IS_NEW} and {statement.same_key('t', 'e')})\nlimit 3",
        "the target's history was not made by this event time",
        why=f"rows have a {VALID_FROM} that is not the moment of their {event.column}",
        remedy="load into another table, or set event_time and cursor_timezone as they were",
    )


def _same_moment(statement: Statement, event: Moment) -> list[Step]:
    """Another row for a moment that the target has: an error, or a matter of order, or the source's word."""
    if statement.full_refresh:
        return _replaced(statement, _by_refresh(statement))
    if statement.pipeline.order_by:
        return [_tie_with_target(statement, event), *_replaced(statement, _by_order(statement))]
    return [
        Check(
            f"select distinct {statement.key_text()}\nfrom {EVENTS} as e\nwhere not e.{IS_NEW} and exists"
            f" (select 1 from {statement.target} as t where {_same_version(statement, 't', 'e')}"
            f"\n  and {statement.differs(_compared(statement, event), 't', 'e')})\nlimit 3",
            "one key has different values at one time",
            why="the target has a version that began at the same time with other values",
            remedy='say which wins with order_by = "seq desc", or take the source\'s rows with --full-refresh',
        )
    ]


def _values(statement: Statement) -> tuple[str, ...]:
    return tuple(name for name in statement.names if name not in statement.keys)


def _by_refresh(statement: Statement) -> str:
    return (
        f"select {statement.listed(statement.names, 'e')}, e.{AT}\nfrom {EVENTS} as e\n"
        f"join {statement.target} as t on {_same_version(statement, 't', 'e')}\n"
        f"where not e.{IS_NEW} and {statement.differs(_values(statement), 't', 'e')}"
    )


def _by_order(statement: Statement) -> str:
    names, keys = statement.listed(statement.names), statement.listed(statement.keys)
    return (
        f"select {names}, {AT}\nfrom (\n"
        f"  select {names}, {AT}, {KIND}, row_number() over (partition by {keys}, {AT}{first_of(statement)}, {KIND})"
        f" as {RANK}\n  from ({_both_sides(statement)}) as both_sides\n) as ranked\nwhere {RANK} = 1 and {KIND} = 1"
    )


def _both_sides(statement: Statement) -> str:
    """The load's events of moments that the target has, and its versions of them."""
    return (
        f"\n    select {statement.listed(statement.names)}, {AT}, 1 as {KIND} from {EVENTS} where not {IS_NEW}\n"
        f"    union all\n    select {statement.listed(statement.names, 't')}, t.{_quoted(statement, VALID_FROM)}, 0"
        f"\n    from {statement.target} as t join {EVENTS} as e on {_same_version(statement, 't', 'e')}\n  "
    )


def _tie_with_target(statement: Statement, event: Moment) -> Check:
    why = (
        f"the target has a version that began at the same time, is equal in {statement.pipeline.order_by},"
        " and has other values"
    )
    remedy = f"{ADD_TERM}; or take the source's rows with --full-refresh"
    return undecided(statement, _both_sides(statement), _compared(statement, event), why, moment=AT, remedy=remedy)


def _replaced(statement: Statement, select: str) -> list[Step]:
    quote = statement.dialect.quote
    sets = [f"{quote(name)} = r.{quote(name)}" for name in _values(statement)]
    sets.append(f"{quote(ROW_HASH)} = {statement.dialect.row_hash(statement.tracked or statement.keys, 'r')}")
    rows = f"{REPLACED} as r\nwhere {_same_version(statement, 't', 'r')}"
    return [
        Execute(f"create temporary table {REPLACED} as\n{select}"),
        Execute(
            f"{statement.dialect.update} {statement.target} as t\nset {', '.join(sets)}\nfrom {rows}",
            "updated",
            touches=statement.all_of(f"{statement.target} as t, {rows}"),
        ),
    ]


def _closes(statement: Statement) -> list[Step]:
    """Keys that have vanished end now: when they went is not known any better."""
    quote = statement.dialect.quote
    now = f"(select ts from {NOW})"
    where = f"where {vanished(statement)}"
    return [
        # One reading of the target's clock for the whole load.
        Execute(f"create temporary table {NOW} as select {statement.dialect.now()} as ts"),
        Check(
            f"select distinct {statement.key_text()}\nfrom {statement.target} as t\n{where}\n"
            f"  and t.{quote(VALID_FROM)} >= {now}\nlimit 3",
            "keys have vanished whose last version has not begun yet",
            why=f"their {VALID_FROM} is ahead of the target's clock, and they would end before it",
            remedy="set the clock right, or wait until then",
        ),
        *shrink_guard(statement),
        Execute(
            f"{statement.dialect.update} {statement.target} as t\n"
            f"set {quote(VALID_TO)} = {now}, {quote(IS_CURRENT)} = false\n{where}",
            "deleted",
            touches=statement.all_of(f"{statement.target} as t {where}"),
        ),
    ]


# ---------------------------------------------------------------- bounds


def _touched(statement: Statement) -> Execute:
    """Keys with a new event, and those that are back."""
    return Execute(
        f"create temporary table {TOUCHED} as\nselect distinct {statement.listed(statement.keys, 'e')}\n"
        f"from {EVENTS} as e\nwhere e.{IS_NEW} or not exists (select 1 from {statement.target} as t"
        f" where t.{_quoted(statement, IS_CURRENT)} and {statement.same_key('t', 'e')})"
    )


def _versions(statement: Statement) -> Execute:
    """A version ends where the next one begins, or where the key had vanished before that; the last is open.

    Every end that the target has counts as a point: it is where a version begins, or where a key
    had vanished. An end comes before a beginning of the same moment, so that none is its own end.
    """
    keys, own = statement.listed(statement.keys), statement.listed(statement.keys, "t")
    begins, ends = f"t.{_quoted(statement, VALID_FROM)}", f"t.{_quoted(statement, VALID_TO)}"
    history = f"{statement.target} as t join {TOUCHED} as k on {statement.same_key('t', 'k')}"
    return Execute(
        f"create temporary table {VERSIONS} as\nselect {keys}, {AT},"
        f"\n  case when {AT} < {LAST} then {NEXT} end as {ENDS}"
        f"\nfrom (\n  select {keys}, {AT}, {KIND},"
        f"\n    lead({AT}) over (partition by {keys} order by {AT}, {KIND}) as {NEXT},"
        f"\n    max(case when {KIND} = 1 then {AT} end) over (partition by {keys}) as {LAST}"
        f"\n  from (\n    select {keys}, {AT}, 1 as {KIND} from {EVENTS} where {IS_NEW}"
        f"\n    union all\n    select {own}, {begins}, 1 from {history}"
        f"\n    union all\n    select {own}, {ends}, 0 from {history} where {ends} is not null"
        f"\n  ) as points\n) as bounds\nwhere {KIND} = 1"
    )


def _mended(statement: Statement) -> list[Step]:
    """The versions of the target that end elsewhere now."""
    if not statement.exists:
        return []
    if statement.dialect.update_form == "delete_insert" and not statement.indexed:
        return _mended_by_insert(statement)
    quote = statement.dialect.quote
    rows = (
        f"{VERSIONS} as v\nwhere {statement.same_key('t', 'v')} and t.{quote(VALID_FROM)} = v.{AT}\n"
        f"  and t.{quote(VALID_TO)} is distinct from v.{ENDS}"
    )
    return [
        Execute(
            f"{statement.dialect.update} {statement.target} as t\n"
            f"set {quote(VALID_TO)} = v.{ENDS}, {quote(IS_CURRENT)} = (v.{ENDS} is null)\nfrom {rows}",
            "updated",
            touches=statement.all_of(f"{statement.target} as t, {rows}"),
        )
    ]


def _mended_by_insert(statement: Statement) -> list[Step]:
    """Deleted and inserted: an update of rows that lie apart takes six times as long there."""
    quote = statement.dialect.quote
    carried = (*statement.names, *statement.kept, VALID_FROM, ROW_HASH)
    names = (*carried, VALID_TO, IS_CURRENT)
    return [
        Execute(
            f"create temporary table {MENDED} as\nselect {statement.listed(carried, 't')},"
            f" v.{ENDS} as {quote(VALID_TO)}, (v.{ENDS} is null) as {quote(IS_CURRENT)}\n"
            f"from {statement.target} as t\njoin {VERSIONS} as v on {_same_version(statement, 't', 'v')}\n"
            f"where t.{quote(VALID_TO)} is distinct from v.{ENDS}"
        ),
        Execute(
            f"delete from {statement.target} as t\nusing {MENDED} as m\n"
            f"where {statement.same_key('t', 'm')} and t.{quote(VALID_FROM)} = m.{quote(VALID_FROM)}"
        ),
        Execute(statement.insert(names, f"select {statement.listed(names)}\nfrom {MENDED}"), "updated"),
    ]


def _inserted(statement: Statement) -> Execute:
    names = (*statement.names, VALID_FROM, VALID_TO, IS_CURRENT, ROW_HASH)
    rows = (
        f"{EVENTS} as e\njoin {VERSIONS} as v on {statement.same_key('e', 'v')} and e.{AT} = v.{AT}\nwhere e.{IS_NEW}"
    )
    row_hash = statement.dialect.row_hash(statement.tracked or statement.keys, "e")
    select = f"select {statement.listed(statement.names, 'e')}, e.{AT}, v.{ENDS}, (v.{ENDS} is null), {row_hash}"
    return Execute(statement.insert(names, f"{select}\nfrom {rows}"), "inserted", touches=statement.all_of(rows))


def _same_version(statement: Statement, version: str, event: str) -> str:
    return f"{statement.same_key(version, event)} and {version}.{_quoted(statement, VALID_FROM)} = {event}.{AT}"


def _quoted(statement: Statement, name: str) -> str:
    return statement.dialect.quote(name)
