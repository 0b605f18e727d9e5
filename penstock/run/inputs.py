"""What a transform reads besides its source: tables and queries of any connection, each a view by its name.

Reads of one connection share a moment where its backend can hold one; between connections there is
none, and the plan says so. Everything opened here is closed with the run's source.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.backends.base import ReadRequest, ReadsFrames, RunContext, Source, Split, Window
from penstock.backends.registry import backend
from penstock.errors import PenstockError, Unsupported
from penstock.project.model import Input, Pipeline, Project
from penstock.run.records import InputPlan
from penstock.schema import Schema, TableName

if TYPE_CHECKING:
    from penstock.engine.transform import Rows, View

# Spark's own limit, which it cannot apply: it knows nothing of the size of what we read.
BROADCAST_BYTES = 10 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class OpenInput:
    """One input, open at its moment."""

    name: str
    option: Input
    source: Source
    broadcast: bool
    reason: str  # of the broadcast, or of its absence

    def split(self, schema: Schema, want: int) -> Split:
        with named(self.name):
            # A task sends a whole broadcast to the driver anyway.
            return split_of(self.source, schema, 1 if self.broadcast else want, None)

    def view(self, schema: Schema, split: Split) -> View:
        from penstock.engine.transform import View

        return View(self.name, rows_of(self.source, split), schema, self.broadcast)

    def plan(self, schema: Schema, split: Split) -> InputPlan:
        return InputPlan(
            self.name,
            self.option.source,
            self.option.table or "query",
            len(split.partitions),
            split.reason,
            len(schema),
            self.broadcast,
            self.reason,
        )


def split_of(source: Source, schema: Schema, want: int, window: Window | None) -> Split:
    """The partitions of a read through Spark; none where a reader of Spark's makes its own."""
    if not isinstance(source, ReadsFrames):
        return source.partitions(list(schema), want, window)
    return Split((), f"{source.reader} splits it")


def rows_of(source: Source, split: Split) -> Rows:
    return source if isinstance(source, ReadsFrames) else split.partitions


@contextmanager
def named(name: str) -> Iterator[None]:
    """Errors inside say which input they speak of."""
    try:
        yield
    except PenstockError as error:
        error.place = ", ".join(part for part in (error.place, f"inputs.{name}") if part)
        raise


def open_inputs(
    project: Project, pipeline: Pipeline, source: Source, run: RunContext, stack: ExitStack
) -> tuple[OpenInput, ...]:
    """Open every input; those of one connection at the moment of the first that was opened of it."""
    first = {pipeline.source: source}
    opened = []
    for name, option in pipeline.inputs.items():
        with named(name):
            one = _open(project, pipeline, option, first.get(option.source), run)
            stack.callback(one.close)
            first.setdefault(option.source, one)
            opened.append(OpenInput(name, option, one, *_broadcast(option, one)))
    return tuple(opened)


def _open(project: Project, pipeline: Pipeline, option: Input, beside: Source | None, run: RunContext) -> Source:
    config = project.connection(option.source)
    kind = backend(config.type)
    if not kind.capabilities.reads:
        raise Unsupported(f"{config.type} cannot be a source", kept="nothing was touched", place=pipeline.place)
    if option.query is not None and not kind.capabilities.queries:
        raise Unsupported(
            f"{config.type} runs no query",
            kept="nothing was touched",
            remedy="name a table, and query it in the transform",
            place=pipeline.place,
        )
    table = TableName.parse(option.table) if option.table is not None else None
    request = ReadRequest(table, option.query, option.partition_on)
    return kind.source(config, request, run) if beside is None else kind.beside(beside, config, request, run)


def _broadcast(option: Input, source: Source) -> tuple[bool, str]:
    if option.broadcast is not None:
        return option.broadcast, f"broadcast = {str(option.broadcast).lower()} is set"
    size = source.size()
    if size is None:
        return False, "nobody knows its size; `broadcast = true` says that it is small"
    if size > BROADCAST_BYTES:
        return False, f"it has about {_shown(size)}, more than {_shown(BROADCAST_BYTES)}"
    return True, f"it has about {_shown(size)}"


def _shown(size: int) -> str:
    for unit in ("bytes", "KiB"):
        if size < 1024:
            return f"{size} {unit}"
        size = -(-size // 1024)
    return f"{size} MiB"


def moments(project: Project, pipeline: Pipeline, opened: Sequence[OpenInput]) -> tuple[str, ...]:
    """What the plan says of the moments at which the views are read."""
    if not opened:
        return ()
    views: dict[str, list[str]] = defaultdict(list)
    views[pipeline.source].append("source")
    for one in opened:
        views[one.option.source].append(one.name)
    notes = []
    for connection, names in views.items():
        if len(names) > 1:
            shared = backend(project.connection(connection).type).capabilities.shared_moment
            how = "one moment" if shared else "different moments"
            notes.append(f"{_listed(names)} are read at {how} of {connection}")
    if len(views) > 1:
        notes.append(f"{_listed(list(views))} are read at different moments: connections have no common one")
    return tuple(notes)


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]])
