"""Errors say what failed, why, what was kept and what to do next; never a traceback, never a secret."""

from __future__ import annotations

import errno
import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import errors as kinds
from penstock.cli import context, errors
from penstock.errors import (
    ConfigError,
    ConfigErrors,
    ConnectionFailed,
    DataError,
    PenstockError,
    from_record,
)
from penstock.observe import redact


@pytest.fixture(autouse=True)
def _log_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(context, "_root", tmp_path)
    monkeypatch.delenv(errors.DEBUG, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    redact.forget()
    yield
    redact.forget()


def test_all_parts_of_an_error_are_shown_in_order() -> None:
    error = DataError(
        "2 keys occur twice",
        why="id is not unique in the source",
        keys=("id=7", "id=8"),
        kept="nothing was committed",
        remedy='order_by = "updated_at desc"',
    )
    assert errors.render(error, pipeline="customers") == (
        "error:   pipeline customers: 2 keys occur twice\n"
        "why:     id is not unique in the source\n"
        "keys:    id=7\n"
        "         id=8\n"
        "kept:    nothing was committed\n"
        'next:    order_by = "updated_at desc"'
    )


def test_show_keys_false_hides_keys() -> None:
    text = errors.render(DataError("2 keys occur twice", keys=("id=7",)), show_keys=False)
    assert "id=7" not in text


def test_pipeline_and_place_of_an_error_come_first() -> None:
    error = ConfigError("unknown key", place="penstock.toml:7")
    assert errors.render(error) == "error:   penstock.toml:7: unknown key"
    assert errors.render(error, pipeline="customers") == "error:   pipeline customers, penstock.toml:7: unknown key"


def test_long_lines_are_wrapped_and_shown_sql_keeps_its_columns() -> None:
    why = "column does not exist " * 8 + "\n    select idd from t\n           ^"
    text = errors.render(PenstockError("bad SQL", why=why))
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "             select idd from t\n                    ^" in text


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (ConfigErrors([ConfigError("x"), ConfigError("y")]), 2),
        (ConnectionFailed("x"), 1),
        (DataError("x"), 1),
        (OSError(errno.ENOSPC, "No space left on device", "/data/x"), 1),
        (ValueError("x"), 1),
    ],
)
def test_exit_codes(error: Exception, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert errors.show(error) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error:")
    assert "Traceback" not in captured.err


def test_all_findings_of_a_project_are_shown_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    errors.show(ConfigErrors([ConfigError("first", remedy="do this"), ConfigError("second")]))
    said = capsys.readouterr().err
    assert "error:   first\nnext:    do this\nerror:   second\n" in said
    assert "2 problems in the project; nothing was run" in said


def test_findings_come_back_from_their_record() -> None:
    given = ConfigErrors([ConfigError("first", place="penstock.toml:7"), DataError("second", keys=("id=1",))])
    back = from_record(json.loads(json.dumps(given.to_record())))
    assert isinstance(back, ConfigErrors)
    assert [one.to_record() for one in back.findings] == [one.to_record() for one in given.findings]
    assert pickle.loads(pickle.dumps(given)).to_record() == given.to_record()  # noqa: S301  our own


def test_findings_of_one_pipeline_do_not_speak_for_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    errors.show_error(ConfigErrors([ConfigError("first"), ConfigError("second")]), pipeline="customers")
    said = capsys.readouterr().err
    assert "2 problems in the project; pipeline customers was not run" in said
    assert "nothing was run" not in said


# A wrong project is told by its places, and nothing is run.
OF_RUNS = [
    cls
    for cls in vars(kinds).values()
    if isinstance(cls, type) and issubclass(cls, PenstockError) and not issubclass(cls, ConfigError)
]


@pytest.mark.parametrize("cls", [cls for cls in OF_RUNS if cls is not PenstockError])
def test_every_error_of_a_run_says_what_was_kept_and_what_to_do(cls: type[PenstockError]) -> None:
    text = errors.render(cls("it failed"))
    assert "kept:" in text
    assert "next:" in text


def test_full_disk_is_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    errors.show(OSError(errno.ENOSPC, "No space left on device", "/data/x"))
    said = capsys.readouterr().err
    assert "cannot write /data/x" in said
    assert "no space left on device" in said
    assert "free some space" in said
    assert "kept:    what was already committed stays" in said


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EACCES, "no access to /data/x"),
        (errno.ENOTDIR, "no folder: /data/x"),
        (errno.EISDIR, "a folder, where a file is wanted: /data/x"),
    ],
)
def test_what_the_machine_refuses_to_read_is_no_failed_write(
    number: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    errors.show(OSError(number, "No", "/data/x"))
    shown = capsys.readouterr().err
    assert shown.startswith(f"error:   {said}\n")
    assert "kept:" in shown
    assert "next:" in shown


def test_unexpected_error_shows_its_place_and_keeps_its_text_in_the_log(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    redact.register("open-sesame")
    errors.show(ValueError("cell value 4711, password open-sesame"))
    said = capsys.readouterr().err
    assert "unexpected ValueError" in said
    assert "this is a bug in Penstock" in said
    assert "kept:    what was already committed stays" in said
    assert "4711" not in said
    [log] = (tmp_path / ".penstock" / "log").iterdir()
    assert str(log) in said.replace("\n         ", " ")
    kept = log.read_text()
    assert "ValueError: cell value 4711" in kept
    assert "open-sesame" not in kept
    assert log.stat().st_mode & 0o077 == 0


def test_unexpected_error_without_a_writable_log_still_says_what_to_do(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setattr(context, "_root", blocked)
    errors.show(ValueError("x"))
    assert "PENSTOCK_DEBUG=1 shows the traceback" in capsys.readouterr().err


def test_debug_shows_the_traceback_with_secrets_masked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(errors.DEBUG, "1")
    redact.register("open-sesame")
    context.start()
    errors.show(ValueError("open-sesame"))
    said = capsys.readouterr().err
    assert "ValueError: ***" in said
    assert "open-sesame" not in said


def test_secrets_are_masked_before_a_line_is_wrapped() -> None:
    secret = "a secret of several words that a line would break"
    redact.register(secret)
    text = errors.render(PenstockError("x", why="filler " * 9 + secret))
    assert "several words" not in text.replace("\n         ", " ")
