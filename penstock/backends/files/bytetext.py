"""Bytes as text and back, whole columns at a time: base64 for binary values.

No value is looked at by itself: a column is one buffer and its offsets.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_ALPHABET = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_PAD = ord("=")
_INVALID = 255
_SIX_BITS = np.full(256, _INVALID, np.uint8)
_SIX_BITS[_ALPHABET] = np.arange(64, dtype=np.uint8)
_SIX_BITS[_PAD] = 0
BASE64_PATTERN = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]


def spans(array: pa.Array) -> tuple[Bytes, Numbers, Numbers]:
    """The bytes of a string or binary array, and where each value starts and how long it is; NULL has no length."""
    _, offsets, data = array.buffers()
    if data is None or len(array) == 0:
        nothing = np.zeros(len(array), np.int64)
        return np.zeros(0, np.uint8), nothing, nothing
    edges = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    lengths = np.diff(edges)
    if array.null_count:
        lengths[~valid(array)] = 0
    return np.frombuffer(data, np.uint8), edges[:-1], lengths


def valid(array: pa.Array) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = pc.is_valid(array).to_numpy(zero_copy_only=False)
    return found


def gather(data: Bytes, starts: Numbers, lengths: Numbers) -> Bytes:
    """The bytes of the spans, one after the other."""
    total = int(lengths.sum())
    if total and np.array_equal(starts[1:], (starts + lengths)[:-1]):
        return data[int(starts[0]) : int(starts[0]) + total]  # they lie so already
    ends = np.cumsum(lengths)
    places = np.arange(total, dtype=np.int64)
    places += np.repeat(starts - (ends - lengths), lengths)
    return data[places]


def build(data: Bytes, lengths: Numbers, type_: pa.DataType, nulls: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """An array of the values that lie one after the other in `data`."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    bitmap, missing = None, 0
    if nulls is not None and nulls.any():
        missing = int(nulls.sum())
        bitmap = pa.py_buffer(np.packbits(~nulls, bitorder="little").tobytes())
    buffers = [bitmap, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data.tobytes())]
    return pa.Array.from_buffers(type_, len(lengths), buffers, missing)


def base64_text(array: pa.Array) -> pa.Array:
    """Binary values as base64; NULL stays NULL."""
    data, starts, lengths = spans(array)
    thirds = (lengths + 2) // 3
    padded = thirds * 3
    # Every value in room for whole groups of three, filled up with zeros.
    ends = np.cumsum(padded)
    groups = np.zeros(int(padded.sum()), np.uint8)
    places = np.arange(int(lengths.sum()), dtype=np.int64)
    places += np.repeat((ends - padded) - (np.cumsum(lengths) - lengths), lengths)
    groups[places] = gather(data, starts, lengths)
    a, b, c = groups[0::3], groups[1::3], groups[2::3]
    out = np.empty((len(a), 4), np.uint8)
    out[:, 0] = _ALPHABET[a >> 2]
    out[:, 1] = _ALPHABET[((a & 3) << 4) | (b >> 4)]
    out[:, 2] = _ALPHABET[((b & 15) << 2) | (c >> 6)]
    out[:, 3] = _ALPHABET[c & 63]
    flat = out.reshape(-1)
    last = np.cumsum(thirds) * 4
    flat[last[padded - lengths >= 1] - 1] = _PAD
    flat[last[padded - lengths == 2] - 2] = _PAD
    return build(flat, thirds * 4, pa.string(), None if array.null_count == 0 else ~valid(array))


def bytes_of_base64(array: pa.Array) -> pa.Array:
    """The values behind base64 text, which must match `BASE64_PATTERN`."""
    data, starts, lengths = spans(array)
    flat = gather(data, starts, lengths)
    bits = _SIX_BITS[flat].reshape(-1, 4)
    out = np.empty((len(bits), 3), np.uint8)
    out[:, 0] = (bits[:, 0] << 2) | (bits[:, 1] >> 4)
    out[:, 1] = (bits[:, 1] << 4) | (bits[:, 2] >> 2)
    out[:, 2] = (bits[:, 2] << 6) | bits[:, 3]
    ends = np.cumsum(lengths)
    filled = lengths > 0
    pads = np.zeros(len(lengths), np.int64)
    pads[filled] += flat[ends[filled] - 1] == _PAD
    pads[filled] += flat[ends[filled] - 2] == _PAD
    sizes = lengths // 4 * 3
    kept = sizes - pads
    packed = gather(out.reshape(-1), np.cumsum(sizes) - sizes, kept)
    return build(packed, kept, pa.binary(), None if array.null_count == 0 else ~valid(array))
