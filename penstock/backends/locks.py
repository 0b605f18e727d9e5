"""Lock files: who may write to a target that is a file, on this machine; and the like inside one process.

`flock` on a file of its own, never on the database: closing a handle on a database file would
drop the locks that its library holds. The kernel frees the lock when its holder dies, so there is
no stale lock to judge. Local file systems only.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from penstock.errors import Busy, PenstockError, TargetError

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NO_WRITE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
# Where a full disk can be got away from, by who chose the folder: the connection, the target, the project.
BY_OPTION = "set `staging` of the connection to a folder on a larger disk"
BY_TARGET = "load into a folder on a larger disk"
BY_PROJECT = "move the project to a larger disk"


class FileLock:
    """An exclusive lock, held until `release`, by this process and nobody else."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    @staticmethod
    def try_acquire(path: Path, run_id: str = "", pipeline: str = "") -> FileLock | None:
        """The lock, or None if someone holds it."""
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return None
            # The last holder may have removed the file between our open and our lock: then we
            # hold a file that nobody else will ever look at, and a second run could hold its
            # successor at the same time.
            if _still_there(path, descriptor):
                break
            os.close(descriptor)
        if run_id:
            holder = {"run": run_id, "pipeline": pipeline, "host": socket.gethostname(), "pid": os.getpid()}
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(holder).encode(), 0)
        return FileLock(path, descriptor)

    @staticmethod
    def acquire(path: Path, run_id: str, pipeline: str, target: str, elsewhere: str = "") -> FileLock:
        """The lock, or `Busy` naming its holder."""
        try:
            lock = FileLock.try_acquire(path, run_id, pipeline)
        except OSError as error:
            raise cannot_write(error, path.parent, elsewhere) from error
        if lock is None:
            raise _busy(target, _holder(path))
        return lock

    def release(self) -> None:
        """Remove the file and let go; a file that cannot be removed is no lock any more. Safe twice."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            # Removed while still held: whoever waits on this very file will see that it is gone.
            with suppress(OSError):
                self.path.unlink()
            os.close(descriptor)


class ProcessLock:
    """The same for a target that lives in this process: nobody else can reach it."""

    _held: ClassVar[dict[str, str]] = {}
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, target: str) -> None:
        self._target: str | None = target

    @staticmethod
    def acquire(target: str, run_id: str, pipeline: str) -> ProcessLock:
        """The lock, or `Busy` naming its holder."""
        with ProcessLock._guard:
            holder = ProcessLock._held.get(target)
            if holder is not None:
                raise _busy(target, f"{holder}, in this process holds the lock")
            ProcessLock._held[target] = f"pipeline {pipeline!r}, run {run_id}"
        return ProcessLock(target)

    def release(self) -> None:
        """Safe twice."""
        with ProcessLock._guard:
            if self._target is not None:
                del ProcessLock._held[self._target]
                self._target = None


def _busy(target: str, why: str) -> Busy:
    return Busy(
        f"another run is writing to {target}",
        why=why,
        kept="this run has touched nothing",
        remedy="wait for it, or cancel it, and run again",
    )


def _still_there(path: Path, descriptor: int) -> bool:
    ours = os.fstat(descriptor)
    try:
        theirs = path.stat()
    except FileNotFoundError:
        return False
    return (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)


def _holder(path: Path) -> str:
    try:
        known = json.loads(path.read_text())
        who = f"pipeline {known['pipeline']!r}, run {known['run']}"
        return f"{who}, process {known['pid']} on {known['host']} holds the lock"
    except (OSError, ValueError, KeyError):
        return "a run that has just started or ended holds the lock"


def cannot_write(error: OSError, folder: Path, elsewhere: str = "") -> PenstockError:
    """What the operating system said about a write, for people; `elsewhere`, if there is a way to write there."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in DISK_FULL:
        return TargetError(
            "the disk is full",
            why=f"{reason}: {folder}",
            kept="nothing was committed",
            remedy=f"free space there, or {elsewhere}" if elsewhere else "free space there",
        )
    if error.errno in NO_WRITE:
        return TargetError(
            f"cannot write in {folder}",
            why=reason,
            kept="nothing was committed",
            remedy="make the folder writable, or set another path",
        )
    if error.errno in {errno.ENOENT, errno.ENOTDIR}:
        return TargetError(
            f"there is no folder {folder}",
            why=reason,
            kept="nothing was committed",
            remedy="create it, or set another path",
        )
    return TargetError(f"writing in {folder} failed", why=reason, kept="nothing was committed")
