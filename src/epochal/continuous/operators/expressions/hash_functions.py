"""Hash functions. Pure.

`hash` and `xxhash64` hash the columns of a row one after the other: the hash of each is the seed of
the next, and a null leaves it unchanged. So do structs, arrays and maps with what is in them.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from epochal.continuous.operators.expressions.expr import Call, Function, Value
from epochal.continuous.operators.expressions.nested.lists_of import (
    Array,
    all_on_columns,
)
from epochal.continuous.operators.expressions.values_of import each
from epochal.state.rows.arrow_types import arrow_type, spark_schema
from epochal.state.rows.murmur3 import hash_columns
from epochal.state.rows.types import StructType
from epochal.state.rows.xxhash64 import xxhash64_columns


def _murmur3(call: Call, *values: Value) -> Value:
    return pa.array(hash_columns(*_typed(values), call.extra.get("seed", 42)))


def _xxhash64(call: Call, *values: Value) -> Value:
    return pa.array(xxhash64_columns(*_typed(values), call.extra.get("seed", 42)))


def _typed(values: tuple[Value, ...]) -> tuple[list[Array], StructType]:
    """The columns in the types that Spark's rows have, and their schema."""
    names = [f"c{number}" for number in range(len(values))]
    schema = spark_schema(
        pa.schema(list(zip(names, (value.type for value in values), strict=True)))
    )
    wanted = [arrow_type(field.data_type) for field in schema.fields]
    return [value.cast(kind) for value, kind in zip(values, wanted, strict=True)], schema


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
