"""Arrow arrays in the server's binary forms, and the rows of a COPY BINARY made of them.

The forms are those that the server's own send functions give (`numeric_send`, `array_send` …). Its receive functions
check what they get, and strip the zeros that a fixed number of digits leaves around a number. Vectorised, per batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_GROUP = 4  # decimal digits in one of the server's
_BASE = 10**_GROUP
_HEAD = 4  # fields before the digits: their number, the weight of the first, the sign, the scale
_NEGATIVE = 0x4000
_LIMB = np.uint64(32)
_LOW = np.uint64(2**32 - 1)

COPY_HEAD = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
COPY_END = b"\xff\xff"

# The elements that a list may be sent with, by the server's spelling of the type.
ELEMENT_OIDS = {
    "boolean": 16,
    "bytea": 17,
    "bigint": 20,
    "smallint": 21,
    "integer": 23,
    "text": 25,
    "json": 114,
    "real": 700,
    "double precision": 701,
    "date": 1082,
    "time without time zone": 1083,
    "timestamp without time zone": 1114,
    "timestamp with time zone": 1184,
    "numeric": 1700,
    "uuid": 2950,
}


def _groups(type_: pa.Decimal128Type) -> tuple[int, int]:
    """Of the server's digits: before the point, and behind it."""
    return -(-(type_.precision - type_.scale) // _GROUP), -(-type_.scale // _GROUP)


def decimals(array: pa.Decimal128Array) -> pa.FixedSizeBinaryArray:
    whole, behind = _groups(array.type)
    scale = array.type.scale
    limbs, negative, valid = _magnitudes(array)
    form = np.empty((len(array), _HEAD + whole + behind), ">i2")
    form[:, 0] = whole + behind
    form[:, 1] = whole - 1
    form[:, 2] = np.where(negative, _NEGATIVE, 0)
    form[:, 3] = scale
    place = form.shape[1] - 1
    if scale % _GROUP:
        limbs, digits = _divided(limbs, 10 ** (scale % _GROUP))
        form[:, place] = digits * np.uint64(10 ** (_GROUP - scale % _GROUP))
        place -= 1
    while place >= _HEAD:  # two of the server's digits at a time
        limbs, digits = _divided(limbs, _BASE**2)
        form[:, place] = digits % np.uint64(_BASE)
        if place > _HEAD:
            form[:, place - 1] = digits // np.uint64(_BASE)
        place -= 2
    return _fixed(form, valid)


def _magnitudes(array: pa.Decimal128Array) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Absolute values as limbs of 32 bits, or one of 64, the highest first; which are negative; which are there."""
    valid = pc.is_valid(array).to_numpy(zero_copy_only=False)
    halves = np.frombuffer(array.buffers()[1], "<u8").reshape(-1, 2)[array.offset : array.offset + len(array)]
    low = np.where(valid, halves[:, 0], 0)  # under a null anything may stand
    high = np.where(valid, halves[:, 1], 0)
    negative = high >> np.uint64(63) == 1
    borrowed = np.where(negative & (low == 0), np.uint64(1), np.uint64(0))
    high = np.where(negative, ~high + borrowed, high)
    low = np.where(negative, ~low + np.uint64(1), low)
    if not high.any():
        return [low], negative, valid
    return [high >> _LIMB, high & _LOW, low >> _LIMB, low & _LOW], negative, valid


def _divided(limbs: list[np.ndarray], by: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Quotients and remainders; leading limbs that have become nothing are left out."""
    divisor = np.uint64(by)
    quotients = []
    rest = np.zeros_like(limbs[0])
    for place, limb in enumerate(limbs):
        number = (rest << _LIMB) | limb if place else limb
        quotient = number // divisor
        rest = number - quotient * divisor
        quotients.append(quotient)
    while len(quotients) > 1 and not quotients[0].any():
        quotients.pop(0)
    return quotients, rest


def lists(array: pa.ListArray, offsets: np.ndarray, elements: pa.Array, element_type: str) -> pa.BinaryArray:
    """`array` with `elements`, each of them in its own form, at `offsets`; one-dimensional, from 1 on."""
    lengths, payloads = _told(elements)
    told = pc.binary_join_element_wise(_fixed(lengths).cast(pa.binary()), payloads, b"")
    bodies = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), told), b"")
    oid = ELEMENT_OIDS[element_type]
    heads = np.empty((len(array), 5), ">i4")
    heads[:] = (1, 1, oid, 0, 1)  # dimensions, whether nulls may follow, the type, how many, from which number on
    heads[:, 3] = np.diff(offsets)
    none = pa.scalar(np.array([0, 0, oid], ">i4").tobytes(), pa.binary())
    head = pc.if_else(pa.array(heads[:, 3] == 0), none, _fixed(heads).cast(pa.binary()))
    form = pc.binary_join_element_wise(head, bodies, b"")
    return pc.if_else(pc.is_valid(array), form, pa.scalar(None, pa.binary()))


