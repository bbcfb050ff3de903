"""How the letters of an epoch travel to the driver, beside the message of the sink's writer. Pure.

A task that has letters wraps its sink's message in an envelope, which also names the file with the
letters. So the decision of an epoch covers its letters, and a restart finishes both. A task without
letters reports its sink's message unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

MAGIC = b"EDL1"


class StagedDeadLetters(msgspec.Struct, frozen=True, array_like=True):
    """A file with the letters of one task and epoch."""

    name: str
    checksum: int
    letters: int


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """A task's report of an epoch that has letters."""

    message: bytes
    """What the sink's own writer returned."""
    staged: StagedDeadLetters


_decoder = msgspec.msgpack.Decoder(Envelope)


def pack(message: bytes, staged: StagedDeadLetters) -> bytes:
    """The message that a task reports if it has letters."""
    return MAGIC + msgspec.msgpack.encode(Envelope(message, staged))


def unpack(message: bytes) -> tuple[bytes, StagedDeadLetters | None]:
    """The sink's own message, and the file with letters if there is one."""
    if not message.startswith(MAGIC):
        return message, None
    found = _decoder.decode(message[len(MAGIC) :])
    return found.message, found.staged


def sink_messages(messages: Sequence[bytes]) -> tuple[bytes, ...]:
    """The messages of the sink's own writers, without envelopes."""
    return tuple(unpack(message)[0] for message in messages)
