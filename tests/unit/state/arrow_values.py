"""What rows hold, as Arrow columns and back: the slow way, to check the fast one against.

Fields are told apart by their position: the buffers of an aggregation may share one name.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from epochal.state.rows.arrow_types import arrow_type
from epochal.state.rows.types import Kind, Layout, StructType
from epochal.state.rows.unsafe_row import CalendarInterval, TimestampNanos, Variant


def to_arrow(rows: list[tuple[Any, ...]], schema: StructType) -> pa.StructArray:
    """Build a struct column value by value."""
    arrow = arrow_type(schema)
    array = pa.array([_python(row, schema.layout) for row in rows], _integers(arrow))
    built = _as_type(array, arrow)
    assert isinstance(built, pa.StructArray)
    return built


def from_arrow(array: pa.Array[Any], layout: Layout) -> list[Any]:
    """Read a column value by value."""
    plain = _as_type(array, _integers(array.type))
    return [_physical(value, layout) for value in plain.to_pylist(maps_as_pydicts=None)]


def _integers(arrow: Any) -> Any:
    """The same type with its dates, times and durations as the numbers they are stored as."""
    kind = pa.types
    if kind.is_struct(arrow):
        types = [_integers(arrow.field(i).type) for i in range(arrow.num_fields)]
        return pa.struct([pa.field(str(i), each) for i, each in enumerate(types)])
    if kind.is_map(arrow):
        return pa.map_(_integers(arrow.key_type), _integers(arrow.item_type))
    if kind.is_list(arrow):
        return pa.list_(pa.field("element", _integers(arrow.value_type)))
    if kind.is_date32(arrow):
        return pa.int32()
    if kind.is_timestamp(arrow) or kind.is_duration(arrow) or kind.is_time64(arrow):
        return pa.int64()
    return arrow


def _as_type(array: pa.Array[Any], arrow: Any) -> pa.Array[Any]:
    """Relabel the same buffers, at every depth."""
    kind = pa.types
    if array.type.equals(arrow):
        return array
    if kind.is_nested(arrow):
        counts = [arrow.field(i).type for i in range(arrow.num_fields)]
        whole: Any = pa.concat_arrays([array])
        own = whole.buffers()[: 2 if not kind.is_struct(arrow) else 1]
        if kind.is_struct(arrow):
            children = [_as_type(whole.field(i), each) for i, each in enumerate(counts)]
        else:
            children = [_as_type(whole.values, arrow.field(0).type)]
        return pa.Array.from_buffers(arrow, len(whole), own, children=children)
    return array.view(arrow)


def _python(value: Any, layout: Layout) -> Any:
    if value is None:
        return None
    match layout.kind:
        case Kind.STRUCT:
            pairs = enumerate(zip(value, layout.children, strict=True))
            return {str(i): _python(item, child) for i, (item, child) in pairs}
        case Kind.ARRAY:
            return [_python(item, layout.children[0]) for item in value]
        case Kind.MAP:
            key, item = layout.children
            return [(_python(k, key), _python(v, item)) for k, v in value]
        case Kind.INTERVAL:
            return {"0": value.months, "1": value.days, "2": value.microseconds}
        case Kind.NANOS:
            return {"0": value.epoch_micros, "1": value.nanos}
        case Kind.VARIANT:
            return {"0": value.value, "1": value.metadata}
    return value


def _physical(value: Any, layout: Layout) -> Any:
    if value is None:
        return None
    match layout.kind:
        case Kind.STRUCT:
            pairs = zip(value.values(), layout.children, strict=True)
            return tuple(_physical(item, child) for item, child in pairs)
        case Kind.ARRAY:
            return [_physical(item, layout.children[0]) for item in value]
        case Kind.MAP:
            key, item = layout.children
            return [(_physical(k, key), _physical(v, item)) for k, v in value]
        case Kind.INTERVAL:
            return CalendarInterval(*value.values())
        case Kind.NANOS:
            return TimestampNanos(*value.values())
        case Kind.VARIANT:
            return Variant(*value.values())
    return value
