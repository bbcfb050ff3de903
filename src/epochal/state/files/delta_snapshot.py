"""Parses and writes the content of delta and snapshot files, after decompression. Pure.

    put     = keyLen key valueLen value
    delete  = keyLen key FFFFFFFF           in a delta only
    end     = FFFFFFFF                      mandatory; bytes after it are ignored

Lengths are big-endian; the rows themselves are little-endian.

With row checksums the value of a put starts with the CRC-32C of key and value, and the key of a
delete starts with the CRC-32C of the key. The file does not record whether it has row checksums;
the query's configuration does.

Nothing marks the start of a record, so the format can only be read from the beginning, one length
after the other. That is slow in Python. `scan_records` instead guesses every place where a record
could start and reads all guessed records at once with numpy. Then it keeps exactly those guesses
that the chain of lengths from byte 0 visits. Where the chain visits a place that was not guessed,
it reads one record at a time. A wrong guess is never visited and a missed record is read
sequentially, so results and errors are those of a sequential reader for any input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import chain, islice, repeat
from typing import Any, TypeAlias, cast

import google_crc32c
import numpy as np
import numpy.typing as npt

from epochal.errors import StateFormatError
from epochal.state.files.codecs import Unpacked
from epochal.state.rows.byte_spans import Flags, Ints, Spans, join

END_MARK = b"\xff\xff\xff\xff"

_LOAD = "CANNOT_LOAD_STATE_STORE."
_CHECKSUM_CONDITION = "STATE_STORE_ROW_CHECKSUM_VERIFICATION_FAILED"
_CHUNK_BYTES = 1 << 19
"""How much of a file is guessed at once: few enough guesses to stay in the processor's cache."""
_PIECE_RECORDS = 1 << 14
_SCANNED_BYTES = 1 << 23
"""How much of a file `scan_parts` holds at once."""


class FileKind(StrEnum):
    """The two kinds of files that hold records."""

    DELTA = "delta"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """The records of a file, in file order. The value of a delete is an empty span."""

    keys: Spans
    values: Spans
    deleted: Flags
    source: str
    """The name of the file for messages."""

    def __len__(self) -> int:
        return len(self.keys)

    def slice(self, start: int, end: int) -> Records:
        keys, values = self.keys.slice(start, end), self.values.slice(start, end)
        return Records(keys, values, self.deleted[start:end], self.source)

    def to_list(self) -> list[tuple[bytes, bytes | None]]:
        """Every record as key and value, None for a delete."""
        rows = zip(self.keys, self.values, self.deleted.tolist(), strict=True)
        return [(key, None if deleted else value) for key, value, deleted in rows]


def scan_records(
    data: Unpacked, kind: FileKind, *, row_checksums: bool = False, source: str = "state file"
) -> Records:
    """Find every record; StateFormatError if the file is truncated or a length is impossible.

    With `row_checksums`, every checksum is verified and left out of the spans.
    """
    places = _scan(data, kind, row_checksums, source)
    return _records(data, places, row_checksums, source)


def scan_parts(
    pieces: Iterable[bytes],
    kind: FileKind,
    *,
    row_checksums: bool = False,
    source: str = "state file",
    scanned_bytes: int = _SCANNED_BYTES,
) -> Iterator[Records]:
    """As `scan_records`, for a file that is given in pieces, part by part.

    A part ends where the next record may be incomplete. Offsets in errors count from its start.
    """
    waiting = bytearray()
    for piece in pieces:
        waiting += piece
        if len(waiting) >= scanned_bytes:
            places = _scan(waiting, kind, row_checksums, source, partial=True)
            starts, key_lengths, value_lengths = places
            if len(starts):
                used = int(starts[-1] + key_lengths[-1] + max(int(value_lengths[-1]), 0)) + 8
                part = bytes(waiting[:used])
                yield _records(part, places, row_checksums, source)
                del waiting[:used]
    yield scan_records(bytes(waiting), kind, row_checksums=row_checksums, source=source)


def _records(
    data: Unpacked, places: tuple[Ints, Ints, Ints], row_checksums: bool, source: str
) -> Records:
    starts, key_lengths, value_lengths = places
    buffer = np.frombuffer(data, np.uint8)
    deleted = value_lengths < 0
    keys = Spans(buffer, starts + 4, key_lengths)
    values = Spans(buffer, keys.ends + 4, np.where(deleted, 0, value_lengths))
    if row_checksums:
        keys, values = _strip_checksums(keys, values, deleted, source)
    # Spark before 2.3 appended four bytes to some values; Spark drops them, and so do we.
    return Records(keys, Spans(buffer, values.starts, values.lengths & ~7), deleted, source)


