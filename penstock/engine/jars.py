"""Jars that a Spark feature needs beyond Spark's own: locked, fetched once, checked, cached.

`jars.toml` beside this file names coordinates and SHA-256 sums by feature. Nothing is fetched
when a session starts, and no jar whose sum differs from the lock is ever kept.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from xml.sax.saxutils import quoteattr

from penstock.cache import cache_folder
from penstock.engine import gateway
from penstock.engine.java import find_java
from penstock.errors import ConfigError, SparkError

FETCH_SECONDS = 600
SETTINGS = "PENSTOCK_IVY_SETTINGS"  # an ivysettings.xml that names a mirror


@dataclass(frozen=True, slots=True)
class Jar:
    """One locked file."""

    feature: str
    coordinates: str  # group:artifact:version, or group:artifact:version:classifier
    sha256: str

    @property
    def file_name(self) -> str:
        _, *rest = self.coordinates.split(":")
        return f"{'-'.join(rest)}.jar"


def locked() -> list[Jar]:
    """What this version of Penstock may need, by feature."""
    return read_lock((files("penstock.engine") / "jars.toml").read_text())


def read_lock(text: str) -> list[Jar]:
    features: Mapping[str, Mapping[str, str]] = tomllib.loads(text).get("features", {})
    return [Jar(feature, name, digest) for feature, jars in features.items() for name, digest in jars.items()]


def jar_folder() -> Path:
    return cache_folder() / "jars"


def cached(jar: Jar, folder: Path | None = None) -> Path | None:
    """The jar's file, if it is here and is what the lock says."""
    path = (folder or jar_folder()) / jar.file_name
    return path if path.is_file() and _digest(path) == jar.sha256 else None


def fetch(jar: Jar, folder: Path | None = None) -> Path:
    """The jar's file, downloaded if it is not here yet. Two processes may do so at once."""
    folder = folder or jar_folder()
    found = cached(jar, folder)
    if found is not None:
        return found
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as work:
        fetched = _by_ivy(jar, Path(work))
        digest = _digest(fetched)
        if digest != jar.sha256:
            raise SparkError(
                f"{jar.coordinates} is not what was locked",
                why=f"its SHA-256 is {digest}, the lock says {jar.sha256}",
                kept="the file was thrown away",
                remedy="fetch again; if it stays so, the mirror you use changes files",
            )
        # Renamed in one step: whoever sees the name sees the whole file.
        path = folder / jar.file_name
        shutil.move(fetched, Path(work) / "checked")
        os.replace(Path(work) / "checked", path)
    return path


def of_feature(feature: str) -> list[Jar]:
    found = [jar for jar in locked() if jar.feature == feature]
    if not found:
        known = ", ".join(sorted({jar.feature for jar in locked()})) or "none in this version"
        raise ConfigError(f"there are no jars for {feature!r}", remedy=f"features: {known}")
    return found


def _by_ivy(jar: Jar, folder: Path) -> Path:
    """Ask the Ivy inside Spark's own jars, which knows where packages are; we name no host."""
    ivy = next((path for path in gateway.spark_jars() if path.name.startswith("ivy-")), None)
    if ivy is None:
        raise SparkError("Spark's jars hold no Ivy", remedy="pip install --force-reinstall pyspark")
    (wanted := folder / "ivy.xml").write_text(_wanted(jar), encoding="utf-8")
    command = [str(find_java().executable), "-cp", str(ivy), "org.apache.ivy.Main", "-cache", str(folder / "ivy")]
    if settings := os.environ.get(SETTINGS):
        command += ["-settings", settings]
    command += ["-ivy", str(wanted), "-types", "jar"]
    command += ["-retrieve", str(folder / "[artifact]-[revision](-[classifier]).[ext]")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FETCH_SECONDS)
    path = folder / jar.file_name
    if done.returncode != 0 or not path.is_file():
        raise SparkError(
            f"{jar.coordinates} could not be fetched",
            why=_reason(done),
            remedy=f"check the network, or name a mirror in an ivysettings.xml: {SETTINGS}=PATH",
        )
    return path


def _wanted(jar: Jar) -> str:
    """The one file as Ivy's own document asks for it: its command line knows no classifiers."""
    group, artifact, version, *classifier = map(quoteattr, jar.coordinates.split(":"))
    classified = "".join(f" m:classifier={word}" for word in classifier)
    return f"""<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="penstock" module="jars"/>
  <dependencies>
    <dependency org={group} name={artifact} rev={version} transitive="false">
      <artifact name={artifact} type="jar" ext="jar"{classified}/>
    </dependency>
  </dependencies>
</ivy-module>
"""


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
    return next((line for line in lines if line.startswith("module not found")), f"Ivy ended with {done.returncode}")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
