"""Tells one process from another that was later given the same pid."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

_GONE = frozenset("ZX")  # dead, though nobody has collected it yet
_STATE, _START = 0, 19  # fields of /proc/<pid>/stat, counted after the name


def start_of(pid: int) -> str | None:
    """A text that no other process of this machine shares; None if there is no such process."""
    proc = Path("/proc")
    if (proc / "self" / "stat").exists():
        try:
            stat = (proc / str(pid) / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        fields = stat.rpartition(")")[2].split()  # the name may hold spaces and brackets
        return None if fields[_STATE] in _GONE else f"{_boot()}:{fields[_START]}"
    told = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = told.stdout.strip().partition(" ")
    return started.strip() if started and state[:1] not in _GONE else None


@cache
def _boot() -> str:
    """Ticks are counted from the boot, so the boot belongs to them."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
