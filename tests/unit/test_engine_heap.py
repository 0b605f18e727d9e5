"""How much of the machine's memory the JVM is let have, and by which collector."""

from __future__ import annotations

import pytest

from penstock.engine import heap


def test_a_small_heap_on_few_cores_gives_back_what_it_frees() -> None:
    made = heap.options("1g", cores=2)
    assert made[:3] == ["-Xmx1g", "-Xms192m", "-Xmn48m"]
    assert "-XX:+UseSerialGC" in made
    assert "-XX:MaxHeapFreeRatio=40" in made
    assert "-XX:+UseParallelGC" not in made


@pytest.mark.parametrize(("memory", "cores", "young"), [("8g", 2, 48), ("8g", 16, 384), ("1g", 16, 341)])
def test_a_large_heap_or_many_cores_are_collected_by_many_threads(memory: str, cores: int, young: int) -> None:
    made = heap.options(memory, cores)
    assert f"-Xmn{young}m" in made
    assert "-XX:+UseParallelGC" in made
    assert "-XX:+UseSerialGC" not in made


def test_what_is_young_leaves_room_for_what_is_old() -> None:
    assert heap.options("96m", cores=2)[:3] == ["-Xmx96m", "-Xms96m", "-Xmn32m"]


@pytest.mark.parametrize(
    ("memory", "size"), [("512m", 1 << 29), ("1g", 1 << 30), ("1gb", 1 << 30), ("64k", 1 << 16), ("1t", 1 << 40)]
)
def test_memory_is_read_as_spark_reads_it_and_told_as_java_does(memory: str, size: int) -> None:
    assert heap.in_bytes(memory) == size
    assert heap.options(memory, cores=2)[0] == f"-Xmx{memory.removesuffix('b')}"