def encode_records(
    records: Iterable[tuple[bytes, bytes | None]], *, row_checksums: bool = False
) -> bytes:
    """Write records and the end mark. A value of None writes a delete."""
    return b"".join(encode_pieces(records, row_checksums=row_checksums))


def encode_pieces(
    records: Iterable[tuple[bytes, bytes | None]], *, row_checksums: bool = False
) -> Iterator[bytes]:
    """As `encode_records`, in pieces of some records each."""
    rest = iter(records)
    while listed := list(islice(rest, _PIECE_RECORDS)):
        if not row_checksums and all(value is not None for _, value in listed):
            yield put_records(cast("list[tuple[bytes, bytes]]", listed))
        else:
            yield b"".join(_record(key, value, row_checksums) for key, value in listed)
    yield END_MARK


class _Lengths(dict[int, bytes]):
    """Lengths as they are written. Most rows of a store have one of few lengths."""

    def __missing__(self, length: int) -> bytes:
        written = length.to_bytes(4, "big")
        if length <= 1 << 12:
            self[length] = written
        return written


_written = _Lengths().__getitem__


def put_records(rows: Sequence[tuple[bytes, bytes]], tag: bytes = b"") -> bytes:
    """The records of these rows, at least one, each after the tag.

    All of it runs in C, because a thread that writes an epoch holds the interpreter lock.
    """
    keys, values = zip(*rows, strict=True)
    key_lengths, value_lengths = (map(_written, map(len, part)) for part in (keys, values))
    # Not `strict`: the tag is repeated without end.
    return b"".join(chain.from_iterable(zip(repeat(tag), key_lengths, keys, value_lengths, values)))


def _record(key: bytes, value: bytes | None, row_checksums: bool) -> bytes:
    if row_checksums:
        checksum = google_crc32c.extend(google_crc32c.value(key), value or b"")
        prefix = checksum.to_bytes(4, "little")
        key, value = (key, prefix + value) if value is not None else (prefix + key, None)
    head = len(key).to_bytes(4, "big") + key
    return head + (END_MARK if value is None else len(value).to_bytes(4, "big") + value)


def encode_spans(keys: Spans, values: Spans, *, row_checksums: bool = False) -> bytes:
    """Write many puts at once, and the end mark."""
    count, columns = len(keys), 3 if row_checksums else 2
    heads = np.empty((count, columns), ">i4")
    heads[:, 0] = keys.lengths
    heads[:, 1] = values.lengths
    if row_checksums:
        heads[:, 1] += 4
        heads[:, 2] = compute_row_checksums(keys, values).astype("<u4").view(">i4")
    buffer = heads.reshape(-1).view(np.uint8)
    places = np.arange(count, dtype=np.int64) * 4 * columns
    before_key = Spans(buffer, places, np.full(count, 4, np.int64))
    before_value = Spans(buffer, places + 4, np.full(count, 4 * columns - 4, np.int64))
    records = join((before_key, keys, before_value, values))
    return b"".join((memoryview(cast(Any, records)), END_MARK))


