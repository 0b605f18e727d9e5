"""What a manifest names is whole and on the disk before it counts: rows, files, and every folder on the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.backends.files import parquet, write
from penstock.errors import StagingLost
from penstock.run import pipeline as runs
from tests.conformance.test_files_commit import made


@pytest.mark.parametrize("target", ["to.main.items", 'to.main."items.parquet"'])
def test_rows_that_a_parquet_file_has_lost_stop_the_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.setattr(runs, "ATTEMPTS", 1)
    flow = made(tmp_path, "parquet")
    whole = parquet.Writer.write
    if target.endswith('"'):
        # Lost while the parts are put together.
        joined = parquet.copy_parts
        monkeypatch.setattr(write.parquet, "copy_parts", lambda parts, *rest: joined(parts[:0], *rest))
    else:
        monkeypatch.setattr(parquet.Writer, "write", lambda self, batch: whole(self, batch.slice(1)))
    with pytest.raises(StagingLost, match="rows, and 3 were staged"):
        flow.run(target=target, mode="truncate")
    assert not flow.target.has_table("items")
    assert flow.target.leftovers() == []


@pytest.mark.parametrize("target", ["to.new.deep", 'to.new."deep.csv"'])
def test_every_folder_on_the_way_to_a_file_is_synced_before_its_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    flow = made(tmp_path, "csv")
    done: list[str] = []
    sync, link, replace = os.fsync, os.link, os.replace

    def synced(descriptor: int) -> None:
        done.append("sync " + os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    def linked(source: Path, target: Path) -> None:
        done.append(f"link {target}")
        link(source, target)

    def moved(source: Path, target: Path) -> None:
        done.append(f"move {target}")
        replace(source, target)

    single = target.endswith('"')
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", synced)
        patched.setattr(os, "link", linked)
        patched.setattr(os, "replace", moved)
        flow.run(target=target, mode="truncate", partition_by=[] if single else ["id", "name"])
    root = tmp_path / "lake" / "new"
    meta = root / "_penstock" / "deep.csv" if single else root / "deep" / "_penstock"
    committed = done.index(f"link {meta}/00000001.json")
    before, after = done[:committed], done[committed:]
    on_the_way = [tmp_path, tmp_path / "lake", root, meta.parent, meta, meta / "staging"]
    runs_folder = next(line for line in before if line.startswith(f"sync {meta}/staging/"))
    staged = Path(*Path(runs_folder.removeprefix("sync ")).parts[: len(meta.parts) + 2])
    on_the_way += [staged] if single else [staged, staged / "id=1", staged / "id=1" / "name=a"]
    assert [one for one in on_the_way if f"sync {one}" not in before] == []
    finals = [root] if single else [root / "deep", root / "deep" / "id=1", root / "deep" / "id=1" / "name=a"]
    last = max(place for place, line in enumerate(after) if line.startswith(f"move {root}"))
    assert [one for one in finals if f"sync {one}" not in after[last:]] == []
