"""What a value that a target keeps as text sorts by: '9' comes before '10'.

Expressions in the SQL that SQLite and DuckDB share. Never shown, never kept: only for `order by`.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.schema.columns import INTERVAL, NUMERIC, Column

# More digits than Postgres' numeric has before its point.
LARGEST = 999_999
# After every letter: of two negative numbers that begin alike, the longer one is the lower.
END = "~"
_MIRROR = dict(zip("0123456789", "jihgfedcba", strict=True))


def is_number(column: Column) -> bool:
    """Whether a text of the column is a number in plain digits."""
    if pa.types.is_decimal(column.type) or pa.types.is_integer(column.type):
        return True
    return column.logical is not None and column.logical.kind == NUMERIC


def text_order(value: str, column: Column) -> str:
    """For the text of a column's values; "" where nothing in the text tells their order."""
    if is_number(column):
        return number_order(value)
    spans = column.logical is not None and column.logical.kind == INTERVAL
    return "" if spans or pa.types.is_nested(column.type) else value


def number_order(value: str) -> str:
    """Sign, count of digits before the point, digits: of a negative number the last two in reverse. NaN is highest."""
    size = f"substr({value}, 2)"
    return (
        f"case when {value} = '-Infinity' then '0'"
        f" when {value} like '-%' then '1' || {_padded(f'{LARGEST} - ({_whole(size)})')} || {_mirrored(_digits(size))}"
        f" || '{END}'"
        f" when {value} = 'Infinity' then '3' when {value} = 'NaN' then '4'"
        f" else '2' || {_padded(_whole(value))} || {_digits(value)} end"
    )


def _whole(value: str) -> str:
    return f"length({value}) - length(ltrim({value}, '0123456789'))"


def _digits(value: str) -> str:
    return f"case when {value} like '%.%' then rtrim(rtrim({value}, '0'), '.') else {value} end"


def _padded(number: str) -> str:
    text = f"cast({number} as text)"
    width = len(str(LARGEST))
    return f"substr('{'0' * width}', 1, {width} - length({text})) || {text}"


def _mirrored(value: str) -> str:
    for digit, letter in _MIRROR.items():
        value = f"replace({value}, '{digit}', '{letter}')"
    return value
