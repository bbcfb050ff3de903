"""Computes the partition of a single key in plain Python. Pure.

The partition is Spark's Murmur3 hash of the partitioning columns, chained with seed 42, modulo the
number of partitions. A null leaves the hash unchanged. `state.rows.murmur3` computes the same for
whole columns, but importing it (and numpy) takes longer than checking a few keys here.
"""

from __future__ import annotations

import struct
from typing import Any

from epochal.state.rows.types import Kind, Layout, StructType
from epochal.state.rows.unsafe_row import decode_row, minimal_bytes, unscaled_of

SEED = 42
_MASK = 0xFFFFFFFF
_INT_KINDS = frozenset({Kind.BOOLEAN, Kind.BYTE, Kind.SHORT, Kind.INT})
_HASHED_KINDS = _INT_KINDS | {
    Kind.VOID,
    Kind.LONG,
    Kind.FLOAT,
    Kind.DOUBLE,
    Kind.SMALL_DECIMAL,
    Kind.BIG_DECIMAL,
    Kind.STRING,
    Kind.BINARY,
}


def partition_of_key(key: bytes, schema: StructType, columns: int, partitions: int) -> int | None:
    """Hash the first `columns` of a key to its partition.

    None if one of their types has no hash: Spark cannot group by such a column.
    """
    placing = schema.layout.children[:columns]
    if not all(map(_has_hash, placing)):
        return None
    state = SEED
    for value, layout in zip(decode_row(key, schema), placing, strict=False):
        state = _hash(value, layout, state)
    signed = state - (1 << 32) if state >> 31 else state
    return signed % partitions


def _has_hash(layout: Layout) -> bool:
    if layout.kind in (Kind.STRUCT, Kind.ARRAY):
        return all(map(_has_hash, layout.children))
    return layout.kind in _HASHED_KINDS


def _hash(value: Any, layout: Layout, state: int) -> int:
    kind = layout.kind
    if value is None:
        return state
    if kind in _INT_KINDS:
        return _finish(_mix(state, int(value) & _MASK), 4)
    match kind:
        case Kind.LONG:
            return _long(value, state)
        case Kind.FLOAT:
            bits = int.from_bytes(struct.pack("<f", value + 0.0), "little")
            return _finish(_mix(state, bits), 4)
        case Kind.DOUBLE:
            return _long(int.from_bytes(struct.pack("<d", value + 0.0), "little"), state)
        case Kind.SMALL_DECIMAL | Kind.BIG_DECIMAL:
            unscaled = unscaled_of(value, layout.precision, layout.scale)
            assert unscaled is not None, "a stored decimal fits its own type"
            if kind is Kind.SMALL_DECIMAL:
                return _long(unscaled, state)
            return _bytes(minimal_bytes(unscaled), state)
        case Kind.STRING:
            return _bytes(value.encode(), state)
        case Kind.BINARY:
            return _bytes(value, state)
        case Kind.STRUCT:
            for each, child in zip(value, layout.children, strict=True):
                state = _hash(each, child, state)
            return state
        case Kind.ARRAY:
            for each in value:
                state = _hash(each, layout.children[0], state)
            return state
    raise AssertionError(f"{kind} has no hash")


def _long(value: int, state: int) -> int:
    return _finish(_mix(_mix(state, value & _MASK), value >> 32 & _MASK), 8)


def _bytes(data: bytes, state: int) -> int:
    whole = len(data) & ~3
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        state = _mix(state, word)
    for byte in data[whole:]:
        # Standard Murmur3 mixes the last 1 to 3 bytes together. Spark mixes each one separately,
        # sign-extended to 32 bits.
        state = _mix(state, byte if byte < 0x80 else byte | 0xFFFFFF00)
    return _finish(state, len(data))


def _mix(state: int, word: int) -> int:
    word = word * 0xCC9E2D51 & _MASK
    word = (word << 15 | word >> 17) & _MASK
    state ^= word * 0x1B873593 & _MASK
    state = (state << 13 | state >> 19) & _MASK
    return (state * 5 + 0xE6546B64) & _MASK


def _finish(state: int, length: int) -> int:
    state ^= length
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    return state ^ state >> 16
