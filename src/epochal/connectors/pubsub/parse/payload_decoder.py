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

    Where `decode` raises one of `caught`, the value is None and the error is its reason.
    """
    values: list[Any] = []
    errors: list[str | None] = []
    for index, payload in enumerate(payloads):
        try:
            values.append(decode(index, payload))
            errors.append(None)
        except caught as error:
            values.append(None)
            errors.append(reason(error, payload))
    return values, errors


def reason(error: Exception, payload: bytes) -> str:
    """Return why a payload cannot be decoded. Some libraries raise errors without a text."""
    text = str(error).strip()
    if isinstance(error, EOFError | IndexError | StopIteration):
        found = f"the payload of {len(payload)} bytes ends too early for the schema"
        text = f"{found} ({text})" if text else found
    return f"{type(error).__name__}: {text or f'the payload of {len(payload)} bytes is malformed'}"


def unsupported_type(field: str, kind: object) -> PayloadError:
    """The error for a field of the payload that no column type can hold."""
    return PayloadError(
        f"{field} is {kind}, which cannot become a column. Leave the field out of the schema."
    )
