"""Converts JSON to values of a schema, as Spark's from_json does. Pure.

Values are in the form of `expressions.row_values`: dates are days, timestamps microseconds.
"""

from __future__ import annotations

import base64
import binascii
import functools
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa

from epochal.continuous.operators.spark_values.json_nodes import MalformedJson, Node, parse
from epochal.continuous.operators.spark_values.json_writing import NUMBER_WORDS, compact
from epochal.continuous.operators.spark_values.number_texts import (
    decimal_of,
    fit_decimal,
    long_of,
    round_to_single,
)
from epochal.continuous.operators.spark_values.timestamp_texts import (
    days_of,
    local_micros_of,
    micros_of,
)
from epochal.errors import OptionError

types = pa.types
Kind: TypeAlias = Any
Convert: TypeAlias = Callable[[str, Node], Any]


@dataclass(frozen=True, slots=True)
class TimeReaders:
    """How texts are read as days and microseconds; None stands for no such time."""

    days: Callable[[str], int | None]
    micros: Callable[[str], int | None]
    local_micros: Callable[[str], int | None]


@functools.lru_cache(maxsize=64)
def usual_times(zone: str) -> TimeReaders:
    """What is read without patterns: whatever CAST reads."""
    return TimeReaders(
        _usual_days,
        lambda text: micros_of(text, zone),
        lambda text: local_micros_of(text, zone_allowed=False),
    )


class Mismatch(Exception):
    """A value does not have the type that the schema gives it. `partial` is what could be read."""

    def __init__(self, partial: Any = None) -> None:
        super().__init__(partial)
        self.partial = partial


def converter(kind: Kind, times: TimeReaders) -> Convert:
    """The function from a text and a node in it to a value of the type."""
    made = _converter(kind, times)

    def apply(text: str, node: Node) -> Any:
        return None if node.kind == "null" else made(text, node)

    return apply


def _converter(kind: Kind, times: TimeReaders) -> Convert:
    if types.is_struct(kind):
        return _struct(kind, times)
    if types.is_list(kind):
        return _list(converter(kind.value_type, times))
    if types.is_map(kind):
        return _map(converter(kind.item_type, times))
    if types.is_string(kind):
        return lambda _, node: node.value if node.kind == "string" else compact(node)
    if types.is_boolean(kind):
        return _boolean
    if types.is_integer(kind):
        high = 1 << kind.bit_width - 1
        return lambda _, node: _integer(node, high)
    if types.is_floating(kind):
        narrow = round_to_single if kind == pa.float32() else float
        return lambda _, node: narrow(_floating(node))
    if types.is_decimal(kind):
        return lambda _, node: _decimal(node, kind)
    if types.is_date(kind):
        return lambda _, node: wanted(times.days(_string(node)))
    if types.is_timestamp(kind):
        return _timestamp(kind, times)
    if types.is_binary(kind):
        return lambda _, node: _bytes(_string(node))
    raise OptionError(f"from_json cannot read values of the type {kind}.")


def wanted(value: Any) -> Any:
    """The value; Mismatch if there is none."""
    if value is None:
        raise Mismatch
    return value


def _string(node: Node) -> str:
    if node.kind != "string":
        raise Mismatch
    return str(node.value)


def _boolean(text: str, node: Node) -> bool:
    if node.kind not in ("true", "false"):
        raise Mismatch
    return node.kind == "true"


def _integer(node: Node, high: int) -> int:
    if node.kind != "integer" or not -high <= int(node.value) < high:
        raise Mismatch
    return int(node.value)


def _floating(node: Node) -> float:
    if node.kind in ("integer", "float"):
        return NUMBER_WORDS[node.value] if node.value in NUMBER_WORDS else float(node.value)
    if node.kind == "string" and node.value in NUMBER_WORDS:
        return NUMBER_WORDS[node.value]
    raise Mismatch


