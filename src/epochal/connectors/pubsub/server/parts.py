"""The broker's data: messages, their entries in a subscription, lines and consumers; their bytes.

The broker creates and changes hundreds of thousands of these per second, so they are plain slotted
objects. Only `deliveries` and `broker` write to them. An entry is one message in one subscription.
The message itself is shared by all subscriptions, and counts against the server's memory limit
until the last of them drops it.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from epochal.connectors.pubsub.protobuf_wire import encode_field, encode_varint

SECOND_US = 1_000_000
# Measured: the memory a message takes beside its bytes, and what each subscription holding it adds.
MESSAGE_BYTES = 256
HOLD_BYTES = 200


@dataclass(slots=True, eq=False)
class PublishedMessage:
    """One published message. `wire` is its PubsubMessage, with id and publish time at the end."""

    number: int
    wire: bytes
    body_size: int
    """The size of what the publisher sent; id and publish time follow in `wire`."""
    key: str
    attributes: Mapping[str, str]
    published_us: int
    holds: int = 0

    @property
    def body(self) -> bytes:
        return self.wire[: self.body_size]


@dataclass(slots=True, eq=False)
class Memory:
    """Counts the bytes of all messages that are held, with Python's overhead."""

    used: int = 0

    def hold(self, messages: Iterable[PublishedMessage]) -> None:
        used = 0
        for message in messages:
            if message.holds == 0:
                used += len(message.wire) + MESSAGE_BYTES
            message.holds += 1
            used += HOLD_BYTES
        self.used += used

    def drop(self, message: PublishedMessage) -> None:
        message.holds -= 1
        self.used -= HOLD_BYTES
        if message.holds == 0:
            self.used -= len(message.wire) + MESSAGE_BYTES


@dataclass(slots=True, eq=False)
class Consumer:
    """One stream: its limits of unacknowledged messages (0 means none), and what it holds."""

    max_messages: int = 0
    max_bytes: int = 0
    messages: int = 0
    size: int = 0
    lines: deque[Line] = field(default_factory=deque)
    """Lines whose next messages only this consumer may get."""


@dataclass(slots=True, eq=False)
class Entry:
    """One message in one subscription."""

    message: PublishedMessage
    line: Line | None = None
    attempts: int = 0
    serial: int = 0
    """The serial number in its newest acknowledgement id; 0 before the first delivery."""
    deadline_us: int = 0
    """When the lease ends; 0 if it is not leased."""
    holder: Consumer | None = None
    acked: bool = False


@dataclass(slots=True, eq=False)
class Line:
    """The messages of one ordering key: `flying` are leased, `waiting` come after them."""

    key: str
    waiting: deque[Entry] = field(default_factory=deque)
    flying: list[Entry] = field(default_factory=list)
    holder: Consumer | None = None
    """The consumer of the flying messages. Another one that got the next message might finish it
    first, so only the holder may get it."""
    queue: object = None
    """The queue that the line is in, if any. Its occurrences in other queues are stale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a subscription that affect deliveries."""

    ack_deadline_us: int = 10 * SECOND_US
    ordered: bool = False
    exactly_once: bool = False
    retain_acked: bool = False
    retention_us: int = 7 * 86_400 * SECOND_US
    backoff_us: tuple[int, int] | None = None
    """The shortest and longest wait before a redelivery."""
    dead_letter_topic: str = ""
    max_attempts: int = 0


@dataclass(frozen=True, slots=True)
class AckRefusals:
    """The serials of acknowledgement ids that were not accepted."""

    invalid: list[int]
    """Not leased under this id: unknown, settled, expired, or leased again under another id."""
    unordered: list[int]
    """Earlier messages of the line are not acknowledged yet. These ids were not changed."""


ACK_ID_LENGTH = 176
SERIAL_LENGTH = 16
NUMBER_LENGTH = 16


# A message is serialised once, when it is published. A delivery wraps these bytes. All
# acknowledgement ids have the same length, as long as Google's. So the bytes around a message
# depend only on its size and attempts, apart from the serial, and can be cached.
#
# Id and publish time are appended to what the publisher sent. If a field occurs twice, Protobuf
# uses the last one. Nanoseconds are written even if zero: a publisher may have sent a publish time,
# and Protobuf merges the fields of repeated nested messages.
def publish_time(now_us: int) -> bytes:
    """Encode PubsubMessage.publish_time."""
    seconds, micros = divmod(now_us, 1_000_000)
    return encode_field(
        4, b"\x08" + encode_varint(seconds) + b"\x10" + encode_varint(micros * 1000)
    )


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
            envelope = around.get(shape)
            if envelope is None:
                envelope = self._make(shape)
            before, between, after = envelope
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
        between = b"\x12" + encode_varint(size)
        after = b"\x18" + encode_varint(attempts) if attempts else b""
        id_head = b"\x0a" + encode_varint(ACK_ID_LENGTH)
        total = len(id_head) + ACK_ID_LENGTH + len(between) + size + len(after)
        before = b"\x0a" + encode_varint(total) + id_head + self._prefix.encode()
        envelope = self._around[shape] = (before, between, after)
        return envelope
