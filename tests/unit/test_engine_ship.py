"""What workers are sent: this Penstock, and the project's own modules; no data, no secret."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from penstock.engine import ship


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "penstock" / "ship"


def names(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        return set(archive.namelist())


def test_the_package_can_be_imported_from_its_zip_alone(tmp_path: Path) -> None:
    from importlib.metadata import version

    made = ship.package()
    packages = tmp_path / "packages"
    packages.mkdir()
    script = (
        f"import sys; sys.path.insert(0, {str(made)!r});"  # with -I and -S there is no package but the library
        "import penstock, penstock.errors; from importlib.metadata import entry_points, version;"
        "print(penstock.__file__, version('penstock'), 'postgres' in entry_points(group='penstock.backends').names)"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == f"{made}/penstock/__init__.py {version('penstock')} True\n", done.stderr
    assert "penstock/engine/jars.toml" in names(made)
    assert not any("__pycache__" in name for name in names(made))


def test_the_same_content_is_the_same_zip(cache: Path) -> None:
    first = ship.package()
    before = first.stat().st_ino
    assert ship.package() == first
    assert first.stat().st_ino == before
    content = first.read_bytes()
    first.unlink()
    assert ship.package().read_bytes() == content
    assert [path.name for path in cache.iterdir()] == [first.name]


def test_modules_of_the_project_and_nothing_beside_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "project"
    (root / "shipped_package" / "inner").mkdir(parents=True)
    for file in ("shipped_package/__init__.py", "shipped_package/inner/__init__.py", "shipped_alone.py", "unused.py"):
        (root / file).write_text("value = 1\n")
    (root / "shipped_package" / "secret.env").write_text("PASSWORD=x")
    (root / "penstock.toml").write_text("")
    monkeypatch.syspath_prepend(str(root))
    assert ship.modules(root) is None
    import shipped_alone  # type: ignore[import-not-found]  # noqa: F401  made above
    import shipped_package.inner  # type: ignore[import-not-found]  # noqa: F401

    try:
        made = ship.modules(root)
        assert made is not None
        assert names(made) == {
            "shipped_alone.py",
            "shipped_package/__init__.py",
            "shipped_package/inner/__init__.py",
        }
        (root / "shipped_alone.py").write_text("value = 2\n")
        changed = ship.modules(root)
        assert changed is not None
        assert changed.name != made.name
    finally:
        for name in ("shipped_alone", "shipped_package", "shipped_package.inner"):
            sys.modules.pop(name, None)


def test_a_zip_that_a_cluster_may_still_need_is_kept_and_old_ones_are_forgotten(cache: Path) -> None:
    """Executors that come later fetch it from the driver, which may have been started many edits ago."""
    first = ship._zip("project", {"a.py": b"0"})
    for number in range(1, 20):
        ship._zip("project", {"a.py": str(number).encode()})
    assert first.exists()
    past = time.time() - ship.KEPT_SECONDS - 60
    os.utime(first, (past, past))
    ship._zip("project", {"a.py": b"20"})
    assert first.exists(), "this process has given it out"
    ship._given.clear()  # as in another one
    os.utime(first, (past, past))
    ship._zip("project", {"a.py": b"21"})
    assert not first.exists()
    assert len(list(cache.iterdir())) == 21


def test_a_zip_that_is_not_whole_is_made_again() -> None:
    """It would be sent for ever: its name says what it should hold."""
    made = ship._zip("project", {"a.py": b"0"})
    whole = made.read_bytes()
    made.write_bytes(b"")
    assert ship._zip("project", {"a.py": b"0"}).read_bytes() == whole
