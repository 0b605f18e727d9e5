"""Tables written as classes: `@ps.table` over a `ps.ManagedTable` whose annotations are its columns.

Decorating only notes the class and where it stands. The annotations are read when the project is
loaded: each that is wrong is a finding of its own, with its line. Nothing here opens a connection.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar, Union, get_args, get_origin

from penstock.errors import ConfigError
from penstock.project.decorators import Origin, caller, name_of, registered, replace_in
from penstock.project.findings import nearest
from penstock.project.toml import shown
from penstock.schema import declare
from penstock.schema.declare import Key, List, Map, Struct, Type, field_name
from penstock.schema.declared import DeclaredColumn, DeclaredTable
from penstock.schema.names import TableName

C = TypeVar("C", bound="type[ManagedTable]")

# What people write first, and what it is here.
PLAIN = {
    "bool": "ps.Bool",
    "int": "ps.BigInt",
    "float": "ps.Double",
    "str": "ps.Text",
    "bytes": "ps.Binary",
    "date": "ps.Date",
    "time": "ps.Time",
    "datetime": "ps.Timestamp, or ps.TimestampTz for a moment",
    "Decimal": "ps.Decimal[38, 9], with the digits that it needs",
    "UUID": "ps.Uuid",
    "dict": "ps.Json, or a ps.Struct",
    "list": "ps.List[ps.Text], of what it holds",
    "timedelta": "ps.Interval",
}


class ManagedTable:
    """Base of the classes that `@table` takes: their annotations are the table's columns."""

    __penstock_table__: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class TableHandle:
    """A class that was decorated."""

    name: str  # what tells two of them apart: connection and table
    cls: type[ManagedTable]
    connection: Any
    table: Any
    origin: Origin


def table(*, connection: Any, name: str) -> Callable[[C], C]:
    """Declare a table of a connection by a class: `@ps.table(connection="warehouse", name="main.customers")`."""
    origin = caller(sys._getframe(1))

    def decorate(decorated: C) -> C:
        if not (isinstance(decorated, type) and issubclass(decorated, ManagedTable)):
            raise ConfigError(
                "@ps.table is for a class of columns",
                why=f"{getattr(decorated, '__name__', decorated)!r} is no ps.ManagedTable",
                remedy=f"class {getattr(decorated, '__name__', 'Customers')}(ps.ManagedTable): …",
            )
        handle = TableHandle(f"{name_of(connection)}.{name}", decorated, name_of(connection), name, origin)
        decorated.__penstock_table__ = handle.name
        replace_in(registered.tables, handle)
        return decorated

    return decorate


# ---------------------------------------------------------------- checking


def declared(handle: TableHandle) -> tuple[DeclaredTable | None, list[ConfigError]]:
    """The table that a class declares, or all that is wrong with it."""
    lines = _Lines(handle)
    findings: list[ConfigError] = []
    title = handle.cls.__name__
    name = _table_name(handle, lines, findings)
    columns = list(_columns(handle.cls, lines, findings))
    if not columns and not findings:
        findings.append(
            ConfigError(f"{title} has no columns", remedy="annotate them: id: ps.Key[ps.BigInt]", place=lines.place())
        )
    if findings or name is None:
        return None, findings
    return DeclaredTable(title, str(handle.connection), name, tuple(columns), lines.place()), []


def _table_name(handle: TableHandle, lines: _Lines, findings: list[ConfigError]) -> TableName | None:
    title = handle.cls.__name__
    if not isinstance(handle.connection, str) or not handle.connection:
        findings.append(ConfigError(f"the connection of {title} must be a name", place=lines.place()))
    try:
        return TableName.parse(handle.table) if isinstance(handle.table, str) else _no_name(title)
    except ConfigError as error:
        findings.append(ConfigError(f"the name of {title} is wrong", why=error.why or error.what, place=lines.place()))
        return None


def _no_name(title: str) -> TableName:
    raise ConfigError(f"the name of {title} must be text")


