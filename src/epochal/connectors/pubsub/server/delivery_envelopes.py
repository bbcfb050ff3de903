"""Encodes the embedded server's deliveries by hand. Building Protobuf objects would be too slow.

A message is serialised once, when it is published. A delivery wraps these bytes. All
acknowledgement ids have the same length, as long as Google's. So the bytes around a message depend
only on its size and attempts, apart from the serial, and can be cached.

Note: id and publish time are appended to what the publisher sent. If a field occurs twice, Protobuf
uses the last one. Nanoseconds are written even if zero: a publisher may have sent a publish time,
and Protobuf merges the fields of repeated nested messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from epochal.connectors.pubsub.protobuf_wire import field, varint
from epochal.connectors.pubsub.server.parts import Entry

ACK_ID_LENGTH = 176
SERIAL_LENGTH = 16
NUMBER_LENGTH = 16


def publish_time(now_us: int) -> bytes:
    """Encode PubsubMessage.publish_time."""
    seconds, micros = divmod(now_us, 1_000_000)
    return field(4, b"\x08" + varint(seconds) + b"\x10" + varint(micros * 1000))


def message_id(number: int) -> bytes:
    """Encode PubsubMessage.message_id."""
    return b"\x1a\x10%016d" % number


def ack_prefix(seed: int, subscription: str) -> str:
    """Return the opaque prefix of all acknowledgement ids of a subscription. Deterministic."""
    length = ACK_ID_LENGTH - SERIAL_LENGTH
    digest = hashlib.shake_256(f"{seed} {subscription}".encode()).hexdigest(length // 2)
    return digest.upper()


class Envelopes:
    """Encodes the deliveries of one subscription as `received_messages`.

    The field has the same number in PullResponse and StreamingPullResponse.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._around: dict[tuple[int, int], tuple[bytes, bytes, bytes]] = {}

    def wrap(self, entries: Iterable[Entry], *, count_attempts: bool) -> bytes:
        """Encode entries, each as field 1 of the response."""
        parts: list[bytes] = []
        around = self._around
        for entry in entries:
            wire = entry.message.wire
            shape = (len(wire), entry.attempts if count_attempts else 0)
            found = around.get(shape)
            if found is None:
                found = self._make(shape)
            before, between, after = found
            parts += (before, b"%016x" % entry.serial, between, wire, after)
        return b"".join(parts)

    def ack_id(self, serial: int) -> str:
        return f"{self._prefix}{serial:016x}"

    def serial(self, ack_id: str) -> int:
        """Return the serial in an acknowledgement id; 0 if it is another subscription's.

        Raises ValueError if the text is not an acknowledgement id.
        """
        if len(ack_id) != ACK_ID_LENGTH:
            raise ValueError(ack_id)
        serial = int(ack_id[-SERIAL_LENGTH:], 16)
        return serial if ack_id.startswith(self._prefix) else 0

    def _make(self, shape: tuple[int, int]) -> tuple[bytes, bytes, bytes]:
        size, attempts = shape
        if len(self._around) > 10_000:
            self._around.clear()
        between = b"\x12" + varint(size)
        after = b"\x18" + varint(attempts) if attempts else b""
        id_head = b"\x0a" + varint(ACK_ID_LENGTH)
        total = len(id_head) + ACK_ID_LENGTH + len(between) + size + len(after)
        before = b"\x0a" + varint(total) + id_head + self._prefix.encode()
        made = self._around[shape] = (before, between, after)
        return made
