"""`collect_list` and `collect_set`, with the buffers that Spark keeps for them. Pure.

In state, a buffer is a binary that holds a row with one array. In memory it is a list, or a dict
whose keys tell equal values apart as Spark does: every NaN equals every other, and -0.0 equals 0.0.

Note: Spark's sets have the order of its hash table, ours the order in which values came. The array
that `collect_set` returns may therefore have another order than in Spark, which promises none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from epochal.continuous.operators.aggregation.calls import AggregateCall, Fold
from epochal.continuous.operators.cells import hashable
from epochal.state.rows.arrow_types import spark_type
from epochal.state.rows.types import ArrayType, AtomicType, DataType, StructField, StructType
from epochal.state.rows.unsafe_row import decode_row, encode_row

_FIELDS = (StructField("buf", AtomicType("binary")),)


def collect_list(call: AggregateCall, kinds: Sequence[pa.DataType]) -> Fold:
    """All values in the order of rows, without nulls unless `ignoreNulls` is false."""
    ignores_nulls = bool(call.extra.get("ignoreNulls", True))
    pack, unpack = _packing(spark_type(kinds[0]))

    def update(kept: list[Any], value: Any) -> list[Any]:
        if value is not None or not ignores_nulls:
            kept.append(value)
        return kept

    def merge(a: list[Any], b: list[Any]) -> list[Any]:
        a.extend(b)
        return a

    return Fold(
        fields=_FIELDS,
        new=list,
        update=update,
        merge=merge,
        results=list,
        store=lambda kept: (pack(kept),),
        load=lambda row: unpack(row[0]),
    )


def collect_set(call: AggregateCall, kinds: Sequence[pa.DataType]) -> Fold:
    """The values that differ, without null unless `ignoreNulls` is false."""
    ignores_nulls = bool(call.extra.get("ignoreNulls", True))
    binary = pa.types.is_binary(kinds[0]) or pa.types.is_large_binary(kinds[0])
    # Spark keeps a binary as an array of bytes. A float is kept by its bits, which look the same.
    pack, unpack = _packing(ArrayType(AtomicType("byte")) if binary else spark_type(kinds[0]))

    def update(kept: dict[Any, None], value: Any) -> dict[Any, None]:
        if value is not None or not ignores_nulls:
            kept[hashable(value)] = None
        return kept

    def merge(a: dict[Any, None], b: dict[Any, None]) -> dict[Any, None]:
        a.update(b)
        return a

    def store(kept: dict[Any, None]) -> tuple[bytes]:
        return (pack([_signed(each) for each in kept] if binary else list(kept)),)

    def load(row: tuple[Any, ...]) -> dict[Any, None]:
        found = unpack(row[0])
        return dict.fromkeys([_unsigned(each) if binary else hashable(each) for each in found])

    return Fold(
        fields=_FIELDS,
        new=dict,
        update=update,
        merge=merge,
        results=lambda kept: [list(each) for each in kept],
        store=store,
        load=load,
    )


def _packing(
    element: DataType,
) -> tuple[Callable[[list[Any]], bytes], Callable[[bytes], list[Any]]]:
    """How to pack a list into a binary, and back."""
    schema = StructType((StructField("values", ArrayType(element)),))

    def pack(values: list[Any]) -> bytes:
        return encode_row((values,), schema)

    def unpack(data: bytes) -> list[Any]:
        return list(decode_row(data, schema)[0])

    return pack, unpack


def _signed(value: bytes | None) -> list[int] | None:
    return None if value is None else [each - 256 if each > 127 else each for each in value]


def _unsigned(value: Sequence[int] | None) -> bytes | None:
    return None if value is None else bytes(each & 0xFF for each in value)
