"""Many changes of a table as one final change per key.

A change of a key is the row leaving one key and arriving at another; chains and swaps of keys are followed as
such, so that a column that was never sent is taken from the row where it was, before anything is deleted. All of
it on arrays: an event points to the one before it of the same row, and pointers are doubled until they rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.backends.changes import DELETE, INSERT, TRUNCATE, UPDATE, VALUE, ChangedColumn, TableVersion
from penstock.errors import COPY_TABLE_AGAIN, DataError

# The texts of a key column, changed so that they are equal where the source calls the values equal.
Normal = Callable[[ChangedColumn, pa.Array], pa.Array]

_ARRIVES, _STAYS, _LEAVES, _DIES = range(4)


@dataclass(frozen=True, slots=True)
class Folded:
    """What a table's changes come to.

    `upserts` has `tx`, the new values `n0 …`, `u0 …` where a column was never sent and is the target's own at
    the row's origin, and the key of that origin, `k0 …` for the key columns in order (NULL of a new row).
    `deletes` has the keys of rows that are gone, `k0 …`, and `tx`.
    """

    truncated: bool
    upserts: pa.Table
    deletes: pa.Table
    changes: int


def fold(version: TableVersion, rows: pa.Table, normal: Normal = lambda _, texts: texts) -> Folded:
    """Of a table that has a key; `rows` are in any order, their `tx` counts on over all of them."""
    total = rows.num_rows
    rows = _in_order(rows)
    ops = rows["op"].to_numpy()
    truncated = np.flatnonzero(ops == TRUNCATE)
    if truncated.size:
        rows = rows.slice(int(truncated[-1]) + 1)
        ops = rows["op"].to_numpy()
    events = _Events(version, rows.combine_chunks(), ops, normal)
    return Folded(bool(truncated.size), events.upserts(), events.deletes(), total)


def fold_bag(version: TableVersion, rows: pa.Table) -> Folded:
    """Of a table without a key: how many more or fewer there are of each row.

    `upserts` has each row as often as it comes; `deletes` has the values of a row that goes, `k0 …` of all columns,
    and in `n` how often. Two equal rows and one delete leave one.
    """
    total = rows.num_rows
    rows = _in_order(rows)
    ops = rows["op"].to_numpy()
    truncated = np.flatnonzero(ops == TRUNCATE)
    if truncated.size:
        rows = rows.slice(int(truncated[-1]) + 1)
        ops = rows["op"].to_numpy()
    rows = rows.combine_chunks()
    numbers = range(len(version.columns))
    news = {n: _column(rows, f"n{n}", VALUE) for n in numbers}
    olds = {n: _column(rows, f"o{n}", VALUE) for n in numbers}
    for number in numbers:
        if f"u{number}" in rows.column_names:
            # A row without a key is told apart by all of it: its old values are always sent.
            same = _column(rows, f"u{number}", pa.bool_()).fill_null(False)
            news[number] = pc.if_else(same, olds[number], news[number])
    comes, goes = np.flatnonzero(ops != DELETE), np.flatnonzero(ops != INSERT)
    values = [pa.concat_arrays([news[n].take(pa.array(comes)), olds[n].take(pa.array(goes))]) for n in numbers]
    codes = by_text(values) if values and len(values[0]) else np.zeros(0, np.int64)
    signs = np.concatenate([np.ones(comes.size, np.int64), -np.ones(goes.size, np.int64)])
    tx = rows["tx"].to_numpy()
    when = np.concatenate([tx[comes], tx[goes]]).astype(np.int32)
    kinds, inverse = np.unique(codes, return_inverse=True)
    net = np.zeros(kinds.size, np.int64)
    np.add.at(net, inverse, signs)
    last = np.zeros(kinds.size, np.int32)
    np.maximum.at(last, inverse, when)
    example = np.zeros(kinds.size, np.int64)
    example[inverse] = np.arange(codes.size)
    more = np.repeat(np.flatnonzero(net > 0), net[net > 0])
    fewer = np.flatnonzero(net < 0)
    upserts = {"tx": pa.array(last[more])} | {
        f"n{n}": column.take(pa.array(example[more])) for n, column in enumerate(values)
    }
    deletes = {"tx": pa.array(last[fewer]), "n": pa.array(-net[fewer])} | {
        f"k{n}": column.take(pa.array(example[fewer])) for n, column in enumerate(values)
    }
    return Folded(bool(truncated.size), pa.table(upserts), pa.table(deletes), total)


def by_text(keys: Sequence[pa.Array]) -> np.ndarray:
    """Keys that are equal as texts."""
    found = np.zeros(len(keys[0]), np.int64)
    for texts in keys:
        encoded = pc.dictionary_encode(texts)
        none = len(encoded.dictionary)  # an insert has no old key, a delete no new one
        found = found * (none + 1) + encoded.indices.fill_null(none).to_numpy(zero_copy_only=False)
        if len(keys) > 1:
            _, found = np.unique(found, return_inverse=True)
    return found


def _in_order(rows: pa.Table) -> pa.Table:
    tx, seq = rows["tx"].to_numpy(), rows["seq"].to_numpy()
    later = (tx[1:] > tx[:-1]) | ((tx[1:] == tx[:-1]) & (seq[1:] >= seq[:-1]))
    return rows if later.all() else rows.take(np.lexsort((seq, tx)))


class _Events:
    """The changes in order, each with its keys before and after it and the event before it of the same row."""

    def __init__(self, version: TableVersion, rows: pa.Table, ops: np.ndarray, normal: Normal) -> None:
        self._version = version
        self._ops = ops
        self._rows = rows
        self._keys = [number for number, column in enumerate(version.columns) if column.key]
        self._new = {n: _column(rows, f"n{n}", VALUE) for n in range(len(version.columns))}
        self._old = {n: _column(rows, f"o{n}", VALUE) for n in range(len(version.columns))}
        self._same = {
            n: _column(rows, f"u{n}", pa.bool_()).fill_null(False).to_numpy(zero_copy_only=False)
            for n in range(len(version.columns))
            if f"u{n}" in rows.column_names
        }
        self._fill_from_old()
        self._read_keys(normal)
        self._link()

    def _fill_from_old(self) -> None:
        """Of a column that was not sent again the old row has the value, where the source sends old rows whole.

        A key that is stored out of line is sent as part of the old row in any case.
        """
        whole = self._version.identity == "full"
        for number, same in list(self._same.items()):
            if not whole and number not in self._keys:
                continue
            had_old = self._had_old()
            filled = same & had_old
            self._new[number] = pc.if_else(pa.array(filled), self._old[number], self._new[number])
            left = same & ~filled
            if left.any():
                self._same[number] = left
            else:
                del self._same[number]

    def _had_old(self) -> np.ndarray:
        """Which events came with an old row: a key is never NULL."""
        found: np.ndarray = self._old[self._keys[0]].is_valid().to_numpy(zero_copy_only=False)
        return found

    def _read_keys(self, normal: Normal) -> None:
        had_old = pa.array(self._had_old())
        news = [self._new[n] for n in self._keys]
        # An update that came without an old row has not changed the key.
        olds = [pc.if_else(had_old, self._old[n], self._new[n]) for n in self._keys]
        count = len(self._ops)
        both = [pa.concat_arrays([new, old]) for new, old in zip(news, olds, strict=True)]
        columns = [self._version.columns[number] for number in self._keys]
        found = by_text([normal(column, texts) for column, texts in zip(columns, both, strict=True)])
        self.after, self.before = found[:count], found[count:]
        self._key_before = olds

    def _link(self) -> None:
        ops, count = self._ops, len(self._ops)
        numbers = np.arange(count)
        moved = (ops == UPDATE) & (self.after != self.before)
        leaving, arriving = numbers[moved], numbers[moved | (ops == INSERT)]
        staying, dying = numbers[(ops == UPDATE) & ~moved], numbers[ops == DELETE]
        groups = np.concatenate([self.before[leaving], self.after[arriving], self.after[staying], self.before[dying]])
        events = np.concatenate([leaving, arriving, staying, dying])
        kinds = np.repeat([_LEAVES, _ARRIVES, _STAYS, _DIES], [leaving.size, arriving.size, staying.size, dying.size])
        order = np.lexsort((events, groups))
        groups, events, kinds = groups[order], events[order], kinds[order]
        first = np.ones(groups.size, bool)
        first[1:] = groups[1:] != groups[:-1]
        last = np.ones(groups.size, bool)
        last[:-1] = first[1:]

        previous = np.full(count, -1)
        behind = np.flatnonzero(~first & (kinds != _ARRIVES))
        orphans = np.isin(kinds[behind - 1], (_LEAVES, _DIES))
        if orphans.any():
            raise self._impossible(int(events[behind[orphans][0]]))
        taken = np.flatnonzero(~first & (kinds == _ARRIVES) & np.isin(np.roll(kinds, 1), (_ARRIVES, _STAYS)))
        if taken.size:
            raise self._impossible(int(events[taken[0]]))
        previous[events[behind]] = events[behind - 1]
        self._previous = previous
        ends = last & np.isin(kinds, (_ARRIVES, _STAYS))
        # A key that only came and went inside of these changes is not in the target.
        starts = np.flatnonzero(first)
        was_there = np.repeat(kinds[starts] != _ARRIVES, np.diff(np.append(starts, groups.size)))
        self._final = events[ends]
        # The first event of each final one's key, and whether the target has a row with that key before it.
        of_group = starts[np.cumsum(first) - 1]
        begun = of_group[ends]
        self._begun, self._had = events[begun], kinds[begun] != _ARRIVES
        gone = last & ~np.isin(kinds, (_ARRIVES, _STAYS)) & was_there
        # By the key that the target has: the first event's.
        self._gone, self._gone_at = events[of_group[gone]], events[gone]

    def upserts(self) -> pa.Table:
        final = self._final
        root = _rest(np.where(self._previous >= 0, self._previous, np.arange(len(self._ops))))[final]
        fresh = self._ops[root] == INSERT
        columns: dict[str, pa.Array] = {"tx": self._rows["tx"].combine_chunks().take(pa.array(final))}
        for number in range(len(self._version.columns)):
            same = self._same.get(number)
            if same is None:
                columns[f"n{number}"] = self._new[number].take(pa.array(final))
                continue
            sent_at = _rest(np.where(same & (self._previous >= 0), self._previous, np.arange(len(self._ops))))[final]
            columns[f"n{number}"] = self._new[number].take(pa.array(sent_at))
            if same[sent_at].any():
                columns[f"u{number}"] = pa.array(same[sent_at])
        origin = pa.array(root, mask=fresh)
        for place, texts in enumerate(self._key_before):
            columns[f"k{place}"] = texts.take(origin)
        return pa.table(columns)

    def deletes(self) -> pa.Table:
        respelled, now = self._respelled()
        gone = pa.array(np.concatenate([self._gone, respelled]))
        when = pa.array(np.concatenate([self._gone_at, now]))
        columns: dict[str, pa.Array] = {"tx": self._rows["tx"].combine_chunks().take(when)}
        for place, texts in enumerate(self._key_before):
            columns[f"k{place}"] = texts.take(gone)
        return pa.table(columns)

    def _respelled(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys that are the same and are written differently at the end, 1.0 and 1.00: the first and the last event.

        Such a row goes and comes again: a target may tell the two apart, or keep the one that it has.
        """
        other = np.zeros(self._final.size, bool)
        for place, number in enumerate(self._keys):
            was = self._key_before[place].take(pa.array(self._begun))
            now = self._new[number].take(pa.array(self._final))
            other |= pc.fill_null(pc.not_equal(was, now), False).to_numpy(zero_copy_only=False)
        chosen = self._had & other
        return self._begun[chosen], self._final[chosen]

    def _impossible(self, event: int) -> DataError:
        key = ", ".join(
            f"{self._version.columns[n].name}={texts[event]}"
            for n, texts in zip(self._keys, self._key_before, strict=True)
        )
        return DataError(
            "the changes of a table contradict each other",
            why="a row is changed after it was deleted, or inserted where one is",
            place=str(self._version.table),
            keys=(key,),
            remedy=COPY_TABLE_AGAIN,
        )


def _column(rows: pa.Table, name: str, type_: pa.DataType) -> pa.Array:
    if name not in rows.column_names:
        return pa.nulls(rows.num_rows, type_)
    column = rows[name]
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _rest(pointers: np.ndarray) -> np.ndarray:
    """Where each pointer comes to rest: at what points to itself."""
    while True:
        further = pointers[pointers]
        if np.array_equal(further, pointers):
            return pointers
        pointers = further
