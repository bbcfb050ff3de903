"""Draws rows of a schema with Hypothesis, and says which rows of output differ from others. Pure.

Hypothesis is imported when rows are drawn.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa

from epochal.continuous.catalyst.given_schema import arrow_schema
from epochal.errors import OptionError

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

Expected: TypeAlias = Mapping[str, Any] | Sequence[Any]
"""A row: values by column, or values in the order of the columns."""

MAX_SHOWN = 20
"""Rows of one kind in a difference."""


class OutputRows(list[dict[str, Any]]):
    """Rows of output. With the pytest plugin, a failed comparison shows which rows differ."""


def rows_equal(
    found: Iterable[Expected], expected: Iterable[Expected], *, ordered: bool = False
) -> Literal[True]:
    """Return True if these are the same rows; otherwise AssertionError with those that differ.

    By default their order does not matter. Rows are dicts, or tuples in the order of the columns.
    """
    lines = difference(list(found), list(expected), ordered=ordered)
    if lines:
        raise AssertionError("\n".join(lines))
    return True


def difference(
    found: Sequence[Expected], expected: Sequence[Expected], *, ordered: bool
) -> list[str]:
    """Return in lines how rows differ from what was expected; none if they do not."""
    # Those of the first row that names them.
    columns = next((list(row) for row in [*found, *expected] if isinstance(row, Mapping)), None)
    left, right = (_name_columns(rows, columns) for rows in (found, expected))
    at_left, at_right = ([_frozen(row) for row in rows] for rows in (left, right))
    missing = _without(right, at_right, Counter(at_left))
    unexpected = _without(left, at_left, Counter(at_right))
    if missing or unexpected:
        return [
            f"found {len(left)} row{'s' * (len(left) != 1)}, expected {len(right)}:",
            *_show("missing   ", missing),
            *_show("unexpected", unexpected),
        ]
    if ordered and at_left != at_right:
        at = next(
            n for n, (one, other) in enumerate(zip(at_left, at_right, strict=True)) if one != other
        )
        return [
            f"the rows are the expected ones, but in another order, from row {at} on:",
            f"  expected   {right[at]}",
            f"  found      {left[at]}",
        ]
    return []


def _name_columns(rows: Iterable[Expected], columns: list[str] | None) -> list[Any]:
    return [
        dict(row)
        if isinstance(row, Mapping)
        else tuple(row)
        if columns is None or len(row) != len(columns)
        else dict(zip(columns, row, strict=True))
        for row in rows
    ]


def _frozen(value: Any) -> Any:
    """Return something that has a hash, and is equal for equal values. NaN equals NaN here."""
    match value:
        case Mapping():
            return frozenset((_frozen(key), _frozen(item)) for key, item in value.items())
        case list() | tuple():
            return tuple(map(_frozen, value))
        case set():
            return frozenset(map(_frozen, value))
        case bytearray():
            return bytes(value)
        case float() if math.isnan(value):
            return "NaN", "of a float"
    return value


def _without(rows: Sequence[Any], frozen: Sequence[Any], others: Counter[Any]) -> list[Any]:
    """Return the rows that are not among the others, each as often as it is not."""
    left, missing = Counter(others), []
    for row, key in zip(rows, frozen, strict=True):
        if left[key] > 0:
            left[key] -= 1
        else:
            missing.append(row)
    return missing


def _show(kind: str, rows: Sequence[Any]) -> list[str]:
    lines = [f"  {kind} {row}" for row in rows[:MAX_SHOWN]]
    if len(rows) > MAX_SHOWN:
        lines.append(f"  {kind} … and {len(rows) - MAX_SHOWN} more")
    return lines


EARLIEST, LATEST = datetime(1970, 1, 1), datetime(2100, 1, 1)  # noqa: DTZ001  drawn with a zone
"""Of timestamps and dates. Earlier ones are stored in another calendar by some formats."""
MAX_ELEMENTS = 4
"""Of an array or a map."""


def rows(
    schema: Any,
    *,
    min_size: int = 0,
    max_size: int = 20,
    nulls: bool = True,
    columns: Mapping[str, SearchStrategy[Any]] | None = None,
) -> SearchStrategy[list[dict[str, Any]]]:
    """Return a Hypothesis strategy for lists of rows of this schema.

    The schema is Arrow's, Spark's or DDL text. `columns` has strategies for single columns, such as
    a few keys that repeat. Without `nulls` there are none, not even in columns that allow them.
    """
    strategies = _hypothesis()
    fields, by_column = arrow_schema(schema), dict(columns or {})
    if unknown := sorted(set(by_column) - set(fields.names)):
        raise OptionError(
            f"There are strategies for the columns {unknown}, but the schema has {fields.names}."
        )
    drawn = {field.name: by_column.get(field.name, _of_field(field, nulls)) for field in fields}
    return strategies.lists(  # type: ignore[no-any-return]
        strategies.fixed_dictionaries(drawn), min_size=min_size, max_size=max_size
    )


def _hypothesis() -> Any:
    try:
        from hypothesis import strategies
    except ModuleNotFoundError:
        raise OptionError(
            "testing.rows draws rows with Hypothesis, which is not installed. Run `pip install "
            "hypothesis`."
        ) from None
    return strategies


def _of_field(field: pa.Field[Any], nulls: bool) -> Any:
    strategy = _of_type(field.type, nulls)
    return _hypothesis().none() | strategy if nulls and field.nullable else strategy


def _of_type(kind: pa.DataType, nulls: bool) -> Any:
    strategies, types = _hypothesis(), pa.types
    if types.is_boolean(kind):
        return strategies.booleans()
    if types.is_integer(kind):
        half = 1 << (kind.bit_width - 1)
        return strategies.integers(-half, half - 1)
    if types.is_floating(kind):
        return strategies.floats(width=kind.bit_width)
    if types.is_decimal(kind):
        inside = 10 ** (kind.precision - kind.scale) - Decimal(1).scaleb(-kind.scale)
        return strategies.decimals(-inside, inside, places=kind.scale)
    if types.is_string(kind) or types.is_large_string(kind):
        return strategies.text(strategies.characters(exclude_categories=["Cs"]), max_size=10)
    if types.is_binary(kind) or types.is_large_binary(kind):
        return strategies.binary(max_size=10)
    if types.is_date(kind):
        return strategies.dates(EARLIEST.date(), LATEST.date())
    if types.is_timestamp(kind):
        zone = strategies.none() if kind.tz is None else strategies.just(UTC)
        return strategies.datetimes(EARLIEST, LATEST, timezones=zone)
    return _of_nested(kind, nulls)


def _of_nested(kind: pa.DataType, nulls: bool) -> Any:
    strategies, types = _hypothesis(), pa.types
    if types.is_struct(kind):
        return strategies.fixed_dictionaries(
            {field.name: _of_field(field, nulls) for field in kind.fields}
        )
    if types.is_list(kind) or types.is_large_list(kind):
        return strategies.lists(_of_field(kind.value_field, nulls), max_size=MAX_ELEMENTS)
    if types.is_map(kind):
        keys, values = _of_type(kind.key_type, False), _of_field(kind.item_field, nulls)
        pairs = strategies.tuples(keys, values)
        return strategies.lists(pairs, max_size=MAX_ELEMENTS, unique_by=lambda pair: pair[0])
    raise OptionError(
        f"There is no strategy for values of type {kind}. Give one: rows(schema, columns={{...}})."
    )
