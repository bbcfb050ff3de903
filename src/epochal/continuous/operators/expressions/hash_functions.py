"""Hash functions. Pure.

`hash` and `xxhash64` hash the columns of a row one after the other: the hash of each is the seed of
the next, and a null leaves it unchanged. So do structs, arrays and maps with what is in them.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from epochal.continuous.operators.expressions.expr import Call, Function, Value
from epochal.continuous.operators.expressions.nested.lists_of import (
    Array,
    Kind,
    all_on_columns,
    lists_of,
    null_flags_of,
)
from epochal.continuous.operators.expressions.values_of import each
from epochal.errors import OptionError
from epochal.state.rows import types
from epochal.state.rows.column_encoder import minimal_decimals, null_flags
from epochal.state.rows.murmur3 import hash_values, int_words, long_words
from epochal.state.rows.types import Layout

Words: TypeAlias = npt.NDArray[np.uint64]

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)  # fmt: skip

_INTS = {types.Kind.BOOLEAN, types.Kind.BYTE, types.Kind.SHORT, types.Kind.INT, types.Kind.FLOAT}
_LONGS = {types.Kind.LONG, types.Kind.DOUBLE, types.Kind.SMALL_DECIMAL}
_BY_WIDTH = {8: types.Kind.BYTE, 16: types.Kind.SHORT, 32: types.Kind.INT, 64: types.Kind.LONG}


def layout_of_arrow(kind: Kind) -> Layout:
    """How Spark lays out values of an Arrow type in rows."""
    known = pa.types
    if known.is_struct(kind):
        children = tuple(layout_of_arrow(field.type) for field in kind)
        return Layout(types.Kind.STRUCT, children)
    if known.is_list(kind):
        return Layout(types.Kind.ARRAY, (layout_of_arrow(kind.value_type),))
    if known.is_map(kind):
        pair = (layout_of_arrow(kind.key_type), layout_of_arrow(kind.item_type))
        return Layout(types.Kind.MAP, pair)
    return Layout(_kind(kind))


def _kind(kind: Kind) -> types.Kind:
    known = pa.types
    if known.is_null(kind):
        return types.Kind.VOID
    if known.is_boolean(kind):
        return types.Kind.BOOLEAN
    if known.is_string(kind):
        return types.Kind.STRING
    if known.is_binary(kind):
        return types.Kind.BINARY
    if known.is_decimal(kind):
        small = kind.precision <= types.MAX_LONG_DIGITS
        return types.Kind.SMALL_DECIMAL if small else types.Kind.BIG_DECIMAL
    if known.is_floating(kind):
        return types.Kind.FLOAT if kind.bit_width == 32 else types.Kind.DOUBLE
    if known.is_integer(kind) or (known.is_temporal(kind) and kind.bit_width in _BY_WIDTH):
        return _BY_WIDTH[kind.bit_width]
    raise OptionError(f"hash: values of type {kind} are not supported. Use a UDF instead.")


def _murmur3(call: Call, *values: Value) -> Value:
    hashes = np.full(len(values[0]), call.extra.get("seed", 42), np.int64).astype(np.uint32)
    for value in values:
        hashes = hash_values(value, layout_of_arrow(value.type), hashes)
    return pa.array(hashes.view(np.int32))


def _xxhash64(call: Call, *values: Value) -> Value:
    hashes = np.full(len(values[0]), call.extra.get("seed", 42), np.int64).view(np.uint64)
    for value in values:
        hashes = _xx(value, layout_of_arrow(value.type), hashes)
    return pa.array(hashes.view(np.int64))


def _xx(column: Array, layout: Layout, seeds: Words) -> Words:
    return np.where(null_flags_of(column), seeds, _xx_values(column, layout, seeds))


def _xx_values(column: Array, layout: Layout, seeds: Words) -> Words:
    """Hash every value. The caller ignores the result for nulls."""
    kind = layout.kind
    if kind in _INTS:
        words = int_words(column, layout).astype(np.uint64)
        mixed = seeds + _P5 + np.uint64(4) ^ words * _P1
        return _mixed(_rotated(mixed, 23) * _P2 + _P3)
    if kind in _LONGS:
        words = _rotated(long_words(column, layout) * _P2, 31) * _P1
        return _mixed(_rotated(seeds + _P5 + np.uint64(8) ^ words, 27) * _P1 + _P4)
    if kind is types.Kind.STRUCT:
        for index, child in enumerate(layout.children):
            seeds = _xx(column.field(index), child, seeds)
        return seeds
    if kind in (types.Kind.ARRAY, types.Kind.MAP):
        return _xx_elements(column, layout, seeds)
    if kind is types.Kind.VOID:
        return seeds
    if kind is types.Kind.BIG_DECIMAL:
        spans = minimal_decimals(column, null_flags(column))
        parts: list[Any] = [
            spans.buffer[start : start + length].tobytes()
            for start, length in zip(spans.starts.tolist(), spans.lengths.tolist(), strict=True)
        ]
    else:
        parts = column.cast(pa.binary()).to_pylist()
    hashed = [
        seed if part is None else xxhash.xxh64_intdigest(part, seed)
        for part, seed in zip(parts, seeds.tolist(), strict=True)
    ]
    return np.array(hashed, np.uint64)


def _xx_elements(column: Array, layout: Layout, seeds: Words) -> Words:
    lists, hashes = lists_of(column), seeds.copy()
    members = [lists.elements]
    if layout.kind is types.Kind.MAP:
        members = [lists.elements.field(0), lists.elements.field(1)]
    for position in range(int(lists.counts.max(initial=0))):
        rows = np.flatnonzero(lists.counts > position)
        places = pa.array(lists.starts[rows] + position)
        for member, child in zip(members, layout.children, strict=True):
            hashes[rows] = _xx(member.take(places), child, hashes[rows])
    return hashes


def _rotated(words: Words, bits: int) -> Words:
    return words << np.uint64(bits) | words >> np.uint64(64 - bits)


def _mixed(words: Words) -> Words:
    words = (words ^ words >> np.uint64(33)) * _P2
    words = (words ^ words >> np.uint64(29)) * _P3
    return words ^ words >> np.uint64(32)


def _digest(function: Callable[[bytes], Any], kind: pa.DataType) -> Function:
    return lambda call, value: each(function, kind, value)


_SHA2 = {
    0: hashlib.sha256,
    224: hashlib.sha224,
    256: hashlib.sha256,
    384: hashlib.sha384,
    512: hashlib.sha512,
}


def _sha2(call: Call, value: Value, bits: Value) -> Value:
    def digest(data: bytes, length: int) -> str | None:
        return _SHA2[length](data).hexdigest() if length in _SHA2 else None

    return each(digest, pa.string(), value, bits)


FUNCTIONS: dict[str, Function] = {
    **all_on_columns({"Murmur3Hash": _murmur3, "XxHash64": _xxhash64}),
    "Md5": _digest(lambda data: hashlib.md5(data, usedforsecurity=False).hexdigest(), pa.string()),
    "Sha1": _digest(
        lambda data: hashlib.sha1(data, usedforsecurity=False).hexdigest(), pa.string()
    ),
    "Sha2": _sha2,
    "Crc32": _digest(zlib.crc32, pa.int64()),
}
