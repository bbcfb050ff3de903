"""What a dead letter contains, and the options about bad rows. Pure.

A letter is one JSON object: the query, the epoch, the task, the reason and the row. The row may
hold the very value that the sink could not write, so no value of a row makes a letter fail: what
has no form in JSON becomes text.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec
import pyarrow as pa

from epochal.connectors.contract import BadRows
from epochal.errors import OptionError
from epochal.options import option_name, read_options

CUT_MARGIN_BYTES = 4096
"""Room for the parts of a letter besides a row that was cut."""
MAX_REASON_CHARS = 1000


class OnBadRow(StrEnum):
    FAIL = "fail"
    DEAD_LETTER = "deadLetter"


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRowOptions:
    """What happens to rows that the sink cannot write."""

    on_bad_row: OnBadRow = OnBadRow.FAIL

    dead_letter_path: str | None = None
    """A directory for dead letters: JSON lines, visible together with their epoch."""

    dead_letter_topic: str | None = None
    """Only of the Kafka sink: a topic for dead letters, which belong to the epoch's transaction."""

    bad_row_column: str | None = None
    """A text column with the reason why a row is bad, null for good rows. It is not written."""

    def __post_init__(self) -> None:
        places = [name for name in PLACES if getattr(self, name) is not None]
        names = [option_name(name) for name in places]
        if self.on_bad_row is OnBadRow.DEAD_LETTER and len(places) != 1:
            given = " and ".join(names) or "neither"
            raise OptionError(
                f"onBadRow=deadLetter needs one place for the letters, deadLetterPath or "
                f"deadLetterTopic, but {given} is given."
            )
        if self.on_bad_row is OnBadRow.FAIL and places:
            raise OptionError(
                f"{names[0]} has no effect with onBadRow=fail, the default. Set "
                f"onBadRow=deadLetter, or remove {names[0]}."
            )


PLACES = ("dead_letter_path", "dead_letter_topic")
_NAMES = {option_name(name).lower() for name in ("on_bad_row", *PLACES, "bad_row_column")}


def split_bad_row_options(
    given: Mapping[str, str], of: str
) -> tuple[BadRowOptions, dict[str, str]]:
    """Split options into those about bad rows and those of the sink."""
    ours = {key: value for key, value in given.items() if key.lower() in _NAMES}
    rest = {key: value for key, value in given.items() if key not in ours}
    return read_options(BadRowOptions, ours, of=of), rest


def letters_of(
    batch: pa.RecordBatch, bad: BadRows, origin: Mapping[str, Any], *, max_bytes: int | None = None
) -> list[bytes]:
    """The letters of these rows, each with what `origin` says of them.

    With `max_bytes`, the row of a larger letter is cut.
    """
    letters = []
    for index in sorted(bad):
        head = {**origin, "reason": bad[index][:MAX_REASON_CHARS]}
        row = {
            name: value
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
            if (value := readable(column[index])) is not None
        }
        letter = _encode({**head, "row": row})
        if max_bytes is not None and len(letter) > max_bytes:
            # A quote or backslash of the text takes two bytes inside another text.
            most = max(0, (max_bytes - CUT_MARGIN_BYTES) // 2)
            text = _encode(row)[:most].decode(errors="ignore")
            letter = _encode({**head, "rowCut": text})
        letters.append(letter)
    return letters


def readable(value: Any) -> Any:
    """An Arrow scalar as a value of JSON, as near as possible to what Spark's to_json writes."""
    if not value.is_valid:
        return None
    kind, types = value.type, pa.types
    if types.is_struct(kind):
        fields = {kind.field(n).name: readable(value[n]) for n in range(kind.num_fields)}
        return {name: field for name, field in fields.items() if field is not None}
    if types.is_map(kind):
        return {str(readable(pair["key"])): readable(pair["value"]) for pair in value.values}
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return [readable(element) for element in value.values]
    if types.is_dictionary(kind):
        return readable(value.value)
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return base64.b64encode(value.as_py()).decode()
    if types.is_string(kind) or types.is_large_string(kind):
        return value.as_buffer().to_pybytes().decode(errors="backslashreplace")
    if types.is_floating(kind):
        number = value.as_py()
        if math.isfinite(number):
            return number
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_decimal(kind):
        return value.as_py()
    try:
        # Dates and times. Python's own types end with the year 9999.
        return value.cast(pa.string()).as_py().replace(" ", "T")
    except (pa.ArrowException, ValueError):
        return f"a value of type {kind}"


_encode = msgspec.json.Encoder(decimal_format="number").encode