def _columns(cls: type[ManagedTable], lines: _Lines, findings: list[ConfigError]) -> Iterator[DeclaredColumn]:
    title = cls.__name__
    for name, annotation in _annotations(cls).items():
        place = lines.place(name)
        if _stands_apart(annotation):
            continue
        if any(name in vars(base) for base in cls.__mro__):
            findings.append(
                ConfigError(
                    f"column {name} of {title} has a value",
                    why="an annotation declares a column's type, and no default goes with it",
                    remedy=f"leave the value out: {name}: ps.…",
                    place=place,
                )
            )
        try:
            yield _column(name, annotation, cls)
        except ConfigError as error:
            what = f"column {name} of {title} {error.what}"
            findings.append(ConfigError(what, why=error.why, remedy=error.remedy, place=place))


def _column(name: str, annotation: Any, cls: type) -> DeclaredColumn:
    found, nullable = without_none(_evaluated(annotation, cls))
    if not (isinstance(found, type) and issubclass(found, Key)):
        return DeclaredColumn(name, word_of(found, cls), nullable)
    key: Any = found  # a checker sees a generic
    if key.fault:
        raise ConfigError("has no type", why=key.fault)
    inner, optional = without_none(_evaluated(key.of, cls))
    if nullable or optional:
        raise ConfigError(
            "is a key that may be NULL",
            why="a row without a key would be inserted again at every run",
            remedy="take `| None` away, or make another column the key",
        )
    word = word_of(inner, cls)
    if not inner.comparable:
        raise ConfigError(
            f"cannot be a key: it is {word}", why="two of its values cannot be compared", remedy="choose another column"
        )
    return DeclaredColumn(name, word, key=True)


def word_of(found: Any, cls: type, *, inside: bool = False) -> str:
    """The word of an annotation; ConfigError where it is none of ours."""
    if get_origin(found) is not None or not isinstance(found, type) or not issubclass(found, Type):
        raise _no_type(found)
    if found.fault:
        raise ConfigError("has a wrong type", why=found.fault)
    if issubclass(found, Key):
        raise ConfigError("has a key inside a type", remedy="a key is a whole column: id: ps.Key[ps.BigInt]")
    if inside and not found.nested:
        raise ConfigError(f"has {found.word} inside another type", why="it has no Arrow form there", remedy="ps.Text")
    if issubclass(found, List):
        return f"{_inner(found.of, cls)}[]"  # type: ignore[attr-defined]  # a checker sees a generic
    if issubclass(found, Map):
        return f"map({', '.join(_inner(part, cls) for part in found.of)})"  # type: ignore[attr-defined]  # likewise
    if issubclass(found, Struct):
        return _struct(found)
    if not found.word:
        raise _no_type(found)
    return found.word


def _inner(annotation: Any, cls: type) -> str:
    # Elements and fields may always be NULL: `| None` says nothing new there.
    return word_of(without_none(_evaluated(annotation, cls))[0], cls, inside=True)


def _struct(found: type[Struct]) -> str:
    fields = {name: one for name, one in _annotations(found).items() if not _stands_apart(one)}
    if not fields:
        raise ConfigError(
            f"is {_named(found)}, a struct without fields",
            remedy="class Address(ps.Struct): street: ps.Text",
        )
    return f"struct({', '.join(f'{field_name(name)} {_inner(one, found)}' for name, one in fields.items())})"


def _no_type(found: Any) -> ConfigError:
    name = _named(found)
    if found in (Type, ManagedTable) or (isinstance(found, type) and issubclass(found, ManagedTable)):
        return ConfigError(f"is annotated with {name}, which is no column type")
    plain = PLAIN.get(name.rpartition(".")[2], "")
    return ConfigError(f"is annotated with {name}, which is no column type", remedy=plain or "a type such as ps.Text")


def _named(found: Any) -> str:
    return found.__name__ if isinstance(found, type) and get_origin(found) is None else str(found)


def without_none(found: Any) -> tuple[Any, bool]:
    if get_origin(found) not in (Union, types.UnionType):
        return found, False
    rest = [one for one in get_args(found) if one is not type(None)]
    if len(rest) == 1:
        return rest[0], True
    raise ConfigError("may be of several types", why="a column has one type, and `| None` where it may be NULL")


