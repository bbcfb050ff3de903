"""The file with everything that one task's stores changed in one epoch. Pure.

It contains, for each store of the task, the file that Spark would have for that version: a delta, a
changelog, or now and then a snapshot. So the file can be taken apart into Spark's files without
knowing what is in them. It starts with a magic line and a header; the stores' files follow in the
order of the header.

The name contains the attempt, and the file is never replaced. The header contains the checksum of
the file before it, so the checksum of the newest file vouches for all files of an attempt.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import google_crc32c
import msgspec

from epochal.checkpoint.layout import StoreKey
from epochal.errors import MalformedFileError

MAGIC = b"epochal epoch 1\n"
_LENGTH = struct.Struct(">I")
_NAME = re.compile(r"(\d{1,18})-t(\d{1,9})-a(\d{1,18})")


class StoreFileEntry(msgspec.Struct, frozen=True, array_like=True):
    """One store's file: where it belongs, and how long it is."""

    operator: int
    partition: int
    store: str
    name: str
    """The name that Spark gives to the file."""
    size: int

    @property
    def key(self) -> StoreKey:
        return StoreKey(self.operator, self.partition, self.store)


class Header(msgspec.Struct, frozen=True, array_like=True):
    """Which epoch, task and attempt the file belongs to, and what is in it."""

    epoch: int
    attempt: int
    task: int
    tasks: int
    before: int
    """The checksum of the file of the epoch before; -1 in the first epoch of the attempt."""
    stores: tuple[StoreFileEntry, ...]


@dataclass(frozen=True, slots=True)
class EpochFile:
    """A file that was read."""

    header: Header
    checksum: int
    body: memoryview

    def items(self) -> Iterator[tuple[StoreFileEntry, bytes]]:
        start = 0
        for entry in self.header.stores:
            yield entry, bytes(self.body[start : start + entry.size])
            start += entry.size


def file_name(epoch: int, task: int, attempt: int) -> str:
    return f"{epoch}-t{task}-a{attempt}"


def parse_file_name(name: str) -> tuple[int, int, int] | None:
    """The epoch, task and attempt in a name; None for any other file."""
    match = _NAME.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]), int(match[3]))


def encode_epoch(header: Header, contents: Sequence[bytes]) -> bytes:
    """The content of a file, given the content of each store's file."""
    head = msgspec.msgpack.encode(header)
    return b"".join((MAGIC, _LENGTH.pack(len(head)), head, *contents))


def checksum_of(data: bytes) -> int:
    """The CRC-32C by which a file is known."""
    return int(google_crc32c.value(data))


def decode_epoch(data: bytes, source: str) -> EpochFile:
    """Parse a file; MalformedFileError, which names `source`, if it is not whole."""
    start = len(MAGIC) + _LENGTH.size
    if data[: len(MAGIC)] != MAGIC or len(data) < start:
        raise MalformedFileError(source, "it is not an epoch file of this release")
    (length,) = _LENGTH.unpack_from(data, len(MAGIC))
    try:
        header = msgspec.msgpack.decode(data[start : start + length], type=Header)
    except msgspec.DecodeError as error:
        raise MalformedFileError(source, f"its header cannot be read: {error}") from None
    body = memoryview(data)[start + length :]
    # The file has no checksum of its own: the decision has it, or the file after this one, and
    # `read_chain` compares. A checksum inside could not tell that it is the file that counts.
    size = sum(entry.size for entry in header.stores)
    if size != len(body):
        raise MalformedFileError(source, f"it has {len(body)} bytes of content instead of {size}")
    return EpochFile(header, checksum_of(data), body)
