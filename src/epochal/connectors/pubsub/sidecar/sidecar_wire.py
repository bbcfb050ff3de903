"""Sends and receives messages over a unix socket: a length of four bytes, then MessagePack."""

from __future__ import annotations

import struct
from io import BufferedIOBase
from typing import TypeVar

import msgspec

from epochal.errors import PubSubReaderError

T = TypeVar("T")
MAX_BYTES = 16 << 20
_LENGTH = struct.Struct(">I")


def send(file: BufferedIOBase, message: object) -> None:
    """Write one message."""
    data = msgspec.msgpack.encode(message)
    file.write(_LENGTH.pack(len(data)) + data)
    file.flush()


def receive(file: BufferedIOBase, kind: type[T]) -> T | None:
    """Read one message; None if the other side has closed the socket."""
    head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack(head)
    if size > MAX_BYTES:
        raise PubSubReaderError(
            f"A message on a sidecar's socket has {size} bytes, but the most is {MAX_BYTES}: the "
            f"other side is not one of Epochal's processes, or has another version."
        )
    data = file.read(size)
    if len(data) < size:
        return None
    return msgspec.msgpack.decode(data, type=kind)
