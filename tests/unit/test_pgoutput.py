"""Messages of a slot, built byte by byte, as columns of changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.backends import changes
from penstock.backends.change_source import Scratch
from penstock.backends.changes import ChangedColumn, TableVersion, behind, joined
from penstock.backends.postgres import changes as decoding
from penstock.backends.postgres.changes import ENDS, Decoder
from penstock.backends.postgres.pgoutput import HEADER, Messages, Relation, parse_relation, tuples
from penstock.schema import TableName
from tests.unit.pgoutput_messages import (
    UNCHANGED,
    begin,
    commit,
    delete,
    insert,
    message,
    origin,
    relation,
    stream_abort,
    stream_commit,
    stream_start,
    stream_stop,
    truncate,
    update,
)

ITEMS, WORDS = 16_400, 16_500
ITEM_COLUMNS = [("id", 20, True), ("name", 25, False), ("doc", 25, False)]
AT = datetime(2031, 5, 6, 7, 8, 9, 123456, UTC)
OPS = {changes.INSERT: "insert", changes.UPDATE: "update", changes.DELETE: "delete", changes.TRUNCATE: "truncate"}


class Pieces(Scratch):
    """What would lie in files."""

    def __init__(self) -> None:
        self.files: dict[str, pa.Table] = {}
        self.dropped: list[str] = []

    def put(self, rows: pa.Table) -> tuple[str, int]:
        name = f"{len(self.files) + len(self.dropped)}.changes"
        self.files[name] = rows
        return name, 1

    def drop(self, file: str) -> None:
        del self.files[file]
        self.dropped.append(file)


class Described:
    """Remembers what was asked, and what was known of the table before."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, TableVersion | None]] = []

    def __call__(self, found: Relation, before: TableVersion | None) -> TableVersion:
        self.asked.append((found.table, before))
        columns = tuple(ChangedColumn(c.name, f"postgres:{c.type_oid}", c.key) for c in found.columns)
        identity = {"d": "key", "i": "key", "f": "full", "n": "none"}[found.identity]
        return TableVersion(TableName(found.schema, found.table), columns, identity)


@pytest.fixture
def described() -> Described:
    return Described()


@pytest.fixture
def pieces() -> Pieces:
    return Pieces()


@pytest.fixture
def decoder(described: Described, pieces: Pieces) -> Decoder:
    return Decoder(described, lambda _: None, pieces, {})


def _rows(batch: changes.Batch) -> list[dict[str, Any]]:
    """All rows in the order of the log, each with its table's name and without what is NULL and what is false."""
    found = [
        {"table": table.version.table.table, **row, "op": OPS[row["op"]]}
        for table in batch.tables
        for row in table.rows.to_pylist()
    ]
    found.sort(key=lambda row: (row["tx"], row["seq"]))
    return [
        {name: value for name, value in row.items() if name != "seq" and value is not None and value is not False}
        for row in found
    ]


def _items(*, sub: int | None = None, identity: str = "d") -> bytes:
    return relation(ITEMS, "items", ITEM_COLUMNS, identity, sub=sub)


def test_a_transaction_has_its_positions_and_its_time(decoder: Decoder) -> None:
    batch = decoder.feed([begin(90), _items(), insert(ITEMS, "1", "a", "b"), commit(2**63 + 80, 2**63 + 90, AT)])
    assert batch.transactions.to_pylist() == [{"commit": 2**63 + 80, "end": 2**63 + 90, "at": AT, "changes": 1}]
    assert batch.transactions.schema == changes.TRANSACTIONS


def test_inserts_updates_and_deletes_keep_their_order_across_tables(decoder: Decoder) -> None:
    batch = decoder.feed(
        [
            begin(90),
            _items(),
            relation(WORDS, "words", [("word", 25, True)]),
            insert(ITEMS, "1", "a", None),
            insert(WORDS, "w"),
            update(ITEMS, "1", "b", ""),
            delete(WORDS, key=["w"]),
            delete(ITEMS, key=["1", None, None]),
            commit(80, 90),
        ]
    )
    assert _rows(batch) == [
        {"table": "items", "tx": 0, "op": "insert", "n0": "1", "n1": "a"},
        {"table": "words", "tx": 0, "op": "insert", "n0": "w"},
        {"table": "items", "tx": 0, "op": "update", "n0": "1", "n1": "b", "n2": ""},
        {"table": "words", "tx": 0, "op": "delete", "o0": "w"},
        {"table": "items", "tx": 0, "op": "delete", "o0": "1"},
    ]
    assert batch.transactions["changes"].to_pylist() == [5]


