"""The statements of each mode, over the relation of staged rows and the target table.

Every statement runs in the load's one transaction, so none of them is visible, or kept, without
the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import sqlglot
from sqlglot import exp

from penstock.backends.base import RAW, STAGED, Check, Dialect, Execute, PartitionField, StagedColumn, Step, Tally
from penstock.backends.sorting import is_number
from penstock.errors import PlanRefused
from penstock.load.times import Moment
from penstock.project.model import Pipeline
from penstock.schema import ColumnDef, TableName
from penstock.schema.names import folded

DELETED = "_penstock_deleted"
DELETED_AT = "_penstock_deleted_at"
VALID_FROM, VALID_TO, IS_CURRENT, ROW_HASH = "valid_from", "valid_to", "is_current", "row_hash"
NOW = "_penstock_now"
CHANGED = "_penstock_changed"
IS_NEW = "_penstock_new"
RANK = "_penstock_rank"
ARRIVED = "_penstock_arrived"  # with a ttl: what was staged, the old rows too

ADD_TERM = 'add to it what tells them apart, as in order_by = "updated_at desc, version desc"'


@dataclass(frozen=True, slots=True)
class Statement:
    """What the modes need to know to write their statements."""

    pipeline: Pipeline
    dialect: Dialect
    table: TableName
    columns: tuple[StagedColumn, ...]
    keys: tuple[str, ...]
    kept: tuple[str, ...] = ()  # target columns that the load does not bring
    exists: bool = True
    indexed: bool = False  # the target has a key of its own
    identity: tuple[str, ...] = ()
    triggers: bool = False  # the target has some that may leave out rows
    full_refresh: bool = False
    tracked: tuple[str, ...] = ()  # scd2: the columns whose change makes a version
    event: Moment | None = None  # scd2: when a version began, if not when it was loaded
    expiry: Moment | None = None  # with a ttl: how old a row is
    partition_by: tuple[PartitionField, ...] = ()

    @property
    def target(self) -> str:
        return self.dialect.relation(self.table)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(staged.column.name for staged in self.columns)

    def listed(self, names: Sequence[str], alias: str = "") -> str:
        head = f"{alias}." if alias else ""
        return ", ".join(head + self.dialect.quote(name) for name in names)

    def same_key(self, left: str, right: str) -> str:
        quote = self.dialect.quote
        return " and ".join(f"{left}.{quote(key)} = {right}.{quote(key)}" for key in self.keys)

    def differs(self, names: Sequence[str], left: str, right: str) -> str:
        types = {staged.column.name: staged.native.sql for staged in self.columns}
        return self.dialect.differs([(name, types[name]) for name in names], left, right)

    def key_text(self) -> str:
        return self.dialect.key_text(self.keys) if self.keys else "'(no key)'"

    def all_of(self, relation: str) -> str:
        """How many rows a statement over the relation must touch; asked only where some may be left out."""
        return f"select count(*) from {relation}" if self.triggers else ""

    def insert(self, names: Sequence[str], select: str) -> str:
        overriding = self.dialect.overriding() if self.identity else ""
        space = " " if overriding else ""
        return f"{self.dialect.insert} into {self.target} ({self.listed(names)}){space}{overriding}\n{select}"


def metadata_columns(pipeline: Pipeline, dialect: Dialect) -> tuple[ColumnDef, ...]:
    """The columns that a mode adds to the target."""
    if pipeline.mode == "scd2":
        return (
            ColumnDef(VALID_FROM, dialect.timestamp_type, nullable=False),
            ColumnDef(VALID_TO, dialect.timestamp_type),
            ColumnDef(IS_CURRENT, dialect.bool_type, nullable=False),
            ColumnDef(ROW_HASH, dialect.text_type),
        )
    if pipeline.deletes == "soft":
        return (
            ColumnDef(DELETED, dialect.bool_type, nullable=False, default_sql="false"),
            ColumnDef(DELETED_AT, dialect.timestamp_type),
        )
    return ()


def staged_view(statement: Statement) -> Execute:
    return Execute(f"create temporary view {STAGED} as\n{staged_rows(statement)}")


def staged_rows(statement: Statement) -> str:
    """The staged rows in the target's own types; with `order_by`, one row per key.

    With an event time a key has several, and those of one moment are told apart later.
    """
    if not statement.pipeline.order_by or statement.event is not None:
        return decoded_rows(statement)
    names, keys = statement.listed(statement.names), statement.listed(statement.keys)
    return (
        f"select {names} from (\nselect {names}, row_number() over (partition by {keys}{first_of(statement)}) as {RANK}"
        f"\nfrom ({decoded_rows(statement)}) as decoded) as ranked\nwhere {RANK} = 1"
    )


def decoded_rows(statement: Statement) -> str:
    quote = statement.dialect.quote
    select = ",\n  ".join(
        f"{_decoded(statement, staged)} as {quote(staged.column.name)}" for staged in statement.columns
    )
    return f"select\n  {select}\nfrom {RAW}"


def first_of(statement: Statement) -> str:
    """Which of several rows counts: the user's word; then, of what is not tracked, its own text, never chance.

    Rows that differ in more than that, and that the user's word does not tell apart, are an error.
    """
    terms = [ordering(statement)] if statement.pipeline.order_by else []
    text = statement.dialect.text_type
    terms += [f"cast({statement.dialect.quote(name)} as {text}) nulls last" for name in untracked(statement)]
    return f" order by {', '.join(terms)}" if terms else ""


def untracked(statement: Statement) -> tuple[str, ...]:
    return tuple(name for name in statement.names if name not in (*statement.keys, *statement.tracked))


def _decoded(statement: Statement, staged: StagedColumn) -> str:
    value = staged.native.decode.replace("{}", statement.dialect.quote(staged.column.name))
    # Under the column's own collation two spellings may be one key: so they must be here.
    return f"({value}) collate {staged.native.collation}" if staged.native.collation else value


def ordering(statement: Statement) -> str:
    """The user's `order_by`, with NULL last where it does not say: a row without a time never wins."""
    given, dialect = statement.pipeline.order_by or "", statement.dialect.sqlglot
    reading = sqlglot.Dialect.get_or_raise(dialect)
    reading.NULL_ORDERING = "nulls_are_last"  # so that a term has NULL first only if it says so itself
    try:
        parsed = sqlglot.parse_one(f"select 1 order by {given}", dialect=reading)
    except sqlglot.errors.ParseError as error:
        raise PlanRefused(
            f"order_by = {given!r} is not an ordering",
            kept="nothing was touched",
            remedy='columns of the result, as in order_by = "updated_at desc, id"',
            place=statement.pipeline.place,
        ) from error

    def printed(term: exp.Ordered) -> str:
        _let_sort(statement, term)
        direction = " desc" if term.args.get("desc") else ""
        nulls = "first" if term.args.get("nulls_first") else "last"
        return f"{term.this.sql(dialect=dialect)}{direction} nulls {nulls}"

    return ", ".join(printed(term) for term in parsed.args["order"].expressions)


