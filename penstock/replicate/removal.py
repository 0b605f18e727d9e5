"""The end of a replication: what it has made is taken back, at each end that is there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from penstock.backends.change_source import ReadsChanges
from penstock.backends.change_target import AppliesChanges
from penstock.errors import ConnectionFailed, LinkLost
from penstock.project.model import Project
from penstock.project.replications import Replication
from penstock.replicate import buffer
from penstock.replicate.tables import Ends, ends_of, log_names


def remove(project: Project, replication: Replication, *, source: bool, target: bool) -> dict[str, list[str]]:
    """Without an end that is gone for ever: the statements that would have to be run there, by its name."""
    ends = ends_of(project, replication)
    with ExitStack() as stack:
        # Both are open before anything is touched: one that does not answer leaves all as it is.
        if source:
            with _may_be_left_out(replication, "source"):
                read = ends.change_source(replication, [])  # whatever has become of its tables
            stack.callback(read.close)
        if target:
            with _may_be_left_out(replication, "target"):
                applier = ends.applier(replication)
            stack.callback(applier.close)
        if source:
            read.remove()
        if target:
            applier.remove()
    # Last: if we die here, what is left is a log that no position leads into, and the next remove takes it.
    if not replication.buffer.keep_copy:
        buffer.remove(replication.buffer_folder(project.root))
    return _left(replication, ends, source=source, target=target)


def _left(replication: Replication, ends: Ends, *, source: bool, target: bool) -> dict[str, list[str]]:
    assert isinstance(ends.source_backend, ReadsChanges)  # noqa: S101  asked when they were found
    assert isinstance(ends.target_backend, AppliesChanges)  # noqa: S101  as above
    left = {}
    if not source:
        left["source"] = ends.source_backend.left_at_source(log_names(replication))
    if not target:
        left["target"] = ends.target_backend.left_at_target(replication.name)
    return left


@contextmanager
def _may_be_left_out(replication: Replication, end: str) -> Iterator[None]:
    try:
        yield
    except (LinkLost, ConnectionFailed) as error:
        error.kept = "nothing was touched"
        error.remedy = (
            f"run it again when the {end} answers; if it is gone for ever,"
            f" `penstock replications remove {replication.name} --without-{end}`"
        )
        raise
