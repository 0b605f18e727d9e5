"""Named places where the fault suite stops the process.

`PENSTOCK_FAILPOINTS="name=action,…"` arms them: `kill` sends SIGKILL to the process itself,
`raise` raises `FailpointError`, `pause:PATH` creates PATH and waits until it is gone,
`once:PATH:ACTION` does ACTION only if PATH can be created (so that a retried attempt passes).
An unarmed failpoint costs one dictionary look-up.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

ENV = "PENSTOCK_FAILPOINTS"

NAMES: dict[str, str] = {
    "read.open": "a worker has opened its partition and read nothing",
    "read.batch": "a worker has read its first batch",
    "sink.open": "a sink is open and holds nothing",
    "sink.staged": "a task's rows are staged, its receipt is not durable",
    "sink.receipt": "a task's receipt is durable, not yet returned",
    "load.begin": "the lock is held, no staging exists",
    "load.staging": "staging exists and is empty",
    "copy.done": "every receipt has reached the driver",
    "commit.begin": "the commit transaction is open and empty",
    "commit.loaded": "all rows are loaded, COMMIT is not sent",
    "commit.done": "COMMIT has returned, nothing else has happened",
    "sweep.begin": "leftovers are known, none is removed",
    "sweep.done": "leftovers are removed",
    "run.finish": "the load is committed, the run history does not know",
}

# Of replications: the suite that kills their agents stops there.
REPLICATION: dict[str, str] = {
    "copy.begun": "a copy is known to the target, nothing is staged",
    "copy.staged": "every range of a table is staged, the hidden table is empty",
    "copy.loaded": "a hidden table is filled, nobody knows",
    "replicate.slot": "the slot is there, the target knows nothing",
    "replicate.begun": "the target knows the first position, nothing is copied",
    "replicate.joined": "a copied table is visible, nothing else has happened",
    "capture.claimed": "a capture has taken the buffer over, it reads nothing yet",
    "segment.written": "a segment is written, not on the disk",
    "segment.linked": "a segment has its name, which is not on the disk",
    "segment.durable": "a segment is durable, nothing is confirmed",
    "capture.durable": "a segment is durable, its capture has confirmed nothing",
    "fold.written": "a task has folded its part of a flush, under another name",
    "flush.fenced": "a flush has its fence, nothing is loaded",
    "flush.loaded": "a flush is loaded, COMMIT is not sent",
    "flush.committed": "a flush is committed, nobody knows",
}

# Places that only some targets pass: theirs is the suite that stops there.
SOME: dict[str, str] = {
    "publish.file": "a manifest is committed, one of its files is where others see it",
    "widen.dropped": "a table that gets a wider column is dropped, its rows are set aside",
    "publish.removed": "a manifest is committed, one of the files that it replaces is gone",
}

# Places that a buffer passes once it is old.
OLD: dict[str, str] = {
    "pack.written": "old segments are in one file, which has no name yet",
    "pack.linked": "old segments are in a pack, and still in files of their own",
    "pack.removed": "old segments are in a pack, some no more in files of their own",
}


class FailpointError(RuntimeError):
    """Raised by an armed failpoint."""


def failpoint(name: str) -> None:
    """Stop here if the environment arms this name."""
    armed = os.environ.get(ENV)
    if not armed:
        return
    if not any(name in known for known in (NAMES, REPLICATION, SOME, OLD)):
        raise KeyError(name)
    for entry in armed.split(","):
        key, _, action = entry.partition("=")
        if key == name:
            _act(name, action)


def _act(name: str, action: str) -> None:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "raise":
        raise FailpointError(name)
    elif action.startswith("pause:"):
        marker = Path(action.removeprefix("pause:"))
        marker.touch()
        while marker.exists():
            time.sleep(0.02)
    elif action.startswith("once:"):
        path, _, then = action.removeprefix("once:").partition(":")
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        _act(name, then)
    else:
        raise ValueError(f"unknown failpoint action {action!r}")