def test_null_the_empty_text_and_unchanged_are_three_things(decoder: Decoder) -> None:
    batch = decoder.feed(
        [
            begin(90),
            _items(),
            update(ITEMS, "1", None, UNCHANGED),
            update(ITEMS, "2", "", "sent"),
            update(ITEMS, "3", UNCHANGED, None),
            commit(80, 90),
        ]
    )
    [table] = batch.tables
    assert table.rows["n1"].to_pylist() == [None, "", None]
    assert table.rows["u1"].to_pylist() == [False, False, True]
    assert table.rows["n2"].to_pylist() == [None, "sent", None]
    assert table.rows["u2"].to_pylist() == [True, False, False]
    assert "u0" not in table.rows.column_names  # of a column that every row has sent


def test_a_changed_key_comes_with_the_old_one(decoder: Decoder) -> None:
    batch = decoder.feed(
        [
            begin(90),
            _items(),
            update(ITEMS, "2", "a", UNCHANGED, key=["1", None, None]),
            update(ITEMS, "3", "c", "d"),
            commit(80, 90),
        ]
    )
    [table] = batch.tables
    assert table.rows["o0"].to_pylist() == ["1", None]
    assert "o1" not in table.rows.column_names  # of the old row, only the key was sent
    assert table.rows["n0"].to_pylist() == ["2", "3"]
    assert table.rows["u2"].to_pylist() == [True, False]


def test_a_whole_old_row_comes_under_full_identity(decoder: Decoder) -> None:
    batch = decoder.feed(
        [
            begin(90),
            _items(identity="f"),
            update(ITEMS, "1", "new", UNCHANGED, old=["1", "old", "long" * 50]),
            delete(ITEMS, old=["2", None, "x"]),
            insert(ITEMS, "3", "c", None),
            commit(80, 90),
        ]
    )
    assert _rows(batch) == [
        {
            "table": "items",
            "tx": 0,
            "op": "update",
            "n0": "1",
            "n1": "new",
            "u2": True,
            "o0": "1",
            "o1": "old",
            "o2": "long" * 50,
        },
        {"table": "items", "tx": 0, "op": "delete", "o0": "2", "o2": "x"},
        {"table": "items", "tx": 0, "op": "insert", "n0": "3", "n1": "c"},
    ]


def test_truncate_names_several_tables_at_one_place(decoder: Decoder) -> None:
    batch = decoder.feed(
        [
            begin(90),
            _items(),
            relation(WORDS, "words", [("word", 25, True)]),
            insert(ITEMS, "1", "a", "b"),
            truncate(ITEMS, WORDS),
            insert(ITEMS, "2", "a", "b"),
            commit(80, 90),
        ]
    )
    assert [(row["table"], row["op"]) for row in _rows(batch)] == [
        ("items", "insert"),
        ("items", "truncate"),
        ("words", "truncate"),
        ("items", "insert"),
    ]
    places = {
        (table.version.table.table, row["op"]): row["seq"] for table in batch.tables for row in table.rows.to_pylist()
    }
    assert places["items", changes.TRUNCATE] == places["words", changes.TRUNCATE]


def test_transactions_of_one_feed_are_numbered_and_counted_each(decoder: Decoder) -> None:
    given = [begin(20), _items(), insert(ITEMS, "1", "a", "b"), insert(ITEMS, "2", "a", "b"), commit(10, 20)]
    given += [begin(40), commit(30, 40)]  # of tables that are not ours
    given += [begin(60), update(ITEMS, "1", "c", UNCHANGED), commit(50, 60)]
    batch = decoder.feed(given)
    assert batch.transactions["commit"].to_pylist() == [10, 30, 50]
    assert batch.transactions["changes"].to_pylist() == [2, 0, 1]
    assert [row["tx"] for row in _rows(batch)] == [0, 0, 2]


