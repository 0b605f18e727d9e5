"""Canonical types by name: how people, manifests and Python classes spell them.

    bool  tinyint smallint int bigint  utinyint usmallint uint ubigint  float double
    decimal(p,s)  numeric (any number of digits)  text  binary  date  time time_ns
    timestamp timestamp_s timestamp_ms timestamp_ns, timestamptz likewise
    uuid  json  interval  enum('a','b')  T[]  struct(name T, …)  map(K,V)

`spell` and `parse` are inverse to each other. A text whose meaning only its source knows is spelled
with it: `text as postgres:inet`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import ConfigError
from penstock.schema.columns import ENUM, INTERVAL, NATIVE, NUMERIC, OPAQUE, Column, Logical

PLAIN: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "utinyint": pa.uint8(),
    "usmallint": pa.uint16(),
    "uint": pa.uint32(),
    "ubigint": pa.uint64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "text": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "time_ns": pa.time64("ns"),
    "uuid": pa.uuid(),
    "json": pa.json_(),
    **{f"timestamp{'' if unit == 'us' else '_' + unit}": pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")},
    **{f"timestamptz{'' if u == 'us' else '_' + u}": pa.timestamp(u, "UTC") for u in ("s", "ms", "us", "ns")},
}
_SPELLED = {type_: word for word, type_ in PLAIN.items()}
ALIASES = {
    "boolean": "bool",
    "int8": "bigint",  # as SQL has it, not Arrow: eight bytes
    "int4": "int",
    "int2": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "float4": "float",
    "float8": "double",
    "double precision": "double",
    "string": "text",
    "varchar": "text",
    "bytea": "binary",
    "blob": "binary",
    "datetime": "timestamp",
    "timestamp with time zone": "timestamptz",
    "timestamp without time zone": "timestamp",
}
# What these are is told by their text alone.
_WITHOUT_ARROW = {NUMERIC: NUMERIC, INTERVAL: INTERVAL}
_AS = " as "

MAX_PRECISION = 38


@dataclass(frozen=True, slots=True)
class Word:
    """A parsed type: an Arrow type, and what it means beyond that."""

    type: pa.DataType
    logical: Logical | None = None
    native: str = ""

    def column(self, name: str, *, nullable: bool = True) -> Column:
        return Column(name, self.type, self.logical, self.native, nullable)


def spell(column: Column) -> str:
    """The type of a column by name."""
    logical = column.logical
    if logical is None:
        return spell_type(column.type)
    if not pa.types.is_string(column.type):
        return spell_type(column.type)
    if logical.kind in _WITHOUT_ARROW:
        return logical.kind
    if logical.kind == ENUM:
        return f"enum({', '.join(_quoted(label) for label in logical.labels)})"
    if logical.kind in (NATIVE, OPAQUE) and column.native:
        return f"text{_AS}{column.native}"
    return logical.kind if logical.kind in PLAIN else "text"


def spell_type(type_: pa.DataType) -> str:
    if pa.types.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return f"{spell_type(type_.value_type)}[]"
    if pa.types.is_struct(type_):
        return f"struct({', '.join(f'{_name(field.name)} {spell_type(field.type)}' for field in type_)})"
    if pa.types.is_map(type_):
        return f"map({spell_type(type_.key_type)}, {spell_type(type_.item_type)})"
    try:
        return _SPELLED[type_]
    except KeyError:
        raise ConfigError(f"there is no word for the type {type_}") from None


def parse(text: str) -> Word:
    """The type that a word names."""
    head, mark, native = text.partition(_AS)
    if mark and head.strip() == "text" and ":" in native:
        return Word(pa.string(), Logical(NATIVE), native.strip())
    reader = _Reader(text)
    word = reader.type()
    reader.end()
    return word


# ---------------------------------------------------------------- spelling


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _name(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else '"' + name.replace('"', '""') + '"'


# ---------------------------------------------------------------- parsing

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<number>-?\d+)
    | '(?P<label>(?:[^']|'')*)'
    | "(?P<name>(?:[^"]|"")*)"
    | (?P<mark>[\[\](),])
    )""",
    re.VERBOSE,
)