# ---------------------------------------------------------------- annotations


def _annotations(cls: type) -> dict[str, Any]:
    """All annotations of a class and its bases, the bases' first; some still as text."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base in (ManagedTable, Struct, Type, object):
            continue
        for name, annotation in _own_annotations(base).items():
            found[name] = (annotation, base) if isinstance(annotation, str) else annotation
    return found


def _own_annotations(cls: type) -> Mapping[str, Any]:
    if sys.version_info >= (3, 14):
        import annotationlib

        # Evaluated all at once, the first wrong one would hide the others: it stays as text here.
        found = annotationlib.get_annotations(cls, format=annotationlib.Format.FORWARDREF)
        return {
            name: one.__forward_arg__ if isinstance(one, annotationlib.ForwardRef) else one
            for name, one in found.items()
        }
    return inspect.get_annotations(cls)


def _stands_apart(annotation: Any) -> bool:
    """A ClassVar is no column."""
    text = annotation[0] if isinstance(annotation, tuple) and isinstance(annotation[0], str) else None
    if text is not None:
        return text.startswith(("ClassVar", "typing.ClassVar"))
    return annotation is ClassVar or get_origin(annotation) is ClassVar


def _evaluated(annotation: Any, cls: type) -> Any:
    """An annotation as an object. One that is text is read where its class was written."""
    home = cls
    if isinstance(annotation, tuple) and len(annotation) == 2 and isinstance(annotation[0], str):
        annotation, home = annotation
    if not isinstance(annotation, str):
        return annotation
    module = sys.modules.get(home.__module__)
    try:
        return eval(annotation, dict(vars(module)) if module else {}, dict(vars(home)))  # noqa: S307  the user's own code
    except Exception as error:
        close = _meant(error, annotation)
        raise ConfigError(
            f"has an annotation that cannot be read: {annotation}",
            why=f"{type(error).__name__}: {error}",
            remedy=f"did you mean {close}?" if close else "",
        ) from error


def _meant(error: Exception, annotation: str) -> str:
    missing = getattr(error, "name", None) or annotation.rpartition(".")[2]
    close = nearest(str(missing), declare.__all__)
    return f"ps.{close}" if close else ""


@dataclass(slots=True)
class _Lines:
    """Where the columns of a class stand; found in its source, that of a notebook's cell too."""

    handle: TableHandle
    found: dict[str, int] | None = None

    def place(self, column: str = "") -> str:
        origin = self.handle.origin
        if self.found is None:
            self.found = _column_lines(origin, self.handle.cls)
        line = self.found.get(column, origin.line)
        if not Path(origin.file).exists():
            return f"{origin.module} line {line}"
        return f"{shown(Path(origin.file))}:{line}"


def _column_lines(origin: Origin, cls: type) -> dict[str, int]:
    linecache.checkcache(origin.file)
    try:
        tree = ast.parse("".join(linecache.getlines(origin.file)))
    except SyntaxError:  # the file has changed since it was imported
        return {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == cls.__name__ and _is_at(node, origin.line):
            return {
                one.target.id: one.lineno
                for one in node.body
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
            }
    return {}


def _is_at(node: ast.ClassDef, line: int) -> bool:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return first <= line <= node.lineno


# ---------------------------------------------------------------- of a whole project


def declared_tables(handles: Sequence[TableHandle]) -> tuple[dict[str, DeclaredTable], list[ConfigError]]:
    """Every declared table by what its class noted; what is wrong with any of them."""
    made: dict[str, DeclaredTable] = {}
    findings: list[ConfigError] = []
    seen: dict[tuple[str, str | None, str], DeclaredTable] = {}
    for handle in handles:
        found, errors = declared(handle)
        findings += errors
        if found is None:
            continue
        if found.identity in seen:
            first = seen[found.identity]
            findings.append(
                ConfigError(
                    f"table {found} is declared twice",
                    why=f"by {first.title} in {first.place} and by {found.title} in {found.place}",
                    remedy="keep one of them",
                    place=found.place,
                )
            )
        seen[found.identity] = found
        made[handle.name] = found
    return made, findings
