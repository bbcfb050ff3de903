"""The few Protobuf messages that are too many to be built as objects, written by hand.

A delivery is wrapped around bytes that were serialised once, when the message was published. All
acknowledgement ids have one length, as long as Google's, so that the bytes before and after the
serial depend on the message's size alone and can be kept.

What a reader would get wrong: id and publish time are appended to what the publisher sent. Where
fields repeat, Protobuf's last one wins; nanoseconds are written even when zero, because the parts
of a nested message would be merged otherwise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from epochal.connectors.pubsub.protobuf_wire import field, varint
from epochal.connectors.pubsub.server.parts import Entry

ACK_ID_LENGTH = 176
SERIAL_LENGTH = 16
NUMBER_LENGTH = 16


def published(now_us: int) -> bytes:
    """PubsubMessage.publish_time."""
    seconds, micros = divmod(now_us, 1_000_000)
    return field(4, b"\x08" + varint(seconds) + b"\x10" + varint(micros * 1000))


def numbered(number: int) -> bytes:
    """PubsubMessage.message_id."""
    return b"\x1a\x10%016d" % number


def ack_prefix(seed: int, subscription: str) -> str:
    """What all acknowledgement ids of a subscription begin with: opaque, the same every time."""
    length = ACK_ID_LENGTH - SERIAL_LENGTH
    digest = hashlib.shake_256(f"{seed} {subscription}".encode()).hexdigest(length // 2)
    return digest.upper()


class Envelopes:
    """Wraps deliveries of one subscription, as `received_messages` of either pull's response."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._around: dict[tuple[int, int], tuple[bytes, bytes, bytes]] = {}

    def wrap(self, entries: Iterable[Entry], *, count_attempts: bool) -> bytes:
        """The bytes of all entries, each a field 1 of the response."""
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
        """The serial in an id; 0 for one of another subscription, ValueError for no id at all."""
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
