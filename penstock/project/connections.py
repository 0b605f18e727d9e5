"""The project's connections, from Python, the environment and TOML, in that order.

Definitions are kept raw; a connection's config, and with it the backend's driver, is built when
the connection is first asked for. Values never appear in errors: only names of options do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.backends import registry
from penstock.errors import ConfigError, PenstockError
from penstock.observe import redact
from penstock.project.findings import each, nearest, raise_all, reason, suggestion, unknown_key
from penstock.project.interpolate import interpolate

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic.fields import FieldInfo

    from penstock.backends.base import ConnectionConfig

PREFIX = "PENSTOCK_"
DSN_PREFIX = "PENSTOCK_DSN_"


@dataclass(frozen=True, slots=True)
class Definition:
    """A connection as it was written down somewhere. Its repr shows no option's value."""

    name: str
    place: str
    options: Mapping[str, Any] = field(repr=False)
    places: Mapping[str, str] = field(default_factory=dict, repr=False)  # of single options

    @property
    def type(self) -> str | None:
        value = self.options.get("type")
        return value if isinstance(value, str) else None

    def place_of(self, option: str) -> str:
        return self.places.get(option, self.place)


@dataclass(frozen=True, slots=True)
class Entry:
    """What `penstock connections list` knows without loading a driver."""

    name: str
    type: str
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sources:
    """Where definitions come from. `python` and `toml` never share a name."""

    root: Path
    python: Mapping[str, Definition] = field(default_factory=dict)
    toml: Mapping[str, Definition] = field(default_factory=dict)
    user: Mapping[str, Definition] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)
    files: tuple[str, ...] = ()  # looked into, for the error
    mentioned: frozenset[str] = frozenset()  # by pipelines: they help to tell names from properties


