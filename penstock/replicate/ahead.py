"""What comes next is folded while the target works on what it has: else one core waits for the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from threading import Event

from penstock.backends.change_target import TableFailed
from penstock.backends.changes import Position, Segment
from penstock.errors import PenstockError
from penstock.replicate.apply import Changes, Prepared, TablePlan
from penstock.replicate.evolve import TableRewritten
from penstock.replicate.folding import Prepare
from penstock.replicate.tables import Kept
from penstock.schema import TableName


@dataclass(frozen=True, slots=True)
class Made:
    """What a flush brings behind a position, for tables of these forms."""

    after: Position
    kept: Mapping[TableName, Kept]
    segments: Sequence[Segment]
    changes: Changes
    plans: Sequence[TablePlan]
    prepared: Mapping[tuple[TableName, int], Prepared] | None = None  # by table and round; None: not folded yet


class Ahead:
    """One flush ahead, and no more: it is held in memory beside the one that is under way."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "penstock-ahead")
        self._next: Future[Made | None] | None = None

    @contextmanager
    def making(self, make: Callable[[Event], Made | None]) -> Iterator[None]:
        """Make the next one meanwhile; the event says that this is over."""
        over = Event()
        self._next = self._thread.submit(_tried, make, over)
        try:
            yield
        finally:
            over.set()

    def taken(self, after: Position, kept: Mapping[TableName, Kept]) -> Made | None:
        """The flush behind this position, if it was made for just these tables: much may have happened since."""
        begun, self._next = self._next, None
        made = begun.result() if begun is not None else None
        return made if made is not None and made.after == after and made.kept == kept else None

    def close(self) -> None:
        self._thread.shutdown()


def _tried(make: Callable[[Event], Made | None], over: Event) -> Made | None:
    try:
        return make(over)
    except (PenstockError, TableFailed, TableRewritten):
        return None  # whoever makes the flush in its turn comes to the same, and knows what to do about it


@contextmanager
def one_ahead(plans: Sequence[TablePlan], prepare: Prepare) -> Iterator[Prepare]:
    """The rounds of a flush, asked for in their order: the one after is folded meanwhile. So two are in memory."""
    waiting = iter([(plan, number) for plan in plans for number in range(len(plan.rounds))])
    with ThreadPoolExecutor(1, "penstock-rounds") as thread:
        begun: list[tuple[TablePlan, int, Future[Prepared]]] = []

        def begin() -> None:
            begun.extend((*one, thread.submit(prepare, *one)) for one in islice(waiting, 1))

        def taken(plan: TablePlan, number: int) -> Prepared:
            asked, at, following = begun.pop()
            assert asked is plan and at == number  # noqa: S101, PT018  or a table would get another one's rows
            made = following.result()
            begin()
            return made

        begin()
        yield taken
