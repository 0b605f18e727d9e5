"""How Penstock's memory grows with the rows: PSS of driver, JVM and Python workers together.

Every figure comes from a new process with one run in it, so that no run inherits another's heap.
"""

from __future__ import annotations

from benchmarks import dataset
from benchmarks.measure import Sample
from benchmarks.results import Goal, Section
from benchmarks.scenarios import Scale
from benchmarks.sides import Side, SideFailed
from benchmarks.stand import DRIVER_MEMORY, TARGET, Stand, say

GROWTH_LIMIT = 0.15
MODES = ("append", "truncate", "merge")


def memory(stand: Stand, scale: Scale) -> list[Section]:
    sizes = (scale.small_rows, scale.large_rows)
    tables = {rows: f"public.orders_{rows}" for rows in sizes}
    for rows, table in tables.items():
        stand.seed(table, rows)
    stand.execute("create schema memory")
    for rows, table in tables.items():
        for mode in MODES:
            more = 'keys = ["id"]' if mode == "merge" else ""
            stand.pipeline(f"duckdb_{mode}_{rows}", table, "duck.main.orders", mode, more=more)
            stand.pipeline(f"postgres_{mode}_{rows}", table, f"warehouse.memory.{mode}_{rows}", mode, more=more)
    side = stand.side("penstock")
    header = ["load", f"{sizes[0]:,} rows", f"{sizes[1]:,} rows", "growth", "seconds"]
    section = Section(
        f"Memory, {sizes[0]:,} and {sizes[1]:,} rows",
        f"Peak PSS of driver, JVM (-Xmx{DRIVER_MEMORY}) and Python workers together, one run in a new process each.",
        lines=[header],
    )
    changed = Section(
        "A merge that changes every row",
        "The same table merged again after every row of the source has changed; peak PSS and seconds.",
        lines=[header],
    )
    for target in ("duckdb", "postgres"):
        for mode in MODES:
            say(f"memory, {mode} into {target}")
            samples = [_first(stand, side, target, mode, rows, table) for rows, table in tables.items()]
            _tell(section, f"{mode} into {target}", samples, limited=True)
            if mode == "merge":
                say(f"memory, merge of all changed rows into {target}")
                again = [_changed(stand, side, target, rows, table) for rows, table in tables.items()]
                _tell(changed, f"into {target}", again, limited=False)
    side.stop()
    return [section, changed]


def _first(stand: Stand, side: Side, target: str, mode: str, rows: int, table: str) -> Sample | str:
    if target == "duckdb":
        for found in stand.project.glob("penstock*.duckdb*"):
            found.unlink()
    return _run(stand, side, f"{target}_{mode}_{rows}", target, mode, table)


def _changed(stand: Stand, side: Side, target: str, rows: int, table: str) -> Sample | str:
    name = f"{target}_merge_{rows}"
    if target == "duckdb":
        for found in stand.project.glob("penstock*.duckdb*"):
            found.unlink()
        first = _run(stand, side, name, target, "merge", table)
        if isinstance(first, str):
            return first
    else:
        stand.vacuum(f"memory.merge_{rows}")
    stand.change(table, one_in=1, turn=0)
    return _run(stand, side, name, target, "merge", table)


def _run(stand: Stand, side: Side, pipeline: str, target: str, mode: str, table: str) -> Sample | str:
    """The sample, or why there is none."""
    side.stop()
    try:
        sample = side.run({"pipeline": pipeline})
        figures = stand.figures(table)
        if target == "duckdb":
            check = dataset.check_duckdb(figures, stand.duckdb, "main.orders")
        else:
            check = dataset.check_postgres(figures, stand.dsn(TARGET), f"memory.{mode}_{pipeline.rsplit('_', 1)[1]}")
        if not check.complete or check.differing:
            return "the target does not hold every row"
    except SideFailed as error:
        say(f"  {pipeline}: {error}")
        return str(error)
    say(f"  {pipeline}: {sample.peak_mib:.0f} MiB, {sample.seconds:.1f} s")
    return sample


def _tell(section: Section, label: str, samples: list[Sample | str], *, limited: bool) -> None:
    figures = [sample for sample in samples if isinstance(sample, Sample)]
    shown = [f"{s.peak_mib:.0f} MiB" if isinstance(s, Sample) else f"failed: {s}" for s in samples]
    if len(figures) < len(samples):
        section.lines.append([label, *shown, "", ""])
        if limited:
            section.goals.append(Goal(f"memory, {label}", "< 15 %", "not measured", None))
        return
    growth = figures[1].peak_mib / figures[0].peak_mib - 1
    times = " / ".join(f"{sample.seconds:.1f}" for sample in figures)
    section.lines.append([label, *shown, f"{growth:+.0%}", times])
    if limited:
        section.goals.append(Goal(f"memory, {label}", "< 15 %", f"{growth:+.0%}", growth < GROWTH_LIMIT))