class Connections(Mapping[str, "ConnectionConfig"]):
    """Configs by name, each built and checked when first asked for."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._built: dict[str, ConnectionConfig] = {}
        self._written = {**sources.user, **sources.toml, **sources.python}

    @staticmethod
    def of(root: Path, options: Mapping[str, Definition], configs: Mapping[str, ConnectionConfig]) -> Connections:
        """Raw options and ready-made configs, for tests and notebooks; no file is consulted."""
        made = Connections(Sources(root, python=options))
        for name, config in configs.items():
            made._built[name] = config if config.name else config.model_copy(update={"name": name})
            made._written[name] = Definition(name, "Python", {"type": config.type})
        return made

    def __getitem__(self, name: str) -> ConnectionConfig:
        if name not in self._built:
            self._built[name] = self._build(name)
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._written, *self._from_environment()}))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self._written or self._environment_type(name) is not None)

    def type_of(self, name: str) -> str:
        """The backend's name of a connection, without loading it."""
        uri = self._dsn(name)
        python = self._sources.python.get(name)
        if python is not None and python.type:
            return python.type
        if uri is not None:
            return _backend_of(uri, DSN_PREFIX + _upper(name))
        written = self._written.get(name)
        if written is not None:
            return self._written_type(written)
        found = self._environment_type(name)
        if found is None:
            raise self._unknown(name)
        return found

    def entries(self) -> list[Entry]:
        return [Entry(name, self.type_of(name), self._places(name)) for name in self]

    def check(self) -> list[PenstockError]:
        """Build every connection; what is wrong with any of them."""
        errors: list[PenstockError] = []
        for name in self:
            errors += self.problems(name)
        return errors

    def problems(self, name: str) -> list[PenstockError]:
        try:
            self[name]
        except PenstockError as error:
            return each(error)
        return []

    # ---------------------------------------------------------------- building

    def _build(self, name: str) -> ConnectionConfig:
        type_ = self.type_of(name)
        if type_ not in registry.names():
            raise self._unknown_backend(name, type_)
        model = registry.backend(type_).config
        options, places = self._options(name, type_, model)
        # Before the model looks at them: whatever fails from here on, their secrets are masked.
        redact.register_fields(options)
        _check_options(name, options, places, model)
        if model.path_base and isinstance(options.get(model.path_base), str | Path):
            options[model.path_base] = _below(self._sources.root, str(options[model.path_base]))
        from pydantic import ValidationError

        try:
            return model(**{**options, "type": type_, "name": name})
        except ValidationError as error:
            findings = _from_pydantic(name, error, places)
        # Raised out here, so that pydantic's own error, which prints the values, is not its context.
        raise_all(findings)
        raise AssertionError("a refused config has findings")

    def _options(
        self, name: str, type_: str, model: type[ConnectionConfig]
    ) -> tuple[dict[str, Any], Callable[[str], str]]:
        """The options by precedence, and where each one came from."""
        options: dict[str, Any] = {}
        places: dict[str, str] = {}

        def take(values: Mapping[str, Any], place: Callable[[str], str]) -> None:
            options.update(values)
            places.update({option: place(option) for option in values})

        written = self._written.get(name)
        uri = self._dsn(name)
        variables = self._variables(name, type_, model)
        # A DSN names a whole server. Mixed with what a file says of another one, rows or a password
        # could reach the wrong host, so a DSN in the environment replaces the file's definition.
        whole = uri is not None or any(option == "dsn" for _, option in variables)
        if written is not None and not whole and name not in self._sources.python:
            raise_all(_mistyped(written, model))
            take(self._filled(written), written.place_of)
        if uri is not None:
            take(_dsn_options(uri, model), lambda _: DSN_PREFIX + _upper(name))
        for variable, option in variables:
            take({option: _value(self._sources.environment[variable], model, option)}, lambda _, v=variable: v)  # type: ignore[misc]  # mypy does not infer defaults of lambdas
        python = self._sources.python.get(name)
        if python is not None:
            take(self._filled(python), python.place_of)
        options.pop("type", None)
        fallback = written.place if written is not None else f"connection {name!r}"
        return options, lambda option: places.get(option, fallback)

    def _filled(self, definition: Definition) -> dict[str, Any]:
        filled, errors = interpolate(
            dict(definition.options),
            self._sources.environment,
            lambda path: definition.place_of(path[0]) if path else definition.place,
        )
        raise_all(errors)
        return dict(filled)

    def _written_type(self, definition: Definition) -> str:
        if definition.type is None:
            raise ConfigError(
                f"connection {definition.name!r} has no type",
                remedy=f"type is one of {', '.join(registry.names())}",
                place=definition.place,
            )
        filled, errors = interpolate(definition.type, self._sources.environment, lambda _: definition.place_of("type"))
        raise_all(errors)
        return str(filled)

    # ---------------------------------------------------------------- the environment

    def _dsn(self, name: str) -> str | None:
        return self._sources.environment.get(DSN_PREFIX + _upper(name)) or None

    def _variables(self, name: str, type_: str, model: type[ConnectionConfig]) -> list[tuple[str, str]]:
        """The environment variables of one connection, each with the option it sets."""
        prefix = f"{PREFIX}{_upper(type_)}_{_upper(name)}_"
        known = {*self._written, *self._sources.mentioned} - {name}
        longer = tuple(f"{PREFIX}{_upper(type_)}_{_upper(other)}_" for other in known if len(other) > len(name))
        found = []
        for variable in sorted(self._sources.environment):
            option = variable.removeprefix(prefix).lower()
            if not variable.startswith(prefix) or not option or variable.startswith(longer):
                continue
            # PENSTOCK_POSTGRES_SHOP_EU_DSN also starts like an option of `shop`; it is the `dsn` of `shop_eu`.
            if option not in _fields(model) and _split_property(option, model)[0]:
                continue
            found.append((variable, option))
        return found

    def _environment_type(self, name: str) -> str | None:
        uri = self._dsn(name)
        if uri is not None:
            return _backend_of(uri, DSN_PREFIX + _upper(name))
        types = []
        for type_ in registry.names():
            prefix = f"{PREFIX}{_upper(type_)}_{_upper(name)}_"
            if any(variable.startswith(prefix) for variable in self._sources.environment):
                model = registry.backend(type_).config
                if self._variables(name, type_, model):
                    types.append(type_)
        if len(types) > 1:
            raise ConfigError(
                f"the environment defines connection {name!r} as {' and as '.join(types)}",
                remedy=f"unset the variables {PREFIX}<BACKEND>_{_upper(name)}_* of all but one",
            )
        return types[0] if types else None

    def _from_environment(self) -> set[str]:
        """Connections that only the environment defines, as far as their names can be told."""
        names = {name for name in self._sources.mentioned if name not in self._written and name in self}
        seen = {_upper(name) for name in (*self._written, *names)}
        for variable in self._sources.environment:
            if variable.startswith(DSN_PREFIX) and variable.removeprefix(DSN_PREFIX) not in seen | {""}:
                names.add(variable.removeprefix(DSN_PREFIX).lower())
        seen |= {_upper(name) for name in names}
        for type_ in registry.names():
            prefix = f"{PREFIX}{_upper(type_)}_"
            for variable in self._sources.environment:
                rest = variable.removeprefix(prefix)
                if not variable.startswith(prefix) or _belongs_plainly(rest, seen):
                    continue
                model = registry.backend(type_).config
                if any(rest.removeprefix(f"{name}_").lower() in _fields(model) for name in seen):
                    continue
                name, option = _split_property(rest.lower(), model)
                if name and option:
                    names.add(name)
        return names

    # ---------------------------------------------------------------- for people

    def _places(self, name: str) -> tuple[str, ...]:
        places = [self._written[name].place] if name in self._written else []
        if self._dsn(name) is not None:
            places.append(f"environment {DSN_PREFIX}{_upper(name)}")
        prefix = f"{PREFIX}{_upper(self.type_of(name))}_{_upper(name)}_"
        if any(variable.startswith(prefix) for variable in self._sources.environment):
            places.append(f"environment {prefix}*")
        return tuple(places)

    def _unknown(self, name: str) -> ConfigError:
        upper = _upper(name)
        looked = [*self._sources.files, f"{DSN_PREFIX}{upper}", f"{PREFIX}<BACKEND>_{upper}_<PROPERTY>"]
        close = nearest(name, self)
        names = ", ".join(self)
        return ConfigError(
            f"there is no connection {name!r}",
            why=f"looked in {', '.join(looked)} and the project's Python modules",
            remedy=f"did you mean {close!r}?" if close else (f"known: {names}" if names else how_to_define(name)),
        )

    def _unknown_backend(self, name: str, type_: str) -> ConfigError:
        written = self._written.get(name)
        return ConfigError(
            f"connection {name!r} has the unknown type {type_!r}",
            remedy=suggestion(type_, registry.names()),
            place=written.place_of("type") if written is not None else "",
        )

    def type_problems(self) -> list[PenstockError]:
        """What can be told of the written connections without loading a driver."""
        errors: list[PenstockError] = []
        for name in sorted(self._written):
            try:
                type_ = self.type_of(name)
            except ConfigError as error:
                errors.append(error)
                continue
            if type_ not in registry.names():
                errors.append(self._unknown_backend(name, type_))
        return errors


