"""Files as streams of bytes: a part of one, unpacked, and in utf-8 whatever it is written in."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Any

import pyarrow as pa

CHUNK = 1 << 20
UTF8 = ("utf-8", "utf8")
BOM = codecs.BOM_UTF8


class Bytes:
    """What a reader of Arrow asks for: `read`. `before` comes first, `after` on a line of its own at the end."""

    def __init__(
        self,
        path: Path,
        compression: str,
        part: tuple[int, int] | None = None,
        *,
        encoding: str = UTF8[0],
        before: bytes = b"",
        after: bytes = b"",
    ) -> None:
        opened = pa.OSFile(str(path), "rb")
        self._left = None
        if part is not None:
            opened.seek(part[0])
            self._left = part[1] - part[0]
        self._stream: Any = pa.CompressedInputStream(opened, compression) if compression else opened
        self._decoder = None if encoding.lower() in UTF8 else codecs.getincrementaldecoder(encoding)()
        self._after = after
        self._ready = before
        self._last = b""  # of the file's bytes, once there were any
        self._ended = False
        self.closed = False

    def read(self, size: int | None = -1) -> bytes:
        """So many bytes, fewer only at the end: Arrow has room for no more, and takes a first block for the whole."""
        if size is None or size < 0:
            size = CHUNK
        while len(self._ready) < size and not self._ended:
            self._ready += self._next(size - len(self._ready))
        data, self._ready = self._ready[:size], self._ready[size:]
        return data

    @property
    def empty(self) -> bool:
        """Whether the file, or the part of it, had no bytes so far."""
        return not self._last

    def _next(self, size: int) -> bytes:
        raw: bytes = self._stream.read(size if self._left is None else min(size, self._left))
        if self._left is not None:
            self._left -= len(raw)
        data = raw if self._decoder is None else self._decoder.decode(raw, final=not raw).encode()
        self._last = data[-1:] or self._last
        if raw:
            return data
        self._ended = True
        if not self._after or not self._last:
            return data
        return data + (b"" if self._last in b"\r\n" else b"\n") + self._after

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
