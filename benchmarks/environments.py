"""An environment per peer, in the user's cache: made once, from pinned packages.

A peer that cannot be installed is no error of the benchmark: its reason is kept and printed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

PINS_FOLDER = Path(__file__).parent / "peers"


class PeerMissing(Exception):
    """A peer that cannot be had on this machine, with the reason."""


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock" / "bench"


def environment(name: str, peer: ModuleType) -> Path:
    """The peer's environment, made if it is missing or if its pins have changed."""
    if peer.PINS is None:
        return Path(sys.prefix)
    pins = PINS_FOLDER / peer.PINS
    wanted = hashlib.sha256(pins.read_bytes()).hexdigest()
    folder = cache_folder() / name
    stamp = folder / ".ready"
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        _run([sys.executable, "-m", "venv", str(folder)])
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, "-r", str(pins)])
        stamp.write_text(wanted)
    if hasattr(peer, "prepare"):
        peer.prepare(folder, jar)
    return folder


@cache
def jar(group: str, artifact: str, version: str) -> Path:
    """A jar from Maven by its coordinates, fetched by the Ivy that ships inside PySpark."""
    folder = cache_folder() / "jars"
    found = folder / f"{artifact}-{version}.jar"
    if not found.exists():
        spec = find_spec("pyspark")
        assert spec is not None
        assert spec.origin is not None
        ivy = next((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
        command = ["java", "-cp", str(ivy), "org.apache.ivy.Main", "-cache", str(folder / "ivy"), "-types", "jar"]
        command += ["-dependency", group, artifact, version, "-notransitive", "-confs", "default"]
        _run([*command, "-retrieve", f"{folder}/[artifact]-[revision].[ext]"])
    return found


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise PeerMissing(f"{command[0]} is not on this machine") from error
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or error.stdout).strip().splitlines()
        raise PeerMissing(lines[-1] if lines else f"{command[0]} ended with {error.returncode}") from error
