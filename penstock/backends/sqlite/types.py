"""SQLite's types and the canonical ones.

A table that Penstock makes is STRICT and has columns of INTEGER, REAL, TEXT and BLOB. What such a
column means is a word of `schema.words` (`decimal(38,9)`, `timestamptz`, `int[]`) that is remembered
in `_penstock_columns`, and it is this word that plans, drift and casts go by.

In a table of somebody else's, a declared type is only a wish. Its columns are read by these rules,
none of which is a guess:

- affinity INTEGER: `bigint`; REAL: `double`; TEXT: `text`; checked cell by cell as they are read;
- any other column, and every column of a view or query: what all its cells are. Integers among
  reals are `double` as long as 2⁵³ holds them; no cell at all is `text`;
- a cell of another storage class is a data error with its key.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.backends import arrowtypes
from penstock.backends.base import Native, TargetColumn, Verdict
from penstock.backends.sqlite.encode import ARROW, Class, class_of
from penstock.errors import ConfigError
from penstock.schema import Column, Logical
from penstock.schema.columns import ENUM
from penstock.schema.columns import NUMERIC as NUMBER
from penstock.schema.words import Word, parse, spell

CLASSES = ("INTEGER", "REAL", "TEXT", "BLOB")
NUMERIC = "NUMERIC"  # the affinity that turns '007' into 7
LARGEST_IN_DOUBLE = 2**53
WORDS: dict[str, str] = {"INTEGER": "bigint", "REAL": "double", "TEXT": "text", "BLOB": "binary"}

Memory = dict[str, tuple[str, str, Logical | None]]


def affinity(declared: str) -> str:
    """SQLite's own rule, in its order."""
    name = declared.upper()
    if "INT" in name:
        return "INTEGER"
    if any(part in name for part in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if "BLOB" in name or not name:
        return "BLOB"
    return "REAL" if any(part in name for part in ("REAL", "FLOA", "DOUB")) else NUMERIC


def held_class(type_sql: str) -> Class:
    """The storage class of a column by its word."""
    return class_of(parse(type_sql).type)


def declared_class(type_sql: str) -> str:
    """How a column is declared in a table that we make."""
    return held_class(type_sql)


# ---------------------------------------------------------------- SQLite → canonical


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """A column of a source: what its cells are, and what they mean."""

    column: Column
    kind: Class
    sure: bool  # SQLite itself keeps other classes out
    mixed: bool = False  # integers among reals

    @property
    def name(self) -> str:
        return self.column.name

    @property
    def cell(self) -> str:
        return cell(self.name)

    def sql(self) -> str:
        return f"cast({self.cell} as real)" if self.mixed else self.cell

    def wrong(self) -> str:
        """True where a cell is not of the column's class; empty where that cannot be."""
        if self.sure:
            return ""
        if self.mixed:
            whole = f"{self.cell} not between -{LARGEST_IN_DOUBLE} and {LARGEST_IN_DOUBLE}"
            return (
                f"(typeof({self.cell}) not in ('real', 'integer', 'null')"
                f" or (typeof({self.cell}) = 'integer' and {whole}))"
            )
        return f"typeof({self.cell}) not in ('{self.kind.lower()}', 'null')"


def remembered_column(name: str, declared: str, memory: Memory, *, nullable: bool) -> Column | None:
    """The column as it was loaded, if it still has the class that it was made with."""
    known = memory.get(name)
    if known is None:
        return None
    word, native, logical = known
    try:
        meant = parse(word)
    except ConfigError:
        return None
    if affinity(declared) not in (class_of(meant.type), NUMERIC):
        return None
    if meant.logical is None and logical is not None and pa.types.is_string(meant.type):
        return Column(name, meant.type, logical, native, nullable)
    if (meant.logical is None) != (logical is None):
        # It came as text and was cast, or the other way round: what the source called it is not this.
        return meant.column(name, nullable=nullable)
    return Column(name, meant.type, logical or meant.logical, native, nullable)


def plain_column(name: str, kind: Class, declared: str, *, nullable: bool = True) -> Column:
    return Column(name, ARROW[kind], None, f"sqlite:{declared}" if declared else "", nullable)


def by_content(seen: dict[str, int], *, exact: bool) -> tuple[Class, bool] | None:
    """The class of a column by the cells that it has, and whether integers stand among its reals; None if mixed."""
    present = {kind for kind, count in seen.items() if count}
    if not present:
        return "TEXT", False
    if present == {"integer", "real"}:
        return ("REAL", True) if exact else None
    if len(present) > 1:
        return None
    kind: Class = present.pop().upper()  # type: ignore[assignment]  # typeof says nothing else
    return kind, False


# ---------------------------------------------------------------- canonical → SQLite


def native(column: Column, existing: TargetColumn | None, cast: str | None) -> Native:
    """How a SQLite table holds `column`; `cast` is the user's wish, a word of `schema.words`."""
    if existing is not None and existing.type_sql == NUMERIC:
        return _into_numeric(column, cast)
    try:
        made = arrowtypes.native(column, existing, cast)
    except ConfigError as error:
        return Native(str(column.type), Verdict.REFUSED, note=error.what, remedy=_as_text(column))
    if made.verdict is Verdict.REFUSED:
        remedy = made.remedy or (_as_text(column) if made.sql == "text" else "")
        return _widened(replace(made, remedy=remedy), column, existing if cast is None else None)
    kind = held_class(made.sql)
    if made.verdict is Verdict.EXACT:
        return made
    changes = made.verdict is Verdict.CHECKED or (kind == "TEXT" and not pa.types.is_string(column.type))
    return replace(made, in_sink=changes)


def _widened(refused: Native, column: Column, existing: TargetColumn | None) -> Native:
    """Whether the existing column could become what the source gives."""
    if existing is None:
        return refused
    word = refused.widen_to or (spell(column) if _text_holds(column, parse(existing.type_sql)) else "")
    if word and existing.fixed and held_class(word) != held_class(existing.type_sql):
        key = toml_key(column.name)
        return replace(
            refused,
            note=f"the target's column is {existing.type_sql} and stays so: {existing.fixed}",
            remedy=f'columns.{key} = "{existing.type_sql}" takes what fits it; for all, load into another table',
            widen_to="",
        )
    return replace(refused, widen_to=word)


def _text_holds(column: Column, there: Word) -> bool:
    """Beyond what Arrow's types say: whether the canonical texts of the one are texts of the other, for every value."""
    kind = column.logical.kind if column.logical is not None else ""
    if kind == NUMBER:
        return there.logical is None and (pa.types.is_integer(there.type) or pa.types.is_decimal(there.type))
    labels = there.logical.labels if there.logical is not None and there.logical.kind == ENUM else ()
    if kind == ENUM and column.logical is not None:
        return bool(labels) and set(labels) < set(column.logical.labels)
    if spell(column) == "text":
        return bool(labels) or isinstance(there.type, pa.JsonType)
    if pa.types.is_list(column.type) and pa.types.is_list(there.type):
        # Among others, each number would have to be written in another way.
        inner = column.type.value_type, there.type.value_type
        return not any(pa.types.is_floating(one) or pa.types.is_decimal(one) for one in inner) and (
            arrowtypes.holds_more(inner[1], inner[0])
        )
    return False


def _into_numeric(column: Column, cast: str | None) -> Native:
    """Into a column that SQLite keeps numbers in: only what it leaves as it is."""
    if cast is None and (
        class_of(column.type) == "INTEGER" or pa.types.is_date32(column.type) or pa.types.is_timestamp(column.type)
    ):
        return Native(spell(column), Verdict.WIDENED)
    return Native(
        NUMERIC,
        Verdict.REFUSED,
        note="SQLite turns what looks like a number into one there: declare the column TEXT, INTEGER, REAL or BLOB",
    )


def _as_text(column: Column) -> str:
    return f'columns.{toml_key(column.name)} = "text"'


# ---------------------------------------------------------------- spellings


def joined(terms: Sequence[str], word: str) -> str:
    """`a or b or c` by halves: SQLite refuses an expression that is a thousand deep, as a plain chain would be."""
    if len(terms) <= 2:
        return f" {word} ".join(terms)
    middle = len(terms) // 2
    return f"({joined(terms[:middle], word)}) {word} ({joined(terms[middle:], word)})"


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def cell(name: str) -> str:
    """A column of a relation that is read, which every statement calls `source`.

    Never by its bare name: a quoted name that is no column is a text to SQLite, and a column that was
    dropped would be read as its own name in every row.
    """
    return f"source.{quote(name)}"


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
