"""Draws rows of a schema with Hypothesis: `rows`. Hypothesis is imported when it is called."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from epochal.continuous.catalyst.given_schema import arrow_schema
from epochal.errors import OptionError

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

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
        most = 10 ** (kind.precision - kind.scale)
        inside = most - _hypothesis_decimal(kind.scale)
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
        pairs = strategies.lists(
            strategies.tuples(keys, values), max_size=MAX_ELEMENTS, unique_by=lambda pair: pair[0]
        )
        return pairs
    raise OptionError(
        f"There is no strategy for values of type {kind}. Give one: rows(schema, columns={{...}})."
    )


def _hypothesis_decimal(scale: int) -> Any:
    from decimal import Decimal

    return Decimal(1).scaleb(-scale)