class _Reader:
    """A type's text, read from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0

    def type(self) -> Word:
        word = self._element()
        while self._take("["):
            self._expect("]")
            if word.logical is not None:
                raise self._wrong(f"a list of {word.logical.kind} has no Arrow form")
            word = Word(pa.list_(word.type))
        return word

    def _element(self) -> Word:
        name = self._word().lower()
        if name == "double" and self._take("precision"):
            return Word(pa.float64())
        if name == "timestamp" and (zone := self._zone()):
            name = zone
        name = ALIASES.get(name, name)
        if name in ("decimal", "numeric"):
            return self._decimal(name)
        if name == INTERVAL:
            return Word(pa.string(), Logical(INTERVAL))
        if name == "enum":
            return Word(pa.string(), Logical(ENUM, tuple(self._labels())))
        if name == "struct":
            return Word(pa.struct(self._fields()))
        if name == "map":
            self._expect("(")
            key = self._bare()
            self._expect(",")
            value = self._bare()
            self._expect(")")
            return Word(pa.map_(key, value))
        if name not in PLAIN:
            raise self._wrong(f"{name!r} is no type")
        return Word(PLAIN[name])

    def _zone(self) -> str:
        for first, word in (("with", "timestamptz"), ("without", "timestamp")):
            if self._take(first):
                self._expect("time")
                self._expect("zone")
                return word
        return ""

    def _decimal(self, name: str) -> Word:
        if not self._take("("):
            if name == "decimal":
                raise self._wrong("a decimal needs its digits: decimal(38,9)")
            return Word(pa.string(), Logical(NUMERIC))
        precision = int(self._match("number"))
        scale = int(self._match("number")) if self._take(",") else 0
        self._expect(")")
        if not 1 <= precision <= MAX_PRECISION or not 0 <= scale <= precision:
            raise self._wrong(f"a decimal has 1 to {MAX_PRECISION} digits, and no more of them after the point")
        return Word(pa.decimal128(precision, scale))

    def _labels(self) -> list[str]:
        self._expect("(")
        labels = [self._match("label").replace("''", "'")]
        while self._take(","):
            labels.append(self._match("label").replace("''", "'"))
        self._expect(")")
        return labels

    def _fields(self) -> list[pa.Field]:
        self._expect("(")
        fields = [self._field()]
        while self._take(","):
            fields.append(self._field())
        self._expect(")")
        return fields

    def _field(self) -> pa.Field:
        found = _TOKEN.match(self._text, self._place)
        if found is None or found.lastgroup not in ("word", "name"):
            raise self._wrong("a field's name is missing")
        self._place = found.end()
        name = found[found.lastgroup]
        return pa.field(name.replace('""', '"') if found.lastgroup == "name" else name, self._bare())

    def _bare(self) -> pa.DataType:
        word = self.type()
        if word.logical is not None:
            raise self._wrong(f"{word.logical.kind} has no Arrow form inside another type")
        return word.type

    def end(self) -> None:
        if self._text[self._place :].strip():
            raise self._wrong(f"{self._text[self._place :].strip()!r} is too much")

    def _word(self) -> str:
        return self._match("word")

    def _match(self, kind: str) -> str:
        found = _TOKEN.match(self._text, self._place)
        if found is None or found.lastgroup != kind:
            raise self._wrong(f"a {kind} is missing")
        self._place = found.end()
        return found[kind]

    def _take(self, text: str) -> bool:
        found = _TOKEN.match(self._text, self._place)
        if found is None or found.group().strip().lower() != text:
            return False
        self._place = found.end()
        return True

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise self._wrong(f"{text!r} is missing")

    def _wrong(self, why: str) -> ConfigError:
        return ConfigError(
            f"{self._text!r} is not a type",
            why=why,
            remedy="text, bigint, decimal(38,9), timestamptz, uuid, int[] … (all in docs/reference/types.md)",
        )
