"""Column types as Python classes, for tables that are declared: `ps.BigInt`, `ps.Decimal[38, 12]`.

Each class carries its word (see `words.py`), which is the one spelling of the type, and nothing else:
no Arrow is loaded here. Nothing is raised here either: what is wrong with a type stands in its
`fault`, so that the loader can tell all findings at once, each with its file and line.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

MAX_DIGITS = 38  # of a decimal

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class Type:
    """Base of all column types."""

    word: ClassVar[str] = ""
    fault: ClassVar[str] = ""  # what is wrong with it, if anything
    nested: ClassVar[bool] = True  # it may stand inside a list, struct or map
    comparable: ClassVar[bool] = True  # it may be a key


class Bool(Type):
    """True or false."""

    word = "bool"


class TinyInt(Type):
    """Whole numbers of 8 bits."""

    word = "tinyint"


class SmallInt(Type):
    """Whole numbers of 16 bits."""

    word = "smallint"


class Int(Type):
    """Whole numbers of 32 bits."""

    word = "int"


class BigInt(Type):
    """Whole numbers of 64 bits."""

    word = "bigint"


class UTinyInt(Type):
    """Whole numbers of 8 bits without a sign."""

    word = "utinyint"


class USmallInt(Type):
    """Whole numbers of 16 bits without a sign."""

    word = "usmallint"


class UInt(Type):
    """Whole numbers of 32 bits without a sign."""

    word = "uint"


class UBigInt(Type):
    """Whole numbers of 64 bits without a sign."""

    word = "ubigint"


class Float(Type):
    """Floating point of 32 bits."""

    word = "float"


class Double(Type):
    """Floating point of 64 bits."""

    word = "double"


class Numeric(Type):
    """Numbers of any length; text where a target has no such type."""

    word = "numeric"
    nested = False


class Text(Type):
    """Text of any length."""

    word = "text"


class Binary(Type):
    """Bytes."""

    word = "binary"


class Date(Type):
    """A day."""

    word = "date"


class Time(Type):
    """A time of day, in microseconds."""

    word = "time"


class TimeNs(Type):
    """A time of day, in nanoseconds."""

    word = "time_ns"


class Timestamp(Type):
    """A date and time without a zone, in microseconds."""

    word = "timestamp"


class TimestampS(Type):
    """A date and time without a zone, in seconds."""

    word = "timestamp_s"


class TimestampMs(Type):
    """A date and time without a zone, in milliseconds."""

    word = "timestamp_ms"


class TimestampNs(Type):
    """A date and time without a zone, in nanoseconds."""

    word = "timestamp_ns"


class TimestampTz(Type):
    """A moment, in microseconds."""

    word = "timestamptz"


class TimestampTzS(Type):
    """A moment, in seconds."""

    word = "timestamptz_s"


class TimestampTzMs(Type):
    """A moment, in milliseconds."""

    word = "timestamptz_ms"


class TimestampTzNs(Type):
    """A moment, in nanoseconds."""

    word = "timestamptz_ns"


class Uuid(Type):
    """A UUID."""

    word = "uuid"


class Json(Type):
    """A JSON document."""

    word = "json"
    comparable = False


class Interval(Type):
    """Years to microseconds, as text in Postgres' style where a target has no such type."""

    word = "interval"
    nested = False


class Struct(Type):
    """Base of classes whose annotations are the fields of a struct."""

    comparable = False

    def __init_subclass__(cls) -> None:
        cls.word, cls.fault = "", ""  # spelled by the loader: a field's annotation may still be text


if TYPE_CHECKING:
    # A checker takes figures and texts in a type only where it sees a Literal.
    from typing import Literal as Decimal
    from typing import Literal as Enum

    class Key(Generic[T]): ...

    class List(Generic[T]): ...

    class Map(Generic[K, V]): ...

else:

    class Decimal(Type):
        """Exact numbers: `Decimal[38, 12]` has 38 digits, 12 of them after the point."""

        fault = "a decimal needs its digits: ps.Decimal[38, 9]"

        def __class_getitem__(cls, digits: Any) -> type[Type]:
            precision, scale = digits if isinstance(digits, tuple) and len(digits) == 2 else (digits, 0)
            whole = all(type(figure) is int for figure in (precision, scale))
            fits = whole and 1 <= precision <= MAX_DIGITS and 0 <= scale <= precision
            fault = "" if fits else f"a decimal has 1 to {MAX_DIGITS} digits, and no more of them after the point"
            return _made(Decimal, f"decimal({precision},{scale})", fault)

    class Enum(Type):
        """One of some texts: `Enum["new", "paid"]`."""

        fault = 'an enum needs its labels: ps.Enum["new", "paid"]'
        nested = False

        def __class_getitem__(cls, labels: Any) -> type[Type]:
            given = labels if isinstance(labels, tuple) else (labels,)
            texts = all(isinstance(label, str) for label in given) and given
            fault = "" if texts else "the labels of an enum are texts"
            fault = fault or ("" if len(set(given)) == len(given) else "a label of the enum stands there twice")
            return _made(Enum, f"enum({', '.join(_quoted(str(label)) for label in given)})", fault)

    class Key(Type):
        """A column of the primary key: `Key[BigInt]`."""

        fault = "a key needs its type: ps.Key[ps.BigInt]"
        of: ClassVar[Any] = None

        def __class_getitem__(cls, of: Any) -> type[Key]:
            return type("Key", (Key,), {"of": of, "fault": ""})

    class List(Type):
        """A list of another type: `List[Int]`."""

        fault = "a list needs its element's type: ps.List[ps.Int]"
        comparable = False
        of: ClassVar[Any] = None

        def __class_getitem__(cls, of: Any) -> type[List]:
            return type("List", (List,), {"of": of, "fault": ""})

    class Map(Type):
        """A map from one type to another: `Map[Text, Int]`."""

        fault = "a map needs two types: ps.Map[ps.Text, ps.Int]"
        comparable = False
        of: ClassVar[Any] = None

        def __class_getitem__(cls, of: Any) -> type[Map]:
            two = isinstance(of, tuple) and len(of) == 2
            return type("Map", (Map,), {"of": of, "fault": "" if two else Map.fault})


def _made(base: type[Type], word: str, fault: str) -> type[Type]:
    return type(base.__name__, (base,), {"word": word, "fault": fault})


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def field_name(name: str) -> str:
    """A struct's field as its word spells it."""
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else '"' + name.replace('"', '""') + '"'


__all__ = [
    "BigInt",
    "Binary",
    "Bool",
    "Date",
    "Decimal",
    "Double",
    "Enum",
    "Float",
    "Int",
    "Interval",
    "Json",
    "Key",
    "List",
    "Map",
    "Numeric",
    "SmallInt",
    "Struct",
    "Text",
    "Time",
    "TimeNs",
    "Timestamp",
    "TimestampMs",
    "TimestampNs",
    "TimestampS",
    "TimestampTz",
    "TimestampTzMs",
    "TimestampTzNs",
    "TimestampTzS",
    "TinyInt",
    "Type",
    "UBigInt",
    "UInt",
    "USmallInt",
    "UTinyInt",
    "Uuid",
]
