"""Options of a replication that cannot be carried out: refused where the project is loaded, each with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.project import load

HEAD = """[connections.shop]
type = "postgres"
dsn = "postgresql://x@h/db"
[connections.mirror]
type = "sqlite"
path = "x.sqlite"
[replications.r]
source = "shop"
target = "mirror"
tables = ["public.*"]
"""
LINE, SECTION = 11, 7  # where the option stands, and the replication


@pytest.mark.parametrize(
    ("option", "line", "said"),
    [
        ("flsh_interval_ms = 5", LINE, "unknown key 'flsh_interval_ms'"),
        ("flush_interval_ms = 0", LINE, "greater than or equal to 1"),
        ("flush_rows = -1", LINE, "greater than or equal to 1"),
        ("apply_in_driver_rows = -1", LINE, "greater than or equal to 0"),
        ("parallel = 0", LINE, "greater than or equal to 1"),
        ('on_drop = "maybe"', LINE, "'keep' or 'drop'"),
        ('what = "all"', LINE, "'both', 'copy' or 'changes'"),
        ('slot = "Bad-Name"', LINE, "pattern"),
        ('copy_from = "nowhere"', LINE, "a connection that does not exist: 'nowhere'"),
        ('snapshot_max_age = "soon"', LINE, "no duration"),
        ('snapshot_max_age = "0s"', LINE, "may not last"),
        ('target_name = "{tabel}"', LINE, "{tabel} is neither"),
        ('buffer = {format = "csv"}', LINE, "'arrow' or 'parquet'"),
        ('buffer = {max_bytes = "-1GB"}', LINE, "no size"),
        ('buffer = {max_bytes = "0"}', LINE, "never takes a change"),
        ('buffer = {retain = "soon"}', LINE, "no duration"),
        ("buffer = {segment_ms = 0}", LINE, "greater than or equal to 1"),
        ('buffer = {path = "s3://bucket/log"}', LINE, "no folder of this machine"),
        ('options = {"public.t" = {inclde = ["a"]}}', LINE, "inclde"),
        ('options = {"public.t" = {include = ["a"], exclude = ["b"]}}', LINE, "exclude each other"),
        ('options = {"public.t" = {rename = {a = "x", b = "x"}}}', LINE, "two columns would be called x"),
        ('options = {"public.t" = {exclude = ["a"], rename = {a = "x"}}}', LINE, "renamed and excluded"),
        ('deletes = "soft"\nmetadata_columns = false', SECTION, "marks rows in a column"),
        ('publication = "theirs"\noptions = {"public.t" = {where = "id > 1"}}', SECTION, "says which columns and rows"),
    ],
)
def test_an_option_that_cannot_be_carried_out_is_refused(tmp_path: Path, option: str, line: int, said: str) -> None:
    (tmp_path / "penstock.toml").write_text(f"{HEAD}{option}\n")
    with pytest.raises(ConfigError) as caught:
        load(tmp_path)
    assert f"penstock.toml:{line}: " in str(caught.value)
    assert said in str(caught.value)
