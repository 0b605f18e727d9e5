"""What the fields of a pipeline must hold together; checked when the project is loaded.

Each rule looks at one pipeline and tells what is wrong and which key to look at. A rule must not
touch a server: what needs one is checked by the planner.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from penstock.errors import ConfigError
from penstock.project.findings import suggestion
from penstock.project.model import PLACEHOLDER, Pipeline
from penstock.project.sqlcheck import Unreadable, transaction_control
from penstock.schema.ddl import PartitionField
from penstock.schema.names import TableName

VIEWS = ("source", "staged")  # what SQL calls the pipeline's own rows, before and after its transform
_VIEW_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Finding:
    key: str
    what: str
    why: str = ""
    remedy: str = ""


Rule = Callable[[Pipeline], Iterator[Finding]]


def broken(pipeline: Pipeline, dialect: str, invalid: frozenset[str] = frozenset()) -> list[Finding]:
    """Every rule the pipeline breaks. Keys in `invalid` were refused already: their rules are left out."""
    findings: list[Finding] = []
    for needs, rule in RULES:
        if not needs & invalid:
            findings += rule(pipeline)
    if not invalid & {"transforms_pre", "transforms_post"}:
        findings += _user_sql(pipeline, dialect)
    return findings


def _one_source(p: Pipeline) -> Iterator[Finding]:
    given = [name for name in ("table", "query", "tables") if getattr(p, name)]
    if not given:
        yield Finding("source", "nothing to read is named", remedy="give one of table, query or tables")
    elif len(given) > 1:
        yield Finding(
            given[1], f"{' and '.join(given)} exclude each other", remedy="give exactly one of table, query and tables"
        )


def _table_names(p: Pipeline) -> Iterator[Finding]:
    names = [("table", p.table)] if p.table else []
    names += [("tables", pattern.removeprefix("!")) for pattern in p.tables]
    for key, name in names:
        try:
            TableName.parse(name or "")
        except ConfigError as error:
            yield Finding(key, error.what, error.why)
    if p.tables and all(pattern.startswith("!") for pattern in p.tables):
        yield Finding(
            "tables", "tables only leaves tables out", remedy='start with what to take: tables = ["public.*"]'
        )


def _template(p: Pipeline) -> Iterator[Finding]:
    used = p.target.placeholders
    if p.tables and "table" not in PLACEHOLDER.findall(p.target.table):
        name = TableName(p.target.schema_, "{table}")
        yield Finding(
            "target",
            "many tables would be loaded into one",
            why="tables is given, and the target does not hold {table}",
            remedy=f'target = "{p.target.connection}.{name.schema + "." if name.schema else ""}{{table}}"',
        )
    if p.query and used:
        yield Finding(
            "target",
            f"the target holds {', '.join('{' + name + '}' for name in sorted(used))}, which a query does not have",
            remedy="write the table's name",
        )


def _keys(p: Pipeline) -> Iterator[Finding]:
    if p.mode in ("merge", "scd2") and not p.keys and p.query:
        yield Finding(
            "mode", f"mode {p.mode!r} of a query needs keys", remedy='say what makes a row unique: keys = ["id"]'
        )
    for key in ("keys", "track", "ignore"):
        names = getattr(p, key)
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            yield Finding(key, f"{key} names {', '.join(map(repr, doubled))} twice")
        if any(not name for name in names):
            yield Finding(key, f"{key} holds an empty name")
    if p.order_by and p.mode not in ("merge", "scd2"):
        yield Finding("order_by", f"order_by has no meaning in mode {p.mode!r}", why="it chooses between equal keys")


def _deletes(p: Pipeline) -> Iterator[Finding]:
    fitting = {"close": "scd2", "hard": "merge", "soft": "merge"}
    wanted = fitting.get(p.deletes)
    if wanted and p.mode != wanted:
        offer = "close" if p.mode == "scd2" else ("hard or soft" if p.mode == "merge" else "none")
        yield Finding(
            "deletes",
            f"deletes = {p.deletes!r} needs mode {wanted!r}, not {p.mode!r}",
            remedy=f"in mode {p.mode!r} deletes may be {offer}",
        )
    removes = p.deletes != "none" or p.mode == "truncate" or p.ttl is not None
    if p.delete_scope and not removes:
        yield Finding("delete_scope", "delete_scope has no meaning without deletes")
    if p.delete_scope and p.truncate_with == "truncate" and p.mode == "truncate":
        yield Finding("truncate_with", "TRUNCATE cannot be limited to delete_scope", remedy='truncate_with = "delete"')
    if p.mode != "truncate" and "truncate_with" in p.model_fields_set:
        yield Finding("truncate_with", f"truncate_with has no meaning in mode {p.mode!r}")


def _incremental(p: Pipeline) -> Iterator[Finding]:
    if p.incremental is None:
        for key in ("lag", "on_null_cursor"):
            if key in p.model_fields_set and getattr(p, key) is not None:
                yield Finding(key, f"{key} has no meaning without incremental")
        return
    removes = "deletes" if p.deletes != "none" else "mode" if p.mode == "truncate" else None
    if removes and not p.delete_scope:
        shown = f"deletes = {p.deletes!r}" if removes == "deletes" else "mode 'truncate'"
        yield Finding(
            removes,
            f"{shown} needs a full extract, and this pipeline is incremental",
            why="every row outside the window would count as vanished",
            remedy="leave incremental out, or say which rows of the target the window covers: delete_scope",
        )
    if p.mode == "append" and p.on_null_cursor == "include":
        yield Finding(
            "on_null_cursor",
            'on_null_cursor = "include" needs mode merge or scd2',
            why="rows without a cursor value are read at every run, and append would add them every time",
            remedy='mode = "merge", or on_null_cursor = "skip"',
        )
    if p.mode == "append" and p.lag is None:
        yield Finding(
            "incremental",
            "an incremental append needs an explicit lag",
            why="a row that commits late with an early cursor value is otherwise never read",
            remedy='lag = "5m" for times, lag = "1000" for integers, lag = "0" if rows never commit late; or merge',
        )


def _cursor_timezone(p: Pipeline) -> Iterator[Finding]:
    if p.cursor_timezone is None:
        return
    if p.incremental is None and p.event_time is None and p.ttl is None:
        yield Finding("cursor_timezone", "cursor_timezone has no meaning without incremental, event_time or ttl")
        return
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        ZoneInfo(p.cursor_timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        yield Finding("cursor_timezone", f"there is no time zone {p.cursor_timezone!r}", remedy='like "Europe/Berlin"')


def _tracking(p: Pipeline) -> Iterator[Finding]:
    for key in ("track", "ignore"):
        if getattr(p, key) and p.mode != "scd2":
            yield Finding(key, f"{key} needs mode 'scd2', not {p.mode!r}")
    if p.track and p.ignore:
        yield Finding("ignore", "track and ignore exclude each other", why="what is not tracked is ignored")


def _event_time(p: Pipeline) -> Iterator[Finding]:
    if p.event_time is None:
        return
    if p.mode != "scd2":
        yield Finding("event_time", f"event_time needs mode 'scd2', not {p.mode!r}")
    elif p.event_time in p.keys:
        yield Finding(
            "event_time",
            f"event_time = {p.event_time!r} is one of the keys",
            why="every event would be a row of its own, and none would follow another",
            remedy="leave it out of keys: they say whose history it is",
        )


def _ttl(p: Pipeline) -> Iterator[Finding]:
    if p.ttl is not None and p.mode == "scd2":
        yield Finding(
            "ttl",
            "ttl has no meaning in mode 'scd2'",
            why="versions that go leave holes in a history",
            remedy="delete what is old in transforms_post: delete from … where valid_to < …",
        )


def _partition_by(p: Pipeline) -> Iterator[Finding]:
    columns = [PartitionField.parse(text).column for text in p.partition_by]
    doubled = sorted({name for name in columns if columns.count(name) > 1})
    if doubled:
        yield Finding("partition_by", f"partition_by names {', '.join(map(repr, doubled))} twice")


def _transforms(p: Pipeline) -> Iterator[Finding]:
    if p.transform and p.transform_function:
        yield Finding("transform", "transform is given as SQL and as a function", remedy="keep one of them")
    if (p.transform or p.transform_function) and p.path in ("native", "fused"):
        yield Finding(
            "path",
            f"path = {p.path!r} has no transform",
            why="a transform goes through Spark SQL",
            remedy='path = "spark", or leave path out',
        )


def _inputs(p: Pipeline) -> Iterator[Finding]:
    if p.inputs and not (p.transform or p.transform_function):
        yield Finding("inputs", "inputs has no meaning without a transform", why="only a transform reads them")
    taken = {view: view for view in VIEWS}
    for name, given in p.inputs.items():
        key = f"inputs.{name}"
        if not _VIEW_NAME.fullmatch(name):
            yield Finding(key, f"{name!r} is no name for a view", why="it is written in SQL: letters, digits and _")
        if name.lower() in taken:
            yield Finding(key, f"the view {name!r} is there already", why=f"{taken[name.lower()]!r} has that name")
        taken[name.lower()] = name
        try:
            TableName.parse(given.table or "query")
        except ConfigError as error:
            yield Finding(key, error.what, error.why)
    if p.transform_function is not None:
        yield from _parameters(p, p.transform_function)


def _parameters(p: Pipeline, function: Callable[..., object]) -> Iterator[Finding]:
    """A function takes the source first; what else it wants are inputs, by their names."""
    try:
        wanted = list(inspect.signature(function).parameters.values())[1:]
    except (TypeError, ValueError):  # of a callable without one, Python itself tells what is wrong when it is called
        return
    missing = [
        one.name
        for one in wanted
        if one.default is one.empty
        and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        and one.name not in p.inputs
    ]
    for name in missing:
        yield Finding(
            "inputs",
            f"the transform function wants {name!r}, which is no input",
            remedy=suggestion(name, p.inputs) or f'inputs={{"{name}": "connection.schema.table"}}',
        )


def _columns(p: Pipeline) -> Iterator[Finding]:
    taken: dict[str, str] = {}
    for name, option in p.columns.items():
        if option.rename is None:
            continue
        if option.rename in taken:
            yield Finding("columns", f"{taken[option.rename]!r} and {name!r} are both renamed to {option.rename!r}")
        taken[option.rename] = name


def _declared(p: Pipeline) -> Iterator[Finding]:
    """What the target's class and the pipeline say of the same columns."""
    table = p.declared
    if table is None:
        return
    renamed = {name: option.rename for name, option in p.columns.items() if option.rename}
    for key in ("keys", "track", "ignore"):
        for name in getattr(p, key):
            if renamed.get(name, name) not in table.names:
                yield Finding(
                    key,
                    f"{key} names {name!r}, which is no column of {table.title}",
                    remedy=suggestion(name, table.names),
                )
    for name, option in p.columns.items():
        if option.type is not None:
            yield Finding(
                f"columns.{name}",
                f"columns.{name} gives a type, and {table.title} declares the table's types",
                remedy="keep the type in the class",
            )
        if option.rename is not None and option.rename not in table.names:
            yield Finding(
                f"columns.{name}",
                f"{name!r} is renamed to {option.rename!r}, which is no column of {table.title}",
                remedy=suggestion(option.rename, table.names),
            )