def test_what_is_no_change_of_a_row_is_passed_over(decoder: Decoder) -> None:
    batch = decoder.feed(
        [begin(90), origin(), _items(), message(b"beat"), insert(ITEMS, "1", "a", "b"), message(b""), commit(80, 90)]
    )
    assert [row["op"] for row in _rows(batch)] == ["insert"]


def test_a_relation_holds_for_later_feeds_until_the_next_one(decoder: Decoder, described: Described) -> None:
    decoder.feed([begin(20), _items(), insert(ITEMS, "1", "a", "b"), commit(10, 20)])
    wider = [*ITEM_COLUMNS, ("extra", 23, False)]
    given = [begin(40), insert(ITEMS, "2", "a", "b"), relation(ITEMS, "items", wider)]
    batch = decoder.feed([*given, insert(ITEMS, "3", "a", "b", "7"), commit(30, 40)])
    assert [[len(table.version.columns), table.rows["n0"].to_pylist()] for table in batch.tables] == [
        [3, ["2"]],
        [4, ["3"]],
    ]
    assert [table for table, _ in described.asked] == ["items", "items"]
    known = described.asked[1][1]
    assert known is not None
    assert len(known.columns) == 3


def test_columns_and_tables_with_any_name(decoder: Decoder) -> None:
    odd = relation(ITEMS, 'Ö l "x"', [("a.b", 25, True), ("", 25, False), ("ß" * 20, 1700, False)], "i")
    batch = decoder.feed([begin(90), odd, insert(ITEMS, "ü" * 13, "日本語のテキスト", "\x01\n\t"), commit(80, 90)])
    [table] = batch.tables
    assert table.version.table == TableName("public", 'Ö l "x"')
    assert [column.name for column in table.version.columns] == ["a.b", "", "ß" * 20]
    assert [table.rows[f"n{n}"].to_pylist() for n in range(3)] == [["ü" * 13], ["日本語のテキスト"], ["\x01\n\t"]]


def test_a_relation_of_the_catalogs_schema_has_its_name() -> None:
    payload = _items()[HEADER:].replace(b"public\0", b"\0")
    assert parse_relation(payload).schema == "pg_catalog"


@given(
    st.lists(
        st.tuples(
            *[st.one_of(st.none(), st.just(UNCHANGED), st.text(max_size=40).map(lambda t: t.replace("\0", "")))] * 3
        ),
        min_size=1,
        max_size=20,
    )
)
def test_tuples_come_out_as_they_went_in(rows: list[tuple[Any, ...]]) -> None:
    """Short texts lie in the view itself, longer ones in the buffer; both ends of the buffer are read."""
    messages = Messages([insert(ITEMS, *row) for row in rows])
    found = tuples(messages, messages.starts + 6, 3)
    for number in range(3):
        expected = [row[number] if isinstance(row[number], str) else None for row in rows]
        assert found.values[number].to_pylist() == expected
        same = found.unchanged[number]
        assert (same if same is not None else np.zeros(len(rows), bool)).tolist() == [
            row[number] is UNCHANGED for row in rows
        ]
    assert found.ends.tolist() == messages.ends.tolist()


# ---------------------------------------------------------------- transactions that are sent before their end


def test_a_streamed_transaction_comes_with_its_commit(decoder: Decoder) -> None:
    first = decoder.feed([stream_start(7), _items(sub=7), insert(ITEMS, "1", "a", "b", sub=7), stream_stop()])
    assert (first.transactions.num_rows, first.tables) == (0, ())
    decoder.feed([begin(20), _items(), insert(ITEMS, "9", "other", "x"), commit(10, 20)])
    decoder.feed(
        [
            stream_start(7, first=False),
            update(ITEMS, "2", "c", UNCHANGED, key=["1", None, None], sub=7),
            truncate(ITEMS, sub=7),
            delete(ITEMS, key=["9", None, None], sub=7),
            stream_stop(),
        ]
    )
    batch = decoder.feed([stream_commit(7, 30, 40, AT)])
    assert batch.transactions.to_pylist() == [{"commit": 30, "end": 40, "at": AT, "changes": 4}]
    assert _rows(batch) == [
        {"table": "items", "tx": 0, "op": "insert", "n0": "1", "n1": "a", "n2": "b"},
        {"table": "items", "tx": 0, "op": "update", "n0": "2", "n1": "c", "u2": True, "o0": "1"},
        {"table": "items", "tx": 0, "op": "truncate"},
        {"table": "items", "tx": 0, "op": "delete", "o0": "9"},
    ]


