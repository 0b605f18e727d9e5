"""Secrets never appear in output: the mask over everything that is printed or kept."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from pydantic import SecretStr

from penstock.backends.postgres.config import PostgresConfig
from penstock.observe import logs, redact

SECRET = "p@ss/w:rd 'q\"x\\"


@pytest.fixture(autouse=True)
def _empty_register() -> Iterator[None]:
    redact.forget()
    yield
    redact.forget()


def test_secret_is_masked_in_every_spelling() -> None:
    redact.register(SECRET)
    from urllib.parse import quote

    for text in (SECRET, quote(SECRET, safe=""), json.dumps({"x": SECRET}), repr([SECRET])):
        assert "w:rd" not in redact.redact(text)
        assert "w%3Ard" not in redact.redact(text)


@pytest.mark.parametrize(
    ("fields", "secret"),
    [
        ({"password": "open-sesame"}, "open-sesame"),
        ({"password": SecretStr("open-sesame")}, "open-sesame"),
        ({"dsn": "postgresql://me:open-sesame@db/shop"}, "open-sesame"),
        ({"dsn": SecretStr("postgresql://me:open%2Dsesame@db/shop")}, "open-sesame"),
        ({"dsn": "postgresql://me:open/ses@me@db/shop"}, "open/ses@me"),
        ({"dsn": "postgresql://db/shop?user=me&password=open-sesame"}, "open-sesame"),
        ({"dsn": "host=db password=open-sesame dbname=shop"}, "open-sesame"),
        ({"dsn": "host=db password = 'open sesame' dbname=shop"}, "open sesame"),
        ({"dsn": r"host=db password='it\'s open' dbname=shop"}, "it's open"),
        ({"dsn": r"host=db password='open\\sesame' dbname=shop"}, r"open\sesame"),
        ({"dsn": r"host=db password=open\ sesame dbname=shop"}, "open sesame"),
        ({"dsn": r"host=db password='never closed"}, "never closed"),
        ({"options": {"sslpassword": "open-sesame"}}, "open-sesame"),
        ({"auth": SecretStr("open-sesame")}, "open-sesame"),
    ],
)
def test_secrets_of_a_connection_are_found_wherever_they_stand(fields: dict[str, object], secret: str) -> None:
    redact.register_fields(fields)
    assert redact.redact(f"before {secret} after") == "before *** after"


def test_password_of_a_command_is_masked_from_the_moment_it_is_known() -> None:
    config = PostgresConfig(host="db", password_command="echo open-sesame", name="shop")
    assert "password=open-sesame" in config.conninfo().libpq()
    assert redact.redact("before open-sesame after") == "before *** after"
    assert config.conninfo().redact("before open-sesame after") == "before *** after"


def test_names_and_hosts_are_no_secrets() -> None:
    redact.register_fields({"dsn": "postgresql://me:open-sesame@db.example/shop", "password_command": "pass show shop"})
    text = "cannot reach me@db.example/shop: pass show shop"
    assert redact.redact(text) == text


def test_json_keeps_its_field_names_when_one_is_a_password() -> None:
    redact.register("rows")
    assert redact.redact_values({"rows": "rows of x", "n": [1, "rows"]}) == {"rows": "*** of x", "n": [1, "***"]}


def test_short_text_is_left_alone() -> None:
    redact.register("abc")
    assert redact.redact("abc") == "abc"


def test_stream_masks_what_is_written() -> None:
    redact.register("open-sesame")
    plain = io.StringIO()
    print("the word is open-sesame", file=redact.RedactingStream(plain))
    assert plain.getvalue() == "the word is ***\n"


def test_log_lines_are_structured_lower_case_and_masked(capsys: pytest.CaptureFixture[str]) -> None:
    redact.register("open-sesame")
    logs.setup("info")
    logs.Log("run").info("copying", pipeline="customers", why="said open-sesame", rows=12, none=None)
    line = capsys.readouterr().err
    assert line.endswith('info copying pipeline=customers why="said ***" rows=12\n')


def test_spark_and_py4j_speak_only_of_errors() -> None:
    logs.setup()
    assert logging.getLogger("py4j").level == logging.ERROR
    assert logging.getLogger("pyspark").level == logging.ERROR


@pytest.mark.parametrize(("name", "level"), [("warn", logging.WARNING), ("ERROR", logging.ERROR), ("", logging.INFO)])
def test_log_level_comes_from_the_environment(name: str, level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(logs.ENV, name)
    logs.setup()
    assert logging.getLogger(logs.ROOT).level == level


def test_unknown_log_level_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(logs.ENV, "verbose")
    logs.setup()
    assert "warning unknown log level given=verbose" in capsys.readouterr().err
    assert logging.getLogger(logs.ROOT).level == logging.INFO
