"""Every error Penstock raises: what failed, why, what was kept, and what to do next.

Driver errors are mapped to these at the backend's edge, with the cause chained. `kind` decides
the retry: only `TRANSIENT` errors are tried again. A class says what is kept and what to do where an
error does not say it better: they are raised before a commit, never after it. Texts never hold a
cell's value or a secret; key values may stand in `keys`, which only the user's own terminal shows.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar

UNTOUCHED = "nothing was touched"
NOT_COMMITTED = "nothing was committed"
AGAIN = "run it again"


class Kind(StrEnum):
    USAGE = "usage"  # the project file, the command line or the code is wrong: exit 2
    PERMANENT = "permanent"  # the same run would fail again: exit 1
    TRANSIENT = "transient"  # a link, a lock, a restart: tried again
    DATA = "data"  # a value does not fit: exit 1, with table, column and keys


class PenstockError(Exception):
    """The root of all errors shown to users."""

    kind: ClassVar[Kind] = Kind.PERMANENT
    usually_kept: ClassVar[str] = ""
    usual_remedy: ClassVar[str] = ""
    pipeline: str = ""  # that it ended, where a call from Python ran it

    def __init__(
        self,
        what: str,
        *,
        why: str = "",
        kept: str = "",
        remedy: str = "",
        place: str = "",
        keys: tuple[str, ...] = (),
    ) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.kept = kept or self.usually_kept
        self.remedy = remedy or self.usual_remedy
        self.place = place
        self.keys = keys

    @property
    def exit_code(self) -> int:
        return 2 if self.kind is Kind.USAGE else 1

    @property
    def retryable(self) -> bool:
        return self.kind is Kind.TRANSIENT

    @property
    def passing(self) -> bool:
        """Whether it is of the server and of this moment: a replication, which has time, waits until it is over."""
        return self.retryable

    def __str__(self) -> str:
        text = self.what if not self.why else f"{self.what}: {self.why}"
        return f"{self.place}: {text}" if self.place else text

    def __reduce__(self) -> tuple[Any, ...]:
        return (from_record, (self.to_record(),))

    def to_record(self) -> dict[str, Any]:
        """A JSON form that crosses processes: workers send errors back as receipts."""
        return {
            "error": type(self).__name__,
            "what": self.what,
            "why": self.why,
            "kept": self.kept,
            "remedy": self.remedy,
            "place": self.place,
            "keys": list(self.keys),
            **self.extra(),
        }

    def extra(self) -> dict[str, Any]:
        """What a subclass adds to its record."""
        return {}

    def _render_traceback_(self) -> list[str]:
        """What IPython shows of it: the text of the command line, and no traceback of ours."""
        from penstock.told import in_a_notebook

        return in_a_notebook(self)


class ConfigError(PenstockError):
    """The project file, the environment or a decorated object is wrong."""

    kind = Kind.USAGE


class ConfigErrors(ConfigError):
    """Several findings at once."""

    def __init__(self, findings: list[PenstockError]) -> None:
        super().__init__(f"{len(findings)} problems in the project")
        self.findings = findings

    def __str__(self) -> str:
        return "\n".join([f"{self.what}:", *(f"  {finding}" for finding in self.findings)])

    def extra(self) -> dict[str, Any]:
        return {"findings": [finding.to_record() for finding in self.findings]}


class PlanRefused(PenstockError):
    """The plan cannot be carried out exactly; nothing was touched."""

    usually_kept = UNTOUCHED
    usual_remedy = "penstock plan shows the whole plan"


class Unsupported(PlanRefused):
    """The backend's capabilities do not include what was asked for."""


class ConnectionFailed(PenstockError):
    """The server refuses us; trying again would not help."""

    usually_kept = NOT_COMMITTED
    usual_remedy = "correct the connection; penstock connections test tries it"


class NotThereYet(ConnectionFailed):
    """A database that its first load makes, and that has had none."""


class LinkLost(PenstockError):
    """The link broke or the server is away; another attempt may succeed."""

    kind = Kind.TRANSIENT
    usually_kept = NOT_COMMITTED
    usual_remedy = "run it again when the server is back"


