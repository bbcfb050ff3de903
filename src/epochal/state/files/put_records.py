"""Writes records that put rows: each key and each value after its length. Pure.

Delta files, snapshots and changelogs share this form. All of it runs in C, because the thread that
writes an epoch holds the interpreter lock while it makes the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat

LENGTH_BYTES = 4
_MAX_KNOWN_LENGTH = 1 << 12


class _Lengths(dict[int, bytes]):
    """Lengths as they are written. Most rows of a store have one of few lengths."""

    def __missing__(self, length: int) -> bytes:
        written = length.to_bytes(LENGTH_BYTES, "big")
        if length <= _MAX_KNOWN_LENGTH:
            self[length] = written
        return written


_written = _Lengths().__getitem__


def put_records(rows: Sequence[tuple[bytes, bytes]], tag: bytes = b"") -> bytes:
    """The records of these rows, at least one, each after the tag."""
    keys, values = zip(*rows, strict=True)
    key_lengths, value_lengths = (map(_written, map(len, each)) for each in (keys, values))
    # Not `strict`: the tag is repeated without end.
    return b"".join(chain.from_iterable(zip(repeat(tag), key_lengths, keys, value_lengths, values)))