def _decimal(node: Node, kind: Kind) -> Decimal:
    if node.kind not in ("integer", "float", "string") or node.value in NUMBER_WORDS:
        raise Mismatch
    number = wanted(decimal_of(node.value))
    fitted: Decimal = wanted(fit_decimal(number, kind.precision, kind.scale))
    return fitted


def _timestamp(kind: Kind, times: TimeReaders) -> Convert:
    if kind.tz is None:
        return lambda _, node: wanted(times.local_micros(_string(node)))

    def convert(_: str, node: Node) -> int:
        if node.kind == "integer":
            return _integer(node, 2**63 // 1_000_000) * 1_000_000
        found: int = wanted(times.micros(_string(node)))
        return found

    return convert


def _usual_days(text: str) -> int | None:
    found = days_of(text)
    if found is None:
        found = long_of(text, fraction=False)  # the number of a day, as old releases wrote it
    return found if found is not None and -(2**31) <= found < 2**31 else None


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise Mismatch from None


def _struct(kind: Kind, times: TimeReaders) -> Convert:
    members = [kind.field(i) for i in range(kind.num_fields)]
    casts = {member.name: converter(member.type, times) for member in members}
    empty = dict.fromkeys(casts)

    def convert(text: str, node: Node) -> dict[str, Any]:
        if node.kind != "object":
            raise Mismatch
        row, failed = dict(empty), False
        for name, value in node.value:
            cast = casts.get(name)
            if cast is not None:
                try:
                    row[name] = cast(text, value)
                except Mismatch as error:
                    failed = True
                    if error.partial is not None:  # an earlier field of this name stays otherwise
                        row[name] = error.partial
        if failed:
            raise Mismatch(row)
        return row

    return convert


def _list(element: Convert) -> Convert:
    def convert(text: str, node: Node) -> list[Any]:
        if node.kind != "array":
            raise Mismatch
        found: list[Any] = []
        failed = False
        for value in node.value:
            try:
                found.append(element(text, value))
            except Mismatch as error:
                if error.partial is None:
                    raise
                found.append(error.partial)
                failed = True
        if failed:
            raise Mismatch(found)
        return found

    return convert


def _map(item: Convert) -> Convert:
    def convert(text: str, node: Node) -> list[tuple[str, Any]]:
        if node.kind != "object":
            raise Mismatch
        found: list[tuple[str, Any]] = []
        failed = False
        for name, value in node.value:
            try:
                found.append((name, item(text, value)))
            except Mismatch as error:
                if error.partial is None:
                    raise
                found.append((name, error.partial))
                failed = True
        if failed:
            raise Mismatch(found)
        return found

    return convert


def reader(
    kind: Kind, times: TimeReaders, *, corrupt: str | None, fail_fast: bool
) -> Callable[[str], Any]:
    """A function from a text to a value of the type.

    Of a struct, fields that cannot be read are null, and `corrupt` is the name of the field for the
    text of such a record. With `fail_fast`, such a record raises Mismatch instead.
    """
    is_struct = types.is_struct(kind)
    of_structs = types.is_list(kind) and types.is_struct(kind.value_type)
    names = [kind.field(i).name for i in range(kind.num_fields)] if is_struct else []
    own = converter(_without(kind, corrupt), times) if corrupt in names else converter(kind, times)

    def read(text: str) -> Any:
        if not text.strip():
            return None
        try:
            node = parse(text)
            if node is None:
                return None
            if is_struct:
                if node.kind == "null":
                    raise Mismatch
                return dict.fromkeys(names) | own(text, node)
            if of_structs and node.kind == "object":
                node = Node("array", [node], node.start, node.end)
            return own(text, node)
        except (Mismatch, MalformedJson, RecursionError) as error:
            if fail_fast:
                raise Mismatch from None
            partial = getattr(error, "partial", None)
            if not is_struct:
                return partial
            row = dict.fromkeys(names) | (partial or {})
            if corrupt in names:
                row[str(corrupt)] = text
            return row

    return read


def _without(kind: Kind, name: str | None) -> Kind:
    members = [kind.field(i) for i in range(kind.num_fields)]
    return pa.struct([member for member in members if member.name != name])
