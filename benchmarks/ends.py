"""The ends of the memory benchmark: every kind of table on disk, each to be read, written, emptied and counted."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

import adbc_driver_sqlite.dbapi
import duckdb
import pyarrow.dataset as ds

from benchmarks import dataset
from benchmarks.stand import SOURCE, TARGET, Stand

FORMATS = ("parquet", "csv", "jsonl", "orc")
NAMES = ("postgres", "duckdb", "sqlite", *FORMATS)
KEYED = ("postgres", "duckdb", "sqlite")


@dataclass(frozen=True, slots=True)
class End:
    """One kind of table in one place: `kept` tables are read, those of `made` are written and emptied again."""

    stand: Stand
    kind: str
    place: str

    @property
    def connection(self) -> str:
        if self.kind == "postgres":
            return SOURCE if self.place == "kept" else TARGET
        return f"{self.place}_{self.kind}"

    def declare(self) -> None:
        if self.kind == "postgres":
            return
        path = f"{self.place}.{self.kind}" if self.kind in KEYED else self.place
        kind = self.kind if self.kind in KEYED else f'files"\nformat = "{self.kind}'
        self.stand.declare(f'\n[connections.{self.connection}]\ntype = "{kind}"\npath = "{path}"\n')

    def table(self, rows: int) -> str:
        """As a pipeline names it behind its connection."""
        if self.kind in KEYED:
            return f"{'public' if self.kind == 'postgres' else 'main'}.orders_{rows}"
        return f"{self.kind}_{rows}"

    def clear(self, rows: int) -> None:
        if self.kind == "postgres":
            self.stand.execute(f"drop table if exists {self.table(rows)}")
        elif self.kind in KEYED:
            for found in self.stand.project.glob(f"{self.place}.{self.kind}*"):
                found.unlink()
        else:
            shutil.rmtree(self.stand.project / self.place / self.table(rows), ignore_errors=True)

    def holds(self, figures: dataset.Figures, rows: int) -> bool:
        """Whether every row is there, unchanged by count and sums."""
        if self.kind == "postgres":
            found = dataset.check_postgres(figures, self.stand.dsn(TARGET), self.table(rows))
        elif self.kind == "duckdb":
            found = dataset.check_duckdb(figures, self.stand.project / f"{self.place}.duckdb", self.table(rows))
        elif self.kind == "sqlite":
            path = str(self.stand.project / f"{self.place}.sqlite")
            with (
                duckdb.connect() as session,
                adbc_driver_sqlite.dbapi.connect(path) as database,
                database.cursor() as cursor,
            ):
                cursor.execute(f"select * from orders_{rows}")
                session.register("found", cursor.fetch_record_batch())
                found = dataset.check_relation(figures, session, "found")
        else:
            with duckdb.connect() as session:
                found = dataset.check_relation(figures, session, self._relation(session, rows))
        return found.complete and not found.differing

    def _relation(self, session: duckdb.DuckDBPyConnection, rows: int) -> str:
        folder = self.stand.project / self.place / self.table(rows)
        if self.kind == "orc":
            session.register("found", ds.dataset(folder, format="orc"))
            # Moments are microseconds there: ORC readers disagree about zones.
            return "(select * replace (make_timestamptz(updated_at) as updated_at) from found)"
        texts = "{" + ", ".join(f"{name}: 'VARCHAR'" for name in dataset.COLUMNS) + "}"
        readers = {
            "parquet": f"read_parquet('{folder}/*.parquet')",
            "csv": f"read_csv('{folder}/*.csv', header = true, quote = '\"', columns = {texts})",
            "jsonl": f"read_json('{folder}/*.jsonl', format = 'newline_delimited', columns = {texts})",
        }
        return readers[self.kind]
