"""The wording of SQL in which targets differ. Text only: nothing here touches a database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

from penstock.backends.steps import StagedColumn, Step
from penstock.schema import PartitionField, TableName

TimeKind = Literal["zoned", "naive", "date", ""]  # of a column; "" of one that holds no times

ROW_HASH_VERSION = 2  # raised with every change of what `row_hash` gives


class Dialect(ABC):
    """The SQL wording in which SQL targets differ; everything else is planned once in `load/`."""

    sqlglot: ClassVar[str]  # sqlglot's name of it
    update_form: ClassVar[Literal["update_from", "delete_insert"]]
    savepoints: ClassVar[bool]  # a failed statement can be looked into before the transaction ends
    insert: ClassVar[str] = "insert"  # a table of the user's may say what a conflict does: ours is an error
    update: ClassVar[str] = "update"
    hashes: ClassVar[bool] = True  # has MD5, for `row_hash`
    merges: ClassVar[bool] = False  # has MERGE, which joins many rows faster than ON CONFLICT finds them one by one
    joins_exists: ClassVar[bool] = True  # plans EXISTS as a join; otherwise all of it is read for every row
    truncates: ClassVar[bool] = True  # has TRUNCATE, for `truncate_with`
    declares_keys: ClassVar[bool] = True  # a table that is made with a key has it as a constraint
    row_id: ClassVar[str] = "rowid"  # a column that every table has, and that tells equal rows apart

    @abstractmethod
    def quote(self, name: str) -> str: ...

    @abstractmethod
    def differs(self, columns: Sequence[tuple[str, str]], left: str, right: str) -> str:
        """True where any of `(name, type_sql)` differs in representation between two aliases."""

    def alike(self, columns: Sequence[tuple[str, str]], alias: str) -> str:
        """A text that is the same for two rows of which no column, as in `differs`, differs; and seldom for others."""
        texts = [self.cast(self.cast(f"{alias}.{self.quote(name)}", sql), self.text_type) for name, sql in columns]
        return self.digest(texts)

    @abstractmethod
    def key_text(self, columns: Sequence[str]) -> str:
        """An expression that prints the key columns of a row for people: `id=7, region='eu'`."""

    def row_hash(self, columns: Sequence[str], alias: str) -> str:
        """`2:` and the MD5 of the columns' texts, one after the other. Information only.

        Before each text stand its length and a colon, which keep ('ab', 'c') and ('a', 'bc') apart;
        NULL is a dash. Targets agree on values that they print alike (integers, decimals, texts,
        booleans, dates, timestamps); floats, for one, they do not.
        """
        texts = [f"cast({alias}.{self.quote(name)} as {self.text_type})" for name in columns]
        return f"'{ROW_HASH_VERSION}:' || {self.digest(texts)}"

    def digest(self, texts: Sequence[str]) -> str:
        """The MD5 of texts, as `row_hash` puts them together."""
        parts = [f"coalesce(cast(length({text}) as {self.text_type}) || ':' || {text}, '-')" for text in texts]
        return f"md5({' || '.join(parts)})"

    @abstractmethod
    def now(self) -> str:
        """The target's clock in UTC, one reading per statement, as a timestamp with time zone."""

    def cast(self, value: str, type_sql: str) -> str:
        """From what the database itself has to a column's type, where both ends are the same database."""
        return f"cast({value} as {type_sql})"

    def instant(self, value: str, kind: TimeKind, zone: str) -> str:
        """The moment that a date or timestamp means, as `timestamp_type`; `zone` is that of one that has none.

        NULL where the target has no moment for it that sorts among the others.
        """
        return value if kind == "zoned" else f"timezone({_quoted(zone)}, cast({value} as timestamp))"

    def sortable(self, value: str, staged: StagedColumn) -> str:
        """What the column's values sort by in an `order by`, `value` being the column; "" where nothing tells."""
        return value

    def earlier(self, value: str, bound: str) -> str:
        """That a date or timestamp lies before another one of its kind."""
        return f"{value} < {bound}"

    def age_limit(self, keep: str, kind: TimeKind, zone: str) -> str:
        """The target's clock less a duration such as `90 days`, as a column of this kind holds it."""
        moment = f"{self.now()} - interval {_quoted(keep)}"
        if kind == "zoned":
            return moment
        local = f"timezone({_quoted(zone)}, {moment})"
        return f"cast({local} as date)" if kind == "date" else local

    def overriding(self) -> str:
        """What an INSERT needs after its column list to set identity columns."""
        return ""

    def reset_sequence(self, table: TableName, column: str) -> str:
        """A statement that moves an identity column's sequence past its highest value, or ""."""
        return ""

    def make_partitions(
        self, table: TableName, field: PartitionField, kind: TimeKind, key_text: str
    ) -> tuple[Step, ...]:
        """What makes the partitions that the staged rows need and the table does not have.

        Asked only of backends whose capabilities name forms of `partition_by`; `key_text` prints a
        row's key.
        """
        return ()

    def relation(self, table: TableName) -> str:
        return ".".join(self.quote(part) for part in table.parts)

    timestamp_type: ClassVar[str]
    text_type: ClassVar[str]
    bool_type: ClassVar[str]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