def _scan(
    data: Unpacked, kind: FileKind, checksums: bool, source: str, *, partial: bool = False
) -> tuple[Ints, Ints, Ints]:
    """The places of all records; with `partial`, only of those before the first incomplete one."""
    starts, key_lengths, value_lengths, nexts = _guess(data, kind, checksums)
    # A run of guesses ends where the next record is not the next guess.
    run_ends = np.flatnonzero(np.append(nexts[:-1] != starts[1:], True)[: len(starts)])
    leads_to = nexts[run_ends].tolist()
    leads_to_guess = np.searchsorted(starts, nexts[run_ends]).tolist()
    ends = run_ends.tolist()
    chained = np.zeros(len(starts), np.bool_)
    walked: list[tuple[int, int, int]] = []
    position: int | None = 0
    # Follow the chain of lengths from byte 0. Invariants: `guess` is the first guess at or after
    # `position`, and `run` is at or before the run that contains it.
    guess, run = 0, 0
    while position is not None:
        if guess < len(starts) and starts[guess] == position:
            # Inside a run every record leads to the next guess, so the whole rest is on the chain.
            while ends[run] < guess:
                run += 1
            chained[guess : ends[run] + 1] = True
            position, guess = leads_to[run], leads_to_guess[run]
        else:
            if partial and not _is_complete(data, position):
                break
            record, position = _read_one(data, position, kind, source)
            if record is not None:
                walked.append(record)
            if position is not None and guess < len(starts) and starts[guess] < position:
                guess = int(np.searchsorted(starts, position))
    records = (starts, key_lengths, value_lengths)
    if not chained.all():
        records = (starts[chained], key_lengths[chained], value_lengths[chained])
    if not walked:
        return records
    extra = np.array(walked, np.int64).T
    merged = [np.concatenate(pair) for pair in zip(records, extra, strict=True)]
    order = np.argsort(merged[0], kind="stable")
    return merged[0][order], merged[1][order], merged[2][order]


