"""`[replications.NAME]`: tables of one database, copied and then kept up to date in one target."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from penstock.errors import ConfigError
from penstock.project.model import Model

# A second is soon enough for people, and a flush's own cost is small beside it.
DEFAULT_FLUSH_INTERVAL_MS = 1000
# What one flush folds in memory.
DEFAULT_FLUSH_ROWS = 200_000
# Below this a Spark job costs more than it saves: the target works on the rows for longer than one core folds them.
DEFAULT_APPLY_IN_DRIVER_ROWS = 2_000_000
# Long enough for a night's target restored from a backup in the morning.
DEFAULT_RETAIN = "24h"
# What a target that is down may cost of the disk before capture waits.
DEFAULT_MAX_BYTES = "10GB"
# An older snapshot keeps too many old row versions of the source alive.
DEFAULT_SNAPSHOT_MAX_AGE = "1h"
DEFAULT_SEGMENT_MS = 100

LOG_OF = "replication:"  # before the name of the replication whose log is the source

_DURATION = re.compile(r"(\d+)\s*(ms|s|m|h|d)")
_SIZE = re.compile(r"(\d+)\s*(B|kB|MB|GB|TB)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_BYTES = {"B": 1, "kB": 1000, "MB": 1000**2, "GB": 1000**3, "TB": 1000**4}


def seconds(text: str) -> float:
    """`1h` as seconds."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no duration such as '90s', '15m', '24h'")
    return int(found[1]) * _SECONDS[found[2]]


