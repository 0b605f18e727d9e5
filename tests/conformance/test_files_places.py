"""Where a table of files is: one place under one name, and no file of it left out without a word."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock.backends.files import listing
from penstock.backends.files.listing import Listing
from penstock.backends.files.manifest import Chain
from penstock.backends.files.place import Found
from penstock.errors import Busy, PlanRefused, SourceError, SourceMoved
from penstock.observe.failpoints import ENV
from penstock.run import pipeline as runs
from tests.conformance.files_harness import RUN, FilesHarness
from tests.conformance.files_lake import Lake
from tests.conformance.harness import Flow
from tests.conformance.test_files_commit import chain, data_files, folder, lake, made, rows


@pytest.fixture
def parquet(tmp_path: Path) -> Flow:
    return made(tmp_path, "parquet")


# ---------------------------------------------------------------- links


def test_a_linked_table_is_the_table_that_it_leads_to(parquet: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "ATTEMPTS", 1)
    parquet.run()
    folder(parquet, "other_name").symlink_to("items")
    parquet.run(target="to.main.other_name")
    assert len(rows(parquet)) == 6
    assert chain(parquet).last is not None
    back = Flow(parquet.target, parquet.target, parquet.root)
    with pytest.raises(PlanRefused, match="the source overlaps its target"):
        back.run(table="main.items", target="to.main.other_name")

    def again(*_: object, **__: object) -> Any:
        with pytest.raises(Busy):
            parquet.run(target="to.main.items")
        raise SourceError("done")

    with monkeypatch.context() as patched:
        patched.setattr("penstock.backends.files.write.FilesLoad.commit", again)
        with pytest.raises(SourceError, match="done"):
            parquet.run(target="to.main.other_name")
    assert len(rows(parquet)) == 6


@pytest.mark.parametrize("table", ["linked", "linked.inner", '"linked/a.csv"'])
def test_a_table_that_leads_out_of_the_connections_path_is_refused(lake: Lake, table: str) -> None:
    lake.put("../outside/inner/a.csv", "a\n1\n")
    lake.put("../outside/a.csv", "a\n1\n")
    (lake.root / "linked").symlink_to(lake.root.parent / "outside")
    with pytest.raises(PlanRefused, match="leads out of the connection's path"):
        lake.source(table)


def test_a_pattern_goes_through_no_link(lake: Lake) -> None:
    lake.put("../outside/a.csv", "a\n1\n")
    lake.put("t/a.csv", "a\n1\n")
    (lake.root / "linked").symlink_to(lake.root.parent / "outside")
    with pytest.raises(PlanRefused, match="linked is a link to a directory"):
        lake.read('"*/a.csv"')
    assert lake.read('"t/*.csv"') == [{"a": "1"}]
    (lake.root / "t" / "b.csv").symlink_to("nowhere.csv")
    with pytest.raises(PlanRefused, match=r"b\.csv is a link to nothing"):
        lake.read('"t/*.csv"')


def test_nothing_is_removed_behind_a_folder_that_has_become_a_link(
    parquet: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet.run(partition_by=["id"])
    monkeypatch.setenv(ENV, "commit.done=raise")
    parquet.run(mode="truncate", partition_by=["id"])
    monkeypatch.delenv(ENV)
    moved = parquet.root / "elsewhere"
    (folder(parquet) / "id=1").rename(moved)
    (folder(parquet) / "id=1").symlink_to(moved)
    [theirs] = moved.iterdir()
    chain(parquet).publish()
    assert theirs.exists()


# ---------------------------------------------------------------- files that no manifest names


def test_files_of_a_table_that_was_copied_without_its_manifests_are_refused(parquet: Flow) -> None:
    parquet.run()
    shutil.copytree(folder(parquet), folder(parquet, "copy"), ignore=shutil.ignore_patterns("_penstock"))
    back = Flow(parquet.target, parquet.source, parquet.root)
    with pytest.raises(PlanRefused, match="holds files that Penstock has written"):
        back.run(table="main.copy", target="to.main.copy")
    with pytest.raises(PlanRefused, match="holds files that Penstock has written"):
        parquet.run(target="to.main.copy")


def test_a_file_called_as_ours_that_no_manifest_names_is_told(parquet: Flow) -> None:
    parquet.run()
    [name] = data_files(parquet)
    shutil.copy(folder(parquet) / name, folder(parquet) / name.replace("-00000-", "-00001-"))
    assert len(rows(parquet)) == 3
    found = Listing.of(lake(parquet).config, chain(parquet).place, RUN)
    assert any("1 files are named as Penstock's are, in no manifest" in note for note in found.notes)


def test_a_folder_without_a_file_of_the_format_has_no_data(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "files")
    lake.put("t/x.dat", "a\n1\n")
    with pytest.raises(SourceError, match=r"there is no data in .*its files are not csv"):
        lake.source("t", format="csv")


@pytest.mark.parametrize("file_format", ["csv", None])
def test_a_folder_that_holds_no_data_yet_is_a_new_table(tmp_path: Path, file_format: str | None) -> None:
    flow = made(tmp_path, "csv")
    harness = FilesHarness(tmp_path / "lake", "csv")
    harness.options = lambda: {"type": "files", "path": str(tmp_path / "lake"), "format": file_format}  # type: ignore[method-assign]  # or none
    flow.target = harness
    (tmp_path / "lake" / "main" / "items").mkdir(parents=True)
    (tmp_path / "lake" / "main" / "items" / "readme.md").write_text("of the table")
    flow.run(mode="truncate")
    assert len(rows(flow)) == 3
    assert (tmp_path / "lake" / "main" / "items" / "readme.md").exists()


# ---------------------------------------------------------------- loads that come in between


def test_a_single_file_is_read_by_its_manifest_before_it_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = made(tmp_path, "csv")
    options = {"target": 'to.main."out.csv"', "mode": "truncate"}
    flow.run(**options)
    flow.source.execute("insert into items values (4, 'd', 4)")
    monkeypatch.setenv(ENV, "commit.done=raise")
    flow.run(**options)
    monkeypatch.delenv(ENV)
    assert (tmp_path / "lake" / "main" / "out.csv").read_text().count("\n") == 4
    assert lake(flow).table("out.csv").column("id").to_pylist() == [1, 2, 3, 4]
    flow.run(**options)
    assert lake(flow).table("out.csv").column("id").to_pylist() == [1, 2, 3, 4]
    assert lake(flow).leftovers() == []


@pytest.mark.parametrize("target", ['to.main."out.csv"', "to.main.out"])
def test_a_load_between_the_manifests_and_the_files_is_not_taken_for_somebody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    flow = made(tmp_path, "csv")
    options = {"target": target, "mode": "truncate"}
    flow.run(**options)
    flow.source.execute("insert into items values (4, 'd', 4)")
    whole, loads = listing.found_files, [True]

    def late(place: Any) -> list[Found]:
        if loads:
            loads.clear()
            flow.run(**options)
        return whole(place)

    monkeypatch.setattr(listing, "found_files", late)
    found = lake(flow).table(target.split("main.")[1].strip('"')).column("id")
    assert found.to_pylist() == [1, 2, 3, 4]


def test_a_file_that_vanishes_while_it_is_listed_is_told(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    path = lake.put("t/a.csv", "a\n1\n")
    lake.put("t/b.csv", "a\n1\n")

    def gone(place: Any) -> Chain:
        monkeypatch.setattr("penstock.backends.files.place.Mark.of", lambda _: path.unlink() or path.stat())
        return Chain(place)

    monkeypatch.setattr(Chain, "read", gone)
    with pytest.raises(SourceMoved, match=r"a\.csv was removed while the table's files were listed"):
        lake.source("t")


@pytest.mark.parametrize(
    ("pattern", "target", "hit"),
    [
        ('"**/*.csv"', 'to."deep/er/items"', True),
        ('"**/*.csv"', "to.items", True),
        ('"*/*.csv"', "to.items", True),
        ('"*/*/*.csv"', "to.items", True),  # in folders by value
        ('"*/*.csv"', 'to."deep/er/items/x/y/z"', False),
        ('"mine*/*.csv"', "to.items", False),
        ('"*.csv"', 'to."items.csv"', True),
    ],
)
def test_a_pattern_that_takes_what_will_be_written_overlaps(
    tmp_path: Path, pattern: str, target: str, hit: bool
) -> None:
    harness = FilesHarness(tmp_path / "lake", "csv")
    for name in ("mine/mine/a.csv", "mine/a.csv", "a.csv"):
        (tmp_path / "lake" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lake" / name).write_text("a\n1\n")
    flow = Flow(harness, harness, tmp_path)
    if hit:
        with pytest.raises(PlanRefused, match="the source overlaps its target"):
            flow.run(table=pattern, target=target, mode="truncate")
    else:
        assert flow.run(table=pattern, target=target, mode="truncate").rows == 1