def _let_sort(statement: Statement, term: exp.Ordered) -> None:
    """Let a column that the target keeps as text sort as what it means: as texts, '9' comes after '10'."""
    dialect, known = statement.dialect, {folded(staged.column.name): staged for staged in statement.columns}
    for column in list(term.find_all(exp.Column)):
        staged = known.get(folded(column.name))
        if staged is None:
            continue
        value = column.sql(dialect=dialect.sqlglot)
        order = dialect.sortable(value, staged)
        if column.parent is term and order:
            column.replace(exp.var(order))
        elif not order or (is_number(staged.column) and order != value and not isinstance(column.parent, exp.Cast)):
            raise PlanRefused(
                f"order_by = {statement.pipeline.order_by!r} compares {staged.column.name} as a text",
                why=f"the target keeps {staged.column.describe()} as text, and in an expression '9' comes after '10'",
                kept="nothing was touched",
                remedy="order by the column itself, or by another one",
                place=statement.pipeline.place,
            )


# ---------------------------------------------------------------- checks


def cast_check(statement: Statement) -> list[Check]:
    """One query over all columns that are not carried exactly: cast forth and back, compared."""
    checked = [staged for staged in statement.columns if staged.native.valid]
    if not checked:
        return []
    quote = statement.dialect.quote
    invalid = {
        staged.column.name: f"not coalesce({staged.native.valid.replace('{}', quote(staged.column.name))}, true)"
        for staged in checked
    }
    label = " ".join(f"when {sql} then {_literal(name)}" for name, sql in invalid.items())
    types = {staged.column.name: staged.native.sql for staged in checked}
    key = statement.key_text() if statement.keys else "'(no key)'"
    return [
        Check(
            f"select case {label} end, {key}\nfrom {RAW}\nwhere {' or '.join(invalid.values())}\nlimit 3",
            "column {0} has a value that its target type cannot hold",
            why="cast to it and back, the value is another one: "
            + ", ".join(f"{name} is {type_sql}" for name, type_sql in types.items()),
            remedy="change the value at the source, or the cast in `columns`",
            labelled=True,
        )
    ]