def rows(arrays: Sequence[pa.Array]) -> memoryview:
    """The rows of a COPY BINARY, each with a field of every array.

    Quickest where arrays of fixed width without nulls stand together: they become one matrix.
    """
    pieces: list[pa.Array] = []
    bytes_ = [_alike(len(arrays).to_bytes(2, "big"), len(arrays[0]))]  # matrices of what comes next in each row
    for array in arrays:
        matrix = None if array.null_count else _matrix(array)
        if matrix is not None:
            bytes_ += [_alike(matrix.shape[1].to_bytes(4, "big"), len(array)), matrix]
            continue
        lengths, payloads = _told(array)
        pieces += [_fixed(np.hstack([*bytes_, lengths])).cast(pa.binary()), payloads]
        bytes_ = []
    if bytes_:
        pieces.append(_fixed(np.hstack(bytes_)).cast(pa.binary()))
    joined = pc.binary_join_element_wise(*pieces, b"") if len(pieces) > 1 else pieces[0]
    _, offsets, data = joined.buffers()
    first, last = np.frombuffer(offsets, np.int32)[[joined.offset, joined.offset + len(joined)]]
    return memoryview(data)[first:last]


def _alike(value: bytes, count: int) -> np.ndarray:
    return np.broadcast_to(np.frombuffer(value, np.uint8), (count, len(value)))


def _told(array: pa.Array) -> tuple[np.ndarray, pa.BinaryArray]:
    """How long each value is, -1 for a null, as a matrix of bytes; and the values, nothing for a null."""
    matrix = _matrix(array)
    valid = pc.is_valid(array).to_numpy(zero_copy_only=False)
    values = (array if matrix is None else _fixed(matrix, valid)).cast(pa.binary())
    lengths = pc.fill_null(pc.binary_length(values), -1).to_numpy(zero_copy_only=False)
    return _big_endian(lengths.astype(np.int32)), pc.fill_null(values, b"")


def _matrix(array: pa.Array) -> np.ndarray | None:
    """The bytes of values that have as many each, a row for each value; None of others."""
    type_ = array.type
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return None
    if pa.types.is_fixed_size_binary(type_):
        width = type_.byte_width
        data = np.frombuffer(array.buffers()[1], np.uint8)
        return data[array.offset * width : (array.offset + len(array)) * width].reshape(len(array), width)
    if pa.types.is_boolean(type_):
        array = array.cast(pa.uint8())
    return _big_endian(pc.fill_null(array, 0).to_numpy(zero_copy_only=False))


def _big_endian(numbers: np.ndarray) -> np.ndarray:
    """The bytes of each number."""
    swapped = np.ascontiguousarray(numbers.astype(numbers.dtype.newbyteorder(">")))
    return swapped.view(np.uint8).reshape(len(numbers), swapped.itemsize)


def _fixed(matrix: np.ndarray, valid: np.ndarray | None = None) -> pa.FixedSizeBinaryArray:
    """A value for each row of a matrix."""
    width = matrix.dtype.itemsize * matrix.shape[1]
    nulls = None if valid is None or valid.all() else pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(pa.binary(width), len(matrix), [nulls, pa.py_buffer(np.ascontiguousarray(matrix))])
