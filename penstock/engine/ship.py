"""What workers on other machines must import: Penstock itself, and the modules of the project.

Each goes as one zip that Spark hands to every executor, where it comes before what is installed: a
worker never runs another Penstock than its driver. A zip is named by its content and appears whole
or not at all, so that two drivers may make the same one at once. Never holds a file that is no
module or part of a package: data and secrets beside a project's code stay where they are.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

from penstock.backends.staging import sync
from penstock.cache import cache_folder
from penstock.errors import SparkError

# How long a zip is kept that no driver has given out again. Not a number of zips: an executor that comes later
# fetches every one that its driver has ever given out, from this cache.
KEPT_SECONDS = 30 * 24 * 3600
STAMP = (2020, 1, 1, 0, 0, 0)  # of every file in a zip: the same content is the same zip
CODE = {".py", ".pyi"}
INSTALLED = {"site-packages", "dist-packages"}

_given: set[Path] = set()  # by this process, whose executors to come may want every one of them

Files = Mapping[str, bytes]  # by their names in the zip


def package() -> Path:
    """The zip of this Penstock, with its metadata: workers ask for its version and backends."""
    files = _folder(_home("penstock"), "penstock", every=True)
    known = distribution("penstock")
    for name in ("METADATA", "entry_points.txt"):
        text = known.read_text(name)
        if text is not None:
            files[f"penstock-{known.version}.dist-info/{name}"] = text.encode()
    return _zip(f"penstock-{known.version}", files)


def modules(root: Path) -> Path | None:
    """The zip of what this process has imported from the project's folder; None if that is nothing."""
    files: dict[str, bytes] = {}
    for name, home in sorted(_imported(root)):
        files |= _folder(home, name) if home.is_dir() else {home.name: home.read_bytes()}
    return _zip("project", files) if files else None


def _imported(root: Path) -> set[tuple[str, Path]]:
    """The top-level modules of the project, each with its file or its package's folder."""
    root = root.resolve()
    found = set()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        top = name.partition(".")[0]
        if file is None or top in ("__main__", "penstock") or not file.startswith(f"{root}{os.sep}"):
            continue
        path = Path(file)
        if path.suffix not in CODE or INSTALLED & set(path.parts):
            continue
        if name != top or path.name == "__init__.py":
            path = root / top
        if path.exists() and path.parent == root:
            found.add((top, path))
    return found


def _home(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise SparkError(f"the files of {package} are not found", remedy="install it from a wheel or a checkout")
    return Path(spec.origin).parent


def _folder(folder: Path, name: str, *, every: bool = False) -> dict[str, bytes]:
    """The files of a package: its code, or `every` file of it."""
    return {
        f"{name}/{path.relative_to(folder).as_posix()}": path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and (every or path.suffix in CODE)
    }


def _zip(name: str, files: Files) -> Path:
    digest = hashlib.sha256()
    for inside, content in sorted(files.items()):
        digest.update(f"{inside}\n{len(content)}\n".encode() + content)
    folder = cache_folder() / "ship"
    path = folder / f"{name}-{digest.hexdigest()[:16]}.zip"
    _given.add(path)
    for given in _given:
        with suppress(OSError):
            os.utime(given)
    if zipfile.is_zipfile(path):  # not one that a power cut left empty
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".zip-") as scratch:
            made = Path(scratch) / path.name
            with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
                for inside, content in sorted(files.items()):
                    archive.writestr(zipfile.ZipInfo(inside, STAMP), content, zipfile.ZIP_DEFLATED)
            sync(made)
            made.replace(path)
    except OSError as error:
        raise SparkError(
            f"{folder} cannot be written",
            why=error.strerror or type(error).__name__,
            kept="nothing was touched",
            remedy="workers get Penstock as a file that is made there: make room, or set XDG_CACHE_HOME",
        ) from error
    _forget_old(folder.glob("*.zip"))
    return path


def _forget_old(zips: Iterable[Path]) -> None:
    for path in zips:
        with suppress(FileNotFoundError):  # another driver was quicker
            if path.stat().st_mtime < time.time() - KEPT_SECONDS:
                path.unlink()
