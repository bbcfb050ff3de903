"""Computes Spark's Murmur3 hash over columns: which partition a key belongs to. Pure.

This must be exact. Spark does not find a key in the wrong partition and silently starts a new one.
One thing differs from standard Murmur3: each byte after the last whole word of a string is mixed in
as a separate, sign-extended word.

The hash of each column is seeded with the hash of the columns before it, so a null leaves the hash
unchanged. Structs, lists and maps are hashed part by part in the same way. Spark hashes -0.0 like
0.0, and every NaN alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.errors import StateSchemaError
from epochal.state.rows.byte_spans import Ints, Spans, as_spans
from epochal.state.rows.column_encoder import fixed_words, minimal_decimals, null_flags
from epochal.state.rows.types import Kind, Layout, StructType

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
    for column, child in zip(columns, schema.layout.children, strict=True):
        seeds = _hash(column, child, seeds)
    return seeds.view(np.int32)


def _hash(column: Array, layout: Layout, seeds: Hashes) -> Hashes:
    nulls = null_flags(column)
    hashed = _hash_values(column, layout, seeds)
    return hashed if nulls is None else np.where(nulls, seeds, hashed)


def _hash_values(column: Array, layout: Layout, seeds: Hashes) -> Hashes:
    """Hash every entry. The caller ignores the result for nulls."""
    match layout.kind:
        case Kind.VOID:
            return seeds
        case Kind.BOOLEAN | Kind.BYTE | Kind.SHORT | Kind.INT | Kind.FLOAT:
            return _hash_int(_ints(column, layout), seeds)
        case Kind.LONG | Kind.DOUBLE | Kind.SMALL_DECIMAL:
            return _hash_long(_longs(column, layout), seeds)
        case Kind.STRING | Kind.BINARY:
            return _hash_bytes(as_spans(column), seeds)
        case Kind.BIG_DECIMAL:
            return _hash_bytes(minimal_decimals(column, null_flags(column)), seeds)
        case Kind.INTERVAL:
            months, days, micros = _members(column)
            seeds = _hash_long(_longs(micros, Layout(Kind.LONG)), seeds)
            seeds = _hash_int(_ints(days, Layout(Kind.INT)), seeds)
            return _hash_int(_ints(months, Layout(Kind.INT)), seeds)
        case Kind.NANOS:
            micros, nanos = _members(column)
            seeds = _hash_long(_longs(micros, Layout(Kind.LONG)), seeds)
            return _hash_int(_ints(nanos, Layout(Kind.SHORT)), seeds)
        case Kind.STRUCT:
            for member, child in zip(_members(column), layout.children, strict=True):
                seeds = _hash(member, child, seeds)
            return seeds
        case Kind.ARRAY:
            elements = cast("pa.ListArray[Any]", column).values
            return _hash_elements(column, [elements], layout, seeds)
        case Kind.MAP:
            pairs = cast("pa.MapArray[Any, Any]", column)
            return _hash_elements(column, [pairs.keys, pairs.items], layout, seeds)
    raise StateSchemaError("key schema", f"Spark has no hash for a {layout.kind.value}")


def _members(column: Array) -> list[Array]:
    structs = cast(pa.StructArray, column)
    return [structs.field(i) for i in range(structs.type.num_fields)]


def _hash_elements(column: Array, parts: list[Array], layout: Layout, seeds: Hashes) -> Hashes:
    """Hash lists element by element: the first elements of all lists, then the second ones, ..."""
    lists = cast("pa.ListArray[Any]", column)
    nulls = null_flags(column)
    offsets = lists.offsets.to_numpy().astype(np.int64)
    counts = np.diff(offsets)
    if nulls is not None:
        counts = np.where(nulls, 0, counts)
    hashes = seeds.copy()
    running = np.flatnonzero(counts)
    position = 0
    while len(running):
        places = offsets[running] + position
        for part, child in zip(parts, layout.children, strict=True):
            hashes[running] = _hash(part.take(places), child, hashes[running])
        position += 1
        running = running[counts[running] > position]
    return hashes


def _ints(column: Array, layout: Layout) -> Hashes:
    words = fixed_words(layout, column, None)
    if layout.kind is Kind.FLOAT:
        bits = words.astype(np.uint32)
        values = bits.view(np.float32)
        bits = np.where(values == 0, np.uint32(0), bits)
        return np.where(np.isnan(values), np.uint32(0x7FC00000), bits)
    signed = {Kind.BYTE: np.int8, Kind.SHORT: np.int16}.get(layout.kind, np.int32)
    return words.astype(signed).astype(np.int32).view(np.uint32)


def _longs(column: Array, layout: Layout) -> npt.NDArray[np.uint64]:
    words = fixed_words(layout, column, None)
    if layout.kind is Kind.DOUBLE:
        values = words.view(np.float64)
        words = np.where(values == 0, np.uint64(0), words)
        return np.where(np.isnan(values), np.uint64(0x7FF8000000000000), words)
    return words


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