def how_to_define(name: str) -> str:
    return f"define it: [connections.{name}] in penstock.toml, with type = …"


def _upper(name: str) -> str:
    """A name as it stands in a variable: `shop-eu` is SHOP_EU."""
    return re.sub(r"[^A-Z0-9]", "_", name.upper())


def _belongs_plainly(rest: str, names: set[str]) -> bool:
    """Whether `SHOP_HOST` is a property of `SHOP` by its look; of `SHOP_EU_HOST` only the backend can tell."""
    return any(rest.startswith(f"{name}_") and "_" not in rest.removeprefix(f"{name}_") for name in names)


def _fields(model: type[ConnectionConfig]) -> dict[str, FieldInfo]:
    """The options of a backend under the names users write."""
    named = {info.alias or name: info for name, info in model.model_fields.items()}
    return {name: info for name, info in named.items() if name not in ("name", "type")}


def _split_property(rest: str, model: type[ConnectionConfig]) -> tuple[str, str]:
    """`shop_eu_dsn` into the longest property the model has and the name before it."""
    parts = rest.split("_")
    for cut in range(1, len(parts)):
        option = "_".join(parts[cut:])
        if option in _fields(model):
            return "_".join(parts[:cut]), option
    return "", ""


def _value(text: str, model: type[ConnectionConfig], option: str) -> Any:
    """A variable's text; of a list, its parts between commas."""
    info = _fields(model).get(option)
    if info is None:
        return text
    shapes = {info.annotation, *get_args(info.annotation)}
    if any((get_origin(shape) or shape) in (list, tuple, set, frozenset) for shape in shapes):
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def _backend_of(uri: str, variable: str) -> str:
    backend = registry.of_scheme(uri.partition(":")[0].lower()) if ":" in uri else None
    if backend is None:
        raise ConfigError(
            f"{variable} does not start with the scheme of a backend",
            remedy=f"a DSN starts with {', '.join(f'{name}:' for name in registry.names())}",
        )
    return backend


def _dsn_options(uri: str, model: type[ConnectionConfig]) -> dict[str, Any]:
    """A DSN as options: `dsn` where the backend has one, otherwise a path and a query string."""
    if "dsn" in _fields(model):
        return {"dsn": uri}
    parts = urlsplit(uri)
    path = unquote(parts.netloc + parts.path)
    if path.startswith("/"):  # duckdb:///x and duckdb:////x both name /x
        path = "/" + path.lstrip("/")
    if path.startswith("/:"):  # duckdb:///:memory:
        path = path[1:]
    return {model.path_base or "path": path} | dict(parse_qsl(parts.query))


def _below(root: Path, value: str) -> str:
    """A relative path under the project; `:memory:` and `md:…` are no paths of files."""
    if ":" in value.partition("/")[0]:
        return value
    return str(root / Path(value).expanduser())


def _check_options(
    name: str, options: Mapping[str, Any], place: Callable[[str], str], model: type[ConnectionConfig]
) -> None:
    if model.model_config.get("extra") == "allow":
        return
    known = _fields(model)
    raise_all(
        [unknown_key(option, known, f"connection {name!r}", place(option)) for option in options if option not in known]
    )


def _mistyped(definition: Definition, model: type[ConnectionConfig]) -> list[ConfigError]:
    from penstock.project.written import mistyped  # it needs pydantic, which listing connections does not load

    return [
        ConfigError(
            f"{'.'.join(path)} of connection {definition.name!r} is wrong", why=why, place=definition.place_of(path[0])
        )
        for path, why in mistyped(model, definition.options)
    ]


def _from_pydantic(name: str, error: ValidationError, place: Callable[[str], str]) -> list[ConfigError]:
    findings = []
    for detail in error.errors(include_input=False, include_url=False):
        option = str(detail["loc"][0]) if detail["loc"] else ""
        subject = f"{option} of connection {name!r}" if option else f"connection {name!r}"
        if detail["type"] == "missing":
            findings.append(ConfigError(f"{subject} is missing", place=place("")))
        else:
            findings.append(ConfigError(f"{subject} is wrong", why=reason(detail), place=place(option)))
    return findings