def key_checks(statement: Statement) -> list[Check]:
    """NULL in a key inserts again at every run; the same key twice has no right answer."""
    if not statement.keys or statement.pipeline.mode not in ("merge", "scd2"):
        return []
    # A row that is too old counts: whether the key's row in the target goes or stays, two would say.
    rows = STAGED if statement.expiry is None else ARRIVED
    return [replace(null_key_check(statement), key=statement.keys), duplicate_key_check(statement, rows)]


def declared_key_checks(statement: Statement, declared: Sequence[str]) -> list[Check]:
    """A load that only adds rows keeps the keys of a declared table: DuckDB, for one, has no index that would."""
    if not declared or set(statement.keys) != set(declared):
        return []
    checks = [null_key_check(statement), duplicate_key_check(statement)]
    if statement.pipeline.mode == "append" and statement.exists and not statement.full_refresh:
        same = statement.same_key("t", "s")
        checks.append(
            Check(
                f"select {statement.key_text()}\nfrom {STAGED} as s"
                f"\nwhere exists (select 1 from {statement.target} as t where {same})\nlimit 3",
                f"keys that are in the target already ({', '.join(statement.keys)})",
                why="the table declares them as its key, and append adds every row",
                remedy='mode = "merge" replaces such rows; or read only what is new: incremental',
            )
        )
    return checks


def null_key_check(statement: Statement) -> Check:
    empty = " or ".join(f"{statement.dialect.quote(key)} is null" for key in statement.keys)
    return Check(
        f"select {statement.key_text()}\nfrom {STAGED}\nwhere {empty}\nlimit 3",
        f"NULL in a key column ({', '.join(statement.keys)})",
        why="such a row would be inserted again at every run",
        remedy="filter them out in the query, or choose other keys",
    )


def duplicate_key_check(statement: Statement, rows: str = STAGED) -> Check:
    keys = statement.listed(statement.keys)
    return Check(
        f"select {statement.key_text()}\nfrom {rows}\ngroup by {keys}\nhaving count(*) > 1\nlimit 3",
        f"duplicate keys in the source ({', '.join(statement.keys)})",
        why="two rows of one load have the same key",
        remedy='say which wins with order_by = "updated_at desc", or choose other keys',
        key=statement.keys,
    )


def tie_check(statement: Statement) -> Check:
    """Of rows that `order_by` puts at one place chance would choose, and at every run anew."""
    compared = [name for name in statement.names if name not in untracked(statement)]
    why = f"rows of one key are equal in {statement.pipeline.order_by} and have different values"
    return undecided(statement, decoded_rows(statement), compared, why)


