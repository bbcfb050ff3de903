"""Hashes the values of columns as Spark's `hash` and `xxhash64` do, by any hash of words. Pure.

The hash of each column is seeded with the hash of the columns before it, so a null leaves the hash
unchanged. Structs, lists and maps are hashed part by part in the same way. Spark hashes -0.0 like
0.0, and every NaN alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.errors import StateSchemaError
from epochal.state.rows.byte_spans import Spans, as_spans
from epochal.state.rows.column_encoder import fixed_words, minimal_decimals, null_flags
from epochal.state.rows.types import Kind, Layout, StructType

Array: TypeAlias = "pa.Array[Any]"
Hashes: TypeAlias = npt.NDArray[Any]
"""One hash per row; 32 or 64 bits."""
Ints: TypeAlias = npt.NDArray[np.uint32]
Longs: TypeAlias = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class WordHash:
    """A hash function, given by what it does with ints, longs and strings. Each takes seeds."""

    of_ints: Callable[[Ints, Hashes], Hashes]
    of_longs: Callable[[Longs, Hashes], Hashes]
    of_strings: Callable[[Spans, Hashes], Hashes]


def hash_by(
    function: WordHash, columns: Sequence[Array], schema: StructType, seeds: Hashes
) -> Hashes:
    """The hash of each row; columns have the schema's Arrow types."""
    for column, child in zip(columns, schema.layout.children, strict=True):
        seeds = _hash(column, child, seeds, function)
    return seeds


def _hash(column: Array, layout: Layout, seeds: Hashes, by: WordHash) -> Hashes:
    nulls = null_flags(column)
    hashed = _hash_values(column, layout, seeds, by)
    return hashed if nulls is None else np.where(nulls, seeds, hashed)


def _hash_values(column: Array, layout: Layout, seeds: Hashes, by: WordHash) -> Hashes:
    """Hash every entry. The caller ignores the result for nulls."""
    match layout.kind:
        case Kind.VOID:
            return seeds
        case Kind.BOOLEAN | Kind.BYTE | Kind.SHORT | Kind.INT | Kind.FLOAT:
            return by.of_ints(_ints(column, layout), seeds)
        case Kind.LONG | Kind.DOUBLE | Kind.SMALL_DECIMAL:
            return by.of_longs(_longs(column, layout), seeds)
        case Kind.STRING | Kind.BINARY:
            return by.of_strings(as_spans(column), seeds)
        case Kind.BIG_DECIMAL:
            return by.of_strings(minimal_decimals(column, null_flags(column)), seeds)
        case Kind.INTERVAL:
            months, days, micros = _members(column)
            seeds = by.of_longs(_longs(micros, Layout(Kind.LONG)), seeds)
            seeds = by.of_ints(_ints(days, Layout(Kind.INT)), seeds)
            return by.of_ints(_ints(months, Layout(Kind.INT)), seeds)
        case Kind.NANOS:
            micros, nanos = _members(column)
            seeds = by.of_longs(_longs(micros, Layout(Kind.LONG)), seeds)
            return by.of_ints(_ints(nanos, Layout(Kind.SHORT)), seeds)
        case Kind.STRUCT:
            for member, child in zip(_members(column), layout.children, strict=True):
                seeds = _hash(member, child, seeds, by)
            return seeds
        case Kind.ARRAY:
            elements = cast("pa.ListArray[Any]", column).values
            return _hash_elements(column, [elements], layout, seeds, by)
        case Kind.MAP:
            pairs = cast("pa.MapArray[Any, Any]", column)
            return _hash_elements(column, [pairs.keys, pairs.items], layout, seeds, by)
    raise StateSchemaError("key schema", f"Spark has no hash for a {layout.kind.value}")


def _members(column: Array) -> list[Array]:
    structs = cast(pa.StructArray, column)
    return [structs.field(i) for i in range(structs.type.num_fields)]


def _hash_elements(
    column: Array, parts: list[Array], layout: Layout, seeds: Hashes, by: WordHash
) -> Hashes:
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
            hashes[running] = _hash(part.take(places), child, hashes[running], by)
        position += 1
        running = running[counts[running] > position]
    return hashes


def _ints(column: Array, layout: Layout) -> Ints:
    words = fixed_words(layout, column, None)
    if layout.kind is Kind.FLOAT:
        bits = words.astype(np.uint32)
        values = bits.view(np.float32)
        bits = np.where(values == 0, np.uint32(0), bits)
        return np.where(np.isnan(values), np.uint32(0x7FC00000), bits)
    signed = {Kind.BYTE: np.int8, Kind.SHORT: np.int16}.get(layout.kind, np.int32)
    return words.astype(signed).astype(np.int32).view(np.uint32)


def _longs(column: Array, layout: Layout) -> Longs:
    words = fixed_words(layout, column, None)
    if layout.kind is Kind.DOUBLE:
        values = words.view(np.float64)
        words = np.where(values == 0, np.uint64(0), words)
        return np.where(np.isnan(values), np.uint64(0x7FF8000000000000), words)
    return words
