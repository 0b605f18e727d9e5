"""Reading TOML with the line of every key, and filling in `${VAR}`."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.project import toml
from penstock.project.interpolate import interpolate

DOCUMENT = '''# a comment with [brackets] and "quotes"
top = 1

[connections.shop]
type = "postgres" # trailing
options = { a = 1, "b c" = "x # no comment" }

["quoted section"."key.with.dots"]
'single' = """
[not.a.header]
fake = 1
"""
after = \'\'\'
also = "not a key"\'\'\'

[pipelines.p]
keys = [
  "a", # one
  "b",
]
columns.price = "decimal(38,9)"
columns."spaced name" = {
  rename = "x", type = "text" }
when = 2024-01-01 10:00:00
text = "a\\"b]"

[[items]]
name = "first"
[[items]]
name = "second"
[items.sub]
x = 1
'''.replace(
    """ = {
  rename = "x", type = "text" }""",
    """ = { rename = "x", type = "text" }""",
)


def _line_of(text: str) -> int:
    return next(n for n, line in enumerate(DOCUMENT.splitlines(), 1) if text in line)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (("top",), "top = 1"),
        (("connections", "shop"), "[connections.shop]"),
        (("connections", "shop", "type"), 'type = "postgres"'),
        (("connections", "shop", "options", "b c"), "options ="),
        (("quoted section", "key.with.dots"), '["quoted section"'),
        (("quoted section", "key.with.dots", "single"), "'single'"),
        (("quoted section", "key.with.dots", "after"), "after ="),
        (("pipelines", "p", "keys"), "keys = ["),
        (("pipelines", "p", "keys", "1"), '"b",'),
        (("pipelines", "p", "columns", "price"), "columns.price"),
        (("pipelines", "p", "columns", "spaced name", "rename"), "spaced name"),
        (("pipelines", "p", "when"), "when ="),
        (("pipelines", "p", "text"), "text ="),
        (("items", "1", "name"), '"second"'),
        (("items", "1", "sub", "x"), "x = 1"),
    ],
)
def test_lines_of_keys(tmp_path: Path, path: tuple[str, ...], text: str) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(DOCUMENT)
    assert toml.read(file).place(path) == f"{file}:{_line_of(text)}"


def test_a_key_without_a_line_gets_the_table_around_it(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_bytes(b"[a]\r\nb = 1\r\n")
    document = toml.read(file)
    assert document.place(("a", "missing")) == f"{file}:1"
    assert document.place(("a", "b")) == f"{file}:2"
    assert document.place(("nowhere",)) == str(file)


def test_strings_that_only_look_like_keys_have_no_line(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(DOCUMENT)
    lines = toml.read(file).lines
    assert not [path for path in lines if "fake" in path or "also" in path or "not" in path]


@pytest.mark.parametrize(
    ("text", "place"),
    [("a = 1\nb = = 2\n", ":2:5"), ("a = [1,\n", ":1"), ("[a]\n[a]\n", ":2:3"), ("a = 1\n\n\nc d = 2\n", ":4:3")],
)
def test_syntax_errors_tell_line_and_column(tmp_path: Path, text: str, place: str) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        toml.read(file)
    assert caught.value.place == f"{file}{place}"
    assert "(at line" not in caught.value.why


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        toml.read(tmp_path)
    latin = tmp_path / "penstock.toml"
    latin.write_bytes(b'a = "\xe9"\n')
    with pytest.raises(ConfigError, match="not UTF-8"):
        toml.read(latin)


def test_a_byte_order_mark_is_no_key(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_bytes(b"\xef\xbb\xbf[a]\nb = 1\n")
    assert toml.read(file).content == {"a": {"b": 1}}


KEYS = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)


@settings(deadline=None)  # a busy machine is no finding
@given(st.lists(st.lists(KEYS, min_size=1, max_size=3).map(tuple), min_size=1, max_size=8, unique_by=lambda p: p[0]))
def test_any_key_has_the_line_it_stands_on(paths: list[tuple[str, ...]]) -> None:
    """Keys of any characters, dotted and quoted; strings that look like keys stand between them."""

    def quoted(part: str) -> str:
        return json.dumps(part, ensure_ascii=False).replace("\x7f", "\\u007f")

    lines, expected = [], {}
    for path in paths:
        lines += ["decoy" + str(len(lines)) + ' = """', "x = 1", '[y]"""']
        lines.append(".".join(quoted(part) for part in path) + " = [1, {a = '#'}] # z = 1")
        expected[path] = len(lines)
    found = toml._Scanner("\n".join(lines)).scan()
    assert tomllib.loads("\n".join(lines))
    assert {path: found[path] for path in expected} == expected


ENVIRONMENT = {"HOST": "db.example", "EMPTY": "", "SECRET": "p$ss${HOST}"}


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("${HOST}", "db.example"),
        ("x ${HOST}:${PORT:-5432} y", "x db.example:5432 y"),
        ("${EMPTY}", ""),
        ("${EMPTY:-default}", "default"),
        ("${UNSET:-}", ""),
        ("$${HOST}", "${HOST}"),
        ("${SECRET}", "p$ss${HOST}"),  # a value is never looked into
        ("do $$ begin null; end $$", "do $$ begin null; end $$"),
        ("cost in $, $5, $HOST", "cost in $, $5, $HOST"),
    ],
)
def test_interpolation(text: str, filled: str) -> None:
    assert interpolate({"a": [text]}, ENVIRONMENT, lambda _: "here") == ({"a": [filled]}, [])


def test_every_unset_variable_is_told_with_its_place() -> None:
    value = {"a": "${ONE}", "b": ["x", "${TWO}-${HOST}"], "c": "${not closed", "n": 3}
    filled, errors = interpolate(value, ENVIRONMENT, lambda path: ".".join(path))
    assert [(error.place, error.what.split()[3:4]) for error in errors[:2]] == [("a", ["ONE"]), ("b.1", ["TWO"])]
    assert errors[2].place == "c"
    assert filled["n"] == 3
    assert not any("db.example" in str(error) + error.remedy for error in errors)