def _guess(data: Unpacked, kind: FileKind, checksums: bool) -> tuple[Ints, Ints, Ints, Ints]:
    """Every place where a record may start, with the record that a reader would find there.

    A guess needs a key length above 0 and below 64 KiB, rows of whole words (after the checksum, if
    there is one), and room for the next length. Records that these rules miss are read one by one,
    so the rules affect the speed but never the result. Row checksums shift records by half a word.
    """
    step, extra = (4, 4) if checksums else (8, 0)
    words = np.frombuffer(data, "<u4", len(data) // 4)
    # A big-endian length read as little-endian has its bytes reversed. The mask demands that the
    # upper two bytes of the length are 0, and that it is a multiple of the step.
    mask = np.uint32(0x0000FFFF | (step - 1) << 24)
    places = words[:: step // 4]
    last_place = len(data) - 4
    guesses: list[tuple[Ints, Ints, Ints, Ints]] = []
    for chunk in range(0, len(places), _CHUNK_BYTES // step):
        part = places[chunk : chunk + _CHUNK_BYTES // step]
        starts = (np.flatnonzero(((part & mask) == 0) & (part != 0)) + chunk) * step
        key_lengths = _lengths_at(words, starts)
        value_places = starts + key_lengths + 4
        value_lengths = _lengths_at(words, np.minimum(value_places, last_place))
        nexts = value_places + 4 + np.maximum(value_lengths, 0)
        good = (value_lengths >= 0) & (value_lengths & 7 == extra) & (key_lengths & 7 == 0)
        if kind is FileKind.DELTA:
            good |= (value_lengths == -1) & (key_lengths & 7 == extra)
        good &= nexts <= last_place
        guesses.append((starts[good], key_lengths[good], value_lengths[good], nexts[good]))
    none = np.empty(0, np.int64)
    if not guesses:
        return none, none, none, none
    starts, key_lengths, value_lengths, nexts = map(np.concatenate, zip(*guesses, strict=True))
    return starts, key_lengths, value_lengths, nexts


def _lengths_at(words: npt.NDArray[np.uint32], positions: Ints) -> Ints:
    return cast(Ints, words[positions >> 2].byteswap().view(np.int32).astype(np.int64))


def _read_one(
    data: Unpacked, at: int, kind: FileKind, source: str
) -> tuple[tuple[int, int, int] | None, int | None]:
    """Read the record at `at`; return it and the place of the next, or None and None at the end."""
    key_length = _length(data, at, source)
    if key_length == -1:
        return None, None
    if key_length < -1:
        condition = f"{_LOAD}CANNOT_READ_{kind.name}_FILE_KEY_SIZE"
        raise StateFormatError(source, at, f"a key length cannot be {key_length}", condition)
    value_at = at + 4 + key_length
    if value_at > len(data):
        reason = f"the file ends {value_at - len(data)} bytes before a key does"
        raise StateFormatError(source, at, reason)
    value_length = _length(data, value_at, source)
    if value_length < 0:
        if kind is FileKind.SNAPSHOT:
            condition = f"{_LOAD}CANNOT_READ_SNAPSHOT_FILE_VALUE_SIZE"
            reason = f"a value length cannot be {value_length}"
            raise StateFormatError(source, value_at, reason, condition)
        return (at, key_length, -1), value_at + 4
    end = value_at + 4 + value_length
    if end > len(data):
        reason = f"the file ends {end - len(data)} bytes before a value does"
        raise StateFormatError(source, value_at, reason)
    return (at, key_length, value_length), end


def _is_complete(data: Unpacked, at: int) -> bool:
    """Whether `data` has everything that `_read_one` needs at `at`."""
    for _ in ("key", "value"):
        if at + 4 > len(data):
            return False
        at += 4 + max(0, int.from_bytes(data[at : at + 4], "big", signed=True))
    return at <= len(data)


def _length(data: Unpacked, at: int, source: str) -> int:
    if at + 4 > len(data):
        raise StateFormatError(source, at, "the file ends without an end mark, so it is incomplete")
    return int.from_bytes(data[at : at + 4], "big", signed=True)


def _strip_checksums(
    keys: Spans, values: Spans, deleted: Flags, source: str
) -> tuple[Spans, Spans]:
    carriers = np.where(deleted, keys.lengths, values.lengths)
    if (carriers < 4).any():
        first = int(np.flatnonzero(carriers < 4)[0])
        raise StateFormatError(
            source, int(keys.starts[first]) - 4, "a record has no room for its row checksum"
        )
    checksum_at = np.where(deleted, keys.starts, values.starts)
    move = np.where(deleted, 4, 0)
    keys = Spans(keys.buffer, keys.starts + move, keys.lengths - move)
    values = Spans(values.buffer, values.starts + 4 - move, values.lengths - 4 + move)
    computed = compute_row_checksums(keys, values)
    stored = keys.buffer[checksum_at[:, None] + np.arange(4)].view("<u4")[:, 0]
    wrong = np.flatnonzero(stored != computed)
    if len(wrong):
        first = int(wrong[0])
        raise StateFormatError(
            source,
            int(checksum_at[first]),
            f"the stored row checksum is {stored[first]:#010x}, but the row's is "
            f"{computed[first]:#010x}",
            _CHECKSUM_CONDITION,
        )
    return keys, values


Checksums: TypeAlias = npt.NDArray[np.uint32]

_POLYNOMIAL = 0x82F63B78  # reflected
_FEW = 64
"""With fewer unfinished records than this, finishing each one by itself is faster."""


def compute_row_checksums(keys: Spans, values: Spans) -> Checksums:
    """The CRC-32C of each key followed by its value.

    All records advance together, one 32-bit word at a time. They are sorted by length, longest
    first, so that the unfinished records are always a prefix of the arrays.
    """
    return _extend(_extend(np.zeros(len(keys), np.uint32), keys), values)


def _extend(checksums: Checksums, spans: Spans) -> Checksums:
    order = np.argsort(-spans.lengths, kind="stable")
    starts, lengths = spans.starts[order], spans.lengths[order]
    state = ~checksums[order]
    low, high = _tables()
    done = 0
    # A view with one word per byte: a row may start at any byte.
    words = np.ndarray((max(len(spans.buffer) - 3, 0),), "<u4", spans.buffer, strides=(1,))
    whole = lengths >> 2
    running = int(np.searchsorted(-whole, -done))
    while running > _FEW:
        mixed = state[:running] ^ words[starts[:running] + 4 * done]
        state[:running] = low[mixed & 0xFFFF] ^ high[mixed >> 16]
        done += 1
        running = int(np.searchsorted(-whole, -done))
    result = ~state
    for index in np.flatnonzero(lengths > np.minimum(whole, done) * 4).tolist():
        start = int(starts[index]) + 4 * min(int(whole[index]), done)
        rest = spans.buffer[start : int(starts[index] + lengths[index])].tobytes()
        result[index] = google_crc32c.extend(int(result[index]), rest)
    unordered = np.empty_like(result)
    unordered[order] = result
    return unordered


@cache
def _tables() -> tuple[Checksums, Checksums]:
    """What the lower and the upper half of a word contribute to the CRC of four bytes."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ np.uint32(_POLYNOMIAL), table >> 1)
    steps = [table]
    for _ in range(3):
        steps.append(steps[-1] >> 8 ^ table[steps[-1] & 0xFF])
    halves = np.arange(65536)
    low = steps[3][halves & 0xFF] ^ steps[2][halves >> 8]
    high = steps[1][halves & 0xFF] ^ steps[0][halves >> 8]
    return low, high
