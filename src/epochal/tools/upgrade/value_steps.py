"""Decides how `epochal state evolve` can bring stored values to another layout. Pure.

Values can get new columns and wider types. Columns cannot be removed or change places. The command
finds columns by name, so it cannot change values in which a name occurs twice.
"""

from __future__ import annotations

from collections.abc import Mapping

from epochal.state.rows.types import StructField, StructType, schema_json

_WIDER = {
    "byte": ("short", "integer", "long"),
    "short": ("integer", "long"),
    "integer": ("long", "double"),
    "float": ("double",),
}
AGGREGATES = {"count": "0", "max": "null", "min": "null", "sum": "null"}
"""What an aggregate without input has in its columns, by their names. A sum of decimals has more
than one column, and is not among them."""
TIMEOUTS = {"timeoutTimestamp": "-1"}
"""What the state of a group has that has no timeout."""


def evolve_words(
    old: StructType, new: StructType, starts: Mapping[str, str] | None = None
) -> list[str] | None:
    """The options of `state evolve` that turn `old` into `new`; None if there are none.

    A new column is null in old rows, or has its value in `starts`, in which others must not occur.
    """
    if not (_is_expressible(old) and _is_expressible(new)):
        return None
    words: list[str] = []
    previous, position, last_added = "", 0, ""
    for wanted in new.fields:
        stored = old.fields[position] if position < len(old.fields) else None
        if stored is not None and stored.name == wanted.name:
            if _type(stored) != _type(wanted):
                if _type(wanted) not in _WIDER.get(_type(stored), ()):
                    return None
                words += ["--widen", f"{wanted.name}:{_type(wanted)}"]
            position, previous = position + 1, wanted.name
            continue
        start = "null" if starts is None else _start(wanted, starts)
        if not previous or start is None or last_added not in ("", previous):
            return None  # all new columns go to one place, which is behind another column
        words += ["--add", f"{wanted.name}:{_type(wanted)}={start}"]
        if stored is not None and not last_added:
            words += ["--after", previous]
        previous = last_added = wanted.name
    if position < len(old.fields) or not words:
        return None
    return words


def _is_expressible(schema: StructType) -> bool:
    names = [each.name for each in schema.fields]
    return len(set(names)) == len(names) and not any(set(":=") & set(name) for name in names)


def _type(field: StructField) -> str:
    return schema_json(field.data_type).strip('"')


def _start(field: StructField, starts: Mapping[str, str]) -> str | None:
    return None if _type(field).startswith("decimal") else starts.get(field.name)
