"""How Penstock's memory grows with the rows: PSS of driver, JVM and Python workers together.

Every figure comes from a new process with one run in it, so that no run inherits another's heap. Memory does not
depend on what else the machine does; the seconds do, and are told for the order of them alone.
"""

from __future__ import annotations

from benchmarks.ends import KEYED, NAMES, End
from benchmarks.measure import Sample
from benchmarks.results import Goal, Section
from benchmarks.scenarios import Scale
from benchmarks.sides import Side, SideFailed
from benchmarks.stand import DRIVER_MEMORY, Stand, say

GROWTH_LIMIT = 0.15
MODES = ("append", "truncate", "merge")
ABOUT = f"Peak PSS of driver, JVM (-Xmx{DRIVER_MEMORY}) and Python workers together, one run in a new process each."


def memory(stand: Stand, scale: Scale) -> list[Section]:
    """Every mode into every target, out of Postgres."""
    sizes = (scale.small_rows, scale.large_rows)
    _seed(stand, sizes)
    targets = [End(stand, kind, "made") for kind in NAMES]
    for target in targets:
        target.declare()
    side = stand.side("penstock")
    section = Section(f"{sizes[0]:,} and {sizes[1]:,} rows out of Postgres", ABOUT, lines=[_header(sizes)])
    changed = Section(
        "A merge that changes every row",
        "The same table merged again after every row of the source has changed; peak PSS and seconds.",
        lines=[_header(sizes)],
    )
    source = End(stand, "postgres", "kept")
    for target in targets:
        for mode in MODES if target.kind in KEYED else MODES[:2]:
            _measure(section, f"{mode} into {target.kind}", stand, side, [source, source], target, mode, sizes)
        if target.kind in KEYED:
            say(f"memory, merge of all changed rows into {target.kind}")
            again = [_changed(stand, side, source, target, rows) for rows in sizes]
            _tell(changed, f"into {target.kind}", again, limited=False)
        for rows in sizes:
            target.clear(rows)
    side.stop()
    return [section, changed]


def out_of(kind: str, stand: Stand, scale: Scale) -> list[Section]:
    """One kind of table into every kind: what a load out of Postgres has left is read."""
    sizes = (scale.small_rows, scale.large_rows)
    _seed(stand, sizes)
    side = stand.side("penstock")
    section = Section(f"{sizes[0]:,} and {sizes[1]:,} rows out of {kind}", ABOUT, lines=[_header(sizes)])
    # A database for each size: of a small part of a file, SQLite's reader makes no copy, and one task reads it.
    postgres, sources = End(stand, "postgres", "kept"), [End(stand, kind, f"kept_{rows}") for rows in sizes]
    targets = [End(stand, other, "made") for other in NAMES]
    for end in (*sources, *targets):
        end.declare()
    for source, rows in zip(sources, sizes, strict=True):
        made = _load(stand, side, postgres, source, "append", rows)
        if isinstance(made, str):
            raise SideFailed(f"nothing can be read out of {kind}: {made}")
    for target in targets:
        _measure(section, f"{kind} into {target.kind}", stand, side, sources, target, "append", sizes)
        for rows in sizes:
            target.clear(rows)
    side.stop()
    return [section]


def _seed(stand: Stand, sizes: tuple[int, ...]) -> None:
    for rows in sizes:
        stand.seed(f"public.orders_{rows}", rows)


def _header(sizes: tuple[int, int]) -> list[str]:
    return ["load", f"{sizes[0]:,} rows", f"{sizes[1]:,} rows", "growth", "seconds"]


def _measure(
    section: Section,
    label: str,
    stand: Stand,
    side: Side,
    sources: list[End],
    target: End,
    mode: str,
    sizes: tuple[int, int],
) -> None:
    say(f"memory, {label}")
    samples = [_load(stand, side, source, target, mode, rows) for source, rows in zip(sources, sizes, strict=True)]
    _tell(section, label, samples, limited=True)


def _load(stand: Stand, side: Side, source: End, target: End, mode: str, rows: int) -> Sample | str:
    target.clear(rows)
    name = f"{source.connection}_{target.connection}_{mode}_{rows}"
    more = 'keys = ["id"]' if mode == "merge" else ""
    stand.pipeline(
        name, source.table(rows), f"{target.connection}.{target.table(rows)}", mode, source=source.connection, more=more
    )
    return _run(stand, side, name, target, rows)


def _changed(stand: Stand, side: Side, source: End, target: End, rows: int) -> Sample | str:
    first = _run(stand, side, f"{source.connection}_{target.connection}_merge_{rows}", target, rows)
    if isinstance(first, str):
        return first
    if target.kind == "postgres":
        stand.vacuum(target.table(rows))
    stand.change(f"public.orders_{rows}", one_in=1, turn=0)
    return _run(stand, side, f"{source.connection}_{target.connection}_merge_{rows}", target, rows)


def _run(stand: Stand, side: Side, pipeline: str, target: End, rows: int) -> Sample | str:
    """The sample, or why there is none."""
    side.stop()
    try:
        sample = side.run({"pipeline": pipeline}, watched=True)
    except SideFailed as error:
        say(f"  {pipeline}: {error}")
        return str(error)
    if not target.holds(stand.figures(f"public.orders_{rows}"), rows):
        return "the target does not hold every row as it was"
    parts = ", ".join(f"{kind} {mib:.0f}" for kind, mib in sample.peak_of.items())
    say(f"  {pipeline}: {sample.peak_mib:.0f} MiB ({parts}), {sample.seconds:.1f} s")
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