def _user_sql(p: Pipeline, dialect: str) -> Iterator[Finding]:
    for key in ("transforms_pre", "transforms_post"):
        for number, sql in enumerate(getattr(p, key)):
            try:
                words = transaction_control(sql, dialect)
            except Unreadable as error:
                yield Finding(f"{key}.{number}", f"{key}[{number}] cannot be read as SQL", str(error))
                continue
            for word in words:
                yield Finding(
                    f"{key}.{number}",
                    f"{key}[{number}] holds {word}",
                    why="it would end the load's own transaction, and with it all or nothing",
                    remedy="take it out: the statements run inside the load's transaction",
                )


RULES: tuple[tuple[frozenset[str], Rule], ...] = (
    (frozenset({"table", "query", "tables"}), _one_source),
    (frozenset({"table", "tables"}), _table_names),
    (frozenset({"tables", "query", "target"}), _template),
    (frozenset({"mode", "keys", "query"}), _keys),
    (frozenset({"mode", "deletes", "ttl"}), _deletes),
    (frozenset({"mode", "deletes", "incremental", "lag", "delete_scope"}), _incremental),
    (frozenset({"cursor_timezone", "incremental", "event_time", "ttl"}), _cursor_timezone),
    (frozenset({"mode"}), _tracking),
    (frozenset({"mode", "keys", "event_time"}), _event_time),
    (frozenset({"mode", "ttl"}), _ttl),
    (frozenset({"partition_by"}), _partition_by),
    (frozenset({"path"}), _transforms),
    (frozenset({"inputs", "transform"}), _inputs),
    (frozenset({"columns"}), _columns),
    (frozenset({"columns", "keys", "track", "ignore", "target"}), _declared),
)
