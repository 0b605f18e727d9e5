"""The one renderer of errors: what failed, why, what was kept, what to do next. Never a traceback.

An exception that nobody foresaw is a bug: one line on the terminal, its traceback, with secrets
masked, in a file. `PENSTOCK_DEBUG=1` shows the traceback instead.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

from penstock.cli import context, signals
from penstock.errors import Cancelled, ConfigErrors, PenstockError
from penstock.observe import logs
from penstock.told import labelled, render

DEBUG = "PENSTOCK_DEBUG"

# What the machine refuses, in words: full disks and closed folders are no bugs of ours.
_ACCESS = ("no access to", "give this user access, or use another folder (--project)")
MACHINE = {
    errno.ENOSPC: ("cannot write", "free some space, then run the command again"),
    errno.EDQUOT: ("cannot write", "free some of the quota, then run the command again"),
    errno.EROFS: (
        "cannot write",
        "use a folder that can be written to (--project, or another path in penstock.toml)",
    ),
    errno.EACCES: _ACCESS,
    errno.EPERM: _ACCESS,
    errno.ENOTDIR: ("no folder:", "name a folder, or move the file away"),
    errno.EISDIR: ("a folder, where a file is wanted:", "name a file, or move the folder away"),
}
# No exception leaves a run whose load is committed.
KEPT = "what was already committed stays; the run under way was rolled back"


def show(error: BaseException) -> int:
    """Print any exception that ended a command; the exit code for it."""
    if os.environ.get(DEBUG) == "1":
        sys.stderr.write("".join(traceback.format_exception(error)))
    if isinstance(error, Cancelled) and signals.taken():
        return show_interrupted(signals.received(), error.kept, error.remedy)
    shown = foreseen(error) or _bug(error)
    show_error(shown)
    return shown.exit_code


def foreseen(error: BaseException) -> PenstockError | None:
    """The error as a user may see it; None if nobody foresaw it."""
    if isinstance(error, OSError) and error.errno in MACHINE:
        what, remedy = MACHINE[error.errno]
        where = f"{what} {error.filename}" if error.filename else what.removesuffix(":")
        return PenstockError(where, why=(error.strerror or "").lower(), kept=KEPT, remedy=remedy)
    return error if isinstance(error, PenstockError) else None


def show_error(error: PenstockError, *, pipeline: str = "", show_keys: bool = True) -> None:
    """One error on stderr, or each of several found together."""
    if isinstance(error, ConfigErrors):
        for finding in error.findings:
            show_error(finding, pipeline=pipeline, show_keys=show_keys)
        ended = f"pipeline {pipeline} was not run" if pipeline else "nothing was run"
        sys.stderr.write(f"{len(error.findings)} problems in the project; {ended}\n")
        return
    sys.stderr.write(render(error, pipeline=pipeline, show_keys=show_keys, colour=_coloured()) + "\n")
    sys.stderr.flush()


def exit_code(errors: Iterable[BaseException]) -> int:
    """Of a command that carried on after failures: usage only if nothing else went wrong."""
    codes = {error.exit_code if isinstance(error, PenstockError) else 1 for error in errors}
    return min(codes, default=0)


def show_interrupted(number: int, kept: str = "", remedy: str = "") -> int:
    """After a signal: the run has ended cleanly on its way here. The exit code says which signal it was."""
    how = "interrupted" if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}"
    kept = kept or KEPT
    remedy = remedy or Cancelled.usual_remedy
    lines = [
        labelled("ended:", how, "1;33" if _coloured() else ""),
        labelled("kept:", kept, ""),
        labelled("next:", remedy, ""),
    ]
    sys.stderr.write("\n".join(lines) + "\n")
    return 128 + number


def _bug(error: BaseException) -> PenstockError:
    # The exception's own text may hold a cell's value: only its class and place are shown.
    return PenstockError(
        f"unexpected {type(error).__name__}{_origin(error)}",
        why="this is a bug in Penstock, not in your project",
        kept=KEPT,
        remedy=_where_logged(error),
    )


def _origin(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "penstock" in Path(frame.filename).parts]
    if not ours:
        return ""
    last = ours[-1]
    parts = Path(last.filename).parts
    inside = "/".join(parts[len(parts) - 1 - parts[::-1].index("penstock") :])
    return f" at {inside}:{last.lineno}"


def _where_logged(error: BaseException) -> str:
    text = "".join(traceback.format_exception(error))
    try:
        path = logs.write_traceback(context.log_folder(), text)
    except OSError:
        return f"report it; {DEBUG}=1 shows the traceback (no log could be written)"
    return f"report it with {path}"


def _coloured() -> bool:
    return sys.stderr.isatty() and "NO_COLOR" not in os.environ
