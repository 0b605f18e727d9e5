"""The built package, installed where nothing else of this repository is: its command and its data files."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import version
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
PROOF = """
from pathlib import Path
import penstock
from penstock.demo.runner import prepare
print(Path(penstock.__file__).parent)
print(sorted(path.name for path in prepare(Path("demo")).iterdir()))
"""


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel in it, and the dependencies of this one."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(REPO)]
    subprocess.run(build, check=True)
    [wheel] = folder.glob("penstock-*.whl")
    made = folder / "venv"
    venv.create(made, symlinks=True)
    python = str(made / "bin" / "python")
    subprocess.run([*pip, "--python", python, "install", "--quiet", "--no-deps", str(wheel)], check=True)
    # Of a folder named like this only the packages count, not what it says of editable ones.
    site = sysconfig.get_path("purelib", vars={"base": str(made), "platbase": str(made)})
    Path(site, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return made


def test_the_installed_command_has_all_that_it_needs(fresh: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*words: str) -> str:
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    command = str(fresh / "bin" / "penstock")
    assert run(command, "--version") == f"penstock {version('penstock')}\n"
    place, files = run(str(fresh / "bin" / "python"), "-c", PROOF).splitlines()
    assert Path(place).is_relative_to(fresh)
    assert files == "['.penstock-demo', 'penstock.toml', 'pipelines.py']"
    assert (Path(place) / "py.typed").is_file()
    # Reads the lock of jars, finds both backends, and this project.
    assert run(command, "jars", "list", "--output", "json") == "[]\n"
    listed = run(command, "--project", "demo", "connections", "list")
    assert "shop" in listed
    assert "warehouse" in listed
    # The files of a new project, a hidden one too, and the sample database that it makes by itself.
    run(command, "init", "first")
    assert (tmp_path / "first" / ".gitignore").is_file()
    assert "2 pipelines checked: 0 errors" in run(command, "--project", "first", "validate")
