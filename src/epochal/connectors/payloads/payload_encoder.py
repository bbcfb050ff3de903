"""What the encoders of all payload formats share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa


def encode_rows(
    column: Any, encode: Callable[[Any], Sequence[bytes | None]]
) -> tuple[list[bytes | None], list[str | None]]:
    """Encode a column of structs; return one value and one error per row, one of them null.

    A null struct has neither. If the column as a whole cannot be encoded, its rows are encoded one
    by one, to find those at fault.
    """
    nulls = column.is_null().to_pylist()
    errors: list[str | None] = [None] * len(column)
    try:
        found = list(encode(column))
    except Exception:  # noqa: BLE001  the libraries raise many kinds; the loop below tells them
        found = [None] * len(column)
        for index, null in enumerate(nulls):
            try:
                found[index] = None if null else encode(column.slice(index, 1))[0]
            except Exception as error:  # noqa: BLE001  as above
                errors[index] = f"{type(error).__name__}: {error}"
    return [None if null else value for null, value in zip(nulls, found, strict=True)], errors


def fitted(column: Any, schema: Sequence[Any], *, fill: bool) -> Any:
    """Structs with the fields of `schema` in its types; with `fill`, missing ones are null.

    Raises ArrowInvalid for a value that its type does not hold.
    """
    kind = column.type
    names = [kind.field(n).name for n in range(kind.num_fields)]
    flat = dict(zip(names, column.flatten(), strict=True))
    fields = [each for each in schema if fill or each.name in flat]
    arrays = [
        flat[each.name].cast(each.type) if each.name in flat else pa.nulls(len(column), each.type)
        for each in fields
    ]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=column.is_null())
