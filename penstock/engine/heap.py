"""How the JVM of a session uses the memory that it may have: what it holds stays near what it needs.

Rows pass through it in small batches, so that most of what lies in its heap is free: Java's defaults take the
whole of `-Xmx` before they look for that. Measured on two cores, 8M rows from ORC into ORC: a peak of 1,230 MiB
with them, of 850 MiB with these, in the same time.
"""

from __future__ import annotations

import os
import re

MIB = 1024 * 1024
_UNITS = {"k": 1024, "m": MIB, "g": 1024 * MIB, "t": 1024 * 1024 * MIB}

# What a task makes between two collections. Less, and batches that are still in use would be kept for long.
YOUNG_PER_CORE = 24 * MIB
LEAST_YOUNG = 48 * MIB
# Spark, its classes and two tasks at work fit into this: a start need not collect to make room.
AT_START = 192 * MIB
# One thread collects a heap of this size in milliseconds, and gives back what it frees; with more cores,
# or where more was asked for, as many threads do, and the heap keeps what it has.
SMALL_HEAP = 1024 * MIB
FEW_CORES = 4

# A third of what is in use may be free before a collection, and two fifths of the heap after one.
FRUGAL = ["-XX:+UseSerialGC", "-XX:MinHeapFreeRatio=10", "-XX:MaxHeapFreeRatio=40"]
# The collector may take a tenth of the time instead of a hundredth before it takes more of the machine's memory.
ROOMY = ["-XX:+UseParallelGC", "-XX:GCTimeRatio=9"]

# Outside of the heap: a thread keeps the buffer of its largest read for ever, which for ORC is a whole stripe;
# and the optimising compiler takes up to 110 MiB for one of the large methods that Spark makes of a query.
OUTSIDE = ["-Djdk.nio.maxCachedBufferSize=262144", "-XX:MaxNodeLimit=30000", "-XX:NodeLimitFudgeFactor=1200"]


def options(memory: str, cores: int | None = None) -> list[str]:
    """The options for a JVM that may have `memory`, as `[spark] driver_memory` writes it."""
    most = in_bytes(memory)
    cores = cores or os.cpu_count() or 1
    young = min(max(LEAST_YOUNG, cores * YOUNG_PER_CORE), most // 3)
    frugal = most <= SMALL_HEAP and cores <= FEW_CORES
    return [
        f"-Xmx{memory.removesuffix('b')}",  # Java knows no 1gb
        f"-Xms{min(AT_START, most) // MIB}m",
        f"-Xmn{young // MIB}m",
        *(FRUGAL if frugal else ROOMY),
        *OUTSIDE,
    ]


def in_bytes(memory: str) -> int:
    found = re.fullmatch(r"(\d+)([kmgt])b?", memory)
    if found is None:  # the project's model has checked it
        raise ValueError(memory)
    return int(found[1]) * _UNITS[found[2]]
