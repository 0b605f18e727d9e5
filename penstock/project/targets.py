"""The target of a pipeline as it was written: a name, a mapping, or the class that declares the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import ConfigError
from penstock.project.tables import ManagedTable
from penstock.schema.declared import DeclaredTable
from penstock.schema.names import split_name


@dataclass(frozen=True, slots=True)
class Resolved:
    options: dict[str, Any]
    table: DeclaredTable | None = None
    findings: tuple[ConfigError, ...] = ()
    refused: frozenset[str] = frozenset()  # its target cannot be looked at further


def resolved(options: Mapping[str, Any], tables: Mapping[str, DeclaredTable]) -> Resolved:
    """The options with a target that has a name, the class's keys where none are given; what is wrong.

    A target that is written as a name is the class's too, if a class declares that very table.
    """
    taken = dict(options)
    target = taken.get("target")
    table: DeclaredTable | None
    if isinstance(target, type):
        # Stand-ins, so that the other rules can still be checked: the class might have brought keys.
        held = taken | {"target": _NOWHERE} | ({} if taken.get("keys") else {"keys": ["?"]})
        if not issubclass(target, ManagedTable) or not vars(target).get("__penstock_table__"):
            return Resolved(held, None, (_no_table(target),), _TARGET)
        table = tables.get(target.__penstock_table__)
        if table is None:  # what is wrong with the class is told where it stands
            return Resolved(held, None, (), _TARGET)
        parts = {"connection": table.connection, "schema": table.table.schema, "table": table.table.table}
        taken["target"] = {key: part for key, part in parts.items() if part is not None}
    else:
        identity = _identity(target)
        table = next((one for one in tables.values() if one.identity == identity), None)
    if table is not None and not taken.get("keys") and table.keys:
        taken["keys"] = [_at_the_source(key, taken.get("columns")) for key in table.keys]
    return Resolved(taken, table)


_NOWHERE = {"connection": "?", "table": "?"}
_TARGET = frozenset({"target"})


def _no_table(target: type) -> ConfigError:
    name = target.__name__
    if issubclass(target, ManagedTable):
        return ConfigError(
            f"the target {name} has no name in a connection",
            remedy=f'put it over the class: @ps.table(connection="…", name="schema.{name.lower()}")',
        )
    return ConfigError(
        f"the target {name} is a class that declares no table", remedy=f"class {name}(ps.ManagedTable): …"
    )


def _identity(target: Any) -> tuple[str, str | None, str] | None:
    if isinstance(target, Mapping):
        connection, schema, table = (target.get(key) for key in ("connection", "schema", "table"))
        return (connection, schema, table) if isinstance(connection, str) and isinstance(table, str) else None
    if not isinstance(target, str):
        return None
    try:
        parts = split_name(target)
    except ConfigError:  # told when the pipeline is built
        return None
    if len(parts) not in (2, 3):
        return None
    return parts[0], parts[1] if len(parts) == 3 else None, parts[-1]


def _at_the_source(key: str, columns: Any) -> str:
    """A column's name before the pipeline renames it: keys are named as the source has them."""
    if isinstance(columns, Mapping):
        for name, option in columns.items():
            if isinstance(option, Mapping) and option.get("rename") == key:
                return str(name)
    return key