def size(text: str) -> int:
    """`10GB` as bytes."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no size such as '500MB', '10GB'")
    return int(found[1]) * _BYTES[found[2] or "B"]


class BufferConfig(Model):
    """Where changes are kept between the source and the target."""

    path: str | None = Field(None, description="A folder; `.penstock/buffer/NAME` of the project by default.")
    format: Literal["arrow", "parquet"] = Field("arrow", description="Of large transactions; segments are Arrow.")
    retain: str = Field(DEFAULT_RETAIN, description="How long segments stay after they were applied.")
    max_bytes: str = Field(DEFAULT_MAX_BYTES, description="At this size capture waits for the target.")
    segment_ms: int = Field(DEFAULT_SEGMENT_MS, ge=1, description="How old a segment may get before it is written.")
    keep_copy: bool = Field(False, description="Begin with the copied rows, so that the log can fill another target.")

    @field_validator("retain")
    @classmethod
    def _duration(cls, value: str) -> str:
        seconds(value)
        return value

    @field_validator("max_bytes")
    @classmethod
    def _size(cls, value: str) -> str:
        if size(value) == 0:
            raise ValueError("a buffer that may hold nothing never takes a change")
        return value

    @field_validator("path")
    @classmethod
    def _local(cls, value: str | None) -> str | None:
        if value is not None and "://" in value:
            raise ValueError("it is no folder of this machine: only a local disk says when a segment is on it")
        return value


class TableOptions(Model):
    """What is special about one table."""

    include: tuple[str, ...] = Field((), description="Only these columns; keys are always among them.")
    exclude: tuple[str, ...] = Field((), description="All columns but these.")
    where: str | None = Field(None, min_length=1, description="Only these rows, in the source's own SQL.")
    rename: dict[str, str] = Field(default_factory=dict, description="Columns by other names in the target.")
    target: str | None = Field(None, min_length=1, description="The table's name in the target.")

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if self.include and self.exclude:
            raise ValueError("include and exclude exclude each other")
        names = list(self.rename.values())
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two columns would be called {', '.join(twice)}")
        gone = [name for name in self.rename if name in self.exclude]
        if gone:
            raise ValueError(f"{', '.join(gone)} is renamed and excluded")
        return self

    @property
    def partial(self) -> bool:
        """Whether only some columns or rows are asked for."""
        return bool(self.include or self.exclude or self.where)


class Replication(Model):
    """One source, one target, many tables."""

    name: str
    place: str = ""
    source: str = Field(min_length=1, description="the connection to read from; replication:NAME for its log")
    target: str = Field(min_length=1, description="the connection to write to")
    tables: tuple[str, ...] = Field(min_length=1, description='["public.*", "!public.audit_*"]')
    options: dict[str, TableOptions] = Field(default_factory=dict, description="per table")
    what: Literal["both", "copy", "changes"] = Field("both", description="copy and changes, or one of them")
    deletes: Literal["hard", "soft"] = Field(
        "hard", description="rows that are gone: removed, or kept as the target had them last, and marked"
    )
    target_schema: str | None = Field(
        None, min_length=1, description="where all tables go; the target connection's own schema by default"
    )
    target_name: str = Field("{table}", description="of each table: {schema}_{table}")
    metadata_columns: bool = Field(True, description="_penstock_version and _penstock_committed_at in every table")
    slot: str | None = Field(
        None, pattern=r"^[a-z0-9_]{1,63}$", description="the slot's name; penstock_NAME by default"
    )
    publication: str | None = Field(None, min_length=1, description="one of your own, which is then left as it is")
    copy_from: str | None = Field(None, min_length=1, description="a connection to a standby that is copied from")
    parallel: int | None = Field(None, ge=1, description="ranges that are copied at once; 4 by default")
    snapshot_max_age: str = Field(DEFAULT_SNAPSHOT_MAX_AGE, description="a copy goes on under a new snapshot after it")
    flush_interval_ms: int = Field(DEFAULT_FLUSH_INTERVAL_MS, ge=1, description="between two flushes")
    flush_rows: int = Field(DEFAULT_FLUSH_ROWS, ge=1, description="a flush has about so many changes at most")
    apply_in_driver_rows: int = Field(
        DEFAULT_APPLY_IN_DRIVER_ROWS, ge=0, description="larger flushes are Spark jobs; 0: all of them"
    )
    truncate_with: Literal["delete", "truncate"] = Field("delete", description="how a TRUNCATE is done at the target")
    on_drop: Literal["keep", "drop"] = Field("keep", description="the target's table when the source's is dropped")
    on_slot_loss: Literal["fail", "recopy"] = Field("fail", description="when the source has thrown the slot away")
    on_table_error: Literal["isolate", "halt"] = Field(
        "isolate", description="one table fails: go on without it, or stop"
    )
    buffer: BufferConfig = Field(default_factory=BufferConfig, description="the log between source and target")

    @field_validator("snapshot_max_age")
    @classmethod
    def _age(cls, value: str) -> str:
        if seconds(value) == 0:
            raise ValueError("a snapshot that may not last reads nothing")
        return value

    @field_validator("target_name")
    @classmethod
    def _template(cls, value: str) -> str:
        unknown = [word for word in re.findall(r"\{(.*?)\}", value) if word not in ("schema", "table")]
        if unknown:
            raise ValueError(f"{{{unknown[0]}}} is neither {{schema}} nor {{table}}")
        return value

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.deletes == "soft" and not self.metadata_columns:
            raise ValueError('deletes = "soft" marks rows in a column, and metadata_columns = false leaves it out')
        partial = [name for name, given in self.options.items() if given.partial]
        if self.publication is not None and partial:
            raise ValueError(f"the publication of your own says which columns and rows of {partial[0]} are sent")
        return self

    @property
    def source_replication(self) -> str | None:
        """The replication whose log is read, of `source = "replication:NAME"`."""
        head, mark, name = self.source.partition(LOG_OF)
        return name if mark and not head else None

    def buffer_folder(self, root: Path) -> Path:
        """In a project that lies there."""
        return root / (self.buffer.path if self.buffer.path is not None else f".penstock/buffer/{self.name}")

    @property
    def slot_name(self) -> str:
        return self.slot or "penstock_" + re.sub(r"[^a-z0-9_]", "_", self.name.lower())[:50]

    @property
    def publication_name(self) -> str:
        return self.publication or self.slot_name


def shared_buffers(root: Path, replications: Iterable[Replication]) -> list[ConfigError]:
    """Two that would write one log: each would take the other's segments for its own."""
    owners: dict[Path, Replication] = {}
    found = []
    for one in replications:
        if one.source_replication is not None:
            continue  # the log that it reads is its buffer
        other = owners.setdefault(one.buffer_folder(root).resolve(), one)
        if other is not one:
            found.append(
                ConfigError(
                    f"replications {other.name!r} and {one.name!r} have the same buffer",
                    why=f"both would write to {one.buffer_folder(root)}",
                    remedy="another path in [replications.NAME.buffer] of one of them",
                    place=one.place,
                )
            )
    return found