def undecided(
    statement: Statement, rows: str, compared: Sequence[str], why: str, *, moment: str = "", remedy: str = ADD_TERM
) -> Check:
    """Rows of one key, and of one moment where they have one, that all come first and differ."""
    several, place, tied = "_penstock_several", "_penstock_place", "_penstock_tied"
    within = statement.listed(statement.keys) + (f", {moment}" if moment else "")
    same = statement.same_key("t", "s") + (f" and t.{moment} = s.{moment}" if moment else "")
    ranked = (
        f"select *, rank() over (partition by {within} order by {ordering(statement)}) as {RANK}"
        f"\n  from ({rows}) as candidates"
    )
    # Of most keys one row comes first, and nothing is left to be compared.
    firsts = (
        f"select *, count(*) over (partition by {within}) as {several},"
        f" row_number() over (partition by {within}) as {place}\n  from ({ranked}) as ranked where {RANK} = 1"
    )
    differing = (
        f"select {statement.listed(statement.keys, 's')} from {tied} as s join {tied} as t"
        f" on {same} and t.{place} = 1\n  where {statement.differs(compared, 't', 's')}"
    )
    return Check(
        f"with {tied} as (select * from ({firsts}) as firsts where {several} > 1)"
        f"\nselect distinct {statement.key_text()}\nfrom ({differing}) as differing\nlimit 3",
        "order_by does not say which of two rows wins",
        why=why,
        remedy=remedy,
    )


def null_checks(statement: Statement, columns: Sequence[str]) -> list[Check]:
    if not columns:
        return []
    quote = statement.dialect.quote
    label = " ".join(f"when {quote(name)} is null then {_literal(name)}" for name in columns)
    where = " or ".join(f"{quote(name)} is null" for name in columns)
    return [
        Check(
            f"select case {label} end, {statement.key_text()}\nfrom {STAGED}\nwhere {where}\nlimit 3",
            "column {0} of the target takes no NULL",
            why="the source has rows where it is NULL",
            remedy="filter them out, give them a value in the query, or drop NOT NULL at the target",
            labelled=True,
        )
    ]


def shrink_guard(statement: Statement) -> list[Check]:
    """Stop before an empty or sharply shrunk source empties the target."""
    pipeline = statement.pipeline
    if pipeline.mode in ("truncate", "append"):
        live = f"select count(*) from {statement.target} as t where {live_rows(statement)}"
        gone = f"({live}) - (select count(*) from {STAGED})"
    else:
        where = live_rows(statement)
        live = f"select count(*) from {statement.target} as t where {where}"
        gone = (
            f"select count(*) from {statement.target} as t where {where}"
            f" and not exists (select 1 from {STAGED} as s where {statement.same_key('t', 's')})"
        )
    empty = "false" if pipeline.allow_empty else "staged = 0 and live > 0"
    return [
        Check(
            f"select gone, live, staged from (\n  select ({live}) as live, ({gone}) as gone,"
            f" (select count(*) from {STAGED}) as staged) as figures"
            f"\nwhere {empty} or (staged > 0 and gone > {pipeline.max_delete_ratio!r} * live)",
            "the source has {2} rows, and {0} of the target's {1} rows would go",
            why=f"more than max_delete_ratio = {pipeline.max_delete_ratio:g}, or the source is empty",
            remedy="if that is right, run with allow_empty = true or a higher max_delete_ratio",
            figures=True,
        )
    ]


# ---------------------------------------------------------------- modes


def append(statement: Statement) -> list[Step]:
    names = statement.names
    select = f"select {statement.listed(names)}\nfrom {STAGED}"
    if statement.full_refresh and statement.exists:
        return [*truncate(statement)]
    return [Execute(statement.insert(names, select), "inserted", touches=statement.all_of(STAGED))]


def truncate(statement: Statement) -> list[Step]:
    steps: list[Step] = []
    if statement.exists:
        steps = [*shrink_guard(statement), *_emptied(statement)]
    select = f"select {statement.listed(statement.names)}\nfrom {STAGED}"
    return [*steps, Execute(statement.insert(statement.names, select), "inserted", touches=statement.all_of(STAGED))]


def _emptied(statement: Statement) -> list[Step]:
    if statement.pipeline.truncate_with == "truncate":
        count = Tally(f"select count(*) from {statement.target}", "deleted")
        return [count, Execute(f"truncate {statement.target}")]
    # DELETE, not TRUNCATE: an older reader's snapshot would see an emptied table.
    rows = f"{statement.target} as t\nwhere {live_rows(statement)}"
    return [Execute(f"delete from {rows}", "deleted", touches=statement.all_of(rows))]


