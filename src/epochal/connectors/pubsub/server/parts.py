"""What the broker moves about: messages, their entries in a subscription, lines and consumers.

These are made and changed by the hundred thousand a second, so they are plain slotted objects that
only `deliveries` and `broker` write to. An entry is one message in one subscription; a message is
shared by all of them and counts against the server's memory until the last lets go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

SECOND_US = 1_000_000
# Measured: what a message takes beside its bytes, and what each subscription that holds it adds.
MESSAGE_BYTES = 256
HOLD_BYTES = 200


@dataclass(slots=True, eq=False)
class Message:
    """One published message: `wire` is its PubsubMessage, id and time at the end."""

    number: int
    wire: bytes
    body_size: int
    """How much of `wire` the publisher sent; id and publish time follow."""
    key: str
    attributes: Mapping[str, str]
    published_us: int
    holds: int = 0

    @property
    def body(self) -> bytes:
        return self.wire[: self.body_size]


@dataclass(slots=True, eq=False)
class Memory:
    """How many bytes all messages take that anybody holds, Python's own included."""

    used: int = 0

    def hold(self, messages: Iterable[Message]) -> None:
        used = 0
        for message in messages:
            if message.holds == 0:
                used += len(message.wire) + MESSAGE_BYTES
            message.holds += 1
            used += HOLD_BYTES
        self.used += used

    def drop(self, message: Message) -> None:
        message.holds -= 1
        self.used -= HOLD_BYTES
        if message.holds == 0:
            self.used -= len(message.wire) + MESSAGE_BYTES


@dataclass(slots=True, eq=False)
class Consumer:
    """One stream: how much it may hold unacknowledged, and how much it does. 0 is no limit."""

    max_messages: int = 0
    max_bytes: int = 0
    messages: int = 0
    size: int = 0
    lines: deque[Line] = field(default_factory=deque)
    """Lines that only this consumer may go on with."""


@dataclass(slots=True, eq=False)
class Entry:
    """One message in one subscription."""

    message: Message
    line: Line | None = None
    attempts: int = 0
    serial: int = 0
    """The number in the newest acknowledgement id; 0 before the first delivery."""
    deadline_us: int = 0
    """When the lease ends; 0 while nobody has one."""
    holder: Consumer | None = None
    acked: bool = False


@dataclass(slots=True, eq=False)
class Line:
    """The messages of one ordering key: `flying` were delivered, `waiting` come after them."""

    key: str
    waiting: deque[Entry] = field(default_factory=deque)
    flying: list[Entry] = field(default_factory=list)
    holder: Consumer | None = None
    """Who has the flying ones. Nobody else may get the next: it could be done with it earlier."""
    place: object = None
    """The queue the line stands in, if any; in every other one its traces are stale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a subscription's owner decided about deliveries."""

    ack_deadline_us: int = 10 * SECOND_US
    ordered: bool = False
    exactly_once: bool = False
    retain_acked: bool = False
    retention_us: int = 7 * 86_400 * SECOND_US
    backoff_us: tuple[int, int] | None = None
    """Shortest and longest wait before a redelivery."""
    dead_letter_topic: str = ""
    max_attempts: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of acknowledgement ids that were not simply accepted."""

    invalid: list[int]
    """Of no lease: never given out, settled, expired, or given out anew since."""
    unordered: list[int]
    """Of a line whose earlier messages are not acknowledged yet; nothing happened to them."""