def test_two_streamed_transactions_in_turns_stay_apart(decoder: Decoder) -> None:
    given = [stream_start(7), _items(sub=7), insert(ITEMS, "1", "seven", "", sub=7), stream_stop()]
    given += [stream_start(8), _items(sub=8), insert(ITEMS, "2", "eight", "", sub=8), stream_stop()]
    given += [stream_start(7, first=False), insert(ITEMS, "3", "seven", "", sub=7), stream_stop()]
    given += [stream_commit(8, 10, 20), begin(40), _items(), insert(ITEMS, "4", "whole", ""), commit(30, 40)]
    batch = decoder.feed([*given, stream_commit(7, 50, 60)])
    assert batch.transactions["commit"].to_pylist() == [10, 30, 50]
    assert [(row["tx"], row["n0"], row["n1"]) for row in _rows(batch)] == [
        (0, "2", "eight"),
        (1, "4", "whole"),
        (2, "1", "seven"),
        (2, "3", "seven"),
    ]


def test_rows_of_an_aborted_subtransaction_stay_out(decoder: Decoder) -> None:
    batch = decoder.feed(
        [
            stream_start(7),
            _items(sub=7),
            insert(ITEMS, "1", "kept", "", sub=7),
            insert(ITEMS, "2", "gone", "", sub=8),
            truncate(ITEMS, sub=8),
            insert(ITEMS, "3", "kept", "", sub=9),
            stream_stop(),
            stream_abort(7, 8),
            stream_start(7, first=False),
            insert(ITEMS, "4", "kept", "", sub=7),
            insert(ITEMS, "5", "gone", "", sub=10),
            stream_stop(),
            stream_abort(7, 10),
            stream_commit(7, 30, 40),
        ]
    )
    assert [(row["op"], row["n0"], row["n1"]) for row in _rows(batch)] == [
        ("insert", "1", "kept"),
        ("insert", "3", "kept"),
        ("insert", "4", "kept"),
    ]
    assert batch.transactions["changes"].to_pylist() == [3]


def test_an_aborted_transaction_leaves_nothing(decoder: Decoder) -> None:
    given = [stream_start(7), _items(sub=7), insert(ITEMS, "1", "a", "", sub=7), stream_stop(), stream_abort(7, 7)]
    batch = decoder.feed(given)
    assert (batch.transactions.num_rows, batch.tables) == (0, ())
    # The same id may come again, of another transaction: nothing of the first is in it.
    given = [stream_start(7), _items(sub=7), insert(ITEMS, "2", "b", "", sub=7), stream_stop(), stream_commit(7, 3, 4)]
    assert [row["n0"] for row in _rows(decoder.feed(given))] == ["2"]


def test_a_form_that_an_aborted_transaction_told_never_was(decoder: Decoder, described: Described) -> None:
    decoder.feed([begin(20), _items(), insert(ITEMS, "1", "a", "b"), commit(10, 20)])
    wider = [*ITEM_COLUMNS, ("extra", 23, False)]
    decoder.feed(
        [
            stream_start(7),
            relation(ITEMS, "items", wider, sub=7),
            insert(ITEMS, "2", "a", "b", "7", sub=7),
            stream_stop(),
            stream_abort(7, 7),
        ]
    )
    # The server tells the form again only where its own cache was thrown away: here it was not.
    batch = decoder.feed([begin(40), insert(ITEMS, "3", "a", "b"), commit(30, 40)])
    assert [len(table.version.columns) for table in batch.tables] == [3]
    decoder.feed([begin(60), _items(), insert(ITEMS, "4", "a", "b"), commit(50, 60)])
    known = described.asked[-1][1]
    assert known is not None
    assert [column.name for column in known.columns] == ["id", "name", "doc"]