def merge(statement: Statement) -> list[Step]:
    if not statement.exists:
        select = f"select {statement.listed(statement.names, 's')}\nfrom {STAGED} as s"
        return [Execute(statement.insert(statement.names, select), "inserted")]
    in_place = statement.dialect.update_form == "update_from" or statement.indexed
    return [*_merge_deletes(statement), *(_update_changed(statement) if in_place else _replace_changed(statement))]


def _changed(statement: Statement) -> str:
    """True where the staged row is not what the target has, by representation."""
    changed = statement.differs(statement.names, "t", "s")
    if statement.pipeline.deletes == "soft":
        return f"({changed} or t.{statement.dialect.quote(DELETED)})"
    return changed


def _update_changed(statement: Statement) -> list[Step]:
    """One join finds what is changed and what is new; the rest of the target is not looked at again."""
    quote = statement.dialect.quote
    # Key columns are set too: 'A' and 'a' are one key in a case-insensitive type, and the source's
    # spelling is the right one. An identity has one spelling, and the server may refuse to set it.
    fixed = {name for name in statement.keys if name in statement.identity}
    sets = [f"{quote(name)} = s.{quote(name)}" for name in statement.names if name not in fixed]
    if statement.pipeline.deletes == "soft":
        sets += [f"{quote(DELETED)} = false", f"{quote(DELETED_AT)} = null"]
    absent = f"t.{quote(statement.keys[0])} is null"
    names = statement.listed(statement.names)
    changed = f"{CHANGED} as s\nwhere not s.{IS_NEW} and {statement.same_key('t', 's')}"
    update = Execute(
        f"{statement.dialect.update} {statement.target} as t\nset {', '.join(sets)}\nfrom {changed}",
        "updated",
        # Rows of the target: without a key of its own, it may have several for one staged.
        touches=statement.all_of(f"{statement.target} as t where exists (select 1 from {changed})"),
    )
    new = f"{CHANGED}\nwhere {IS_NEW}"
    return [
        Execute(
            f"create temporary table {CHANGED} as\n"
            f"select {statement.listed(statement.names, 's')}, {absent} as {IS_NEW}\nfrom {STAGED} as s\n"
            f"left join {statement.target} as t on {statement.same_key('t', 's')}\n"
            f"where {absent} or {_changed(statement)}"
        ),
        *([update] if sets else []),
        Execute(
            statement.insert(statement.names, f"select {names}\nfrom {new}"), "inserted", touches=statement.all_of(new)
        ),
        Execute(f"drop table {CHANGED}"),
    ]


def _replace_changed(statement: Statement) -> list[Step]:
    """Delete and insert the changed rows: an in-place update of every row is held in memory.

    Columns that only the target has are carried over from the row that goes.
    """
    names = (*statement.names, *statement.kept)
    select = ", ".join(
        [f"s.{statement.dialect.quote(name)}" for name in statement.names]
        + [f"t.{statement.dialect.quote(name)}" for name in statement.kept]
    )
    if statement.pipeline.deletes == "soft":
        names = (*names, DELETED, DELETED_AT)
        select += f", false as {DELETED}, cast(null as {statement.dialect.timestamp_type}) as {DELETED_AT}"
    new = (
        f"select {statement.listed(statement.names, 's')}\nfrom {STAGED} as s\n"
        f"where not exists (select 1 from {statement.target} as t where {statement.same_key('t', 's')})"
    )
    return [
        Execute(
            f"create temporary table {CHANGED} as\nselect {select}\nfrom {STAGED} as s\n"
            f"join {statement.target} as t on {statement.same_key('t', 's')}\nwhere {_changed(statement)}"
        ),
        Execute(statement.insert(statement.names, new), "inserted"),
        Execute(f"delete from {statement.target} as t\nusing {CHANGED} as s\nwhere {statement.same_key('t', 's')}"),
        Execute(statement.insert(names, f"select {statement.listed(names)}\nfrom {CHANGED}"), "updated"),
        Execute(f"drop table {CHANGED}"),
    ]


def live_rows(statement: Statement) -> str:
    """The target rows that a delete pass may touch."""
    pipeline, quote = statement.pipeline, statement.dialect.quote
    parts = [f"({pipeline.delete_scope})"] if pipeline.delete_scope else []
    if pipeline.deletes == "soft":
        parts.append(f"not t.{quote(DELETED)}")
    if pipeline.mode == "scd2":
        parts.append(f"t.{quote(IS_CURRENT)}")
    return " and ".join(parts) or "true"


