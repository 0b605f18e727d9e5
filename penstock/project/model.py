"""What a project is made of: pipelines, Spark, state. The shape of `penstock.toml`.

The models check one field at a time; what fields must hold together is in `rules.py`, so that a
loader can tell all findings at once. Nothing here opens a connection or imports a driver.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema

from penstock.backends.lags import LAG, UNITS
from penstock.errors import UNTOUCHED, ConfigError
from penstock.project.connections import Connections
from penstock.project.findings import raise_all, suggestion
from penstock.schema.ddl import PartitionField
from penstock.schema.declared import DeclaredTable
from penstock.schema.names import TableName, split_name

if TYPE_CHECKING:
    from penstock.backends.base import ConnectionConfig
    from penstock.project.functions import DeclaredFunction
    from penstock.project.replications import Replication

Mode = Literal["append", "truncate", "merge", "scd2"]
Deletes = Literal["none", "hard", "soft", "close"]

MODE_ALIASES = {"scd1": "merge"}

# A vanished row is often a source that could not be read in full: nothing is deleted unasked.
DEFAULT_DELETES: Deletes = "none"
# More than half of a table gone at once is rather a broken extract than a busy day.
DEFAULT_MAX_DELETE_RATIO = 0.5
# A row without a cursor value would be read never, or every time: the user says which.
DEFAULT_ON_NULL_CURSOR: Literal["error", "include", "skip"] = "error"
# A changed source is looked at by a person before a target changes.
DEFAULT_ON_DRIFT: Literal["error", "evolve", "ignore"] = "error"
# TRUNCATE shows an empty table to readers whose snapshot is older; DELETE does not.
DEFAULT_TRUNCATE_WITH: Literal["delete", "truncate"] = "delete"
# All cores of this machine.
DEFAULT_MASTER = "local[*]"
# The data stays in the Python workers; the JVM needs room for planning and shuffles only.
DEFAULT_DRIVER_MEMORY = "1g"
# Spark's own 200 are mostly empty tasks on one machine.
DEFAULT_SHUFFLE_PARTITIONS = 8
# Beside the project, out of version control.
DEFAULT_STATE_PATH = Path(".penstock/state.db")

PLACEHOLDER = re.compile(r"\{(table|schema)\}")


class Model(BaseModel):
    # Inputs are hidden: a filled-in variable may be a secret.
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, hide_input_in_errors=True)


class ColumnOption(Model):
    """What a pipeline does with one column; `columns.price = "decimal(38,9)"` is short for its type."""

    type: str | None = Field(None, min_length=1, description="the target's type, or text")
    rename: str | None = Field(None, min_length=1, description="the column's name in the target")
    nan: Literal["null", "error"] = Field("error", description="what NaN becomes where the type has none")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"type": value} if isinstance(value, str) else value


class Ttl(Model):
    """How long rows stay in the target."""

    column: str = Field(min_length=1, description="the column that says how old a row is")
    keep: str = Field(description='rows older than this go: "90d", "12h"')

    @field_validator("keep")
    @classmethod
    def _duration(cls, value: str) -> str:
        found = LAG.fullmatch(value)
        if found is None or found[2] is None or not int(found[1]):
            raise ValueError(f'it is a duration: a number with {", ".join(UNITS)}, as in "90d"')
        return value


class TargetName(Model):
    """Where a pipeline loads to. Parts may hold `{table}` and `{schema}` of the source table."""

    connection: str = Field(min_length=1, description="the connection to load into")
    schema_: str | None = Field(None, alias="schema", min_length=1, description="the connection's own one by default")
    table: str = Field(min_length=1, description="the table's name")

    @model_validator(mode="before")
    @classmethod
    def _parse(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            parts = split_name(value)
        except ConfigError as error:
            raise ValueError(f"{error.what}, {error.why}") from error
        if len(parts) not in (2, 3):
            raise ValueError("a target is connection.table or connection.schema.table")
        return {"connection": parts[0], "schema": parts[1] if len(parts) == 3 else None, "table": parts[-1]}

    @property
    def name(self) -> TableName:
        return TableName(self.schema_, self.table)

    @property
    def placeholders(self) -> frozenset[str]:
        return frozenset(PLACEHOLDER.findall(f"{self.schema_ or ''} {self.table}"))

    def filled(self, source: TableName) -> TableName:
        """The table that one source table goes to."""
        if source.schema is None and "schema" in self.placeholders:
            raise ConfigError(
                f"the target {self} asks for a schema, and {source} names none",
                kept=UNTOUCHED,
                remedy="name the table as schema.table, or take {schema} out of the target",
            )
        values = {"table": source.table, "schema": source.schema or ""}

        def fill(part: str) -> str:
            return PLACEHOLDER.sub(lambda found: values[found[1]], part)

        return TableName(None if self.schema_ is None else fill(self.schema_), fill(self.table))

    def __str__(self) -> str:
        return f"{TableName(None, self.connection)}.{self.name}"


class Input(Model):
    """What a transform reads besides its source; `"crm.public.customers"` is short for a table."""

    source: str = Field(min_length=1, description="the connection to read from")
    table: str | None = Field(None, min_length=1, description="the table to read")
    query: str | None = Field(None, min_length=1, description="or the query to run there")
    partition_on: str | None = Field(None, min_length=1, description="a column to split a query by")
    broadcast: bool | None = Field(None, description="send it whole to every task; by default if it is small")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            parts = split_name(value)
        except ConfigError as error:
            raise ValueError(f"{error.what}, {error.why}") from error
        if len(parts) not in (2, 3):
            raise ValueError("an input is connection.table or connection.schema.table")
        return {"source": parts[0], "table": str(TableName(parts[1] if len(parts) == 3 else None, parts[-1]))}

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.table is None) == (self.query is None):
            raise ValueError("give one of table and query")
        return self


class Pipeline(Model):
    """A batch job: a table, tables or a query of one connection into a table of another."""

    name: str
    place: str = ""  # file:line where it was defined

    source: str = Field(min_length=1, description="the connection to read from")
    table: str | None = Field(None, min_length=1, description="the table to read")
    query: str | None = Field(None, min_length=1, description="or the query to run on the source")
    tables: tuple[str, ...] = Field((), description='or many tables: ["public.*", "!public.audit_*"]')
    target: TargetName = Field(description="connection.schema.table, or {connection, schema, table}")
    mode: Mode = Field(description="append, truncate, merge (or scd1) or scd2")
    keys: tuple[str, ...] = Field((), description="what makes a row unique; by default the source table's primary key")
    deletes: Deletes = Field(DEFAULT_DELETES, description="what happens to rows that vanished from the source")
    delete_scope: str | None = Field(None, min_length=1, description="SQL on the target: only these rows may go")
    allow_empty: bool = Field(False, description="an empty source may empty the target")
    max_delete_ratio: float = Field(DEFAULT_MAX_DELETE_RATIO, ge=0, le=1, description="more deletes than this stop")
    order_by: str | None = Field(None, min_length=1, description='which of two equal keys wins: "updated_at desc"')
    track: tuple[str, ...] = Field((), description="scd2: only changes of these columns make a version")
    ignore: tuple[str, ...] = Field((), description="scd2: changes of these columns make no version")
    event_time: str | None = Field(
        None, min_length=1, description="scd2: the column that says when a version began, instead of the load's time"
    )
    ttl: Ttl | None = Field(None, description='delete older rows: {column = "created_at", keep = "90d"}')
    partition_by: tuple[str, ...] = Field(
        (), description='how a new target is partitioned: ["region"], ["month(created_at)"], or by year, day, hour'
    )
    incremental: str | None = Field(None, min_length=1, description="the cursor column: read what is new by it")
    lag: str | None = Field(None, description='how far the window stays behind: "5m", or units of an integer')
    cursor_timezone: str | None = Field(
        None, min_length=1, description="the zone of a cursor, event_time or ttl column that has none"
    )
    on_null_cursor: Literal["error", "include", "skip"] = Field(
        DEFAULT_ON_NULL_CURSOR, description="rows without a cursor value: stop, read every time, or never"
    )
    columns: dict[str, ColumnOption] = Field(default_factory=dict, description="per column: type, rename, nan")
    transform: str | None = Field(None, min_length=1, description="Spark SQL over the view `source`")
    inputs: dict[str, Input] = Field(
        default_factory=dict, description="more views for the transform: name = connection.schema.table, or a table"
    )
    transform_function: SkipJsonSchema[Callable[..., Any] | None] = Field(None, repr=False)  # from the decorator only
    declared: SkipJsonSchema[DeclaredTable | None] = Field(None, repr=False)  # the target's class, if it has one
    handed: SkipJsonSchema[Any] = Field(None, repr=False)  # rows of the caller instead of a source's: a backend
    transforms_pre: tuple[str, ...] = Field((), description="SQL on the target before the load, in its transaction")
    transforms_post: tuple[str, ...] = Field((), description="SQL on the target after it, in the same transaction")
    on_drift: Literal["error", "evolve", "ignore"] = Field(
        DEFAULT_ON_DRIFT, description="the source changed: stop, add and widen columns, or load what both have"
    )
    strict_schema: bool = Field(False, description="also refuse extra source columns and widening")
    truncate_with: Literal["delete", "truncate"] = Field(
        DEFAULT_TRUNCATE_WITH, description="mode truncate: the statement that empties the target"
    )
    reset_sequences: bool = Field(False, description="move the target's sequences past what was loaded")
    partition_on: str | None = Field(None, min_length=1, description="a column to split a query by")
    parallel: int | None = Field(None, ge=1, description="partitions wanted; two per core by default")
    path: Literal["native", "fused", "spark"] | None = Field(None, description="force one, or be told why not")
    tags: tuple[str, ...] = Field((), description="for --select tag:x")
    show_keys: bool = Field(True, description="show key values in errors on the terminal")
    schedule: str | None = Field(None, min_length=1, description="cron expression; kept, not yet acted on")

    @field_validator("mode", mode="before")
    @classmethod
    def _alias(cls, value: Any) -> Any:
        return MODE_ALIASES.get(value, value) if isinstance(value, str) else value

    @field_validator("lag", mode="before")
    @classmethod
    def _lag(cls, value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if isinstance(value, str) and not LAG.fullmatch(value):
            raise ValueError('a lag is a number with us, ms, s, m, h or d ("5m"), or a plain one for integers')
        return value

    @field_validator("partition_by")
    @classmethod
    def _partition_fields(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            PartitionField.parse(text)
        return value

    @property
    def target_connection(self) -> str:
        return self.target.connection

    @property
    def connections(self) -> tuple[str, ...]:
        """Every connection that the pipeline reads or writes."""
        return (self.source, self.target.connection, *(given.source for given in self.inputs.values()))

    def target_table(self, table_name: str | TableName | None = None) -> TableName:
        """The target of one source table: the placeholders filled in from its name."""
        chosen = table_name if table_name is not None else self.table
        if not self.target.placeholders:
            return self.target.name
        if chosen is None:
            raise ConfigError(f"pipeline {self.name!r} has a target for each table, and no table is named")
        try:
            return self.target.filled(TableName.parse(chosen) if isinstance(chosen, str) else chosen)
        except ConfigError as error:
            error.place = error.place or self.place
            raise


# Set by the loader and the decorator, never by a key in the file.
INTERNAL_FIELDS = frozenset({"name", "place", "transform_function", "declared", "handed"})
PIPELINE_KEYS = tuple(name for name in Pipeline.model_fields if name not in INTERNAL_FIELDS)
LIST_KEYS = frozenset(
    {"tables", "keys", "track", "ignore", "partition_by", "transforms_pre", "transforms_post", "tags"}
)


class SparkConfig(Model):
    """How Spark is started or reached."""

    master: str = Field(DEFAULT_MASTER, min_length=1, description="local[*], spark://…, k8s://…, yarn")
    remote: str | None = Field(None, min_length=1, description="a Spark Connect server instead: sc://…")
    driver_memory: str = Field(DEFAULT_DRIVER_MEMORY, pattern=r"^\d+[kmgt]b?$", description="of the JVM")
    executor_memory: str | None = Field(
        None, pattern=r"^\d+[kmgt]b?$", description="of each executor's JVM on a cluster; Spark's 1g by default"
    )
    shuffle_partitions: int = Field(
        DEFAULT_SHUFFLE_PARTITIONS, ge=1, description="of joins and group-bys in transforms"
    )
    parallel: int | None = Field(
        None, ge=1, description="partitions wanted by pipelines that do not say; set it on a cluster"
    )
    conf: dict[str, str] = Field(default_factory=dict, repr=False, description="any Spark setting")

    @field_validator("conf", mode="before")
    @classmethod
    def _texts(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in _flat(value)}

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if self.remote is not None and "master" in self.model_fields_set:
            raise ValueError("master and remote exclude each other: a Spark Connect server has its own master")
        if self.remote is not None and self.executor_memory is not None:
            raise ValueError("executor_memory and remote exclude each other: a Spark Connect server has its executors")
        return self


def _flat(settings: Mapping[str, Any], head: str = "") -> list[tuple[str, Any]]:
    """`spark.sql.x = 1` without quotes is nested tables in TOML; Spark wants the dotted name."""
    flat: list[tuple[str, Any]] = []
    for key, value in settings.items():
        flat += _flat(value, f"{head}{key}.") if isinstance(value, Mapping) else [(f"{head}{key}", value)]
    return flat


class StateConfig(Model):
    """Where runs are remembered: a SQLite file by default, a Postgres for several machines."""

    path: Path = Field(DEFAULT_STATE_PATH, description="a SQLite file, relative to the project")
    url: str | None = Field(None, min_length=1, repr=False, description="postgresql://…, memory:")

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if self.url is not None and "path" in self.model_fields_set:
            raise ValueError("path and url exclude each other")
        return self

    def location(self, root: Path) -> str | Path:
        """What `penstock.state.open_store` takes."""
        return self.url if self.url is not None else root / self.path.expanduser()


class ProjectSection(Model):
    """The `[project]` table."""

    modules: tuple[str, ...] = Field((), description="Python modules with decorated pipelines and connections")


@dataclass(frozen=True, slots=True)
class Project:
    """A loaded project. Connections are built, and their drivers imported, when asked for."""

    root: Path
    connections: Connections
    pipelines: Mapping[str, Pipeline]
    spark: SparkConfig = field(default_factory=SparkConfig)
    state: StateConfig = field(default_factory=StateConfig)
    tables: Mapping[str, DeclaredTable] = field(default_factory=dict)  # that classes declare
    functions: Mapping[str, DeclaredFunction] = field(default_factory=dict)  # that SQL calls, by name in lower case
    replications: Mapping[str, Replication] = field(default_factory=dict)

    @staticmethod
    def from_objects(
        root: Path,
        connections: Mapping[str, ConnectionConfig | Mapping[str, Any]],
        pipelines: Sequence[Pipeline | Mapping[str, Any]] = (),
        spark: SparkConfig | None = None,
        state: StateConfig | None = None,
    ) -> Project:
        """A project without a file, for tests and notebooks; checked as one with a file."""
        from penstock.project.load import from_objects

        return from_objects(root, connections, pipelines, spark or SparkConfig(), state or StateConfig())

    def connection(self, name: str) -> ConnectionConfig:
        """The named connection; otherwise an error that says where it was looked for."""
        return self.connections[name]

    def pipeline(self, name: str) -> Pipeline:
        if name not in self.pipelines:
            raise ConfigError(f"there is no pipeline {name!r}", remedy=suggestion(name, self.pipelines))
        return self.pipelines[name]

    def replication(self, name: str) -> Replication:
        if name not in self.replications:
            raise ConfigError(f"there is no replication {name!r}", remedy=suggestion(name, self.replications))
        return self.replications[name]

    def check(self) -> None:
        """Build every connection, and ask every target what it can do; raises all findings.

        Imports their drivers, opens none of them.
        """
        from penstock.project import abilities

        raise_all(self.connections.check())
        abilities.check(self, self.pipelines.values())

    @property
    def state_location(self) -> str | Path:
        """What `penstock.state.open_store` takes."""
        return self.state.location(self.root)