def test_a_form_that_a_streamed_transaction_told_holds_behind_its_commit(decoder: Decoder) -> None:
    """The server does not tell it again: also where the commit and the next transaction come together."""
    decoder.feed([begin(20), _items(), insert(ITEMS, "1", "a", "b"), commit(10, 20)])
    wider = [*ITEM_COLUMNS, ("extra", 23, False)]
    given = [stream_start(7), relation(ITEMS, "items", wider, sub=7), insert(ITEMS, "2", "a", "b", "7", sub=7)]
    given += [stream_stop(), stream_commit(7, 30, 40)]
    batch = decoder.feed([*given, begin(60), insert(ITEMS, "3", "a", "b", "8"), commit(50, 60)])
    assert [len(table.version.columns) for table in batch.tables] == [4]
    assert [(row["tx"], row["n3"]) for row in _rows(batch)] == [(0, "7"), (1, "8")]
    assert batch.transactions["changes"].to_pylist() == [1, 1]


def test_the_catalog_is_asked_when_it_shows_the_transaction(pieces: Pieces, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that is not over it may show what was before: it is asked again at the end, for pieces in files too."""
    monkeypatch.setattr(decoding, "HELD_ROWS", 0)
    seen: list[int] = []

    def described(found: Relation, before: TableVersion | None) -> TableVersion:
        return replace(Described()(found, before), stamp=f"behind {max(seen, default=0)}")

    decoder = Decoder(described, seen.append, pieces, {})
    decoder.feed([begin(20, 5), _items(), insert(ITEMS, "1", "a", "b"), commit(10, 20)])
    assert seen == [5]
    decoder.feed([stream_start(7), _items(sub=7), insert(ITEMS, "2", "a", "b", sub=7), stream_stop()])
    assert seen == [5]
    batch = decoder.feed([stream_commit(7, 30, 40)])
    assert seen == [5, 7]
    assert [one.version.stamp for one in batch.stored] == ["behind 7"]
    # One that is sent whole, and in parts.
    decoder.feed([begin(60, 9)])
    decoder.feed([_items(), insert(ITEMS, "3", "a", "b")])
    batch = decoder.feed([commit(50, 60)])
    assert (seen, [one.version.stamp for one in batch.stored]) == ([5, 7, 9], ["behind 9"])


def test_a_large_transaction_goes_into_pieces(
    decoder: Decoder, pieces: Pieces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "HELD_ROWS", 2)
    rows = [insert(ITEMS, str(n), "a", "b", sub=7 + n % 2) for n in range(5)]
    decoder.feed([stream_start(7), _items(sub=7), *rows, stream_stop(), stream_abort(7, 8)])
    assert [table.num_rows for table in pieces.files.values()] == [5]
    decoder.feed([stream_start(7, first=False), insert(ITEMS, "9", "a", "b", sub=7), stream_stop()])
    batch = decoder.feed([begin(20), commit(10, 20), stream_commit(7, 30, 40)])
    assert (batch.stored[0].tx, batch.stored[0].rows, batch.stored[0].aborted) == (1, 5, (8,))
    held = sum(table.rows.num_rows for table in batch.tables) + sum(one.rows for one in batch.stored)
    assert held == 6
    assert all("sub" in table.column_names for table in pieces.files.values())


def test_the_pieces_of_an_aborted_transaction_are_removed(
    decoder: Decoder, pieces: Pieces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "HELD_ROWS", 0)
    given = [stream_start(7), _items(sub=7), insert(ITEMS, "1", "a", "b", sub=7), stream_stop()]
    decoder.feed([*given, stream_start(8), _items(sub=8), insert(ITEMS, "2", "a", "b", sub=8), stream_stop()])
    assert len(pieces.files) == 2
    decoder.feed([stream_abort(7, 7)])
    assert [rows["n0"].to_pylist() for rows in pieces.files.values()] == [["2"]]


def test_a_large_row_counts_by_its_bytes(decoder: Decoder, pieces: Pieces, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "HELD_BYTES", 1000)
    decoder.feed([stream_start(7), _items(sub=7), insert(ITEMS, "1", "a", "b" * 2000, sub=7), stream_stop()])
    assert [table.num_rows for table in pieces.files.values()] == [1]
    decoder.feed([begin(20), _items(), insert(ITEMS, "2", "a", "b" * 2000)])
    assert [table.num_rows for table in pieces.files.values()] == [1, 1]


def test_nothing_is_half_behind_these_messages_alone() -> None:
    ending = [commit(1, 2), stream_stop(), stream_commit(7, 1, 2), stream_abort(7, 7)]
    assert {message[HEADER] for message in ending} == set(ENDS)


@pytest.mark.parametrize("held", [0, 1, 100])
def test_messages_may_be_cut_anywhere(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a transaction that is larger than memory, a part comes at a time: sent whole, or streamed."""
    monkeypatch.setattr(decoding, "HELD_ROWS", held)
    given = [begin(20), _items(), insert(ITEMS, "1", "a", "b"), update(ITEMS, "1", "c", UNCHANGED), commit(10, 20, AT)]
    given += [stream_start(7), _items(sub=7), insert(ITEMS, "2", "a", "b", sub=7), insert(ITEMS, "3", "a", "b", sub=8)]
    given += [truncate(ITEMS, sub=7), stream_stop(), stream_abort(7, 8), message(b"beat")]
    given += [begin(40), insert(ITEMS, "4", "a", "b"), truncate(ITEMS), insert(ITEMS, "5", "a", "b"), commit(30, 40)]
    given += [
        stream_start(7, first=False),
        insert(ITEMS, "6", "a", "b", sub=7),
        stream_stop(),
        stream_commit(7, 50, 60),
    ]
    given += [begin(80), delete(ITEMS, key=["6", None, None]), commit(70, 80)]

    def decoded(*parts: list[bytes]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        scratch = Pieces()
        decoder = Decoder(Described(), lambda _: None, scratch, {})
        batch = joined([decoder.feed(part) for part in parts])
        tables = list(batch.tables)
        for one in batch.stored:
            rows = scratch.files[one.file].to_pylist()
            left = [row | {"tx": one.tx} for row in rows if row.pop("sub") not in one.aborted]
            tables.append(changes.TableChanges(one.version, pa.Table.from_pylist(left)))
        transactions = batch.transactions.drop_columns(["changes"]).to_pylist()
        return transactions, _rows(changes.Batch(batch.transactions, tuple(tables)))

    whole = decoded(given)
    assert [row["commit"] for row in whole[0]] == [10, 30, 50, 70]
    assert len(whole[1]) == 9
    for first in range(1, len(given)):
        assert decoded(given[:first], given[first:]) == whole, first
        for second in range(first + 1, len(given)):
            assert decoded(given[:first], given[first:second], given[second:]) == whole, (first, second)


# ---------------------------------------------------------------- batches


def _batch(decoder: Decoder, *commits: int) -> changes.Batch:
    given = []
    for number in commits:
        given += [begin(number), _items(), insert(ITEMS, str(number), "a", "b"), commit(number, number + 5)]
    return decoder.feed(given)


def test_what_was_seen_is_left_out_by_commit(decoder: Decoder) -> None:
    batch = _batch(decoder, 10, 15, 20)
    left = behind(batch, 15)
    assert left.transactions["commit"].to_pylist() == [20]
    assert [(row["tx"], row["n0"]) for row in _rows(left)] == [(0, "20")]
    assert behind(batch, 9) is batch
    # The end of the first is the commit of the second, which must not be taken for seen.
    assert behind(batch, 10).transactions["commit"].to_pylist() == [15, 20]
    assert behind(batch, 20).tables == ()


def test_batches_are_joined_with_their_transactions_numbered_on(decoder: Decoder) -> None:
    whole = joined([_batch(decoder, 10, 20), _batch(decoder, 30)])
    assert whole.transactions["commit"].to_pylist() == [10, 20, 30]
    assert [(row["tx"], row["n0"]) for row in _rows(whole)] == [(0, "10"), (1, "20"), (2, "30")]
    assert len(whole.tables) == 1


def _types(rows: pa.Table) -> Mapping[str, pa.DataType]:
    return {field.name: field.type for field in rows.schema}


def test_every_column_of_changes_has_its_type(decoder: Decoder) -> None:
    given = [begin(20), _items(), update(ITEMS, "2", "a", UNCHANGED, key=["1", None, None]), commit(10, 20)]
    [table] = decoder.feed(given).tables
    texts = dict.fromkeys(("n0", "n1", "n2", "o0"), changes.VALUE)
    assert _types(table.rows) == {
        "tx": pa.int32(),
        "seq": pa.int64(),
        "op": pa.int8(),
        "u2": pa.bool_(),
        **texts,
    }
