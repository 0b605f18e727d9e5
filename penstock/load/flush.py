"""The statements of a flush: folded changes over a table that a replication keeps.

Every statement runs in the flush's one transaction, behind the fence and together with the watermark. What a
column was at the row's old key is read before anything is deleted; rows go before rows come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.backends.applier import DELETES, ORIGIN, UPSERTS
from penstock.backends.base import Check, Dialect, Execute, StagedColumn, Step
from penstock.errors import COPY_TABLE_AGAIN
from penstock.schema import ColumnDef, TableName

FILLED = "_penstock_filled"

VERSION = "_penstock_version"  # of the row: where the transaction that made it committed
COMMITTED_AT = "_penstock_committed_at"
DELETED = "_penstock_deleted"
TIMES = "_penstock_times"  # of a row without a key that goes: how often
GONE = "_penstock_gone"
HASH = "_penstock_hash"
UNSENT = "_penstock_unsent_"  # and the column's place: true where the target's own value stays


@dataclass(frozen=True, slots=True)
class Replica:
    """A table of the target, as a replication writes to it."""

    table: TableName
    columns: tuple[StagedColumn, ...]  # in the order of the source's
    keys: tuple[str, ...]
    soft: bool = False  # rows that are gone are marked, not removed
    metadata: bool = True  # it has the columns below
    declared: bool = True  # the table has its key as a constraint
    truncates: bool = False  # a TRUNCATE of the source is one here; older readers then see an empty table


def metadata(dialect: Dialect, *, soft: bool) -> tuple[ColumnDef, ...]:
    columns = (
        ColumnDef(VERSION, "bigint", nullable=False),
        ColumnDef(COMMITTED_AT, dialect.timestamp_type, nullable=False),
    )
    return (*columns, ColumnDef(DELETED, dialect.bool_type, nullable=False)) if soft else columns


@dataclass(frozen=True, slots=True)
class Shape:
    """What a flush of a table has in it: statements for nothing are not sent."""

    truncated: bool
    upserts: bool
    deletes: bool
    unsent: tuple[int, ...]  # columns that some row of it does not bring
    tag: str = ""  # of the staged relations' names: the same for flushes that stage the same columns of a table
    seen: int | None = None  # rows of a later version than this are of a moment that the changes have not come to


def flush_steps(replica: Replica, dialect: Dialect, shape: Shape) -> list[Step]:
    made = _Flush(replica, dialect, shape)
    steps: list[Step] = []
    if not replica.keys:
        return made.bag()
    if shape.unsent:
        steps += made.fill()
    if shape.truncated:
        steps.append(made.empty())
    if shape.deletes:
        steps.append(made.delete())
    if shape.upserts:
        steps += made.upsert()
    if shape.unsent:
        steps.append(Execute(f"drop table {FILLED}"))
    return steps


def join_steps(replica: Replica, dialect: Dialect, hidden: TableName, conformed: Sequence[Step] | None) -> list[Step]:
    """The rows of a hidden table become the table's own: by its name, or where there is a table, by its rows.

    A table that is there keeps its grants, its views and whoever reads it; `conformed` gives it the form of the rows,
    None says that there is no table.
    """
    there, here = dialect.relation(hidden), dialect.relation(replica.table)
    if conformed is None:
        return [Execute(f"alter table {there} rename to {dialect.quote(replica.table.table)}")]
    names = ", ".join(
        dialect.quote(name) for name in (*(staged.column.name for staged in replica.columns), *own_columns(replica))
    )
    return [
        Execute(f"delete from {here}", "deleted"),
        *conformed,
        Execute(f"insert into {here} ({names})\nselect {names} from {there}", "inserted"),
        Execute(f"drop table {there}"),
    ]


def own_columns(replica: Replica) -> tuple[str, ...]:
    """The columns that the replication itself keeps."""
    if not replica.metadata:
        return ()
    return (VERSION, COMMITTED_AT, DELETED) if replica.soft else (VERSION, COMMITTED_AT)


@dataclass(frozen=True, slots=True)
class _Flush:
    replica: Replica
    dialect: Dialect
    shape: Shape

    @property
    def _upserts(self) -> str:
        return UPSERTS + self.shape.tag

    @property
    def _deletes(self) -> str:
        return DELETES + self.shape.tag

    @property
    def _target(self) -> str:
        return self.dialect.relation(self.replica.table)

    def _quoted(self, names: Sequence[str], alias: str = "") -> str:
        head = f"{alias}." if alias else ""
        return ", ".join(head + self.dialect.quote(name) for name in names)

    def _decoded(self, staged: StagedColumn, value: str) -> str:
        return staged.native.decode.replace("{}", value)

    def _origin(self, key: str) -> str:
        """The staged column with the key that the target has the row under."""
        return ORIGIN + str([staged.column.name for staged in self.replica.columns].index(key))

    def _key_column(self, key: str) -> StagedColumn:
        return next(staged for staged in self.replica.columns if staged.column.name == key)

    def _rows(self) -> str:
        """The rows as they will be, in the target's types: what a FROM can name."""
        return FILLED if self.shape.unsent else f"(select {self._values()} from {self._upserts} as u)"

    def _values(self) -> str:
        quote = self.dialect.quote
        selected = []
        for number, staged in enumerate(self.replica.columns):
            name = quote(staged.column.name)
            value = self._decoded(staged, f"u.{name}")
            if number in self.shape.unsent:
                value = f"case when u.{quote(f'{UNSENT}{number}')} then t.{name} else {value} end"
            selected.append(f"{value} as {name}")
        if self.replica.metadata:
            selected += [f"u.{quote(VERSION)}", f"u.{quote(COMMITTED_AT)}"]
            selected += [f"false as {quote(DELETED)}"] if self.replica.soft else []
        return ", ".join(selected)

    def fill(self) -> list[Step]:
        """What a row does not bring, from where it was: before anything is deleted, so it is set aside."""
        quote = self.dialect.quote
        found = " and ".join(
            f"t.{quote(key)} = {self._decoded(self._key_column(key), 'u.' + quote(self._origin(key)))}"
            for key in self.replica.keys
        )
        # A row that is marked as gone is none.
        alive = f" and not t.{quote(DELETED)}" if self.replica.soft else ""
        rows = f"{self._upserts} as u\nleft join {self._target} as t on {found}{alive}"
        lacking = " or ".join(f"u.{quote(f'{UNSENT}{number}')}" for number in self.shape.unsent)
        gone = f"t.{quote(self.replica.keys[0])} is null"
        if self.shape.seen is not None and self.replica.metadata:
            gone = f"({gone} or {self._is_later()})"
        missing = Check(
            f"select {self.dialect.key_text(self.replica.keys)} from (select "
            + ", ".join(
                f"{self._decoded(self._key_column(key), f'u.{quote(key)}')} as {quote(key)}"
                for key in self.replica.keys
            )
            + f" from {rows} where ({lacking}) and {gone}) as lost limit 3",
            "a change brings only a part of a row that the target does not have",
            why="the source sends no value that has not changed, and the row it belongs to is not there",
            remedy=COPY_TABLE_AGAIN,
            lacking=True,
        )
        return [missing, Execute(f"create temporary table {FILLED} as\nselect {self._values()}\nfrom {rows}")]

    def _is_later(self) -> str:
        """That what the target has under the row's old key may have been read after the row had left it.

        Of a row that keeps its key, and was read behind its change, nothing is taken: the change does not count.
        """
        quote = self.dialect.quote
        moved = " or ".join(f"u.{quote(key)} <> u.{quote(self._origin(key))}" for key in self.replica.keys)
        version = f"t.{quote(VERSION)}"
        return f"({moved} or {version} > {self.shape.seen} and {version} <= u.{quote(VERSION)})"

    def bag(self) -> list[Step]:
        """Of a table without a key: what goes goes as often as it is said, what comes is added."""
        steps: list[Step] = [self.empty()] if self.shape.truncated else []
        if self.shape.deletes:
            steps += self._remove_some()
        if self.shape.upserts:
            steps.append(
                Execute(self._insert(f"select {self._quoted(self._names)} from {self._rows()} as f"), "inserted")
            )
        return steps

    @property
    def _names(self) -> tuple[str, ...]:
        return (*(staged.column.name for staged in self.replica.columns), *own_columns(self.replica))

    def _insert(self, rows: str, alias: str = "") -> str:
        return f"insert into {self._target}{alias} ({self._quoted(self._names)})\n{rows}"

    def _remove_some(self) -> list[Step]:
        quote, own = self.dialect.quote, self.dialect.row_id
        values = ", ".join(
            f"{self._decoded(staged, f'd.{quote(staged.column.name)}')} as {quote(staged.column.name)}"
            for staged in self.replica.columns
        )
        columns = [(staged.column.name, staged.native.sql) for staged in self.replica.columns]
        alive = f" and not t.{quote(DELETED)}" if self.replica.soft else ""
        # By it they are joined, where each would be compared with each.
        alike = f" and {self.dialect.alike(columns, 't')} = g.{quote(HASH)}"
        found = (
            f"select r from (select t.{own} as r, g.{TIMES} as times,"
            f" row_number() over (partition by g.{quote(GONE)} order by t.{own}) as place"
            f" from {self._target} as t join {GONE} as g"
            f" on not ({self.dialect.differs(columns, 't', 'g')}){alike}{alive}"
            f") as x where place <= times"
        )
        where = f"where {own} in ({found})"
        change = (
            f"update {self._target} set {quote(DELETED)} = true {where}"
            if self.replica.soft
            else f"delete from {self._target} {where}"
        )
        hashed = f", {self.dialect.alike(columns, 'v')} as {quote(HASH)}"
        return [
            Execute(
                f"create temporary table {GONE} as\nselect v.*, row_number() over () as {quote(GONE)}{hashed}"
                f" from (select {values}, d.{TIMES} from {self._deletes} as d) as v"
            ),
            # A row that is not there, or not as often, would be lost in silence.
            Execute(
                *(change, "deleted"),
                touches=f"select coalesce(sum({TIMES}), 0) from {GONE}",
                lacking="rows that go are not there as often, or a trigger keeps them",
            ),
            Execute(f"drop table {GONE}"),
        ]

    def empty(self) -> Execute:
        if not self.replica.soft:
            if self.replica.truncates:
                return Execute(f"truncate table {self._target}")
            return Execute(f"delete from {self._target}", "deleted")
        quote = self.dialect.quote
        return Execute(f"update {self._target} set {quote(DELETED)} = true where not {quote(DELETED)}", "deleted")

    def delete(self) -> Execute:
        quote = self.dialect.quote
        same = " and ".join(
            f"{self._target}.{quote(key)} = {self._decoded(self._key_column(key), f'd.{quote(key)}')}"
            for key in self.replica.keys
        )
        guard = f" and {self._target}.{quote(VERSION)} <= d.{quote(VERSION)}" if self.replica.metadata else ""
        where = self._matching(f"{self._deletes} as d", same + guard)
        if not self.replica.soft:
            return Execute(f"delete from {self._target} {where}", "deleted")
        return Execute(f"update {self._target} set {quote(DELETED)} = true {where}", "deleted")

    def _matching(self, rows: str, same: str) -> str:
        """Which rows of the target are the same as one of these."""
        if self.dialect.joins_exists:
            return f"where exists (select 1 from {rows} where {same})"
        names = self._quoted(self.replica.keys)
        found = ", ".join(f"{self._target}.{self.dialect.quote(key)}" for key in self.replica.keys)
        # The inner target is the nearer one of that name: each row of ours is looked up in it by its key.
        return f"where ({names}) in (select {found} from {rows} cross join {self._target} where {same})"

    def upsert(self) -> list[Step]:
        if not self.replica.declared:
            return [self._replace(), Execute(self._absent(), "inserted")]
        return [Execute(self._merge() if self.dialect.merges else self._on_conflict(), "inserted")]

    def _merge(self) -> str:
        """As a join, which many rows want; ON CONFLICT would look up each of them in the index by itself."""
        quote = self.dialect.quote
        keys = " and ".join(f"t.{quote(key)} = f.{quote(key)}" for key in self.replica.keys)
        values = [name for name in self._names if name not in self.replica.keys]
        changes = ", ".join(f"{quote(name)} = f.{quote(name)}" for name in values)
        newer = f" and t.{quote(VERSION)} <= f.{quote(VERSION)}" if self.replica.metadata else ""
        return (
            f"merge into {self._target} as t using {self._rows()} as f on {keys}\n"
            f"when matched{newer} then {f'update set {changes}' if values else 'do nothing'}\n"
            f"when not matched then insert ({self._quoted(self._names)}) values ({self._quoted(self._names, 'f')})"
        )

    def _on_conflict(self) -> str:
        quote = self.dialect.quote
        values = [name for name in self._names if name not in self.replica.keys]
        changes = ", ".join(f"{quote(name)} = excluded.{quote(name)}" for name in values)
        newer = f" where t.{quote(VERSION)} <= excluded.{quote(VERSION)}" if self.replica.metadata else ""
        then = f"do update set {changes}{newer}" if values else "do nothing"
        # "where true": without it, SQLite takes ON for a join's.
        rows = f"select {self._quoted(self._names)} from {self._rows()} as f where true"
        return self._insert(rows, " as t") + f"\non conflict ({self._quoted(self.replica.keys)}) {then}"

    def _replace(self) -> Execute:
        """Without a key of the target's own: the old rows go, and all come anew."""
        return Execute(f"delete from {self._target} {self._matching(f'{self._rows()} as f', self._same('f'))}")

    def _absent(self) -> str:
        there = f"exists (select 1 from {self._target} where {self._same_key('f')})"
        guard = f" where not {there}" if self.replica.metadata else ""
        return self._insert(f"select {self._quoted(self._names, 'f')} from {self._rows()} as f{guard}")

    def _same_key(self, alias: str) -> str:
        quote = self.dialect.quote
        return " and ".join(f"{self._target}.{quote(key)} = {alias}.{quote(key)}" for key in self.replica.keys)

    def _same(self, alias: str) -> str:
        quote = self.dialect.quote
        guard = f" and {self._target}.{quote(VERSION)} <= {alias}.{quote(VERSION)}" if self.replica.metadata else ""
        return self._same_key(alias) + guard
