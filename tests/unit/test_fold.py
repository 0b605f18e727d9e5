"""The fold against a plain model: changes applied one by one to a dictionary give the same rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.backends import changes
from penstock.backends.changes import ChangedColumn, TableVersion
from penstock.replicate.fold import fold
from penstock.schema import TableName

KEY = TableVersion(
    TableName("public", "t"),
    (ChangedColumn("id", "postgres:bigint", True), ChangedColumn("a", "postgres:text", False),
     ChangedColumn("b", "postgres:text", False)),
    "key",
)  # fmt: skip

Row = tuple[str | None, str | None]


@st.composite
def histories(draw: st.DrawFn) -> tuple[dict[str, Row], list[dict[str, Any]], dict[str, Row]]:
    """Rows of a table, changes that a source could send of it, and the rows afterwards."""
    keys = "abcd"
    before: dict[str, Row] = {key: (f"{key}1", f"{key}2") for key in draw(st.sets(st.sampled_from(keys)))}
    now = dict(before)
    sent: list[dict[str, Any]] = []
    for number in range(draw(st.integers(0, 12))):
        here, free = sorted(now), sorted(set(keys) - set(now))
        options = ["truncate"] if draw(st.integers(0, 9)) == 0 else []
        options += ["insert"] * bool(free) + ["update", "delete"] * bool(here)
        options += ["move"] * bool(here and free)
        kind = draw(st.sampled_from(options or ["truncate"]))
        value = (draw(st.sampled_from([None, f"x{number}"])), f"y{number}")
        change: dict[str, Any] = {"tx": number // 3, "seq": number}
        if kind == "truncate":
            now = {}
            change |= {"op": changes.TRUNCATE}
        elif kind == "insert":
            key = draw(st.sampled_from(free))
            now[key] = value
            change |= {"op": changes.INSERT, "n0": key, "n1": value[0], "n2": value[1]}
        elif kind == "delete":
            key = draw(st.sampled_from(here))
            del now[key]
            change |= {"op": changes.DELETE, "o0": key}
        else:
            key = draw(st.sampled_from(here))
            target = draw(st.sampled_from(free)) if kind == "move" else key
            unsent = draw(st.booleans())
            old = now.pop(key)
            now[target] = (value[0], old[1] if unsent else value[1])
            change |= {"op": changes.UPDATE, "n0": target, "n1": value[0], "n2": None if unsent else value[1]}
            change |= {"u2": unsent} | ({"o0": key} if target != key else {})
        sent.append(change)
    return before, sent, now


def _table(sent: list[dict[str, Any]]) -> pa.Table:
    kinds = {"tx": pa.int32(), "seq": pa.int64(), "op": pa.int8(), "u2": pa.bool_()}
    names = ("tx", "seq", "op", "n0", "n1", "n2", "o0", "u2")
    return pa.table({name: pa.array([c.get(name) for c in sent], kinds.get(name, changes.VALUE)) for name in names})


@given(histories(), st.randoms())
def test_the_fold_is_what_the_changes_come_to(
    history: tuple[dict[str, Row], list[dict[str, Any]], dict[str, Row]], shuffled: Any
) -> None:
    before, sent, after = history
    given_order = list(sent)
    shuffled.shuffle(given_order)
    found = fold(KEY, _table(given_order))
    target = {} if found.truncated else dict(before)
    upserts = found.upserts.to_pylist()
    filled = []
    for row in upserts:
        second = target[row["k0"]][1] if row.get("u2") else row["n2"]
        filled.append((row["n0"], (row["n1"], second)))
    for row in found.deletes.to_pylist():
        assert row["k0"] in target or found.truncated
        target.pop(row["k0"], None)
    # What has moved away from a key that is not taken again is deleted there.
    target |= dict(filled)
    assert len(filled) == len({key for key, _ in filled})
    assert target == after
