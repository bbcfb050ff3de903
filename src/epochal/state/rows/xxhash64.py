"""Computes Spark's `xxhash64` over columns. Pure.

Strings are hashed by the published XXH64. An int or a long is hashed as if it were the last four or
eight bytes of a string of that length, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.state.rows.byte_spans import Spans
from epochal.state.rows.column_hash import WordHash, hash_by
from epochal.state.rows.types import StructType

Array: TypeAlias = "pa.Array[Any]"
Hashes: TypeAlias = npt.NDArray[np.uint64]

SEED = 42

_PRIMES = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
_P1, _P2, _P3, _P4, _P5 = map(np.uint64, _PRIMES)
_STRIPE = 32
"""Strings of at least this many bytes are first mixed in four lanes."""
_LONG = 256
"""Strings of at least this many bytes are hashed one by one: together they would advance at the
pace of the longest."""
_MASK = (1 << 64) - 1


def xxhash64_columns(
    columns: Sequence[Array], schema: StructType, seed: int = SEED
) -> npt.NDArray[np.int64]:
    """The result of Spark's `xxhash64` for each row; columns have the schema's Arrow types."""
    seeds = np.full(len(columns[0]) if columns else 0, np.int64(seed)).view(np.uint64)
    return hash_by(_XXH64, columns, schema, seeds).view(np.int64)


def _rotated(words: Hashes, bits: int) -> Hashes:
    return words << np.uint64(bits) | words >> np.uint64(64 - bits)


def _lane(words: Hashes) -> Hashes:
    return _rotated(words * _P2, 31) * _P1


def _finish(hashes: Hashes) -> Hashes:
    hashes = (hashes ^ hashes >> np.uint64(33)) * _P2
    hashes = (hashes ^ hashes >> np.uint64(29)) * _P3
    return hashes ^ hashes >> np.uint64(32)


def _mix_long(words: Hashes, hashes: Hashes) -> Hashes:
    return _rotated(hashes ^ _lane(words), 27) * _P1 + _P4


def _mix_int(words: Hashes, hashes: Hashes) -> Hashes:
    return _rotated(hashes ^ words * _P1, 23) * _P2 + _P3


def _mix_byte(words: Hashes, hashes: Hashes) -> Hashes:
    return _rotated(hashes ^ words * _P5, 11) * _P1


def _hash_int(words: npt.NDArray[np.uint32], seeds: Hashes) -> Hashes:
    return _finish(_mix_int(words.astype(np.uint64), seeds + _P5 + np.uint64(4)))


def _hash_long(words: Hashes, seeds: Hashes) -> Hashes:
    return _finish(_mix_long(words, seeds + _P5 + np.uint64(8)))


def _hash_bytes(spans: Spans, seeds: Hashes) -> Hashes:
    found = np.empty_like(seeds)
    long = np.flatnonzero(spans.lengths >= _LONG)
    for index in long.tolist():
        found[index] = _hash_one(spans[index], int(seeds[index]))
    rest = np.flatnonzero(spans.lengths < _LONG)
    found[rest] = _hash_short(spans.take(rest), seeds[rest])
    return found


def _hash_short(spans: Spans, seeds: Hashes) -> Hashes:
    """Hash strings together, word by word."""
    # Words are read at any byte, so the buffer needs room for one that starts at the last byte.
    buffer = np.concatenate([spans.buffer, np.zeros(8, np.uint8)])
    words = np.ndarray((len(buffer) - 7,), "<u8", buffer, strides=(1,))
    at, left = spans.starts.copy(), spans.lengths.copy()
    hashes = seeds + _P5
    striped = np.flatnonzero(left >= _STRIPE)
    if len(striped):
        hashes[striped] = _stripes(words, at[striped], left[striped], seeds[striped])
        done = left[striped] // _STRIPE * _STRIPE
        at[striped] += done
        left[striped] -= done
    hashes += spans.lengths.astype(np.uint64)
    while len(here := np.flatnonzero(left >= 8)):
        hashes[here] = _mix_long(words[at[here]], hashes[here])
        at[here] += 8
        left[here] -= 8
    here = np.flatnonzero(left >= 4)
    hashes[here] = _mix_int(words[at[here]] & np.uint64(0xFFFFFFFF), hashes[here])
    at[here] += 4
    left[here] -= 4
    while len(here := np.flatnonzero(left > 0)):
        hashes[here] = _mix_byte(words[at[here]] & np.uint64(0xFF), hashes[here])
        at[here] += 1
        left[here] -= 1
    return _finish(hashes)


def _stripes(words: Hashes, at: Any, left: Any, seeds: Hashes) -> Hashes:
    lanes = [seeds + _P1 + _P2, seeds + _P2, seeds.copy(), seeds - _P1]
    position = 0
    while len(here := np.flatnonzero(left - position >= _STRIPE)):
        for number, lane in enumerate(lanes):
            word = words[at[here] + position + 8 * number]
            lane[here] = _rotated(lane[here] + word * _P2, 31) * _P1
        position += _STRIPE
    turns = zip(lanes, (1, 7, 12, 18), strict=True)
    hashes = sum((_rotated(lane, bits) for lane, bits in turns), np.zeros_like(seeds))
    for lane in lanes:
        hashes = (hashes ^ _lane(lane)) * _P1 + _P4
    return hashes


def _hash_one(data: bytes, seed: int) -> int:
    """Hash a long string with plain integers."""
    p1, p2, p3, p4, p5 = _PRIMES
    lanes = [seed + p1 + p2, seed + p2, seed, seed - p1]
    striped = len(data) // _STRIPE * _STRIPE
    for start in range(0, striped, 8):
        word = int.from_bytes(data[start : start + 8], "little")
        number = start // 8 % 4
        lanes[number] = _turned(lanes[number] + word * p2, 31) * p1 & _MASK
    found = sum(_turned(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
    for lane in lanes:
        found = (found ^ _turned(lane * p2, 31) * p1) * p1 + p4 & _MASK
    found += len(data)
    whole = len(data) // 8 * 8
    for start in range(striped, whole, 8):
        word = int.from_bytes(data[start : start + 8], "little")
        found = _turned(found ^ _turned(word * p2, 31) * p1, 27) * p1 + p4
    if len(data) - whole >= 4:
        word = int.from_bytes(data[whole : whole + 4], "little")
        found = _turned(found ^ word * p1, 23) * p2 + p3
        whole += 4
    for byte in data[whole:]:
        found = _turned(found ^ byte * p5, 11) * p1
    found &= _MASK
    found = (found ^ found >> 33) * p2 & _MASK
    found = (found ^ found >> 29) * p3 & _MASK
    return found ^ found >> 32


def _turned(word: int, bits: int) -> int:
    word &= _MASK
    return (word << bits | word >> (64 - bits)) & _MASK


_XXH64 = WordHash(_hash_int, _hash_long, _hash_bytes)
