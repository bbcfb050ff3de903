"""Decodes Protobuf payloads, a batch at a time, with a descriptor set.

Note: Protobuf accepts almost any bytes as a message with unknown fields. A payload is malformed
only if it breaks the wire format or the UTF-8 of a string.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from epochal.connectors.payloads.payload_columns import spread
from epochal.errors import OptionError
from epochal.record_batches import struct_of


def message_of(document: bytes, message: str | None, what: str) -> Any:
    """The descriptor of a message in a descriptor set; by default the set's last file's first one.

    `what` names the set in errors.
    """
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(document)
    except DecodeError as error:
        raise OptionError(
            f"{what} is not a descriptor set: {error}. Make one with protoc --descriptor_set_out."
        ) from error
    return message_in(list(files.file), message, what)


def message_in(files: Sequence[Any], message: str | None, what: str) -> Any:
    """The descriptor of a message in files; those that others import come first."""
    from google.protobuf import descriptor_pool

    pool = descriptor_pool.DescriptorPool()
    if message is None:
        message = _first_message(files, what)
    try:
        for file in files:
            pool.Add(file)
        return pool.FindMessageTypeByName(message)
    except (KeyError, TypeError) as error:
        raise OptionError(
            f"{what} has no message {message!r} ({error}). Correct the name of the message, or "
            f"make the descriptor set with --include_imports."
        ) from error


def _first_message(files: Sequence[Any], what: str) -> str:
    last = files[-1] if files else None
    if last is None or not last.message_type:
        raise OptionError(f"{what} defines no message.")
    name: str = last.message_type[0].name
    return f"{last.package}.{name}" if last.package else name


class ProtobufDecoder:
    """Decodes messages of one type."""

    def __init__(self, descriptor: Any) -> None:
        from ptars import HandlerPool

        self._handler: Any = HandlerPool([descriptor.file]).get_for_message(descriptor)
        self.type = pa.struct([(field.name, _type(field.type)) for field in self._batch([]).schema])

    def decode(
        self, payloads: Sequence[bytes], attributes: Any = None
    ) -> tuple[Any, list[str | None]]:
        try:
            return self._structs(payloads), [None] * len(payloads)
        except Exception:  # noqa: BLE001 - one payload is malformed; the loop below finds it
            pass
        errors: list[str | None] = []
        for payload in payloads:
            try:
                self._batch([payload])
                errors.append(None)
            except Exception as error:  # noqa: BLE001 - the Rust library has no common error class
                errors.append(f"{type(error).__name__}: {error}")
        present = [error is None for error in errors]
        return spread(self._structs(list(compress(payloads, present))), present), errors

    def _batch(self, payloads: Sequence[bytes]) -> Any:
        return self._handler.list_to_record_batch(list(payloads))

    def _structs(self, payloads: Sequence[bytes]) -> Any:
        batch = self._batch(payloads)
        columns = [
            pc.cast(column, field.type, safe=False)
            for column, field in zip(batch.columns, self.type, strict=True)
        ]
        return struct_of(columns, list(self.type), batch.num_rows)


def _type(kind: Any) -> Any:
    """Replace types that Spark does not have: unsigned integers, nanoseconds, non-null fields."""
    types = pa.types
    if types.is_timestamp(kind):
        return pa.timestamp("us", tz=kind.tz)
    if kind == pa.uint32():
        return pa.int64()
    if kind == pa.uint64():
        return pa.decimal128(20, 0)
    if types.is_struct(kind):
        return pa.struct([(field.name, _type(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_type(kind.key_type), _type(kind.item_type))
    if types.is_list(kind):
        return pa.list_(_type(kind.value_type))
    return kind
