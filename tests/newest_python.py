"""The newest Python that PySpark supports: a pinned build, fetched once, unpacked once.

`python -m tests.newest_python` prints the interpreter's path, which `make unit-newest` builds its
environment on. `newest_python.toml` beside this file names the builds by platform. Nothing of the
machine's own Python is touched.
"""

from __future__ import annotations

import os
import platform
import tempfile
import zipfile
from pathlib import Path

from penstock.cache import cache_folder
from penstock.engine.jars import Jar, fetch, read_lock

LOCK = Path(__file__).with_suffix(".toml")


def pinned() -> Jar:
    here = f"{platform.system().lower()}-{platform.machine().lower()}"
    return next(jar for jar in read_lock(LOCK.read_text()) if jar.feature == here)


def version(jar: Jar) -> str:
    """`3.14` of a build of 3.14.3."""
    return ".".join(jar.coordinates.split(":")[2].split(".")[:2])


def installed() -> Path:
    """The interpreter. Two processes may ask for it at once."""
    jar = pinned()
    folder = cache_folder() / "python" / f"{version(jar)}-{jar.sha256[:12]}"
    interpreter = folder / "bin" / f"python{version(jar)}"
    if folder.is_dir():
        return interpreter
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".unpack-") as work:
        with zipfile.ZipFile(fetch(jar, Path(work))) as packed:
            [program] = [name for name in packed.namelist() if name.endswith(f"/bin/{interpreter.name}")]
            prefix = program.removesuffix(f"bin/{interpreter.name}")
            # Python's own test suite is half of the files.
            packed.extractall(
                Path(work), [name for name in packed.namelist() if name.startswith(prefix) and "/test/" not in name]
            )
        fresh = Path(work) / prefix
        (fresh / "bin" / interpreter.name).chmod(0o755)
        # Renamed in one step: whoever sees the name sees the whole installation.
        try:
            os.rename(fresh, folder)
        except OSError:
            if not folder.is_dir():
                raise
            # Another process was first, with the very same files.
    return interpreter


if __name__ == "__main__":
    print(installed())
