"""Where Penstock keeps, for this user, what can be made or fetched again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"
