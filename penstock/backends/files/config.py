"""Options of a files connection: where the files are, and how they are written."""

from __future__ import annotations

import codecs
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from penstock.backends.base import ConnectionConfig
from penstock.schema import TableName
from penstock.schema.words import parse

FileFormat = Literal["parquet", "csv", "jsonl", "orc"]
DEFAULT_FORMAT: FileFormat = "parquet"  # what a new folder is filled with: the one that holds types itself
# Fast on both sides, and every reader of Parquet knows it.
PARQUET_COMPRESSION = "snappy"
EXTENSIONS: dict[FileFormat, tuple[str, ...]] = {
    "parquet": (".parquet", ".pq"),
    "csv": (".csv", ".tsv", ".txt"),
    "jsonl": (".jsonl", ".ndjson", ".json"),
    "orc": (".orc",),
}
COMPRESSED = {".gz": "gzip", ".zst": "zstd"}


class FileOptions(BaseModel):
    """How the files of a connection, or of one of its tables, are written."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: FileFormat | None = Field(
        default=None, description="parquet, csv, jsonl or orc; by default what the files' names say."
    )
    delimiter: str | None = Field(default=None, min_length=1, max_length=1, description="Of CSV; a comma by default.")
    quote: str | None = Field(default=None, max_length=1, description='Of CSV; `"` by default, empty for none.')
    escape: str | None = Field(
        default=None, min_length=1, max_length=1, description="Of CSV, where quotes are not doubled but escaped."
    )
    header: bool | None = Field(default=None, description="Of CSV: the first row has the names; true by default.")
    encoding: str | None = Field(
        default=None,
        description="Of CSV and JSON Lines; utf-8 by default. Files are not written in one that begins with a mark,"
        " as utf-16 does: utf-16-le and utf-16-be have none.",
    )
    null: str | None = Field(
        default=None,
        description="Of CSV: the text that is NULL where it is not in quotes; empty by default,"
        ' so that `""` is empty text.',
    )
    compression: str | None = Field(
        default=None,
        description="Of what is written: gzip or zstd for CSV and JSON Lines (none by default),"
        " snappy, zstd, gzip, lz4 or none for Parquet (by default snappy, of columns that it makes smaller).",
    )
    infer: bool | None = Field(
        default=None,
        description="Give columns of CSV, JSON Lines and folder names a type where every value is spelled as"
        " the type would be; otherwise, and by default, they are text.",
    )

    @field_validator("delimiter", "quote", "escape")
    @classmethod
    def _one_byte(cls, mark: str | None) -> str | None:
        if mark and (not mark.isascii() or mark in "\r\n\0"):
            raise ValueError("it must be one ASCII character, and no line break")
        return mark

    @field_validator("encoding")
    @classmethod
    def _of_text(cls, encoding: str | None) -> str | None:
        if encoding is None:
            return None
        try:
            "".encode(encoding)
        except (LookupError, UnicodeError) as error:
            raise ValueError(f"there is no encoding {encoding!r}") from error
        return codecs.lookup(encoding).name


class FileTable(FileOptions):
    """One table: options of its own, and the types of its columns."""

    columns: dict[str, str] = Field(
        default_factory=dict, description='Types by column: `{ id = "bigint", price = "decimal(38,9)" }`.'
    )

    @field_validator("columns")
    @classmethod
    def _known_types(cls, columns: dict[str, str]) -> dict[str, str]:
        for text in columns.values():
            parse(text)
        return columns


class FilesConfig(ConnectionConfig, FileOptions):
    """A directory of tables, or one file."""

    path_base: ClassVar[str] = "path"
    model_config = ConnectionConfig.model_config

    type: Literal["files"] = "files"
    path: str = Field(description="A directory that holds a directory or file per table, or one file.")
    tables: dict[str, FileTable] = Field(
        default_factory=dict,
        description="Options by table: those above, and `columns`, types by column:"
        ' `{ id = "bigint", price = "decimal(38,9)" }`.',
    )
    read_only: bool = Field(default=False, description="Refuse to be a target.")

    @field_validator("path")
    @classmethod
    def _a_path(cls, path: str) -> str:
        if not path.strip():
            raise ValueError("the path is empty")
        if "://" in path:
            raise ValueError("this backend reads local files, not addresses")
        return path

    @property
    def root(self) -> Path:
        """With links followed: one place has one name, whoever opens it."""
        return Path(self.path).expanduser().resolve()

    def table(self, name: TableName) -> FileTable:
        key = self._key(name)
        return self.tables[key] if key is not None else FileTable()

    def section(self, name: TableName) -> str:
        """Where the options of a table stand, or would stand, in penstock.toml."""
        key = self._key(name) or str(name)
        return ".".join(["[connections", *map(_toml_key, (self.name, "tables", key))]) + "]"

    def _key(self, name: TableName) -> str | None:
        for key in self.tables:
            if key in (str(name), name.table) or TableName.parse(key) == name:
                return key
        return None

    def dialect(self, name: TableName, file_format: FileFormat, compression: str | None) -> Dialect:
        """Everything that a worker must know to read or write a file of this table."""
        own = self.table(name)

        def option(field: str, default: Any) -> Any:
            value = getattr(own, field)
            if value is None:
                value = getattr(self, field)
            return default if value is None else value

        return Dialect(
            file_format,
            option("delimiter", ","),
            option("quote", '"'),
            option("escape", ""),
            option("header", True),
            option("encoding", "utf-8"),
            option("null", ""),
            compression or option("compression", "") or "",
        )

    def infers(self, name: TableName) -> bool:
        own = self.table(name).infer
        return bool(self.infer if own is None else own)


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a file is written. Small, picklable, and kept in the manifest of what we write."""

    format: FileFormat
    delimiter: str = ","
    quote: str = '"'
    escape: str = ""
    header: bool = True
    encoding: str = "utf-8"
    null: str = ""
    compression: str = ""

    def to_record(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @property
    def extension(self) -> str:
        """Of the files that are written so."""
        packed = {name: ending for ending, name in COMPRESSED.items()}
        ending = packed.get(self.compression, "") if self.format in ("csv", "jsonl") else ""
        return EXTENSIONS[self.format][0] + ending


def _toml_key(text: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9_-]+", text):
        return text
    return f"'{text}'" if "'" not in text else json.dumps(text)


def format_of(name: str) -> tuple[FileFormat | None, str | None]:
    """Format and compression that a file's name tells."""
    lowered = name.lower()
    compression = None
    for ending, packed in COMPRESSED.items():
        if lowered.endswith(ending):
            lowered, compression = lowered.removesuffix(ending), packed
    for known, endings in EXTENSIONS.items():
        if lowered.endswith(endings):
            return known, compression
    return None, compression
