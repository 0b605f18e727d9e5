"""Files as streams of bytes: a part of one, unpacked, and counted on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

CHUNK = 1 << 20


class Bytes:
    """What a reader of Arrow asks for: `read`. Counts how often a mark comes by."""

    def __init__(self, path: Path, compression: str, start: int = 0, end: int | None = None, mark: bytes = b"") -> None:
        opened = pa.OSFile(str(path), "rb")
        if start:
            opened.seek(start)
        self._left = None if end is None else end - start
        self._stream: Any = pa.CompressedInputStream(opened, compression) if compression else opened
        self._mark = mark
        self.marks = 0
        self.closed = False

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            size = CHUNK if self._left is None else self._left
        if self._left is not None:
            size = min(size, self._left)
        data: bytes = self._stream.read(size) if size else b""
        if self._left is not None:
            self._left -= len(data)
        if self._mark:
            self.marks += data.count(self._mark)
        return data

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def writable(self) -> bool:
        return False

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._stream.close()


def sink(path: Path, compression: str) -> Any:
    """A stream to write a new file by."""
    opened = pa.OSFile(str(path), "wb")
    return pa.CompressedOutputStream(opened, compression) if compression else opened
