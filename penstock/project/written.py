"""Numbers and truth values as they stand in a file: in quotes they are texts, and 1 is not `true`.

An editor goes by the JSON Schema and shows them as mistakes; so must the loader. A text with a
reference is another matter: what fills it in has no type of its own.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from penstock.project.interpolate import has_reference
from penstock.project.toml import KeyPath


def mistyped(model: type[BaseModel], written: Mapping[str, Any], path: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """Each value of another kind than its key takes, and why; inner tables too."""
    fields = {info.alias or name: info for name, info in model.model_fields.items()}
    for key, value in written.items():
        if key in fields:
            yield from _mistyped(fields[key].annotation, value, (*path, key))


def _mistyped(annotation: Any, value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    kinds = _kinds(annotation)
    if isinstance(value, Mapping):
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from mistyped(kind, value, path)
            elif get_origin(kind) in (dict, Mapping):
                for key, inner in value.items():
                    yield from _mistyped(get_args(kind)[1], inner, (*path, str(key)))
        return
    numbers = not {int, float}.isdisjoint(kinds)
    if str in kinds or not (numbers or bool in kinds):
        return
    takes = "a number" if numbers else "true or false"
    if isinstance(value, str) and not has_reference(value):
        yield path, f"it is a text, and {takes} stands without quotes"
    elif isinstance(value, bool) and bool not in kinds:
        yield path, f"it is true or false, and the key takes {takes}"
    elif isinstance(value, int | float) and not isinstance(value, bool) and not numbers:
        yield path, f"it is a number, and the key takes {takes}"


def _kinds(annotation: Any) -> set[Any]:
    """The types that a field takes, out of unions and annotations."""
    if get_origin(annotation) is Annotated:
        return _kinds(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return {kind for one in get_args(annotation) for kind in _kinds(one)}
    return {annotation}
