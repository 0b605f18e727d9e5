"""How the files of a table are shared out among tasks: by row groups, by lines, or whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from penstock.backends.files import csv, parquet
from penstock.backends.files.pieces import Entry, Piece
from penstock.backends.files.streams import UTF8

# Below this, starting a task costs more than it saves.
MIN_PART_BYTES = 8 * 1024 * 1024


def share(entries: Sequence[Entry], want: int) -> tuple[list[tuple[Piece, ...]], str]:
    """The files in at most `want` parts of about the same size."""
    total = sum(entry.mark.size for entry in entries)
    parts = max(1, min(want, total // MIN_PART_BYTES))
    if parts == 1:
        whole = tuple(Piece(entry) for entry in entries)
        return [whole] if whole else [], f"one partition: {len(entries)} files, {total:,} bytes"
    goal = total / parts
    shares: list[list[Piece]] = [[]]
    filled = 0.0
    for entry in entries:
        for piece, size in _units(entry, goal):
            if shares[-1] and filled + size / 2 > goal * len(shares) and len(shares) < parts:
                shares.append([])
            shares[-1].append(piece)
            filled += size
    made = [tuple(_merged(pieces)) for pieces in shares]
    return made, f"{len(made)} parts of {len(entries)} files, {total:,} bytes"


def _units(entry: Entry, goal: float) -> list[tuple[Piece, float]]:
    """The smallest pieces that a file may be cut into, with about their bytes."""
    size, dialect = entry.mark.size, entry.dialect
    whole: list[tuple[Piece, float]] = [(Piece(entry), float(size))]
    if size <= goal or (dialect.compression and dialect.format != "parquet"):
        return whole
    path = Piece(entry).path()
    if dialect.format == "parquet":
        groups = parquet.row_groups(path)
        unpacked = sum(weight for _, weight in groups) or 1
        return [
            (Piece(entry, (number,)), size * weight / unpacked) for number, (_, weight) in enumerate(groups)
        ] or whole
    if dialect.encoding.lower() not in UTF8:
        return whole  # the byte of a line's end may be a part of a character
    if dialect.format == "csv":
        free = entry.lines if entry.lines is not None else not csv.has_quoted_lines(path, dialect)
        if not free:
            return whole
    cuts = csv.cuts(path, size, max(2, round(size / MIN_PART_BYTES)))
    return [(Piece(entry, part=cut), float(cut[1] - cut[0])) for cut in cuts]


def _merged(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Neighbouring pieces of one file as one."""
    kept: Piece | None = None
    for piece in pieces:
        if kept is not None and kept.entry is piece.entry:
            if kept.groups is not None and piece.groups is not None:
                kept = replace(kept, groups=(*kept.groups, *piece.groups))
                continue
            if kept.part is not None and piece.part is not None:
                kept = replace(kept, part=(kept.part[0], piece.part[1]))
                continue
        if kept is not None:
            yield kept
        kept = piece
    if kept is not None:
        yield kept
