"""The columns of ORC files of others, held against those that are declared. Never reads a row: Spark does that.

Spark gives NULL for a name that a file lacks and for a value that a narrower type does not hold, and leaves out
what it is not asked for, all without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from penstock.backends.files import types
from penstock.errors import PlanRefused, SourceError
from penstock.schema import Column


def columns_of(path: Path, declared: Mapping[str, Column]) -> list[Column]:
    """The declared columns in the order of the file, which has these and no others."""
    schema = _schema(path)
    lost, more = sorted(set(declared) - set(schema.names)), sorted(set(schema.names) - set(declared))
    if lost or more:
        raise SourceError(
            f"{path} and `columns` have different columns",
            why=f"{', '.join(lost)} is missing in the file" if lost else f"only the file has {', '.join(more)}",
            remedy="declare every column of the file, by its name",
        )
    for field in schema:
        if not _held(field.type, declared[field.name].type):
            raise PlanRefused(
                f"column {field.name} of {path} is not read as {declared[field.name].describe()}, which is declared",
                why=f"it is {field.type}, and Spark's ORC reader does not give its values as they are",
                remedy="declare what it is, and cast it in a transform; write moments in Parquet, or as text",
            )
    return [declared[name] for name in schema.names]


def _schema(path: Path) -> pa.Schema:
    from pyarrow import orc

    try:
        return orc.ORCFile(str(path)).schema
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SourceError(
            f"{path} is not a whole ORC file",
            why="it is cut off, damaged or of another format" if path.stat().st_size else "it is empty",
            remedy="write it again; leave out unfinished files by a name that begins with _ or .",
        ) from error


def _held(here: pa.DataType, declared: pa.DataType) -> bool:
    """Whether Spark gives every value of the file's type as one of the declared type.

    Not of moments: of a part of a second before 1970 it makes an error, and of ones with a zone always.
    """
    carried = _carried(declared)
    return bool(types.canonical_type(here) == carried or types.wider(here, carried) == carried)


def _carried(type_: pa.DataType) -> pa.DataType:
    """What goes through Spark: texts of what it has no type for. Its own moments are whole numbers in ORC."""
    if isinstance(type_, pa.UuidType | pa.JsonType) or pa.types.is_time(type_):
        return pa.string()
    if pa.types.is_timestamp(type_):
        return pa.null()  # which no file's type is
    if type_ == pa.uint64():
        return pa.decimal128(20, 0)
    if pa.types.is_map(type_):
        return pa.map_(_carried(type_.key_type), _carried(type_.item_type))
    if pa.types.is_list(type_):
        return pa.list_(_carried(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([(field.name, _carried(field.type)) for field in type_])
    return type_