class SourceError(PenstockError):
    """The source refused a statement."""

    usually_kept = NOT_COMMITTED
    usual_remedy = "correct the query, or grant the connection's user what it lacks"


class SourceMoved(PenstockError):
    """The table was rewritten under our snapshot; it must be read again from the start."""

    kind = Kind.TRANSIENT
    usually_kept = NOT_COMMITTED
    usual_remedy = AGAIN


class TargetError(PenstockError):
    """The target refused a statement; its transaction was rolled back."""

    usually_kept = NOT_COMMITTED
    usual_remedy = "put right what it names, then run it again"


class NotNow(TargetError):
    """The target takes nothing from anybody for now: it has no room, or is read only.

    Another attempt at once would not help, so a run ends with it; a replication waits.
    """

    @property
    def passing(self) -> bool:
        return True


class PlanStale(PenstockError):
    """Another run has changed the target since this one was planned; it must be planned again."""

    kind = Kind.TRANSIENT
    usually_kept = NOT_COMMITTED
    usual_remedy = AGAIN


class StagingLost(PenstockError):
    """What was staged is not what the receipts say; nothing was committed."""

    kind = Kind.TRANSIENT
    usually_kept = NOT_COMMITTED
    usual_remedy = AGAIN


COPY_TABLE_AGAIN = "copy the table again: `penstock replications resync NAME TABLE`"
CONSTRAINED = "correct the values at the source; or, of a constraint that the target alone has, {} it there"


class DataError(PenstockError):
    """A value that the target's column cannot hold, or keys that are null or double."""

    kind = Kind.DATA
    usually_kept = NOT_COMMITTED
    usual_remedy = "correct the value at the source, or give its column another type"


class BeyondArrow(DataError):
    """Values that a column's Arrow form cannot carry, though its text form can.

    A target that would rather have text (see `Native.fallback`) gets the run planned again with
    these columns as text; for every other target it is a plain data error.
    """

    def __init__(self, what: str, *, columns: tuple[str, ...] = (), **rest: Any) -> None:
        super().__init__(what, **rest)
        self.columns = columns

    def extra(self) -> dict[str, Any]:
        return {"columns": list(self.columns)}


class RowsLacking(DataError):
    """A change brings only a part of a row, and the target does not have the rest of it."""


class Busy(PenstockError):
    """Another live run holds the target."""

    usually_kept = NOT_COMMITTED
    usual_remedy = "wait until it has ended; penstock runs list shows it"


class Cancelled(PenstockError):
    """The run was cancelled by a signal or a command."""

    usually_kept = NOT_COMMITTED
    usual_remedy = "run again what is missing; 'penstock runs list' shows what was done"


class DriverMissing(PenstockError):
    """An optional package is not installed."""

    usually_kept = UNTOUCHED
    usual_remedy = "penstock doctor shows what is missing"


class SparkError(PenstockError):
    """Spark or Java could not be started, or a job failed for a reason of its own."""

    usually_kept = NOT_COMMITTED
    usual_remedy = "penstock doctor --spark"


class StateError(PenstockError):
    """The state store cannot be opened, or was written by a newer version."""

    usually_kept = "the targets were not touched"
    usual_remedy = "set another store: [state] in penstock.toml"


class TransformError(PenstockError):
    """The user's SQL or function failed."""

    usually_kept = NOT_COMMITTED
    usual_remedy = "correct the transform"


def from_record(record: dict[str, Any]) -> PenstockError:
    """The error that `to_record` described."""
    fields = dict(record)
    if "findings" in fields:
        return ConfigErrors([from_record(finding) for finding in fields["findings"]])
    cls = _subclasses(PenstockError).get(fields.pop("error"), PenstockError)
    what = fields.pop("what")
    fields["keys"] = tuple(fields.get("keys", ()))
    if "columns" in fields:
        fields["columns"] = tuple(fields["columns"])
    return cls(what, **fields)


def _subclasses(cls: type[PenstockError]) -> dict[str, type[PenstockError]]:
    found = {cls.__name__: cls}
    for sub in cls.__subclasses__():
        found.update(_subclasses(sub))
    return found
