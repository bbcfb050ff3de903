"""What the decoders of all payload formats share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa

from epochal.errors import PayloadError


class PayloadDecoder(Protocol):
    """Decodes payloads of one schema."""

    @property
    def type(self) -> pa.StructType: ...

    def decode(self, payloads: Sequence[bytes], attributes: Any) -> tuple[Any, list[str | None]]:
        """Return one struct and one error per payload; exactly one of the two is null."""
        ...


def decode_each(
    payloads: Sequence[bytes], decode: Callable[[int, bytes], Any], caught: Any
) -> tuple[list[Any], list[str | None]]:
    """Call `decode` with each index and payload; return the values and the errors.

    Where `decode` raises one of `caught`, the value is None and the error is its text.
    """
    values: list[Any] = []
    errors: list[str | None] = []
    for index, payload in enumerate(payloads):
        try:
            values.append(decode(index, payload))
            errors.append(None)
        except caught as error:
            values.append(None)
            errors.append(f"{type(error).__name__}: {error}")
    return values, errors


def unsupported_type(field: str, kind: object) -> PayloadError:
    """The error for a field of the payload that no column type can hold."""
    return PayloadError(
        f"{field} is {kind}, which cannot become a column. Leave the field out of the schema."
    )