def vanished(statement: Statement) -> str:
    """Of those, the ones whose key the source has no more."""
    return (
        f"{live_rows(statement)}\n  and not exists (select 1 from {STAGED} as s where {statement.same_key('t', 's')})"
    )


def _merge_deletes(statement: Statement) -> list[Step]:
    quote = statement.dialect.quote
    deletes = statement.pipeline.deletes
    gone = f"{statement.target} as t\nwhere {vanished(statement)}"
    if deletes == "hard":
        sql = f"delete from {gone}"
    elif deletes == "soft":
        sql = (
            f"{statement.dialect.update} {statement.target} as t\nset {quote(DELETED)} = true, {quote(DELETED_AT)} ="
            f" {statement.dialect.now()}\nwhere {vanished(statement)}"
        )
    else:
        return []
    return [*shrink_guard(statement), Execute(sql, "deleted", touches=statement.all_of(gone))]


def scd2(statement: Statement) -> list[Step]:
    """Half-open `[valid_from, valid_to)`; an open row has valid_to NULL."""
    quote = statement.dialect.quote
    pipeline = statement.pipeline
    tracked = statement.tracked
    # One reading of the target's clock for the whole load: two would leave gaps between versions.
    steps: list[Step] = [Execute(f"create temporary table {NOW} as select {statement.dialect.now()} as ts")]
    now = f"(select ts from {NOW})"
    if statement.exists:
        touched = f"exists (select 1 from {STAGED} as s where {statement.same_key('t', 's')})"
        if pipeline.deletes == "close":
            touched = f"({touched} or {live_rows(statement)})"
        steps.append(
            # Closed rows count too: a key that returns must not begin before its last version ended.
            Check(
                f"select distinct {statement.dialect.key_text(statement.keys)}\nfrom {statement.target} as t\n"
                f"where (t.{quote(VALID_FROM)} >= {now} or t.{quote(VALID_TO)} > {now})\n  and {touched}\nlimit 3",
                "the target's clock is behind its own history",
                why=f"rows have a {VALID_FROM} that is not in the past",
                remedy="set the clock right, or repair these rows",
            )
        )
        closes = f"set {quote(VALID_TO)} = {now}, {quote(IS_CURRENT)} = false"
        if pipeline.deletes == "close":
            steps += shrink_guard(statement)
            where = f"where {vanished(statement)}"
            steps.append(
                Execute(
                    f"{statement.dialect.update} {statement.target} as t\n{closes}\n{where}",
                    "deleted",
                    touches=statement.all_of(f"{statement.target} as t {where}"),
                )
            )
        if tracked:
            changed = (
                f"{STAGED} as s\nwhere t.{quote(IS_CURRENT)} and {statement.same_key('t', 's')}\n"
                f"  and {statement.differs(tracked, 't', 's')}"
            )
            steps.append(
                Execute(
                    f"{statement.dialect.update} {statement.target} as t\n{closes}\nfrom {changed}",
                    "updated",
                    touches=statement.all_of(f"{statement.target} as t, {changed}"),
                )
            )
    absent = (
        f"where not exists (select 1 from {statement.target} as t"
        f" where t.{quote(IS_CURRENT)} and {statement.same_key('t', 's')})"
    )
    names = (*statement.names, VALID_FROM, VALID_TO, IS_CURRENT, ROW_HASH)
    select = (
        f"select {statement.listed(statement.names, 's')}, {now}, cast(null as {statement.dialect.timestamp_type}),"
        f" true, {statement.dialect.row_hash(tracked or statement.keys, 's')}\nfrom {STAGED} as s"
    )
    if statement.exists:
        select += f"\n{absent}"
    opens = Execute(statement.insert(names, select), "inserted", touches=statement.all_of(f"{STAGED} as s\n{absent}"))
    return [*steps, opens]


MODES = {"append": append, "truncate": truncate, "merge": merge, "scd2": scd2}


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
