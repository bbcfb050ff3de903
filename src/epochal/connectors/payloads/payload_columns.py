"""What the decoders and the encoders of all payload formats share.

Decoded rows get two columns: `parsed`, a struct, and `parse_error`, the reason if `parsed` is null.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from epochal.errors import OptionError, PayloadError

PARSED, PARSE_ERROR = "parsed", "parse_error"
MAX_ERROR_CHARS = 500


class PayloadDecoder(Protocol):
    """Decodes payloads of one schema."""

    @property
    def type(self) -> pa.StructType: ...

    def decode(self, payloads: Sequence[Any], attributes: Any) -> tuple[Any, list[str | None]]:
        """Return one struct and one error per payload: one of them null, both for a null payload.

        `attributes` are those of Pub/Sub messages, or None.
        """
        ...


def read_document(text: str, option: str, *, is_avro: bool) -> bytes:
    """Return the schema that an option gives: Avro's JSON itself, a file's path, or base64."""
    if is_avro and text.lstrip().startswith(("{", "[")):
        return text.encode()
    try:
        return Path(text).read_bytes()
    except OSError as error:
        try:
            return base64.b64decode(text, validate=True)
        except ValueError:
            raise OptionError(
                f"{option} cannot be read: {error}. Give the path of a file on the driver."
            ) from error


def decode_each(
    payloads: Sequence[Any], decode: Callable[[int, Any], Any], caught: Any, raised: Any = ()
) -> tuple[list[Any], list[str | None]]:
    """Call `decode` with each index and payload; return the values and the errors.

    Where `decode` raises one of `caught`, the value is None and the error is its reason. What is no
    fault of a payload, one of `raised`, passes through.
    """
    values: list[Any] = []
    errors: list[str | None] = []
    for index, payload in enumerate(payloads):
        try:
            values.append(decode(index, payload))
            errors.append(None)
        except raised:
            raise
        except caught as error:
            values.append(None)
            errors.append(reason(error, payload))
    return values, errors


def as_column(
    values: list[Any], errors: list[str | None], kind: Any
) -> tuple[Any, list[str | None]]:
    """Decoded values as a column, and the errors of all rows.

    A value that Arrow rejects, such as a decimal with too many digits, is an error of its row.
    """
    try:
        return pa.array(values, kind), errors
    except REJECTED:
        pass
    values_left = []
    for index, value in enumerate(values):
        try:
            pa.array([value], kind)
            values_left.append(value)
        except REJECTED as error:
            values_left.append(None)
            errors[index] = f"{type(error).__name__}: {error}"
    return pa.array(values_left, kind), errors


REJECTED = (pa.ArrowException, ValueError, OverflowError, TypeError)


def reason(error: Exception, payload: bytes) -> str:
    """Return why a payload cannot be decoded. Some libraries raise errors without a text."""
    text = str(error).strip()
    if isinstance(error, EOFError | IndexError | StopIteration):
        message = f"the payload of {len(payload)} bytes ends too early for the schema"
        text = f"{message} ({text})" if text else message
    return f"{type(error).__name__}: {text or f'the payload of {len(payload)} bytes is malformed'}"


def spread(values: Any, present: Sequence[bool]) -> Any:
    """The values in the rows where one is present, and nulls in the others."""
    flags = np.array(present, dtype=bool)
    return values.take(pa.array(np.cumsum(flags) - 1, pa.int64(), mask=~flags))


def unsupported_type(field: str, kind: object) -> PayloadError:
    """The error for a field of the payload that no column type can hold."""
    return PayloadError(
        f"{field} is {kind}, which cannot become a column. Leave the field out of the schema."
    )


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
        encoded = list(encode(column))
    except Exception:  # noqa: BLE001  the libraries raise many kinds; the loop below tells them
        encoded = [None] * len(column)
        for index, null in enumerate(nulls):
            try:
                encoded[index] = None if null else encode(column.slice(index, 1))[0]
            except Exception as error:  # noqa: BLE001  as above
                errors[index] = f"{type(error).__name__}: {error}"
    return [None if null else value for null, value in zip(nulls, encoded, strict=True)], errors


def fit_structs(column: Any, schema: Sequence[Any], *, fill: bool) -> Any:
    """Structs with the fields of `schema` in its types; with `fill`, missing ones are null.

    Raises ArrowInvalid for a value that its type does not hold.
    """
    kind = column.type
    names = [kind.field(n).name for n in range(kind.num_fields)]
    flat = dict(zip(names, column.flatten(), strict=True))
    fields = [field for field in schema if fill or field.name in flat]
    arrays = [
        flat[field.name].cast(field.type)
        if field.name in flat
        else pa.nulls(len(column), field.type)
        for field in fields
    ]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=column.is_null())
