"""Types of texts, taken only where every value is spelled exactly as its type would spell it.

`007` stays text because 7 is not it, `NA` because it is no NULL, a number of 23 digits because no
integer holds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.backends.files.texts import Unreadable, text_of, value_of

# In this order: the first that every value fits.
CANDIDATES: tuple[pa.DataType, ...] = (
    pa.bool_(),
    pa.int64(),
    pa.float64(),
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("us", "UTC"),
    pa.time64("us"),
    pa.uuid(),
)


def inferred(batches: Iterator[pa.RecordBatch], names: Sequence[str]) -> dict[str, pa.DataType]:
    """The type of each column that has one other than text, over all batches."""
    left = {name: list(CANDIDATES) for name in names}
    seen: set[str] = set()
    for batch in batches:
        for name in names:
            array = batch.column(name)
            if array.null_count < len(array):
                seen.add(name)
                left[name] = [type_ for type_ in left[name] if _fits(array, type_)]
    return {name: types[0] for name, types in left.items() if types and name in seen}


def _fits(array: pa.Array, type_: pa.DataType) -> bool:
    try:
        value = value_of(array, type_)
    except Unreadable:
        return False
    return pc.all(pc.equal(text_of(value), array)).as_py() is not False
