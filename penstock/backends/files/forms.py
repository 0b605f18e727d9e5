"""What form the files of a target may take: which formats are written into one file, or into folders by value.

Told by options and names alone; nothing is opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.backends.base import PartitionField
from penstock.backends.files.config import FilesConfig, format_of
from penstock.backends.files.place import Place, locate
from penstock.errors import Unsupported
from penstock.schema import TableName

WHOLE_CONNECTION = "ORC is written by Spark, which a whole connection goes by"
SET_IT = 'set format = "orc" of the connection, and of no single table'


def unable(config: FilesConfig, table: TableName, partition_by: Sequence[PartitionField]) -> Iterator[Unsupported]:
    """Why no load can write the table's files."""
    place = locate(config, table, exists=False)
    one_file = place.kind == "file"
    chosen = config.table(table).format or config.format or (format_of(place.root.name)[0] if one_file else None)
    if chosen == "orc" and one_file:
        yield Unsupported(
            f"{place.root.name} cannot be one file of ORC",
            why="Spark writes ORC into a directory, a file per task",
            remedy=_a_directory(config, place),
        )
    elif (chosen == "orc") != (config.format == "orc"):
        yield Unsupported(WHOLE_CONNECTION, remedy=SET_IT)
    elif partition_by and chosen == "orc":
        yield Unsupported(
            "ORC has no folders by value",
            why="Spark writes it into the table's directory as it is",
            remedy='leave partition_by out, or write format = "parquet"',
        )
    elif partition_by and one_file:
        yield Unsupported(
            f"{place.root.name} is one file, which has no folders by value",
            remedy=f"leave partition_by out, or {_a_directory(config, place)}",
        )


def _a_directory(config: FilesConfig, place: Place) -> str:
    told, stem = format_of(place.root.name)[0], place.root.name.partition(".")[0]
    if place.root == config.root:
        return f"let `path` of [connections.{config.name}] be a directory, which holds one per table"
    if told is None:
        return "name a table that is no file"
    wanted = "" if config.format else f', with format = "{told}" of the connection'
    return f"name a directory, without the ending: {config.name}.{TableName(place.table.schema, stem)}{wanted}"
