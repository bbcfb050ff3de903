"""Computes Spark's Murmur3 hash over columns: which partition a key belongs to. Pure.

This must be exact. Spark does not find a key in the wrong partition and silently starts a new one.
One thing differs from standard Murmur3: each byte after the last whole word of a string is mixed in
as a separate, sign-extended word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.state.rows.byte_spans import Ints, Spans
from epochal.state.rows.column_hash import WordHash, hash_by
from epochal.state.rows.types import StructType

Array: TypeAlias = "pa.Array[Any]"
Hashes: TypeAlias = npt.NDArray[np.uint32]

SEED = 42
_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
_FEW = 16
"""With fewer unfinished strings than this, finishing each one by itself is faster."""


def partition_ids(columns: Sequence[Array], schema: StructType, partitions: int) -> Ints:
    """The partition Spark puts each row in, out of `partitions`."""
    hashes = hash_columns(columns, schema).astype(np.int64)
    return np.mod(hashes, partitions)


def hash_columns(
    columns: Sequence[Array], schema: StructType, seed: int = SEED
) -> npt.NDArray[np.int32]:
    """The result of Spark's `hash` for each row; columns have the schema's Arrow types."""
    seeds = np.full(len(columns[0]) if columns else 0, np.int32(seed)).view(np.uint32)
    return hash_by(_MURMUR3, columns, schema, seeds).view(np.int32)


def _mix_word(word: Hashes, hashes: Hashes) -> Hashes:
    word = word * _C1
    word = (word << np.uint32(15) | word >> np.uint32(17)) * _C2
    hashes = hashes ^ word
    return (hashes << np.uint32(13) | hashes >> np.uint32(19)) * np.uint32(5) + np.uint32(
        0xE6546B64
    )


def _finish(hashes: Hashes, length: Hashes | np.uint32) -> Hashes:
    hashes = hashes ^ length
    hashes = (hashes ^ hashes >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ hashes >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return hashes ^ hashes >> np.uint32(16)


def _hash_int(words: Hashes, seeds: Hashes) -> Hashes:
    return _finish(_mix_word(words, seeds), np.uint32(4))


def _hash_long(words: npt.NDArray[np.uint64], seeds: Hashes) -> Hashes:
    low = words.astype(np.uint32)
    high = (words >> np.uint64(32)).astype(np.uint32)
    return _finish(_mix_word(high, _mix_word(low, seeds)), np.uint32(8))


def _hash_bytes(spans: Spans, seeds: Hashes) -> Hashes:
    """Hash strings. All advance together, longest first, so the unfinished ones are a prefix."""
    order = np.argsort(-spans.lengths, kind="stable")
    starts, lengths = spans.starts[order], spans.lengths[order]
    hashes = seeds[order]
    whole = lengths >> 2
    words = np.ndarray((max(len(spans.buffer) - 3, 0),), "<u4", spans.buffer, strides=(1,))
    position = 0
    running = int(np.searchsorted(-whole, 0))
    while running > _FEW:
        hashes[:running] = _mix_word(words[starts[:running] + 4 * position], hashes[:running])
        position += 1
        running = int(np.searchsorted(-whole, -position))
    for index in range(running):
        first = int(starts[index]) + 4 * position
        rest = spans.buffer[first : int(starts[index] + 4 * whole[index])].tobytes()
        hashes[index] = _mix_one_by_one(rest, int(hashes[index]))
    signed = spans.buffer.view(np.int8)
    for extra in range(3):
        tails = np.flatnonzero(lengths & 3 > extra)
        bytes_here = signed[starts[tails] + 4 * whole[tails] + extra]
        hashes[tails] = _mix_word(bytes_here.astype(np.int32).view(np.uint32), hashes[tails])
    unordered = np.empty_like(hashes)
    unordered[order] = _finish(hashes, lengths.astype(np.uint32))
    return unordered


def _mix_one_by_one(data: bytes, state: int) -> int:
    """Mix whole words with plain integers, for the few strings that are longer than the rest."""
    for at in range(0, len(data), 4):
        word = int.from_bytes(data[at : at + 4], "little") * 0xCC9E2D51 & 0xFFFFFFFF
        word = (word << 15 | word >> 17) * 0x1B873593 & 0xFFFFFFFF
        state ^= word
        state = ((state << 13 | state >> 19) * 5 + 0xE6546B64) & 0xFFFFFFFF
    return state


_MURMUR3 = WordHash(_hash_int, _hash_long, _hash_bytes)
